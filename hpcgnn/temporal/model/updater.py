"""Messages, and the updaters that work pending mail into node memory.

r rows, S slots, D memory width, M mail width, T time width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hpcgnn import native
from hpcgnn.native.dispatch import on_cuda
from hpcgnn.native.layers import can_multiply
from hpcgnn.native.products import linear
from hpcgnn.native.recurrent import RecurrentCall, recurrent_update
from hpcgnn.temporal.model.time_encoding import TimeEncoding


def work_in(step: Callable[..., torch.Tensor], has_mail: torch.Tensor, state: torch.Tensor, *further) -> torch.Tensor:
    """Compute ``step(state, *further)`` for rows that have mail, and keep the state of others: [r, D]. A device does it
    for all rows, rather than wait to know which they are."""
    if on_cuda(state):
        return torch.where(has_mail.unsqueeze(1), step(state, *further), state)
    rows = torch.nonzero(has_mail).squeeze(1)
    if rows.numel() == 0:
        return state
    differentiable = any(column.requires_grad for column in (state, *further))
    gather = torch.Tensor.__getitem__ if differentiable else native.gather_rows
    return state.index_copy(0, rows, step(*(gather(column, rows) for column in (state, *further))))


class RecurrentUpdater(nn.Module):
    """A recurrent cell over (mail, encoded time since the last update); rows without mail keep their state. Subclasses
    choose the cell: its type, its number of gates, and its step in plain torch, which is what they compute with: the
    kernel has the cells of ``WITH_KERNEL`` alone. state_first: in whole tables, every mail begins with its row's
    state."""

    cell_type: type[nn.Module]
    cell: Any
    gates: int

    def __init__(self, mail_width: int, memory_width: int, time: TimeEncoding, state_first: bool = False):
        super().__init__()
        self.time, self.state_first = time, state_first
        self.cell = self.cell_type(mail_width + len(time.phase), memory_width)

    def forward(self, state, mail, dt, has_mail) -> torch.Tensor:
        """Update states. state [r, D], mail [r, M], dt [r] int64, has_mail [r] bool; returns the updated state [r, D].
        One native call on the CPU, unless state or mail want a gradient."""
        if self._is_native(state, mail):
            call = self.call(state, mail, dt, None, has_mail.long())
            return recurrent_update(self.weights(), self.time.phase, call)
        return work_in(self._step, has_mail, state, mail, dt)

    def update_rows(self, index, state, mail, mailed, updated, delivered) -> torch.Tensor:
        """Work mail into rows ``index`` [r] int64 (None: all) of whole tables: state [n, D], mail [n, M], times mailed
        and updated [n] int64, delivered [n] int64 mails ever received. On the CPU nothing is copied first."""
        if self._is_native(state, mail):
            call = self.call(state, mail, mailed, updated, delivered, index, self.state_first)
            return recurrent_update(self.weights(), self.time.phase, call)
        rows = [state, mail, mailed, updated, delivered]
        if index is not None:
            rows = [native.gather_rows(column, index) for column in rows]
        return self(rows[0], rows[1], rows[2] - rows[3], rows[4] > 0)

    @property
    def has_kernel(self) -> bool:
        """Whether the kernel computes the same: a subclass may have another step, or another encoding of times."""
        return type(self) in WITH_KERNEL and type(self.time) is TimeEncoding and not self.time.learnable

    def _is_native(self, state, mail) -> bool:
        differentiable = torch.is_grad_enabled() and (state.requires_grad or mail.requires_grad)
        return not differentiable and self.has_kernel and can_multiply(state, mail, self.cell.weight_ih)

    def call(self, state, mail, mailed, updated, delivered, index=None, state_first: bool = False) -> RecurrentCall:
        """Form the arguments of ``update_rows`` as `RecurrentPass` takes them; without ``updated``, ``mailed`` are time
        differences."""
        tables = state.contiguous(), mail.contiguous(), mailed, updated, delivered
        return RecurrentCall(self.gates, *tables, index, self.time.frequency, state_first)

    def weights(self) -> list[torch.Tensor]:
        """List the weights in the order in which `recurrent_update` takes them."""
        return [self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh]

    def _products(self, state, mail, dt) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the products of the input weights with mail and time, and of the hidden weights with the state."""
        cell = self.cell
        from_mail = linear(torch.cat([mail, self.time(dt)], dim=1), cell.weight_ih, cell.bias_ih)
        return from_mail, linear(state, cell.weight_hh, cell.bias_hh)

    def _step(self, state, mail, dt) -> torch.Tensor:
        raise NotImplementedError


