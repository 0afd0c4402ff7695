"""Splits events in time, and makes the global batches of each split: which events, and which rank handles which.

A split trains, validates or tests; some nodes are hidden from training, others were never seen in it. A rank handles
the events of a batch whose source it owns, up to ceil(B / R). Further events go to ranks with room, by a fixed rule
that every rank computes from the counts alone. n local nodes, S steps, R ranks, B events of a batch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel, exchange_columns
from hpcgnn.comm.route import Route
from hpcgnn.comm.same import same_everywhere
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.book import check_same_set
from hpcgnn.graph.directory import places_of, spill
from hpcgnn.graph.splits import SPLITS
from hpcgnn.graph.stage import stage_path
from hpcgnn.native import Random, Stream
from hpcgnn.temporal.graph import (
    FEATURE,
    KEPT,
    Events,
    History,
    TemporalPartition,
    agree_on_edge_types,
    open_partition,
)

ASKED_AT_ONCE = 1 << 22  # nodes that flags are asked for
CHOSEN = "events"  # the name of batches of chosen events, where these are no training events


@dataclass(frozen=True, slots=True)
class Splits:
    """bounds [4]: event rows where train, val, test begin and end. hidden [n] nodes not shown in training, seen [n]
    nodes with a training event (both of the local nodes); history: what training may see."""

    bounds: np.ndarray
    hidden: np.ndarray
    seen: np.ndarray
    history: History

    def degree(self) -> np.ndarray:
        """Count the training events in the history of every local node, int64 [n]."""
        shown = np.concatenate(([0], np.cumsum(self.history.event < self.bounds[1])))
        return np.diff(shown[self.history.indptr])


def open_splits(
    path: str | os.PathLike, config: Any, seed: int, world: World, channel: Channel,
    columns: Collection[str] = KEPT, of_nodes: Collection[str] = (), label_relation: str | None = None,
) -> tuple[TemporalPartition, Splits]:  # fmt: skip
    """Collective. Open this rank's part of a partition set, and the splits of its events. columns, of_nodes,
    label_relation: as in ``open_partition``.

    Raises DistributedError for a partition set or splits that cannot be used.
    """
    path = stage_path(path, config.stage_to, world)
    with together(world, "open the partition set"):
        partition = open_partition(
            path, world.rank, world.size, config.check_hash, world.working, columns, of_nodes=of_nodes,
            type_column=config.type_column, label_relation=label_relation,
        )  # fmt: skip
    check_same_set(path, world)
    partition = agree_on_edge_types(partition, world)
    num_events = world.total(len(partition.events))
    with together(world, "open the partition set"):
        if num_events != partition.num_events:
            raise ValueError(f"{path}: the parts hold {num_events} events, the book has {partition.num_events}")
    with together(world, "split the events"):
        splits = make_splits(partition, config, seed, world, channel)
    return partition, splits


def make_splits(partition: TemporalPartition, config: Any, seed: int, world: World, channel: Channel) -> Splits:
    """Collective. Split by the graph's own ``split`` column when it has one, else by quantiles of time.

    Raises ValueError, on all ranks alike, for a split that cannot be used.
    """
    bounds = _bounds(partition, config, world)
    hidden = _hidden_nodes(partition, config.new_node_ratio, bounds, seed, world)
    history = partition.history
    if config.new_node_ratio > 0:
        history = _without_hidden(partition, hidden, int(bounds[1]), channel)
    first = history.indptr[:-1]
    has_any = history.indptr[1:] > first
    seen = np.zeros(partition.num_nodes, bool)
    seen[has_any] = history.event[first[has_any]] < bounds[1]
    return Splits(bounds, hidden, seen, history)


def flags_of(flags: np.ndarray, ids: np.ndarray, partition: TemporalPartition, channel: Channel) -> np.ndarray:
    """Collective. Pull the owners' ``flags``, or other values, [n local nodes] for global ``ids`` of any shape, in
    pieces whose sorted copies stay small beside the events."""
    flat, values = ids.reshape(-1), np.empty(ids.size, flags.dtype)
    # As many rounds on every rank as the rank with most ids needs: each round is collective.
    rounds = int(channel.everyone(torch.tensor([-(-ids.size // ASKED_AT_ONCE)])).max())
    for begin in range(0, rounds * ASKED_AT_ONCE, ASKED_AT_ONCE):
        piece = slice(begin, begin + ASKED_AT_ONCE)
        unique, inverse = np.unique(flat[piece], return_inverse=True)
        (found,) = Route.plan(partition.book, unique, channel).pull(torch.from_numpy(flags))
        values[piece] = found.numpy()[inverse]
    return values.reshape(ids.shape)


def _bounds(partition: TemporalPartition, config: Any, world: World) -> np.ndarray:
    if "split" in partition.events.columns:
        config.check_own_split()
        bounds = _bounds_from_column(partition, world)
    else:
        inner, (val, test) = [], config.fractions
        for quantile in (1 - val - test, 1 - test):
            position = quantile * (partition.num_events - 1)  # of all event times, interpolated as numpy.quantile does
            rows = np.array([int(np.floor(position)), int(np.ceil(position))])
            earlier, later = event_times(partition, rows, world).tolist()
            # A whole time: float64 holds no nanoseconds since 1970. 4.999999999999995 beyond the earlier one is 5.
            limit = earlier + int(np.round((position - rows[0]) * (later - earlier), 6))
            inner.append(int(world.total(int(np.searchsorted(partition.events.time, limit, side="right")))))
        bounds = np.array([0, *inner, partition.num_events], np.int64)
    if bounds[1] == 0:
        raise ValueError("no event is left for training: all carry the same time, or the split leaves none")
    return bounds


def event_times(partition: TemporalPartition, rows: np.ndarray, world: World) -> np.ndarray:
    """Collective. Return the times of the events with row ids ``rows``, int64."""
    own_rows = partition.events.row
    times = np.full(len(rows), np.iinfo(np.int64).min)
    if len(own_rows):
        place = np.minimum(np.searchsorted(own_rows, rows), len(own_rows) - 1)
        is_own = own_rows[place] == rows
        times[is_own] = partition.events.time[place[is_own]]
    return world.reduce_array(times, "max")


def _bounds_from_column(partition: TemporalPartition, world: World) -> np.ndarray:
    split, row = partition.events.columns["split"], partition.events.row
    if world.total(int((~np.isin(split, (0, 1, 2))).sum())):
        raise ValueError("the events' split column must hold 0 (train), 1 (val) and 2 (test) only")
    counts = world.reduce_array(np.bincount(split.astype(np.int64), minlength=3)[:3])
    bounds = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    wrong = ((row < bounds[split.astype(np.int64)]) | (row >= bounds[split.astype(np.int64) + 1])).any()
    if world.total(int(wrong)):
        raise ValueError(
            "the events' split column must not decrease with time: training events first, test events last"
        )
    return bounds


def _hidden_nodes(partition, fraction: float, bounds: np.ndarray, seed: int, world: World) -> np.ndarray:
    """Hide each node of validation or test with the probability that makes ``fraction`` of all nodes hidden on
    average."""
    if fraction == 0:
        return np.zeros(partition.num_nodes, bool)
    indptr = partition.history.indptr
    candidate = np.zeros(partition.num_nodes, bool)
    nonempty = indptr[1:] > indptr[:-1]
    candidate[nonempty] = partition.history.event[indptr[1:][nonempty] - 1] >= bounds[1]
    total = world.total(int(candidate.sum()))
    probability = min(1.0, fraction * partition.book.num_nodes / max(1, total))
    draw = native.random_integers(Random(seed, Stream.HIDDEN_NODE), partition.flat_row, 1, 1 << 30)[:, 0]
    return candidate & (draw < probability * (1 << 30))


def _without_hidden(partition: TemporalPartition, hidden: np.ndarray, train_end: int, channel: Channel) -> History:
    """Return the history without the training events of hidden nodes."""
    history = partition.history
    node = np.repeat(np.arange(partition.num_nodes), np.diff(history.indptr))
    touched = hidden[node] | flags_of(hidden, history.other, partition, channel)
    keep = ~touched | (history.event >= train_end)
    indptr = np.concatenate(([0], np.cumsum(keep)))[history.indptr]
    return history.take(np.flatnonzero(keep), indptr)


@dataclass(frozen=True, slots=True)
class Batches:
    """The events of one split that this rank handles, step after step.

    events: in order of (step, row); indptr [S + 1]: their range in each step; sizes [S]: global batch sizes. first_row
    [S]: row id of each batch's first event; new_ends [events] int8: endpoints, of the two, never seen in training.
    """

    name: str
    events: Events
    indptr: np.ndarray
    sizes: np.ndarray
    first_row: np.ndarray
    new_ends: np.ndarray

    @property
    def num_steps(self) -> int:
        """S, the same on all ranks."""
        return len(self.sizes)

    def at(self, step: int) -> slice:
        """Return this rank's events of a step, as a slice."""
        return slice(int(self.indptr[step]), int(self.indptr[step + 1]))


