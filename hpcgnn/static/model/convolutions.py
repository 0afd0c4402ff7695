"""Graph convolutions over one block and their table, and the tables of norms and activations.

S source rows, D destination rows (stacked by node type), I and O widths in and out, H heads, R relations, P pairs
(relation, destination). A convolution is called with the block, the stacked source rows [S, I] and the block's
whole-graph degrees [S], and returns [D, O], rectified if asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hpcgnn import native
from hpcgnn.choices import Part, has_kernel
from hpcgnn.native import EdgeLists
from hpcgnn.native.layers import can_multiply
from hpcgnn.native.products import linear
from hpcgnn.nn.aggregation import attend, glorot, product, score_columns
from hpcgnn.nn.batch_norm import BatchNormBase, merged_moments, own_moments
from hpcgnn.static.model.blocks import Block, IndexedRows, RelationPairs, each_edge, rows_of
from hpcgnn.static.model.composition import CompGcnConv
from hpcgnn.static.model.paths import PathLayer
from hpcgnn.static.model.typed_attention import HanConv, HgtConv, SimpleHgnConv, gathered


def aggregate(rows, lists: EdgeLists, weight, how: str) -> torch.Tensor:
    """Form the mean, sum or max of the sources' rows of every destination [D, I]; weight [E] or None: factors, with
    which a mean is a weighted one."""
    if how == "max":
        if weight is not None:
            raise ValueError("model.aggregator max has no use for edge weights: use mean or sum")
        return native.segment_max(rows, lists)
    weight = None if weight is None else weight.to(rows.dtype).unsqueeze(1)
    total = native.segment_sum(rows, lists, weight)
    if how == "sum":
        return total
    if weight is None:
        return total / lists.degree.clamp(min=1).to(rows.dtype).unsqueeze(1)
    share = sums_of(weight.squeeze(1), lists).unsqueeze(1)
    return total / torch.where(share > 0, share, torch.ones_like(share))


def sums_of(weight: torch.Tensor, lists: EdgeLists) -> torch.Tensor:
    """Sum the weights [E] of the edges of every destination [D]."""
    return native.segment_sum(weight.unsqueeze(1), each_edge(lists)).squeeze(1)


def with_loop_rows(block: Block, rows: torch.Tensor) -> torch.Tensor:
    """Give the self-loops of ``block.looped`` rows, too: the mean of the rows [E, W] of the destination's other edges.
    Means of features, before a product with them, cost less than those of products, and have no gradient."""
    lists, looped = block.lists, block.looped
    loops = aggregate(rows, each_edge(lists), None, "mean")
    place = torch.arange(len(rows), device=rows.device) + lists.destination
    everything = rows.new_empty((len(looped.source), rows.shape[1]))
    return everything.index_copy_(0, place, rows).index_copy_(0, looped.indptr[1:] - 1, loops)


def widened(feature: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Pad features of edges [E, F] with zeros to a width."""
    return functional.pad(feature.to(dtype), (0, width - feature.shape[1]))


class SageConv(nn.Module):
    """GraphSAGE: weight [own row | aggregated neighbors] + bias (Hamilton et al., Inductive representation learning on
    large graphs, 2017). For one node type and relation; fused on the CPU for means and sums. With features of edges,
    these are aggregated, too: a message is the row of a neighbor and the features of its edge."""

    def __init__(self, in_width: int, out_width: int, aggregator: str, edge_width: int = 0):
        super().__init__()
        self.aggregator, self.product = aggregator, nn.Linear(2 * in_width, out_width)
        self.edge = nn.Linear(edge_width, out_width, bias=False) if edge_width else None

    def forward(self, block: Block, rows: torch.Tensor | IndexedRows, degree, rectify: bool = False) -> torch.Tensor:
        """Convolve rows, which may be read where they lie."""
        if self.edge is None or block.feature is None:
            return self._convolve(block, rows, rectify)
        feature = block.feature.to(self.edge.weight.dtype)
        around = aggregate(feature, each_edge(block.lists), block.weight, self.aggregator)
        out = self._convolve(block, rows, False) + linear(around, self.edge.weight, None)
        return torch.relu(out) if rectify else out

    def _convolve(self, block: Block, rows: torch.Tensor | IndexedRows, rectify: bool) -> torch.Tensor:
        """Convolve rows without the features of edges."""
        table, index = (rows.table, rows.index) if isinstance(rows, IndexedRows) else (rows, None)
        weight, bias, edge_weight = self.product.weight, self.product.bias, block.weight
        fused = self.aggregator != "max" and has_kernel(self, CONVOLUTIONS)
        if fused and can_multiply(table, weight):
            factors = None if edge_weight is None else edge_weight.to(table.dtype)
            mean = self.aggregator == "mean"
            return native.sage_layer(table, index, block.lists, weight, bias, mean, rectify, factors)
        return self._compose(block, rows_of(rows), edge_weight, rectify)

    def _compose(self, block: Block, rows, edge_weight, rectify: bool) -> torch.Tensor:
        """Convolve in several operations, as the fused kernel does in one."""
        around = aggregate(rows, block.lists, edge_weight, self.aggregator)
        out = linear(torch.cat([block.own(rows), around], dim=1), self.product.weight, self.product.bias)
        return torch.relu(out) if rectify else out


