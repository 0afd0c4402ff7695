"""The graph that a partitioner sees: all nodes together, one weighted edge for every pair that shares events.

N nodes of all types numbered together, n of them in a rank's block, A adjacency entries of these (both directions, no
loops, no duplicates).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data_tools.graph.source import Source, stamps
from data_tools.partition.blocks import NodeBlocks, add_duplicates
from data_tools.team import Team

MERGE_AT_LEAST = 1 << 20  # pending pairs; below it merging would cost more than it saves


@dataclass(frozen=True, slots=True)
class PairGraph:
    """Symmetric weighted graph in CSR form: the rows of a block of its nodes; neighbors may be any nodes."""

    indptr: np.ndarray  # [n + 1] int64
    neighbor: np.ndarray  # [A]
    weight: np.ndarray  # [A] events between the two

    @property
    def num_nodes(self) -> int:
        """Nodes of the block."""
        return len(self.indptr) - 1

    def degrees(self) -> np.ndarray:
        """Count the distinct neighbors [n] int64."""
        return np.diff(self.indptr)


def build_pair_graph(source: Source, blocks: NodeBlocks | None = None, dtype: type | np.dtype = np.int64) -> PairGraph:
    """Collective. Add up the events of all relations by pair, for this rank's block of the nodes (default: all nodes,
    in one process); neighbors and weights of a dtype.

    Memory grows with the distinct pairs of the block, not with the events.
    """
    blocks = blocks or NodeBlocks.even(Team(), source.num_nodes)
    num_nodes = max(1, source.num_nodes)
    keys, weight = count_pairs(source, blocks)
    nodes = np.arange(blocks.own.start, blocks.own.stop + 1)
    indptr = np.searchsorted(keys, nodes * num_nodes).astype(np.int64)
    keys %= num_nodes
    return PairGraph(indptr, keys.astype(dtype, copy=False), weight.astype(dtype, copy=False))


def count_pairs(source: Source, blocks: NodeBlocks) -> tuple[np.ndarray, np.ndarray]:
    """Collective. Count events by pair. Returns keys node * N + neighbor [A], increasing, of the pairs whose node is in
    this rank's block, and events [A] between the two; an edge that stays counts in every snapshot."""
    empty = np.empty(0, np.int64)
    merged, pending, size = (empty, empty), [], 0
    for src, dst, ties in tied_slabs(source, blocks.team):
        pending.append(both_ways(blocks, src, dst, ties))
        size += len(pending[-1][0])
        if size > max(MERGE_AT_LEAST, len(merged[0])):
            merged, pending, size = merge(merged, pending), [], 0
    return merge(merged, pending)


def both_ways(
    blocks: NodeBlocks, src: np.ndarray, dst: np.ndarray, counts: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Collective. Send edges [k] that this rank has read, from both ends, to the ranks that have the node; returns the
    keys and counts that came. counts: None where every edge counts once."""
    num_nodes = int(blocks.starts[-1])
    keys = np.concatenate([src * num_nodes + dst, dst * num_nodes + src])
    if counts is None:
        keys, sums = np.unique(keys, return_counts=True)
    else:
        keys, sums = add_duplicates(keys, np.concatenate([counts, counts]))
    share = np.diff(np.searchsorted(keys, blocks.starts * num_nodes))
    return blocks.team.exchange(keys, share)[0], blocks.team.exchange(sums, share)[0]


def tied_slabs(source: Source, team: Team) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Yield the edges between two different nodes, every slab shared out over the ranks: both ends and the ties. ties:
    the number of snapshots that each edge is in; None: 1."""
    for relation in source.relations:
        for start, src, dst in source.ends(relation, team):
            apart, ties = src != dst, None
            if source.kind == "snapshots" and "last" in relation.columns:
                first, last = stamps(source.edges(relation), start, start + len(src))
                ties = (last - first + 1)[apart]
            yield src[apart], dst[apart], ties


def merge(merged: tuple[np.ndarray, np.ndarray], pending: list) -> tuple[np.ndarray, np.ndarray]:
    """Merge (keys, counts) tables into one."""
    tables = [merged, *pending]
    return add_duplicates(*(np.concatenate([table[column] for table in tables]) for column in (0, 1)))