def last_times(batches: Batches, world: World) -> np.ndarray:
    """Collective. Return the time of the last event of every batch, int64 [S]."""
    times = np.full(batches.num_steps, np.iinfo(np.int64).min)
    filled = batches.indptr[1:] > batches.indptr[:-1]
    times[filled] = batches.events.time[batches.indptr[1:][filled] - 1]
    return world.reduce_array(times, "max")


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
    span: int = 0,
    rows: np.ndarray | None = None,
) -> Batches:
    """Collective. Make the batches of one split ("train", "val", "test"); hidden nodes' events are not in "train".

    ``rows``: the chosen events, in this order and on all ranks alike, in place of a split's; then ``name`` is "train"
    for training events, else any other.
    ``batch_by``, ``span``: as ``sampling.batch_by`` and ``batch_span``; ``drop_last``: "train" without the events of a
    last batch below ``batch_size``; ``first_size``: events of the first batch, 0: as the others.
    """
    if rows is None:
        events, position = _of_split(name, partition, splits, world, channel)
    else:
        events, position = own_events(rows, partition)
    total = int(world.total(len(events)))
    if batch_by == "span":
        edges = _span_edges(position, events.time, span, batch_size, total, world, channel)
    else:
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
    if rows is not None:
        events, step = by_step_and_row(events, step)
    events, step = spill_events(events, step, sizes, channel)
    if partition.features is not None:
        events.columns[FEATURE] = partition.features.of_events(events, channel)
    indptr = np.searchsorted(step, np.arange(len(sizes) + 1))
    is_new = flags_of(~splits.seen, np.stack([events.src, events.dst]), partition, channel)
    first_row = np.full(len(sizes), np.iinfo(np.int64).max)
    filled = indptr[1:] > indptr[:-1]
    first_row[filled] = events.row[indptr[:-1][filled]]
    return Batches(name, events, indptr, sizes, world.reduce_array(first_row, "min"), is_new.sum(axis=0, dtype=np.int8))


