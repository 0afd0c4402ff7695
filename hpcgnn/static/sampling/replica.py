"""Keeps the edges of a whole graph in memory that the ranks of a machine share, to draw neighbors without messages.

n nodes and m in-edges of a relation at this rank, N and M of all ranks. The lists of all ranks, concatenated in order
of rank, are the lists of all nodes in order of global id.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel, exchange_columns
from hpcgnn.comm.shared import MachineRows, free_memory
from hpcgnn.comm.world import World
from hpcgnn.graph.book import Book
from hpcgnn.graph.directory import permute_back
from hpcgnn.graph.partition import WEIGHT, GraphPartition, InEdges
from hpcgnn.native import Random
from hpcgnn.static.config import AUTO, SHARDED
from hpcgnn.static.sampling.neighbors import Exclusion, HiddenEdges, InLists, NeighborSampler, edges_below, make_lists

SHARE = 4  # "auto" takes at most one part in so many of a machine's free memory


class SharedExclusion(Exclusion):
    """The edges that a step leaves out of lists that the ranks of a machine share. No rank may sort shared memory for
    an epoch, so the seeds stay in order of place in the pool. A step's places come from the inverse of the epoch's
    permutation."""

    def start_epoch(self, shuffle: Random | None) -> None:
        """Set the key of the epoch's order of seeds; None: they are not shuffled."""
        super().start_epoch(shuffle)
        self._kept = threading.local()  # the last step of a thread: threads plan different steps at the same time

    def _groups_of(self, relation: int, step: int) -> np.ndarray:
        place, group = self.edges[relation].place, self.edges[relation].group
        seeds = self._seeds_of(step)
        first, last = (np.searchsorted(place, seeds, side=side) for side in ("left", "right"))
        count = last - first
        return group[np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())]

    def _seeds_of(self, step: int) -> np.ndarray:
        """Find the places, increasing, of a step's seeds in the pool. Each thread remembers its last step."""
        kept = self._kept
        if getattr(kept, "step", None) != step:
            first = step * self.batch_size
            places = np.arange(first, min(first + self.batch_size, self.total))
            if self._shuffle is not None:
                places = np.sort(permute_back(places, self.total, self._shuffle))
            kept.step, kept.places = step, places
        return kept.places


class Replica:
    """A copy of all edges that the ranks of a machine share, of ``num_bytes`` bytes. Collective to create and to close.

    partition: the whole graph as if on one rank, its edges without columns but the weights of mode "weighted";
    excluded: the edges that steps leave out, in its lists.
    """

    def __init__(
        self, partition: GraphPartition, mode: str, world: World, channel: Channel,
        excluded: Exclusion | Any = None, weight: str = WEIGHT,
    ):  # fmt: skip
        """weight: column that mode "weighted" draws by. Raises DistributedError where a machine has no room for it."""
        self._mode, self._channel = mode, world.own_channel()
        lists = make_lists(partition, mode, channel, weight)
        self._first = first = edges_below(partition, channel)[world.rank]
        pieces = [partition.flat_row[partition.of_type(kind)] for kind in range(len(partition.types))]
        for edges, in_lists, start in zip(partition.edges, lists, first, strict=True):
            indptr = in_lists.indptr[(0 if world.rank == 0 else 1) :] + start  # of all ranks: [N + 1]
            optional = (in_lists.weight, in_lists.source_identity)
            pieces += [indptr.astype(np.int64), edges.src, *(column for column in optional if column is not None)]
        relations = [] if excluded is None else sorted(excluded.edges)
        for relation in relations:
            pieces += _shares_of_hidden(excluded.edges[relation], int(first[relation]), excluded.total, channel)
        self._rows = MachineRows(world, pieces)
        self.num_bytes = self._rows.num_bytes
        self.partition, self._lists, rest = _whole(partition, self._rows, lists, weight)
        self.excluded = None
        if excluded is not None:
            hidden = {relation: HiddenEdges(*rest[4 * n : 4 * n + 4]) for n, relation in enumerate(relations)}
            self.excluded = SharedExclusion(hidden, excluded.total, excluded.batch_size, excluded.stream)

    def lend(self, partition: GraphPartition) -> GraphPartition:
        """Return this rank's partition with its sources, and for graphs of one node type its row ids, as views of the
        copy, so that they are in memory once."""
        pairs = zip(partition.edges, self.partition.edges, self._first, strict=True)
        edges = (replace(own, src=whole.src[first : first + len(own.src)]) for own, whole, first in pairs)
        flat_row = partition.flat_row
        if len(partition.types) == 1:
            flat_row = self.partition.flat_row[slice(*partition.book.of_type(0).starts[partition.rank :][:2])]
        return replace(partition, edges=tuple(edges), flat_row=flat_row)

    def sampler(self, neighbors: type[NeighborSampler], threads: int, with_edges: bool = False) -> NeighborSampler:
        """Make a sampler that draws from the copy; neighbors: NeighborSampler or a subclass."""
        return neighbors(
            self.partition, self._mode, self._channel, threads, with_edges, self.excluded, self._lists
        )  # fmt: skip

    def everything(self, threads: int, with_edges: bool = False) -> NeighborSampler:
        """Make a sampler that takes all edges, also edges of weight 0."""
        lists = [replace(in_lists, weight=None) for in_lists in self._lists]
        return NeighborSampler(
            self.partition, "full", self._channel, threads, with_edges, self.excluded, lists
        )  # fmt: skip

    def close(self) -> None:
        """Collective. Free the copy; samplers must not be used any more."""
        self._rows.close()
        self._channel.close()


