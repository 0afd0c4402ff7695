"""Several tasks on one static graph that share a model's layers (multi-task learning), as the run loop sees one task.

A step takes a mini-batch of each task. Epochs are the main task's; a further task goes through its own training seeds
again and again, so that its place follows from the number of the step alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.loop.schema import Schema
from hpcgnn.loop.session import Session, StepTask
from hpcgnn.native.random import MOST_EPOCHS
from hpcgnn.static.config import StaticConfig, of_task
from hpcgnn.static.goals import NodeGoal, StaticGoal, goal_of_edges
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.learned_edges import find_edges_of_tasks
from hpcgnn.static.loader import SeedLoader
from hpcgnn.static.plan import GraphPlan
from hpcgnn.static.sampling.seeds import SeedBatches
from hpcgnn.static.schema import values_by_task
from hpcgnn.static.step import GraphTask
from hpcgnn.task.goal import Collected, Measure


@dataclass(frozen=True, slots=True)
class JointPlan:
    """The plans of a step by task, the main one's first; None for a task that has no batch in it. Everything else is of
    the first one."""

    parts: tuple[GraphPlan | None, ...]
    final: bool = True

    @property
    def _first(self) -> GraphPlan:
        return next(part for part in self.parts if part is not None)

    @property
    def step(self) -> int:
        """Number of the step in the epoch."""
        return self._first.step

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._first.epoch

    @property
    def batch_size(self) -> int:
        """Number of seeds of all ranks."""
        return self._first.batch_size


class FurtherPlans:
    """Plans of a further task for the steps ``first`` to ``last`` - 1 of a run: step g has batch g modulo S of its
    epoch g div S, where S is its number of steps. Collective to iterate."""

    def __init__(self, loader: SeedLoader, first: int, last: int):
        self._loader, self._next, self._last = loader, first, last
        self._plans: Prefetcher[GraphPlan] | None = None
        self._iterator: Iterator[GraphPlan] = iter(())

    def __iter__(self) -> FurtherPlans:
        return self

    def __next__(self) -> GraphPlan:
        if self._next == self._last:
            raise StopIteration
        num_steps = len(self._loader)
        epoch, step = divmod(self._next, num_steps)
        if self._plans is None or step == 0:
            self._loader.start_epoch(epoch)
            stop = min(num_steps, step + self._last - self._next)
            self._plans = self._loader.plans(epoch, step, stop)
            self._iterator = iter(self._plans)
        self._next += 1
        return next(self._iterator)

    def __exit__(self, *error) -> None:
        if self._plans is not None:
            self._plans.__exit__(*error)


Stream = Prefetcher[GraphPlan] | FurtherPlans


class JointPlans:
    """The plans of consecutive steps, from the plans of each task; None for a task without any."""

    def __init__(self, streams: Sequence[Stream | None]):
        self._streams = streams

    def __iter__(self) -> Iterator[JointPlan]:
        return map(JointPlan, zip_longest(*(stream or () for stream in self._streams)))

    def __enter__(self) -> JointPlans:
        return self

    def __exit__(self, *error) -> None:
        for stream in self._streams:
            if stream is not None:
                stream.__exit__(*error)


@dataclass(frozen=True, slots=True)
class JointBatches:
    """The batches of a split by task."""

    parts: tuple[SeedBatches, ...]

    @property
    def num_steps(self) -> int:
        """The largest number of steps of a task."""
        return max(part.num_steps for part in self.parts)


class JointLoader:
    """Makes the training plans of several tasks. loaders: by task, the main one's first; is_learned: whether a task
    takes part. Other attributes are those of the main task's loader."""

    def __init__(self, loaders: Sequence[SeedLoader], is_learned: Sequence[bool]):
        self.loaders, self._is_learned = loaders, is_learned

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loaders[0], name)

    def start_epoch(self, epoch: int) -> None:
        """Collective. Make the batches of an epoch of the main task."""
        self.loaders[0].start_epoch(epoch)

    def plans(self, epoch: int, start: int = 0) -> JointPlans:
        """Collective. Make the plans of an epoch's steps from ``start`` on."""
        main, *others = self.loaders
        first = epoch * len(main)
        plans: list[Stream | None] = [main.plans(epoch, start)]
        for loader, is_learned in zip(others, self._is_learned[1:], strict=True):
            plans.append(FurtherPlans(loader, first + start, first + len(main)) if is_learned else None)
        return JointPlans(plans)

    def channels(self) -> list[Channel]:
        """List the channels that planning goes through."""
        return [channel for loader in self.loaders for channel in loader.channels()]


