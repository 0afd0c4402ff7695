"""DySAT (Sankar et al., Deep neural representation learning on dynamic graphs via self-attention networks, 2020).

n nodes of this rank, k sequences, L snapshots of a window, H hidden columns.
"""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.nn.linear import glorot
from hpcgnn.nn.sequence_model import SequenceModel, SequenceSizes, State
from hpcgnn.nn.snapshot import Frame
from hpcgnn.nn.snapshot_config import SnapshotModelConfig
from hpcgnn.nn.snapshot_stacks import GATStack
from hpcgnn.nn.spatial import Distinct


class TemporalAttention(nn.Module):
    """The newest row of every node attends to its rows of the window, each marked with a learnt row of its place; then
    a layer with a residual connection."""

    def __init__(self, config: SnapshotModelConfig, history: int):
        super().__init__()
        hidden, self.heads = config.hidden, config.heads
        self.position = glorot(history, hidden)
        self.query, self.key, self.value = (glorot(hidden, hidden) for _ in range(3))
        self.after = nn.Linear(hidden, hidden)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [L, n, k, H]; returns [n, k, H]."""
        rows = rows + self.position[:, None, None]
        query, key, value = ((some @ w).unflatten(-1, (self.heads, -1)) for some, w in self._sides(rows))
        score = (query * key).sum(-1, keepdim=True) * key.shape[-1] ** -0.5
        found = (torch.softmax(score, dim=0) * value).sum(0).flatten(-2)
        return found + torch.relu(self.after(found))

    def _sides(self, rows: torch.Tensor):
        return (rows[-1:], self.query), (rows, self.key), (rows, self.value)


class DySAT(SequenceModel):
    """Graph attention in every snapshot of a window, then attention over the window."""

    weighs_edges = True

    def __init__(self, config: SnapshotModelConfig, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.structural = GATStack(config, sizes.inputs)
        self.temporal, self.output = TemporalAttention(config, sizes.history), nn.Linear(config.hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        """As in SequenceModel."""
        every = Distinct(frames)
        rows = torch.stack(every.spread(self.structural(every.frames)))
        return [self.output(self.temporal(rows))], state
