"""Sums, maxima and attention over lists of edges, and products of groups of rows; differentiable, on CPU and CUDA.

Every sum runs in the order of its list, forward through the lists and backward through their transpose: the same
numbers in every run and on any number of threads. D destinations, S sources, E edges, W columns, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.dispatch import check_index, compute_backend, on_host
from hpcgnn.native.relabel import transpose_index
from hpcgnn.native.workspace import empty_rows


@dataclass(frozen=True, slots=True)
class Transposed:
    """The edges of every source: indptr [S + 1], and of each edge its destination and number [E]."""

    indptr: torch.Tensor
    destination: torch.Tensor
    edge: torch.Tensor


@dataclass(slots=True)
class EdgeLists:
    """The edges of D destinations: destination d has sources source[indptr[d]:indptr[d + 1]], rows below num_sources.

    indptr [D + 1] and source [E] int64, of one device.
    """

    indptr: torch.Tensor
    source: torch.Tensor
    num_sources: int
    _transposed: Transposed | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.indptr.shape[0] - 1

    @property
    def degree(self) -> torch.Tensor:
        """Entries of each destination [D] int64."""
        return self.indptr[1:] - self.indptr[:-1]

    @property
    def destination(self) -> torch.Tensor:
        """The destination of each edge [E] int64."""
        everyone = torch.arange(len(self), device=self.indptr.device)
        return torch.repeat_interleave(everyone, self.degree, output_size=self.source.shape[0])

    @property
    def transposed(self) -> Transposed:
        """The transposed lists, made when they are first needed."""
        if self._transposed is None:
            index = self.source.to(torch.int32)
            indptr, order = transpose_index(index.numpy() if on_host(index) else index, self.num_sources, padded=False)
            indptr, order = torch.as_tensor(indptr), torch.as_tensor(order)
            self._transposed = Transposed(indptr, self.destination[order], order)
        return self._transposed


class _SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, lists, own):
        ctx.lists, ctx.own = lists, None if own is None else own.unsqueeze(1)
        rows, weight = rows.contiguous(), None if weight is None else weight.contiguous()
        ctx.save_for_backward(rows if ctx.needs_input_grad[1] else None, weight)
        out = _sum(lists.indptr, lists.source, None, rows, weight)
        return out if own is None else out.addcmul_(rows[: len(lists)], ctx.own)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (rows, weight), lists = ctx.saved_tensors, ctx.lists
        gradient, grad_rows, grad_weight = gradient.contiguous(), None, None
        if ctx.needs_input_grad[0]:
            back = lists.transposed
            grad_rows = _sum(back.indptr, back.destination, back.edge, gradient, weight)
            if ctx.own is not None:
                grad_rows[: len(lists)].addcmul_(gradient, ctx.own)
        if ctx.needs_input_grad[1]:
            grad_weight = _products(lists, gradient, rows, weight.shape[1])
        return grad_rows, grad_weight, None, None


def _sum(indptr, row, edge, rows, weight):
    check_index("segment_sum", row, len(rows), least=0)
    out = empty_rows(rows, indptr.shape[0] - 1, rows.shape[1])
    kernels, execution = compute_backend(rows)
    kernels.segment_sum(indptr, row, edge, rows, weight, out, execution)
    return out


def _products(lists, segment_rows, rows, heads):
    product = rows.new_empty((lists.source.shape[0], heads))
    kernels, execution = compute_backend(rows)
    kernels.edge_products(lists.indptr, lists.source, segment_rows, rows, product, execution)
    return product


def segment_sum(
    rows: torch.Tensor, lists: EdgeLists, weight: torch.Tensor | None = None, own: torch.Tensor | None = None
) -> torch.Tensor:
    """Sum of the sources' rows [S, W] of every destination [D, W], each times its edge's weight [E, H] if given. An
    edge has one weight for each of H equal shares of the columns. Zeros for a destination without edges. own [D]:
    factors of the first D sources, which are added to the sums as if every destination had a last edge from itself;
    they get no gradient."""
    return _SegmentSum.apply(rows, weight, lists, own)


class _SegmentMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, lists):
        ctx.lists, rows = lists, rows.contiguous()
        check_index("segment_max", lists.source, len(rows), least=0)
        out = rows.new_empty((len(lists), rows.shape[1]))
        ctx.winner = torch.empty_like(out, dtype=torch.int64)
        kernels, execution = compute_backend(rows)
        kernels.segment_max(lists.indptr, lists.source, rows, out, ctx.winner, execution)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        back, grad_rows = ctx.lists.transposed, gradient.new_empty((ctx.lists.num_sources, gradient.shape[1]))
        kernels, execution = compute_backend(gradient)
        kernels.segment_max_backward(
            back.indptr, back.destination, back.edge, gradient.contiguous(), ctx.winner, grad_rows, execution
        )
        return grad_rows, None


def segment_max(rows: torch.Tensor, lists: EdgeLists) -> torch.Tensor:
    """Largest value, column by column, among the sources' rows [S, W] of every destination [D, W]; 0 without edges. Of
    equal values the first edge's gets the gradient."""
    return _SegmentMax.apply(rows, lists)


class _GraphAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, source_score, target_score, edge_score, lists, slope):
        rows, source, target = rows.contiguous(), source_score.contiguous(), target_score.contiguous()
        check_index("graph_attention", lists.source, len(source), least=0)
        index = lists.source  # of the scores at the source of an edge
        if edge_score is not None:  # an edge has a row of its own
            source = source.index_select(0, index).add_(edge_score)
            index = torch.arange(len(index), device=index.device)
        weight = rows.new_empty((lists.source.shape[0], source.shape[1]))
        kernels, execution = compute_backend(rows)
        kernels.edge_attention(lists.indptr, index, source, target, slope, weight, execution)
        ctx.save_for_backward(rows, index, source, target, weight)
        ctx.lists, ctx.slope = lists, slope
        return _sum(lists.indptr, lists.source, None, rows, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (rows, index, source, target, weight), lists = ctx.saved_tensors, ctx.lists
        gradient, back = gradient.contiguous(), lists.transposed
        grad_score, grad_target = _products(lists, gradient, rows, source.shape[1]), torch.empty_like(target)
        kernels, execution = compute_backend(gradient)
        kernels.edge_attention_backward(
            lists.indptr, index, source, target, ctx.slope, weight, grad_score, grad_target, execution
        )
        grad_rows = _sum(back.indptr, back.destination, back.edge, gradient, weight)
        grad_source = _sum(back.indptr, back.edge, None, grad_score, None)
        return grad_rows, grad_source, grad_target, grad_score if ctx.needs_input_grad[3] else None, None, None


def graph_attention(
    rows, source_score, target_score, lists: EdgeLists, slope: float = 0.2, edge_score: torch.Tensor | None = None
) -> torch.Tensor:
    """Weighted sums [D, W] of the sources' rows [S, W] (Velickovic et al., Graph attention networks, 2018). Weights
    are, per head, the softmax over a destination's edges of leaky_relu(source_score [S, H] + target_score [D, H], and +
    edge_score [E, H] if given). Of an edge only its weights [E, H], and its scores if they are given, are stored."""
    return _GraphAttention.apply(rows, source_score, target_score, edge_score, lists, slope)
