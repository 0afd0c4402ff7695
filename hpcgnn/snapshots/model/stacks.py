"""Layers of every snapshot by itself, the models that are nothing else, and attention over their outputs in time.

n nodes of this rank, k sequences, L snapshots of a window, I input, H hidden columns.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpcgnn.nn.linear import glorot
from hpcgnn.snapshots.config import BATCH, SnapshotModelConfig
from hpcgnn.snapshots.model.batch_norm import BatchNorm
from hpcgnn.snapshots.model.frame import Frame, SequenceModel, SequenceSizes, State
from hpcgnn.snapshots.model.spatial import Distinct, attend_all, propagate_all, smooth_all


class Stack(nn.Module):
    """Layers one behind the other, with dropout between them: matrices weight [I, H] and biases, and what a kind of
    layers adds. Kinds fill in ``first`` and ``other``, which form a layer's rows, and ``activate``. norm_last: batch
    normalisation follows the activation."""

    activate = staticmethod(torch.relu)

    def __init__(self, config: SnapshotModelConfig, inputs: int, norm_last: bool = False):
        super().__init__()
        self.widths = list(itertools.pairwise([inputs, *[config.hidden] * config.layers]))
        self.weight = nn.ParameterList(glorot(*pair) for pair in self.widths)
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(after)) for _, after in self.widths)
        self.p, self._norm_last = config.dropout, norm_last
        self.norm = nn.ModuleList(BatchNorm(config.hidden) for _ in self.widths) if config.norm == BATCH else None

    def first(self, frames: list[Frame]) -> list[torch.Tensor]:
        """Collective. Rows [n, k, H] of every frame from its inputs, without the bias."""
        return self.other(0, frames, [frame.inputs for frame in frames])

    def other(self, number: int, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Collective. Rows of this layer from those of the layer below."""
        raise NotImplementedError

    def layers(self, frames: list[Frame]) -> list[list[torch.Tensor]]:
        """Collective. The rows [n, k, H] of every frame, layer by layer."""
        found = [self.layer(0, frames)]
        for number in range(1, len(self.bias)):
            found.append(self.layer(number, frames, found[-1]))
        return found

    def layer(self, number: int, frames: list[Frame], rows: list[torch.Tensor] | Any = None) -> list[torch.Tensor]:
        """Collective. The rows [n, k, H] of a layer from those of the one below, the first one's from the inputs."""
        if number:
            rows = [frame.drop(some, number, self.p) for frame, some in zip(frames, rows, strict=True)]
        found = self.other(number, frames, rows) if number else self.first(frames)
        found = [some + self.bias[number] for some in found]
        if self.norm is None:
            return [self.activate(some) for some in found]
        if self._norm_last:
            return self.norm[number](frames, [self.activate(some) for some in found])
        return [self.activate(some) for some in self.norm[number](frames, found)]

    def forward(self, frames: list[Frame]) -> list[torch.Tensor]:
        """Collective. The last layer's [n, k, H] of every frame."""
        return self.layers(frames)[-1]


class GCNStack(Stack):
    """Graph convolutions (Kipf and Welling, Semi-supervised classification with graph convolutional networks, 2017)."""

    def first(self, frames: list[Frame]) -> list[torch.Tensor]:
        return [rows @ self.weight[0] for rows in smooth_all(frames, "gcn")]

    def other(self, number: int, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        return propagate_all(frames, "gcn", [some @ self.weight[number] for some in rows])


class SAGEStack(Stack):
    """A node's own row and the mean of its neighbours', each times a matrix (Hamilton et al., Inductive representation
    learning on large graphs, 2017); edge weights weigh the mean."""

    def __init__(self, config: SnapshotModelConfig, inputs: int):
        super().__init__(config, inputs)
        self.around = nn.ParameterList(glorot(*pair) for pair in self.widths)

    def first(self, frames: list[Frame]) -> list[torch.Tensor]:
        pairs = zip(frames, smooth_all(frames, "mean"), strict=True)
        return [frame.inputs @ self.weight[0] + mean @ self.around[0] for frame, mean in pairs]

    def other(self, number: int, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        means = propagate_all(frames, "mean", [some @ self.around[number] for some in rows])
        return [some @ self.weight[number] + mean for some, mean in zip(rows, means, strict=True)]


class GATStack(Stack):
    """Attention over a node's neighbours and itself (Velickovic et al., Graph attention networks, 2018), the rows of
    all heads side by side."""

    activate = staticmethod(functional.elu)

    def __init__(self, config: SnapshotModelConfig, inputs: int):
        super().__init__(config, inputs)
        shape = config.heads, config.hidden // config.heads
        self.source, self.target = (nn.ParameterList(glorot(*shape) for _ in self.widths) for _ in range(2))

    def other(self, number: int, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        values = [some @ self.weight[number] for some in rows]
        return attend_all(frames, values, self.source[number], self.target[number])


class PlainModel(SequenceModel):
    """A stack's rows of every snapshot, with no memory of those before."""

    stack: type[Stack]

    def __init__(self, config: SnapshotModelConfig, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.layers, self.output = self.stack(config, sizes.inputs), nn.Linear(config.hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        every = Distinct(self.asked(frames))
        return every.spread([self.output(rows) for rows in self.layers(every.frames)]), state


class PlainGCN(PlainModel):
    """Graph convolutions."""

    stack = GCNStack


class PlainSAGE(PlainModel):
    """GraphSAGE with means."""

    stack = SAGEStack


class PlainGAT(PlainModel):
    """Graph attention."""

    stack, weighs_edges = GATStack, True


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
        every = Distinct(frames)
        rows = torch.stack(every.spread(self.structural(every.frames)))
        return [self.output(self.temporal(rows))], state
