"""Exchanges halo rows with gradients: rows of remote neighbors inside a model that all ranks compute together.

A rank whose loss does not depend on what it pulled would leave the others waiting in the backward pass, and autograd
promises no order of independent operations. So the exchanges of a forward pass form a chain: each takes a token from
the one before, the loss takes the last one. Every rank then runs every adjoint, in exactly the reverse order.

An exchange follows a plan of which rows go where (``Route``, in route.py, or every row to every rank); the rows
themselves move by the alltoallv of a ``Channel`` (exchange.py).

R ranks, m rows of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from hpcgnn import native
from hpcgnn.comm.exchange import Channel, Transfer, check_backward
from hpcgnn.comm.route import Pull, Route
from hpcgnn.comm.timers import Timers

HALO_WAIT = "halo wait"


@dataclass(slots=True)
class Exchange:
    """One exchange of a chain, under way between ``start`` and ``finish``: ``pull`` brings rows to their users, in the
    backward pass ``push`` gradients to their owners. Either is a tensor once its rows have arrived."""

    chain: HaloChain
    route: Route | Everyone
    pull: Pull | Transfer | torch.Tensor | Any
    chained: bool
    push: Transfer | Pull | torch.Tensor | None = None


class HaloChain:
    """The exchanges of one forward pass. All ranks start and finish the same ones in the same order.

    timers: gets the seconds of waiting, stage ``HALO_WAIT``; overlap: False waits for every exchange at once.
    """

    def __init__(self, timers: Timers | None = None, overlap: bool = True):
        self._token: torch.Tensor | None = None
        self._timers, self._overlap = timers or Timers(), overlap

    def start(self, route: Route | Everyone, rows: torch.Tensor) -> Exchange:
        """Collective. Begin to bring the owners' rows [n, D] to the ranks that want them. Computing until ``finish``
        overlaps the exchange, forward and backward; ``rows`` must not change meanwhile.

        Rows without gradient, on all ranks alike, take no part in the backward pass.
        """
        chained = rows.requires_grad and torch.is_grad_enabled()
        if chained:
            check_backward(rows, route.channel.size)
        exchange = Exchange(self, route, self.under_way(route.start_pull(rows.detach())), chained)
        if chained:
            if self._token is None:
                self._token = torch.zeros((), dtype=rows.dtype, device=rows.device, requires_grad=True)
            self._token = _Start.apply(rows, self._token, exchange)
        return exchange

    def finish(self, exchange: Exchange) -> torch.Tensor:
        """Collective. Return the wanted rows [W, D] of an exchange that was started."""
        if not exchange.chained:
            return self.wait(exchange.pull)
        rows, self._token = _Finish.apply(self._token, exchange)
        return rows

    def pull(self, route: Route, rows: torch.Tensor) -> torch.Tensor:
        """Collective. Bring the wanted rows [W, D], and wait for them."""
        return self.finish(self.start(route, rows))

    def wait(self, moved: Pull | Transfer | torch.Tensor | Any) -> torch.Tensor:
        """Wait for rows, counting the seconds."""
        if isinstance(moved, torch.Tensor):
            return moved
        with self._timers(HALO_WAIT):
            return moved.wait()

    def under_way(self, moved: Pull | Transfer) -> Pull | Transfer | torch.Tensor:
        """Return what has begun, or its rows where nothing may overlap."""
        return moved if self._overlap else self.wait(moved)

    def tie(self, loss: torch.Tensor) -> torch.Tensor:
        """Add zero times the last token to the loss, whose backward pass then runs all adjoints, also where it depends
        on no exchange. The chain begins anew."""
        token, self._token = self._token, None
        return loss if token is None else loss + 0 * token.to(loss.dtype)


class StaleRows:
    """Keeps remote nodes' rows for the same step of later epochs, where they are used without gradient: they are
    brought in one of ``staleness`` + 1 epochs. A step's exchanges start in the same order in every epoch."""

    def __init__(self, staleness: int):
        self._period = staleness + 1
        self._rows: dict[int, dict[int, torch.Tensor]] = {}

    def begin(self, epoch: int, step: int) -> None:
        """Note that a step begins."""
        self.fresh, self._number = epoch % self._period == 0, 0
        self._of_step = self._rows.setdefault(step, {})

    def start(self, chain: HaloChain, route: Route, rows: torch.Tensor) -> tuple[int, Exchange | None]:
        """Collective where rows are fresh. Begin an exchange, or look for its rows of an earlier epoch."""
        self._number += 1
        return self._number, chain.start(route, rows) if self.fresh else None

    def finish(self, chain: HaloChain, started: tuple[int, Exchange | None]) -> torch.Tensor:
        """Collective where rows are fresh. Return the remote nodes' rows, and keep them if they are fresh."""
        number, exchange = started
        if exchange is None:
            return self._of_step[number]
        rows = chain.finish(exchange)
        self._of_step[number] = rows.detach()
        return rows