def normalized_sum(block: Block, rows: torch.Tensor, degree, self_loop: bool) -> torch.Tensor:
    """Sum the rows of the neighbors of every destination, and with self_loop of the node itself, each times its factor
    of GcnConv: [D, W]."""
    lists, degree = block.lists, degree.to(rows.dtype)
    weight = None if block.weight is None else block.weight.to(rows.dtype)
    if weight is None:
        scale = torch.rsqrt((degree + 1) if self_loop else degree.clamp(min=1))
        share = degree[: len(lists)] / lists.degree.to(rows.dtype).clamp(min=1)
    else:
        whole, sampled = degree + self_loop, sums_of(weight, lists)
        scale = torch.where(whole > 0, whole.rsqrt(), 0.0)
        share = torch.where(sampled > 0, degree[: len(lists)] / sampled, 0.0)
    own_scale, factors = scale[: len(lists)], scale.index_select(0, lists.source)
    factors = factors if weight is None else factors * weight
    factors = factors * (own_scale * share).repeat_interleave(lists.degree, output_size=len(factors))
    return native.segment_sum(rows, lists, factors.unsqueeze(1), own_scale.square() if self_loop else None)


class GcnConv(nn.Module):
    """GCN (Kipf and Welling, Semi-supervised classification with graph convolutional networks, 2017), for one node type
    and relation. Sums rows of neighbors and of the node itself, each times a weight and 1 / sqrt((d_u + 1) (d_v + 1)),
    with d the degrees in the whole graph. Sampled neighbors stand for all neighbors: times d_v / their number. Without
    self-loops: no + 1. With edge weights, these multiply
    the rows, degrees are sums of weights, and the sum of the sampled weights is in the place of their number."""

    def __init__(self, in_width: int, out_width: int, self_loop: bool):
        super().__init__()
        self.self_loop, self.product = self_loop, nn.Linear(in_width, out_width)
        with torch.no_grad():
            self.product.weight.copy_(glorot(out_width, in_width))
            self.product.bias.zero_()

    def forward(self, block: Block, rows, degree, rectify: bool = False) -> torch.Tensor:
        weight, bias = self.product.weight, self.product.bias
        if self._multiplies_first(block):
            out = normalized_sum(block, product(rows, weight.t()), degree, self.self_loop) + bias
        else:
            out = linear(normalized_sum(block, rows, degree, self.self_loop), weight, bias)
        return torch.relu(out) if rectify else out

    def _multiplies_first(self, block: Block) -> bool:
        """Whether the product with the rows of all sources, which makes them narrower, costs less than it saves: a
        number of a gathered row costs as much as some 8 multiplications."""
        (out_width, in_width), lists = self.product.weight.shape, block.lists
        further = (lists.num_sources - len(lists)) * in_width * out_width
        return further < 8 * len(lists.source) * (in_width - out_width)


class Gcn2Conv(nn.Module):
    """GCNII (Chen et al., Simple and deep graph convolutional networks, 2020), for one node type and relation. support
    = (1 - initial_ratio) times the sum of GcnConv with self-loops + initial_ratio times the node's first row; the
    output is (1 - beta) support + beta support weight. Rows are [row | first row], also of the output."""

    def __init__(self, width: int, beta: float, initial_ratio: float):
        super().__init__()
        self.beta, self.initial_ratio, self.weight = beta, initial_ratio, glorot(width, width)

    def forward(self, block: Block, rows, degree, rectify: bool = False) -> torch.Tensor:
        latest, first = rows.split(len(self.weight), dim=1)
        first = block.own(first)
        support = torch.lerp(normalized_sum(block, latest, degree, True), first, self.initial_ratio)
        out = torch.lerp(support, product(support, self.weight), self.beta)
        return torch.cat([torch.relu(out) if rectify else out, first], dim=1)


