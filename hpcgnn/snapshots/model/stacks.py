"""Layers within each snapshot, models of such layers alone, and attention over their outputs in time.

n nodes of this rank, k sequences, L snapshots of a window, I input, H hidden columns.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpcgnn.nn.aggregation import glorot
from hpcgnn.snapshots.model.batch_norm import NORMS
from hpcgnn.snapshots.model.frame import Frame, SequenceModel, SequenceSizes, State
from hpcgnn.snapshots.model.spatial import Distinct, attend_all, propagate_all, smooth_all


class Stack(nn.Module):
    """Layers one behind the other, with dropout between them: matrices weight [I, H] and biases, and further parameters
    of a kind of layers. Kinds fill in ``first`` and ``other``, which form a layer's rows, and ``activate``. norm_last:
    batch normalization follows the activation.

    Sums over neighbors and attention are shared with static graphs (``nn.aggregation``). Parameters are not: here a
    product comes before its rows travel, while products of blocks are fused with the sums, and checkpoints have both by
    their names.
    """

    activate = staticmethod(torch.relu)

    def __init__(self, config: Any, inputs: int, norm_last: bool = False):
        super().__init__()
        self.widths = list(itertools.pairwise([inputs, *[config.hidden] * config.layers]))
        self.weight = nn.ParameterList(glorot(*pair) for pair in self.widths)
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(after)) for _, after in self.widths)
        self.p, self._norm_last = config.dropout, norm_last
        make_norm = NORMS[config.norm].make
        self.norm = None if make_norm is None else nn.ModuleList(make_norm(config.hidden) for _ in self.widths)

    def first(self, frames: list[Frame]) -> list[torch.Tensor]:
        """Collective. Form the first layer's rows [n, k, H] of every frame from its inputs, without the bias."""
        return self.other(0, frames, [frame.inputs for frame in frames])

    def other(self, number: int, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Collective. Form the rows of a further layer from the rows of the layer below, without the bias."""
        raise NotImplementedError

    def layers(self, frames: list[Frame]) -> list[list[torch.Tensor]]:
        """Collective. Return the rows [n, k, H] of every frame, layer by layer."""
        layers = [self.layer(0, frames)]
        for number in range(1, len(self.bias)):
            layers.append(self.layer(number, frames, layers[-1]))
        return layers

    def layer(self, number: int, frames: list[Frame], rows: list[torch.Tensor] | Any = None) -> list[torch.Tensor]:
        """Collective. Return the rows [n, k, H] of a layer, formed from rows of the one below, or, the first one's,
        from the inputs."""
        if number:
            dropped = [frame.drop(below, number, self.p) for frame, below in zip(frames, rows, strict=True)]
            rows = self.other(number, frames, dropped)
        else:
            rows = self.first(frames)
        rows = [frame_rows + self.bias[number] for frame_rows in rows]
        if self.norm is not None and not self._norm_last:
            rows = self.norm[number](frames, rows)
        rows = [self.activate(frame_rows) for frame_rows in rows]
        return self.norm[number](frames, rows) if self.norm is not None and self._norm_last else rows

    def forward(self, frames: list[Frame]) -> list[torch.Tensor]:
        """Collective. Return the last layer's rows [n, k, H] of every frame."""
        return self.layers(frames)[-1]


class GCNStack(Stack):
    """Graph convolutions (Kipf and Welling, Semi-supervised classification with graph convolutional networks, 2017)."""

    def first(self, frames: list[Frame]) -> list[torch.Tensor]:
        return [rows @ self.weight[0] for rows in smooth_all(frames, "gcn")]

    def other(self, number: int, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        return propagate_all(frames, "gcn", [below @ self.weight[number] for below in rows])


class SAGEStack(Stack):
    """GraphSAGE: a node's own row and the mean of its neighbors', each times a matrix (Hamilton et al., Inductive
    representation learning on large graphs, 2017); edge weights weigh the mean."""

    def __init__(self, config: Any, inputs: int):
        super().__init__(config, inputs)
        self.around = nn.ParameterList(glorot(*pair) for pair in self.widths)

    def first(self, frames: list[Frame]) -> list[torch.Tensor]:
        pairs = zip(frames, smooth_all(frames, "mean"), strict=True)
        return [frame.inputs @ self.weight[0] + mean @ self.around[0] for frame, mean in pairs]

    def other(self, number: int, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        means = propagate_all(frames, "mean", [below @ self.around[number] for below in rows])
        return [below @ self.weight[number] + mean for below, mean in zip(rows, means, strict=True)]


class GATStack(Stack):
    """Attention over a node's neighbors and itself (Velickovic et al., Graph attention networks, 2018), the rows of
    all heads side by side."""

    activate = staticmethod(functional.elu)

    def __init__(self, config: Any, inputs: int):
        super().__init__(config, inputs)
        shape = config.heads, config.hidden // config.heads
        self.source, self.target = (nn.ParameterList(glorot(*shape) for _ in self.widths) for _ in range(2))

    def other(self, number: int, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        values = [below @ self.weight[number] for below in rows]
        return attend_all(frames, values, self.source[number], self.target[number])


class PlainModel(SequenceModel):
    """A stack's rows of every snapshot, with no memory of the snapshots before. Kinds fill in ``stack``."""

    stack: type[Stack]

    def __init__(self, config: Any, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.layers, self.output = self.stack(config, sizes.inputs), nn.Linear(config.hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        every = Distinct(self.asked(frames))
        return every.spread([self.output(rows) for rows in self.layers(every.frames)]), state


class PlainGCN(PlainModel):
    """Graph convolutions within each snapshot."""

    stack = GCNStack


class PlainSAGE(PlainModel):
    """GraphSAGE within each snapshot."""

    stack = SAGEStack


class PlainGAT(PlainModel):
    """Graph attention within each snapshot."""

    stack = GATStack
    weighs_edges = True


class TemporalAttention(nn.Module):
    """Lets the newest row of every node attend to its rows of the window, each marked with a learned row of its place;
    then a layer with a residual connection."""

    def __init__(self, config: Any, history: int):
        super().__init__()
        hidden, self.heads = config.hidden, config.heads
        self.position = glorot(history, hidden)
        self.query, self.key, self.value = (glorot(hidden, hidden) for _ in range(3))
        self.after = nn.Linear(hidden, hidden)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Attend over the window. rows [L, n, k, H]; returns [n, k, H]."""
        rows = rows + self.position[:, None, None]
        sides = (rows[-1:], self.query), (rows, self.key), (rows, self.value)
        query, key, value = ((side @ weight).unflatten(-1, (self.heads, -1)) for side, weight in sides)
        score = (query * key).sum(-1, keepdim=True) * key.shape[-1] ** -0.5
        attended = (torch.softmax(score, dim=0) * value).sum(0).flatten(-2)
        return attended + torch.relu(self.after(attended))


class DySAT(SequenceModel):
    """Graph attention in every snapshot of a window, then attention over the window."""

    weighs_edges = True

    def __init__(self, config: Any, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.structural = GATStack(config, sizes.inputs)
        self.temporal, self.output = TemporalAttention(config, sizes.history), nn.Linear(config.hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        every = Distinct(frames)
        rows = torch.stack(every.spread(self.structural(every.frames)))
        return [self.output(self.temporal(rows))], state
