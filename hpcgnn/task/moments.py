"""Computes the moments of inputs and of targets over the training data, by which runs standardize them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import nn

from hpcgnn.comm.world import World

CONSTANT = 1e-12  # deviations below this times the mean are rounding


def moments(
    pieces: Callable[[], Iterable[np.ndarray]], width: int, world: World
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Collective. Compute the mean and the standard deviation [D] float64 of each column of all ranks' rows; numbers
    that are NaN are left out, and the deviation of a constant is 1. pieces: yields this rank's rows [n, D]; width: D.
    """

    def mean_of(values: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        sums = np.zeros((2, width))
        for piece in pieces():
            rows = values(piece.astype(np.float64))
            sums += np.nansum(rows, axis=0), np.isfinite(rows).sum(axis=0)
        total, count = world.reduce_array(sums)
        return total / np.maximum(count, 1)

    mean = mean_of(lambda rows: rows)
    deviation = np.sqrt(mean_of(lambda rows: (rows - mean) ** 2))
    deviation = np.where(deviation > CONSTANT * np.abs(mean), deviation, 1.0)
    return torch.from_numpy(mean), torch.from_numpy(deviation)


class Standard(nn.Module):
    """Standardizes columns by a mean and a deviation [D], which are stored with the model."""

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, mean: torch.Tensor, deviation: torch.Tensor):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Standardize rows [n, D]."""
        return (rows - self.mean) / self.deviation

    def undone(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute the rows [n, D] that standardized rows [n, D] stand for."""
        return self.mean + self.deviation * rows
