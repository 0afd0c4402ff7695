"""Labels of nodes, one a node, and the loaders of runs that learn them (task.kind node_class).

The nodes are split into training, validation and test, and the events are not: in each split, node memory moves through
the events from the first one on. A *question* is a node at a time, at which its class is predicted from the events
before. Questions are rows of ``Events`` with the node at both ends, numbered in order of place, then of node. The place
of a question is the first batch of events that does not end before its time: it is answered before that batch.

n nodes of the labeled type at this rank, q questions of this rank, e events, S batches of events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.graph.directory import places_of
from hpcgnn.graph.splits import SPLITS, TRAIN_SPLIT, place_of_split
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.task.labels import MISSING, labeled_type, node_labels
from hpcgnn.temporal.batches import Batches, flags_of, last_times, spill_events
from hpcgnn.temporal.graph import LABEL, Events, TemporalPartition
from hpcgnn.temporal.loader import Planning, TemporalGraph, TemporalLoader
from hpcgnn.temporal.negatives import no_negatives
from hpcgnn.temporal.plan import StepPlan

TIME = "label_time"
LOW_BITS = 24  # of a row id, which float32 holds exactly
INPUT_COLUMNS = 3  # that ``with_label_input`` adds


@dataclass(frozen=True, slots=True)
class NodeClasses:
    """Labels of this rank's nodes of one type. first: local row of the first of them; ids [n]: global ids; row [n]: row
    ids within the type, which has ``num_rows`` nodes; label [n]: class, -1 where missing; split [n]: 0 training, 1
    validation, 2 test, others none; time [n]: when the class is predicted. All are int64. node_type: name of the type;
    classes: words that the labels were made from."""

    node_type: str
    first: int
    num_rows: int
    ids: np.ndarray
    row: np.ndarray
    label: np.ndarray
    split: np.ndarray
    time: np.ndarray
    classes: tuple[str, ...]

    def of_split(self, split: int) -> np.ndarray:
        """Find the nodes of a split that have a label, as places [q] among this rank's nodes of the type."""
        return np.flatnonzero((self.split == split) & (self.label >= 0))

    def spread(self, num_nodes: int, values: np.ndarray, otherwise: int) -> np.ndarray:
        """Make an array [num_nodes] of all local nodes, with ``values`` [n] at the nodes of the type."""
        spread = np.full(num_nodes, otherwise, np.int64)
        spread[self.first : self.first + len(values)] = values
        return spread

    def known(self, num_nodes: int) -> np.ndarray:
        """Return the training labels of all local nodes [num_nodes] int64, -1 for every other node. Nothing else of the
        labels reaches the model or a baseline."""
        return self.spread(num_nodes, np.where(self.split == 0, self.label, MISSING), MISSING)


def read_node_classes(partition: TemporalPartition, config: Any, rank: int, after: int) -> NodeClasses:
    """Read the labels of this rank's nodes. config: the section ``task``; after: the time after the last event, for
    nodes without any. Raises ValueError for columns that are missing or cannot be used."""
    book = partition.book
    kind = labeled_type(partition.node_columns, book.node_types, config.node_type, "task.node_type")
    name, columns = book.node_types[kind], partition.node_columns[kind]
    label, split = node_labels(columns, name, config.classes)
    if label.ndim > 1:
        raise ValueError(f"node type {name} has several labels a node; task.kind {config.kind} learns one class a node")
    first, stop = (int(row) for row in book.type_start(rank)[kind : kind + 2])
    if TIME in columns:
        time = _given_times(columns[TIME], partition.time_scale, name)
    else:
        time = _ends_of_histories(partition, first, stop, after)
    base = book.type_base()
    return NodeClasses(
        name, first, int(base[kind + 1] - base[kind]), book.local_to_global(rank)[first:stop],
        partition.flat_row[first:stop] - base[kind], label, split, time, partition.node_classes[kind],
    )  # fmt: skip


