"""Attention on graphs of several node types and relations: HAN, HGT and SimpleHGN.

S source rows, D destination rows (stacked by node type), E edges, P pairs (relation, destination), Q pairs (relation,
source), H heads of width d, W = H d, R relations, T node types. I and O: widths in and out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import nn
from torch.nn import functional

from hpcgnn import native
from hpcgnn.native import EdgeLists
from hpcgnn.nn.aggregation import glorot, product, score_columns
from hpcgnn.static.model.blocks import Block, RelationPairs, each_edge, singles


class TypedLinear(nn.Module):
    """A matrix and a bias for each node type."""

    def __init__(self, num_types: int, in_width: int, out_width: int):
        super().__init__()
        self.weight = glorot(num_types, in_width, out_width)
        self.bias = nn.Parameter(torch.zeros(num_types, out_width))

    def forward(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Multiply stacked rows [n, I], ``counts`` of each type: [n, O]."""
        begin = torch.tensor(list(accumulate(counts, initial=0)))
        return native.grouped_linear(rows, begin, self.weight) + per_type(self.bias, counts)


def per_type(values: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Repeat the values [T, ...] of types, or of relations, so many times each [n, ...]."""
    return torch.cat([value.expand(count, *value.shape) for value, count in zip(values, counts, strict=True)])


def per_relation(pairs: RelationPairs, values: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Repeat the values [R, ...] of the relations that pairs have, so many times each [n, ...]."""
    return per_type(values[list(pairs.relations)], counts) if pairs.relations else values[:0]


def gathered(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Take rows [n, .] at index [E]; gradients are summed in a fixed order."""
    return native.segment_sum(rows, singles(index, len(rows)))


def diagonal(vectors: torch.Tensor) -> torch.Tensor:
    """Return the matrices [R, W, H] by which rows become scores, from the vectors [R, H, d] of the heads."""
    heads = torch.eye(vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
    return torch.einsum("rhc,hg->rhcg", vectors, heads).flatten(1, 2)


class HanConv(nn.Module):
    """Node-level attention of HAN (Wang et al., Heterogeneous graph attention network, 2019), as in ``HANConv`` of
    PyTorch Geometric: a product for each node type, then attention within each relation, rectified. The rows of a
    destination by relation stand side by side [D, K W], K the most relations into a type; zeros where there are fewer.
    ``sums`` and ``mixed`` are the attention over relations, whose weights are means over all nodes of a type."""

    slot: torch.Tensor
    used: torch.Tensor

    def __init__(self, in_width: int, out_width: int, heads: int, num_types: int, relations: Sequence[tuple[int, int]]):
        super().__init__()
        shape = len(relations), heads, out_width // heads
        into = [[number for number, (_, end) in enumerate(relations) if end == kind] for kind in range(num_types)]
        self.slots = max(map(len, into))
        slot = torch.tensor([into[end].index(number) for number, (_, end) in enumerate(relations)])
        used = torch.tensor([[place < (len(of_type) or self.slots) for place in range(self.slots)] for of_type in into])
        self.register_buffer("slot", slot, persistent=False)
        self.register_buffer("used", used, persistent=False)
        self.product = TypedLinear(num_types, in_width, out_width)
        self.source, self.target = glorot(*shape), glorot(*shape)
        self.relation, self.query = nn.Linear(out_width, out_width), glorot(1, out_width)

    def forward(self, block: Block, rows: torch.Tensor, degree, rectify: bool = False) -> torch.Tensor:
        pairs, num_relations = block.pairs, len(self.source)
        if pairs.weight is not None:
            raise ValueError("model.kind han weighs edges itself: leave edge weights out, or use sage or rgcn")
        rows, sources = self.product(rows, block.num_src), pairs.sources
        values = native.segment_sum(rows, sources.rows)
        source = native.grouped_linear(values, sources.begin(num_relations), diagonal(self.source))
        own = native.segment_sum(block.own(rows), pairs.targets)
        target = native.grouped_linear(own, pairs.begin(num_relations), diagonal(self.target))
        attended = torch.relu(native.graph_attention(values, source, target, sources.lists))
        place = pairs.destination * self.slots + per_relation(pairs, self.slot, pairs.counts)
        out = attended.new_zeros((sum(block.num_dst) * self.slots, attended.shape[1]))
        return out.index_copy(0, place, attended).view(-1, self.slots * attended.shape[1])

    def sums(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Sum by node type the scores of the relations over rows [D, K W], and count the rows: [T, K + 1]."""
        each = rows.view(len(rows), self.slots, -1)
        scores = torch.tanh(functional.linear(each, self.relation.weight, self.relation.bias)) @ self.query[0]
        totals = torch.stack([of_type.sum(0) for of_type in scores.split(list(counts))])
        return torch.cat([totals, totals.new_tensor(counts).unsqueeze(1)], dim=1)

    def mixed(self, rows: torch.Tensor, counts: Sequence[int], total: torch.Tensor) -> torch.Tensor:
        """Weigh the relations by the ``sums`` over all nodes: rows [D, W]."""
        means = total[:, :-1] / total[:, -1:].clamp(min=1)
        weights = means.masked_fill(~self.used, -math.inf).softmax(1)
        return (rows.view(len(rows), self.slots, -1) * per_type(weights, counts).unsqueeze(2)).sum(1)


class HgtConv(nn.Module):
    """HGT (Hu et al., Heterogeneous graph transformer, 2020), as ``HGTConv`` of PyTorch Geometric: keys, queries and
    values by node type, matrices of keys and values for each relation and head, one softmax over all in-edges of a
    node. The output is a product of the rectified sums by node type; where it is as wide as the input, a learned share
    of the node's row takes the place of a share of it."""

    def __init__(self, in_width: int, width: int, out_width: int, heads: int, num_types: int, num_relations: int):
        super().__init__()
        self.heads, head_width = heads, width // heads
        self.key, self.query, self.value = (TypedLinear(num_types, in_width, width) for _ in range(3))
        self.output = TypedLinear(num_types, width, out_width)
        shape = num_relations, heads, head_width, head_width
        self.key_relation, self.value_relation = glorot(*shape), glorot(*shape)
        self.prior = nn.Parameter(torch.ones(num_relations, heads))
        self.skip = nn.Parameter(torch.ones(num_types)) if in_width == out_width else None

    def forward(self, block: Block, rows: torch.Tensor, degree, rectify: bool = False) -> torch.Tensor:
        pairs = block.pairs
        if pairs.weight is not None:
            raise ValueError("model.kind hgt weighs edges itself: leave edge weights out, or use sage or rgcn")
        own, sources = block.own(rows), pairs.sources
        begin = sources.begin(len(self.prior))
        key, value = (
            native.grouped_linear(
                native.segment_sum(made(rows, block.num_src), sources.rows), begin, self._matrices(relation)
            )
            for made, relation in ((self.key, self.key_relation), (self.value, self.value_relation))
        )
        lists, order = joined(pairs, sources.lists)
        query = gathered(self.query(own, block.num_dst), lists.destination) * gathered(key, lists.source)
        prior = per_relation(pairs, self.prior, pairs.num_edges)[order]
        scores = query.unflatten(1, (self.heads, -1)).sum(2) * prior / math.sqrt(query.shape[1] // self.heads)
        edges = each_edge(lists)
        share = (scores - native.segment_max(scores.detach(), edges)[lists.destination]).exp()
        share = share / gathered(native.segment_sum(share, edges), lists.destination)
        out = self.output(functional.gelu(native.segment_sum(value, lists, share)), block.num_dst)
        if self.skip is not None:
            out = torch.lerp(own, out, per_type(self.skip.sigmoid(), block.num_dst).unsqueeze(1))
        return torch.relu(out) if rectify else out

    def _matrices(self, relation: torch.Tensor) -> torch.Tensor:
        """Return a matrix for each relation [R, W, W], of one block a head, from the blocks [R, H, d, d]."""
        heads = torch.eye(self.heads, dtype=relation.dtype, device=relation.device)
        return torch.einsum("rhij,hg->rhigj", relation, heads).flatten(3, 4).flatten(1, 2)


class SimpleHgnConv(nn.Module):
    """SimpleHGN (Lv et al., Are we really making much progress?, 2021): attention of H heads over the neighbors by all
    relations, whose scores have a term of the edge's type; plus the node's row, times a matrix where widths differ.
    Self-loops are a type of edges of their own. Attention of a former layer is not mixed in. last: the mean of the
    heads, and rows of length 1."""

    def __init__(self, in_width: int, head_width: int, heads: int, num_relations: int, self_loop: bool, last: bool):
        super().__init__()
        self.heads, self.self_loop, self.last = heads, self_loop, last
        width, out_width = heads * head_width, head_width if last else heads * head_width
        self.weight, self.residual = glorot(in_width, width), None
        self.source, self.target, self.edge = (glorot(heads, head_width) for _ in range(3))
        self.edge_types = nn.Parameter(torch.randn(num_relations + self_loop, head_width))
        self.edge_weight = glorot(head_width, width)
        if in_width != out_width:
            self.residual = glorot(in_width, out_width)

    def forward(self, block: Block, rows: torch.Tensor, degree, rectify: bool = False) -> torch.Tensor:
        pairs = block.pairs
        if pairs.weight is not None:
            raise ValueError("model.kind simple_hgn weighs edges itself: leave edge weights out, or use sage or rgcn")
        of_type = ((self.edge_types @ self.edge_weight).unflatten(1, self.edge.shape) * self.edge).sum(2)
        edge_score, loops = per_relation(pairs, of_type, pairs.num_edges), None
        if self.self_loop:
            loops = block.own(torch.arange(len(rows), device=rows.device))
            edge_score = torch.cat([edge_score, of_type[-1].expand(len(loops), -1)])
        lists, order = joined(pairs, pairs.lists, loops)
        edge_score = edge_score[order]
        values, own = product(rows, self.weight), block.own(rows)
        source, target = product(values, score_columns(self.source, self.target)).chunk(2, dim=1)
        out = native.graph_attention(values, source, block.own(target), lists, edge_score=edge_score)
        if self.last:
            out = out.unflatten(1, (self.heads, -1)).mean(1)
        out = out + (own if self.residual is None else product(own, self.residual))
        out = functional.normalize(out, dim=1) if self.last else out
        return torch.relu(out) if rectify else out


def joined(
    pairs: RelationPairs, lists: EdgeLists, loops: torch.Tensor | None = None
) -> tuple[EdgeLists, torch.Tensor]:  # fmt: skip
    """Join the lists of the pairs (relation, destination) to one list for each destination. Also returns the places [E]
    of the joined edges in the lists. loops [D]: the source of a self-loop for every destination, whose places follow
    the edges'."""
    destination, source = pairs.destination.repeat_interleave(lists.degree), lists.source
    if loops is not None:
        everyone = torch.arange(len(loops), device=loops.device)
        destination, source = torch.cat([destination, everyone]), torch.cat([source, loops])
    order = destination.argsort(stable=True)
    counts = torch.bincount(destination, minlength=len(pairs.merge))
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return EdgeLists(indptr, source[order], lists.num_sources), order
