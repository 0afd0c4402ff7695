"""Keeps the edges of a whole graph in memory that the ranks of a machine share, to draw neighbors without messages.

n nodes, P pairs of a relation and a node, and m in-edges at this rank, N of all ranks. The lists of all ranks are
concatenated in order of rank; the pairs of nodes, in order of type, then rank.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel, exchange_columns
from hpcgnn.comm.shared import MachineRows, free_memory
from hpcgnn.comm.world import World
from hpcgnn.graph.book import Book
from hpcgnn.graph.directory import permute_back
from hpcgnn.graph.partition import WEIGHT, GraphPartition
from hpcgnn.native import Random
from hpcgnn.static.config import AUTO, SHARDED
from hpcgnn.static.sampling.neighbors import Exclusion, HiddenEdges, NeighborSampler, edges_below
from hpcgnn.static.sampling.pairs import InLists, PairLists, make_lists

SHARE = 4  # "auto" takes at most one part in so many of a machine's free memory


class SharedExclusion(Exclusion):
    """The edges that a step leaves out of lists that the ranks of a machine share. No rank may sort shared memory for
    an epoch, so the seeds stay in order of place in the pool. A step's places come from the inverse of the epoch's
    permutation."""

    def start_epoch(self, shuffle: Random | None) -> None:
        """Set the key of the epoch's order of seeds; None: they are not shuffled."""
        super().start_epoch(shuffle)
        self._kept = threading.local()  # the last step of a thread: threads plan different steps at the same time

    def _groups_of(self, step: int) -> np.ndarray:
        place, group = self.edges.place, self.edges.group
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

    partition: the whole graph as if on one rank, without its edges, which are in the lists; excluded: the edges that
    steps leave out, in these lists.
    """

    def __init__(
        self, partition: GraphPartition, mode: str, world: World, channel: Channel,
        excluded: Exclusion | Any = None, weight: str = WEIGHT,
    ):  # fmt: skip
        """weight: column that mode "weighted" draws by. Raises DistributedError where a machine has no room for it."""
        self._mode, self._channel = mode, world.own_channel()
        lists, rank = make_lists(partition, mode, channel, weight), world.rank
        below = edges_below(partition, channel)
        counts = np.diff(below, axis=0)
        begin = (np.cumsum(counts) - counts.ravel()).reshape(counts.shape)  # where relations' edges begin [R, L]
        self._first = begin[rank]
        pieces = [partition.flat_row[partition.of_type(kind)] for kind in range(len(partition.types))]
        pieces += _pieces_of_lists(lists, partition, int(begin[rank, 0]), channel)
        num_pieces = len(pieces)
        if excluded is not None:
            first = self._first[excluded.relation]
            pieces += _shares_of_hidden(excluded.edges, first, excluded.total, channel)
        self._rows = MachineRows(world, pieces)
        self.num_bytes = self._rows.num_bytes
        self.partition = _whole(partition, self._rows)
        self._lists = _whole_lists(lists, self._rows, self.partition, (begin.ravel(), (below[:-1] - begin).ravel()))
        self.excluded = None
        if excluded is not None:
            hidden = {0: HiddenEdges(*self._rows.arrays[num_pieces:])}
            self.excluded = SharedExclusion(hidden, excluded.total, excluded.batch_size, excluded.stream)

    def lend(self, partition: GraphPartition) -> GraphPartition:
        """Return this rank's partition with its sources, and for graphs of one node type its row ids, as views of the
        copy, so that they are in memory once."""
        source, pairs = self._lists.source, zip(partition.edges, self._first.tolist(), strict=True)
        edges = (replace(own, src=source[first : first + len(own.src)]) for own, first in pairs)
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
        lists = self._lists.unweighted()
        return NeighborSampler(self.partition, "full", self._channel, threads, with_edges, self.excluded, lists)

    def close(self) -> None:
        """Collective. Free the copy; samplers must not be used any more."""
        self._rows.close()
        self._channel.close()


def _pieces_of_lists(
    lists: PairLists, partition: GraphPartition, first_edge: int, channel: Channel
) -> list[np.ndarray]:  # fmt: skip
    """Collective. Make this rank's shares of the arrays of all ranks' lists, in the order in which ``_whole_lists``
    reads them; first_edge: place of this rank's first edge."""
    of_pairs, skipped = lists.of_pairs, 0 if channel.rank == 0 else 1  # an offset begins with one 0
    pieces = [of_pairs.indptr[skipped:] + first_edge, lists.source]
    pieces += [column for column in (of_pairs.weight, of_pairs.source_identity) if column is not None]
    if lists.relation is None:
        return pieces
    bounds = lists.first[partition.type_start]  # of the pairs of each type
    counts = channel.everyone(torch.from_numpy(np.diff(bounds)[None])).numpy()  # [R, T]
    first_pair = counts[: channel.rank].sum()
    begin = (np.cumsum(counts.T) - counts.T.ravel()).reshape(counts.T.shape)[:, channel.rank]
    types = [partition.of_type(kind) for kind in range(len(partition.types))]
    moves = zip(types, (begin - bounds[:-1]).tolist(), strict=True)
    ends = [lists.first[1:][of_type] + move for of_type, move in moves]
    ends[0] = np.concatenate((np.zeros(1 - skipped, np.int64), ends[0]))
    pairs = [lists.pair[first:last] + first_pair for first, last in pairwise(bounds)]
    relations = [lists.relation[first:last] for first, last in pairwise(bounds)]
    return [*pieces, of_pairs.identity, *ends, *pairs, *relations]


