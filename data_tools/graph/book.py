"""Reads partition sets: the book, and the rows of all parts as the rows of one graph, whose nodes have their global
ids.

P parts, T node types, N nodes of all types.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import h5py
import numpy as np

from data_tools.graph.findings import Findings
from data_tools.graph.source import EdgeType, NodeType, Outline, read_facts
from data_tools.team import Team
from hpcgnn.graph import files
from hpcgnn.graph.decode import decode_json

ATTRIBUTES = ("kind", "num_parts", "set_id", "seed", "method", "options", "source_name", "source_hash", "quality")
REMEDY = "run hpcgnn verify, or partition again"


@dataclass(frozen=True, slots=True)
class SetBook(Outline):
    """The book of a partition set at ``path``; hashes, sizes [P]: of its part files."""

    num_parts: int
    set_id: str
    source_hash: str
    options: dict
    quality: dict
    hashes: list[str]
    sizes: list[int]
    edition: int = 0

    def part_path(self, part: int) -> pathlib.Path:
        """Return the path of a part file."""
        return files.part_path(self.path.parent, part, self.edition)

    def local_bases(self, part: int) -> np.ndarray:
        """Find the first local index [T + 1] of every type in a part."""
        return np.cumsum([0, *(int(t.offsets[part + 1] - t.offsets[part]) for t in self.types)])

    def part_of_nodes(self) -> np.ndarray:
        """Find the part [N] of every node."""
        pieces = [np.repeat(np.arange(self.num_parts), np.diff(node_type.offsets)) for node_type in self.types]
        return np.concatenate([np.empty(0, np.int64), *pieces])

    def node_column(self, node_type: NodeType, name: str) -> np.ndarray:
        """Read a column of a type's nodes, from all parts."""
        pieces = []
        for part in range(self.num_parts):
            with files.reading(self.part_path(part), files.PART, REMEDY) as file:
                pieces.append(file["nodes"][node_type.name][name][:])
        return np.concatenate(pieces)

    def ends(self, relation: EdgeType, team: Team | None = None, names: tuple[str, ...] = ()) -> Iterator[tuple]:
        """Yield the edges of a relation, part by part. An event comes once, though the parts of both its ends have
        it."""
        start = 0
        for part in range(self.num_parts):
            with files.reading(self.part_path(part), files.PART, REMEDY) as file:
                group = file["edges"][relation.name]
                columns = [*part_ends(group, relation, part), *(group[name][:] for name in names)]
                if self.kind == "temporal":
                    own = relation.src_type.owner(columns[0]) == part
                    columns = [column[own] for column in columns]
                yield start, *columns
                start += len(columns[0])


