"""Learns labels of nodes at times (node property prediction of TGB): the steps of a split, and what executes them.

A step has labels of one time L, up to a batch of them, in the order of the file. Before the labels come plans of the
events since the label time before, in batches: they change node memory, and nothing is learned of them. So labels are
predicted from all events before L, and from none at L or later. Events between the last label of a split and the first
one of the next split come before the latter. A rank handles the labels of its own nodes. c labels of a step, K classes.

TGB's examples (examples/nodeproppred/*/tgn.py of github.com/shenyangHuang/TGB, 3b83e5c) also show a model events from L
on, up to the end of the batch that has the first event after L.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.native.dispatch import upload
from hpcgnn.task.losses import Loss
from hpcgnn.task.metrics import gains_of
from hpcgnn.temporal.batches import Batches, batches_of
from hpcgnn.temporal.graph import Events, TemporalPartition
from hpcgnn.temporal.loader import Planning, TemporalGraph
from hpcgnn.temporal.negatives import no_negatives
from hpcgnn.temporal.node_labels import NodeLabels
from hpcgnn.temporal.plan import StepPlan
from hpcgnn.temporal.sampler import TemporalSampler
from hpcgnn.temporal.step import TemporalLabelTask

LABEL, TIME = "label", "label_time"  # columns of plans of labels


@dataclass(slots=True)
class PropertyScores:
    """Scores of a step: output [c, K] logits, label [c, K] weights, time [c] places of the labels' times, None of
    questions. gain [c]: in place of the first two, where only metrics are made of the scores."""

    output: torch.Tensor | Any
    label: torch.Tensor | Any
    time: torch.Tensor | Any
    gain: np.ndarray | Any = None

    @classmethod
    def none(cls) -> PropertyScores:
        """Make the scores of a plan of events."""
        return cls(None, None, torch.empty(0, dtype=torch.int64), np.empty(0))

    def detach(self) -> PropertyScores:
        """Return the gains, which are small beside outputs and labels."""
        gain = gains_of(self.output, self.label) if self.gain is None else self.gain
        return PropertyScores(None, None, self.time, gain)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return gain [c] float64 and time [c] int64."""
        return {"gain": self.detach().gain, "time": self.time.cpu().numpy()}


class TemporalPropertyTask(TemporalLabelTask):
    """Scores labels of nodes at times. The loss is the sum over the labels of a step, divided by their number."""

    def __init__(self, loss: Loss, *shared, **options):
        """loss: a sum over labels; shared, options: as TemporalTask. The model's decoder is a Head."""
        super().__init__("node", loss, *shared, **options)

    def _train(self, plan: StepPlan) -> tuple[torch.Tensor | float, Any]:
        if LABEL in plan.columns:
            return super()._train(plan)
        with torch.no_grad():
            reading = self._read(plan)
            is_sent = plan.write is not None and self.model.config.message_from != "memory"
            parts = self._embed(plan, reading)[1] if is_sent else None
        self._write(plan, reading, parts)
        return 0.0, PropertyScores.none()

    @torch.no_grad()
    def score(self, plan: StepPlan) -> Any:
        """Collective. Score labels; a plan of events is executed."""
        return super().score(plan) if LABEL in plan.columns else self.evaluate(plan)

    def _score(self, plan: StepPlan, embedding: torch.Tensor) -> Any:
        if LABEL not in plan.columns:
            return PropertyScores.none()
        scores = super()._score(plan, embedding)
        return PropertyScores(scores.output, scores.label, plan.columns.get(TIME))


