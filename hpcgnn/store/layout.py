"""Where a rank's tables keep the rows of nodes that other ranks keep too. n nodes that a rank owns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn.comm.exchange import Channel


@dataclass(frozen=True, slots=True)
class Layout:
    """Tables of ``num_rows`` rows: own [n] int64, those of the nodes that this rank owns; from row ``first_copy`` on,
    rows of the same nodes in the same order on all ranks."""

    num_rows: int
    own: torch.Tensor
    first_copy: int

    def share(self, table: torch.Tensor, channel: Channel) -> None:
        """Collective. Bring the owners' rows of the copied nodes to all ranks, in place."""
        mine = self.own[self.own >= self.first_copy]
        rows = channel.everyone(mine - self.first_copy) + self.first_copy
        table[rows] = channel.everyone(table[mine])

    def spread(self, values: torch.Tensor, channel: Channel) -> torch.Tensor:
        """Collective. A table of the owned nodes' values [n, ...], shared."""
        table = values.new_zeros((self.num_rows, *values.shape[1:]))
        table[self.own] = values
        self.share(table, channel)
        return table