def _of_split(
    name: str, partition: TemporalPartition, splits: Splits, world: World, channel: Channel
) -> tuple[Events, np.ndarray]:  # fmt: skip
    """Collective. Return this rank's events of a split, and their positions among all of its events."""
    index = SPLITS.index(name)
    begin, end = int(splits.bounds[index]), int(splits.bounds[index + 1])
    rows = partition.events.row
    events = partition.events.take(np.flatnonzero((rows >= begin) & (rows < end)))
    if name == "train" and world.total(int(splits.hidden.sum())):
        return _visible(events, begin, end, splits, partition, world, channel)
    return events, events.row - begin


def chosen_rows(events: object, num_events: int, world: World) -> np.ndarray:
    """Collective. Return the rows [k] int64 of chosen events, in their order: their places in order of time, from 0 on.
    events: a mask of all events [N] bool, or rows [k] integers, as an array, a tensor or a list, the same on all ranks.

    Raises ValueError for what is no such set, and DistributedError for ranks with different ones.
    """
    chosen = np.asarray(events)
    digest = hashlib.sha256(np.ascontiguousarray(chosen).tobytes()).hexdigest()[:12]
    facts = {"chosen events": (str(chosen.dtype), chosen.shape, digest)}
    same_everywhere(world, facts, "give the same mask or rows on every rank; the loader divides them")
    if chosen.ndim != 1 or (chosen.dtype.kind not in "biu" and len(chosen)):
        raise ValueError(
            "events are chosen by a split (train, val, test), a mask or rows: booleans or integers in one dimension, "
            f"got {chosen.dtype} of shape {chosen.shape}"
        )
    if chosen.dtype == bool:
        if len(chosen) != num_events:
            raise ValueError(f"a mask has an entry for each of all {num_events} events, by row, got {len(chosen)}")
        return np.flatnonzero(chosen)
    rows = chosen.astype(np.int64)
    wrong = rows[(rows < 0) | (rows >= num_events)]
    if len(wrong):
        raise ValueError(f"event {wrong[0]} is no row of this graph, which has {num_events} events")
    sorted_rows = np.sort(rows)
    twice = sorted_rows[1:][sorted_rows[1:] == sorted_rows[:-1]]
    if len(twice):
        raise ValueError(f"event {twice[0]} is named twice: a set has each event once")
    return rows


def are_sorted(rows: np.ndarray) -> bool:
    """Say whether rows [k] are in order of time."""
    return bool((np.diff(rows) > 0).all())


def own_events(rows: np.ndarray, partition: TemporalPartition) -> tuple[Events, np.ndarray]:
    """Return this rank's events among ``rows`` [k], in order of row, and the place of each in that list."""
    order = np.argsort(rows, kind="stable")
    found = np.searchsorted(rows, partition.events.row, sorter=order)
    is_chosen = found < len(rows)
    is_chosen[is_chosen] = rows[order[found[is_chosen]]] == partition.events.row[is_chosen]
    return partition.events.take(np.flatnonzero(is_chosen)), order[found[is_chosen]]


