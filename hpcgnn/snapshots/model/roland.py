"""ROLAND (You et al., ROLAND: graph learning framework for dynamic graphs, 2022): the hidden rows of every layer are
kept, and meet the layer's new ones in an update.

n nodes of this rank, k sequences, H hidden columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hpcgnn.choices import Part
from hpcgnn.nn.aggregation import glorot
from hpcgnn.snapshots.model.frame import Frame, SequenceModel, SequenceSizes, State
from hpcgnn.snapshots.model.recurrent import GatedCell, affine
from hpcgnn.snapshots.model.spatial import Distinct
from hpcgnn.snapshots.model.stacks import SAGEStack


class GRUUpdate(nn.Module):
    """Updates by a GRU whose input are the new rows."""

    def __init__(self, hidden: int):
        super().__init__()
        self.weight, self.bias = glorot(hidden, 3 * hidden), nn.Parameter(torch.zeros(3 * hidden))
        self.cell = GatedCell(hidden)

    def forward(self, new: torch.Tensor, old: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """Update old rows [n, k, H] by new ones; share [n, k, 1] of a node's edges so far that came before this
        snapshot."""
        return self.cell(affine(new, self.weight, self.bias), old)


class AverageUpdate(nn.Module):
    """Updates by the mean of old and new rows, weighed by the edges they come of."""

    def __init__(self, hidden: int):
        super().__init__()

    def forward(self, new: torch.Tensor, old: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        return torch.lerp(new, old, share)


class ConcatUpdate(nn.Module):
    """Updates by two layers over old and new rows side by side."""

    def __init__(self, hidden: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))

    def forward(self, new: torch.Tensor, old: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([old, new], dim=2))


UPDATES = {
    "gru": Part(GRUUpdate, "GRU with the new rows as inputs"),
    "average": Part(AverageUpdate, "mean of old and new rows, weighted by the node's number of edges"),
    "concat": Part(ConcatUpdate, "two-layer network over old and new rows"),
}


class ROLAND(SequenceModel):
    """Layers of GraphSAGE, each over the updated rows of the one below; a layer's exchanges of all frames are under way
    together."""

    def __init__(self, config: Any, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.node_state = {f"hidden{number}": config.hidden for number in range(config.layers)} | {"edges": 1}
        self.stack = SAGEStack(config, sizes.inputs)
        update: Any = UPDATES[config.update].make
        self.updates = nn.ModuleList(update(config.hidden) for _ in range(config.layers))
        self.output = nn.Linear(config.hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        every = Distinct(frames)
        new = every.spread(self.stack.layer(0, every.frames))
        rows: list[torch.Tensor] = []
        state = dict(state)
        shares = []
        for frame in frames:
            before, state["edges"] = state["edges"], state["edges"] + frame.degree
            total = state["edges"]
            shares.append(torch.where(total > 0, before / torch.where(total > 0, total, 1), 0))
        for number, update in enumerate(self.updates):
            new = self.stack.layer(number, frames, rows) if number else new
            old, rows = state[f"hidden{number}"], []
            for frame_rows, share in zip(new, shares, strict=True):
                old = update(frame_rows, old, share)
                rows.append(old)
            state[f"hidden{number}"] = old
        return [self.output(frame_rows) for frame_rows in self.asked(rows)], state
