"""Gated units over graph convolutions of every snapshot.

n nodes of this rank, k sequences, H hidden columns.
"""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.nn.affine import affine, relu
from hpcgnn.nn.gates import GatedCell, MemoryCell
from hpcgnn.nn.linear import glorot
from hpcgnn.nn.sequence_model import SequenceModel, SequenceSizes, State
from hpcgnn.nn.snapshot import Frame
from hpcgnn.nn.snapshot_config import SnapshotModelConfig
from hpcgnn.nn.snapshot_stacks import GCNStack
from hpcgnn.nn.spatial import Distinct, smooth_all


class TGCN(SequenceModel):
    """T-GCN (Zhao et al., A temporal graph convolutional network for traffic prediction, 2019): a gated unit over graph
    convolutions of the inputs. The convolution's matrix and the gates' matrix for it, one behind the other, are one."""

    def __init__(self, config: SnapshotModelConfig, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.node_state = {"hidden": config.hidden}
        self.below = GCNStack(config, sizes.inputs) if config.layers > 1 else None
        width = config.hidden if self.below else sizes.inputs
        self.weight, self.bias = glorot(width, 3 * config.hidden), nn.Parameter(torch.zeros(3 * config.hidden))
        self.cell, self.output = GatedCell(config.hidden), nn.Linear(config.hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        """As in SequenceModel."""
        hidden = self.hidden(frames, state)
        return [self.output(relu(rows)) for rows in self.asked(hidden)], {"hidden": hidden[-1]}

    def hidden(self, frames: list[Frame], state: State) -> list[torch.Tensor]:
        """Collective. Hidden rows [n, k, H] after every frame."""
        every, found = Distinct(frames), []
        rows = smooth_all(every.frames, "gcn") if self.below is None else self.below(every.frames)
        ahead = every.spread([affine(some, self.weight, self.bias) for some in rows])
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
        return [self.output(relu(context))], {"hidden": hidden[-1]}


class MPNNLSTM(SequenceModel):
    """MPNN-LSTM (Panagopoulos et al., Transfer graph neural networks for pandemic forecasting, 2021): the rows of all
    graph convolutions, side by side, then two LSTM layers; the output sees both of these and the inputs. Batch
    normalisation follows each activation, as in the authors' program."""

    def __init__(self, config: SnapshotModelConfig, sizes: SequenceSizes):
        super().__init__(config, sizes)
        hidden = config.hidden
        self.node_state = {name: hidden for name in ("hidden0", "cell0", "hidden1", "cell1")}
        self.stack = GCNStack(config, sizes.inputs, norm_last=True)
        self.weight = nn.ParameterList([glorot(config.layers * hidden, 4 * hidden), glorot(hidden, 4 * hidden)])
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(4 * hidden)) for _ in range(2))
        self.cells = nn.ModuleList(MemoryCell(hidden) for _ in range(2))
        self.output = nn.Linear(2 * hidden + sizes.inputs, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        """As in SequenceModel."""
        every, found = Distinct(frames), []
        layers = self.stack.layers(every.frames)
        ahead = every.spread([torch.cat(rows, dim=2) for rows in zip(*layers, strict=True)])
        state = dict(state)
        for rows in ahead:
            for number, (weight, bias, cell) in enumerate(zip(self.weight, self.bias, self.cells, strict=True)):
                names = f"hidden{number}", f"cell{number}"
                rows, memory = cell(affine(rows, weight, bias), *[state[name] for name in names])
                state.update(zip(names, (rows, memory), strict=True))
            found.append((state["hidden0"], rows))
        pairs = zip(self.asked(frames), self.asked(found), strict=True)
        return [self.output(torch.cat([*hidden, frame.inputs], dim=2)) for frame, hidden in pairs], state