def _whole_lists(
    own: PairLists, rows: MachineRows, whole: GraphPartition, shift: tuple[np.ndarray, np.ndarray]
) -> PairLists:  # fmt: skip
    """Make the lists of the whole graph from the shared arrays; own: this rank's lists; shift: as in the lists."""
    num_types = len(whole.types)
    arrays = iter(rows.arrays[num_types:])
    indptr, source = next(arrays), next(arrays)
    optional = own.of_pairs.weight, own.of_pairs.source_identity
    columns = [None if column is None else next(arrays) for column in optional]
    starts = np.zeros_like(own.starts)
    if own.relation is None:
        nodes = None if own.nodes is None else whole.of_type(whole.relations[0].dst_type)
        identity = whole.flat_row if nodes is None else whole.flat_row[nodes]
        return PairLists(InLists(indptr, identity, *columns), source, None, None, None, nodes, starts, shift)
    identity, at = next(arrays), num_types + 3 + sum(column is not None for column in columns)
    first, pair, relation = (rows.span(at + piece * num_types, at + (piece + 1) * num_types) for piece in range(3))
    return PairLists(InLists(indptr, identity, *columns), source, relation, first, pair, None, starts, shift)


def _shares_of_hidden(hidden: HiddenEdges, first: np.ndarray, total: int, channel: Channel) -> list[np.ndarray]:
    """Collective. Make this rank's shares of the arrays of all ranks' hidden edges; first [x]: place of the first edge
    of the relation of each. Seeds are in order of place over all ranks: consecutive places go to consecutive ranks,
    which sort them."""
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
    """Collective. Count the bytes of a copy. A node takes 16 and an edge 8, 4 more if weighted, 8 more in mode labor;
    with several relations a pair of a relation and a node with edges 32. Edges that steps leave out take up to 32
    more."""
    edge_bytes = 8 + {"weighted": 4, "labor": 8}.get(mode, 0)
    num_edges = sum(len(edges.src) for edges in partition.edges)
    if len(partition.edges) == 1:
        lists = 8 * partition.edges[0].num_nodes
    else:
        num_pairs = sum(len(edges.filled()[0]) for edges in partition.edges)
        lists = 32 * num_pairs + 8 * partition.num_nodes
    seeds = sum(array.nbytes for array in excluded.edges.arrays) if excluded else 0
    return int(world.total(edge_bytes * num_edges + lists + partition.flat_row.nbytes + seeds))


def _whole(partition: GraphPartition, rows: MachineRows) -> GraphPartition:
    """Make the nodes of the whole graph from the shared arrays."""
    book = Book(partition.book.offsets, 1, partition.types)
    num_types, start = len(partition.types), book.type_base()
    columns: tuple[dict, ...] = tuple({} for _ in partition.types)
    no_features = (None,) * num_types
    return GraphPartition(
        book, partition.graph_hash, 0, partition.relations, rows.span(0, num_types), start, columns, no_features, (),
        (), turned=partition.turned,
    )  # fmt: skip
