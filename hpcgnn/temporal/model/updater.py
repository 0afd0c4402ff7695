"""Messages, and the updaters that work pending mail into node memory, with their tables.

n rows of the node memory, r of them to update, S slots, D memory width, M mail width, T time width. All updaters are
called alike, with whole tables. state [n, D], mail [n, S, M]; updated [n]: time of the state; mailed [n, S]: times of
the mails. delivered [n]: number of mails ever received (times and counts int64). index [r] int64: the rows to update,
or None for all. They return the rows [r, D]; rows without mail are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hpcgnn import choices, native
from hpcgnn.choices import Part
from hpcgnn.native.dispatch import on_cuda
from hpcgnn.native.layers import can_multiply
from hpcgnn.native.products import linear
from hpcgnn.native.recurrent import RecurrentCall, recurrent_update
from hpcgnn.temporal.memory import newest_mail
from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.model.walks import WalkUpdater


@dataclass(frozen=True, slots=True)
class UpdaterSizes:
    """Sizes of an updater: the width of a mail, or of the message made from it, and the width of the memory. Further,
    the encoding of time differences, the number of attention heads, and whether every mail begins with the state of its
    row."""

    mail_width: int
    memory_width: int
    time: TimeEncoding
    heads: int = 1
    state_first: bool = False


def take_rows(index: torch.Tensor | None, *tables: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return rows ``index`` of every table; None: the tables themselves."""
    return tables if index is None else tuple(native.gather_rows(table, index) for table in tables)


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
    """A recurrent cell over (mail, encoded time since the last update), for one mail a node. Subclasses choose the type
    of the cell, its number of gates, and its step in plain torch."""

    cell_type: type[nn.Module]
    cell: Any
    gates: int

    def __init__(self, sizes: UpdaterSizes):
        super().__init__()
        self.time, self.state_first = sizes.time, sizes.state_first
        self.cell = self.cell_type(sizes.mail_width + len(sizes.time.phase), sizes.memory_width)

    def forward(self, state, mail, updated, mailed, delivered, index=None) -> torch.Tensor:
        """Update rows of whole tables, with S = 1. One native call on the CPU, which copies no rows first, unless state
        or mail want a gradient."""
        if self._is_native(state, mail):
            call = self.call(state, mail, updated, mailed, delivered, index)
            return recurrent_update(self.weights(), self.time.phase, call)
        state, mail, updated, mailed, delivered = take_rows(index, state, mail, updated, mailed, delivered)
        return work_in(self._step, delivered > 0, state, mail[:, 0], mailed[:, 0] - updated)

    def _is_native(self, state, mail) -> bool:
        differentiable = torch.is_grad_enabled() and (state.requires_grad or mail.requires_grad)
        return not differentiable and has_kernel(self) and can_multiply(state, mail, self.cell.weight_ih)

    def call(self, state, mail, updated, mailed, delivered, index=None) -> RecurrentCall:
        """Form the arguments of ``forward`` as `RecurrentPass` takes them."""
        return RecurrentCall(
            self.gates, state.contiguous(), mail[:, 0].contiguous(), mailed[:, 0], updated, delivered, index,
            self.time.frequency, self.state_first,
        )  # fmt: skip

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

    def __init__(self, sizes: UpdaterSizes):
        super().__init__()
        memory_width, self.time, self.heads = sizes.memory_width, sizes.time, sizes.heads
        if memory_width % self.heads:
            raise ValueError(f"model.heads ({self.heads}) must divide memory.dim ({memory_width})")
        width = sizes.mail_width + len(self.time.phase)
        self.query = nn.Linear(memory_width, memory_width)
        self.key, self.value = nn.Linear(width, memory_width, bias=False), nn.Linear(width, memory_width)
        self.out, self.norm = nn.Linear(2 * memory_width, memory_width), nn.LayerNorm(memory_width)

    def forward(self, state, mail, updated, mailed, delivered, index=None) -> torch.Tensor:
        """Update rows of whole tables. The age of a mail counts from the newest one of its node."""
        state, mail, mailed, delivered = take_rows(index, state, mail, mailed, delivered)
        age = newest_mail(mailed, delivered).unsqueeze(1) - mailed
        count = delivered.clamp(max=mail.shape[1])
        # Empty slots have some age as well, of either sign; ``_step`` leaves them out.
        return work_in(self._step, count > 0, state, mail, age.clamp(min=0), count.clamp(min=1))

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


@dataclass(frozen=True)
class UpdaterPart(Part):
    """An updater of node memory. make: makes it from UpdaterSizes, None: the model has no memory. reads_mailbox: reads
    several mails per node, others read one; has_heads: model.heads must divide memory.dim; has_walks: memory is
    projections of walks, which events change without weights or mails. kernel: the class, and no subclass, whose cell
    the native kernel computes."""

    make: Callable[[UpdaterSizes], nn.Module] | None
    reads_mailbox: bool = False
    has_heads: bool = False
    has_walks: bool = False
    kernel: type[nn.Module] | None = None


UPDATERS = {
    "gru": UpdaterPart(GruUpdater, "gated recurrent unit (Cho et al., 2014)", kernel=GruUpdater),
    "rnn": UpdaterPart(RnnUpdater, "recurrent unit with tanh", kernel=RnnUpdater),
    "transformer": UpdaterPart(
        TransformerUpdater, "attention over the mails of the mailbox (Wang et al., APAN, 2021)", reads_mailbox=True,
        has_heads=True,
    ),
    "walks": UpdaterPart(
        lambda sizes: WalkUpdater(), "random projections of temporal walks, without weights (Lu et al., TPNet, 2024)",
        has_walks=True,
    ),
    "none": UpdaterPart(None, "no node memory"),
}  # fmt: skip


@dataclass(frozen=True)
class MessagePart(Part):
    """A function between mail and updater. make: makes it from the widths of mail and message, None: the mail is the
    message."""

    make: Callable[[int, int], nn.Module] | None


MESSAGES = {
    "identity": MessagePart(None, "the updater reads the mail, unchanged"),
    "mlp": MessagePart(MessageMLP, "two linear layers, with a message of width model.message_dim"),
}


def has_kernel(updater: nn.Module) -> bool:
    """Whether the native kernel computes what this updater does: never for a subclass, which may have another step, and
    not with another encoding of times."""
    return choices.has_kernel(updater, UPDATERS) and type(updater.time) is TimeEncoding and not updater.time.learnable
