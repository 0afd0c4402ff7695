"""Collects the scores of a split, or of an epoch's training steps, and makes metrics of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn.comm.world import World
from hpcgnn.task.labels import label_metrics
from hpcgnn.task.metrics import link_metrics, node_metrics, ranking_metrics, ranks_of

Measure = Callable[[dict[str, np.ndarray], World], dict[str, float]]
SplitMeasure = Callable[[dict[str, np.ndarray], Any, World], dict[str, float]]


class StepScores(Protocol):
    """What a step reports of its b roots."""

    def detach(self) -> StepScores:
        """Without their gradients."""

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, one row a root: [b, ...]."""


class Collected:
    """Scores of this rank's roots of a split, step after step.

    measure: collective, metrics of all scores by name, of ``batches``; ranking: each step's negatives are many, and
    only the ranks of positives among them are kept, as ``rank``.
    """

    def __init__(self, measure: SplitMeasure, ranking: bool = False):
        self._measure, self._ranking = measure, ranking
        self._steps: list[dict[str, np.ndarray]] = []
        self._pending: list[np.ndarray] = []

    def add(self, plan: Any, scores: StepScores) -> None:
        """Take a plan's scores. The negatives of a step may come in several plans, of which the last is final."""
        columns = scores.arrays()
        if not plan.final:
            self._pending.append(columns["negative"])
            return
        if self._pending:
            columns["negative"] = np.concatenate([*self._pending, columns["negative"]], axis=1)
            self._pending.clear()
        self.take(columns)

    def take(self, columns: dict[str, np.ndarray]) -> None:
        """Take a whole step's scores, by name, one row a root."""
        self._steps.append({"rank": ranks_of(**columns)} if self._ranking else columns)

    def columns(self) -> dict[str, np.ndarray]:
        """All scores by name, one row a root."""
        return {name: np.concatenate([step[name] for step in self._steps]) for name in self._steps[0]}

    def metrics(self, batches: Any, world: World) -> dict[str, float]:
        """Collective. Metrics of all."""
        return self._measure(self.columns(), batches, world)


def measure_events(scores: dict[str, np.ndarray], batches: Any, world: World) -> dict[str, float]:
    """Collective. AP and AUC of events, or, ranked among many negatives, MRR and hits@10; of inductive ones too."""
    if "rank" in scores:
        return ranking_metrics(scores["rank"], batches.inductive, world)
    return link_metrics(scores["positive"], scores["negative"], batches.inductive, world)


def concatenate(scores: Sequence[StepScores]) -> dict[str, np.ndarray]:
    """The steps' scores by name, one row a root."""
    steps = [step.arrays() for step in scores]
    return {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}


PREFIX = "scores."
LINK_NAMES = ("ap", "auc")


def measure_links(scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
    """Collective. Metrics of link scores, positive [n] and negative [n, k]."""
    return link_metrics(scores["positive"], scores["negative"], np.zeros(len(scores["positive"]), bool), world)


def measure_nodes(scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
    """Collective. Metrics of the labels of nodes, output [n, C] and label [n] or, several a node, [n, C]."""
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
