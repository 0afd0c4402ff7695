"""Helpers of native layers, each of which is one native call forward and one backward, on the CPU.

A layer is a pass: an object that goes forward once and backward at most once, and keeps what backward needs. Backward
adds the gradients of the weights to a flat tensor. For autograd, functions wrap the passes. Matrix products are the
kernels' own, in float32 or float64; results do not depend on the number of threads. Kernels get the addresses of
tensors, so a pass also keeps every tensor that it has described to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn.native.build import _native
from hpcgnn.native.dispatch import on_host
from hpcgnn.native.products import are_rounded
from hpcgnn.native.random import Random

_KERNELS = {torch.float32: _native.float32, torch.float64: _native.float64}


@dataclass(frozen=True, slots=True)
class KeyedDropout:
    """Dropout whose mask is that of native.dropout_mask(random, identity [N], ., p, .)."""

    random: Random
    identity: torch.Tensor
    p: float

    def __post_init__(self):
        if not 0 <= self.p < 1:
            raise ValueError(f"dropout probability must be in [0, 1), got {self.p}")


def is_supported(*tensors: torch.Tensor) -> bool:
    """Whether native layers take these tensors: on the CPU, float32 or float64, all of one dtype."""
    return tensors[0].dtype in _KERNELS and all(on_host(t) and t.dtype == tensors[0].dtype for t in tensors)


def can_multiply(*tensors: torch.Tensor) -> bool:
    """Whether native layers with products take these tensors: their products are never rounded."""
    return is_supported(*tensors) and not are_rounded()


def kernels_for(tensor: torch.Tensor):
    """The layers of the tensor's precision. ValueError where there are none."""
    if not is_supported(tensor):
        raise ValueError(f"layers are native on the CPU in float32 and float64, not for {tensor.dtype} {tensor.device}")
    return _KERNELS[tensor.dtype]


def address(tensor: torch.Tensor, dtype: torch.dtype, *shape: int) -> int:
    """The address of a contiguous tensor of the given dtype and shape (-1: any size). ValueError for any other."""
    if tensor.dtype != dtype or not tensor.is_cpu or not tensor.is_contiguous():
        raise ValueError(f"expected a contiguous CPU tensor of {dtype}, got {tensor.dtype} on {tensor.device}")
    if tensor.shape != shape:
        sizes = tensor.shape
        if len(sizes) != len(shape) or any(a != b and b >= 0 for a, b in zip(sizes, shape, strict=True)):
            raise ValueError(f"expected shape {shape}, got {tuple(sizes)}")
    return tensor.data_ptr()


def flat_zeros(like: torch.Tensor, shapes: list[torch.Size]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A flat tensor of zeros, and its consecutive pieces in these shapes."""
    sizes = [shape.numel() for shape in shapes]
    flat = like.new_zeros(sum(sizes))
    return flat, [piece.view(shape) for piece, shape in zip(flat.split(sizes), shapes, strict=True)]
