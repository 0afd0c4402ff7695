"""Metrics of the scores that an epoch's losses were computed from."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from hpcgnn.comm.world import World
from hpcgnn.run.scoring import concatenate
from hpcgnn.task.collect import StepScores
from hpcgnn.task.labels import label_metrics
from hpcgnn.tasks.metrics import link_metrics, node_metrics

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
