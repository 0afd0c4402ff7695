"""Updaters work pending mail into node memory. r rows, D memory width, M mail width, T time width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hpcgnn import native, native_layers
from hpcgnn.native.dispatch import on_cuda
from hpcgnn.native_layers import RecurrentCall
from hpcgnn.nn.linear import linear
from hpcgnn.nn.time_encoding import TimeEncoding


def work_in(step: Callable[..., torch.Tensor], has_mail: torch.Tensor, state: torch.Tensor, *further) -> torch.Tensor:
    """``step(state, *further)`` for rows that have mail, [r, D]; the state of others. A device does it for all rows,
    rather than wait to know which they are."""
    if on_cuda(state):
        return torch.where(has_mail.unsqueeze(1), step(state, *further), state)
    rows = torch.nonzero(has_mail).squeeze(1)
    if rows.numel() == 0:
        return state
    wanted = any(column.requires_grad for column in (state, *further))
    gather = torch.Tensor.__getitem__ if wanted else native.gather_rows
    return state.index_copy(0, rows, step(*(gather(column, rows) for column in (state, *further))))


class RecurrentUpdater(nn.Module):
    """A recurrent cell over (mail, encoded time since the last update); rows without mail keep their state. Subclasses
    choose the cell: its type, its number of gates, and its step in plain torch. state_first: in whole tables, every
    mail begins with its row's state."""

    cell_type: type[nn.Module]
    cell: Any
    gates: int

    def __init__(self, mail_width: int, memory_width: int, time: TimeEncoding, state_first: bool = False):
        super().__init__()
        self.time, self.state_first = time, state_first
        self.cell = self.cell_type(mail_width + len(time.phase), memory_width)

    def forward(self, state, mail, dt, has_mail) -> torch.Tensor:
        """state [r, D], mail [r, M], dt [r] int64, has_mail [r] bool; returns the updated state [r, D]. One native call
        on the CPU, unless state or mail want a gradient."""
        if self._is_native(state, mail):
            return self._native(self._call(state, mail, dt, None, has_mail.long(), None))
        return work_in(self._step, has_mail, state, mail, dt)

    def update_rows(self, index, state, mail, mailed, updated, delivered) -> torch.Tensor:
        """The same for rows ``index`` [r] int64 (None: all) of whole tables: state [n, D], mail [n, M], times mailed
        and updated [n] int64, delivered [n] int64 mails ever received. On the CPU nothing is copied first."""
        if self._is_native(state, mail):
            return self._native(self.call(state, mail, mailed, updated, delivered, index))
        taken = [state, mail, mailed, updated, delivered]
        if index is not None:
            taken = [native.gather_rows(column, index) for column in taken]
        return self(taken[0], taken[1], taken[2] - taken[3], taken[4] > 0)

    def _is_native(self, state, mail) -> bool:
        differentiable = torch.is_grad_enabled() and (state.requires_grad or mail.requires_grad)
        return (
            not differentiable
            and not self.time.learnable
            and native_layers.can_multiply(state, mail, self.cell.weight_ih)
        )

    def _native(self, call: RecurrentCall) -> torch.Tensor:
        return native_layers.recurrent_update(self.weights(), self.time.phase, call)

    def call(self, state, mail, mailed, updated, delivered, index) -> RecurrentCall:
        """``update_rows`` as native_layers takes it."""
        return self._call(state, mail, mailed, updated, delivered, index, self.state_first)

    def _call(self, state, mail, mailed, updated, delivered, index, state_first: bool = False) -> RecurrentCall:
        tables = state.contiguous(), mail.contiguous(), mailed, updated, delivered
        return RecurrentCall(self.gates, *tables, index, self.time.frequency, state_first)

    def weights(self) -> list[torch.Tensor]:
        """As native_layers takes them."""
        return [self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh]

    def _products(self, state, mail, dt) -> tuple[torch.Tensor, torch.Tensor]:
        cell = self.cell
        given = linear(torch.cat([mail, self.time(dt)], dim=1), cell.weight_ih, cell.bias_ih)
        return given, linear(state, cell.weight_hh, cell.bias_hh)

    def _step(self, state, mail, dt) -> torch.Tensor:
        raise NotImplementedError


class GruUpdater(RecurrentUpdater):
    """Gated recurrent unit (Cho et al., 2014), as in TGN."""

    cell_type, gates = nn.GRUCell, 3

    def _step(self, state, mail, dt) -> torch.Tensor:
        return native.gru_gates(*self._products(state, mail, dt), state)


class RnnUpdater(RecurrentUpdater):
    """Plain tanh cell, as in JODIE and DyRep."""

    cell_type, gates = nn.RNNCell, 1

    def _step(self, state, mail, dt) -> torch.Tensor:
        given, kept = self._products(state, mail, dt)
        return torch.tanh(given + kept)


UPDATERS = {"gru": GruUpdater, "rnn": RnnUpdater}
