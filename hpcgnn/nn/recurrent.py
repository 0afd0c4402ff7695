"""Graph convolutions of every snapshot, and gated units over them.

n nodes of this rank, k sequences, I input, H hidden, C output columns.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn

from hpcgnn.nn.convolutions import glorot
from hpcgnn.nn.gates import GatedCell, MemoryCell
from hpcgnn.nn.sequence_model import SequenceModel, SequenceSizes, State
from hpcgnn.nn.snapshot import Frame
from hpcgnn.nn.snapshot_config import SnapshotModelConfig
from hpcgnn.nn.spatial import Distinct, propagate_all, smooth_all


class Stack(nn.Module):
    """Graph convolutions (Kipf and Welling, 2017) one behind the other, with dropout and relu between them."""

    def __init__(self, config: SnapshotModelConfig, inputs: int):
        super().__init__()
        widths = [inputs, *[config.hidden] * config.layers]
        self.weight = nn.ParameterList(glorot(before, after) for before, after in itertools.pairwise(widths))
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths[1:])
        self.p = config.dropout

    def layers(self, frames: list[Frame]) -> list[list[torch.Tensor]]:
        """Collective. The rows [n, k, H] of every frame, layer by layer, before relu."""
        found = [[rows @ self.weight[0] + self.bias[0] for rows in smooth_all(frames, "gcn")]]
        for number, (weight, bias) in enumerate(zip(self.weight[1:], self.bias[1:], strict=True), start=1):
            pairs = zip(frames, found[-1], strict=True)
            sent = [frame.drop(torch.relu(rows), number, self.p) @ weight for frame, rows in pairs]
            found.append([rows + bias for rows in propagate_all(frames, "gcn", sent)])
        return found

    def forward(self, frames: list[Frame]) -> list[torch.Tensor]:
        """Collective. The last layer's [n, k, H] of every frame, rectified."""
        return [torch.relu(rows) for rows in self.layers(frames)[-1]]


class PlainGCN(SequenceModel):
    """Graph convolutions of every snapshot by itself."""

    def __init__(self, config: SnapshotModelConfig, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.stack, self.output = Stack(config, sizes.inputs), nn.Linear(config.hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        """As in SequenceModel."""
        every = Distinct(self.asked(frames))
        return every.spread([self.output(rows) for rows in self.stack(every.frames)]), state


class TGCN(SequenceModel):
    """T-GCN (Zhao et al., A temporal graph convolutional network for traffic prediction, 2019): a gated unit over graph
    convolutions of the inputs. The convolution's matrix and the gates' matrix for it, one behind the other, are one."""

    def __init__(self, config: SnapshotModelConfig, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.node_state = {"hidden": config.hidden}
        self.below = Stack(config, sizes.inputs) if config.layers > 1 else None
        width = config.hidden if self.below else sizes.inputs
        self.weight, self.bias = glorot(width, 3 * config.hidden), nn.Parameter(torch.zeros(3 * config.hidden))
        self.cell, self.output = GatedCell(config.hidden), nn.Linear(config.hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        """As in SequenceModel."""
        hidden = self.hidden(frames, state)
        return [self.output(torch.relu(rows)) for rows in self.asked(hidden)], {"hidden": hidden[-1]}

    def hidden(self, frames: list[Frame], state: State) -> list[torch.Tensor]:
        """Collective. Hidden rows [n, k, H] after every frame."""
        every, found = Distinct(frames), []
        rows = smooth_all(every.frames, "gcn") if self.below is None else self.below(every.frames)
        ahead = every.spread([some @ self.weight + self.bias for some in rows])
        hidden = state["hidden"]
        for given in ahead:
            hidden = self.cell(given, hidden)
            found.append(hidden)
        return found


class A3TGCN(TGCN):
    """A3T-GCN (Zhu et al., Attention temporal graph convolutional network for traffic forecasting, 2020): T-GCN whose
    hidden rows of a window are weighed by a learnt score of each, for every node."""

    def __init__(self, config: SnapshotModelConfig, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.score = nn.Sequential(nn.Linear(config.hidden, config.hidden), nn.Linear(config.hidden, 1))

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        """As in SequenceModel."""
        hidden = torch.stack(self.hidden(frames, state))
        context = (torch.softmax(self.score(hidden), dim=0) * hidden).sum(0)
        return [self.output(torch.relu(context))], {"hidden": hidden[-1]}


class MPNNLSTM(SequenceModel):
    """MPNN-LSTM (Panagopoulos et al., Transfer graph neural networks for pandemic forecasting, 2021): the rows of all
    graph convolutions, side by side, then two LSTM layers; the output sees both of these and the inputs. Without the
    paper's batch normalisation."""

    def __init__(self, config: SnapshotModelConfig, sizes: SequenceSizes):
        super().__init__(config, sizes)
        hidden = config.hidden
        self.node_state = {name: hidden for name in ("hidden0", "cell0", "hidden1", "cell1")}
        self.stack = Stack(config, sizes.inputs)
        self.weight = nn.ParameterList([glorot(config.layers * hidden, 4 * hidden), glorot(hidden, 4 * hidden)])
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(4 * hidden)) for _ in range(2))
        self.cells = nn.ModuleList(MemoryCell(hidden) for _ in range(2))
        self.output = nn.Linear(2 * hidden + sizes.inputs, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        """As in SequenceModel."""
        every, found = Distinct(frames), []
        layers = [[torch.relu(rows) for rows in layer] for layer in self.stack.layers(every.frames)]
        ahead = every.spread([torch.cat(rows, dim=2) for rows in zip(*layers, strict=True)])
        state = dict(state)
        for rows in ahead:
            for number, (weight, bias, cell) in enumerate(zip(self.weight, self.bias, self.cells, strict=True)):
                names = f"hidden{number}", f"cell{number}"
                rows, memory = cell(rows @ weight + bias, *[state[name] for name in names])
                state.update(zip(names, (rows, memory), strict=True))
            found.append((state["hidden0"], rows))
        pairs = zip(self.asked(frames), self.asked(found), strict=True)
        return [self.output(torch.cat([*hidden, frame.inputs], dim=2)) for frame, hidden in pairs], state