class GruUpdater(RecurrentUpdater):
    """Updates by a gated recurrent unit (Cho et al., 2014), as TGN does."""

    cell_type, gates = nn.GRUCell, 3

    def _step(self, state, mail, dt) -> torch.Tensor:
        return native.gru_gates(*self._products(state, mail, dt), state)


class RnnUpdater(RecurrentUpdater):
    """Updates by a plain tanh cell, as JODIE and DyRep do."""

    cell_type, gates = nn.RNNCell, 1

    def _step(self, state, mail, dt) -> torch.Tensor:
        from_mail, from_state = self._products(state, mail, dt)
        return torch.tanh(from_mail + from_state)


UPDATERS = {"gru": GruUpdater, "rnn": RnnUpdater}
WITH_KERNEL = (GruUpdater, RnnUpdater)


class MessageMLP(nn.Module):
    """Turns a mail into a message through two linear layers (Rossi et al., 2020)."""

    def __init__(self, mail_width: int, width: int):
        super().__init__()
        self.hidden, self.out = nn.Linear(mail_width, width), nn.Linear(width, width)

    def forward(self, mail: torch.Tensor) -> torch.Tensor:
        """Form messages. mail [..., M]; returns [..., width]."""
        rows = torch.relu(linear(mail.flatten(0, -2), self.hidden.weight, self.hidden.bias))
        return linear(rows, self.out.weight, self.out.bias).unflatten(0, mail.shape[:-1])


class TransformerUpdater(nn.Module):
    """The state attends to the mails of its mailbox (Wang et al., APAN: asynchronous propagation attention network for
    real-time temporal graph embedding, 2021)."""

    def __init__(self, mail_width: int, memory_width: int, time: TimeEncoding, heads: int):
        super().__init__()
        if memory_width % heads:
            raise ValueError(f"model.heads ({heads}) must divide model.memory_dim ({memory_width})")
        width = mail_width + len(time.phase)
        self.time, self.heads = time, heads
        self.query = nn.Linear(memory_width, memory_width)
        self.key, self.value = nn.Linear(width, memory_width, bias=False), nn.Linear(width, memory_width)
        self.out, self.norm = nn.Linear(2 * memory_width, memory_width), nn.LayerNorm(memory_width)

    def forward(self, state, mail, dt, count) -> torch.Tensor:
        """Update states. state [r, D], mail [r, S, M], dt [r, S] int64 >= 0 age against the newest mail, count [r]
        mails there; returns the new state, or the old one without mail."""
        return work_in(self._step, count > 0, state, mail, dt, count.clamp(min=1))

    def _step(self, state, mail, dt, count) -> torch.Tensor:
        r, slots = dt.shape
        mails = torch.cat([mail.flatten(0, 1), self.time(dt.flatten())], dim=1)
        width = state.shape[1] // self.heads
        heads = lambda rows, n: rows.view(r, n, self.heads, width).transpose(1, 2)  # noqa: E731 - [r, H, n, width]
        query = heads(linear(state, self.query.weight, self.query.bias), 1)
        key = heads(linear(mails, self.key.weight), slots)
        value = heads(linear(mails, self.value.weight, self.value.bias), slots)
        score = (query * key).sum(-1) * key.shape[-1] ** -0.5  # [r, H, S]
        absent = torch.arange(slots, device=dt.device) >= count.unsqueeze(1)
        weight = torch.softmax(score.masked_fill(absent.unsqueeze(1), float("-inf")), dim=2)
        read = (weight.unsqueeze(-1) * value).sum(2).flatten(1)
        merged = linear(torch.cat([read, state], dim=1), self.out.weight, self.out.bias)
        return self.norm(torch.relu(merged))
