"""Compare the edges of all parts of a static set with each other, and with the graph file when there is one.

The parts hold edges by node, the graph file by row id. So records of all edges are first spooled to scratch files (in
the system's temporary folder) by windows of row ids, then compared window by window in bounded memory. W rows in a
window, k records.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import h5py
import numpy as np

from data_tools.graph.book import SetBook
from data_tools.graph.findings import Findings, each, put_together
from data_tools.graph.source import EdgeType
from data_tools.team import Team, check_scratch
from data_tools.verify.rows import same_rows, short
from data_tools.verify.static import sides
from data_tools.verify.temporal import Layout
from hpcgnn.graph import files

MAX_WINDOWS = 200  # scratch files open together
PART, POSITION = "#part", "#position"  # fields of a record that no column can be named like
HEAD = [("row", "<i8"), (PART, "<i4"), (POSITION, "<i8"), ("src", "<i8"), ("dst", "<i8")]


def compare_static_edges(
    team: Team,
    book: SetBook,
    relation: EdgeType,
    row_of: dict[str, np.ndarray],
    source: h5py.File | None,
    findings: Findings,
) -> int:
    """Collective. Check that every edge is at the owner of its destination once, with the graph file's values. With
    out-edges, check that it is at the owner of its source too. Returns the number of cut edges.

    row_of: row ids by global id, per node type, as compare_nodes returns them.
    """
    (columns,) = each(team, findings, [relation], lambda item, problems: column_types(book, item, source, problems))
    dtype = np.dtype([*HEAD, *columns])
    window = max(files.SLAB_BYTES // 2 // dtype.itemsize, -(-relation.num_edges // MAX_WINDOWS), 1)
    starts = range(0, relation.num_edges, window)
    layouts: dict[str, Layout] = {f"/out/{relation.name}": {}} if book.options.get("out_edges") else {}
    ends = (relation.src_type.name, relation.dst_type.name) if source is not None else ()
    place = {name: global_of(row_of[name]) for name in ends}
    inside = f"/edges/{relation.name}"
    groups = sides(relation, layouts)
    check_scratch(team, relation.num_edges * (dtype.itemsize + (len(groups) - 1) * np.dtype(HEAD).itemsize))
    with contextlib.ExitStack() as stack:
        spools = []
        for path, _, _, other in groups:
            names = [name for name, *_ in columns] if other == "src" else []
            record_type = dtype if other == "src" else np.dtype(HEAD)
            spools.append(PairSpool(stack, record_type, range(*team.share(0, len(starts))), window))
            spool_parts(team, book, relation, path, other, names, spools[-1], len(starts), findings)

        def check(index: int, findings: Findings) -> int:
            start, stop = starts[index], min(starts[index] + window, relation.num_edges)
            records = spools[0].records(index)
            check_once(book, inside, start, stop, records, findings)
            if source is not None:
                reference = source_edges(relation, source, place, start, stop)
                compare_records(book, inside, start, records, reference, "the graph file", findings)
            for out in (spool.records(index) for spool in spools[1:]):
                check_once(book, f"/out/{relation.name}", start, stop, out, findings)
                expected = by_row(records, start, stop)
                compare_records(book, f"/out/{relation.name}", start, out, expected, "the in-edges", findings)
            return int((relation.src_type.owner(records["src"]) != records[PART]).sum())

        return sum(each(team, findings, range(len(starts)), check))


class PairSpool:
    """Scratch files with records of edges, one for each of the ``windows`` of row ids that the rank compares."""

    def __init__(self, stack: contextlib.ExitStack, dtype: np.dtype, windows: range, window: int):
        self.dtype, self.window, self._windows = dtype, window, windows
        self._files = {index: stack.enter_context(tempfile.TemporaryFile()) for index in windows}

    def add(self, records: np.ndarray) -> None:
        """Write records [k] to the files of their windows."""
        window = records["row"] // self.window
        order = np.argsort(window, kind="stable")
        bounds = np.searchsorted(window[order], np.arange(self._windows.start, self._windows.stop + 1))
        for index in np.flatnonzero(np.diff(bounds)):
            self._files[self._windows[index]].write(records[order[bounds[index] : bounds[index + 1]]].tobytes())

    def records(self, index: int) -> np.ndarray:
        """Read the records of a window, by part and position."""
        file = self._files[index]
        file.seek(0)
        records = np.fromfile(file, self.dtype)
        return records[np.lexsort((records[POSITION], records[PART]))]


def spool_parts(
    team: Team,
    book: SetBook,
    relation: EdgeType,
    path: str,
    other: str,
    names: list[str],
    spool: PairSpool,
    num_windows: int,
    findings: Findings,
) -> None:
    """Collective. Write the edges of a group of all usable parts to the ranks that have their windows. Every rank reads
    its share of the parts; ``other`` is the endpoint that the group has as a column."""
    usable = [part for part in range(book.num_parts) if part not in findings.unusable]
    part_findings = [(part, Findings()) for part in usable[slice(*team.share(0, len(usable)))]]
    pieces = (
        records
        for part, problems in part_findings
        for records in part_records(book, relation, path, other, part, names, spool.dtype, problems)
    )
    bounds = np.arange(team.size + 1) * num_windows // team.size
    records = next(pieces, None)
    while any(team.everyone(records is not None)):
        records = np.empty(0, spool.dtype) if records is None else records
        window = np.clip(records["row"] // max(1, spool.window), 0, max(0, num_windows - 1))
        rank = np.searchsorted(bounds, window, side="right") - 1
        order = np.argsort(rank, kind="stable")
        spool.add(team.exchange(records[order], np.bincount(rank, minlength=team.size))[0])
        records = next(pieces, None)
    put_together(team, findings, [problems for _, problems in part_findings])


def part_records(
    book: SetBook,
    relation: EdgeType,
    path: str,
    other: str,
    part: int,
    names: list[str],
    dtype: np.dtype,
    findings: Findings,
) -> Iterator[np.ndarray]:
    """Yield the records of the edges of a group of one part, in slabs."""
    owners = relation.dst_type if other == "src" else relation.src_type
    file_name = book.part_path(part)
    with findings.reading(file_name, part), files.open_checked(file_name, files.PART) as file:
        group = file[path]
        indptr = group["indptr"][:]
        for start, stop in files.slabs(len(group["row"]), dtype.itemsize, files.SLAB_BYTES // 2):
            records = np.zeros(stop - start, dtype)
            records["row"], records[PART], records[POSITION] = (
                group["row"][start:stop],
                part,
                np.arange(start, stop),
            )
            records[other] = group[other][start:stop]
            own = np.searchsorted(indptr, np.arange(start, stop), side="right") - 1 + owners.offsets[part]
            records["dst" if other == "src" else "src"] = own
            for name in names:
                records[name] = group[name][start:stop]
            yield records


def column_types(book: SetBook, relation: EdgeType, source: h5py.File | None, findings: Findings) -> list[tuple]:
    """Find (name, dtype, row shape) of the columns of a relation, from the graph file or the first usable part."""
    if source is not None:
        group = source["edges"][relation.name]
        return [(name, group[name].dtype, group[name].shape[1:]) for name in relation.columns]
    for part in range(book.num_parts):
        if part not in findings.unusable:
            with files.open_checked(book.part_path(part), files.PART) as file:
                group = file["edges"][relation.name]
                return [(name, group[name].dtype, group[name].shape[1:]) for name in relation.columns]
    return []


def check_once(book: SetBook, path: str, start: int, stop: int, records: np.ndarray, findings: Findings) -> None:
    """Check that every row of a window has one record."""
    order = np.argsort(records["row"], kind="stable")
    rows = records["row"][order]
    again = np.flatnonzero(rows[1:] == rows[:-1]) + 1
    for position in again[:1]:
        one, other = records[order[position - 1]], records[order[position]]
        text = f"row {other[POSITION]}: edge {other['row']} is in part-{one[PART]}.h5 too"
        more = f" (and {len(again) - 1} more such edges)" if len(again) > 1 else ""
        findings.add(book.part_path(int(other[PART])), f"{path}/row", text + more)
    if not findings.unusable:
        lost = np.setdiff1d(np.arange(start, stop), rows)
        findings.add_rows(book.path.parent, path, lost, lambda i: "the edge is in no part")


def source_edges(
    relation: EdgeType, source: h5py.File, place: dict[str, np.ndarray], start: int, stop: int
) -> dict[str, np.ndarray]:
    """Read the graph file's columns of a window, endpoints as global ids (-1 where no part has the node); place: global
    ids by row id (`global_of`), by node type."""
    group = source["edges"][relation.name]
    columns = {name: group[name][start:stop] for name in relation.columns}
    for name, node_type in (("src", relation.src_type), ("dst", relation.dst_type)):
        rows = group[name][start:stop].astype(np.int64)
        columns[name] = place[node_type.name][rows]
        columns[name] += np.where(columns[name] >= 0, node_type.base, 0)
    return columns


def global_of(row_of: np.ndarray) -> np.ndarray:
    """Make global ids by row id from row ids by global id, both relative to the type; -1 where there is none."""
    place = np.full(len(row_of), -1, np.int64)
    held = np.flatnonzero(row_of >= 0)
    place[row_of[held]] = held
    return place


def by_row(records: np.ndarray, start: int, stop: int) -> dict[str, np.ndarray]:
    """Find the endpoints [W] of the edges of a window, -1 where there is no record."""
    ends = {}
    for name in ("src", "dst"):
        ends[name] = np.full(stop - start, -1, np.int64)
        ends[name][records["row"] - start] = records[name]
    return ends


def compare_records(
    book: SetBook, path: str, start: int, records: np.ndarray, reference: dict, what: str, findings: Findings
) -> None:
    """Compare the values of records [k] with the values of a window, columns [W, ...], bit by bit; endpoints of -1 are
    unknown."""
    index = records["row"] - start
    owner = "src" if path.startswith("/out/") else "dst"  # has no column: it follows from the index pointer
    for name, values in reference.items():
        expected = values[index]
        differs = ~same_rows(records[name], expected)
        if name in ("src", "dst"):
            differs &= expected >= 0
        bad = np.flatnonzero(differs)
        for part in np.unique(records[PART][bad]):
            positions = bad[records[PART][bad] == part]

            def text(i: int, name=name, positions=positions, expected=expected) -> str:
                actual, correct = short(records[name][positions[i]]), short(expected[positions[i]])
                return f"{name} {actual}, expected {correct} as in {what} (edge {records['row'][positions[i]]})"

            dataset = f"{path}/{name}" if name != owner else f"{path}/indptr"
            findings.add_rows(book.part_path(int(part)), dataset, records[POSITION][positions], text)


def count_halo(team: Team, book: SetBook, findings: Findings) -> int:
    """Collective. Count the distinct remote sources of in-edges, summed over the usable parts."""
    usable = [part for part in range(book.num_parts) if part not in findings.unusable]
    return sum(each(team, findings, usable, lambda part, problems: part_halo(book, part, problems)))


def part_halo(book: SetBook, part: int, findings: Findings) -> int:
    """Count the distinct remote sources of a part's in-edges; 0 where it cannot be read."""
    reached = np.zeros(book.num_nodes, bool)
    with findings.reading(book.part_path(part), part), files.open_checked(book.part_path(part), files.PART) as file:
        for relation in book.relations:
            ids = file["edges"][relation.name]["src"]
            for start, stop in files.slabs(len(ids), 16):
                sources = ids[start:stop]
                reached[sources[relation.src_type.owner(sources) != part]] = True
        return int(np.count_nonzero(reached))
    return 0
