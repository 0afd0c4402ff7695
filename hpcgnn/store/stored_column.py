"""A wide column of a rank's nodes that stays in its part files: read in slabs, or row by row where they lie.

n nodes at this rank, in the order of its parts; F width; k rows asked for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

import h5py
import numpy as np

from hpcgnn.store import files

REMEDY = "run data_tools.verify, or partition again"
SLAB = 4 << 20  # bytes
GAP, LONGEST = 1 << 12, 1 << 22  # bytes: rows as near as that are read at once, up to that many


@dataclass(frozen=True, slots=True)
class Piece:
    """A dataset [rows, ...] of one part file, as a matrix."""

    path: str
    name: str
    rows: int
    width: int
    dtype: np.dtype

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> Piece:
        """That of an open file."""
        width = math.prod(dataset.shape[1:])
        return cls(dataset.file.filename, dataset.name, len(dataset), width, dataset.dtype)


class StoredColumn:
    """The pieces one behind the other: a matrix [n, F]. Raises ValueError for pieces of different widths or dtypes."""

    def __init__(self, pieces: list[Piece]):
        first = pieces[0]
        for piece in pieces:
            if (piece.width, piece.dtype) != (first.width, first.dtype):
                raise ValueError(
                    f"{piece.path}: {piece.name} has {piece.width} columns of {piece.dtype}, that of {first.path} "
                    f"{first.width} of {first.dtype}; {REMEDY}"
                )
        self.pieces, self.dtype = tuple(pieces), first.dtype
        self.shape = (sum(piece.rows for piece in pieces), first.width)

    def slabs(self) -> Iterator[tuple[int, np.ndarray]]:
        """All rows, piece by piece: number of the first one, rows [k, F]. Raises FileFormatError."""
        first = 0
        for piece in self.pieces:
            with files.reading(piece.path, files.PART, REMEDY) as file:
                dataset = file[piece.name]
                for start, stop in files.slabs(piece.rows, files.row_bytes(dataset), SLAB):
                    yield first + start, files.as_matrix(dataset[start:stop])
            first += piece.rows

    def reader(self) -> RowReader:
        """Reads single rows. Raises FileFormatError."""
        return RowReader(self)


class RowReader:
    """Rows of a column, read from the files' bytes: HDF5 says once where its chunks lie. The files stay open.

    Raises FileFormatError for chunks that are packed (the partitioner packs none of such columns).
    """

    def __init__(self, column: StoredColumn):
        self.shape, self.dtype = column.shape, column.dtype
        self._bytes = self.shape[1] * self.dtype.itemsize
        self._files, self._blocks = [], []
        first = 0
        for piece in column.pieces:
            with files.reading(piece.path, files.PART, REMEDY) as file:
                found = _blocks(file[piece.name])
            self._files.append(open(piece.path, "rb", buffering=0))
            self._blocks += [(first + row, len(self._files) - 1, offset) for row, offset in found]
            first += piece.rows
        table = np.array(self._blocks, np.int64).reshape(-1, 3)
        self._first, self._file, self._offset = np.ascontiguousarray(table.T)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """The rows [k, F] of positions [k] int64, in any order. Raises FileFormatError for a file that ends early."""
        out = np.empty((len(rows), self.shape[1]), self.dtype)
        if out.size == 0:
            return out
        order = np.argsort(rows)
        ordered = rows[order]
        block = np.searchsorted(self._first, ordered, side="right") - 1
        offset = self._offset[block] + (ordered - self._first[block]) * self._bytes
        for begin, end in _runs(block, offset, self._bytes):
            found = self._run(int(self._file[block[begin]]), int(offset[begin]), int(offset[end - 1]) + self._bytes)
            out[order[begin:end]] = found[(offset[begin:end] - offset[begin]) // self._bytes]
        return out

    def _run(self, file: int, begin: int, end: int) -> np.ndarray:
        """Neighbouring rows, the bytes begin .. end - 1 of a file."""
        source = self._files[file]
        content = os.pread(source.fileno(), end - begin, begin)
        if len(content) != end - begin:
            raise files.FileFormatError(f"{source.name}: ends at byte {begin + len(content)}; {REMEDY}")
        return np.frombuffer(content, self.dtype).reshape(-1, self.shape[1])


def _runs(block: np.ndarray, offset: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows, sorted, that are read at once: of one block, near each other, and not too many."""
    apart = (np.diff(block) != 0) | (np.diff(offset) > size + GAP)
    starts = np.concatenate(([0], np.flatnonzero(apart) + 1, [len(block)]))
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        step = max(1, LONGEST // (size + GAP))
        for place in range(begin, end, step):
            yield place, min(place + step, end)


def _blocks(dataset: h5py.Dataset) -> list[tuple[int, int]]:
    """First row and first byte of every stretch of rows that lies in one place, in order. Raises ValueError."""
    if dataset.size == 0:
        return []
    if dataset.chunks is None:
        return [(0, dataset.id.get_offset())]
    found: list[tuple[int, int]] = []
    dataset.id.chunk_iter(lambda chunk: found.append((chunk.chunk_offset[0], chunk.byte_offset)))
    whole = dataset.chunks[1:] == dataset.shape[1:] and len(found) == -(-len(dataset) // dataset.chunks[0])
    if dataset.id.get_create_plist().get_nfilters() or not whole:
        raise ValueError(f"{dataset.name} is packed or not in whole rows: use features.storage memory")
    return sorted(found)