class LightGcnConv(nn.Module):
    """Sums rows of neighbors over all relations, each times a weight and 1 / sqrt(d_u d_v), with d the degrees in the
    whole graph; there is nothing to learn (He et al., LightGCN, 2020). Sampled neighbors, edge weights: as in GcnConv.
    A node without in-edges sends nothing."""

    def forward(self, block: Block, rows, degree, rectify: bool = False) -> torch.Tensor:
        pairs, degree = block.pairs, degree.to(rows.dtype)
        weight = None if pairs.weight is None else pairs.weight.to(rows.dtype).unsqueeze(1)
        scale, own_degree = torch.where(degree > 0, degree.rsqrt(), 0.0), block.own(degree)
        of_pairs = pairs.lists.degree.to(rows.dtype) if weight is None else sums_of(weight.squeeze(1), pairs.lists)
        sampled = native.segment_sum(of_pairs.unsqueeze(1), pairs.merge).squeeze(1)
        factor = block.own(scale) * torch.where(sampled > 0, own_degree / sampled, 0.0)
        around = native.segment_sum(rows * scale.unsqueeze(1), pairs.lists, weight)
        out = native.segment_sum(around, pairs.merge) * factor.unsqueeze(1)
        return torch.relu(out) if rectify else out


class GinConv(nn.Module):
    """GIN (Xu et al., How powerful are graph neural networks?, 2019), for one node type and relation: two products of
    (1 + eps) times the own row and the sum of the neighbors' rows, with eps learnable. With features of edges, a
    message is relu(row of the neighbor + product of the features) (Hu et al., Strategies for pre-training graph neural
    networks, 2020). Edge weights multiply the messages."""

    def __init__(self, in_width: int, hidden: int, out_width: int, edge_width: int = 0):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.edge = nn.Linear(edge_width, in_width) if edge_width else None
        self.widen, self.product = nn.Linear(in_width, hidden), nn.Linear(hidden, out_width)

    def forward(self, block: Block, rows, degree, rectify: bool = False) -> torch.Tensor:
        lists, messages = block.lists, rows
        if self.edge is not None and block.feature is not None:
            feature = linear(block.feature.to(rows.dtype), self.edge.weight, self.edge.bias)
            messages, lists = torch.relu(gathered(rows, lists.source) + feature), each_edge(lists)
        mixed = (1 + self.eps) * block.own(rows) + aggregate(messages, lists, block.weight, "sum")
        widened_rows = torch.relu(linear(mixed, self.widen.weight, self.widen.bias))
        out = linear(widened_rows, self.product.weight, self.product.bias)
        return torch.relu(out) if rectify else out


class GatConv(nn.Module):
    """Attention of H heads over the neighbors (Velickovic et al., Graph attention networks, 2018), for one node type
    and relation. concat: the heads' rows side by side, O = H x head width; else their mean. With features of edges, an
    edge's score has a product with them added; for a self-loop, the mean over the node's other edges."""

    def __init__(self, in_width: int, head_width: int, heads: int, self_loop: bool, concat: bool, edge_width: int = 0):
        super().__init__()
        self.heads, self.self_loop, self.concat = heads, self_loop, concat
        self.weight = glorot(in_width, heads * head_width)
        self.source, self.target = glorot(heads, head_width), glorot(heads, head_width)
        self.bias = nn.Parameter(torch.zeros(heads * head_width if concat else head_width))
        self.edge = glorot(edge_width, heads) if edge_width else None

    def forward(self, block: Block, rows, degree, rectify: bool = False) -> torch.Tensor:
        if block.weight is not None:
            raise ValueError("model.kind gat weighs edges itself: leave edge weights out, or use sage or gcn")
        lists = block.looped if self.self_loop else block.lists
        values, columns = product(rows, self.weight), score_columns(self.source, self.target)
        narrow = self.weight.shape[0] <= self.weight.shape[1]  # scores are made of the narrower of rows and values
        scores = product(rows, self.weight @ columns) if narrow else product(values, columns)
        out = attend(values, scores, lists, self._edge_scores(block))
        out = _join_heads(out, self.heads, self.concat) + self.bias
        return torch.relu(out) if rectify else out

    def _edge_scores(self, block: Block) -> torch.Tensor | None:
        """Score the edges, self-loops among them, by their features: [., H]."""
        if self.edge is None or block.feature is None:
            return None
        feature = block.feature.to(self.edge.dtype)
        return product(with_loop_rows(block, feature) if self.self_loop else feature, self.edge)


