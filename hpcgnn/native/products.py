"""Products of rows with weights: in float32, through TF32, or rounded to bfloat16 and added up in float32. CUDA devices
have units for that, and some processors for bfloat16. Elsewhere numbers are rounded before they are multiplied, which
takes longer, and shows the effect on a model. The setting is kept for the process, as PyTorch keeps such settings.

On the CPU, layers multiply in float32 through oneDNN where torch offers it. On processors where MKL falls back to
narrow kernels it reaches twice the rate (measured: 95 against 200 GFLOP/s a core on AVX-512 AMD)."""

from __future__ import annotations

import functools
import math

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hpcgnn.native.dispatch import on_host

_kind = ""  # of the rounding that is done here


def choose_products(kind: str, device: torch.device, dtype: torch.dtype) -> None:
    """Set the kind of all products from now on (``train.matmul``). ValueError for weights that cannot have it."""
    global _kind
    if kind != "float32" and dtype != torch.float32:
        raise ValueError(f"train.matmul {kind} needs train.precision float32")
    by_device = kind == "tf32" and device.type == "cuda"
    torch.set_float32_matmul_precision("high" if by_device else "highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    _kind = "" if kind == "float32" or by_device else kind


def is_slow(kind: str, device: torch.device) -> bool:
    """Whether products of a kind take longer than in float32, as this rank's device has no units for them."""
    return device.type == "cpu" and (kind == "tf32" or (kind == "bf16" and not _has_bfloat16_units()))


def are_rounded() -> bool:
    """Whether factors are rounded here before they are multiplied (not so where the device does it)."""
    return bool(_kind)


def _round(values: torch.Tensor) -> torch.Tensor:
    """Round to bfloat16, or to the 10 bits of mantissa that TF32 has, halves away from zero."""
    if _kind == "bf16":
        return values.bfloat16()
    return ((values.contiguous().view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32)


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply rounded numbers, adding up in float32."""
    if left.dtype == torch.bfloat16 and not left.is_cuda and not _has_bfloat16_units():
        return (left.float() @ right.float()).bfloat16()
    return left @ right


@functools.cache
def _has_bfloat16_units() -> bool:
    """Whether this processor multiplies bfloat16 numbers, which PyTorch tells by functions without promise."""
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return torch.backends.mkldnn.is_available() and any(check is not None and check() for check in checks)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight):
        low = _round(rows), _round(weight)
        ctx.save_for_backward(*low)
        ctx.dtype = rows.dtype
        return _product(*low).to(rows.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        rows, weight = ctx.saved_tensors
        low = _round(gradient)
        grad_rows = _product(low, weight.t()).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return grad_rows, _product(rows.t(), low).to(ctx.dtype) if ctx.needs_input_grad[1] else None


def multiply(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """rows [..., I] @ weight [I, O]."""
    if not _kind:
        return rows @ weight
    flat = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])  # of no columns, too
    return _Rounded.apply(flat, weight).view(*rows.shape[:-1], weight.shape[1])


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left [n, i] @ right [i, o], of factors that are rounded as chosen; without a gradient."""
    return _product(_round(left), _round(right)).to(left.dtype) if _kind else left @ right


def rounded(factor: torch.Tensor) -> torch.Tensor:
    """Round a factor of several ``product`` calls once, as chosen."""
    return _round(factor) if _kind else factor


def add_product(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Add left [n, i] @ right [i, o] to out [n, o], without a gradient; returns out."""
    return out.add_(product(left, right)) if _kind else out.addmm_(left, right)


def multiply_into(
    out: torch.Tensor, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """left [n, I] @ right [I, O] + bias into out [n, O], without a gradient; returns out."""
    if _kind:
        out.copy_(_product(_round(left), _round(right)))
        return out if bias is None else out.add_(bias)
    return torch.mm(left, right, out=out) if bias is None else torch.addmm(bias, left, right, out=out)


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, bias, operator):
        ctx.save_for_backward(rows, weight)
        ctx.operator, ctx.with_bias = operator, bias is not None
        return operator(rows, weight, bias, "none", [], "")

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        rows, weight = ctx.saved_tensors
        times = lambda a, b: ctx.operator(a, b, None, "none", [], "")  # noqa: E731 - a @ b.T
        grad_rows = times(gradient.contiguous(), weight.t().contiguous()) if ctx.needs_input_grad[0] else None
        grad_weight = times(gradient.t(), rows.t()) if ctx.needs_input_grad[1] else None
        return grad_rows, grad_weight, gradient.sum(0) if ctx.with_bias else None, None


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute rows [n, i] @ weight [o, i].T + bias [o]; on a device with the products of `choose_products`."""
    if _kind:
        out = multiply(rows, weight.t())
        return out if bias is None else out + bias
    operator = None
    if on_host(rows) and rows.dtype == torch.float32 and rows.dim() == 2 and torch.backends.mkldnn.is_available():
        operator = getattr(getattr(torch.ops, "mkldnn", None), "_linear_pointwise", None)  # not every torch has it
    if operator is None or rows.numel() == 0:
        return functional.linear(rows, weight, bias)
    return _OneDnnLinear.apply(rows.contiguous(), weight.contiguous(), bias, operator)
