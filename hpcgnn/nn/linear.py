"""Matrix products of layers. On the CPU in float32 through oneDNN where torch offers it: on processors where MKL falls
back to narrow kernels it reaches twice the rate (measured: 95 against 200 GFLOP/s a core on AVX-512 AMD)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from hpcgnn.native.dispatch import on_host
from hpcgnn.native.products import are_rounded, multiply


def _onednn():
    """Return oneDNN's linear operator, or None when this torch has no such."""
    operators = getattr(torch.ops, "mkldnn", None)
    return getattr(operators, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, bias, operator):
        ctx.save_for_backward(rows, weight)
        ctx.operator, ctx.with_bias = operator, bias is not None
        return operator(rows, weight, bias, "none", [], "")

    @staticmethod
    def backward(ctx, gradient):
        rows, weight = ctx.saved_tensors
        multiply = lambda a, b: ctx.operator(a, b, None, "none", [], "")  # noqa: E731 - a @ b.T
        grad_rows = multiply(gradient.contiguous(), weight.t().contiguous()) if ctx.needs_input_grad[0] else None
        grad_weight = multiply(gradient.t(), rows.t()) if ctx.needs_input_grad[1] else None
        return grad_rows, grad_weight, gradient.sum(0) if ctx.with_bias else None, None


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute rows [n, i] @ weight [o, i].T + bias [o]; on a device as `choose_products` says."""
    if are_rounded():
        out = multiply(rows, weight.t())
        return out if bias is None else out + bias
    operator = _onednn() if on_host(rows) and rows.dtype == torch.float32 and rows.dim() == 2 else None
    if operator is None or rows.numel() == 0:
        return functional.linear(rows, weight, bias)
    return _OneDnnLinear.apply(rows.contiguous(), weight.contiguous(), bias, operator)


def glorot(*shape: int) -> nn.Parameter:
    """Make a parameter [..., I, O], uniform with the variance of Glorot and Bengio (2010) for each of its matrices."""
    bound = (6 / (shape[-2] + shape[-1])) ** 0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
