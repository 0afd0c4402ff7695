"""Relabelling, winners and index transposes on a CUDA device: the planning operations that need scratch memory.

Torch tensors in and out, on the current stream of their device. Nothing here waits for it: lengths that depend on
the data come back as device tensors, and hpcgnn.native, which cuts the results to them, is the simpler face.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from hpcgnn.native.build import features, hpcgnn_native


@dataclass(slots=True)
class Scratch:
    """Device memory that is kept from call to call and only grows; for one stream at a time."""

    memory: torch.Tensor | None = None

    def of(self, num_bytes: int, device: torch.device) -> torch.Tensor:
        """At least ``num_bytes`` uint8 on the device."""
        if self.memory is None or self.memory.device != device or self.memory.numel() < num_bytes:
            self.memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        return self.memory


_emulated = None


@contextmanager
def emulation() -> Iterator[None]:
    """Meanwhile CPU tensors are taken for a device's: the CUDA kernels serve them, on host threads, and whatever only
    the CPU has is left out. For tests without a GPU.

    ImportError where the build has no such kernels (CMake: HPCGNN_EMULATE_CUDA).
    """
    global _emulated
    _emulated = importlib.import_module("hpcgnn_native.emulated")
    try:
        yield
    finally:
        _emulated = None


def is_emulated() -> bool:
    """Whether this is within ``emulation``."""
    return _emulated is not None


def backend(tensor: torch.Tensor):
    """(kernels, current stream) for a CUDA tensor.

    ValueError where the build has no CUDA kernels or the calling thread's current device is another one.
    """
    if _emulated is not None and tensor.device.type == "cpu":
        return _emulated, 0
    if tensor.device.type != "cuda" or hpcgnn_native.cuda is None:
        raise ValueError(f"no kernels for device {tensor.device}; this build has {features()}")
    if tensor.device.index != torch.cuda.current_device():
        raise ValueError(
            f"tensor on {tensor.device}, but this thread's device is {torch.cuda.current_device()}: "
            f"call torch.cuda.set_device({tensor.device.index}) in every thread that uses it"
        )
    return hpcgnn_native.cuda, torch.cuda.current_stream(tensor.device).cuda_stream


def unique_relabel(ids: torch.Tensor, scratch: Scratch | None = None):
    """Unique ids [N] in order of first occurrence, the inverse [N] int32 (-1 for a negative id) and count [1] int64.

    Only the first ``count`` unique ids are defined.
    """
    kernels, stream = backend(ids)
    unique, count = torch.empty_like(ids), ids.new_empty(1)
    inverse = torch.empty_like(ids, dtype=torch.int32)
    memory = (scratch or Scratch()).of(kernels.unique_relabel_scratch_bytes(len(ids)), ids.device)
    kernels.unique_relabel(ids, unique, inverse, count, memory, stream)
    return unique, inverse, count


def last_event(nodes: torch.Tensor, events: torch.Tensor, scratch: Scratch | None = None) -> torch.Tensor:
    """Boolean [N]: the first entry among those of its node that carry the node's largest event row id."""
    kernels, stream = backend(nodes)
    winner = torch.empty_like(nodes, dtype=torch.uint8)
    memory = (scratch or Scratch()).of(kernels.last_event_scratch_bytes(len(nodes)), nodes.device)
    kernels.last_event(nodes, events, winner, memory, stream)
    return winner.view(torch.bool)


def transpose_index(index: torch.Tensor, targets: int, scratch: Scratch | None = None):
    """CSR of the positions that point at each target: indptr [targets + 1] and order [N] int64.

    The first indptr[-1] entries of order belong to targets; the rest are the positions that point nowhere.
    """
    kernels, stream = backend(index)
    indptr = torch.empty(targets + 1, dtype=torch.int64, device=index.device)
    order = torch.empty_like(index, dtype=torch.int64)
    memory = (scratch or Scratch()).of(kernels.transpose_index_scratch_bytes(len(index), targets), index.device)
    kernels.transpose_index(index, indptr, order, memory, stream)
    return indptr, order
