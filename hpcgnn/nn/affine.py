"""Products with small matrices, and relu, of many rows, in memory that is kept from step to step.

n rows, I and O columns in and out, H hidden ones.
"""

from __future__ import annotations

import torch

from hpcgnn.native import empty_rows
from hpcgnn.native.products import multiply_into

_PIECE_BYTES = 1 << 19  # of hidden rows that are in a core's cache together


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, bias, rectify):
        out = multiply_into(empty_rows(rows, len(rows), weight.shape[1]), rows, weight, bias)
        ctx.save_for_backward(rows, weight, out.relu_() if rectify else None)
        return out

    @staticmethod
    def backward(ctx, gradient):
        rows, weight, out = ctx.saved_tensors
        if out is not None:
            gradient = _relu_backward(gradient, out)
        wants_rows, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grad_rows = multiply_into(empty_rows(rows, *rows.shape), gradient, weight.t()) if wants_rows else None
        grad_weight = multiply_into(torch.empty_like(weight), rows.t(), gradient) if wants_weight else None
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


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, out_weight, out_bias):
        ctx.save_for_backward(rows, weight, out_weight)
        out = rows.new_empty(len(rows), len(out_weight))
        for begin, some, hidden in _hidden_pieces(rows, weight):
            multiply_into(out[begin : begin + len(some)], hidden, out_weight.t(), out_bias)
        return out

    @staticmethod
    def backward(ctx, gradient):
        rows, weight, out_weight = ctx.saved_tensors
        grad_rows = empty_rows(rows, *rows.shape) if ctx.needs_input_grad[0] else None
        grad_weight, grad_out = torch.zeros_like(weight), torch.zeros_like(out_weight)
        for begin, some, hidden in _hidden_pieces(rows, weight):
            given = gradient[begin : begin + len(some)]
            grad_out.addmm_(given.t(), hidden)
            # A product of one column with one row is a product of elements, and faster as one.
            behind = given * out_weight if len(out_weight) == 1 else given @ out_weight
            torch.ops.aten.threshold_backward.grad_input(behind, hidden, 0, grad_input=behind)
            grad_weight.addmm_(some.t(), behind)
            if grad_rows is not None:
                multiply_into(grad_rows[begin : begin + len(some)], behind, weight.t())
        return grad_rows, grad_weight, grad_out, gradient.sum(0)


def _hidden_pieces(rows: torch.Tensor, weight: torch.Tensor):
    """Per piece of rows [n, I]: the first one, the piece [p, I], and relu(piece @ weight) [p, H], in memory that the
    next piece takes."""
    width = weight.shape[1]
    at_once = max(1, _PIECE_BYTES // (width * weight.element_size()))
    memory = weight.new_empty(min(at_once, len(rows)), width)
    for begin in range(0, len(rows), at_once):
        some = rows[begin : begin + at_once]
        hidden = memory[: len(some)]
        multiply_into(hidden, some, weight)
        yield begin, some, hidden.clamp_(min=0)


def perceptron(rows: torch.Tensor, weight: torch.Tensor, output: torch.nn.Linear) -> torch.Tensor:
    """output(relu(rows [..., I] @ weight [I, H])) [..., O]; hidden rows are never in memory all together: the backward
    pass forms them again."""
    flat = rows.reshape(-1, rows.shape[-1])
    return _Perceptron.apply(flat, weight, output.weight, output.bias).view(*rows.shape[:-1], output.out_features)
