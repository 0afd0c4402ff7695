"""Batch normalization over the nodes of all ranks.

n nodes of this rank, N of all R ranks, k snapshots, H columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hpcgnn.choices import Part
from hpcgnn.snapshots.model.frame import Frame

MOMENTUM, EPSILON = 0.1, 1e-5


class BatchNorm(nn.Module):
    """Batch normalization (Ioffe and Szegedy, Batch normalization, 2015): every snapshot by the mean and the variance
    of all its N rows; in evaluation by running ones. The running ones move once a step (``settle``), toward the means
    over its snapshots. A snapshot counts once for each of the step's frames that has it, so the result depends on
    neither ranks nor groups."""

    mean: torch.Tensor
    variance: torch.Tensor
    _sums: torch.Tensor | None

    def __init__(self, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self._sums = None

    def forward(self, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Normalize the rows [n, k, H] of all frames. Collective in training: one exchange for all of them."""
        if not self.training:
            return [self._scaled(frame_rows, self.mean, self.variance) for frame_rows in rows]
        normalized = []
        for frame, frame_rows, (mean, variance) in zip(frames, rows, _moments(frames, rows), strict=True):
            self._add(frame, mean.detach(), variance.detach())
            normalized.append(self._scaled(frame_rows, mean, variance))
        return normalized

    def settle(self, total: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        """Move the running statistics after a training step. total: the sum over groups that split time, collective;
        None: there is but one."""
        sums = self.mean.new_zeros(2 * len(self.mean) + 1) if self._sums is None else self._sums
        sums = sums if total is None else total(sums)
        self._sums = None
        if sums[-1] > 0:
            mean, variance = (sums[:-1] / sums[-1]).chunk(2)
            self.mean.lerp_(mean, MOMENTUM)
            self.variance.lerp_(variance, MOMENTUM)

    def _add(self, frame: Frame, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Add moments [k, H] to what ``settle`` needs: sums of means and of unbiased variances, and how many
        [2 H + 1]."""
        uses = mean.new_tensor(frame.uses or [1] * len(mean)).unsqueeze(1)
        unbiased = variance * (frame.num_nodes / max(1, frame.num_nodes - 1))
        sums = torch.cat([(uses * mean).sum(0), (uses * unbiased).sum(0), uses.sum(0)])
        self._sums = sums if self._sums is None else self._sums + sums

    def _scaled(self, rows: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        scale = self.weight * torch.rsqrt(variance + EPSILON)
        return torch.addcmul(self.bias - mean * scale, rows, scale)


NORMS = {
    "batch": Part(BatchNorm, "batch normalization in every layer, over all nodes of a snapshot"),
    "none": Part(None, "no normalization"),
}


def _moments(frames: list[Frame], rows: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Collective. Compute the mean and the variance [k, H] of every frame's rows [n, k, H] of all ranks."""
    own, everyone = [_own_moments(frame_rows) for frame_rows in rows], frames[0].everyone
    if everyone is None:
        halves = (moments.chunk(2) for moments in own)
        return [(mean, variance) for mean, variance in halves]
    sent = torch.cat(own)
    received = everyone.finish(everyone.start(sent)).view(-1, *sent.shape)
    return [_merged(part, frames[0].counts) for part in received.split([len(moments) for moments in own], dim=1)]


def _own_moments(rows: torch.Tensor) -> torch.Tensor:
    """Compute means, then variances of this rank's rows [2 k, H]."""
    if len(rows) == 0:
        return rows.sum(0).repeat(2, 1)
    return torch.cat(torch.var_mean(rows, dim=0, correction=0)[::-1])


def _merged(moments: torch.Tensor, counts: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute mean and variance of all rows from the means and variances of every rank [R, 2 k, H] (Chan et al.,
    Updating formulae and a pairwise algorithm for computing sample variances, 1979)."""
    total = sum(counts)
    share = moments.new_tensor([count / total for count in counts]).view(-1, 1, 1)
    means, variances = moments.chunk(2, dim=1)
    mean = (share * means).sum(0)
    return mean, (share * (variances + (means - mean) ** 2)).sum(0)
