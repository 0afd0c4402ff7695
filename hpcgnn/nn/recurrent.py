"""Graph convolutions of every snapshot, and gated units over them.

n nodes of this rank, k sequences, I input, H hidden, C output columns.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn

from hpcgnn.nn.convolutions import glorot
from hpcgnn.nn.sequence_model import SequenceModel, SequenceSizes, State
from hpcgnn.nn.snapshot import Frame
from hpcgnn.nn.snapshot_config import SnapshotModelConfig


class Stack(nn.Module):
    """Graph convolutions (Kipf and Welling, 2017) one behind the other, with dropout and relu between them."""

    def __init__(self, config: SnapshotModelConfig, inputs: int):
        super().__init__()
        widths = [inputs, *[config.hidden] * config.layers]
        self.weight = nn.ParameterList(glorot(before, after) for before, after in itertools.pairwise(widths))
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths[1:])
        self.p = config.dropout

    def forward(self, frame: Frame) -> torch.Tensor:
        """Collective. [n, k, H]."""
        rows = frame.smooth("gcn") @ self.weight[0] + self.bias[0]
        for number, (weight, bias) in enumerate(zip(self.weight[1:], self.bias[1:], strict=True), start=1):
            rows = frame.drop(torch.relu(rows), number, self.p)
            rows = frame.propagate("gcn", rows @ weight) + bias
        return rows


class PlainGCN(SequenceModel):
    """Graph convolutions of every snapshot by itself."""

    def __init__(self, config: SnapshotModelConfig, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.stack, self.output = Stack(config, sizes.inputs), nn.Linear(config.hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        """As in SequenceModel."""
        return [self.output(torch.relu(self.stack(frame))) for frame in frames], state


class GatedCell(nn.Module):
    """A GRU whose input part comes ready made: h' = z h + (1 - z) tanh(g_c + (r h) V_c), z and r = sigmoid(g + h V)."""

    def __init__(self, hidden: int):
        super().__init__()
        self.gates, self.candidate = glorot(hidden, 2 * hidden), glorot(hidden, hidden)

    def forward(self, given: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """given [..., 3 H] (update | reset | candidate), hidden [..., H]."""
        width = hidden.shape[-1]
        update, reset = torch.sigmoid(given[..., : 2 * width] + hidden @ self.gates).chunk(2, dim=-1)
        candidate = torch.tanh(given[..., 2 * width :] + (reset * hidden) @ self.candidate)
        return torch.lerp(candidate, hidden, update)


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
        ahead, outputs = [self._given(frame) for frame in frames], []
        hidden = state["hidden"]
        for given in ahead:
            hidden = self.cell(given, hidden)
            outputs.append(self.output(torch.relu(hidden)))
        return outputs, {"hidden": hidden}

    def _given(self, frame: Frame) -> torch.Tensor:
        """Collective. The gates' input parts [n, k, 3 H]."""
        rows = frame.smooth("gcn") if self.below is None else torch.relu(self.below(frame))
        return rows @ self.weight + self.bias
