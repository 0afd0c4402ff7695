"""RE-GCN (Li et al., Temporal knowledge graph reasoning based on evolutional representation learning, 2021): rows of
nodes and of edge types evolve together over the snapshots of a window.

n nodes of this rank, k sequences, T edge types, D hidden columns. Each edge type has two rows: the first T are of edges
along their direction, the others of the same edges from destination to source.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpcgnn.nn.aggregation import glorot
from hpcgnn.snapshots.model.frame import RELATION, Frame, SequenceModel, SequenceSizes, State
from hpcgnn.snapshots.neighborhood import SUM

SLOPE = (1 / 8 + 1 / 3) / 2  # of the rectifier below 0: the mean of the slopes that RReLU draws


class RelationalLayer(nn.Module):
    """A graph convolution of a snapshot: the mean, over edges in both directions, of the neighbor's row plus the row of
    the edge type, times a matrix; plus the node's row times another matrix, which differs for nodes without edges."""

    def __init__(self, hidden: int):
        super().__init__()
        self.around, self.loop, self.alone = (glorot(hidden, hidden) for _ in range(3))

    def forward(self, frame: Frame, rows: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
        """Collective. Compute rows [n, k, D] from the rows of nodes [n, k, D] and of edge types [k, 2 T, D]."""
        ahead = [frame.start(rows, out) for out in (False, True)]  # both under way at once
        total, degree = frame.sum_types(relation)
        for is_out, exchanges in enumerate(ahead):
            total = total + frame.propagate(SUM, rows, exchanges, bool(is_out))
        flat, total = rows.flatten(0, 1), (total / degree.clamp(min=1)).flatten(0, 1)
        place = degree.expand(*rows.shape[:2], 1).flatten().nonzero()[:, 0]  # few nodes have edges in a snapshot
        linked = total.index_select(0, place) @ self.around + flat.index_select(0, place) @ self.loop
        out = (flat @ self.alone).index_copy(0, place, linked)
        return functional.leaky_relu(out, SLOPE).view_as(rows)


class REGCN(SequenceModel):
    """At each snapshot a GRU updates the rows of edge types by the mean row of the nodes that their edges have as ends.
    Layers of graph convolutions with these rows follow, and a gate mixes the result with the rows of the nodes before.
    The links of a typed decoder are scored with the last rows of nodes and of edge types."""

    with_out, weighs_edges, typed_edges = True, True, True

    def __init__(self, config: Any, sizes: SequenceSizes):
        super().__init__(config, sizes)
        hidden = config.hidden
        self.evolves_relations = sizes.edge_types > 0
        self.enter = nn.Identity() if sizes.inputs == hidden else nn.Linear(sizes.inputs, hidden)
        self.relation = glorot(2 * max(1, sizes.edge_types), hidden)
        self.cell = nn.GRUCell(2 * hidden, hidden)
        self.layers = nn.ModuleList(RelationalLayer(hidden) for _ in range(config.layers))
        self.gate = nn.Linear(hidden, hidden)
        self.output = nn.Identity() if self.evolves_relations else nn.Linear(hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        rows = functional.normalize(self.enter(frames[0].inputs), dim=2)
        relation = self.relation.expand(rows.shape[1], *self.relation.shape)
        for frame in frames:
            relation = self.evolve(frame, rows, relation)
            now = rows
            for number, layer in enumerate(self.layers):
                now = frame.drop(layer(frame, now, relation), number, self.config.dropout)
            rows = torch.lerp(rows, functional.normalize(now, dim=2), torch.sigmoid(self.gate(rows)))
        return [self.output(rows)], {**state, RELATION: relation}

    def evolve(self, frame: Frame, rows: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
        """Collective. Update the rows [k, 2 T, D] of edge types by a snapshot, and the rows of nodes before it."""
        mean = frame.average_by_type(rows)
        inputs = torch.cat([self.relation.expand_as(relation), torch.cat([mean, mean], dim=1)], dim=2)
        return functional.normalize(self.cell(inputs.flatten(0, 1), relation.flatten(0, 1)).view(relation.shape), dim=2)
