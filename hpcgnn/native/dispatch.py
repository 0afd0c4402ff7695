"""Which kernels serve an array: the CPU's or CUDA's."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.native import cuda as native_cuda
from hpcgnn.native.build import _native

SLAB_BYTES = 32 << 20


def on_cuda(array) -> bool:
    """Whether it is a tensor on a CUDA device, or one that is taken for such."""
    return isinstance(array, torch.Tensor) and (array.is_cuda or native_cuda.is_emulated())


def on_host(tensor: torch.Tensor) -> bool:
    """Whether the CPU's kernels serve this tensor."""
    return tensor.device.type == "cpu" and not native_cuda.is_emulated()


def planning_backend(array, threads: int):
    """(kernels, execution) for a planning operation: ``threads`` for NumPy arrays, the current stream on CUDA."""
    return native_cuda.backend(array) if on_cuda(array) else (_native, threads)


def compute_backend(tensor: torch.Tensor):
    """(kernels, execution) for a tensor's device: threads on the CPU, the current stream on CUDA."""
    if on_host(tensor):
        return _native, torch.get_num_threads()
    return native_cuda.backend(tensor)


def empty_like(like, shape, dtype: str):
    """A CUDA tensor where ``like`` is one, else a NumPy array."""
    if on_cuda(like):
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    return np.empty(shape, dtype)


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor where it is wanted; to a device from pinned memory, on the current stream, which is not waited for."""
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def download(tensor: torch.Tensor) -> torch.Tensor:
    """On the host, contiguous. From a device, whose work so far is waited for, in slabs through pinned memory on a
    stream of its own: what other threads do there goes on."""
    if not tensor.is_cuda:
        return tensor.contiguous()
    stream = torch.cuda.Stream(tensor.device)
    stream.wait_stream(torch.cuda.default_stream(tensor.device))
    with torch.cuda.stream(stream):
        source = tensor.contiguous()
        found = torch.empty(source.shape, dtype=source.dtype)
        slab = torch.empty(max(1, SLAB_BYTES // source.element_size()), dtype=source.dtype, pin_memory=True)
        for into, piece in zip(found.view(-1).split(len(slab)), source.view(-1).split(len(slab)), strict=True):
            slab[: len(piece)].copy_(piece, non_blocking=True)
            stream.synchronize()
            into.copy_(slab[: len(piece)])
    return found


class Uploads:
    """Arrays on a device, each of them once, however often it is asked for."""

    def __init__(self, device: torch.device):
        self._device = device
        self._kept: dict[tuple, tuple[np.ndarray, torch.Tensor]] = {}

    def __call__(self, array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The array on the device, of its own type or another one. It must not change any more."""
        key = array.__array_interface__["data"][0], array.shape, array.dtype.str, dtype
        if key not in self._kept:
            self._kept[key] = array, torch.from_numpy(array).to(self._device, dtype)
        return self._kept[key][1]
