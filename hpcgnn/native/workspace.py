"""Tensors in memory that is kept from step to step: fresh pages cost more than what is computed in them."""

from __future__ import annotations

import torch

from hpcgnn.native.build import _native
from hpcgnn.native.dispatch import on_host

_SMALL = 1 << 20
_MAKERS = {torch.float32: _native.workspace_rows32, torch.float64: _native.workspace_rows64}


def empty_like_rows(table: torch.Tensor, count: int) -> torch.Tensor:
    """An uninitialised tensor [count, ...] for rows such as a table's [n, ...]; see ``empty_rows``."""
    if table.dim() == 2:
        return empty_rows(table, count, table.shape[1])
    return table.new_empty((count, *table.shape[1:]))


def empty_rows(like: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """An uninitialised tensor [count, width] of the dtype and device of ``like``; on the CPU, large ones take memory
    that other such tensors have given back."""
    large = count * width * like.element_size() >= _SMALL
    if large and on_host(like) and like.dtype in _MAKERS:
        return _MAKERS[like.dtype](count, width)
    return like.new_empty((count, width))
