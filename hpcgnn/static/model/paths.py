"""NBFNet: states of all nodes for each query, sums over the paths from the query's node.

B queries of a step; S source rows, D destination rows of a block; P pairs (relation, destination), R relations; W width
of a state. The rows of a node are its B states, one behind the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hpcgnn import native
from hpcgnn.native.products import linear
from hpcgnn.static.model.blocks import Batch, Block, IndexedRows, rows_of
from hpcgnn.static.model.typed_attention import per_relation


class PathLayer(nn.Module):
    """A Bellman-Ford iteration (Zhu et al., Neural Bellman-Ford networks, 2021). A source's state is multiplied by a
    row of the relation, which a product makes from the query's row. A destination sums such messages and its first
    state, or takes their mean; a product of this and of its state before follows, then norm and activation. The result
    is added to the state before, as in the paper's program.
    """

    def __init__(self, width: int, num_relations: int, aggregator: str, norm: nn.Module, activation: nn.Module):
        super().__init__()
        self.width, self.num_relations, self.takes_mean = width, num_relations, aggregator == "mean"
        self.relation = nn.Linear(width, num_relations * width)
        self.product = nn.Linear(2 * width, width)
        self.norm, self.activation = norm, activation

    def forward(
        self, block: Block, state: torch.Tensor, first: torch.Tensor, asked: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        """Compute states [D, B * W] of a block's destinations from those [S, B * W] of its sources. first [D, B * W]:
        states before all layers; asked [B, W]: rows of the queries."""
        pairs = block.pairs
        relation = linear(asked, self.relation.weight, self.relation.bias)
        relation = relation.view(len(asked), self.num_relations, self.width).transpose(0, 1).flatten(1)
        message = native.segment_sum(state, pairs.lists) * per_relation(pairs, relation, pairs.counts)
        total = native.segment_sum(message, pairs.merge) + first
        if self.takes_mean:
            count = pairs.lists.degree.to(total.dtype).unsqueeze(1)
            total = total / (1 + native.segment_sum(count, pairs.merge))
        own = block.own(state).reshape(-1, self.width)
        rows = torch.cat([own, total.view(-1, self.width)], dim=1)
        out = self.activation(self.norm(linear(rows, self.product.weight, self.product.bias)))
        return (own + out).view(first.shape)


class PathModel(nn.Module):
    """Layers over the states of all nodes. ``step`` computes rows of the states, which are sent to other ranks, and of
    the first states, which stay. asked: the rows [B, W] of a step's queries."""

    asked: torch.Tensor

    def __init__(self, config: Any, layers: Sequence[PathLayer]):
        super().__init__()
        self.config, self.layers = config, nn.ModuleList(layers)

    @property
    def num_hops(self) -> int:
        """Blocks that a batch must have."""
        return len(self.layers)

    @property
    def sent_columns(self) -> int:
        """Columns of the states."""
        return self.asked.numel()

    def first(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> torch.Tensor:
        """Make rows [S, 2 * B * W] from the first states."""
        (states,) = map(rows_of, inputs)
        return torch.cat([states, states], dim=1)

    def step(self, number: int, batch: Batch, block: Block, rows: torch.Tensor) -> torch.Tensor:
        """Compute layer ``number``: rows [D, 2 * B * W] of a block's destinations from those [S, 2 * B * W] of its
        sources."""
        width = self.sent_columns
        first = block.own(rows)[:, width:]
        return torch.cat([self.layers[number](block, rows[:, :width], first, self.asked), first], dim=1)

    def last(self, rows: torch.Tensor) -> torch.Tensor:
        """Leave rows as they are."""
        return rows
