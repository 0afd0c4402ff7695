"""Corrects the outputs of a model for classes of nodes by the labels of training nodes, along edges (Huang et al.,
Combining label propagation and simple models out-performs graph neural networks, 2020).

n own nodes, k training nodes of this rank, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hpcgnn.static.rows.propagate import Propagation

MOST_SCALE = 1000.0  # of errors: where hardly any error has arrived, it stays as it is


@dataclass(frozen=True, slots=True)
class CorrectAndSmooth:
    """Both steps for the outputs of all own nodes. hop: along the chosen relations; of_type: the rows of the labeled
    type; nodes [k], labels [k, C]: rows of training nodes, one 1 in each row of labels; config: the section ``eval``;
    total: collective, sums a number over ranks."""

    hop: Propagation
    of_type: slice
    nodes: torch.Tensor
    labels: torch.Tensor
    config: Any
    total: Callable[[float], float]

    def __call__(self, outputs: torch.Tensor) -> torch.Tensor:
        """Collective. Return logarithms of the new shares of classes for outputs [n, C], which are before the softmax.
        Rows of other types pass errors and labels on."""
        shares = torch.zeros_like(self._host(outputs))
        shares[self.of_type] = self._host(outputs)[self.of_type].softmax(1)
        given = self._corrected(shares).index_copy(0, self.nodes, self.labels)
        smooth = self._propagated(given, self.config.smooth_alpha, 0.0)
        return smooth.clamp(min=torch.finfo(smooth.dtype).tiny).log().to(outputs.device, outputs.dtype)

    def _host(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.detach().to("cpu", self.labels.dtype)

    def _corrected(self, shares: torch.Tensor) -> torch.Tensor:
        """Add to the shares of every node the errors that arrive there, as large as the mean error of training
        nodes."""
        error = torch.zeros_like(shares).index_copy(0, self.nodes, self.labels - shares[self.nodes])
        mean = self.total(float(error.abs().sum())) / max(1.0, self.total(len(self.nodes)))
        arrived = self._propagated(error, self.config.correct_alpha, -1.0)
        scale = mean / arrived.abs().sum(1, keepdim=True)
        return shares + torch.where(scale <= MOST_SCALE, scale, 1.0) * arrived

    def _propagated(self, given: torch.Tensor, alpha: float, least: float) -> torch.Tensor:
        """Collective. In each step, rows become alpha times the sums over neighbors, plus 1 - alpha times the given
        ones, between ``least`` and 1."""
        rows = given
        for _ in range(self.config.smooth_steps):
            rows = (alpha * self.hop(rows) + (1 - alpha) * given).clamp(least, 1)
        return rows