class PropertyLoader:
    """Collective to create. Makes the plans of one split's steps. batches: of labels; edges [E + 1]: rows between which
    the batches of events are."""

    def __init__(
        self, graph: TemporalGraph, labels: NodeLabels, split: str, batch_size: int, planning: Planning, prefetch: int
    ):  # fmt: skip
        """batch_size: of labels, and of the events between them."""
        self._graph, self._labels, self._planning, self.prefetch = graph, labels, planning, prefetch
        world, partition = graph.world, graph.partition
        used = np.flatnonzero(labels.split == SPLITS.index(split))
        cuts = first_rows_at(labels.times, partition, world)
        begin = cuts[used[0] - 1] if len(used) and used[0] else 0
        self.batches, step_of_time = label_batches(labels, used, cuts, batch_size, split, graph)
        ends = cuts[used]
        edges = np.unique(np.concatenate([[begin], ends, *(
            np.arange(first, last, batch_size) for first, last in zip(np.append(begin, ends[:-1]), ends, strict=True)
        )])) if len(used) else np.zeros(1, np.int64)  # fmt: skip
        self.edges = edges.astype(np.int64)
        self._events = batches_of(f"events of {split}", partition, self.edges, world, graph.channel)
        # Plans in order: of each step those of its events, then that of its labels.
        before = np.searchsorted(edges, ends)
        counts = np.bincount(step_of_time, np.diff(before, prepend=0), self.batches.num_steps).astype(np.int64)
        self._first_plan = np.concatenate(([0], np.cumsum(counts + 1)))
        self._first_event = np.concatenate(([0], np.cumsum(counts)))

    def __len__(self) -> int:
        """Count the steps of an epoch, the same on all ranks."""
        return self.batches.num_steps

    @property
    def sampler(self) -> TemporalSampler:
        """The sampler that makes the plans."""
        return self._planning.sampler

    def of_split(self, split: str, batch_size: int) -> PropertyLoader:
        """Collective. Make a loader of another split that plans as this one does."""
        return PropertyLoader(self._graph, self._labels, split, batch_size, self._planning, self.prefetch)

    def start_epoch(self, epoch: int) -> None:
        """Do nothing: all epochs have the same batches."""

    def plans(self, epoch: int = 0, start: int = 0, scored: bool = True) -> Prefetcher[StepPlan]:
        """Collective. Make the plans of an epoch's steps from ``start`` on, to be used as a context manager. The last
        plan of a step has its labels; the others have events, and only change node memory. scored: whether labels are
        looked at, which makes no difference to the plans."""
        sampler, none = self.sampler, (no_negatives(self._events), no_negatives(self.batches))

        def make(number: int) -> StepPlan:
            step = int(np.searchsorted(self._first_plan, number, side="right")) - 1
            with self._planning.plan_timers("plan"):
                if number + 1 == self._first_plan[step + 1]:
                    return self._with_labels(sampler.plan(self.batches, none[1], epoch, step, write=False))
                event_step = int(self._first_event[step] + number - self._first_plan[step])
                plan = sampler.plan(self._events, none[0], epoch, event_step)
            plan.step, plan.final = step, False
            return plan

        in_a_row = sampler.plans_in_a_row(self._events, 0)
        first, last = int(self._first_plan[start]), int(self._first_plan[-1])
        return Prefetcher(make, first, last, self.prefetch, in_a_row)

    def _with_labels(self, plan: StepPlan) -> StepPlan:
        at = self.batches.events.columns["place"][self.batches.at(plan.step)]
        device, labels = plan.event_feature.device, self._labels
        plan.columns[LABEL] = upload(torch.from_numpy(labels.dense(at)), device)
        plan.columns[TIME] = upload(torch.from_numpy(labels.time[at]), device)
        plan.final = True
        return plan

    def channels(self) -> list[Channel]:
        """List the channels that planning goes through."""
        return [self._planning.channel]


def first_rows_at(times: np.ndarray, partition: TemporalPartition, world: World) -> np.ndarray:
    """Collective. Find the row of the first event at each of some times [T] or later, int64."""
    return world.reduce_array(np.searchsorted(partition.events.time, times).astype(np.int64))


def label_batches(
    labels: NodeLabels, used: np.ndarray, cuts: np.ndarray, batch_size: int, split: str, graph: TemporalGraph
) -> tuple[Batches, np.ndarray]:  # fmt: skip
    """Make the batches of the labels of some times, in the form of events of their nodes with themselves, and the first
    step of each time. used: places of the times; cuts [T]: rows of the first events that are not before them."""
    first = np.concatenate(([0], np.cumsum(labels.counts)))
    edges = [np.arange(first[place], first[place + 1], batch_size) for place in used]
    step_of_time = np.cumsum([0, *map(len, edges)])[:-1].astype(np.int64)
    begins = np.concatenate([np.empty(0, np.int64), *edges]).astype(np.int64)
    ends = np.append(begins[1:], first[used[-1] + 1] if len(used) else 0)[: len(begins)]
    place = np.flatnonzero(np.isin(labels.time, used))
    place = place[np.argsort(labels.row[place], kind="stable")]
    node = graph.partition.book.local_to_global(graph.world.rank)[labels.node[place]]
    events = Events(labels.row[place], node, node, labels.times[labels.time[place]], {"place": place})
    indptr = np.searchsorted(labels.row[place], np.append(begins, ends[-1:]))
    first_row = np.repeat(cuts[used], [len(edge) for edge in edges]).astype(np.int64)
    return Batches(split, events, indptr, ends - begins, first_row, np.zeros(len(place), np.int8)), step_of_time