@dataclass(slots=True)
class RankHalo:
    """Brings the rows of a rank's remote nodes, in exchanges that are part of a chain. stale: keeps rows of earlier
    epochs in place of an exchange; None: rows are always fresh."""

    chain: HaloChain
    route: Route
    stale: StaleRows | None = None

    def start(self, rows: torch.Tensor):
        """Collective where rows are fresh. Begin to bring the remote nodes' rows."""
        if self.stale is not None:
            return self.stale.start(self.chain, self.route, rows)
        return self.chain.start(self.route, rows)

    def finish(self, exchange) -> torch.Tensor:
        """Collective where rows are fresh. Return the remote nodes' rows."""
        if self.stale is not None:
            return self.stale.finish(self.chain, exchange)
        return self.chain.finish(exchange)


class _Start(torch.autograd.Function):
    """Forward: an exchange has begun. Backward: waits for the gradients that the users sent."""

    @staticmethod
    def forward(ctx, rows, token, exchange: Exchange):
        ctx.exchange, ctx.shape = exchange, rows.shape
        return token.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, token):
        route, received = ctx.exchange.route, ctx.exchange.chain.wait(ctx.exchange.push)
        gradient = received.new_zeros(ctx.shape)
        native.scatter_rows(gradient, route.served, route.sum_requests(received))
        return gradient, token, None


class _Finish(torch.autograd.Function):
    """Forward: waits for the rows. Backward: sends their gradients on the way."""

    @staticmethod
    def forward(ctx, token, exchange: Exchange):
        ctx.exchange, rows = exchange, exchange.chain.wait(exchange.pull)
        exchange.pull = None  # it would hold the rows, which hold this node: a cycle that is never freed
        return rows, token.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, token):
        exchange = ctx.exchange  # waited for in _Start.backward: what is computed in between overlaps
        exchange.push = exchange.chain.under_way(exchange.route.start_push(gradient.contiguous()))
        return token, None


@dataclass(frozen=True, slots=True)
class Everyone:
    """Takes the place of a ``Route``: pulls the m rows of all ranks [R m, D] in rank order. The gradients of a row are
    summed over ranks, in rank order, at the rank of the row."""

    channel: Channel
    num_rows: int
    device: torch.device

    @property
    def served(self) -> torch.Tensor:
        """Numbers of all rows [m]: each is sent."""
        return torch.arange(self.num_rows, device=self.device)

    def start_pull(self, rows: torch.Tensor) -> Transfer:
        """Collective. Begin to send rows [m, D] to all."""
        return self.channel.start_everyone(rows, self._counts())

    def start_push(self, gradient: torch.Tensor) -> Transfer:
        """Collective. Begin to send the rows' gradients [R m, D] back."""
        return self.channel.start(gradient, self._counts(), self._counts())

    def sum_requests(self, received: torch.Tensor) -> torch.Tensor:
        """Sum the gradients [R m, D] of this rank's rows over ranks: [m, D]."""
        return received.unflatten(0, (self.channel.size, self.num_rows)).sum(0)

    def _counts(self) -> np.ndarray:
        return np.full(self.channel.size, self.num_rows, np.int64)


@dataclass(slots=True)
class RankRows:
    """Brings rows of all ranks, as many of each, in exchanges that are part of a chain."""

    chain: HaloChain
    channel: Channel

    def start(self, rows: torch.Tensor):
        """Collective. Begin to send rows [m, D] to all."""
        return self.chain.start(Everyone(self.channel, len(rows), rows.device), rows)

    def finish(self, exchange) -> torch.Tensor:
        """Collective. Return the rows of all ranks [R m, D]."""
        return self.chain.finish(exchange)
