"""A layer of GraphSAGE as one native call forward and one backward, on the CPU in float32 or float64. D destinations
(the first of S sources), I input width, O output width."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.build import _native
from hpcgnn.native.segment import EdgeLists
from hpcgnn.native.workspace import empty_rows


class _SageLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, index, weight, bias, lists, mean, relu, edge_weight):
        call = (index, lists.indptr, lists.source, weight, bias, edge_weight, mean, relu)
        out = empty_rows(table, len(lists), bias.shape[0])
        ctx.saved = _native.sage_forward(lists.num_sources, table, *call, out, torch.get_num_threads())
        ctx.index, ctx.flags, ctx.lists, ctx.shape = index, (edge_weight, mean, relu), lists, table.shape
        ctx.table = None if ctx.needs_input_grad[0] else table
        ctx.save_for_backward(out, weight, bias)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (out, weight, bias), table, lists = ctx.saved_tensors, ctx.table, ctx.lists
        rows, transposed, destination, edge = None, None, None, None
        if ctx.needs_input_grad[0]:
            table = rows = empty_rows(gradient, *ctx.shape)  # the rows themselves are not read again, and may be freed
            back = lists.transposed
            transposed, destination, edge = back.indptr, back.destination, back.edge
        flat = gradient.new_zeros(bias.shape[0] * (2 * ctx.shape[1] + 1))
        _native.sage_backward(
            lists.num_sources, table, ctx.index, lists.indptr, lists.source, weight, bias, *ctx.flags, ctx.saved, out,
            gradient.contiguous(), transposed, destination, edge, rows, flat, torch.get_num_threads(),
        )  # fmt: skip
        grad_weight = flat[: -bias.shape[0]].view(bias.shape[0], -1)
        return rows, None, grad_weight, flat[-bias.shape[0] :], None, None, None, None


def sage_layer(
    table, index, lists: EdgeLists, weight, bias, mean: bool, relu: bool, edge_weight: torch.Tensor | None = None
) -> torch.Tensor:
    """[own row | mean or sum of the neighbors' rows] @ weight [O, 2 I].T + bias [O], rectified if asked for: [D, O].

    The sources' rows are the rows of table [., I] at index [S] int64 or, without an index, the table itself [S, I],
    which may then require a gradient. edge_weight [E]: factors of the neighbors' rows, with which a mean is a weighted
    one; they get no gradient. Only [own | neighbors] is kept for backward.
    """
    if index is not None and table.requires_grad:
        raise ValueError("rows that are read by index get no gradient: gather them first")
    return _SageLayer.apply(table.detach() if index is not None else table.contiguous(), index, weight.contiguous(),
                            bias.contiguous(), lists, mean, relu, edge_weight)  # fmt: skip
