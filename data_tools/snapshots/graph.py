"""Writes a snapshot graph: one node set, edges of several snapshots, columns of nodes that may differ by snapshot.

An edge that stays through several snapshots with the same columns is one row, ``first`` .. ``last``: consecutive
snapshots are stored as differences, where that takes fewer bytes. N nodes, S snapshots, E rows.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace

import h5py
import numpy as np

from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError

NODE, RELATION = "node", "node.to.node"
STAMP = np.int32


@dataclass(slots=True)
class SnapshotGraph:
    """What a snapshot graph is made of.

    num_nodes N, num_snapshots S; src, dst [E] rows of nodes and first [E] the snapshot of an edge; last [E] the last
    snapshot that it stays in, or None: it is in one only; edges: further columns [E, ...] by name, such as weight;
    nodes: columns [N, ...] by name; series: columns [N, S, ...] of nodes in every snapshot; id [N] of the source;
    attributes: what is said of columns, by their names; splits: first and last snapshot of the sets that the source
    has.
    """

    num_nodes: int
    num_snapshots: int
    src: np.ndarray
    dst: np.ndarray
    first: np.ndarray
    last: np.ndarray | None = None
    edges: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: dict[str, np.ndarray] = field(default_factory=dict)
    series: dict[str, np.ndarray] = field(default_factory=dict)
    id: np.ndarray | None = None
    attributes: dict[str, dict] = field(default_factory=dict)
    splits: dict[str, tuple[int, int]] = field(default_factory=dict)

    def check(self, name: str) -> None:
        """Raises FileFormatError, naming the file ``name`` that this came from, for what does not fit together."""
        ends = {"src": (self.src, self.num_nodes), "dst": (self.dst, self.num_nodes)}
        ends["snapshot"] = (self.first, self.num_snapshots)
        if self.last is not None:
            ends["last"] = (self.last, self.num_snapshots)
        for column, (values, bound) in ends.items():
            wrong = np.flatnonzero((values < 0) | (values >= bound))
            if len(wrong):
                row = int(wrong[0])
                raise FileFormatError(f"{name}: edge {row}: {column} is {values[row]}, expected 0 to {bound - 1}")
        if self.last is not None and len(wrong := np.flatnonzero(self.last < self.first)):
            raise FileFormatError(f"{name}: edge {wrong[0]}: it ends before it begins")
        for column, values in {**self.nodes, **self.series}.items():
            shape = (self.num_nodes, self.num_snapshots) if column in self.series else (self.num_nodes,)
            if values.shape[: len(shape)] != shape:
                raise FileFormatError(f"{name}: column {column} has shape {values.shape}, expected {shape} first")


def as_intervals(graph: SnapshotGraph) -> SnapshotGraph:
    """The same graph with every edge that stays as one row. Edges that occur several times in a snapshot stay so: the
    k-th of one snapshot goes on as the k-th of the next."""
    if len(graph.src) == 0:
        return graph
    last = graph.first if graph.last is None else graph.last
    same = _number_rows([graph.src, graph.dst, *graph.edges.values()])
    before = _occurrence(same, graph.first)
    same = same * (1 + before.max()) + before
    order = np.lexsort((graph.first, same))
    begins = np.ones(len(order), bool)
    goes_on = (same[order][1:] == same[order][:-1]) & (graph.first[order][1:] == last[order][:-1] + 1)
    begins[1:] = ~goes_on
    heads = np.flatnonzero(begins)
    rows, ends = order[heads], order[np.append(heads[1:], len(order)) - 1]
    back = np.argsort(rows, kind="stable")  # the order of the source
    rows, last = rows[back], last[ends[back]]
    return _with_edges(graph, rows, graph.first[rows], last)


def as_rows(graph: SnapshotGraph) -> SnapshotGraph:
    """The same graph with a row for every snapshot that an edge is in."""
    if graph.last is None:
        return graph
    stays = graph.last - graph.first + 1
    row = np.repeat(np.arange(len(stays)), stays)
    begin = np.repeat(np.cumsum(stays) - stays, stays)
    return _with_edges(graph, row, graph.first[row] + np.arange(len(row)) - begin, None)


def _with_edges(graph: SnapshotGraph, rows: np.ndarray, first: np.ndarray, last: np.ndarray | None) -> SnapshotGraph:
    """Some rows of the edges, in other snapshots."""
    columns = {name: column[rows] for name, column in graph.edges.items()}
    return replace(graph, src=graph.src[rows], dst=graph.dst[rows], first=first, last=last, edges=columns)


def count_edges(graph: SnapshotGraph) -> int:
    """Edges of all snapshots."""
    return len(graph.src) if graph.last is None else int((graph.last - graph.first + 1).sum())


def row_bytes(graph: SnapshotGraph) -> int:
    """Bytes of one edge's columns as they are stored, without ``last``."""
    columns: list[np.ndarray] = [np.empty((0, 2), np.int64), np.empty(0, STAMP), *graph.edges.values()]
    return sum(c.dtype.itemsize * int(np.prod(c.shape[1:], dtype=np.int64)) for c in columns)


