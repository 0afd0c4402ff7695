"""Scores and metrics of tasks that predict labels: classes or numbers. b roots of a step, C classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm.world import World
from hpcgnn.task.kinds import EDGE_REGRESSION
from hpcgnn.tasks import metrics
from hpcgnn.tasks.labels import is_known


@dataclass(slots=True)
class LabelScores:
    """One step: output [b, C] logits, or [b, 1] predicted numbers; label [b] as ``read_labels`` makes them."""

    output: torch.Tensor
    label: torch.Tensor

    def detach(self) -> LabelScores:
        """Without their gradients."""
        return LabelScores(self.output.detach(), self.label)

    def arrays(self) -> dict[str, np.ndarray]:
        """output [b, C] float64, label [b] int64 or float64."""
        return {"output": self.output.double().cpu().numpy(), "label": self.label.cpu().numpy()}


def metric_names(kind: str, classes: int) -> tuple[str, ...]:
    """Names of ``label_metrics``, the most telling one first."""
    if kind == EDGE_REGRESSION:
        return metrics.REGRESSION_NAMES
    return metrics.BINARY_NAMES if classes == 2 else metrics.MULTICLASS_NAMES


def label_metrics(output: np.ndarray, label: np.ndarray, world: World) -> dict[str, float]:
    """Collective. Metrics of outputs [n, C] against labels [n] of this rank, those that are missing left out; numbers
    have C = 1."""
    known = is_known(label)
    if output.shape[1] == 1:
        return metrics.regression_metrics(output[known, 0], label[known], world)
    return metrics.classification_metrics(output[known], label[known], world)
