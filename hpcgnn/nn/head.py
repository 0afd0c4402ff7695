"""The head of tasks that predict labels: it stands where the link decoder stands otherwise."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.nn.linear import linear


class Head(nn.Module):
    """Linear, relu, linear. I inputs, O outputs."""

    def __init__(self, width: int, hidden: int, outputs: int):
        super().__init__()
        self.width = width
        self.hidden, self.out = nn.Linear(width, hidden), nn.Linear(hidden, outputs)

    def forward(self, rows: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """rows [n, I], mask: dropout multipliers [n, hidden]; returns [n, O]."""
        hidden = torch.relu(linear(rows, self.hidden.weight, self.hidden.bias))
        return linear(hidden if mask is None else hidden * mask, self.out.weight, self.out.bias)
