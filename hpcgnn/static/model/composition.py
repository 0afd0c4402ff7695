"""CompGCN: messages that relations are combined with, and one matrix for each direction.

S source rows, D destination rows (stacked by node type), P pairs (relation, destination), R relations. I and O: widths
in and out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from hpcgnn import native
from hpcgnn.choices import Part
from hpcgnn.nn.aggregation import glorot, product
from hpcgnn.static.model.blocks import Block
from hpcgnn.static.model.typed_attention import per_relation


def _correlate(rows: torch.Tensor, relation: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    width = rows.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(rows).conj() * torch.fft.rfft(relation), n=width)


# Of sums [n, I] of ``count`` [n, 1] rows with a relation's row [n, I]: linear in the rows, so that sums are combined.
COMPOSITIONS = {
    "mult": Part(lambda rows, relation, count: rows * relation, "product of both"),
    "sub": Part(lambda rows, relation, count: rows - count * relation, "difference of both"),
    "corr": Part(_correlate, "circular correlation of both"),
}


class CompGcnConv(nn.Module):
    """CompGCN (Vashishth et al., Composition-based multi-relational graph convolutional networks, 2020). Every source's
    row is combined with the row of its relation; mean or sum over a node's edges in one direction, times the matrix of
    the direction; plus the node's row, combined with the row of a self-loop relation, times a third matrix.

    Every layer has its rows of relations. In the paper, a layer multiplies the relation rows of the layer before by a
    matrix. The paper's program divides a message by the square roots of both ends' degrees, and the sum by 3.
    """

    is_back: torch.Tensor

    def __init__(
        self, in_width: int, out_width: int, back: Sequence[bool], composition: str, aggregator: str, self_loop: bool
    ):  # fmt: skip
        """back: by relation, whether it leads against the edges of the graph."""
        super().__init__()
        self.composition, self.takes_mean = composition, aggregator == "mean"
        self.relation = glorot(len(back) + self_loop, in_width)
        self.weight = glorot(1 + any(back), in_width, out_width)
        self.own = glorot(in_width, out_width) if self_loop else None
        self.bias = nn.Parameter(torch.zeros(out_width))
        self.register_buffer("is_back", torch.tensor(back, dtype=torch.bool), persistent=False)

    def forward(self, block: Block, rows: torch.Tensor, degree, rectify: bool = False) -> torch.Tensor:
        pairs, combined = block.pairs, COMPOSITIONS[self.composition].make
        assert combined is not None
        count = pairs.lists.degree.to(rows.dtype).unsqueeze(1)
        message = combined(
            native.segment_sum(rows, pairs.lists), per_relation(pairs, self.relation, pairs.counts), count
        )
        is_back = per_relation(pairs, self.is_back, pairs.counts).unsqueeze(1)
        out = self.bias.expand(sum(block.num_dst), -1)
        for number, weight in enumerate(self.weight):
            share = (is_back == bool(number)).to(rows.dtype)
            around = native.segment_sum(message * share, pairs.merge)
            if self.takes_mean:
                around = around / native.segment_sum(count * share, pairs.merge).clamp(min=1)
            out = out + product(around, weight)
        if self.own is not None:
            own = block.own(rows)
            out = out + product(combined(own, self.relation[-1:], own.new_ones(1, 1)), self.own)
        return torch.relu(out) if rectify else out
