"""The graph that a partitioner sees: all nodes together, one weighted edge for every pair that shares events.

N nodes of all types numbered together, A adjacency entries (both directions, no loops, no duplicates).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_tools.partition.source import Relation, Source, endpoint_slabs

MERGE_AT_LEAST = 1 << 20  # pending pairs; below it merging would cost more than it saves


@dataclass(frozen=True, slots=True)
class PairGraph:
    """Symmetric weighted graph in CSR form."""

    indptr: np.ndarray  # [N + 1] int64
    neighbor: np.ndarray  # [A] int64
    weight: np.ndarray  # [A] int64, events between the two

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return len(self.indptr) - 1

    def degrees(self) -> np.ndarray:
        """Distinct neighbours [N] int64."""
        return np.diff(self.indptr)


def add_duplicates(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort keys [n] and add up the counts [n] of equal ones."""
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]][: len(keys)])
    return keys[first], (np.add.reduceat(counts, first) if len(first) else counts)


def count_pairs(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Unordered pairs with events between them: keys low * N + high [n], increasing, and events [n]; an edge that stays
    counts in every snapshot."""
    num_nodes = source.num_nodes
    empty = np.empty(0, np.int64)
    merged, pending, size = (empty, empty), [], 0
    for relation in source.relations:
        for start, src, dst in endpoint_slabs(source, relation):
            apart = src != dst
            keys = (np.minimum(src, dst) * num_nodes + np.maximum(src, dst))[apart]
            if source.kind == "snapshots" and "last" in relation.columns:
                pending.append(add_duplicates(keys, snapshots_of(source, relation, start, len(src))[apart]))
            else:
                pending.append(np.unique(keys, return_counts=True))
            size += len(pending[-1][0])
            if size > max(MERGE_AT_LEAST, len(merged[0])):
                merged, pending, size = merge(merged, pending), [], 0
    return merge(merged, pending)


def snapshots_of(source: Source, relation: Relation, start: int, count: int) -> np.ndarray:
    """In how many snapshots each of some rows of a relation is [count] int64."""
    first, last = (source.edges(relation)[name][start : start + count].astype(np.int64) for name in ("first", "last"))
    return last - first + 1


def merge(merged: tuple[np.ndarray, np.ndarray], pending: list) -> tuple[np.ndarray, np.ndarray]:
    """Merge (keys, counts) tables into one."""
    tables = [merged, *pending]
    return add_duplicates(*(np.concatenate([table[column] for table in tables]) for column in (0, 1)))


def build_pair_graph(source: Source) -> PairGraph:
    """Aggregate the events of all relations; memory grows with the distinct pairs, not with the events."""
    keys, counts = count_pairs(source)
    return from_pairs(keys, counts, source.num_nodes)


def from_pairs(keys: np.ndarray, counts: np.ndarray, num_nodes: int) -> PairGraph:
    """Symmetric CSR from unordered pairs low * N + high, neighbours increasing within a node."""
    low, high = np.divmod(keys, max(1, num_nodes))
    both = np.r_[keys, high * num_nodes + low]
    del low, high
    order = np.argsort(both)
    both = both[order]
    weight = counts[np.where(order >= len(counts), order - len(counts), order)]
    indptr = np.searchsorted(both, np.arange(num_nodes + 1) * num_nodes).astype(np.int64)
    return PairGraph(indptr, both % max(1, num_nodes), weight)
