"""Check the book of a partition set, and that the part files are the ones it speaks of.

P parts, T node types.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass

import h5py
import numpy as np

from data_tools.team import Team
from data_tools.verify.findings import Findings, each
from hpcgnn.graph import files
from hpcgnn.graph.decode import decode_json

ATTRIBUTES = ("kind", "num_parts", "set_id", "seed", "method", "options", "source_name", "source_hash", "quality")

KINDS = ("temporal", *files.BY_DESTINATION)


@dataclass(frozen=True, slots=True, eq=False)
class BookType:
    """A node type in the book; offsets [P + 1] absolute global ids, the first of them is its base."""

    name: str
    num_nodes: int
    offsets: np.ndarray

    @property
    def base(self) -> int:
        """Global id of the type's first node."""
        return int(self.offsets[0])

    def owner(self, global_ids: np.ndarray) -> np.ndarray:
        """Find the part [n] of global ids [n] of this type."""
        return np.searchsorted(self.offsets, global_ids, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class BookRelation:
    """A relation in the book; its endpoint types; columns besides src and dst."""

    name: str
    num_edges: int
    src_type: BookType
    dst_type: BookType
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BookView:
    """The content of a book that verification needs; snapshot_facts: num_snapshots and splits, where the book
    has them."""

    path: pathlib.Path
    kind: str
    num_parts: int
    set_id: str
    source_hash: str
    options: dict
    quality: dict
    snapshot_facts: dict
    types: tuple[BookType, ...]
    relations: tuple[BookRelation, ...]
    hashes: list[str]
    sizes: list[int]

    def part_path(self, part: int) -> pathlib.Path:
        """Return the path of a part file."""
        return files.part_path(self.path.parent, part)

    def local_bases(self, part: int) -> np.ndarray:
        """Find the first local index [T + 1] of every type in a part."""
        return np.cumsum([0, *(int(t.offsets[part + 1] - t.offsets[part]) for t in self.types)])


def read_book(folder: pathlib.Path, findings: Findings) -> BookView | None:
    """Read and check the book; None when it is too damaged for anything else to be checked."""
    path = files.book_path(folder)
    before = len(findings.lines)
    view = None
    with findings.reading(path), files.open_checked(path, files.BOOK) as book:
        needed = (*ATTRIBUTES, *(("num_snapshots",) if book.attrs.get("kind") == "snapshots" else ()))
        missing = [name for name in needed if name not in book.attrs]
        if missing:
            findings.add(path, "", f"attributes are missing: {', '.join(missing)}")
            return None
        view = view_of(path, book)
        check_book(view, findings)
    return view if len(findings.lines) == before else None


def view_of(path: pathlib.Path, book: h5py.File) -> BookView:
    """Read the book. FileFormatError for counts that cannot be."""
    types, sizes = {}, book["parts/bytes"][:].tolist()
    for name in files.node_types(book):
        group = book["nodes"][name]
        types[name] = BookType(name, int(group.attrs["num_nodes"]), group["offsets"][:])
    relations = []
    for name in files.relations(book):
        group = book["edges"][name]
        source, _, destination = files.split_relation(name)
        columns = tuple(column.decode() for column in group["columns"][:])
        count = checked_edges(path, group, sizes)
        relations.append(BookRelation(name, count, types[source], types[destination], columns))
    snapshot_facts = {name: book.attrs[name] for name in ("num_snapshots", "splits") if name in book.attrs}
    if int(snapshot_facts.get("num_snapshots", 1)) < 1:
        count = snapshot_facts["num_snapshots"]
        raise files.FileFormatError(f"{path}: num_snapshots is {count}; run data_tools.partition again")
    options, quality = (decode_json(book.attrs[name]) for name in ("options", "quality"))
    if not (isinstance(options, dict) and isinstance(quality, dict)):
        raise files.FileFormatError(f"{path}: options and quality must be mappings; run data_tools.partition again")
    return BookView(
        path=path,
        kind=str(book.attrs["kind"]),
        num_parts=int(book.attrs["num_parts"]),
        set_id=str(book.attrs["set_id"]),
        source_hash=str(book.attrs["source_hash"]),
        options=options,
        quality=quality,
        snapshot_facts=snapshot_facts,
        types=tuple(types.values()),
        relations=tuple(relations),
        hashes=[text.decode() for text in book["parts/hash"][:]],
        sizes=sizes,
    )


def checked_edges(path: pathlib.Path, group: h5py.Group, sizes: list[int]) -> int:
    """Return the number of a relation's edges, of which every one takes a byte of the parts, packed or not."""
    count = int(group.attrs["num_edges"])
    if not 0 <= count <= files.MOST_PACKED * max(0, sum(sizes)):
        raise files.FileFormatError(
            f"{path}: {group.name} has {count} edges, parts of {sum(sizes)} bytes; run data_tools.partition again"
        )
    return count


def check_book(view: BookView, findings: Findings) -> None:
    """Check that offsets tile the global ids in order of type and part, with one hash and one size per part."""
    if view.kind not in KINDS:
        findings.add(view.path, "", f"kind {view.kind!r} is not supported yet by verify")
    for name, values in (("hash", view.hashes), ("bytes", view.sizes)):
        if len(values) != view.num_parts:
            findings.add(view.path, f"/parts/{name}", f"{len(values)} entries, expected {view.num_parts}")
    base = 0
    for node_type in view.types:
        dataset = f"/nodes/{node_type.name}/offsets"
        offsets = node_type.offsets
        if offsets.shape != (view.num_parts + 1,):
            findings.add(view.path, dataset, f"shape {offsets.shape}, expected ({view.num_parts + 1},)")
            return
        ends, expected = (int(offsets[0]), int(offsets[-1])), (base, base + node_type.num_nodes)
        if ends != expected:
            findings.add(view.path, dataset, f"ids {ends[0]} .. {ends[1]}, expected {expected[0]} .. {expected[1]}")
        bad = np.flatnonzero(np.diff(offsets) < 0) + 1
        findings.add_rows(view.path, dataset, bad, lambda i, o=offsets, b=bad: f"{o[b[i]]} comes after {o[b[i] - 1]}")
        base += node_type.num_nodes


def check_files(team: Team, view: BookView, findings: Findings) -> None:
    """Collective. Check that every part file is there, belongs to the set, and is the very bytes that the book
    describes."""
    each(team, findings, range(view.num_parts), lambda part, problems: check_file(view, part, problems))
    each(team, findings, [view], check_strangers)


def check_file(view: BookView, part: int, findings: Findings) -> None:
    """Check that one part file is there, and its bytes and header."""
    path = view.part_path(part)
    if not path.is_file():
        findings.add(path, "", "no such file; copy it again or partition again")
        findings.unusable.add(part)
        return
    with findings.reading(path, part):
        if check_bytes(view, path, part, findings):
            check_header(view, path, part, findings)
        else:
            findings.unusable.add(part)


def check_strangers(view: BookView, findings: Findings) -> None:
    """Note part files that do not belong to the set."""
    for path in sorted(view.path.parent.glob("part-*")):
        if path not in {view.part_path(part) for part in range(view.num_parts)}:
            findings.add(path, "", f"does not belong to this set of {view.num_parts} parts; remove it")


def check_bytes(view: BookView, path: pathlib.Path, part: int, findings: Findings) -> bool:
    """Check size and hash of one part file; False: it must not be opened, since HDF5 can hang on a damaged header."""
    size = path.stat().st_size
    if size != view.sizes[part]:
        findings.add(path, "", f"{size} bytes, expected {view.sizes[part]} (book.h5: /parts/bytes, row {part})")
        return False
    digest = files.file_hash(path)
    if digest != view.hashes[part]:
        expected = f"expected {view.hashes[part]} (book.h5: /parts/hash, row {part})"
        remedy = "damaged or from another set, its content is not checked; copy it again or partition again"
        findings.add(path, "", f"sha256 {digest}, {expected}: {remedy}")
        return False
    return True


def check_header(view: BookView, path: pathlib.Path, part: int, findings: Findings) -> None:
    """Check format, version, part number and set of one part file."""
    with files.open_checked(path, files.PART) as file:
        expected = {"part": part, "num_parts": view.num_parts, "set_id": view.set_id}
        for name, value in expected.items():
            if file.attrs.get(name) != value:
                actual = file.attrs.get(name)
                findings.add(path, "", f"attribute {name} is {actual!r}, expected {value!r}; is it from another set?")
                findings.unusable.add(part)
