"""Updaters work pending mail into node memory. r rows, D memory width, M mail width, T time width."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from hpcgnn import native
from hpcgnn.nn.linear import linear, padded
from hpcgnn.nn.time_encoding import TimeEncoding


class MemoryUpdater(nn.Module):
    """GRU (Cho et al., 2014) over (mail, encoded time since the last update)."""

    def __init__(self, mail_width: int, memory_width: int, time: TimeEncoding):
        super().__init__()
        self.time = time
        self.cell = nn.GRUCell(mail_width + len(time.phase), memory_width)

    def forward(self, state, mail, dt, has_mail) -> torch.Tensor:
        """state [r, D], mail [r, M], dt [r] int64, has_mail [r]; returns the updated state, or the old one without
        mail."""
        rows = torch.nonzero(has_mail).squeeze(1)
        count = rows.numel()
        if count == 0:
            return state
        index = functional.pad(rows, (0, padded(count) - count), value=-1)  # gathers rows of zeros
        new = self._step(*(native.gather_rows(column, index) for column in (state, mail, dt)))
        return state.index_copy(0, rows, new[:count])

    def _step(self, state, mail, dt) -> torch.Tensor:
        cell = self.cell
        given = linear(torch.cat([mail, self.time(dt)], dim=1), cell.weight_ih, cell.bias_ih)
        kept = linear(state, cell.weight_hh, cell.bias_hh)
        return native.gru_gates(given, kept, state)