class Gatv2Conv(nn.Module):
    """Attention of H heads as in GatConv, where a score is a product with the sum of the rows of both ends after a
    leaky ReLU, so that the order of a node's neighbors depends on the node (Brody et al., How attentive are graph
    attention networks?, 2022). With features of edges, a product with them is in the sum; for a self-loop, the mean
    over the node's other edges. O columns are stored for every edge."""

    def __init__(self, in_width: int, head_width: int, heads: int, self_loop: bool, concat: bool, edge_width: int = 0):
        super().__init__()
        self.heads, self.self_loop, self.concat, width = heads, self_loop, concat, heads * head_width
        self.source, self.target = nn.Linear(in_width, width), nn.Linear(in_width, width)
        self.attention = glorot(heads, head_width)
        self.bias = nn.Parameter(torch.zeros(width if concat else head_width))
        self.edge = glorot(edge_width, width) if edge_width else None
        with torch.no_grad():
            for end in (self.source, self.target):
                end.weight.copy_(glorot(width, in_width))
                end.bias.zero_()

    def forward(self, block: Block, rows, degree, rectify: bool = False) -> torch.Tensor:
        if block.weight is not None:
            raise ValueError("model.kind gatv2 weighs edges itself: leave edge weights out, or use sage or gcn")
        lists = block.looped if self.self_loop else block.lists
        values = linear(rows, self.source.weight, self.source.bias)
        targets = linear(block.own(rows), self.target.weight, self.target.bias)
        mixed = gathered(values, lists.source) + gathered(targets, lists.destination)
        if self.edge is not None and block.feature is not None:
            feature = block.feature.to(self.edge.dtype)
            mixed = mixed + product(with_loop_rows(block, feature) if self.self_loop else feature, self.edge)
        scores = functional.leaky_relu(mixed, 0.2).unflatten(1, self.attention.shape) * self.attention
        none = values.new_zeros((lists.num_sources, self.heads))
        # The scores are whole: with slope 1 there is no second leaky ReLU.
        out = native.graph_attention(values, none, none[: len(lists)], lists, slope=1.0, edge_score=scores.sum(2))
        out = _join_heads(out, self.heads, self.concat) + self.bias
        return torch.relu(out) if rectify else out


