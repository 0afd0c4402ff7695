"""Goals: what a run learns, on graphs of all kinds, and what it collects to measure its results.

Collected are the scores of a split, or of an epoch's training steps; metrics are made of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn.comm.world import World
from hpcgnn.task.losses import Loss
from hpcgnn.task.metrics import NEW_ENDS, Standing, class_metrics, is_lower_better, link_metrics, ranking_metrics

Measure = Callable[[dict[str, np.ndarray], World], dict[str, float]]
SplitMeasure = Callable[[dict[str, np.ndarray], Any, World], dict[str, float]]


class StepScores(Protocol):
    """The scores that a step reports for its b roots."""

    def detach(self) -> StepScores:
        """Return the scores without their gradients."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the scores by name, one row a root: [b, ...]."""


class Collected:
    """Collects the scores of this rank's roots of a split, step after step.

    measure: collective, makes metrics from all scores by name and the split's batches. ranking: a step has many
    negatives; only the rank of every positive among them is kept, as ``rank``.
    """

    def __init__(self, measure: SplitMeasure, ranking: bool = False):
        self._measure, self._ranking = measure, ranking
        self._steps: list[dict[str, np.ndarray]] = []
        self._pending: list[np.ndarray] = []
        self._standing: Standing | None = None

    def add(self, plan: Any, scores: StepScores) -> None:
        """Add a plan's scores. The negatives of a step may come in several plans, of which the last is final."""
        self.take(scores.arrays(), plan.final)

    def take(self, columns: dict[str, np.ndarray], final: bool = True) -> None:
        """Add the scores of a step, by name, one row a root; of its negatives a piece, the last one where ``final``."""
        if self._ranking:
            self._rank(final, **columns)
        elif not final:
            self._pending.append(columns["negative"])
        else:
            if self._pending:
                columns = columns | {"negative": np.concatenate([*self._pending, columns["negative"]], axis=1)}
                self._pending.clear()
            self._steps.append(columns)

    def _rank(self, final: bool, positive: np.ndarray, negative: np.ndarray, count: np.ndarray | None = None) -> None:
        self._standing = self._standing or Standing(positive, count)
        self._standing.add(negative)
        if final:
            self._steps.append({"rank": self._standing.ranks()})
            self._standing = None

    def columns(self) -> dict[str, np.ndarray]:
        """Return all scores by name, one row a root; none where there was no step."""
        if not self._steps:
            return {}
        return {name: np.concatenate([step[name] for step in self._steps]) for name in self._steps[0]}

    def metrics(self, batches: Any, world: World) -> dict[str, float]:
        """Collective. Compute the metrics of all scores."""
        return self._measure(self.columns(), batches, world)


def measure_events(scores: dict[str, np.ndarray], batches: Any, world: World) -> dict[str, float]:
    """Collective. Compute the metrics of events against negatives, or, where they are ranked among many, of their
    ranks; of all events, of the inductive ones, and of these with one new end and with two, as far as there are such
    events."""
    inductive = batches.new_ends > 0
    if "rank" in scores:
        metrics = ranking_metrics(scores["rank"], world, inductive)
    else:
        metrics = link_metrics(scores["positive"], scores["negative"], world, inductive)
    for prefix, count in NEW_ENDS.items():
        chosen = batches.new_ends == count
        if world.any(bool(chosen.any())):
            found = measure_links({name: values[chosen] for name, values in scores.items()}, world)
            metrics |= {prefix + name: value for name, value in found.items()}
    return metrics


def concatenate(scores: Sequence[StepScores]) -> dict[str, np.ndarray]:
    """Join the scores of several steps, by name, one row a root."""
    steps = [step.arrays() for step in scores]
    return {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}


def measure_links(scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
    """Collective. Compute the metrics of link scores, positive [n] and negative [n, k], or of ranks [n]."""
    if "rank" in scores:
        return ranking_metrics(scores["rank"], world)
    return link_metrics(scores["positive"], scores["negative"], world)


def measure_classes(scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
    """Collective. Compute the metrics of classes: output [n, C], label [n] or, several a node, [n, C]."""
    return class_metrics(scores["output"], scores["label"], world)


class TrainScores:
    """Collects the scores of an epoch's training steps, which stay at the ranks that computed them.

    measure: makes metrics of scores by name, of which those called ``names`` are reported.
    """

    def __init__(self, world: World, names: tuple[str, ...], measure: Measure):
        self._world, self._names, self._measure = world, names, measure
        self.clear()

    def clear(self) -> None:
        """Forget all scores: an epoch begins."""
        self._steps: list[StepScores] = []
        self._columns: dict[str, np.ndarray] = {}

    def add(self, scores: StepScores) -> None:
        """Add this rank's scores of one step."""
        self._steps.append(scores.detach())

    def columns(self) -> dict[str, np.ndarray]:
        """Return this rank's scores so far by name, such as positive [n] and negative [n, k] in float32; none where
        there was no step."""
        if self._steps:
            for name, values in concatenate(self._steps).items():
                values = values.astype(np.float32) if values.dtype == np.float64 else values
                self._columns[name] = np.concatenate([self._columns.get(name, values[:0]), values])
            self._steps = []
        return self._columns

    def restore(self, columns: dict[str, torch.Tensor]) -> None:
        """Take over this rank's share of the scores of a checkpoint."""
        self.clear()
        self._columns = {name: values.numpy() for name, values in columns.items()}

    def metrics(self) -> dict[str, float]:
        """Collective. Compute the metrics of the epoch so far, such as train_ap and train_auc; NaN without scores."""
        columns = self.columns()
        metrics = self._measure(columns, self._world) if columns else {}
        return {f"train_{name}": metrics.get(name, math.nan) for name in self._names}


class Goal(ABC):
    """A task: its loss, scores and metrics. num_outputs: columns that the model computes for it; sum: the loss, a sum
    over the roots of a rank."""

    num_outputs: int
    sum: Loss

    def extend(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model with the parts that the goal adds to it, such as a decoder."""
        return model

    @abstractmethod
    def collector(self) -> Collected:
        """Make the object that collects a split's scores and measures them."""

    @abstractmethod
    def metric_names(self) -> tuple[str, ...]:
        """Names of a split's metrics."""

    def monitored(self) -> str:
        """Name of the metric that decides which epoch is best, unless ``train.monitor`` names another."""
        return self.metric_names()[0]

    def wants_lowest(self, metric: str) -> bool:
        """Whether the lowest value of a metric is the best."""
        return is_lower_better(metric)

    @abstractmethod
    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Names of the metrics of training scores, and the function that makes them, as ``TrainScores`` takes both."""

    @abstractmethod
    def describe(self) -> str:
        """Describe the task in a few words."""

    def protocol(self) -> dict[str, str]:
        """Describe how evaluation computes its scores, for the report of ``hpcgnn.evaluate``."""
        return {}
