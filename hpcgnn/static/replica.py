"""The edges of a whole graph in memory that the ranks of a node share, so that drawing neighbours asks nobody.

n nodes and m in-edges of a relation at this rank, N and M of all ranks. In order of rank, ranks' lists one behind the
other are those of all nodes in order of global id.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.shared import SharedRows, free_memory
from hpcgnn.comm.world import World
from hpcgnn.graph.book import Book
from hpcgnn.graph.partition import GraphPartition, InEdges
from hpcgnn.graph.spill import exchange_columns
from hpcgnn.static.config import AUTO, SHARDED
from hpcgnn.static.neighbors import Exclusion, InLists, NeighborSampler, edges_below, make_lists

SHARE = 4  # "auto" takes at most one part in so many of a node's free memory
WEIGHT = "weight"


class Replica:
    """Collective to create and to close. partition: the whole graph as if on one rank, its edges without columns but
    the weights of mode "weighted"; excluded: what steps leave out, among its lists."""

    def __init__(
        self, partition: GraphPartition, mode: str, world: World, channel: Channel,
        excluded: Exclusion | Any = None, node_size: int = 0,
    ):  # fmt: skip
        """node_size: as in SharedRows. Raises DistributedError where a node has no room for it."""
        self._mode, self._channel = mode, world.own_channel()
        lists = make_lists(partition, mode, channel)
        first = edges_below(partition, channel)[world.rank]
        edges = {} if excluded is None else excluded.edges
        left_out = [(first[r], *edges[r]) for r in sorted(edges)]
        moved = [_by_place(at, place, base, excluded.total, world, channel) for base, at, place in left_out]
        columns = [column for relation in zip(lists, partition.edges, first, strict=True)
                   for column in _columns(*relation, world.rank == 0)]  # fmt: skip
        types = [partition.flat_row[partition.of_type(kind)] for kind in range(len(partition.types))]
        self._rows = SharedRows(world, [*types, *columns, *(column for pair in moved for column in pair)], node_size)
        self.partition, self._lists, rest = _whole(partition, self._rows, lists)
        pairs = zip(rest[::2], rest[1::2], strict=True)
        self.excluded = None if excluded is None else excluded.among(dict(zip(sorted(edges), pairs, strict=True)))

    @property
    def num_bytes(self) -> int:
        """Of a node's copy."""
        return self._rows.num_bytes

    def sampler(self, neighbors: type[NeighborSampler], threads: int, with_edges: bool = False) -> NeighborSampler:
        """One that draws from the copy, of a class that is made as NeighborSampler is."""
        return neighbors(
            self.partition, self._mode, self._channel, threads, with_edges, self.excluded, self._lists
        )  # fmt: skip

    def everything(self, threads: int, with_edges: bool = False) -> NeighborSampler:
        """One that takes all edges, those of weight 0 too."""
        lists = [replace(mine, weight=None) for mine in self._lists]
        return NeighborSampler(
            self.partition, "full", self._channel, threads, with_edges, self.excluded, lists
        )  # fmt: skip

    def close(self) -> None:
        """Collective. Free the copy; samplers must not be used any more."""
        self._rows.close()
        self._channel.close()


def make_neighbors(
    partition: GraphPartition, mode: str, channel: Channel, threads: int, *, excluded: Exclusion | None = None,
    replica: Replica | None = None, neighbors: type[NeighborSampler] = NeighborSampler, with_edges: bool = False,
) -> NeighborSampler:  # fmt: skip
    """Collective. A sampler of a class that is made as NeighborSampler is: it draws from the replica, without the edges
    that this excludes, or asks the owners."""
    if replica is None:
        return neighbors(partition, mode, channel, threads, with_edges, excluded)
    return replica.sampler(neighbors, threads, with_edges)


def make_replica(
    topology: str, partition: GraphPartition, mode: str, world: World, channel: Channel,
    excluded: Exclusion | None = None,
) -> Replica | None:  # fmt: skip
    """Collective. A replica where ``sampling.topology`` says so and there is more than one rank."""
    if world.size == 1 or topology == SHARDED:
        return None
    if topology == AUTO and topology_bytes(partition, mode, world, excluded) > free_memory(world) // SHARE:
        return None
    return Replica(partition, mode, world, channel, excluded)


def topology_bytes(
    partition: GraphPartition, mode: str, world: World, excluded: Exclusion | None = None
) -> int:  # fmt: skip
    """Collective. Bytes of a copy: 8 a node and its lists, 8 an edge, 4 more weighted, 8 more in mode labor, 16 an edge
    that steps leave out."""
    an_edge = 8 + {"weighted": 4, "labor": 8}.get(mode, 0)
    lists = sum(an_edge * len(edges.src) + edges.indptr.nbytes for edges in partition.edges)
    seeds = sum(16 * len(place) for _, place in excluded.edges.values()) if excluded else 0
    return int(world.total(lists + partition.flat_row.nbytes + seeds))


def _columns(lists: InLists, edges: InEdges, first: int, leads: bool) -> list[np.ndarray]:
    """This rank's rows of a relation's indptr [N + 1] and src [M], and of its weights and source identities if any."""
    indptr = lists.indptr[(0 if leads else 1) :] + first
    optional = [column for column in (lists.weight, lists.source_identity) if column is not None]
    return [indptr.astype(np.int64), edges.src, *optional]


def _by_place(position, place, first: int, total: int, world: World, channel: Channel) -> list[np.ndarray]:
    """Collective. Positions in the whole lists and places, of all ranks in order of place."""
    moved = exchange_columns([position + first, place], place * world.size // max(1, total), channel)
    order = np.lexsort(moved)
    return [column[order] for column in moved]


def _whole(
    partition: GraphPartition, rows: SharedRows, lists: list[InLists]
) -> tuple[GraphPartition, list[InLists], list[np.ndarray]]:
    """The whole graph and its lists made of the shared arrays, and those that are left."""
    book = Book(partition.book.offsets, 1, partition.types)
    num_types, start = len(partition.types), book.type_base()
    flat_row, left = rows.span(0, num_types), iter(rows.arrays[num_types:])
    edges, found = [], []
    for relation, mine in zip(partition.relations, lists, strict=True):
        indptr, src = next(left), next(left)
        weight = None if mine.weight is None else next(left)
        source_identity = None if mine.source_identity is None else next(left)
        identity = flat_row[start[relation.dst_type] : start[relation.dst_type + 1]]
        found.append(InLists(indptr, identity, weight, source_identity))
        edges.append(InEdges(indptr, src, np.empty(0, np.int64), {} if weight is None else {WEIGHT: weight}))
    columns: tuple[dict, ...] = tuple({} for _ in partition.types)
    no_features = (None,) * num_types
    whole = GraphPartition(
        book, partition.graph, 0, partition.relations, flat_row, start, columns, no_features, tuple(edges), ()
    )  # fmt: skip
    return whole, found, list(left)