def _join_heads(rows: torch.Tensor, heads: int, concat: bool) -> torch.Tensor:
    return rows if concat else rows.view(len(rows), heads, rows.shape[1] // heads).mean(1)


class RelationWeights(nn.Module):
    """A matrix for each relation [R, I, O]: separate matrices, or sums of B shared bases (Schlichtkrull et al.,
    Modeling relational data with graph convolutional networks, 2018)."""

    def __init__(self, relations: int, in_width: int, out_width: int, bases: int):
        super().__init__()
        self.matrices = glorot(bases or relations, in_width, out_width)
        self.coefficients = glorot(relations, bases) if bases else None

    def forward(self) -> torch.Tensor:
        """Form the matrices [R, I, O]."""
        if self.coefficients is None:
            return self.matrices
        return (self.coefficients @ self.matrices.flatten(1)).view(-1, *self.matrices.shape[1:])


class BasisRowWeights(nn.Module):
    """Matrices [R, I, O] for source rows that have O columns for each basis, and O more for the node's own row
    (self_loop). The columns of the bases are summed, with a coefficient for each relation and basis. I = O (B +
    self_loop)."""

    def __init__(self, relations: int, bases: int, out_width: int, self_loop: bool):
        super().__init__()
        self.out_width, self.self_loop = out_width, self_loop
        self.coefficients = glorot(relations, bases)

    def forward(self) -> torch.Tensor:
        """Form the matrices [R, I, O]."""
        factors = functional.pad(self.coefficients, (0, int(self.self_loop)))
        identity = torch.eye(self.out_width, dtype=factors.dtype, device=factors.device)
        return torch.einsum("rb,io->rbio", factors, identity).flatten(1, 2)


class OwnColumns(nn.Module):
    """The last O columns of the destinations' own rows + bias [O]; without self_loop the bias alone."""

    def __init__(self, out_width: int, self_loop: bool):
        super().__init__()
        self.self_loop, self.bias = self_loop, nn.Parameter(torch.zeros(out_width))

    def forward(self, block: Block, rows) -> torch.Tensor:
        """Return rows [D, O], or the bias."""
        return block.own(rows)[:, -len(self.bias) :] + self.bias if self.self_loop else self.bias


class OwnProduct(nn.Module):
    """The destinations' own rows alone, times a matrix of their node type, + bias."""

    def __init__(self, in_width: int, out_width: int, num_types: int):
        super().__init__()
        self.own = OwnRows(in_width, out_width, num_types)

    def forward(self, block: Block, rows, degree, rectify: bool = False) -> torch.Tensor:
        out = self.own(block, rows)
        return torch.relu(out) if rectify else out


class OwnRows(nn.Module):
    """The destinations' own rows times a matrix, or (num_types) one a node type, + bias [O]; without self_loop the bias
    alone."""

    def __init__(self, in_width: int, out_width: int, num_types: int = 1, self_loop: bool = True):
        super().__init__()
        self.weight = glorot(num_types, in_width, out_width) if self_loop else None
        self.bias = nn.Parameter(torch.zeros(out_width))

    def forward(self, block: Block, rows) -> torch.Tensor:
        """Return rows [D, O], or the bias."""
        if self.weight is None:
            return self.bias
        own = block.own(rows)
        if len(self.weight) == 1:
            return linear(own, self.weight[0].t(), self.bias)
        begin = torch.tensor(list(accumulate(block.num_dst, initial=0)))
        return native.grouped_linear(own, begin, self.weight) + self.bias


class RelationalConv(nn.Module):
    """Per relation, the aggregated neighbors times its matrix, added up with the own row (Schlichtkrull et al., 2018).
    With a separate matrix of the own row for every node type, it is GraphSAGE on heterogeneous graphs. All relations
    are computed in one grouped product of the pairs (relation, destination) that have edges. low_memory: one relation
    after the other, each formed again in the backward pass, so that no more than one relation's aggregated rows
    exist. With features of edges, these are aggregated, too, and have a matrix for each relation [R, F, O]."""

    def __init__(
        self, weights: RelationWeights | BasisRowWeights, own: OwnRows | OwnColumns, num_relations: int,
        aggregator: str, low_memory: bool, edge_width: int = 0, out_width: int = 0,
    ):  # fmt: skip
        super().__init__()
        self.weights, self.own, self.num_relations = weights, own, num_relations
        self.aggregator, self.low_memory = aggregator, low_memory
        self.edge = glorot(num_relations, edge_width, out_width) if edge_width else None

    def forward(self, block: Block, rows, degree, rectify: bool = False) -> torch.Tensor:
        pairs, weights = block.pairs, self.weights()
        if self.low_memory:
            out = self.own(block, rows) + self._one_by_one(pairs, rows, weights)
        else:
            around = aggregate(rows, pairs.lists, pairs.weight, self.aggregator)
            message = native.grouped_linear(around, pairs.begin(self.num_relations), weights)
            if self.edge is not None and pairs.feature is not None:
                of_edges = self._around(pairs, self.edge)
                message = message + native.grouped_linear(of_edges, pairs.begin(self.num_relations), self.edge)
            out = self.own(block, rows) + native.segment_sum(message, pairs.merge)
        return torch.relu(out) if rectify else out

    def _one_by_one(self, pairs: RelationPairs, rows, weights) -> torch.Tensor:
        out = rows.new_zeros((len(pairs.merge), weights.shape[2]))
        for relation, piece in zip(pairs.relations, pairs.split(), strict=True):
            out = out + checkpoint(
                self._one, rows, weights[relation], piece, None if self.edge is None else self.edge[relation],
                use_reentrant=False, preserve_rng_state=False,
            )  # fmt: skip
        return out

    def _one(self, rows, weight, piece: RelationPairs, edge) -> torch.Tensor:
        message = aggregate(rows, piece.lists, piece.weight, self.aggregator) @ weight
        if edge is not None and piece.feature is not None:
            message = message + self._around(piece, edge) @ edge
        return native.segment_sum(message, piece.merge)

    def _around(self, pairs: RelationPairs, edge: torch.Tensor) -> torch.Tensor:
        """Aggregate the features of the edges of every pair [P, F]."""
        assert pairs.feature is not None
        feature = widened(pairs.feature, edge.shape[-2], edge.dtype)
        return aggregate(feature, each_edge(pairs.lists), pairs.weight, self.aggregator)


class RelationalAttention(nn.Module):
    """R-GAT: graph attention within each relation (Busbridge et al., Relational graph attention networks, 2019), added
    up with the own row. concat and features of edges as in GatConv, with a product for each relation."""

    def __init__(
        self, weights: RelationWeights, own: OwnRows, num_relations: int, heads: int, concat: bool, edge_width: int = 0
    ):
        super().__init__()
        self.edge = glorot(num_relations, edge_width, heads) if edge_width else None
        self.weights, self.own, self.num_relations, self.heads, self.concat = weights, own, num_relations, heads, concat
        head_width = weights.matrices.shape[2] // heads
        self.source, self.target = glorot(num_relations, heads, head_width), glorot(num_relations, heads, head_width)

    def forward(self, block: Block, rows, degree, rectify: bool = False) -> torch.Tensor:
        pairs, weights = block.pairs, self.weights()
        if pairs.weight is not None:
            raise ValueError("model.kind rgat weighs edges itself: leave edge weights out, or use sage or rgcn")
        begin, from_source = pairs.begin(self.num_relations), pairs.sources
        values = native.grouped_linear(
            native.segment_sum(rows, from_source.rows), from_source.begin(self.num_relations), weights
        )
        source = self._scores(rows, from_source.rows, from_source.begin(self.num_relations), weights, self.source)
        target = self._scores(block.own(rows), pairs.targets, begin, weights, self.target)
        edge_score = None
        if self.edge is not None and pairs.feature is not None:
            feature = widened(pairs.feature, self.edge.shape[1], self.edge.dtype)
            edge_score = native.grouped_linear(feature, pairs.begin_edges(self.num_relations), self.edge)
        attended = native.graph_attention(values, source, target, from_source.lists, edge_score=edge_score)
        around = _join_heads(native.segment_sum(attended, pairs.merge), self.heads, self.concat)
        out = self.own(block, rows) + around
        return torch.relu(out) if rectify else out

    def _scores(self, rows, lists: EdgeLists, begin, weights, vectors) -> torch.Tensor:
        """Score rows, each through its relation's matrix times the vectors of the heads: [., H]."""
        composed = torch.einsum("rihc,rhc->rih", weights.unflatten(2, vectors.shape[1:]), vectors)
        return native.grouped_linear(native.segment_sum(rows, lists), begin, composed)


@dataclass(frozen=True)
class LayerShape:
    """Shape of a convolution: the section ``model`` of the run file, widths in and out, and the graph's numbers of
    relations and node types. concat: attention heads side by side, else their mean; edge_width: of the features of
    edges, 0: they are not read; number: of the layer, from 1 on; relations: their types of source and destination;
    back: numbers of the relations that lead back."""

    config: Any
    in_width: int
    out_width: int
    num_relations: int
    num_types: int
    concat: bool = True
    edge_width: int = 0
    number: int = 1
    relations: tuple[tuple[int, int], ...] = ()
    back: tuple[int, ...] = ()

    @property
    def head_width(self) -> int:
        """Width of the rows of one attention head."""
        return self.out_width // self.config.heads if self.concat else self.out_width

    def weights(self, width: int, bases: int) -> RelationWeights:
        """Make the relations' matrices [R, I, width]."""
        return RelationWeights(self.num_relations, self.in_width, width, bases)

    def own_rows(self) -> OwnRows:
        """Make the share of the node's own row, one matrix for all types; ``model.self_loop`` switches it on."""
        return OwnRows(self.in_width, self.out_width, 1, self.config.self_loop)


def _make_sage(shape: LayerShape) -> SageConv | RelationalConv:
    aggregator = shape.config.aggregator
    if (shape.num_relations, shape.num_types) == (1, 1):
        return SageConv(shape.in_width, shape.out_width, aggregator, shape.edge_width)
    own = OwnRows(shape.in_width, shape.out_width, shape.num_types)
    weights = shape.weights(shape.out_width, 0)
    return RelationalConv(weights, own, shape.num_relations, aggregator, False, shape.edge_width, shape.out_width)


def _make_gcn2(shape: LayerShape) -> Gcn2Conv:
    model = shape.config
    return Gcn2Conv(shape.out_width, math.log(model.identity_decay / shape.number + 1), model.initial_ratio)


def _make_gat(shape: LayerShape) -> GatConv:
    model = shape.config
    return GatConv(shape.in_width, shape.head_width, model.heads, model.self_loop, shape.concat, shape.edge_width)


def _make_gatv2(shape: LayerShape) -> Gatv2Conv:
    model = shape.config
    return Gatv2Conv(shape.in_width, shape.head_width, model.heads, model.self_loop, shape.concat, shape.edge_width)


def _make_rgcn(shape: LayerShape) -> RelationalConv:
    model, own, width = shape.config, shape.own_rows(), shape.out_width
    weights = shape.weights(width, model.bases)
    return RelationalConv(
        weights, own, shape.num_relations, model.aggregator, model.low_memory, shape.edge_width, width
    )


def _make_basis_rgcn(shape: LayerShape) -> RelationalConv:
    model, width = shape.config, shape.out_width
    weights = BasisRowWeights(shape.num_relations, model.bases, width, model.self_loop)
    own = OwnColumns(width, model.self_loop)
    return RelationalConv(
        weights, own, shape.num_relations, model.aggregator, model.low_memory, shape.edge_width, width
    )


def _make_rgat(shape: LayerShape) -> RelationalAttention:
    model, own = shape.config, shape.own_rows()
    weights = shape.weights(model.heads * shape.head_width, model.bases)
    return RelationalAttention(weights, own, shape.num_relations, model.heads, shape.concat, shape.edge_width)


def _make_han(shape: LayerShape) -> HanConv:
    return HanConv(shape.in_width, shape.out_width, shape.config.heads, shape.num_types, shape.relations)


def _make_hgt(shape: LayerShape) -> HgtConv:
    model = shape.config
    return HgtConv(
        shape.in_width, model.hidden, shape.out_width, model.heads, shape.num_types, shape.num_relations
    )  # fmt: skip


def _make_compgcn(shape: LayerShape) -> CompGcnConv:
    model, back = shape.config, [number in shape.back for number in range(shape.num_relations)]
    return CompGcnConv(shape.in_width, shape.out_width, back, model.composition, model.aggregator, model.self_loop)


def _make_simple_hgn(shape: LayerShape) -> SimpleHgnConv:
    model = shape.config
    return SimpleHgnConv(
        shape.in_width, shape.head_width, model.heads, shape.num_relations, model.self_loop, last=not shape.concat
    )


def _make_paths(shape: LayerShape) -> PathLayer:
    model = shape.config
    norm, activation = NORMS[model.norm].make(model.hidden), ACTIVATIONS[model.activation].make()
    return PathLayer(model.hidden, shape.num_relations, model.aggregator, norm, activation)


def _make_mlp(shape: LayerShape) -> OwnProduct:
    return OwnProduct(shape.in_width, shape.out_width, shape.num_types)


@dataclass(frozen=True)
class ConvolutionPart(Part):
    """A convolution. make: makes it from a LayerShape; None: the model has no layers.

    node_columns: columns of nodes that it reads from a batch, such as "degree". attends: ``model.heads`` must divide
    ``model.hidden``, and the layer cannot serve as a product of another width. one_relation: only for graphs of one
    node type and relation. relational: works by the relations that a block has, which differ from step to step.
    shares_bases: reads ``model.bases``. low_memory: reads the key of this name; weighs: multiplies messages by edge
    weights; edge_features: reads features of edges. keeps_first: its rows are followed by the nodes' first rows.
    averages: the model is the mean of its input and of the rows of all layers, between which there is nothing.
    adds_own: adds the node's row itself, which ``model.residual`` would do again. only_sums: has no maximum over edges.
    over_all: a layer needs sums over all nodes (``train.full_graph``), and an output product follows the layers.
    by_query: the model has states of all nodes for each query, which a decoder of paths scores.
    make_basis: makes the first layer with ``model.basis_rows``, if there can be one. kernel: the class, and no
    subclass, that a native kernel computes, which takes rows where they lie."""

    make: Callable[[LayerShape], nn.Module] | None
    node_columns: tuple[str, ...] = ()
    attends: bool = False
    one_relation: bool = False
    relational: bool = False
    shares_bases: bool = False
    low_memory: bool = False
    weighs: bool = False
    edge_features: bool = False
    keeps_first: bool = False
    averages: bool = False
    adds_own: bool = False
    only_sums: bool = False
    over_all: bool = False
    by_query: bool = False
    make_basis: Callable[[LayerShape], nn.Module] | None = None
    kernel: type[nn.Module] | None = None


CONVOLUTIONS = {
    "sage": ConvolutionPart(
        _make_sage, "a node's row and its aggregated neighbors (Hamilton et al., GraphSAGE, 2017)", weighs=True,
        edge_features=True, kernel=SageConv,
    ),
    "gcn": ConvolutionPart(
        lambda shape: GcnConv(shape.in_width, shape.out_width, shape.config.self_loop),
        "sum normalized by the degrees of both ends, one relation only (Kipf and Welling, GCN, 2017)",
        node_columns=("degree",), one_relation=True, weighs=True,
    ),
    "lightgcn": ConvolutionPart(
        lambda shape: LightGcnConv(),
        "mean over all layers of sums normalized by the degrees of both ends, without weights (He et al., LightGCN, "
        "2020)",
        node_columns=("degree",), weighs=True, averages=True,
    ),
    "gin": ConvolutionPart(
        lambda shape: GinConv(shape.in_width, shape.config.hidden, shape.out_width, shape.edge_width),
        "two products of a node's row and the sum of its neighbors, one relation only (Xu et al., GIN, 2019)",
        one_relation=True, weighs=True, edge_features=True,
    ),
    "gcn2": ConvolutionPart(
        _make_gcn2, "gcn with a share of the first rows in every layer, one relation only (Chen et al., GCNII, 2020)",
        node_columns=("degree",), one_relation=True, weighs=True, keeps_first=True,
    ),
    "gat": ConvolutionPart(
        _make_gat, "attention over neighbors, one relation only (Velickovic et al., GAT, 2018)", attends=True,
        one_relation=True, edge_features=True,
    ),
    "gatv2": ConvolutionPart(
        _make_gatv2, "gat with scores of both ends' rows together, one relation only (Brody et al., GATv2, 2022)",
        attends=True, one_relation=True, edge_features=True,
    ),
    "rgcn": ConvolutionPart(
        _make_rgcn, "a matrix for each relation (Schlichtkrull et al., RGCN, 2018)", relational=True, shares_bases=True,
        low_memory=True, weighs=True, edge_features=True, make_basis=_make_basis_rgcn,
    ),
    "compgcn": ConvolutionPart(
        _make_compgcn, "a row for each relation, which messages are combined with, and a matrix for each direction "
        "(Vashishth et al., CompGCN, 2020)", relational=True, only_sums=True,
    ),
    "rgat": ConvolutionPart(
        _make_rgat, "a matrix and attention for each relation (Busbridge et al., R-GAT, 2019)", attends=True,
        relational=True, shares_bases=True, edge_features=True,
    ),
    "han": ConvolutionPart(
        _make_han, "attention within each relation, then over relations (Wang et al., HAN, 2019)", attends=True,
        relational=True, over_all=True,
    ),
    "hgt": ConvolutionPart(
        _make_hgt, "keys, queries and values by node type, matrices by relation (Hu et al., HGT, 2020)", attends=True,
        relational=True,
    ),
    "simple_hgn": ConvolutionPart(
        _make_simple_hgn, "gat with a term of the relation in its scores, residual, outputs of length 1 (Lv et al., "
        "SimpleHGN, 2021)", attends=True, relational=True, adds_own=True,
    ),
    "nbfnet": ConvolutionPart(
        _make_paths, "states for each query, sums over the paths from its node: task.decoder paths, train.full_graph "
        "(Zhu et al., NBFNet, 2021)", relational=True, only_sums=True, by_query=True,
    ),
    "mlp": ConvolutionPart(
        _make_mlp, "a product of a node's row alone: no messages; sampling.fanouts of zeros, or features.hops",
    ),
    "none": ConvolutionPart(None, "no layers, only embeddings or features (link prediction only)"),
}  # fmt: skip


@dataclass(frozen=True)
class RowPart(Part):
    """An operation on rows. make: makes a norm from the rows' width, or an activation without arguments. over_all: the
    rows of all nodes take part in training."""

    make: Callable[..., nn.Module]
    over_all: bool = False


class NodeBatchNorm(BatchNormBase):
    """Batch normalization by the mean and the variance of the rows of all nodes, of all types together."""

    def forward(self, rows: torch.Tensor, summaries: torch.Tensor | None = None) -> torch.Tensor:
        """Normalize rows [n, H] of this rank's nodes. summaries [R, 3, H]: ``summary`` of every rank, in training."""
        if summaries is None:
            return self.scaled(rows)
        counts = summaries[:, 0, 0].detach()
        correction = counts.sum() / (counts.sum() - 1).clamp(min=1)
        moments = merged_moments(summaries[:, 1:], counts)
        return self.normalized(rows.unsqueeze(1), moments, correction, [1]).squeeze(1)

    @staticmethod
    def summary(rows: torch.Tensor) -> torch.Tensor:
        """Compute the number, the mean and the variance of this rank's rows [n, H]: [3, H]."""
        return torch.cat([rows.new_full((1, rows.shape[1]), len(rows)), own_moments(rows.unsqueeze(1))])


NORMS = {
    "none": RowPart(nn.Identity, "no normalization"),
    "layer": RowPart(nn.LayerNorm, "layer normalization"),
    "batch": RowPart(NodeBatchNorm, "batch normalization over all nodes, with train.full_graph", over_all=True),
}
ACTIVATIONS = {
    "relu": RowPart(nn.ReLU, "max(x, 0)"),
    "gelu": RowPart(nn.GELU, "x times the normal distribution function of x"),
    "leaky_relu": RowPart(nn.LeakyReLU, "x, or 0.01 x below 0"),
    "elu": RowPart(nn.ELU, "x, or exp(x) - 1 below 0"),
    "none": RowPart(nn.Identity, "no activation"),
}
