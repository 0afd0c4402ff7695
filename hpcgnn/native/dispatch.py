"""Which kernels serve an array, the CPU's or CUDA's, and how tensors travel between host and device."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch

from hpcgnn.native.build import _native, features, hpcgnn_native

SLAB_BYTES = 32 << 20
_checks_indices = False  # whether indices are looked at before kernels get them
_emulated = None


@contextmanager
def emulation() -> Iterator[None]:
    """Within this context CPU tensors are taken for a device's: the CUDA kernels serve them, on host threads, and what
    only the CPU has is left out. For tests without a GPU.

    ImportError where the build has no such kernels (CMake: HPCGNN_EMULATE_CUDA).
    """
    global _emulated
    _emulated = importlib.import_module("hpcgnn_native.emulated")
    try:
        yield
    finally:
        _emulated = None


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


def on_cuda(array) -> bool:
    """Whether an array is a tensor on a CUDA device, or, within ``emulation``, any tensor."""
    return isinstance(array, torch.Tensor) and (array.is_cuda or _emulated is not None)


def on_host(tensor: torch.Tensor) -> bool:
    """Whether the CPU's kernels serve this tensor."""
    return tensor.device.type == "cpu" and _emulated is None


def planning_backend(array, threads: int):
    """(kernels, execution) for a planning operation: ``threads`` for NumPy arrays, the current stream on CUDA."""
    return backend(array) if on_cuda(array) else (_native, threads)


def compute_backend(tensor: torch.Tensor):
    """(kernels, execution) for a tensor's device: threads on the CPU, the current stream on CUDA."""
    if on_host(tensor):
        return _native, torch.get_num_threads()
    return backend(tensor)


def check_indices(checks: bool) -> None:
    """Choose whether ``check_index`` looks at indices, in this process (``train.debug``)."""
    global _checks_indices
    _checks_indices = checks


def checks_indices() -> bool:
    """Whether ``check_index`` looks at indices."""
    return _checks_indices


def check_index(name: str, index: torch.Tensor, length: int, least: int | None = None) -> None:
    """Raise IndexError for an index [n] of ``length`` rows or more, or below ``least``, where ``check_indices`` asked
    for it. A device finds it at its next wait only, or reads other memory, and does not name it; looking costs a wait
    for the device in each call."""
    if not _checks_indices or not index.numel():
        return
    for place, is_wrong in (
        (int(index.argmax()), lambda value: value >= length),
        (int(index.argmin()), lambda value: least is not None and value < least),
    ):
        value = int(index.reshape(-1)[place])
        if is_wrong(value):
            where = f"at place {place} of {index.numel()}, where there are {length} rows"
            raise IndexError(f"{name}: index {value} {where}")


def empty_like(like, shape, dtype: str):
    """A CUDA tensor where ``like`` is one, else a NumPy array."""
    if on_cuda(like):
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    return np.empty(shape, dtype)


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move a tensor to ``device``: from the host through pinned memory, on the current stream, without a wait."""
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def download(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the host, contiguous. Waits for its device's work so far, and copies in slabs through pinned
    memory on a separate stream, so that the work of other threads on the device continues."""
    if not tensor.is_cuda:
        return tensor.contiguous()
    stream = _download_stream(tensor.device)
    stream.wait_stream(torch.cuda.default_stream(tensor.device))
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(stream):
        source = tensor.contiguous()
        result = torch.empty(source.shape, dtype=source.dtype)
        slab = torch.empty(max(1, SLAB_BYTES // source.element_size()), dtype=source.dtype, pin_memory=True)
        for into, piece in zip(result.view(-1).split(len(slab)), source.view(-1).split(len(slab)), strict=True):
            slab[: len(piece)].copy_(piece, non_blocking=True)
            stream.synchronize()
            into.copy_(slab[: len(piece)])
    return result


@lru_cache
def _download_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all downloads. PyTorch hands out its 32 streams in turn: with one for each tensor a download
    would meet the stream of a graph that is being recorded, and end the recording."""
    return torch.cuda.Stream(device)


class Uploads:
    """Copies of arrays on a device. Each array is copied once, however often it is needed."""

    def __init__(self, device: torch.device):
        self._device = device
        self._kept: dict[tuple, tuple[np.ndarray, torch.Tensor]] = {}

    def __call__(self, array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the array on the device, in its own type or another one. It must not change any more."""
        key = array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str, dtype
        if key not in self._kept:
            is_shared = self._device.type != "cpu" and not array.flags.writeable
            copied = self._in_slabs(array, dtype) if is_shared else torch.from_numpy(array).to(self._device, dtype)
            self._kept[key] = array, copied
        return self._kept[key][1]

    def _in_slabs(self, array: np.ndarray, dtype: torch.dtype | None) -> torch.Tensor:
        """Copy an array that is not to be written, such as one that ranks share: PyTorch warns of such arrays, and a
        copy of all of it on the host would be one for each rank."""
        rows = array.reshape(-1)
        found = torch.empty(rows.shape, dtype=dtype or torch.from_numpy(rows[:0].copy()).dtype, device=self._device)
        step = max(1, SLAB_BYTES // rows.itemsize)
        for first in range(0, len(rows), step):
            found[first : first + step] = torch.from_numpy(rows[first : first + step].copy())
        return found.view(array.shape)
