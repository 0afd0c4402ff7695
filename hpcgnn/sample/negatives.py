"""Negative destinations, keyed by event: the same on any number of ranks and any partition set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import World
from hpcgnn.native import Random, Stream
from hpcgnn.sample.batches import Batches
from hpcgnn.sample.directory import NodeDirectory
from hpcgnn.store.partition import TemporalPartition

POOLS = ("destinations", "all")


@dataclass(frozen=True, slots=True)
class Negatives:
    """Negative pairs of events: dst [n, k] int64 global ids; src [n, k], or None: the event's own source."""

    dst: np.ndarray
    src: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.dst)

    @property
    def per_event(self) -> int:
        """k."""
        return self.dst.shape[1]

    def at(self, events: slice) -> Negatives:
        """The negatives of some of the events, such as those of one step."""
        return Negatives(self.dst[events], None if self.src is None else self.src[events])


def no_negatives(count: int) -> Negatives:
    """Of ``count`` events, none each."""
    return Negatives(np.empty((count, 0), np.int64))


@dataclass(frozen=True, slots=True)
class AllOthers:
    """As Negatives: every member of a pool but the true destination. Made when asked for, as [n, k] may be large.

    members [k + 1] global ids in order of flat row id; place [n] of each event's destination among them.
    """

    members: np.ndarray
    place: np.ndarray

    def __len__(self) -> int:
        return len(self.place)

    @property
    def per_event(self) -> int:
        """k."""
        return len(self.members) - 1

    def at(self, events: slice) -> Negatives:
        """The negatives of some of the events."""
        other = np.arange(self.per_event)
        return Negatives(self.members[other + (other >= self.place[events, None])])


def negative_pool(
    kind: str, destinations: np.ndarray, partition: TemporalPartition, world: World, channel: Channel
) -> NodeDirectory:
    """Collective. The nodes that negatives are drawn from: unique ``destinations`` (global ids, any rank), or all
    nodes."""
    if kind == "all":
        local = np.arange(partition.num_nodes)
    else:
        local = Route.plan(partition.book, np.unique(destinations), channel).served.numpy()
    ids = partition.book.local_to_global(channel.rank)
    return NodeDirectory(world, channel, partition.flat_row[local], ids[local], partition.book.num_nodes)


def split_pool(
    kind: str, batches: Batches, partition: TemporalPartition, world: World, channel: Channel
) -> NodeDirectory:
    """Collective. The pool of a split: in training, destinations are those of training events."""
    shown = batches.events if batches.name == "train" else partition.events
    return negative_pool(kind, shown.dst, partition, world, channel)


def random_negatives(batches: Batches, pool: NodeDirectory, per_event: int, seed: int, epoch: int = 0) -> Negatives:
    """Collective. Nodes of the pool with the events' own sources: in training others in every epoch."""
    key = Random(seed, Stream.NEGATIVE, epoch=epoch) if batches.name == "train" else Random(seed, Stream.EVAL_NEGATIVE)
    return Negatives(draw_negatives(pool, batches.events.row, per_event, key))


def draw_negatives(pool: NodeDirectory, event_rows: np.ndarray, per_event: int, random: Random) -> np.ndarray:
    """Collective. Global ids [events, per_event], uniform over the pool."""
    if per_event == 0 or pool.size == 0:
        return np.empty((len(event_rows), 0), np.int64)
    return pool.lookup(native.random_integers(random, event_rows, per_event, pool.size))