class JointSplitLoader(JointLoader):
    """Makes the plans of a split of several tasks: step by step, of each task that has so many."""

    def __init__(self, loaders: Sequence[SeedLoader]):
        super().__init__(loaders, [True] * len(loaders))

    @property
    def batches(self) -> JointBatches:
        """The batches of all tasks."""
        return JointBatches(tuple(loader.batches for loader in self.loaders))

    def plans(self, epoch: int, start: int = 0) -> JointPlans:
        return JointPlans([loader.plans(epoch, start) for loader in self.loaders])


class JointTask(StepTask):
    """Executes the plans of several tasks: backward passes one after the other add up the gradients, and learnable node
    embeddings move once."""

    def __init__(self, tasks: Sequence[GraphTask]):
        super().__init__()
        self.tasks = tasks

    def _set_mode(self, training: bool) -> None:
        self.tasks[0].model.train(training)

    def _train(self, plan: JointPlan) -> tuple[torch.Tensor, Any]:
        pairs = zip(self.tasks, plan.parts, strict=True)
        learned = [task.learn(part) for task, part in pairs if part is not None]
        self.tasks[0].move_rows([gradients for _, _, gradients in learned])
        total: Any = sum(loss for loss, _, _ in learned)
        return total, learned[0][1]

    def score(self, plan: JointPlan) -> tuple[Any, ...]:
        """Collective. Score the seeds of one step by task; None for a task that has no batch in it."""
        pairs = zip(self.tasks, plan.parts, strict=True)
        return tuple(None if part is None else task.score(part) for task, part in pairs)

    evaluate = score


class JointCollected(Collected):
    """Collects the scores of several tasks on a split. columns: the main task's alone."""

    def __init__(self, goal: JointGoal, parts: Sequence[Collected]):
        self._goal, self._parts = goal, parts

    def add(self, plan: JointPlan, scores: Any) -> None:
        """Add a step's scores of each task that has a batch in it."""
        for collected, part, found in zip(self._parts, plan.parts, scores, strict=True):
            if part is not None:
                collected.add(part, found)

    def columns(self) -> dict[str, np.ndarray]:
        return self._parts[0].columns()

    def metrics(self, batches: JointBatches, world: World) -> dict[str, float]:
        """Collective. Compute the metrics of all tasks; NaN for a task without seeds in the split."""
        metrics: dict[str, float] = {}
        pairs = zip(self._goal.by_task.items(), self._parts, batches.parts, strict=True)
        for (name, goal), collected, part in pairs:
            found = collected.metrics(part, world) if part.num_steps else dict.fromkeys(goal.metric_names(), math.nan)
            metrics |= {named(name, metric): value for metric, value in found.items()}
        return metrics


def named(task: str, metric: str) -> str:
    """Name a metric of a task; the main task has an empty name."""
    return f"{task}_{metric}" if task else metric


