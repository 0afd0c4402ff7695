"""The graph that a distributed partitioner sees: every rank has the adjacency of a block of the nodes.

N nodes of all types numbered together; the n nodes of a block, A adjacency entries of these.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from data_tools.partition import source as partition_source
from data_tools.partition.pair_graph import MERGE_AT_LEAST, PairGraph, add_duplicates, merge, snapshots_of
from data_tools.partition.pair_spool import entry_dtype
from data_tools.partition.source import Relation, Source
from data_tools.team import Team
from hpcgnn.graph import files
from hpcgnn.graph.book import BlockOwnership

LEAST_BYTES = 2 << 20  # of a rank's share of a slab: less would make many small exchanges


def window_bytes(num_ranks: int) -> int:
    """Bytes of a slab that all ranks share: with more ranks each has less of it in memory."""
    return max(partition_source.SLAB_BYTES, num_ranks * min(LEAST_BYTES, partition_source.SLAB_BYTES))


def shared_slabs(team: Team, source: Source, relation: Relation) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Edges of a relation in slabs, every slab shared out over the ranks: (first row, nodes of src [n], of dst [n]).

    All ranks get equally many slabs, some of which may be empty.
    """
    group = source.edges(relation)
    bases = (source.types[relation.src_type].base, source.types[relation.dst_type].base)
    for start, stop in files.slabs(relation.num_edges, 16, window_bytes(team.size)):
        start, stop = team.share(start, stop)
        src, dst = (
            group[name][start:stop].astype(np.int64) + base for name, base in zip(("src", "dst"), bases, strict=True)
        )
        yield start, src, dst


def block_graph(team: Team, source: Source, blocks: BlockOwnership) -> PairGraph:
    """Collective. The rows of `build_pair_graph` for this rank's block: neighbours are numbered as in the whole graph,
    and int32 where that is enough.

    Memory grows with the distinct pairs of the block.
    """
    num_nodes, dtype = source.num_nodes, entry_dtype(source)
    empty = np.empty(0, np.int64)
    merged, pending, size = (empty, empty), [], 0
    for relation in source.relations:
        stays = source.kind == "snapshots" and "last" in relation.columns
        for start, src, dst in shared_slabs(team, source, relation):
            counts = snapshots_of(source, relation, start, len(src)) if stays else np.ones(len(src), np.int64)
            pending.append(both_ways(team, blocks, num_nodes, src, dst, counts))
            size += len(pending[-1][0])
            if size > max(MERGE_AT_LEAST, len(merged[0])):
                merged, pending, size = merge(merged, pending), [], 0
    keys, weight = merge(merged, pending)
    nodes = np.arange(blocks.starts[team.rank], blocks.starts[team.rank + 1] + 1)
    indptr = np.searchsorted(keys, nodes * num_nodes).astype(np.int64)
    keys %= max(1, num_nodes)
    return PairGraph(indptr, keys.astype(dtype), weight.astype(dtype))


def both_ways(
    team: Team, blocks: BlockOwnership, num_nodes: int, src: np.ndarray, dst: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Collective. Keys node * N + neighbour and counts, without loops, of the pairs that have their node in this rank's
    block; src, dst, counts [k]: edges that this rank read."""
    apart = src != dst
    src, dst, counts = src[apart], dst[apart], counts[apart]
    keys, counts = add_duplicates(np.r_[src * num_nodes + dst, dst * num_nodes + src], np.r_[counts, counts])
    share = np.diff(np.searchsorted(keys, blocks.starts * num_nodes))
    return team.exchange(keys, share)[0], team.exchange(counts, share)[0]
