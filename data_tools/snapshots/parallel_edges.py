"""Merges parallel edges: the edges of one pair of nodes that are in a snapshot together become one.

E edges, each in the snapshots first .. last.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from data_tools.snapshots.graph import SnapshotGraph

WEIGHT = "weight"
REDUCE = ("sum", "mean", "last")


def merge_parallel(graph: SnapshotGraph, reduce: dict[str, str] | None = None) -> SnapshotGraph:
    """Make one edge of every pair of nodes and snapshot; ``weight`` counts the edges that it stands for. Columns named
    in ``reduce`` are summed ("sum"), averaged ("mean") or taken from the newest edge, the last row ("last").

    Edges must be in order of time. A row lasts for as long as the set of merged edges stays the same.
    """
    reduce = reduce or {}
    last = graph.first if graph.last is None else graph.last
    pair = graph.src.astype(np.int64) * graph.num_nodes + graph.dst
    # Two changes an edge: it begins with snapshot first, it is no longer there with last + 1.
    at, of = np.r_[graph.first, last + 1], np.r_[pair, pair]
    edge, sign = np.tile(np.arange(len(pair)), 2), np.repeat([1, -1], len(pair))
    order = np.lexsort((edge, at, of))
    at, of, edge, sign = at[order], of[order], edge[order], sign[order]
    starts = np.flatnonzero(np.r_[True, (of[1:] != of[:-1]) | (at[1:] != at[:-1])]) if len(of) else np.empty(0, int)
    new_pair = np.r_[True, of[starts][1:] != of[starts][:-1]] if len(of) else np.empty(0, bool)
    run = _Runs(starts, new_pair, edge, sign)
    count = run.sums(np.ones(len(pair)))
    there = np.flatnonzero(count > 0)
    ends = at[starts[np.minimum(there + 1, len(starts) - 1)]] - 1
    newest = run.newest()[there]
    edges = {}
    for name, how in reduce.items():
        column = graph.edges[name]
        if how == "last":
            edges[name] = column[newest]
            continue
        total = run.sums(column)[there]
        if how == "mean":
            total = total / count[there].reshape(len(there), *[1] * (column.ndim - 1))
        edges[name] = total.astype(np.float32)
    if WEIGHT not in edges:
        edges[WEIGHT] = count[there].astype(np.float32)
    where = starts[there]
    src, dst = of[where] // graph.num_nodes, of[where] % graph.num_nodes
    return replace(graph, src=src, dst=dst, first=at[where], last=ends, edges=edges)


class _Runs:
    """Stretches of snapshots [r] in which nothing changes for a pair of nodes; they begin at the changes ``starts``."""

    def __init__(self, starts: np.ndarray, new_pair: np.ndarray, edge: np.ndarray, sign: np.ndarray):
        self._starts, self._edge, self._sign = starts, edge, sign
        self._pair_start = np.maximum.accumulate(np.where(new_pair, np.arange(len(starts)), 0))

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sum values over the edges that are there [r, ...]; values [E, ...]."""
        shape = (len(self._edge), *[1] * (values.ndim - 1))
        change = values.astype(np.float64)[self._edge] * self._sign.reshape(shape)
        if not len(self._starts):
            return change
        change = np.add.reduceat(change, self._starts, axis=0)
        total = np.cumsum(change, axis=0)
        return total - (total - change)[self._pair_start]

    def newest(self) -> np.ndarray:
        """Find the edge that began last [r]; of no meaning where none is there."""
        begun = np.where(self._sign > 0, self._edge, -1)
        if not len(self._starts):
            return begun
        latest = np.maximum.reduceat(begun, self._starts)
        base = self._pair_start * (len(self._edge) + 1)  # larger for later pairs: maxima do not reach into them
        return np.maximum.accumulate(latest + base) - base
