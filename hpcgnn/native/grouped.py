"""Products of groups of rows with a matrix each. n rows, G groups, I input width, O output width."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.dispatch import compute_backend, on_host
from hpcgnn.native.products import are_rounded, multiply
from hpcgnn.native.workspace import empty_rows


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, begin, weight):
        rows, weight = rows.contiguous(), weight.contiguous()
        ctx.save_for_backward(rows, begin, weight)
        out = empty_rows(rows, rows.shape[0], weight.shape[2])
        kernels, execution = compute_backend(rows)
        kernels.grouped_linear(begin, rows, weight, out, execution)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        rows, begin, weight = ctx.saved_tensors
        grad_rows = empty_rows(rows, *rows.shape) if ctx.needs_input_grad[0] else None
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[2] else None
        kernels, execution = compute_backend(rows)
        kernels.grouped_linear_backward(begin, rows, weight, gradient.contiguous(), grad_rows, grad_weight, execution)
        return grad_rows, None, grad_weight


def grouped_linear(rows: torch.Tensor, begin: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """rows [n, I] times a matrix a group, [n, O]: group g, rows begin[g] to begin[g + 1], meets weight[g] of weight
    [G, I, O]. begin [G + 1] int64 on the host. One native call on the CPU in float32 and float64, else a product a
    group."""
    if on_host(rows) and rows.dtype in (torch.float32, torch.float64) and not are_rounded():
        return _GroupedLinear.apply(rows, begin, weight)
    return grouped_linear_reference(rows, begin, weight)


def grouped_linear_reference(rows, begin, weight):
    """grouped_linear in plain torch, for any device."""
    pieces = rows.split((begin[1:] - begin[:-1]).tolist())
    return torch.cat([multiply(piece, matrix) for piece, matrix in zip(pieces, weight, strict=True)])
