"""Check a single part file of a static set: its nodes, in-edges, out-edges and cache ranking.

n nodes of one type in the part, m edges of a relation.
"""

from __future__ import annotations

import h5py
import numpy as np

from data_tools.graph.book import SetBook
from data_tools.graph.findings import Findings
from data_tools.graph.source import EdgeType, NodeType
from data_tools.verify.temporal import Layout, check_indptr, check_layouts, check_lengths, check_nodes
from hpcgnn.graph import files

INT64 = ("<i8", ())
OUT = {"indptr": INT64, "dst": INT64, "row": INT64}
CACHE = {"id": INT64, "probability": ("<f4", ())}


def further_layouts(book: SetBook) -> dict[str, Layout]:
    """List the columns of the groups that the set's options ask for, by path."""
    layouts: dict[str, Layout] = {}
    if book.options.get("out_edges"):
        layouts |= {f"/out/{relation.name}": dict(OUT) for relation in book.relations}
    if book.options.get("cache_ranking"):
        layouts |= {f"/cache/{node_type.name}": dict(CACHE) for node_type in book.types}
    return layouts


def check_static_part(book: SetBook, part: int, layouts: dict[str, Layout], findings: Findings) -> None:
    """Check a part against the book and against ``layouts``, the columns that every part must have."""
    path = book.part_path(part)
    with findings.reading(path, part), files.open_checked(path, files.PART) as file:
        before = len(findings.lines)
        check_layouts(file, layouts, findings)
        if len(findings.lines) == before:
            check_counts(book, file, part, layouts, findings)
        if len(findings.lines) == before:
            for node_type in book.types:
                check_nodes(file, node_type, findings)
                if f"/cache/{node_type.name}" in layouts:
                    check_cache(file, node_type, part, findings)
            for relation in book.relations:
                for name, owners, others, column in sides(relation, layouts):
                    count = int(owners.offsets[part + 1] - owners.offsets[part])
                    check_csc(file, name, count, relation.num_edges, others, column, findings)
        if len(findings.lines) > before:
            findings.unusable.add(part)


def sides(relation: EdgeType, layouts: dict[str, Layout]) -> list[tuple[str, NodeType, NodeType, str]]:
    """List (group, type that owns the edges, type of the other endpoints, their column) for in-edges and out-edges."""
    groups = [(f"/edges/{relation.name}", relation.dst_type, relation.src_type, "src")]
    if f"/out/{relation.name}" in layouts:
        groups.append((f"/out/{relation.name}", relation.src_type, relation.dst_type, "dst"))
    return groups


def check_counts(book: SetBook, file: h5py.File, part: int, layouts: dict[str, Layout], findings: Findings) -> None:
    """Check that the columns of a group are equally long."""
    for node_type in book.types:
        count = int(node_type.offsets[part + 1] - node_type.offsets[part])
        check_lengths(file, f"/nodes/{node_type.name}", count, "the book's offsets", findings)
    for path in layouts:
        if not path.startswith("/nodes/"):
            leader = "id" if path.startswith("/cache/") else "row"
            check_lengths(file, path, len(file[path][leader]), leader, findings, but="indptr")


def check_csc(
    file: h5py.File, path: str, num_nodes: int, num_edges: int, others: NodeType, column: str, findings: Findings
) -> None:
    """Check that the index pointer fits, that rows increase within a node and are in range, and that the other
    endpoints are in range."""
    group, name = file[path], file.filename
    indptr = group["indptr"][:]
    if not check_indptr(file, path, indptr, num_nodes, len(group["row"]), findings):
        return
    for start, stop in files.slabs(len(group["row"]), 32):
        rows, ids = group["row"][start:stop], group[column][start:stop]
        outside = np.flatnonzero((rows < 0) | (rows >= num_edges))
        findings.add_rows(
            name,
            f"{path}/row",
            start + outside,
            lambda i, r=rows, o=outside: f"{r[o[i]]} is outside 0..{num_edges - 1}",
        )
        previous = group["row"][max(0, start - 1) : stop - 1]
        previous = np.r_[previous[:1], previous] if start == 0 else previous
        follows = np.ones(stop - start, bool)
        first = indptr[(indptr >= start) & (indptr < stop)]
        follows[first - start] = False
        order = np.flatnonzero(follows & (rows <= previous[: len(rows)]))
        findings.add_rows(
            name,
            f"{path}/row",
            start + order,
            lambda i, r=rows, p=previous, o=order: f"{r[o[i]]} comes after {p[o[i]]} in the edges of a node",
        )
        check_range(file, f"{path}/{column}", start, ids, others, findings)


def check_range(
    file: h5py.File, path: str, start: int, ids: np.ndarray, node_type: NodeType, findings: Findings
) -> None:
    """Check that global ids [k] of rows start, start + 1, ... are of a node type."""
    first, last = node_type.base, int(node_type.offsets[-1]) - 1
    outside = np.flatnonzero((ids < first) | (ids > last))
    text = f"is outside {first}..{last} of type {node_type.name!r}"
    findings.add_rows(file.filename, path, start + outside, lambda i: f"{ids[outside[i]]} {text}")


def check_cache(file: h5py.File, node_type: NodeType, part: int, findings: Findings) -> None:
    """Check that ranked nodes are of other parts, each once, in decreasing order of a probability above 0."""
    path = f"/cache/{node_type.name}"
    ids, probability = file[path]["id"][:], file[path]["probability"][:]
    check_range(file, f"{path}/id", 0, ids, node_type, findings)
    own = np.flatnonzero(node_type.owner(ids) == part)
    findings.add_rows(file.filename, f"{path}/id", own, lambda i: f"{ids[own[i]]} is a node of this part")
    order = np.argsort(ids, kind="stable")
    twice = np.sort(order[1:][ids[order[1:]] == ids[order[:-1]]])
    findings.add_rows(file.filename, f"{path}/id", twice, lambda i: f"{ids[twice[i]]} is ranked twice")
    previous = np.r_[np.float32(1), probability[:-1]]
    wrong = np.flatnonzero(~((probability > 0) & (probability <= previous)))
    text = lambda i: f"{probability[wrong[i]]} comes after {previous[wrong[i]]}; expected above 0, never increasing"  # noqa: E731
    findings.add_rows(file.filename, f"{path}/probability", wrong, text)
