"""Feature columns of a rank's nodes: in memory, in pinned memory of the host for a device, or left in the part files.

A column that stays in its part files is read in slabs, or row by row where the rows lie. n nodes at this rank, in the
order of its parts; F width; k rows to read.
"""

from __future__ import annotations

import copy
import math
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import h5py
import numpy as np
import torch

from hpcgnn import native
from hpcgnn.graph import files
from hpcgnn.graph.narrow import BFLOAT16, FLOAT16, UINT8, Encoding, read_encoding
from hpcgnn.native.workspace import empty_like_rows

REMEDY = "run hpcgnn verify, or partition again"
SLAB = 4 << 20  # bytes
GAP, LONGEST = 1 << 12, 1 << 22  # bytes: rows at most GAP apart are read at once, at most LONGEST of them
IN_CACHE = 1 << 18  # bytes of widened rows
NARROW = {FLOAT16: torch.float16, BFLOAT16: torch.bfloat16, UINT8: torch.uint8}  # dtypes in memory, by form


@dataclass(frozen=True, slots=True)
class Piece:
    """A dataset [rows, ...] of one part file, as a matrix."""

    path: str
    name: str
    rows: int
    width: int
    dtype: np.dtype
    encoding: Encoding | None = None

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> Piece:
        """Describe a column of an open file. Raises FileFormatError for a narrow form that is none."""
        width = math.prod(dataset.shape[1:])
        return cls(dataset.file.filename, dataset.name, len(dataset), width, dataset.dtype, read_encoding(dataset))


class StoredColumn:
    """A column that lies in pieces in part files, as a matrix [n, F]; encoding: its narrow form, None for plain
    numbers. Raises ValueError for pieces of different widths, dtypes or forms."""

    def __init__(self, pieces: list[Piece]):
        first = pieces[0]
        for piece in pieces:
            if (piece.width, piece.dtype) != (first.width, first.dtype):
                raise ValueError(
                    f"{piece.path}: {piece.name} has {piece.width} columns of {piece.dtype}, that of {first.path} "
                    f"{first.width} of {first.dtype}; {REMEDY}"
                )
            if piece.encoding != first.encoding:
                raise ValueError(f"{piece.path}: {piece.name} is stored as {first.path} does not store it; {REMEDY}")
        self.pieces, self.dtype, self.encoding = tuple(pieces), first.dtype, first.encoding
        self.shape = (sum(piece.rows for piece in pieces), first.width)

    def slabs(self) -> Iterator[tuple[int, np.ndarray]]:
        """Read all rows in slabs: position of the first one, rows [k, F], widened to float32 where they are narrow.
        Raises FileFormatError."""
        for first, rows in self.stored_slabs():
            yield first, rows if self.encoding is None else self.encoding.decode(rows)

    def stored_slabs(self) -> Iterator[tuple[int, np.ndarray]]:
        """Read all rows in slabs as they are stored: position of the first one, rows [k, F]. Raises FileFormatError."""
        first = 0
        for piece in self.pieces:
            with files.reading(piece.path, files.PART, REMEDY) as file:
                dataset = file[piece.name]
                for start, stop in files.slabs(piece.rows, files.row_bytes(dataset), SLAB):
                    yield first + start, files.as_matrix(dataset[start:stop])
            first += piece.rows


class HeldColumn(StoredColumn):
    """A column in memory, as a matrix [n, F]."""

    def __init__(self, rows: np.ndarray):
        self.pieces, self.dtype, self.shape, self._rows, self.encoding = (), rows.dtype, rows.shape, rows, None

    def stored_slabs(self) -> Iterator[tuple[int, np.ndarray]]:
        """Return all rows at once."""
        yield 0, self._rows


