"""Batch normalization of snapshots, over the nodes of all ranks.

n nodes of this rank, N of all R ranks, k snapshots, H columns.
"""

from __future__ import annotations

import torch

from hpcgnn.choices import Part
from hpcgnn.nn.batch_norm import BatchNormBase, merged_moments, own_moments
from hpcgnn.snapshots.model.frame import Frame


class BatchNorm(BatchNormBase):
    """Batch normalization of every snapshot by the mean and the variance of all its N rows. A snapshot counts once for
    each of the step's frames that has it, so the result depends on neither ranks nor groups."""

    def forward(self, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Normalize the rows [n, k, H] of all frames. Collective in training: one exchange for all of them."""
        if not self.training:
            return [self.scaled(frame_rows) for frame_rows in rows]
        correction = frames[0].num_nodes / max(1, frames[0].num_nodes - 1)
        return [
            self.normalized(frame_rows, moments, correction, frame.uses or [1] * len(moments[0]))
            for frame, frame_rows, moments in zip(frames, rows, _moments(frames, rows), strict=True)
        ]


NORMS = {
    "batch": Part(BatchNorm, "batch normalization in every layer, over all nodes of a snapshot"),
    "none": Part(None, "no normalization"),
}


def _moments(frames: list[Frame], rows: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Collective. Compute the mean and the variance [k, H] of every frame's rows [n, k, H] of all ranks."""
    own, everyone = [own_moments(frame_rows) for frame_rows in rows], frames[0].everyone
    if everyone is None:
        halves = (moments.chunk(2) for moments in own)
        return [(mean, variance) for mean, variance in halves]
    sent = torch.cat(own)
    received = everyone.finish(everyone.start(sent)).view(-1, *sent.shape)
    counts = sent.new_tensor(frames[0].counts)
    return [merged_moments(part, counts) for part in received.split([len(moments) for moments in own], dim=1)]
