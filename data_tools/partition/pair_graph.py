"""The graph that a partitioner sees: all nodes together, one weighted edge for every pair that shares events.

N nodes of all types numbered together, n of them in a rank's block, A adjacency entries of these (both directions, no
loops, no duplicates).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_tools.graph.source import Relation, Source
from data_tools.partition.blocks import NodeBlocks, add_duplicates
from data_tools.team import Team

MERGE_AT_LEAST = 1 << 20  # pending pairs; below it merging would cost more than it saves


@dataclass(frozen=True, slots=True)
class PairGraph:
    """Symmetric weighted graph in CSR form: the rows of a block of its nodes; neighbours may be any nodes."""

    indptr: np.ndarray  # [n + 1] int64
    neighbor: np.ndarray  # [A]
    weight: np.ndarray  # [A] events between the two

    @property
    def num_nodes(self) -> int:
        """Nodes of the block."""
        return len(self.indptr) - 1

    def degrees(self) -> np.ndarray:
        """Count the distinct neighbours [n] int64."""
        return np.diff(self.indptr)


def build_pair_graph(source: Source, blocks: NodeBlocks | None = None, dtype: type | np.dtype = np.int64) -> PairGraph:
    """Collective. Add up the events of all relations by pair, for this rank's block of the nodes (default: all nodes,
    in one process); neighbours and weights of a dtype.

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
    """Collective. Count events by pair: keys node * N + neighbour [A], increasing, of the pairs whose node is in this
    rank's block, and events [A] between the two; an edge that stays counts in every snapshot."""
    empty = np.empty(0, np.int64)
    merged, pending, size = (empty, empty), [], 0
    for relation in source.relations:
        for start, src, dst in source.ends(relation, blocks.team):
            apart, counts = src != dst, None
            if stays(source, relation):
                counts = snapshots_of(source, relation, start, len(src))[apart]
            pending.append(both_ways(blocks, src[apart], dst[apart], counts))
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


def stays(source: Source, relation: Relation) -> bool:
    """Say whether an edge of a relation may be in several snapshots."""
    return source.kind == "snapshots" and "last" in relation.columns


def snapshots_of(source: Source, relation: Relation, start: int, count: int) -> np.ndarray:
    """Count the snapshots [count] int64 that the rows of a relation from ``start`` on are in."""
    first, last = (source.edges(relation)[name][start : start + count].astype(np.int64) for name in ("first", "last"))
    return last - first + 1


def merge(merged: tuple[np.ndarray, np.ndarray], pending: list) -> tuple[np.ndarray, np.ndarray]:
    """Merge (keys, counts) tables into one."""
    tables = [merged, *pending]
    return add_duplicates(*(np.concatenate([table[column] for table in tables]) for column in (0, 1)))