class RowReader:
    """Reads single rows of a column from the bytes of the files: HDF5 is used once, to find the chunks. The files stay
    open.

    Raises FileFormatError for chunks that are packed (the partitioner packs none of such columns).
    """

    def __init__(self, column: StoredColumn):
        self.shape, self.dtype = column.shape, column.dtype
        self._bytes = self.shape[1] * self.dtype.itemsize
        self._files, self._blocks = [], []
        first = 0
        for piece in column.pieces:
            with files.reading(piece.path, files.PART, REMEDY) as file:
                stretches = _find_stretches(file[piece.name])
            self._files.append(open(piece.path, "rb", buffering=0))
            self._blocks += [(first + row, len(self._files) - 1, offset) for row, offset in stretches]
            first += piece.rows
        table = np.array(self._blocks, np.int64).reshape(-1, 3)
        self._first, self._file, self._offset = np.ascontiguousarray(table.T)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Read the rows [k, F] at positions [k] int64, in any order. Raises FileFormatError for a file that ends
        early."""
        out = np.empty((len(rows), self.shape[1]), self.dtype)
        if out.size == 0:
            return out
        order = np.argsort(rows)
        ordered = rows[order]
        block = np.searchsorted(self._first, ordered, side="right") - 1
        offset = self._offset[block] + (ordered - self._first[block]) * self._bytes
        for begin, end in _near_rows(block, offset, self._bytes):
            source, at = self._files[self._file[block[begin]]], int(offset[begin])
            length = int(offset[end - 1]) + self._bytes - at
            content = os.pread(source.fileno(), length, at)
            if len(content) != length:
                raise files.FileFormatError(f"{source.name}: ends at byte {at + len(content)}; {REMEDY}")
            near_rows = np.frombuffer(content, self.dtype).reshape(-1, self.shape[1])
            out[order[begin:end]] = near_rows[(offset[begin:end] - at) // self._bytes]
        return out


def _near_rows(block: np.ndarray, offset: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Divide sorted rows into ranges that are read at once: of one stretch, near each other, and not too many."""
    apart = (np.diff(block) != 0) | (np.diff(offset) > size + GAP)
    starts = np.concatenate(([0], np.flatnonzero(apart) + 1, [len(block)]))
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        step = max(1, LONGEST // (size + GAP))
        for place in range(begin, end, step):
            yield place, min(place + step, end)


def _find_stretches(dataset: h5py.Dataset) -> list[tuple[int, int]]:
    """Find the first row and the first byte of every stretch of rows that lies in one place, in order. Raises
    ValueError."""
    if dataset.size == 0:
        return []
    if dataset.chunks is None:
        return [(0, dataset.id.get_offset())]
    stretches: list[tuple[int, int]] = []
    dataset.id.chunk_iter(lambda chunk: stretches.append((chunk.chunk_offset[0], chunk.byte_offset)))
    has_whole_rows = dataset.chunks[1:] == dataset.shape[1:] and len(stretches) == -(-len(dataset) // dataset.chunks[0])
    if dataset.id.get_create_plist().get_nfilters() or not has_whole_rows:
        raise ValueError(f"{dataset.name} is packed or not in whole rows: use features.storage device")
    return sorted(stretches)


@dataclass(frozen=True)
class Widening:
    """Makes rows that models take of narrow rows, on any device; normalize: as in ``convert``. They are the numbers of
    ``Encoding.decode``, to all bits: a product with a step is exact in float32, so that one rounding is left."""

    encoding: Encoding
    dtype: torch.dtype
    normalize: bool

    def __post_init__(self):
        steps = [torch.tensor(numbers) for numbers in (self.encoding.scale, self.encoding.offset) if numbers]
        object.__setattr__(self, "_steps", {torch.device("cpu"): steps})

    @property
    def stored_dtype(self) -> torch.dtype:
        """Dtype of narrow rows in memory."""
        return NARROW[self.encoding.name]

    def stored(self, rows: np.ndarray) -> torch.Tensor:
        """Return rows of files [k, ...] as they lie in memory."""
        if rows.dtype == np.uint16:  # for which PyTorch has few operations
            rows = rows.view(np.int16)
        return torch.from_numpy(rows).view(self.stored_dtype)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Widen narrow rows [k, ...] of F numbers."""
        out = empty_like_rows(rows.new_empty((0, *rows.shape[1:]), dtype=self.dtype), len(rows))
        for slab in self._slabs(rows):
            self._widen_into(out[slab], rows[slab])
        return out

    def _slabs(self, rows: torch.Tensor) -> Iterator[slice]:
        """Divide rows: on the host, so that what a slab passes through stays in the processor's cache."""
        size = max(1, rows.shape[1:].numel() * self.dtype.itemsize)
        for first, last in files.slabs(len(rows), size, IN_CACHE if rows.device.type == "cpu" else size * len(rows)):
            yield slice(first, last)

    def _widen_into(self, out: torch.Tensor, rows: torch.Tensor) -> None:
        steps = self._on(rows.device)
        if steps:
            scale, offset = (numbers.view(rows.shape[1:]) for numbers in steps)
            wide = out.copy_(rows) if self.dtype == torch.float32 else rows.to(torch.float32)
            rows = wide.mul_(scale).add_(offset)
        if rows is not out:
            out.copy_(rows)
        if self.normalize:
            out.copy_(normalized(out))

    def _on(self, device: torch.device) -> list[torch.Tensor]:
        steps: dict[torch.device, list[torch.Tensor]] = self._steps  # type: ignore[attr-defined]
        if device not in steps:
            steps[device] = [numbers.to(device) for numbers in steps[torch.device("cpu")]]
        return steps[device]


class GatheredTable(ABC):
    """Input rows [n, F] that kernels do not read where they lie: they are gathered once a step. Gathered rows may be
    narrow; they travel and are copied so, and ``widen`` makes rows of ``dtype`` of them."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device  # where gathered rows lie
    widening: Widening | None = None  # of narrow rows

    @property
    def held_bytes(self) -> int:
        """Bytes in the memory of host and device."""
        return 0

    @abstractmethod
    def gather_stored(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy the rows [k, F] at positions [k] int64 to the device, maybe narrow."""

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy the rows [k, F] at positions [k] int64 to the device."""
        return self.widen(self.gather_stored(rows))

    def widen(self, rows: torch.Tensor) -> torch.Tensor:
        """Widen rows of ``gather_stored``."""
        return rows if self.widening is None else self.widening(rows)

    def to(self, device: torch.device) -> GatheredTable:
        """Return this table, whose rows are gathered on its own device."""
        return self


class NarrowTable(GatheredTable):
    """Input rows [n, F] in memory as they are stored: ``table``."""

    widening: Widening

    def __init__(self, table: torch.Tensor, widening: Widening):
        self.table, self.widening = table, widening
        self.shape, self.dtype, self.device = tuple(table.shape), widening.dtype, table.device

    @property
    def held_bytes(self) -> int:
        return self.table.numel() * self.table.element_size()

    def gather_stored(self, rows: torch.Tensor) -> torch.Tensor:
        return native.gather_rows(self.table, rows)

    def to(self, device: torch.device) -> NarrowTable:
        """Return this table on a device."""
        return NarrowTable(self.table.to(device), self.widening)


class FileTable(GatheredTable):
    """Input rows [n, F] that stay in the part files."""

    def __init__(self, column: StoredColumn, dtype: torch.dtype, normalize: bool, device: torch.device):
        self.shape, self.dtype, self.device = column.shape, dtype, device
        self._reader, self._normalize = RowReader(column), normalize
        self.widening = widening_of(column, dtype, normalize)

    def gather_stored(self, rows: torch.Tensor) -> torch.Tensor:
        read = self._reader.read(rows.cpu().numpy())
        if self.widening is None:
            return convert(read, self.dtype, self._normalize).to(self.device)
        return self.widening.stored(read).to(self.device)


class PinnedTable(GatheredTable):
    """Input rows [n, F] in the host's memory, which a device reads over the bus; the hot ones, at positions hot [h],
    lie on the device, too."""

    def __init__(self, table: torch.Tensor, hot: np.ndarray, widening: Widening | None = None):
        """table: a tensor of the device."""
        self.shape, self.device, self._table, self.widening = tuple(table.shape), table.device, table, widening
        self.dtype = table.dtype if widening is None else widening.dtype
        hot_rows = torch.from_numpy(hot).to(table.device)
        self._place = torch.full((len(table),), -1, dtype=torch.int32, device=table.device)
        self._place[hot_rows] = torch.arange(len(hot), dtype=torch.int32, device=table.device)
        self._hot = native.gather_rows(table, hot_rows)

    @property
    def held_bytes(self) -> int:
        held = (self._table, self._hot, self._place)
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def part(self, first: int, last: int) -> PinnedTable:
        """Return the rows first .. last - 1 as a table of their own, without a copy."""
        part = copy.copy(self)
        part._table, part._place = self._table[first:last], self._place[first:last]
        part.shape = tuple(part._table.shape)
        return part

    def gather_stored(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy rows without waiting for the device."""
        if not len(self._hot):
            return native.gather_rows(self._table, rows)
        place = self._place[rows].long()
        is_cold = place < 0
        cold = native.gather_rows(self._table, torch.where(is_cold, rows, -1))
        return torch.where(is_cold[:, None], cold, native.gather_rows(self._hot, place))


Table = torch.Tensor | GatheredTable


def widening_of(column: StoredColumn, dtype: torch.dtype, normalize: bool) -> Widening | None:
    """Return what widens the rows of a column; None for plain numbers."""
    return None if column.encoding is None else Widening(column.encoding, dtype, normalize)


def load(
    column: StoredColumn, dtype: torch.dtype, normalize: bool, device: torch.device, table: torch.Tensor | None = None
) -> torch.Tensor:
    """Read all rows [n, F], in slabs and wide, into ``table``, or, where that is None, new memory of the device."""
    if table is None:
        table = torch.empty(column.shape, dtype=dtype, device=device)
    for first, rows in column.slabs():
        table[first : first + len(rows)] = convert(rows, dtype, normalize)
    return table


def load_table(
    column: StoredColumn, dtype: torch.dtype, normalize: bool, device: torch.device, table: torch.Tensor | None = None
) -> Table:
    """Read all rows [n, F], in slabs, into ``table``, or, where that is None, new memory of the device: narrow rows
    stay narrow."""
    widening = widening_of(column, dtype, normalize)
    if widening is None:
        return load(column, dtype, normalize, device, table)
    return NarrowTable(_load_stored(column, widening, device, table), widening)


def _load_stored(
    column: StoredColumn, widening: Widening, device: torch.device, table: torch.Tensor | None
) -> torch.Tensor:
    """Read all rows [n, F] as they are stored."""
    if table is None:
        table = torch.empty(column.shape, dtype=widening.stored_dtype, device=device)
    for first, rows in column.stored_slabs():
        table[first : first + len(rows)] = widening.stored(rows)
    return table


def load_pinned(
    column: StoredColumn, dtype: torch.dtype, normalize: bool, device: torch.device, hot: np.ndarray
) -> PinnedTable:  # fmt: skip
    """Read all rows [n, F] into the host's memory, and the rows at positions hot [h] int64 onto the device, too; narrow
    rows stay narrow."""
    widening = widening_of(column, dtype, normalize)
    stored_dtype = dtype if widening is None else widening.stored_dtype

    def read(table: torch.Tensor) -> torch.Tensor:
        if widening is None:
            return load(column, dtype, normalize, table.device, table)
        return _load_stored(column, widening, table.device, table)

    if device.type == "cpu" or 0 in column.shape:
        return PinnedTable(read(torch.empty(column.shape, dtype=stored_dtype, device=device)), hot, widening)
    # In pages of its own: a driver pins whole pages, and refuses one that is pinned already.
    size = math.prod(column.shape)
    pages = torch.frombuffer(mmap.mmap(-1, size * stored_dtype.itemsize), dtype=stored_dtype, count=size)
    return PinnedTable(seen_from(device, read(pages.view(column.shape))), hot, widening)


class _Mapped:
    """A table [n, F] in pinned memory with the CUDA array interface: its address is the same on all devices. It is
    pinned here because PyTorch rounds pinned memory up to the next power of two."""

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
    """Make a table in the host's memory a tensor of the device, without a copy; it is pinned for that."""
    if table.dtype == torch.bfloat16:  # which the interface lacks
        return torch.as_tensor(_Mapped(table.view(torch.int16)), device=device).view(torch.bfloat16)
    return torch.as_tensor(_Mapped(table), device=device)


def gather(table: Table, rows: torch.Tensor) -> torch.Tensor:
    """Copy rows of a table of any kind."""
    return widen(table, gather_stored(table, rows))


def gather_stored(table: Table, rows: torch.Tensor) -> torch.Tensor:
    """Copy rows of a table of any kind, maybe narrow."""
    return table.gather_stored(rows) if isinstance(table, GatheredTable) else native.gather_rows(table, rows)


def widen(table: Table, rows: torch.Tensor) -> torch.Tensor:
    """Widen rows that ``gather_stored`` copied of a table."""
    return table.widen(rows) if isinstance(table, GatheredTable) else rows


def stored_dtype(table: Table) -> torch.dtype:
    """Return the dtype of rows that ``gather_stored`` copies of a table."""
    widening = table.widening if isinstance(table, GatheredTable) else None
    return table.dtype if widening is None else widening.stored_dtype


def copy_between(table: Table, first: int, last: int) -> torch.Tensor:
    """Copy the rows first .. last - 1 of a table of any kind, wide."""
    if isinstance(table, GatheredTable):
        return table.gather(torch.arange(first, last, device=table.device))
    return table[first:last].clone()  # as products depend on where in a cache line their factors begin


def everything(table: Table) -> torch.Tensor:
    """Return all rows [n, F] of a table of any kind, wide."""
    return copy_between(table, 0, table.shape[0]) if isinstance(table, GatheredTable) else table


def convert(rows: np.ndarray, dtype: torch.dtype, normalize: bool) -> torch.Tensor:
    """Convert rows to what models take; normalize: divide each by the sum of its absolute values."""
    converted = torch.from_numpy(rows).to(dtype)
    return normalized(converted) if normalize else converted


def normalized(rows: torch.Tensor) -> torch.Tensor:
    """Divide each row by the sum of its absolute values."""
    return rows / rows.abs().sum(dim=1, keepdim=True).clamp(min=1e-12)
