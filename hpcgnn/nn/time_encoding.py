"""Encodings of time differences."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn import native


class TimeEncoding(nn.Module):
    """cos(w dt + b) with fixed w = 10^-linspace(0, 9, T) (Cong et al., Do we really need complicated model
    architectures for temporal networks?, 2023). Time differences are int64 in the source's unit."""

    def __init__(self, width: int, learn_phase: bool = False):
        super().__init__()
        self.register_buffer("frequency", 10.0 ** -torch.linspace(0, 9, width, dtype=torch.float64), persistent=False)
        self.phase = nn.Parameter(torch.zeros(width), requires_grad=learn_phase)

    def forward(self, dt: torch.Tensor) -> torch.Tensor:
        """dt [n] int64; returns [n, T]."""
        return native.time_encode(dt, self.frequency, self.phase, self.phase.dtype)

    def _apply(self, function, recurse=True):
        frequency = self.frequency  # phases are formed in float64, whatever the precision of the weights
        super()._apply(function, recurse)
        self.frequency = frequency.to(self.frequency.device)
        return self