def part_ends(group: h5py.Group, relation: EdgeType, part: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the global ids of both ends of a relation's edges in a part. Raises FileFormatError where they cannot be."""
    src, node_type = group["src"][:], relation.dst_type
    if "indptr" in group:
        indptr = group["indptr"][:]
        degree = np.diff(indptr)
        if indptr[0] or indptr[-1] != len(src) or degree.min(initial=0) < 0:
            raise files.FileFormatError(f"{group.file.filename}: {group.name}: indptr and src do not fit; {REMEDY}")
        dst = int(node_type.offsets[part]) + np.repeat(np.arange(len(degree)), degree)
    else:
        dst = group["dst"][:]
    for ids, ends in ((src, relation.src_type), (dst, node_type)):
        first, stop = ends.base, ends.base + ends.num_nodes
        if len(ids) and (ids.min() < first or ids.max() >= stop):
            raise files.FileFormatError(
                f"{group.file.filename}: {group.name} has ends outside {first}..{stop - 1} of type {ends.name!r}; "
                f"{REMEDY}"
            )
    return src, dst


def open_book(folder: pathlib.Path) -> SetBook:
    """Read the book of a set, with the columns of nodes that its first part has; FileFormatError names the first
    problem."""
    findings = Findings()
    book = read_book(folder, findings)
    if book is None:
        raise files.FileFormatError(findings.lines[0])
    with files.reading(book.part_path(0), files.PART, REMEDY) as file:
        types = [replace(item, columns=tuple(sorted(file["nodes"][item.name]))) for item in book.types]
    return replace(book, types=tuple(types))


def read_book(folder: pathlib.Path, findings: Findings) -> SetBook | None:
    """Read and check the book; None when it is too damaged for anything else to be checked."""
    path, before, book = files.book_path(folder), len(findings.lines), None
    with findings.reading(path), files.open_checked(path, files.BOOK) as file:
        needed = (*ATTRIBUTES, *(("num_snapshots",) if file.attrs.get("kind") == "snapshots" else ()))
        missing = [name for name in needed if name not in file.attrs]
        if missing:
            findings.add(path, "", f"attributes are missing: {', '.join(missing)}")
            return None
        book = outline_of(path, file)
        check_book(book, findings)
    return book if len(findings.lines) == before else None


def outline_of(path: pathlib.Path, file: h5py.File) -> SetBook:
    """Read the content of a book. FileFormatError for counts that cannot be."""
    types: dict[str, NodeType] = {}
    relations, sizes = [], file["parts/bytes"][:].tolist()
    for name in files.node_types(file):
        group = file["nodes"][name]
        types[name] = NodeType(len(types), name, int(group.attrs["num_nodes"]), group["offsets"][:])
    for name in files.relations(file):
        group = file["edges"][name]
        source, _, destination = files.split_relation(name)
        columns = tuple(column.decode() for column in group["columns"][:])
        count, scale = checked_edges(path, group, sizes), group.attrs.get("time_scale")
        zone = group.attrs.get("zone")
        relations.append(EdgeType(name, count, types[source], types[destination], columns, scale, zone))
    facts = read_facts(file)
    if (count := int(facts.get("num_snapshots", 1))) < 1:
        raise files.FileFormatError(f"{path}: num_snapshots is {count}; run hpcgnn partition again")
    options, quality = (decode_json(file.attrs[name]) for name in ("options", "quality"))
    if not (isinstance(options, dict) and isinstance(quality, dict)):
        raise files.FileFormatError(f"{path}: options and quality must be mappings; run hpcgnn partition again")
    kind, set_id, source_hash = (str(file.attrs[name]) for name in ("kind", "set_id", "source_hash"))
    hashes = [text.decode() for text in file["parts/hash"][:]]
    of_graph = (path, kind, tuple(types.values()), tuple(relations), facts)
    edition = int(file.attrs.get("edition", 0))
    return SetBook(
        *of_graph, int(file.attrs["num_parts"]), set_id, source_hash, options, quality, hashes, sizes, edition
    )  # fmt: skip


def checked_edges(path: pathlib.Path, group: h5py.Group, sizes: list[int]) -> int:
    """Return the number of a relation's edges, of which every one takes a byte of the parts, packed or not."""
    count = int(group.attrs["num_edges"])
    if not 0 <= count <= files.MOST_PACKED * max(0, sum(sizes)):
        raise files.FileFormatError(
            f"{path}: {group.name} has {count} edges, parts of {sum(sizes)} bytes; run hpcgnn partition again"
        )
    return count


def check_book(book: SetBook, findings: Findings) -> None:
    """Check that offsets tile the global ids in order of type and part, with one hash and one size per part."""
    if book.kind not in files.KINDS:
        findings.add(book.path, "", f"kind {book.kind!r} is not supported yet by verify")
    for name, values in (("hash", book.hashes), ("bytes", book.sizes)):
        if len(values) != book.num_parts:
            findings.add(book.path, f"/parts/{name}", f"{len(values)} entries, expected {book.num_parts}")
    base = 0
    for node_type in book.types:
        dataset = f"/nodes/{node_type.name}/offsets"
        offsets = node_type.offsets
        if offsets.shape != (book.num_parts + 1,):
            findings.add(book.path, dataset, f"shape {offsets.shape}, expected ({book.num_parts + 1},)")
            return
        ends, expected = (int(offsets[0]), int(offsets[-1])), (base, base + node_type.num_nodes)
        if ends != expected:
            findings.add(book.path, dataset, f"ids {ends[0]} .. {ends[1]}, expected {expected[0]} .. {expected[1]}")
        bad = np.flatnonzero(np.diff(offsets) < 0) + 1
        findings.add_rows(book.path, dataset, bad, lambda i, o=offsets, b=bad: f"{o[b[i]]} comes after {o[b[i] - 1]}")
        base += node_type.num_nodes
