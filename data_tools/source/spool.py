"""Columns of unknown length on disk."""

from __future__ import annotations

import mmap
import pathlib
import tempfile

import numpy as np


class Spool:
    """A column of unknown length on disk, in an unnamed temporary file."""

    def __init__(self, folder: pathlib.Path):
        self._file = tempfile.TemporaryFile(dir=folder)
        self._rows = 0
        self._like: np.ndarray | None = None

    def fits(self, rows: np.ndarray) -> bool:
        """Whether rows have the trailing shape and the dtype of the earlier rows."""
        return self._like is None or (rows.dtype, rows.shape[1:]) == (self._like.dtype, self._like.shape[1:])

    def append(self, rows: np.ndarray) -> None:
        """Add rows [n, ...]; the trailing shape and the dtype stay the same."""
        assert self.fits(rows)
        if self._like is None:
            self._like = rows[:0]
        self._file.write(np.ascontiguousarray(rows).data)
        self._rows += len(rows)

    def column(self) -> np.ndarray:
        """Map all rows [N, ...], writable."""
        if self._like is None:
            return np.empty(0, np.int64)
        if self._rows == 0 or 0 in self._like.shape[1:]:
            return np.empty((self._rows, *self._like.shape[1:]), self._like.dtype)
        self._file.flush()
        return np.memmap(self._file, self._like.dtype, "r+", shape=(self._rows, *self._like.shape[1:]))


def forget(column: np.ndarray) -> None:
    """Release the pages of a column on disk that are in memory; their content is kept on disk."""
    pages = getattr(column, "_mmap", None)
    if pages is not None:
        pages.madvise(mmap.MADV_DONTNEED)
