"""How rows are multiplied with weights on a device: in float32, through TF32, or rounded to bfloat16 and added up in
float32. Kept for the process, as PyTorch keeps its own such settings."""

from __future__ import annotations

import torch

from hpcgnn.native.dispatch import on_cuda

_rounds = False


def choose_products(kind: str, device: torch.device, dtype: torch.dtype) -> None:
    """From now on products are of this kind (``train.matmul``), of weights of a dtype. ValueError where they cannot."""
    global _rounds
    if kind != "float32" and not on_cuda(torch.empty(0, device=device)):
        raise ValueError(f"train.matmul {kind} is for CUDA devices, comm.device is {device.type}; leave it float32")
    if kind != "float32" and dtype != torch.float32:
        raise ValueError(f"train.matmul {kind} needs train.precision float32")
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    _rounds = kind == "bf16"


def are_rounded() -> bool:
    """Whether products are of numbers rounded to bfloat16."""
    return _rounds


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight):
        low = rows.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(*low)
        ctx.dtype = rows.dtype
        return (low[0] @ low[1]).to(rows.dtype)

    @staticmethod
    def backward(ctx, gradient):
        rows, weight = ctx.saved_tensors
        low = gradient.bfloat16()
        grad_rows = (low @ weight.t()).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return grad_rows, (rows.t() @ low).to(ctx.dtype) if ctx.needs_input_grad[1] else None


def multiply(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """rows [..., I] @ weight [I, O]."""
    if not _rounds:
        return rows @ weight
    return _Rounded.apply(rows.reshape(-1, rows.shape[-1]), weight).view(*rows.shape[:-1], weight.shape[1])


def multiply_into(
    out: torch.Tensor, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """left [n, I] @ right [I, O] + bias into out [n, O], without a gradient; returns out."""
    if _rounds:
        out.copy_(left.bfloat16() @ right.bfloat16())
        return out if bias is None else out.add_(bias)
    return torch.mm(left, right, out=out) if bias is None else torch.addmm(bias, left, right, out=out)
