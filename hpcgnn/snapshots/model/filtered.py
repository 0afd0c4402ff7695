"""Gated units whose products with inputs and hidden rows are polynomial filters over the snapshot's edges.

n nodes of this rank, k sequences, H hidden columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hpcgnn.nn.aggregation import glorot
from hpcgnn.snapshots.model.frame import Frame, SequenceModel, SequenceSizes, State
from hpcgnn.snapshots.model.recurrent import affine
from hpcgnn.snapshots.model.spatial import Convolution, Distinct, Filter
from hpcgnn.snapshots.neighborhood import CHEBYSHEV


class FilterGRU(nn.Module):
    """A GRU whose products with hidden rows are filtered: of every term, one exchange for both gates, one for the
    candidate."""

    parts = ("hidden",)
    gates = 3

    def __init__(self, around: Filter | Convolution, hidden: int):
        super().__init__()
        self.around = around
        self.kept, self.candidate = (glorot(around.num_terms * hidden, width * hidden) for width in (2, 1))

    def forward(self, frame: Frame, gate_inputs: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
        """Collective. Return the new state; gate_inputs [n, k, 3 H] (update | reset | candidate)."""
        (hidden,), width = state, state[0].shape[2]
        (around,) = self.around.of_rows([frame], [hidden])
        update, reset = torch.sigmoid(gate_inputs[..., : 2 * width] + around @ self.kept).chunk(2, dim=2)
        (around,) = self.around.of_rows([frame], [reset * hidden])
        candidate = torch.tanh(gate_inputs[..., 2 * width :] + around @ self.candidate)
        return [torch.lerp(candidate, hidden, update)]


class FilterLSTM(nn.Module):
    """An LSTM with peepholes (Gers and Schmidhuber, 2000) whose products with hidden rows are filtered: one exchange a
    term."""

    parts = ("hidden", "cell")
    gates = 4

    def __init__(self, around: Filter | Convolution, hidden: int):
        super().__init__()
        self.around = around
        self.kept, self.peephole = glorot(around.num_terms * hidden, 4 * hidden), glorot(3, hidden)

    def forward(self, frame: Frame, gate_inputs: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
        """Collective. Return the new state; gate_inputs [n, k, 4 H] (input | forget | output | candidate)."""
        hidden, memory = state
        (around,) = self.around.of_rows([frame], [hidden])
        take, keep, show, candidate = (gate_inputs + around @ self.kept).chunk(4, dim=2)
        take, keep = (torch.sigmoid(part + self.peephole[i] * memory) for i, part in enumerate((take, keep)))
        memory = keep * memory + take * torch.tanh(candidate)
        return [torch.sigmoid(show + self.peephole[2] * memory) * torch.tanh(memory), memory]


class FilteredModel(SequenceModel):
    """Layers of such units, each over the hidden rows of the layer below. The products with these hidden rows, and with
    the inputs, are formed for all frames at once."""

    cell: type[FilterGRU] | type[FilterLSTM]

    def __init__(self, config: Any, sizes: SequenceSizes):
        super().__init__(config, sizes)
        hidden, self.around = config.hidden, self.make_filter(config.order)
        self.node_state = {f"{part}{i}": hidden for i in range(config.layers) for part in self.cell.parts}
        widths, gates = [sizes.inputs, *[hidden] * (config.layers - 1)], self.cell.gates * hidden
        self.weight = nn.ParameterList(glorot(self.around.num_terms * width, gates) for width in widths)
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(gates)) for _ in widths)
        self.cells = nn.ModuleList(self.cell(self.around, hidden) for _ in widths)
        self.output = nn.Linear(hidden, sizes.outputs)

    @staticmethod
    def make_filter(order: int) -> Filter | Convolution:
        """Make what the model filters rows with before it multiplies them."""
        return Filter(CHEBYSHEV, order)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        rows: list[torch.Tensor] = []
        every, after = Distinct(frames), dict[str, torch.Tensor]()
        for number, (weight, bias, cell) in enumerate(zip(self.weight, self.bias, self.cells, strict=True)):
            around = self.around.of_rows(frames, rows) if number else self.around.of_inputs(every.frames)
            gate_inputs = [affine(filtered, weight, bias) for filtered in around]
            names = [f"{part}{number}" for part in self.cell.parts]
            parts, rows = [state[name] for name in names], []
            for frame, of_frame in zip(frames, gate_inputs if number else every.spread(gate_inputs), strict=True):
                parts = cell(frame, of_frame, parts)
                rows.append(frame.drop(parts[0], number, self.config.dropout))
            after.update(zip(names, parts, strict=True))
        return [self.output(torch.relu(hidden)) for hidden in self.asked(rows)], after


class GConvGRU(FilteredModel):
    """GConvGRU (Seo et al., Structured sequence modeling with graph convolutional recurrent networks, 2018)."""

    cell = FilterGRU


class GConvLSTM(FilteredModel):
    """GConvLSTM (Seo et al., 2018)."""

    cell = FilterLSTM


class DCRNN(FilteredModel):
    """DCRNN (Li et al., Diffusion convolutional recurrent neural network, 2018): random walks along in-edges and along
    out-edges."""

    cell = FilterGRU
    with_out = True

    @staticmethod
    def make_filter(order: int) -> Filter:
        """Make walks of 0 to order - 1 steps."""
        return Filter("walk", order, both=True)


class JointTGCN(FilteredModel):
    """T-GCN (Zhao et al., 2019) as in the authors' program: the hidden rows are convolved together with the inputs."""

    cell = FilterGRU

    @staticmethod
    def make_filter(order: int) -> Convolution:
        """Make sums over neighbors, without a term of a node's own."""
        return Convolution()