class JointGoal(StaticGoal):
    """Several tasks, whose heads read the outputs of one model. goals: by name, the main one's empty and first;
    num_outputs: width of the model's outputs."""

    def __init__(self, goals: dict[str, StaticGoal], config: StaticConfig, test_messages: GraphPartition | None):
        self._goals, self.pools, self.sum = goals, goals[""].pools, goals[""].sum
        self.num_outputs, self.test_messages = config.model.hidden, test_messages

    @property
    def by_task(self) -> dict[str, StaticGoal]:
        return self._goals

    def make_head(self) -> torch.nn.Module:
        self.head = torch.nn.ModuleList(goal.make_head() for goal in self._goals.values())
        return self.head

    def extend(self, model: torch.nn.Module) -> torch.nn.Module:
        """Add the heads of all tasks to the model."""
        model.heads = self.make_head()
        return model

    def task(self, *shared) -> JointTask:
        tasks: list[Any] = [goal.task(*shared) for goal in self._goals.values()]
        return JointTask(tasks)

    def collector(self) -> JointCollected:
        """Collect what each task collects."""
        return JointCollected(self, [goal.collector() for goal in self._goals.values()])

    def exact_scores(
        self, outputs: torch.Tensor, batches: Any, graph: StaticGraph, between: Callable[[], None]
    ) -> JointCollected:
        """Collective. Score a split of each task, one after the other; tasks without seeds in it are left out."""
        return JointCollected(self, [
            goal.exact_scores(outputs, part, graph, between) if part.num_steps else goal.collector()
            for goal, part in zip(self._goals.values(), batches.parts, strict=True)
        ])  # fmt: skip

    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics of all tasks, the main one's first."""
        return tuple(named(name, metric) for name, goal in self._goals.items() for metric in goal.metric_names())

    def wants_lowest(self, metric: str) -> bool:
        for name, goal in self._goals.items():
            for own in goal.metric_names():
                if metric == named(name, own):
                    return goal.wants_lowest(own)
        return False

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Measure training of the main task."""
        return self._goals[""].train_measure()

    def describe(self) -> str:
        return self._goals[""].describe()


def make_joint_goal(
    config: StaticConfig, partition: GraphPartition, world: World, channel: Channel, edge_types: dict[str, int]
) -> tuple[JointGoal, GraphPartition]:
    """Collective. Make the goals of all tasks, and the graph whose edges carry messages; edge_types: by task, the least
    number of types of its edges."""
    configs, goals = config.by_task, {}
    edges, messages, test_messages = find_edges_of_tasks(configs, partition, world, channel, edge_types)
    for name, own in configs.items():
        goal: StaticGoal
        with of_task(name):
            if name in edges:
                goal = goal_of_edges(own, edges[name], partition, world, channel)
            else:
                goal = NodeGoal(own, partition, world, channel)
        if name:
            goal.sum = partial(_weighted, config.task.further[name].weight, goal.sum)
        goals[name] = goal
    return JointGoal(goals, config, test_messages), messages


def _weighted(weight: float, loss: Callable[..., torch.Tensor], *scores: torch.Tensor) -> torch.Tensor:
    return weight * loss(*scores)


def join_loaders(
    config: StaticConfig, by_task: dict[str, dict[str, SeedLoader]], trains: bool
) -> dict[str, JointLoader]:  # fmt: skip
    """Make the loaders of all tasks by split from the loaders of each. Raises DistributedError, on all ranks, if the
    run ``trains``, for a task without training seeds, or with so few that its epochs cannot be counted."""
    is_learned = [True, *(task.weight > 0 for task in config.task.further.values())]
    training = {name: loaders["train"] for name, loaders in by_task.items()}
    total = config.train.epochs * len(training[""])
    for (name, loader), learned in zip(training.items(), is_learned, strict=True):
        if not (trains and name and learned and total):
            continue
        with of_task(name):
            if len(loader) == 0:
                raise DistributedError("there are no seeds to train on, or less than a batch", user_error=True)
            if total > MOST_EPOCHS * len(loader):
                raise DistributedError(
                    f"{total} steps would pass over its {len(loader)} batches more than {MOST_EPOCHS} times, the limit "
                    "of the random numbers: lower its batch_size",
                    user_error=True,
                )
    splits = {split: [loaders[split] for loaders in by_task.values()] for split in by_task[""]}
    joint: dict[str, JointLoader] = {"train": JointLoader(splits.pop("train"), is_learned)}
    return joint | {split: JointSplitLoader(loaders) for split, loaders in splits.items()}


def one_task(session: Session, name: str) -> Session:
    """Return the session of one of a run's tasks, empty: the main one, over the same model."""
    if not session.config.task.further:
        return session
    goals, values = session.goal.by_task, values_by_task(session.schema.values)
    number = list(goals).index(name)
    loaders = {split: loader.loaders[number] for split, loader in session.loaders.items()}
    return replace(
        session, config=session.config.of_task(name), goal=goals[name], loaders=loaders,
        task=session.task.tasks[number], schema=Schema(session.schema.needs, values[name]),
    )  # fmt: skip
