"""Input rows of nodes from their column of features: in memory, in the host's memory for a device to read, or made anew
from the part files whenever wanted.

n nodes of a type at this rank, F width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.store.stored_column import StoredColumn


class GatheredTable(ABC):
    """Input rows [n, F] that are not read where they lie; they are gathered once a step."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device  # where gathered rows lie
    held_bytes = 0  # in the memory of host and device

    @abstractmethod
    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows [k, F] of positions [k] int64, on the device."""


class FileTable(GatheredTable):
    """Input rows [n, F] that stay in the part files."""

    def __init__(self, column: StoredColumn, dtype: torch.dtype, normalize: bool, device: torch.device):
        self.shape, self.dtype, self.device = column.shape, dtype, device
        self._reader, self._normalize = column.reader(), normalize

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """As for all."""
        return _convert(self._reader.read(rows.cpu().numpy()), self.dtype, self._normalize).to(self.device)


class PinnedTable(GatheredTable):
    """Input rows [n, F] in the host's memory, which a device reads over the bus; those at positions hot [h] lie on the
    device, too."""

    def __init__(self, table: torch.Tensor, hot: np.ndarray):
        """table: as the device sees it."""
        self.shape, self.dtype, self.device, self._table = tuple(table.shape), table.dtype, table.device, table
        hot_rows = torch.from_numpy(hot).to(table.device)
        self._place = torch.full((len(table),), -1, dtype=torch.int32, device=table.device)
        self._place[hot_rows] = torch.arange(len(hot), dtype=torch.int32, device=table.device)
        self._hot = native.gather_rows(table, hot_rows)
        held = (self._table, self._hot, self._place)
        self.held_bytes = sum(tensor.numel() * tensor.element_size() for tensor in held)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """As for all; nothing waits for the device."""
        if not len(self._hot):
            return native.gather_rows(self._table, rows)
        place = self._place[rows].long()
        is_cold = place < 0
        cold = native.gather_rows(self._table, torch.where(is_cold, rows, -1))
        return torch.where(is_cold[:, None], cold, native.gather_rows(self._hot, place))


Table = torch.Tensor | GatheredTable


def load(column: StoredColumn, dtype: torch.dtype, normalize: bool, device: torch.device) -> torch.Tensor:
    """All rows [n, F], read in slabs: nothing else is as large."""
    return _fill(torch.empty(column.shape, dtype=dtype, device=device), column, normalize)


def load_pinned(
    column: StoredColumn, dtype: torch.dtype, normalize: bool, device: torch.device, hot: np.ndarray
) -> PinnedTable:  # fmt: skip
    """All rows [n, F] in host memory, those at positions hot [h] int64 on the device, too."""
    if device.type == "cpu" or 0 in column.shape:
        return PinnedTable(load(column, dtype, normalize, device), hot)
    table = load(column, dtype, normalize, torch.device("cpu"))
    return PinnedTable(seen_from(device, table), hot)


def _fill(table: torch.Tensor, column: StoredColumn, normalize: bool) -> torch.Tensor:
    for first, rows in column.slabs():
        table[first : first + len(rows)] = _convert(rows, table.dtype, normalize)
    return table


class _Mapped:
    """A table [n, F] in pinned memory, as the CUDA array interface tells of it: its address is the same on all devices.
    Pinned here, as PyTorch's own pinned memory is the next power of two."""

    PORTABLE_AND_MAPPED = 3

    def __init__(self, table: torch.Tensor):
        self._table, self._is_pinned = table, False  # stays, and stays pinned, as long as tensors refer to it
        size = table.numel() * table.element_size()
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(table.data_ptr(), size, self.PORTABLE_AND_MAPPED))
        self._is_pinned = True
        typestr = np.dtype(str(table.dtype).removeprefix("torch.")).str
        self.__cuda_array_interface__ = {
            "shape": tuple(table.shape), "typestr": typestr, "data": (table.data_ptr(), False), "version": 3,
        }  # fmt: skip

    def __del__(self):
        if self._is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self._table.data_ptr())


def seen_from(device: torch.device, table: torch.Tensor) -> torch.Tensor:
    """A table in the host's memory as a tensor of the device, without a copy; it is pinned for that."""
    return torch.as_tensor(_Mapped(table), device=device)


def gather(table: Table, rows: torch.Tensor) -> torch.Tensor:
    """Rows of any kind of table."""
    return table.gather(rows) if isinstance(table, GatheredTable) else native.gather_rows(table, rows)


def _convert(rows: np.ndarray, dtype: torch.dtype, normalize: bool) -> torch.Tensor:
    """Rows as the model takes them; each depends on itself alone."""
    found = torch.from_numpy(rows).to(dtype)
    return found / found.sum(dim=1, keepdim=True).clamp(min=1e-12) if normalize else found