def write_snapshots(path: str | os.PathLike, graph: SnapshotGraph, sources: list, name: str) -> str:
    """Write the graph file, edges in order of their first snapshot; returns a line that tells what was written.

    ``name`` of the source, for messages; ``sources`` as the graph file tells them. Raises FileFormatError.
    """
    graph.check(name)
    merged, total = as_intervals(graph), count_edges(graph)
    plain = total * row_bytes(graph)
    differences = len(merged.src) * (row_bytes(graph) + np.dtype(STAMP).itemsize)
    chosen = merged if differences < plain else as_rows(graph)
    order = np.argsort(chosen.first, kind="stable")
    told = {"splits": json.dumps(graph.splits)} if graph.splits else {}
    with files.writing(
        path, files.GRAPH, kind="snapshots", sources=json.dumps(sources), num_snapshots=graph.num_snapshots, **told
    ) as file:
        _write_nodes(file.create_group(f"nodes/{NODE}"), graph)
        _write_edges(file.create_group(f"edges/{RELATION}"), chosen, order)
    sets = "".join(f"; {name} {first} to {last}" for name, (first, last) in graph.splits.items())
    return (
        f"{path}: {graph.num_nodes} nodes, {graph.num_snapshots} snapshots, {total} edges in all; stored as "
        f"{len(order)} rows, {min(plain, differences):,} bytes (one row a snapshot: {plain:,}, as differences: "
        f"{differences:,}){sets}"
    )


def _write_nodes(group: h5py.Group, graph: SnapshotGraph) -> None:
    group.attrs["num_nodes"], group.attrs["type_id"] = graph.num_nodes, 0
    columns = {**({} if graph.id is None else {"id": graph.id}), **graph.nodes, **graph.series}
    for name, column in columns.items():
        dataset = files.create_column(group, name, graph.num_nodes, column.shape[1:], column.dtype)
        dataset[:] = column
        dataset.attrs.update(graph.attributes.get(name, {}))
        if name in graph.series:
            dataset.attrs["per_snapshot"] = True


def _write_edges(group: h5py.Group, graph: SnapshotGraph, order: np.ndarray) -> None:
    group.attrs["num_edges"], group.attrs["relation_id"] = len(order), 0
    columns: dict[str, np.ndarray] = {"src": graph.src.astype(np.int64), "dst": graph.dst.astype(np.int64)}
    columns["first"] = graph.first.astype(STAMP)
    if graph.last is not None:
        columns["last"] = graph.last.astype(STAMP)
    for name, column in {**columns, **graph.edges}.items():
        dataset = files.create_column(group, name, len(order), column.shape[1:], column.dtype)
        dataset[:] = column[order]
        dataset.attrs.update(graph.attributes.get(name, {}))


def _number_rows(columns: list[np.ndarray]) -> np.ndarray:
    """A number [E] for every row, equal where all columns are."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        flat = np.ascontiguousarray(column.reshape(len(column), -1))
        single = flat if flat.shape[1] == 1 else flat.view([("", flat.dtype)] * flat.shape[1])
        _, value = np.unique(single.ravel(), return_inverse=True)
        _, number = np.unique(number * (value.max() + 1) + value, return_inverse=True)
    return number


def _occurrence(number: np.ndarray, first: np.ndarray) -> np.ndarray:
    """How many rows before it have the same number and snapshot [E]."""
    order = np.lexsort((first, number))
    begins = np.ones(len(order), bool)
    begins[1:] = (number[order][1:] != number[order][:-1]) | (first[order][1:] != first[order][:-1])
    start = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - start
    return found
