"""Writes a snapshot graph: one node set, edges of several snapshots, columns of nodes that may differ by snapshot.

An edge that stays through several snapshots with the same columns becomes one row with its ``first`` and ``last``
snapshot, where that takes fewer bytes. N nodes, S snapshots, E rows.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import Any

import h5py
import numpy as np

from data_tools.source.rewrite import create_table
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError

NODE, RELATION = "node", "node.to.node"
STAMP = np.int32


@dataclass(slots=True)
class SnapshotGraph:
    """A snapshot graph in memory.

    num_nodes N, num_snapshots S. src, dst [E]: rows of nodes; first [E]: the snapshot of an edge; last [E]: the last
    snapshot that it stays in, or None: every edge is in one snapshot. edges: further columns [E, ...] by name, such as
    weight; nodes: columns [N, ...] by name; series: columns [N, S, ...] of nodes in every snapshot; id [N]: of the
    source. attributes, edge_attributes: of the columns of nodes, of edges, by name; splits: first and last snapshot of
    the sets of the source; clock: first date, step and zone, as in ``SnapshotClock.facts``, empty without dates; notes:
    messages for users about the conversion of the source.
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
    edge_attributes: dict[str, dict] = field(default_factory=dict)
    splits: dict[str, tuple[int, int]] = field(default_factory=dict)
    clock: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def check(self, name: str) -> None:
        """Raise FileFormatError, naming the source ``name``, where columns do not fit together."""
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
        if taken := {"src", "dst", "first", "last"} & self.edges.keys():
            raise FileFormatError(f"{name}: the edges' column {min(taken)} has a name that snapshots need; rename it")
        ids = {} if self.id is None else {"id": self.id}
        for column, values in {**ids, **self.nodes, **self.series}.items():
            shape = (self.num_nodes, self.num_snapshots) if column in self.series else (self.num_nodes,)
            if values.shape[: len(shape)] != shape:
                raise FileFormatError(f"{name}: column {column} has shape {values.shape}, expected {shape} first")


def as_intervals(graph: SnapshotGraph) -> SnapshotGraph:
    """Make one row of every edge that stays. Edges that occur several times in a snapshot are kept: the
    k-th of one snapshot continues as the k-th of the next."""
    if len(graph.src) == 0:
        return graph
    last = graph.first if graph.last is None else graph.last
    same = _number_rows([graph.src, graph.dst, *graph.edges.values()])
    before = _occurrence(same, graph.first)
    same = same * (1 + before.max()) + before
    order = np.lexsort((graph.first, same))
    continues = (same[order][1:] == same[order][:-1]) & (graph.first[order][1:] == last[order][:-1] + 1)
    begins = np.r_[True, ~continues]
    heads = np.flatnonzero(begins)
    rows, ends = order[heads], order[np.append(heads[1:], len(order)) - 1]
    back = np.argsort(rows, kind="stable")  # the order of the source
    rows, last = rows[back], last[ends[back]]
    return _with_edges(graph, rows, graph.first[rows], last)


def as_rows(graph: SnapshotGraph) -> SnapshotGraph:
    """Make a row of every snapshot that an edge is in."""
    if graph.last is None:
        return graph
    stays = graph.last - graph.first + 1
    row = np.repeat(np.arange(len(stays)), stays)
    begin = np.repeat(np.cumsum(stays) - stays, stays)
    return _with_edges(graph, row, graph.first[row] + np.arange(len(row)) - begin, None)


def _with_edges(graph: SnapshotGraph, rows: np.ndarray, first: np.ndarray, last: np.ndarray | None) -> SnapshotGraph:
    """Replace the edges by some of them: rows ``rows`` [e], in the snapshots first [e] to last [e]."""
    columns = {name: column[rows] for name, column in graph.edges.items()}
    return replace(graph, src=graph.src[rows], dst=graph.dst[rows], first=first, last=last, edges=columns)


def write_snapshots(
    path: str | os.PathLike, graph: SnapshotGraph, sources: list, name: str, spec: dict[str, Any] | None = None
) -> str:
    """Write the graph file, edges in order of their first snapshot; returns a line on what was written.

    ``name`` of the source, for messages; ``sources``, and ``spec``, how they were read, as the graph file keeps them.
    Raises FileFormatError where columns do not fit together.
    """
    graph.check(name)
    merged = as_intervals(graph)
    total = len(graph.src) if graph.last is None else int((graph.last - graph.first + 1).sum())
    row_bytes = 2 * 8 + np.dtype(STAMP).itemsize + sum(map(files.row_bytes, graph.edges.values()))
    plain = total * row_bytes
    differences = len(merged.src) * (row_bytes + np.dtype(STAMP).itemsize)
    chosen = merged if differences < plain else as_rows(graph)
    order = np.argsort(chosen.first, kind="stable")
    columns = {"src": chosen.src.astype(np.int64), "dst": chosen.dst.astype(np.int64)}
    columns["first"] = chosen.first.astype(STAMP)
    if chosen.last is not None:
        columns["last"] = chosen.last.astype(STAMP)
    nodes = {**({} if graph.id is None else {"id": graph.id}), **graph.nodes, **graph.series}
    further = {"splits": graph.splits, "spec": spec, files.CLOCK: graph.clock}
    attributes = {name: json.dumps(value, default=str) for name, value in further.items() if value}
    attributes["sources"] = json.dumps(sources)
    with files.writing(path, files.GRAPH, kind="snapshots", num_snapshots=graph.num_snapshots, **attributes) as file:
        _write_columns(create_table(file, "nodes", NODE, graph.num_nodes, 0), nodes, graph, None)
        _write_columns(create_table(file, "edges", RELATION, len(order), 0), {**columns, **chosen.edges}, graph, order)
    sets = "".join(f"; {name} {first} to {last}" for name, (first, last) in graph.splits.items())
    return (
        f"{path}: {graph.num_nodes} nodes, {graph.num_snapshots} snapshots, {total} edges in all; stored as "
        f"{len(order)} rows, {min(plain, differences):,} bytes (one row a snapshot: {plain:,}, as differences: "
        f"{differences:,}){sets}{''.join(f'; {note}' for note in graph.notes)}"
    )


def _write_columns(
    group: h5py.Group, columns: dict[str, np.ndarray], graph: SnapshotGraph, order: np.ndarray | None
) -> None:
    """Write the columns of nodes (order None), or of edges in the given order of their rows."""
    for name, column in columns.items():
        dataset = files.create_column(group, name, len(column), column.shape[1:], column.dtype)
        dataset[:] = column if order is None else column[order]
        dataset.attrs.update((graph.attributes if order is None else graph.edge_attributes).get(name, {}))
        if order is None and name in graph.series:
            dataset.attrs["per_snapshot"] = True


def _number_rows(columns: list[np.ndarray]) -> np.ndarray:
    """Number rows [E], with the same number for rows that are equal in all columns."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        flat = np.ascontiguousarray(column.reshape(len(column), -1))
        single = flat if flat.shape[1] == 1 else flat.view([("", flat.dtype)] * flat.shape[1])
        _, value = np.unique(single.ravel(), return_inverse=True)
        _, number = np.unique(number * (value.max() + 1) + value, return_inverse=True)
    return number


def _occurrence(number: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Count for every row the rows before it with the same number and snapshot [E]."""
    order = np.lexsort((first, number))
    begins = np.ones(len(order), bool)
    begins[1:] = (number[order][1:] != number[order][:-1]) | (first[order][1:] != first[order][:-1])
    start = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    occurrence = np.empty(len(order), np.int64)
    occurrence[order] = np.arange(len(order)) - start
    return occurrence
