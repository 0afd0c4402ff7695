"""What links of snapshots are learnt from: the edges of a target, and pairs drawn against them.

s edges of this rank, k negatives each. All of it is a function of random key, edges and nodes: no number of ranks
changes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import World
from hpcgnn.native import Random, Stream
from hpcgnn.sample.directory import NodeDirectory
from hpcgnn.sample.known_edges import KnownAnswers
from hpcgnn.sample.node_reach import Reach, reach
from hpcgnn.store.snapshot_partition import SnapshotEdges, SnapshotPartition

TRIES = 16  # draws of a strict negative, as many as the key of random numbers counts
SOURCE, DESTINATION = 1, 0  # part of the random key
TRAIN = "train"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs to score for one target, as places in what ``reach`` brings: source, destination [s] of edges, negatives
    [k, s]; negative_source None: the edge's own. number: of the snapshot that predictions are made from. All pairs of
    nodes instead: negative None, source [s] global ids, destination [s] local rows."""

    number: int
    reach: Reach | None
    source: torch.Tensor
    destination: torch.Tensor
    negative: torch.Tensor | None
    negative_source: torch.Tensor | None = None


class TargetEdges:
    """Collective to create. The edges of later snapshots that are learnt: every pair of nodes once. ``horizon``:
    predictions are for so many snapshots later; undirected: of both directions the one from the lower row id;
    new_only: none that the snapshot that predictions are made from has, too."""

    def __init__(
        self, partition: SnapshotPartition, horizon: int, undirected: bool, new_only: bool, channel: Channel
    ):  # fmt: skip
        self._partition, self._horizon, self._new_only = partition, horizon, new_only
        self._rows = _SourceRows(partition, channel) if undirected else None

    def at(self, number: int) -> SnapshotEdges:
        """What predictions from a snapshot are about."""
        edges = self._partition.edges_at(number + self._horizon)
        kept = _first_of_each(self._key(edges))
        if self._rows is not None:
            kept = kept[self._rows.of(edges.src[kept]) <= self._partition.flat_row[edges.dst[kept]]]
        if self._new_only:
            old = self._key(self._partition.edges_at(number))
            kept = kept[~np.isin(self._key(edges)[kept], old)]
        return SnapshotEdges(edges.src[kept], edges.dst[kept], edges.row[kept], {})

    def all_at(self, number: int) -> SnapshotEdges:
        """All edges of the snapshot that predictions from ``number`` are for."""
        return self._partition.edges_at(number + self._horizon)

    def _key(self, edges: SnapshotEdges) -> np.ndarray:
        return edges.src * self._partition.num_nodes + edges.dst


class PairPlanner:
    """Collective to create and to call, over ``channel``.

    counts: negatives of an edge, in training and in evaluation (0: all pairs of nodes); both_ends: negatives are pairs
    of two drawn nodes, not of an edge's source and a drawn one; strict: none is an edge of the same snapshot, nor a
    node with itself.
    """

    def __init__(
        self, partition: SnapshotPartition, targets: TargetEdges, counts: tuple[int, int], both_ends: bool,
        strict: bool, seed: int, world: World, channel: Channel,
    ):  # fmt: skip
        self._partition, self._targets, self._counts = partition, targets, counts
        self._ends = (DESTINATION, SOURCE) if both_ends else (DESTINATION,)
        self._strict, self._seed, self._channel, self._device = strict, seed, channel, world.device
        self._ids = partition.global_ids
        self._nodes = NodeDirectory(world, channel, partition.flat_row, self._ids, partition.book.num_nodes)

    def __call__(self, split: str, epoch: int, number: int) -> Pairs:
        """Collective. In training others in every epoch."""
        edges, (training, evaluation) = self._targets.at(number), self._counts
        if split != TRAIN and evaluation == 0:
            ends = [torch.from_numpy(ids).to(self._device) for ids in (edges.src, edges.dst)]
            return Pairs(number, None, *ends, None)
        random = Random(self._seed, Stream.NEGATIVE, number, epoch)
        count = training
        if split != TRAIN:
            random, count = Random(self._seed, Stream.EVAL_NEGATIVE, number), evaluation
        negative, *negative_source = self._drawn(number, edges, count, random)
        wanted = [edges.src, self._ids[edges.dst], negative.T, *(ids.T for ids in negative_source)]
        found, places = reach(wanted, self._partition.book, self._channel, self._device)
        return Pairs(number, found, *places)

    def _drawn(self, number: int, edges: SnapshotEdges, count: int, random: Random) -> np.ndarray:
        """Collective. Global ids [1 or 2, s, count], destinations first: functions of seed, epoch, snapshot and edge
        alone. Strict ones that are an edge are drawn again."""
        drawn = self._draw(edges.row, count, random, 0)
        if not self._strict:
            return drawn
        known = self._known(number)
        edge, slot = (index.ravel() for index in np.indices(drawn.shape[1:]))
        for attempt in range(1, TRIES):
            destination, *source = drawn[:, edge, slot]
            bad = self._is_edge(known, source[0] if source else edges.src[edge], destination)
            if self._channel.counts(np.full(self._channel.size, bad.sum())).sum() == 0:
                break
            edge, slot = edge[bad], slot[bad]
            again, place = np.unique(edge, return_inverse=True)
            drawn[:, edge, slot] = self._draw(edges.row[again], count, random, attempt)[:, place, slot]
        return drawn

    def _draw(self, rows: np.ndarray, count: int, random: Random, attempt: int) -> np.ndarray:
        """Collective. Uniform over all nodes."""
        keys = [Random(random.seed, random.stream, random.step, random.epoch, attempt, end) for end in self._ends]
        return self._nodes.lookup(np.stack([native.random_integers(k, rows, count, self._nodes.size) for k in keys]))

    def _known(self, number: int) -> KnownAnswers:
        edges, partition = self._targets.all_at(number), self._partition
        ownership = partition.book.of_type(0)
        return KnownAnswers(ownership, partition.rank, edges.src, np.zeros_like(edges.src), self._ids[edges.dst])

    def _is_edge(self, known: KnownAnswers, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
        """Collective. Whether pairs [n] are edges, or one node each."""
        return known.hold(source, np.zeros_like(source), destination, self._channel) | (source == destination)


class _SourceRows:
    """Collective to create. Flat row ids of all sources of edges into this rank's nodes."""

    def __init__(self, partition: SnapshotPartition, channel: Channel):
        self._ids = np.unique(partition.all_sources)
        (rows,) = Route.plan(partition.book, self._ids, channel).pull(torch.from_numpy(partition.flat_row))
        self._rows = rows.numpy()

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Of global ids [n]."""
        return self._rows[np.searchsorted(self._ids, ids)]


def _first_of_each(key: np.ndarray) -> np.ndarray:
    """Places, increasing, of the first of each of equal keys."""
    return np.sort(np.unique(key, return_index=True)[1])
