"""Node memory and mailbox of the nodes that a rank keeps. n nodes, S mailbox slots, D memory width, M mail width."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn import native, native_layers
from hpcgnn.comm.exchange import Channel

COLUMNS = ("state", "mail", "updated", "mailed", "delivered")


@dataclass(slots=True)
class MemoryRows:
    """Rows of the node memory: state [r, D], mail [r, S, M], updated [r] time of the state, mailed [r, S] times of the
    mails, delivered [r] mails ever received (int64). Mail number j lies in slot j % S."""

    state: torch.Tensor
    mail: torch.Tensor
    updated: torch.Tensor
    mailed: torch.Tensor
    delivered: torch.Tensor

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The five columns."""
        return self.state, self.mail, self.updated, self.mailed, self.delivered


class NodeMemory:
    """State, pending mails and their times for n nodes.

    ``own``: rows of the nodes that this rank owns, or None: all of them. A replicated memory has the rows of all nodes,
    by global id.
    """

    def __init__(
        self, num_nodes: int, state_width: int, mail_width: int, dtype: torch.dtype, device: torch.device,
        slots: int = 1, own: torch.Tensor | None = None,
    ):  # fmt: skip
        zeros = lambda *shape, dtype: torch.zeros(shape, dtype=dtype, device=device)  # noqa: E731
        self.slots, self.own = slots, own
        self.table = MemoryRows(
            zeros(num_nodes, state_width, dtype=dtype), zeros(num_nodes, slots, mail_width, dtype=dtype),
            zeros(num_nodes, dtype=torch.int64), zeros(num_nodes, slots, dtype=torch.int64),
            zeros(num_nodes, dtype=torch.int64),
        )  # fmt: skip

    def reset(self) -> None:
        """Forget everything (start of an epoch)."""
        for tensor in self.table.tensors():
            tensor.zero_()

    def newest(self, rows: torch.Tensor) -> torch.Tensor:
        """Time of the newest mail of the given rows [r], -1 where there was none."""
        mailed = native.gather_rows(self.table.mailed, rows)
        delivered = native.gather_rows(self.table.delivered, rows)
        return torch.where(delivered > 0, mailed.max(dim=1).values, torch.full_like(delivered, -1))

    def replace(self, rows, state, given, time, place: torch.Tensor | None = None) -> None:
        """Replace state and only mail of unique rows [r]: states are state [., D] at place [r] (None: [r, D] as they
        come), mails of times [r] the new state, then given [r, M - D]. The state's time becomes that of the mail it
        consumed; for a node without mail, that of its first mail, whose time difference is thereby 0."""
        table = self.table
        if native_layers.is_supported(table.state, state, given):
            native_layers.replace_memory(
                table.tensors(), rows, place, state.contiguous(), given.contiguous(), time
            )  # fmt: skip
            return
        if place is not None:
            state = native.gather_rows(state, place)
        mail = torch.cat([state, given], dim=1)
        delivered = native.gather_rows(table.delivered, rows)
        consumed = native.gather_rows(table.mailed, rows)[:, 0]
        updated = torch.where(delivered > 0, consumed, time)
        new = (state, mail.unsqueeze(1), updated, time.unsqueeze(1), delivered + 1)
        for tensor, values in zip(table.tensors(), new, strict=True):
            native.scatter_rows(tensor, rows, values)

    def write_state(self, rows: torch.Tensor, state: torch.Tensor) -> None:
        """Replace the state of unique rows [r]; its time becomes that of the newest mail it has consumed."""
        table = self.table
        newest = self.newest(rows)
        updated = torch.where(newest >= 0, newest, native.gather_rows(table.updated, rows))
        native.scatter_rows(table.state, rows, state)
        native.scatter_rows(table.updated, rows, updated)

    def append(self, rows: torch.Tensor, number: torch.Tensor, mail: torch.Tensor, time: torch.Tensor) -> None:
        """Put new mails [m, M] of times [m] into the rings of rows [m] (grouped by row, oldest first, at most S a row);
        number [m]: place among the new mails of its row. A first mail sets the state's time, so that its time
        difference is 0."""
        table, slots = self.table, self.slots
        delivered = native.gather_rows(table.delivered, rows)
        place = rows * slots + (delivered + number) % slots
        table.mail.view(-1, mail.shape[1])[place] = mail
        table.mailed.view(-1)[place] = time
        first = (delivered == 0) & (number == 0)
        table.updated[rows[first]] = time[first]
        table.delivered.index_add_(0, rows, torch.ones_like(rows))

    def owned(self) -> MemoryRows:
        """The rows of the nodes that this rank owns."""
        return self.table if self.own is None else MemoryRows(*(tensor[self.own] for tensor in self.table.tensors()))

    def snapshot(self) -> MemoryRows:
        """A copy of the rows that this rank owns."""
        return MemoryRows(*(tensor.clone() for tensor in self.owned().tensors()))

    def put(self, rows: torch.Tensor, name: str, values: torch.Tensor) -> None:
        """Set a column at some of the rows that this rank owns, by their place among them."""
        getattr(self.table, name)[rows if self.own is None else self.own[rows]] = values

    def share(self, channel: Channel) -> None:
        """Collective. Give the rows that this rank owns to all others, where memory is replicated."""
        if self.own is None:
            return
        everyones = channel.everyone(self.own)
        for table in self.table.tensors():
            table[everyones] = channel.everyone(table[self.own])
