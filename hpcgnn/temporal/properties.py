"""Learns labels of nodes at times (node property prediction of TGB): the steps of a split, and what executes them.

A step has labels of one time L, up to a batch of them, in the order of the file. Before the labels come plans of the
events since the label time before, in batches: they change node memory, and nothing is learned of them. So labels are
predicted from all events before L, and from none at L or later. Events between the last label of a split and the first
one of the next split come before the latter. A rank handles the labels of its own nodes. c labels of a step, K classes.

TGB's examples (examples/nodeproppred/*/tgn.py of github.com/shenyangHuang/TGB, 3b83e5c) also show a model events from L
on, up to the end of the batch that has the first event after L.

A model of earlier labels alone (``model.forecaster``) has plans of labels without events. It predicts the labels of L
from labels of earlier times, never from other ones of L.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.timers import Timers
from hpcgnn.comm.world import World
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.loop.session import Session, StepTask
from hpcgnn.native.dispatch import upload
from hpcgnn.task.losses import Loss
from hpcgnn.task.metrics import gains_of
from hpcgnn.temporal.batches import Batches, batches_of
from hpcgnn.temporal.graph import Events, TemporalPartition
from hpcgnn.temporal.loader import Planning, TemporalGraph
from hpcgnn.temporal.memory import NodeMemory
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


@dataclass(slots=True)
class ForecastPlan:
    """One step of a model of earlier labels. row [c] int64: local rows of the nodes; last [c, K]: their labels before,
    0 without one; common [K]: mean label of the label time before; label [c, K], time [c]: as in
    ``PropertyScores``, the time None of questions."""

    step: int
    epoch: int
    batch_size: int
    row: torch.Tensor
    last: torch.Tensor
    common: torch.Tensor
    label: torch.Tensor
    time: torch.Tensor | Any
    final: bool = True


class ForecastLoader:
    """Collective to create. Makes the plans of one split's steps for a model of earlier labels. batches: of labels."""

    prefetch = 0  # a plan is small, and collective

    def __init__(self, graph: TemporalGraph, labels: NodeLabels, split: str, batch_size: int, dtype: torch.dtype):
        """batch_size: of labels; dtype: of weights in plans."""
        self._graph, self._labels, self._dtype = graph, labels, dtype
        used = np.flatnonzero(labels.split == SPLITS.index(split))
        cuts = first_rows_at(labels.times, graph.partition, graph.world)
        self.batches, step_of_time = label_batches(labels, used, cuts, batch_size, split, graph)
        self._time_of_step = np.repeat(used, np.diff(step_of_time, append=self.batches.num_steps))
        self._by_time = np.argsort(labels.time, kind="stable")
        self._first_at = np.searchsorted(labels.time[self._by_time], np.arange(len(labels.times) + 1))
        self._common: tuple[int, torch.Tensor] | None = None

    def of_split(self, split: str, batch_size: int) -> ForecastLoader:
        """Collective. Make a loader of another split that plans as this one does."""
        return ForecastLoader(self._graph, self._labels, split, batch_size, self._dtype)

    def start_epoch(self, epoch: int) -> None:
        """Do nothing: all epochs have the same batches."""

    def plans(self, epoch: int = 0, start: int = 0, scored: bool = True) -> Prefetcher[ForecastPlan]:
        """Collective. Make the plans of an epoch's steps from ``start`` on, to be used as a context manager. scored:
        whether labels are looked at, which makes no difference to the plans."""
        return Prefetcher(lambda step: self._plan(epoch, step), start, self.batches.num_steps, 0)

    def _plan(self, epoch: int, step: int) -> ForecastPlan:
        chosen = self.batches.events.columns["place"][self.batches.at(step)]
        size = int(self.batches.sizes[step])
        return self.plan_of(chosen, int(self._time_of_step[step]), epoch, step, size)

    def plan_of(self, chosen: np.ndarray, place: int, epoch: int, step: int, size: int) -> ForecastPlan:
        """Collective. Make a plan of some of this rank's labels [c], all at the label time ``place``."""
        labels = self._labels
        return ForecastPlan(
            step, epoch, size, self.moved(labels.node[chosen]), self.moved(labels.before(chosen), self._dtype),
            self.common(place), self.moved(labels.dense(chosen)), self.moved(labels.time[chosen]),
        )  # fmt: skip

    def moved(self, values: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return values as a tensor on the device."""
        return upload(torch.from_numpy(values).to(dtype), self._graph.world.device)

    def at_time(self, place: int) -> np.ndarray:
        """Find this rank's labels at a label time, none at the time -1."""
        return self._by_time[self._first_at[place] : self._first_at[place + 1]] if place >= 0 else self._by_time[:0]

    def common(self, place: int) -> torch.Tensor:
        """Collective. Average the labels of all nodes at the label time before the time ``place``; 0 at the first."""
        if self._common is None or self._common[0] != place:
            total = self._graph.world.reduce_array(self._labels.dense(self.at_time(place - 1)).sum(0, dtype=np.float64))
            count = self._labels.counts[place - 1] if place else 1
            self._common = place, self.moved(total / count, self._dtype)
        return self._common[1]

    def channels(self) -> list[Channel]:
        """List the channels that planning goes through: none."""
        return []


class ForecastTask(StepTask):
    """Runs the plans of a model of earlier labels. States are in ``memory``; a step's gradient ends at the states that
    it reads, as in the authors' program. The loss is the sum over the labels of a step, divided by their number."""

    def __init__(self, loss: Loss, model: torch.nn.Module, memory: NodeMemory, timers: Timers):
        """loss: a sum over labels."""
        super().__init__()
        self.model, self.memory, self._sum, self._timers = model, memory, loss, timers

    def _set_mode(self, training: bool) -> None:
        self.model.train(training)

    def _train(self, plan: ForecastPlan) -> tuple[torch.Tensor | float, Any]:
        with self._timers("compute"):
            scores, state = self._forecast(plan)
            loss = self._sum(scores.output, scores.label) / max(1, plan.batch_size)
            loss.backward()
        self._write(plan, state.detach())
        return loss.detach(), PropertyScores(scores.output.detach(), scores.label, scores.time).detach()

    @torch.no_grad()
    def evaluate(self, plan: ForecastPlan) -> PropertyScores:
        """Score labels, then move the states of their nodes on."""
        self._set_mode(training=False)
        scores, state = self._forecast(plan)
        self._write(plan, state)
        return scores

    @torch.no_grad()
    def score(self, plan: ForecastPlan) -> PropertyScores:
        """Score labels; states stay unchanged."""
        self._set_mode(training=False)
        return self._forecast(plan)[0]

    def _forecast(self, plan: ForecastPlan) -> tuple[PropertyScores, torch.Tensor]:
        output, state = self.model(native.gather_rows(self.memory.table.state, plan.row), plan.last, plan.common)
        return PropertyScores(output, plan.label, plan.time), state

    def _write(self, plan: ForecastPlan, state: torch.Tensor) -> None:
        table = self.memory.table
        native.scatter_rows(table.state, plan.row, state)
        table.delivered[plan.row] = 1  # rows that a checkpoint has


def answer_labels(
    session: Session, queries: Events, answers_of: Callable[[Any], torch.Tensor]
) -> np.ndarray:  # fmt: skip
    """Collective. Move the states of a model of earlier labels through the label times, and answer each query [m] from
    all labels before its time. States begin where training left them; only for queries before that, they are formed
    again from the first label on. Returns ``answers_of`` the queries, [m, K]."""
    labels, world, table = session.goal.labels, session.world, session.memory.table
    loader, trained_end = session.loaders["test"], int((labels.split == 0).sum())
    place = np.searchsorted(labels.times, queries.time)
    counts = np.bincount(place, minlength=len(labels.times) + 1)
    is_asked = world.reduce_array(counts, "max") > 0
    answers, trained = np.zeros((len(queries), labels.num_classes)), [tensor.clone() for tensor in table.tensors()]
    if is_asked[:trained_end].any():
        session.memory.reset()
    for number in range(0 if is_asked[:trained_end].any() else trained_end, len(is_asked)):
        if number == trained_end:
            for tensor, before in zip(table.tensors(), trained, strict=True):
                tensor.copy_(before)
        if is_asked[number]:
            here = np.flatnonzero(place == number)
            answers[here] = _answer_at(session, queries.src[here], number, answers_of)
        if number < len(labels.times):
            session.watchdog.at("replay the labels", number)
            session.task.evaluate(loader.plan_of(loader.at_time(number), number, 0, number, 1))
    return answers


def _answer_at(
    session: Session, node: np.ndarray, place: int, answers_of: Callable[[Any], torch.Tensor]
) -> np.ndarray:  # fmt: skip
    """Collective. Answer for global ids [c] at the owners of these nodes, from labels before the label time ``place``;
    returns [c, K]."""
    labels, loader = session.goal.labels, session.loaders["test"]
    unique, inverse = np.unique(node, return_inverse=True)
    route = Route.plan(session.partition.book, unique, session.graph.channel)
    row = route.served.cpu().numpy()
    last = loader.moved(labels.newest_before(row, np.full(len(row), place)), session.dtype)
    plan = ForecastPlan(place, 0, 1, loader.moved(row), last, loader.common(place), torch.zeros_like(last), None)
    (answers,) = route.pull_served(answers_of(plan))
    return answers.cpu().numpy()[inverse]


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
