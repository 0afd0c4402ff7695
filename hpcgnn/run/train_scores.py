"""Metrics of the scores that an epoch's losses were computed from."""

from __future__ import annotations

import math

import numpy as np
import torch

from hpcgnn.comm.world import World
from hpcgnn.run.scoring import split_scores
from hpcgnn.tasks.metrics import link_metrics
from hpcgnn.tasks.temporal_link import Scores

COLUMNS = ("scores.positive", "scores.negative")
REPORTED = ("ap", "auc")


class TrainScores:
    """Scores of an epoch's steps so far, at the ranks that computed them until ``gather`` moves them to rank 0."""

    def __init__(self, world: World):
        self._world = world
        self.clear()

    def clear(self) -> None:
        """An epoch begins."""
        self._steps: list[Scores] = []
        self._gathered: list[list[np.ndarray]] = []

    def add(self, scores: Scores) -> None:
        """This rank's scores of one step."""
        self._steps.append(Scores(scores.positive.detach(), scores.negative.detach()))

    def gather(self) -> dict[str, torch.Tensor]:
        """Collective. All scores so far, positive [n] and negative [n, k] in float32, on rank 0; none elsewhere."""
        if self._steps:
            mine = [values.astype(np.float32) for values in split_scores(self._steps)]
            everyone = [self._world.gather_rows(values) for values in mine]
            self._gathered.append(everyone if self._world.rank == 0 else [values[:0] for values in mine])
            self._steps = []
        if not self._gathered:
            return {}
        self._gathered = [[np.concatenate(column) for column in zip(*self._gathered, strict=True)]]
        return {name: torch.from_numpy(values) for name, values in zip(COLUMNS, self._gathered[0], strict=True)}

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Scores from a checkpoint, read by every rank; rank 0 keeps them."""
        self.clear()
        if COLUMNS[0] in tensors:
            end = None if self._world.rank == 0 else 0
            self._gathered = [[tensors[name].numpy()[:end] for name in COLUMNS]]

    def metrics(self) -> dict[str, float]:
        """Collective. train_ap and train_auc of the epoch so far; NaN without scores."""
        scores = list(self.gather().values())
        found = {}
        if scores:
            positive, negative = (values.numpy() for values in scores)
            found = link_metrics(positive, negative, np.zeros(len(positive), bool), self._world)
        return {f"train_{name}": found.get(name, math.nan) for name in REPORTED}
