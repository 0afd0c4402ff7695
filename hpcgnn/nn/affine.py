"""Products with small matrices, and relu, of many rows, in memory that is kept from step to step.

I and O columns in and out.
"""

from __future__ import annotations

import torch

from hpcgnn.native import empty_rows


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, bias, rectify):
        out = empty_rows(rows, len(rows), weight.shape[1])
        if bias is None:
            torch.mm(rows, weight, out=out)
        else:
            torch.addmm(bias, rows, weight, out=out)
        ctx.save_for_backward(rows, weight, out.relu_() if rectify else None)
        return out

    @staticmethod
    def backward(ctx, gradient):
        rows, weight, out = ctx.saved_tensors
        if out is not None:
            gradient = _relu_backward(gradient, out)
        wants_rows, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grad_rows = torch.mm(gradient, weight.t(), out=empty_rows(rows, *rows.shape)) if wants_rows else None
        grad_weight = rows.t() @ gradient if wants_weight else None
        return grad_rows, grad_weight, gradient.sum(0) if wants_bias else None, None


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        out = torch.clamp(rows, min=0, out=empty_rows(rows, *rows.shape))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return _relu_backward(gradient, *ctx.saved_tensors)


def _relu_backward(gradient: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    found = empty_rows(out, *out.shape)
    return torch.ops.aten.threshold_backward.grad_input(gradient, out, 0, grad_input=found)


def affine(rows: torch.Tensor, weight: torch.Tensor, bias=None, rectify: bool = False) -> torch.Tensor:
    """rows [..., I] @ weight [I, O] + bias [O], rectified if asked for: [..., O]."""
    flat = rows.reshape(-1, rows.shape[-1])
    return _Affine.apply(flat, weight, bias, rectify).view(*rows.shape[:-1], weight.shape[1])


def relu(rows: torch.Tensor) -> torch.Tensor:
    """Rows [..., I], rectified."""
    return _Relu.apply(rows.reshape(-1, rows.shape[-1])).view(rows.shape)