def by_step_and_row(events: Events, step: np.ndarray) -> tuple[Events, np.ndarray]:
    """Sort events by step [e], and by row within it."""
    order = np.lexsort((events.row, step))
    return events.take(order), step[order]


def batches_of(name: str, partition: TemporalPartition, edges: np.ndarray, world: World, channel: Channel) -> Batches:
    """Collective. Make batches of the events between rows ``edges`` [S + 1], whatever their split."""
    rows = partition.events.row
    events = partition.events.take(np.flatnonzero((rows >= edges[0]) & (rows < edges[-1])))
    sizes = np.diff(edges)
    events, step = spill_events(events, np.searchsorted(edges, events.row, side="right") - 1, sizes, channel)
    if partition.features is not None:
        events.columns[FEATURE] = partition.features.of_events(events, channel)
    indptr = np.searchsorted(step, np.arange(len(sizes) + 1))
    return Batches(name, events, indptr, sizes, edges[:-1], np.zeros(len(events), np.int8))


def shown(events: Events, splits: Splits, partition: TemporalPartition, channel: Channel) -> Events:
    """Collective. Choose the events of this rank of which neither node is hidden."""
    ends = np.stack([events.src, events.dst])
    return events.take(np.flatnonzero(~flags_of(splits.hidden, ends, partition, channel).any(axis=0)))


def _visible(events: Events, begin: int, end: int, splits: Splits, partition, world: World, channel: Channel):
    """Collective. Choose the training events without hidden endpoints; returns them, and their positions among all such
    events of all ranks."""
    visible = shown(events, splits, partition, channel)
    position, _ = places_of(visible.row - begin, end - begin, world, channel)
    return visible, position


def _keep_times_together(edges: np.ndarray, position: np.ndarray, time: np.ndarray, world: World) -> np.ndarray:
    """Collective. Move the edges of batches up, so that equal times stay in one batch."""
    lowest = np.iinfo(np.int64).min
    place = np.searchsorted(position, edges[1:])  # this rank's events before each edge
    last = np.where(place > 0, time[np.maximum(place, 1) - 1], lowest) if len(time) else np.full(len(place), lowest)
    last = world.reduce_array(last, "max")
    counts = world.reduce_array(np.searchsorted(time, last, side="right"))
    return np.unique(np.append(0, counts)).astype(np.int64)


def _span_edges(
    position: np.ndarray, time: np.ndarray, span: int, most: int, total: int, world: World, channel: Channel
) -> np.ndarray:
    """Collective. Return the edges [S + 1] of batches that are windows of time, without the empty ones. Window w has
    the times from ``w * span`` up to the next window. A window of more than ``most`` events is cut into the fewest
    batches of nearly equal size.

    position, time: of this rank's events, in order of time; total: events of all ranks.
    """
    windows, first = np.unique(time // span, return_index=True)
    # Each window has a home, which leaves one copy of it: no rank receives the lists of all others.
    (at_home,) = exchange_columns([windows], windows % channel.size, channel)
    every = np.sort(channel.everyone(torch.from_numpy(np.unique(at_home))).numpy())
    begins = np.full(len(every), total)
    begins[np.searchsorted(every, windows)] = position[first]
    begins = world.reduce_array(begins, "min")
    counts = np.diff(begins, append=total)
    pieces = -(-counts // most)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.append(np.repeat(begins, pieces) + np.repeat(counts, pieces) * number // np.repeat(pieces, pieces), total)


def spill_events(events: Events, step: np.ndarray, sizes: np.ndarray, channel: Channel) -> tuple[Events, np.ndarray]:
    """Collective. Hand surplus events over; returns the events this rank handles, in order and, with several ranks,
    without features, and their steps."""
    if channel.size == 1:
        return events, step
    target = spill(step, sizes, channel)
    stays = target == channel.rank
    leaves = ~stays
    target = target[leaves]
    plain = {name: column for name, column in events.columns.items() if name != FEATURE}
    columns = [events.row, events.src, events.dst, events.time, *plain.values(), step]
    came = exchange_columns([column[leaves] for column in columns], target, channel)
    # By step and event row, not by arrival: steps find their events by their place.

    def joined(column: np.ndarray, arrived: np.ndarray) -> np.ndarray:
        return np.concatenate([column[stays], arrived])

    order = np.lexsort((joined(events.row, came[0]), joined(step, came[-1])))
    row, src, dst, time, *columns, step = (  # one after the other: together they are most of what a rank holds
        joined(column, arrived)[order] for column, arrived in zip(columns, came, strict=True)
    )
    named: dict[str, Any] = dict(zip(plain, columns, strict=True))
    return Events(row, src, dst, time, named), step
