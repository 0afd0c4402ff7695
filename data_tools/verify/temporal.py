"""Check a single part file of a temporal set: its datasets, its nodes, its events and their history.

n nodes of the part (all types), m events of a relation in the part, h history entries.
"""

from __future__ import annotations

import h5py
import numpy as np

from data_tools.graph.book import SetBook
from data_tools.graph.findings import Findings
from data_tools.graph.source import EdgeType, NodeType
from hpcgnn.graph import files

Layout = dict[str, tuple[str, tuple[int, ...]]]  # column -> (dtype, trailing shape)


def layout_of(group: h5py.Group) -> Layout:
    """Return dtype and trailing shape of every column of a group."""
    return {name: (dataset.dtype.str, dataset.shape[1:]) for name, dataset in group.items()}


def part_layouts(file: h5py.File) -> dict[str, Layout]:
    """List the layouts of all groups of columns of a part, by path."""
    kinds = ("nodes", "edges", *(kind for kind in ("out", "cache") if kind in file))
    return {f"/{kind}/{name}": layout_of(file[kind][name]) for kind in kinds for name in file[kind]}


def check_part(book: SetBook, part: int, layouts: dict[str, Layout], findings: Findings) -> None:
    """Check a part against the book and against ``layouts``, the columns that every part must have."""
    path = book.part_path(part)
    with findings.reading(path, part), files.open_checked(path, files.PART) as file:
        if not check_datasets(book, file, part, layouts, findings):
            findings.unusable.add(part)
            return
        for node_type in book.types:
            if not check_nodes(file, node_type, findings):
                findings.unusable.add(part)
        for relation in book.relations:
            if not check_events(file, relation, part, findings):
                findings.unusable.add(part)
            check_history(book, file, relation, part, findings)


def check_datasets(book: SetBook, file: h5py.File, part: int, layouts: dict[str, Layout], findings: Findings) -> bool:
    """Check that all columns are there, with the right dtypes and lengths; False: comparing rows makes no sense."""
    before = len(findings.lines)
    check_layouts(file, layouts, findings)
    if sorted(file["history"]) != sorted(relation.name for relation in book.relations):
        findings.add(file.filename, "/history", f"relations {sorted(file['history'])} are not those of the book")
    if len(findings.lines) > before:
        return False
    for node_type in book.types:
        count = int(node_type.offsets[part + 1] - node_type.offsets[part])
        check_lengths(file, f"/nodes/{node_type.name}", count, "the book's offsets", findings)
    for relation in book.relations:
        group = f"/edges/{relation.name}"
        check_lengths(file, group, len(file[group]["row"]), "row", findings)
    return len(findings.lines) == before


def check_layouts(file: h5py.File, layouts: dict[str, Layout], findings: Findings) -> None:
    """Check that a part has the expected groups and columns."""
    actual = part_layouts(file)
    for path in sorted(actual.keys() | layouts.keys()):
        compare_layouts(file, path, actual.get(path), layouts.get(path), findings)


def compare_layouts(
    file: h5py.File, path: str, actual: Layout | None, expected: Layout | None, findings: Findings
) -> None:
    """Check that the columns of one group are the expected ones."""
    if actual is None or expected is None:
        findings.add(file.filename, path, "is missing" if actual is None else "is not expected in this set")
        return
    for name in sorted(actual.keys() | expected.keys()):
        if actual.get(name) != expected.get(name):
            text = f"found {actual.get(name, 'nothing')}, expected {expected.get(name, 'nothing')} (dtype, row shape)"
            findings.add(file.filename, f"{path}/{name}", text)


def check_lengths(
    file: h5py.File, path: str, count: int, authority: str, findings: Findings, but: str | None = None
) -> None:
    """Check that all columns of a group, except ``but``, have ``count`` rows."""
    for name, dataset in file[path].items():
        if name != but and len(dataset) != count:
            findings.add(file.filename, f"{path}/{name}", f"{len(dataset)} rows, expected {count} ({authority})")


def check_nodes(file: h5py.File, node_type: NodeType, findings: Findings) -> bool:
    """Check that row ids of a part's nodes are increasing and in range."""
    dataset = file["nodes"][node_type.name]["row"]
    return check_increasing(file, dataset.name, dataset[:], node_type.num_nodes, findings)


def check_increasing(file: h5py.File, dataset: str, rows: np.ndarray, limit: int, findings: Findings) -> bool:
    """Check that rows [k] are strictly increasing and in [0, limit)."""
    order = np.flatnonzero(np.diff(rows) <= 0) + 1
    findings.add_rows(file.filename, dataset, order, lambda i: f"{rows[order[i]]} comes after {rows[order[i] - 1]}")
    outside = np.flatnonzero((rows < 0) | (rows >= limit))
    findings.add_rows(file.filename, dataset, outside, lambda i: f"{rows[outside[i]]} is outside 0..{limit - 1}")
    return not len(order) and not len(outside)


