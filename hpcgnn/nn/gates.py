"""Gated units whose input part comes ready made. H hidden columns."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.nn.convolutions import glorot


class GatedCell(nn.Module):
    """A GRU (Cho et al., 2014): h' = z h + (1 - z) tanh(g_c + (r h) V_c), z and r = sigmoid(g + h V)."""

    def __init__(self, hidden: int):
        super().__init__()
        self.gates, self.candidate = glorot(hidden, 2 * hidden), glorot(hidden, hidden)

    def forward(self, given: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """given [..., 3 H] (update | reset | candidate), hidden [..., H]."""
        width = hidden.shape[-1]
        update, reset = torch.sigmoid(given[..., : 2 * width] + hidden @ self.gates).chunk(2, dim=-1)
        candidate = torch.tanh(given[..., 2 * width :] + (reset * hidden) @ self.candidate)
        return torch.lerp(candidate, hidden, update)


class MemoryCell(nn.Module):
    """An LSTM (Hochreiter and Schmidhuber, 1997): c' = f c + i tanh(g_c), h' = o tanh(c'), i, f and o = sigmoid(g), g
    the given part + h V."""

    def __init__(self, hidden: int):
        super().__init__()
        self.weight = glorot(hidden, 4 * hidden)

    def forward(
        self, given: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """given [..., 4 H] (input | forget | output | candidate), hidden and memory [..., H]; returns both anew."""
        width = hidden.shape[-1]
        gates = given + hidden @ self.weight
        take, keep, show = torch.sigmoid(gates[..., : 3 * width]).chunk(3, dim=-1)
        memory = keep * memory + take * torch.tanh(gates[..., 3 * width :])
        return show * torch.tanh(memory), memory
