"""Collects the scores of a split, or of an epoch's training steps, and makes metrics of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn.comm.world import World
from hpcgnn.task.labels import LabelScores, label_metrics
from hpcgnn.task.links import Scores
from hpcgnn.task.metrics import link_metrics, node_metrics, ranking_metrics, ranks_of


class StepScores(Protocol):
    """What a step says of its b events."""

    def detach(self) -> StepScores:
        """Without their gradients."""

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, one row an event: [b, ...]."""


class Scored(Protocol):
    """Scores of this rank's events of a split."""

    def metrics(self, batches, world: World) -> dict[str, float]:
        """Collective. Metrics of all, those of ``batches``."""


class Collected(Scored, Protocol):
    """Scores of this rank's events of a split, step after step."""

    def add(self, plan: Any, scores: Any) -> None:
        """Take a plan's scores."""


@dataclass(slots=True)
class LinkCollected:
    """positive [b]; negative [b, k], or, for one-vs-many, only the ranks [b] of the events among their negatives."""

    ranking: bool
    positive: list[np.ndarray] = field(default_factory=list)
    negative: list[np.ndarray] = field(default_factory=list)
    ranks: list[np.ndarray] = field(default_factory=list)
    _pending: list[np.ndarray] = field(default_factory=list)

    def add(self, plan: Any, scores: Scores) -> None:
        """Take a plan's scores; the negatives of a step may come in several plans, of which the last is final."""
        positive, negative = scores.arrays().values()
        self._pending.append(negative)
        if not plan.final:
            return
        self.take(positive, np.concatenate(self._pending, axis=1))
        self._pending.clear()

    def take(self, positive: np.ndarray, negative: np.ndarray) -> None:
        """Scores of a whole step's events [b] and of all their negatives [b, k]."""
        self.positive.append(positive)
        if self.ranking:
            self.ranks.append(ranks_of(positive, negative))
        else:
            self.negative.append(negative)

    def metrics(self, batches: Any, world: World) -> dict[str, float]:
        """Collective. AP and AUC, or MRR and hits@10 for one-vs-many."""
        if self.ranking:
            return ranking_metrics(np.concatenate(self.ranks), batches.inductive, world)
        return link_metrics(np.concatenate(self.positive), np.concatenate(self.negative), batches.inductive, world)


@dataclass(slots=True)
class LabelCollected:
    """output [b, C] and label [b]; measure: the metrics of all of them."""

    output: list[np.ndarray] = field(default_factory=list)
    label: list[np.ndarray] = field(default_factory=list)
    measure: Callable[[np.ndarray, np.ndarray, World], dict[str, float]] = label_metrics

    def add(self, plan: Any, scores: LabelScores) -> None:
        """Take a plan's scores."""
        output, label = scores.arrays().values()
        self.output.append(output)
        self.label.append(label)

    def metrics(self, batches: object, world: World) -> dict[str, float]:
        """Collective. Metrics of the labelled events or nodes."""
        return self.measure(np.concatenate(self.output), np.concatenate(self.label), world)


def concatenate(scores: Sequence[StepScores]) -> dict[str, np.ndarray]:
    """The steps' scores by name, one row an event."""
    steps = [step.arrays() for step in scores]
    return {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}


def split_scores(scores: list[Scores]) -> tuple[np.ndarray, np.ndarray]:
    """The steps' scores of links: positive [b], negative [b, k], float64."""
    positive, negative = concatenate(scores).values()
    return positive, negative


PREFIX = "scores."
LINK_NAMES = ("ap", "auc")

Measure = Callable[[dict[str, np.ndarray], World], dict[str, float]]


def measure_links(scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
    """Collective. Metrics of link scores, positive [n] and negative [n, k]."""
    return link_metrics(scores["positive"], scores["negative"], np.zeros(len(scores["positive"]), bool), world)


def measure_nodes(scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
    """Collective. As ``measure_labels``, of the nodes of static graphs."""
    return node_metrics(scores["output"], scores["label"], world)


def measure_labels(scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
    """Collective. Metrics of label scores, output [n, C] and label [n]."""
    return label_metrics(scores["output"], scores["label"], world)


class TrainScores:
    """Scores of an epoch's steps so far, at the ranks that computed them until ``gather`` moves them to rank 0.

    measure: the metrics of scores by name, of which ``names`` are reported.
    """

    def __init__(self, world: World, names: tuple[str, ...] = LINK_NAMES, measure: Measure = measure_links):
        self._world, self._names, self._measure = world, names, measure
        self.clear()

    def clear(self) -> None:
        """An epoch begins."""
        self._steps: list[StepScores] = []
        self._gathered: dict[str, np.ndarray] = {}

    def add(self, scores: StepScores) -> None:
        """This rank's scores of one step."""
        self._steps.append(scores.detach())

    def gather(self) -> dict[str, torch.Tensor]:
        """Collective. All scores so far, such as positive [n] and negative [n, k] in float32, on rank 0; none
        elsewhere."""
        if self._steps:
            for name, values in concatenate(self._steps).items():
                values = values.astype(np.float32) if values.dtype == np.float64 else values
                everyone = self._world.gather_rows(values)
                everyone = values[:0] if everyone is None else everyone
                before = self._gathered.get(name, everyone[:0])
                self._gathered[name] = np.concatenate([before, everyone])
            self._steps = []
        return {PREFIX + name: torch.from_numpy(values) for name, values in self._gathered.items()}

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Scores from a checkpoint, read by every rank; rank 0 keeps them."""
        self.clear()
        end = None if self._world.rank == 0 else 0
        found = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
        self._gathered = {name: value.numpy()[:end] for name, value in found.items()}

    def metrics(self) -> dict[str, float]:
        """Collective. Metrics of the epoch so far, such as train_ap and train_auc; NaN without scores."""
        self.gather()
        found = self._measure(self._gathered, self._world) if self._gathered else {}
        return {f"train_{name}": found.get(name, math.nan) for name in self._names}
