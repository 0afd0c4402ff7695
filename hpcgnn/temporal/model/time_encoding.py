"""Encodings of time differences."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn import native


class TimeEncoding(nn.Module):
    """cos(w dt + b) with w = 10^-linspace(0, 9, T) (Cong et al., Do we really need complicated model architectures for
    temporal networks?, 2023). Time differences are int64 in the source's unit.

    Fixed frequencies by default. Learned ones (Xu et al., Inductive representation learning on temporal graphs, 2020)
    count in ``unit``s of time.
    """

    def __init__(self, width: int, learn_phase: bool = False, learn_frequency: bool = False, unit: float = 1.0):
        super().__init__()
        frequency = 10.0 ** -torch.linspace(0, 9, width, dtype=torch.float64)
        self.learnable = learn_frequency
        self._fixed: torch.Tensor
        if learn_frequency:
            self.factor = nn.Parameter(torch.ones(width))
            frequency = frequency / unit
        self.register_buffer("_fixed", frequency, persistent=False)
        self.phase = nn.Parameter(torch.zeros(width), requires_grad=learn_phase or learn_frequency)

    @property
    def frequency(self) -> torch.Tensor:
        """w [T] float64; carries a gradient when it is learned."""
        return self._fixed * self.factor.double() if self.learnable else self._fixed

    def forward(self, dt: torch.Tensor) -> torch.Tensor:
        """Encode time differences dt [n] int64; returns [n, T]."""
        if self.learnable:
            return native.time_encode_reference(dt, self.frequency, self.phase, self.phase.dtype)
        return native.time_encode(dt, self.frequency, self.phase, self.phase.dtype)

    def _apply(self, function, recurse=True):
        fixed = self._fixed  # phases are formed in float64, whatever the precision of the weights
        super()._apply(function, recurse)
        self._fixed = fixed.to(self._fixed.device)
        return self
