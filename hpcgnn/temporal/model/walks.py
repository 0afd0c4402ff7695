"""Random projections of temporal walks, and the numbers of pairs that are made of them (Lu et al., Improving temporal
link prediction via temporal walk matrix projection, TPNet, 2024).

A walk of l steps passes l events, each later than the one after it: the first step from a node is its newest event. At
time t, each event of time s gives the walk a factor exp(-(t - s) / scale), and entry (u, w) of the walk matrix A_l is
the sum over all walks of l steps from u to w. No node keeps a row of A_l; it keeps its product with one random matrix,
whose row of w is P_0(w): P_l(u) = sum of A_l(u, w) P_0(w). An event (u, v, s) adds exp(-(t - s) / scale) P_{l-1}(v) to
P_l(u), and the same with both ends exchanged. Inner products of projections are near the products of rows of A_l.

A node keeps C = 1 + K S projections of width D, for walks of up to K steps and S time scales: P_0, then P_1 to P_K of
the first scale, and so on. They are as of the time of the node's last event, so that no number grows with time. n
nodes, b events, k negatives of an event, U unique nodes, F numbers of a pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hpcgnn import native
from hpcgnn.native import Random, Stream
from hpcgnn.temporal.memory import NEVER
from hpcgnn.temporal.model.pairs import MOST_NUMBERS
from hpcgnn.temporal.plan import Query

RESOLUTION = (1 << 32) - 1  # of uniform numbers


def draw_projections(flat_row: np.ndarray, width: int, seed: int) -> torch.Tensor:
    """Draw P_0 of nodes with flat row ids [n]: normal numbers of variance 1 / width, [n, width] float64, a function of
    seed and flat row id (Box and Muller, A note on the generation of random normal deviates, 1958)."""
    half = -(-width // 2)
    draws = native.random_integers(Random(seed, Stream.WALK), flat_row, 2 * half, RESOLUTION)
    unit = (draws + 0.5) / RESOLUTION
    radius, angle = np.sqrt(-2 / width * np.log(unit[:, :half])), 2 * math.pi * unit[:, half:]
    return torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :width].copy())


@dataclass(frozen=True)
class Walks:
    """The projections of a node. width: D of each; steps: K of the longest walks; scales: S times above 0 in which a
    step loses the factor e, in the graph's unit of time."""

    width: int
    steps: int
    scales: tuple[float, ...]

    @property
    def count(self) -> int:
        """C, the number of projections."""
        return 1 + self.steps * len(self.scales)

    @property
    def num_numbers(self) -> int:
        """F, the numbers of a pair: products among the projections of each node, and of one with the other's."""
        return self.count * (self.count + 1) + self.count**2

    def decay(self, since: torch.Tensor) -> torch.Tensor:
        """Compute the factors [..., C] float64 of projections after a time ``since`` [...] int64."""
        rates = [0.0, *(step / scale for scale in self.scales for step in range(1, self.steps + 1))]
        return torch.exp(-since.unsqueeze(-1) * torch.tensor(rates, dtype=torch.float64, device=since.device))

    def at(self, rows: torch.Tensor, last: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return the projections [n, C, D] of nodes at times [n] from their rows [n, C D] as of times ``last`` [n],
        NEVER for nodes without an event."""
        return self.apart(rows) * self.decay(since(last, time)).to(rows.dtype).unsqueeze(-1)

    def apart(self, rows: torch.Tensor) -> torch.Tensor:
        """View rows [..., C D] as [..., C, D]."""
        return rows.unflatten(-1, (self.count, self.width))

    def sent(self, rows: torch.Tensor, last: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return what nodes [n] add to the projections of their partners in events of times [n]: [n, (C - 1) D], to
        each walk the one that is a step shorter."""
        at = self.at(rows, last, time)
        shorter = [at[:, :1], at[:, 1:].unflatten(1, (-1, self.steps))[:, :, :-1]]
        return torch.cat([shorter[0].unsqueeze(1).expand(-1, len(self.scales), -1, -1), shorter[1]], 2).flatten(1)

    def moved(
        self, rows: torch.Tensor, last: torch.Tensor, came: torch.Tensor, time: torch.Tensor, indptr: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add what came [m, (C - 1) D] with events of times [m], grouped by node (indptr [n + 1]) and in order of time,
        to rows [n, C D] as of times ``last`` [n]. Returns the rows as of the newest event, and its time [n]."""
        newest, lengths = time[indptr[1:] - 1], indptr.diff()
        weight = self.decay(newest.repeat_interleave(lengths) - time)[:, 1:].to(rows.dtype)
        came = came.unflatten(1, (self.count - 1, self.width)) * weight.unsqueeze(2)
        sums = native.segment_sum_rows(came.flatten(1), indptr, torch.arange(len(time), device=time.device))
        moved = self.at(rows, last, newest).flatten(1)
        moved[:, self.width :] += sums
        return moved, newest

    def numbers(self, rows: torch.Tensor, last: torch.Tensor, query: Query) -> torch.Tensor:
        """Compute the numbers [1 + k, b, F] of the pairs of a query's events and of their negatives at their times,
        from the rows [U, C D] of the unique nodes as of times ``last`` [U]."""
        sources, destinations = query.pairs(query.root)
        shape, several = destinations.shape, len(sources) > 1
        time = query.pairs(query.time)[1]
        # All pairs of an event with one source are products of two matrices.
        one, other = (ends.reshape(-1, 1) if several else ends.T for ends in (sources, destinations))
        time = time.reshape(-1) if several else time[0]
        most = max(1, MOST_NUMBERS // (other.shape[1] * max(rows.shape[1], self.num_numbers)))
        pieces = zip(*(table.split(most) for table in (one, other, time)), strict=True)
        numbers = torch.cat([self.among(rows, last, *piece) for piece in pieces])
        return numbers.view(*shape, self.num_numbers) if several else numbers[:, 0].transpose(0, 1)

    def among(
        self, rows: torch.Tensor, last: torch.Tensor, one: torch.Tensor, other: torch.Tensor, time: torch.Tensor
    ) -> torch.Tensor:
        """Compute the numbers [n, i, j, F] of the pairs of each of nodes ``one`` [n, i] with each of nodes ``other``
        [n, j] at times [n]: log(1 + max(0, x)) of the products x among projections of the first node, of the second
        one, and of one with the other. Nodes are rows of ``rows`` [U, C D] as of times ``last`` [U]; -1: none, which
        has projections 0."""
        projections, (a, b) = self.apart(rows), torch.tril_indices(self.count, self.count)
        own = (projections @ projections.transpose(1, 2))[:, a, b].contiguous()
        ends, factors, products = [], [], []
        for nodes in (one, other):
            factor = self.decay(since(last[nodes.clamp(min=0)], time.unsqueeze(1))).to(rows.dtype)
            of_node, of_pair = (
                native.gather_rows(table, nodes.flatten()).view(*nodes.shape, table.shape[1]) for table in (rows, own)
            )
            ends.append(self.apart(of_node))
            factors.append(factor)
            products.append(of_pair * factor[..., a] * factor[..., b])
        # Products are fewer than the numbers of projections: they get the factors.
        cross = torch.einsum("nicd,njed->nijce", *ends)
        cross = cross * factors[0][:, :, None, :, None] * factors[1][:, None, :, None, :]
        shape = cross.shape[:3]
        left, right = products[0].unsqueeze(2), products[1].unsqueeze(1)
        x = torch.cat([left.expand(*shape, -1), right.expand(*shape, -1), cross.flatten(3)], dim=3)
        return x.relu_().log1p_()


def since(last: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
    """Return the times since ``last``, int64, 0 for NEVER."""
    return torch.where(last == NEVER, 0, time - last)


class WalkUpdater(nn.Module):
    """Rows that events alone change, without weights: see ``Walks.moved``."""

    def forward(self, state, mail, updated, mailed, delivered, index=None) -> torch.Tensor:
        """Return rows ``index`` of the states [n, C D], None: all."""
        return state if index is None else native.gather_rows(state, index)
