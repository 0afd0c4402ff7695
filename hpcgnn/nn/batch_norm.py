"""Batch normalization over the nodes of all ranks, for graphs of all kinds.

n nodes of this rank, N of all R ranks, k snapshots (1 on static graphs), H columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

MOMENTUM, EPSILON = 0.1, 1e-5


class BatchNormBase(nn.Module):
    """Base of batch normalization (Ioffe and Szegedy, Batch normalization, 2015): in training by the mean and the
    variance of the N rows of all ranks, in evaluation by running ones. The running ones move once a step (``settle``),
    toward the means over all that the step normalized. A kind of graphs fills in ``forward``, with the exchange of what
    ``own_moments`` returns."""

    mean: torch.Tensor
    variance: torch.Tensor
    _sums: torch.Tensor | None

    def __init__(self, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self._sums = None

    def scaled(self, rows: torch.Tensor) -> torch.Tensor:
        """Normalize rows [..., H] by the running statistics."""
        return self._scaled(rows, self.mean, self.variance)

    def normalized(
        self, rows: torch.Tensor, moments: tuple[torch.Tensor, torch.Tensor], correction: torch.Tensor | float,
        uses: Sequence[int],
    ) -> torch.Tensor:  # fmt: skip
        """Normalize rows [n, k, H] by their mean and variance [k, H] over all ranks, and note both for ``settle``.
        correction: N / (N - 1); uses [k]: how often each snapshot counts."""
        mean, variance = (moment.detach() for moment in moments)
        counts = mean.new_tensor(uses).unsqueeze(1)
        sums = torch.cat([(counts * mean).sum(0), (counts * (variance * correction)).sum(0), counts.sum(0)])
        self._sums = sums if self._sums is None else self._sums + sums
        return self._scaled(rows, *moments)

    def settle(self, total: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        """Move the running statistics after a training step. total: the sum over groups that split time, collective;
        None: there is but one."""
        sums = self.mean.new_zeros(2 * len(self.mean) + 1) if self._sums is None else self._sums
        sums = sums if total is None else total(sums)
        self._sums = None
        if sums[-1] > 0:
            mean, variance = (sums[:-1] / sums[-1]).chunk(2)
            self.mean.lerp_(mean, MOMENTUM)
            self.variance.lerp_(variance, MOMENTUM)

    def _scaled(self, rows: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        scale = self.weight * torch.rsqrt(variance + EPSILON)
        return torch.addcmul(self.bias - mean * scale, rows, scale)


def norms_of(model: nn.Module) -> list[BatchNormBase]:
    """List the batch normalizations of a model, in the order of its modules, which is the same on all ranks."""
    return [part for part in model.modules() if isinstance(part, BatchNormBase)]


def own_moments(rows: torch.Tensor) -> torch.Tensor:
    """Compute means, then variances of this rank's rows [n, k, H]: [2 k, H], zeros where there are none."""
    if len(rows) == 0:
        return rows.sum(0).repeat(2, 1)
    return torch.cat(torch.var_mean(rows, dim=0, correction=0)[::-1])


def merged_moments(moments: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute mean and variance [k, H] of all rows from the means and variances of every rank [R, 2 k, H] (Chan et al.,
    Updating formulae and a pairwise algorithm for computing sample variances, 1979). counts [R]: rows of each rank, of
    the type of the moments."""
    share = (counts / counts.sum()).view(-1, 1, 1)
    means, variances = moments.chunk(2, dim=1)
    mean = (share * means).sum(0)
    return mean, (share * (variances + (means - mean) ** 2)).sum(0)