def _shares_of_hidden(hidden: HiddenEdges, first: int, total: int, channel: Channel) -> list[np.ndarray]:
    """Collective. Make this rank's shares of the arrays of all ranks' hidden edges; first: position of this rank's
    first edge. Seeds are in order of place over all ranks: consecutive places go to consecutive ranks, which sort
    them."""
    sizes = torch.tensor([[len(hidden.indptr) - 1, len(hidden.position)]], dtype=torch.int64)
    num_groups, num_edges = channel.everyone(sizes).numpy()[: channel.rank].sum(axis=0)
    target = hidden.place * channel.size // max(1, total)
    place, group = exchange_columns([hidden.place, hidden.group + num_groups], target, channel)
    order = np.lexsort((group, place))
    indptr = hidden.indptr[(0 if channel.rank == 0 else 1) :] + num_edges  # of all ranks: [G + 1]
    return [hidden.position + first, indptr, place[order], group[order]]


def make_neighbors(
    partition: GraphPartition, mode: str, channel: Channel, threads: int, *, excluded: Exclusion | None = None,
    replica: Replica | None = None, neighbors: type[NeighborSampler] = NeighborSampler, with_edges: bool = False,
    weight: str = WEIGHT,
) -> NeighborSampler:  # fmt: skip
    """Collective. Make a sampler that draws from the replica, without the edges that the replica excludes, or, without
    a replica, lets the owners draw; neighbors: NeighborSampler or a subclass; weight: column that mode "weighted" draws
    by."""
    if replica is None:
        return neighbors(partition, mode, channel, threads, with_edges, excluded, weight=weight)
    return replica.sampler(neighbors, threads, with_edges)


def make_replica(
    topology: str, partition: GraphPartition, mode: str, world: World, channel: Channel,
    excluded: Exclusion | None = None, weight: str = WEIGHT,
) -> Replica | None:  # fmt: skip
    """Collective. Make a replica depending on ``sampling.topology`` and the free memory; None on one rank. weight:
    column that mode "weighted" draws by."""
    if world.size == 1 or topology == SHARDED:
        return None
    if topology == AUTO and topology_bytes(partition, mode, world, excluded) > free_memory(world) // SHARE:
        return None
    return Replica(partition, mode, world, channel, excluded, weight)


def topology_bytes(
    partition: GraphPartition, mode: str, world: World, excluded: Exclusion | None = None
) -> int:  # fmt: skip
    """Collective. Count the bytes of a copy: 8 per node and 8 for each of its lists. An edge takes 8, 4 more if
    weighted, 8 more in mode labor; edges that steps leave out take up to 32 more."""
    edge_bytes = 8 + {"weighted": 4, "labor": 8}.get(mode, 0)
    lists = sum(edge_bytes * len(edges.src) + edges.indptr.nbytes for edges in partition.edges)
    seeds = sum(array.nbytes for hidden in excluded.edges.values() for array in hidden.arrays) if excluded else 0
    return int(world.total(lists + partition.flat_row.nbytes + seeds))


def _whole(
    partition: GraphPartition, rows: MachineRows, lists: list[InLists], column: str
) -> tuple[GraphPartition, list[InLists], list[np.ndarray]]:
    """Make the whole graph and its lists from the shared arrays, in the order in which ``Replica`` put them there; also
    returns the remaining arrays."""
    book = Book(partition.book.offsets, 1, partition.types)
    num_types, start = len(partition.types), book.type_base()
    flat_row, arrays = rows.span(0, num_types), iter(rows.arrays[num_types:])
    edges, whole_lists = [], []
    for relation, own in zip(partition.relations, lists, strict=True):
        indptr, src = next(arrays), next(arrays)
        weight = None if own.weight is None else next(arrays)
        source_identity = None if own.source_identity is None else next(arrays)
        identity = flat_row[start[relation.dst_type] : start[relation.dst_type + 1]]
        whole_lists.append(InLists(indptr, identity, weight, source_identity))
        edges.append(InEdges(indptr, src, np.empty(0, np.int64), {} if weight is None else {column: weight}))
    columns: tuple[dict, ...] = tuple({} for _ in partition.types)
    no_features = (None,) * num_types
    whole = GraphPartition(
        book, partition.graph_hash, 0, partition.relations, flat_row, start, columns, no_features, tuple(edges), ()
    )  # fmt: skip
    return whole, whole_lists, list(arrays)