def check_events(file: h5py.File, relation: EdgeType, part: int, findings: Findings) -> bool:
    """Check that events are in order, between nodes of the right types, at least one of them in this part."""
    group = file["edges"][relation.name]
    name, path = file.filename, group.name
    fine = check_increasing(file, f"{path}/row", group["row"][:], relation.num_edges, findings)
    times = group["time"][:]
    bad = np.flatnonzero(times[1:] < times[:-1]) + 1
    findings.add_rows(name, f"{path}/time", bad, lambda i: f"{times[bad[i]]} comes after {times[bad[i] - 1]}")
    here = np.zeros(len(times), bool)
    for column, node_type in (("src", relation.src_type), ("dst", relation.dst_type)):
        ids, last = group[column][:], int(node_type.offsets[-1]) - 1
        outside = np.flatnonzero((ids < node_type.base) | (ids > last))
        text = f"is outside {node_type.base}..{last} of type {node_type.name!r}"
        findings.add_rows(name, f"{path}/{column}", outside, lambda i, a=ids, o=outside, t=text: f"{a[o[i]]} {t}")
        here |= node_type.owner(ids) == part
        fine &= not len(outside)
    foreign = np.flatnonzero(~here)
    findings.add_rows(name, f"{path}/row", foreign, lambda i: "neither endpoint of the event is in this part")
    return bool(fine)


def check_history(book: SetBook, file: h5py.File, relation: EdgeType, part: int, findings: Findings) -> None:
    """Check that the history of every node is exactly its events, in order.

    Entries that increase within a node, are events of that node, and are as many as the events' endpoints in this part
    can only be the right ones.
    """
    group, edges, name = file["history"][relation.name], file["edges"][relation.name], file.filename
    indptr, event = group["indptr"][:], group["event"][:]
    num_local, m = int(book.local_bases(part)[-1]), len(edges["row"])
    if not check_indptr(file, group.name, indptr, num_local, len(event), findings):
        return
    src = local_ids(book, relation.src_type, part, edges["src"][:])
    dst = local_ids(book, relation.dst_type, part, edges["dst"][:])
    path = f"{group.name}/event"
    outside = np.flatnonzero((event < 0) | (event >= m))
    findings.add_rows(name, path, outside, lambda i: f"{event[outside[i]]} is outside 0..{m - 1}")
    if len(outside):
        return
    node = np.repeat(np.arange(num_local), np.diff(indptr))
    wrong = np.flatnonzero((src[event] != node) & (dst[event] != node))
    findings.add_rows(name, path, wrong, lambda i: f"event {event[wrong[i]]} is not one of local node {node[wrong[i]]}")
    order = np.flatnonzero((np.diff(event.astype(np.int64)) <= 0) & (node[1:] == node[:-1])) + 1
    findings.add_rows(name, path, order, lambda i: f"{event[order[i]]} comes after {event[order[i] - 1]}")
    expected = int((src >= 0).sum() + ((dst >= 0) & (dst != src)).sum())
    if len(event) != expected:
        findings.add(name, path, f"{len(event)} entries, expected {expected}, one per endpoint in this part")


def check_indptr(
    file: h5py.File, path: str, indptr: np.ndarray, num_local: int, entries: int, findings: Findings
) -> bool:
    """Check that the index pointer has one step per node and covers all entries."""
    path = f"{path}/indptr"
    if len(indptr) != num_local + 1:
        findings.add(file.filename, path, f"{len(indptr)} rows, expected {num_local + 1} (nodes of the part + 1)")
        return False
    if indptr[0] != 0 or indptr[-1] != entries:
        findings.add(file.filename, path, f"covers {indptr[0]} .. {indptr[-1]}, expected 0 .. {entries}")
        return False
    bad = np.flatnonzero(np.diff(indptr) < 0) + 1
    findings.add_rows(file.filename, path, bad, lambda i: f"{indptr[bad[i]]} comes after {indptr[bad[i] - 1]}")
    return not len(bad)


def local_ids(book: SetBook, node_type: NodeType, part: int, global_ids: np.ndarray) -> np.ndarray:
    """Find the local indices [m] of global ids in a part, -1 for nodes of other parts."""
    base = book.local_bases(part)[node_type.index]
    first, last = node_type.offsets[part], node_type.offsets[part + 1]
    return np.where((global_ids >= first) & (global_ids < last), global_ids - first + base, -1)
