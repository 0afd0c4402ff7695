"""Makes global batches of events in time order, and says which rank handles which events of a batch.

A rank handles the events whose source it owns, up to ceil(B / R) a batch; what is over goes to ranks with room by a
fixed rule that every rank computes from the counts alone. S steps, R ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.graph.spill import exchange_columns, spill
from hpcgnn.graph.splits import SPLITS
from hpcgnn.temporal.graph import Events, TemporalPartition
from hpcgnn.temporal.splits import Splits, flags_of


@dataclass(frozen=True, slots=True)
class Batches:
    """The events of one split that this rank handles, step after step.

    events in order of (step, row); indptr [S + 1] their range in each step; sizes [S] global batch sizes; first_row [S]
    row id of each batch's first event; inductive: [events] whether an endpoint was never seen in training.
    """

    name: str
    events: Events
    indptr: np.ndarray
    sizes: np.ndarray
    first_row: np.ndarray
    inductive: np.ndarray

    @property
    def num_steps(self) -> int:
        """S, the same on all ranks."""
        return len(self.sizes)

    def at(self, step: int) -> slice:
        """Return this rank's events of a step, as a slice."""
        return slice(int(self.indptr[step]), int(self.indptr[step + 1]))


def make_batches(
    name: str,
    partition: TemporalPartition,
    splits: Splits,
    batch_size: int,
    batch_by: str,
    world: World,
    channel: Channel,
    drop_last: bool = False,
    first_size: int = 0,
) -> Batches:
    """Collective. Make the batches of one split ("train", "val", "test"); hidden nodes' events are not in "train".

    ``drop_last``: "train" without the events of a last batch below ``batch_size``; ``first_size``: events of the first
    batch, 0: as the others.
    """
    index = SPLITS.index(name)
    begin, end = int(splits.bounds[index]), int(splits.bounds[index + 1])
    rows = partition.events.row
    events = partition.events.take(np.flatnonzero((rows >= begin) & (rows < end)))
    position = events.row - begin
    if name == "train" and world.total(int(splits.hidden.sum())):
        events, position = _visible(events, begin, end, splits, partition, world, channel)
    total = int(world.total(len(events)))
    edges = np.append(np.arange((first_size or batch_size) - batch_size, total, batch_size, dtype=np.int64), total)
    edges[0] = 0
    if batch_by == "time" and total:
        edges = _keep_times_together(edges, position, events.time, world)
    if drop_last and name == "train" and len(edges) > 1 and edges[-1] - edges[-2] < batch_size:
        edges = edges[:-1]
        inside = position < edges[-1]
        events, position = events.take(np.flatnonzero(inside)), position[inside]
    step = np.searchsorted(edges, position, side="right") - 1
    sizes = np.diff(edges)
    events, step = _spill(events, step, sizes, world, channel)
    indptr = np.searchsorted(step, np.arange(len(sizes) + 1))
    unseen = np.any(flags_of(~splits.seen, np.stack([events.src, events.dst]), partition, channel), axis=0)
    first_row = np.full(len(sizes), np.iinfo(np.int64).max)
    filled = indptr[1:] > indptr[:-1]
    first_row[filled] = events.row[indptr[:-1][filled]]
    return Batches(name, events, indptr, sizes, world.reduce_array(first_row, "min"), unseen)


def _visible(events: Events, begin: int, end: int, splits: Splits, partition, world: World, channel: Channel):
    """Collective. Choose the training events without hidden endpoints; returns them, and their positions among all such
    events of all ranks."""
    hidden = flags_of(splits.hidden, np.stack([events.src, events.dst]), partition, channel).any(axis=0)
    removed = np.zeros(end - begin, np.uint8)
    removed[events.row[hidden] - begin] = 1
    removed = np.unpackbits(world.reduce_array(np.packbits(removed), "or"), count=end - begin)
    visible = events.take(np.flatnonzero(~hidden))
    return visible, visible.row - begin - np.cumsum(removed, dtype=np.int64)[visible.row - begin]


def _keep_times_together(edges: np.ndarray, position: np.ndarray, time: np.ndarray, world: World) -> np.ndarray:
    """Collective. Move the edges of batches up, so that equal times stay in one batch."""
    lowest = np.iinfo(np.int64).min
    place = np.searchsorted(position, edges[1:])  # this rank's events before each edge
    last = np.where(place > 0, time[np.maximum(place, 1) - 1], lowest) if len(time) else np.full(len(place), lowest)
    last = world.reduce_array(last, "max")
    counts = world.reduce_array(np.searchsorted(time, last, side="right"))
    return np.unique(np.append(0, counts)).astype(np.int64)


def _spill(
    events: Events, step: np.ndarray, sizes: np.ndarray, world: World, channel: Channel
) -> tuple[Events, np.ndarray]:
    """Hand surplus events over; returns the events this rank handles, in order, and their steps."""
    if world.size == 1:
        return events, step
    names = list(events.columns)
    columns = [events.row, events.src, events.dst, events.time, *events.columns.values(), step]
    *moved, step = exchange_columns(columns, spill(step, sizes, world), channel)
    row, src, dst, time, *columns = moved
    events = Events(row, src, dst, time, dict(zip(names, columns, strict=True)))
    by_row = np.argsort(events.row, kind="stable")
    return events.take(by_row), step[by_row]
