"""Node memory and mailbox of the nodes that a rank owns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn import native


@dataclass(slots=True)
class MemoryRows:
    """Rows of the node memory: state [r, D], mail [r, M], updated [r] time of the state, mailed [r] time of the mail
    (int64), has_mail [r] bool."""

    state: torch.Tensor
    mail: torch.Tensor
    updated: torch.Tensor
    mailed: torch.Tensor
    has_mail: torch.Tensor

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The five columns."""
        return self.state, self.mail, self.updated, self.mailed, self.has_mail


COLUMNS = ("state", "mail", "updated", "mailed", "has_mail")


class NodeMemory:
    """State, pending mail and their times for n local nodes. Memory and mail of a node are always replaced together."""

    def __init__(self, num_nodes: int, state_width: int, mail_width: int, dtype: torch.dtype, device: torch.device):
        zeros = lambda *shape, dtype: torch.zeros(shape, dtype=dtype, device=device)  # noqa: E731
        self.table = MemoryRows(
            zeros(num_nodes, state_width, dtype=dtype), zeros(num_nodes, mail_width, dtype=dtype),
            zeros(num_nodes, dtype=torch.int64), zeros(num_nodes, dtype=torch.int64),
            zeros(num_nodes, dtype=torch.bool),
        )  # fmt: skip

    def reset(self) -> None:
        """Forget everything (start of an epoch)."""
        for tensor in self.table.tensors():
            tensor.zero_()

    def read(self, rows: torch.Tensor) -> MemoryRows:
        """Copies of the given local rows [r] int64."""
        return MemoryRows(*(native.gather_rows(tensor, rows) for tensor in self.table.tensors()))

    def write(self, rows: torch.Tensor, state: torch.Tensor, mail: torch.Tensor, time: torch.Tensor) -> None:
        """Replace state and mail of unique local rows [r]. The state's time becomes that of the mail it consumed; for a
        node without mail, that of its first mail, whose time difference is thereby 0."""
        table = self.table
        had_mail = native.gather_rows(table.has_mail, rows)
        updated = torch.where(had_mail, native.gather_rows(table.mailed, rows), time)
        new = (state, mail, updated, time, torch.ones_like(had_mail))
        for tensor, values in zip(table.tensors(), new, strict=True):
            native.scatter_rows(tensor, rows, values)

    def snapshot(self) -> MemoryRows:
        """A copy of all rows."""
        return MemoryRows(*(tensor.clone() for tensor in self.table.tensors()))