def with_label_input(partition: TemporalPartition, labels: NodeClasses) -> TemporalPartition:
    """Add three columns to the features of the nodes: the training label, -1 where there is none, and the flat row id,
    its high and its low bits. ``read_label_input`` reads them."""
    row, features = partition.flat_row, partition.wide_node_feature()
    columns = [] if features is None else [features]
    added = labels.known(partition.num_nodes), row >> LOW_BITS, row & ((1 << LOW_BITS) - 1)
    features = np.column_stack([*columns, *added]).astype(np.float32)
    return replace(partition, node_feature=features, node_encoding=None)


def read_label_input(feature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split rows [r, .] of features into the features of the graph [r, F], the training labels, -1 where there is none,
    and the flat row ids, both int64 [r]."""
    label, high, low = feature[:, -INPUT_COLUMNS:].long().T
    return feature[:, :-INPUT_COLUMNS], label, (high << LOW_BITS) + low


def _given_times(column: np.ndarray, scale: float, name: str) -> np.ndarray:
    """Read a column of times in the unit of the source as times of the graph. Raises ValueError."""
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise ValueError(
            f"the column {TIME} of node type {name} must hold integers in the unit of the source's times, got "
            f"{column.dtype}: convert the source again with integers, or without the column"
        )
    scaled = column * (int(scale) if float(scale).is_integer() else scale)
    return np.round(scaled).astype(np.int64)


def _ends_of_histories(partition: TemporalPartition, first: int, stop: int, after: int) -> np.ndarray:
    """Return the time after the last event of each node."""
    history = partition.history
    begin, end = history.indptr[first:stop], history.indptr[first + 1 : stop + 1]
    has_any, time = end > begin, np.full(stop - first, after)
    time[has_any] = history.time[end[has_any] - 1] + 1
    return time


@dataclass(frozen=True, slots=True)
class NodeQuestions:
    """The questions of a split. steps: by step of ``train.batch_size`` questions; pieces: by step and place; step,
    place [k]: of every piece, the same on all ranks."""

    steps: Batches
    pieces: Batches
    step: np.ndarray
    place: np.ndarray


def make_questions(
    labels: NodeClasses, split: str, events: Batches, graph: TemporalGraph, batch_size: int
) -> NodeQuestions:  # fmt: skip
    """Collective. Make the questions of a split. events: the batches of all events."""
    world, channel, chosen = graph.world, graph.channel, labels.of_split(place_of_split(split))
    last, time, ids = last_times(events, world), labels.time[chosen], labels.ids[chosen]
    place = np.searchsorted(last, time)
    keys = place * labels.num_rows + labels.row[chosen]
    position, total = places_of(keys, (len(last) + 1) * labels.num_rows, world, channel)
    questions = Events(position, ids, ids, time, {LABEL: labels.label[chosen]}).take(np.argsort(position))
    edges = np.append(np.arange(0, total, batch_size), total)
    sizes = np.diff(edges)
    step = np.searchsorted(edges, questions.row, side="right") - 1
    questions, _ = spill_events(questions, step, sizes, channel)
    ends = np.cumsum(world.reduce_array(np.bincount(place, minlength=len(last) + 1)))
    cuts = np.unique(np.concatenate([edges, ends]))
    step_of, place_of = cuts[:-1] // batch_size, np.searchsorted(ends, cuts[:-1], side="right")
    first_row = np.append(events.first_row, graph.partition.num_events)[place_of]

    def cut(at: np.ndarray, sizes: np.ndarray, first_row: np.ndarray) -> Batches:
        indptr = np.searchsorted(questions.row, at)
        return Batches(split, questions, indptr, sizes, first_row, np.zeros(len(questions), np.int8))

    steps = cut(edges, sizes, first_row[np.searchsorted(cuts[:-1], edges[:-1])])
    return NodeQuestions(steps, cut(cuts, sizes[step_of], first_row), step_of, place_of)


def label_events(
    labels: NodeClasses, events: Batches, partition: TemporalPartition, world: World, channel: Channel
) -> Batches:  # fmt: skip
    """Collective. Return the batches of all events with a column label [e, 2]: training labels of both ends before the
    times of these labels, -1 elsewhere. They end with the last batch that has a label."""
    ends = np.column_stack([events.events.src, events.events.dst])
    label = flags_of(labels.known(partition.num_nodes), ends, partition, channel)
    until = flags_of(labels.spread(partition.num_nodes, labels.time, 0), ends, partition, channel)
    label = np.where(events.events.time[:, None] < until, label, MISSING)
    step = np.searchsorted(events.indptr, np.flatnonzero((label >= 0).any(axis=1)), side="right")
    stop = int(max(world.allgather(int(step.max(initial=0)))))
    rows = slice(0, int(events.indptr[stop]))
    kept = events.events.take(rows)
    kept = replace(kept, columns=kept.columns | {LABEL: label[rows]})
    return replace(
        events, events=kept, indptr=events.indptr[: stop + 1], sizes=events.sizes[:stop],
        first_row=events.first_row[:stop], new_ends=events.new_ends[rows],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One plan of a step: batch ``at`` of ``batches``. writes: whether node memory moves through it; final: whether the
    step ends with it."""

    batches: Batches
    at: int
    step: int
    writes: bool
    final: bool


class NodeLabelLoader:
    """Makes the plans of one split's steps: plans of events, which move node memory on, and plans of questions.

    walk: the loader of all events; batches: the steps.
    """

    def __init__(self, walk: TemporalLoader, planning: Planning, batches: Batches, entries: list[PlannedBatch]):
        self.walk, self.batches, self.prefetch, self.sampler = walk, batches, walk.prefetch, planning.sampler
        self._planning, self._entries = planning, entries

    def start_epoch(self, epoch: int) -> None:
        """Keep the batches: they are the same in all epochs."""

    def plans(self, epoch: int, start: int = 0) -> Prefetcher[StepPlan]:
        """Collective. Make the plans of an epoch's steps from ``start`` on, as a context manager."""
        entries = [entry for entry in self._entries if entry.step >= start]

        def make(number: int) -> StepPlan:
            entry = entries[number]
            with self._planning.plan_timers("plan"):
                batches = entry.batches
                plan = self.sampler.plan(batches, no_negatives(batches), epoch, entry.at, entry.writes)
                return replace(plan, step=entry.step, final=entry.final)

        return Prefetcher(make, 0, len(entries), self.prefetch, self.sampler.plans_in_a_row(self.walk.batches, 0))

    def channels(self) -> list[Channel]:
        """List the channels that planning goes through."""
        return [self._planning.channel]


def interleave(events: Batches, questions: NodeQuestions, walks: bool, trains: bool) -> list[PlannedBatch]:
    """List the plans of a split: before each piece of the questions, the batches of events before its place, where
    node memory ``walks`` through events. In training a step ends with its last questions; elsewhere every plan is a
    last one, as nothing is summed over several."""
    entries: list[PlannedBatch] = []
    walked, steps = 0, questions.step.tolist()
    for number, (step, place) in enumerate(zip(steps, questions.place.tolist(), strict=True)):
        if walks:
            entries += [PlannedBatch(events, at, step, True, not trains) for at in range(walked, place)]
            walked = place
        is_last = number + 1 == len(steps) or steps[number + 1] > step
        entries.append(PlannedBatch(questions.pieces, number, step, False, is_last or not trains))
    return entries


def make_node_loaders(
    config: Any, graph: TemporalGraph, labels: NodeClasses, walks: bool, train: tuple[TemporalLoader, Planning],
    evaluation: tuple[TemporalLoader, Planning],
) -> dict[str, NodeLabelLoader]:  # fmt: skip
    """Collective. Make loaders by split. config: the run's; walks: whether the model has node memory; train,
    evaluation: loaders of all events, and how they plan."""
    loaders = {}
    for split in (*SPLITS, *([TRAIN_SPLIT] if config.eval.train_split else [])):
        walk, planning = train if split == SPLITS[0] else evaluation
        if split == SPLITS[0] and config.task.train_at == "events":
            batches = label_events(labels, walk.batches, graph.partition, graph.world, graph.channel)
            entries = [PlannedBatch(batches, step, step, True, True) for step in range(batches.num_steps)]
        else:
            questions = make_questions(labels, split, walk.batches, graph, config.train.batch_size)
            batches, entries = questions.steps, interleave(walk.batches, questions, walks, split == SPLITS[0])
        loaders[split] = NodeLabelLoader(walk, planning, batches, entries)
    return loaders
