"""Halo exchange with gradients: rows of remote neighbours inside a model that all ranks compute together.

A rank whose loss does not depend on what it pulled would leave the others waiting in the backward pass, and autograd
promises no order of independent operations. So the exchanges of a forward pass form a chain: each takes a token from
the one before, the loss takes the last one. Every rank then runs every adjoint, in exactly the reverse order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Transfer
from hpcgnn.comm.route import Pull, Route


@dataclass(slots=True)
class Exchange:
    """One exchange of a chain, under way between ``start`` and ``finish`` (forward: rows to their users; backward:
    gradients to their owners)."""

    route: Route
    pull: Pull
    chained: bool
    push: Transfer | None = None


class HaloChain:
    """The exchanges of one forward pass. All ranks start and finish the same ones in the same order."""

    def __init__(self):
        self._token: torch.Tensor | None = None

    def start(self, route: Route, rows: torch.Tensor) -> Exchange:
        """Collective. Begin to bring the owners' rows [n, D] to those who want them; what is computed until ``finish``
        needs none of them and overlaps the exchange, forward and backward. ``rows`` must not change meanwhile.

        Rows without gradient, on all ranks alike, take no part in the backward pass.
        """
        chained = rows.requires_grad and torch.is_grad_enabled()
        exchange = Exchange(route, route.start_pull(rows.detach()), chained)
        if chained:
            if self._token is None:
                self._token = torch.zeros((), dtype=rows.dtype, device=rows.device, requires_grad=True)
            self._token = _Start.apply(rows, self._token, exchange)
        return exchange

    def finish(self, exchange: Exchange) -> torch.Tensor:
        """Collective. The wanted rows [W, D] of an exchange that was started."""
        if not exchange.chained:
            return exchange.pull.wait()
        rows, self._token = _Finish.apply(self._token, exchange)
        return rows

    def pull(self, route: Route, rows: torch.Tensor) -> torch.Tensor:
        """Collective. The wanted rows [W, D]."""
        return self.finish(self.start(route, rows))

    def tie(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss, with zero times the last token: its backward pass runs all adjoints, also where it depends on no
        exchange. The chain begins anew."""
        token, self._token = self._token, None
        return loss if token is None else loss + 0 * token.to(loss.dtype)


class _Start(torch.autograd.Function):
    """Forward: an exchange has begun. Backward: waits for the gradients that the users sent."""

    @staticmethod
    def forward(ctx, rows, token, exchange: Exchange):
        ctx.exchange, ctx.shape = exchange, rows.shape
        return token.clone()

    @staticmethod
    def backward(ctx, token):
        route, received = ctx.exchange.route, ctx.exchange.push.wait()
        gradient = received.new_zeros(ctx.shape)
        native.scatter_rows(gradient, route.served, route.sum_requests(received))
        return gradient, token, None


class _Finish(torch.autograd.Function):
    """Forward: waits for the rows. Backward: sends their gradients on the way."""

    @staticmethod
    def forward(ctx, token, exchange: Exchange):
        ctx.exchange = exchange
        return exchange.pull.wait(), token.clone()

    @staticmethod
    def backward(ctx, gradient, token):
        ctx.exchange.push = ctx.exchange.route.start_push(gradient.contiguous())
        return token, None
