"""Rows of every rank to every rank, as an exchange of a ``HaloChain``.

R ranks, m rows of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel, Transfer
from hpcgnn.comm.halo import HaloChain


@dataclass(frozen=True, slots=True)
class Everyone:
    """In the place of a ``Route``: what is pulled are the m rows of all ranks [R m, D] in rank order, and the gradients
    that all ranks have of them are summed, in rank order, at the rank they are of."""

    channel: Channel
    num_rows: int
    device: torch.device

    @property
    def served(self) -> torch.Tensor:
        """All rows [m]."""
        return torch.arange(self.num_rows, device=self.device)

    def start_pull(self, rows: torch.Tensor) -> Transfer:
        """Collective. Begin to send rows [m, D] to all."""
        return self.channel.start_everyone(rows, self._counts())

    def start_push(self, gradient: torch.Tensor) -> Transfer:
        """Collective. Begin to send the rows' gradients [R m, D] back."""
        return self.channel.start(gradient, self._counts(), self._counts())

    def sum_requests(self, received: torch.Tensor) -> torch.Tensor:
        """Gradients [R m, D] of this rank's rows, summed [m, D]."""
        return received.view(self.channel.size, self.num_rows, -1).sum(0)

    def _counts(self) -> np.ndarray:
        return np.full(self.channel.size, self.num_rows, np.int64)


@dataclass(slots=True)
class RankRows:
    """Rows of all ranks, as many of each, their exchanges part of a chain."""

    chain: HaloChain
    channel: Channel

    def start(self, rows: torch.Tensor):
        """Collective. Begin to send rows [m, D] to all."""
        return self.chain.start(Everyone(self.channel, len(rows), rows.device), rows)

    def finish(self, exchange) -> torch.Tensor:
        """Collective. Those of all ranks [R m, D]."""
        return self.chain.finish(exchange)
