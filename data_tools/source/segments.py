"""Stores columns on disk that are read again bucket by bucket: each batch is written once, its rows in order of their
buckets.

K buckets, B batches; a bucket is small enough for the memory where the whole column is not.
"""

from __future__ import annotations

import os
import pathlib
import tempfile

import numpy as np
import pyarrow as pa

from hpcgnn.graph.files import row_bytes

MULTIPLIER = 0x9E3779B97F4A7C15  # odd: has an inverse modulo 2**64
INVERSE = pow(MULTIPLIER, -1, 1 << 64)
HASH_BYTES = 1 << 15


def mix(values: np.ndarray) -> np.ndarray:
    """Hash integers [n], uint64 (the finaliser of SplitMix64)."""
    values = values.astype(np.uint64, copy=True)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values ^= values >> np.uint64(shift)
        values *= np.uint64(factor)
    return values ^ (values >> np.uint64(31))


def hash_rows(columns: list[np.ndarray]) -> np.ndarray:
    """Hash the rows of several columns of integers [n], uint64."""
    total = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        total = mix(total * np.uint64(MULTIPLIER) + column.astype(np.uint64))
    return total


def text_parts(text: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Take an array of strings without nulls apart: offsets [n + 1] int64, from 0, and bytes [offsets[n]]."""
    text = text.cast(pa.large_string())
    bounds = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(text.buffers()[2] or b"", np.uint8)[bounds[0] : bounds[-1]]
    return bounds - bounds[0], data


def hash_text(text: pa.Array) -> np.ndarray:
    """Hash strings [n], uint64: a polynomial of all bytes, from differences of a running sum."""
    bounds, data = text_parts(text)
    hashes = np.zeros(len(text), np.uint64)
    longest = max(HASH_BYTES, int(np.diff(bounds).max(initial=0)))
    tables = np.array([[MULTIPLIER], [INVERSE]], np.uint64).repeat(longest + 1, axis=1)
    tables[:, 0] = 1
    powers, inverses = np.cumprod(tables, axis=1)  # 1, factor, factor**2, ... modulo 2**64
    sums = np.zeros(longest + 1, np.uint64)
    start = 0
    while start < len(text):
        # As many strings as fit into the processor's cache, at least one.
        stop = max(start + 1, int(np.searchsorted(bounds, bounds[start] + longest, "right")) - 1)
        here = bounds[start : stop + 1] - bounds[start]
        piece = data[bounds[start] : bounds[stop]].astype(np.uint64) + np.uint64(1)
        np.cumsum(piece * powers[: len(piece)], out=sums[1 : len(piece) + 1])
        hashes[start:stop] = (sums[here[1:]] - sums[here[:-1]]) * inverses[here[:-1]]
        start = stop
    return mix(hashes)


def to_buckets(hashes: np.ndarray, num_buckets: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the bucket of each row [n] int64, the order that sorts them (stable), and the bounds [K + 1] of the
    sorted."""
    buckets = (hashes % np.uint64(num_buckets)).astype(np.int64)
    return buckets, *sorted_buckets(buckets, num_buckets)


def sorted_buckets(buckets: np.ndarray, num_buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the order that sorts rows by their buckets (stable) and the bounds [K + 1] of the sorted."""
    order = np.argsort(buckets.astype(np.uint16 if num_buckets <= 1 << 16 else np.int64), kind="stable")
    bounds = np.zeros(num_buckets + 1, np.int64)
    np.cumsum(np.bincount(buckets, minlength=num_buckets), out=bounds[1:])
    return order, bounds


class ArraySegments:
    """Rows of one dtype and trailing shape, in buckets."""

    def __init__(self, folder: pathlib.Path):
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)
        self._like = np.empty(0, np.int64)
        self._row_bytes = 8
        self.starts = [0]  # first row of each batch, and the number of all rows
        self._bounds: list[np.ndarray] = []

    def append(self, rows: np.ndarray, bounds: np.ndarray) -> None:
        """Add a batch [n, ...] that is sorted by buckets; bounds [K + 1]."""
        self._like, self._row_bytes = rows[:0], row_bytes(rows)
        write_all(self._file.fileno(), rows, self.starts[-1] * self._row_bytes)
        self.starts.append(self.starts[-1] + len(rows))
        self._bounds.append(bounds)

    def read(self, batch: int, bucket: int) -> np.ndarray:
        """Read the rows of a batch that are in a bucket."""
        return self.get(*self.span(batch, bucket))

    def get(self, start: int, stop: int) -> np.ndarray:
        """Read rows start .. stop - 1 of all rows as they were written."""
        data = os.pread(self._file.fileno(), (stop - start) * self._row_bytes, start * self._row_bytes)
        return np.frombuffer(data, self._like.dtype).reshape(stop - start, *self._like.shape[1:])

    def put(self, start: int, rows: np.ndarray) -> None:
        """Write other rows in place of the rows from ``start`` on."""
        write_all(self._file.fileno(), rows.astype(self._like.dtype, copy=False), start * self._row_bytes)

    def span(self, batch: int, bucket: int) -> tuple[int, int]:
        """Find the first and last + 1 of the rows of a batch that are in a bucket, among all rows as they were
        written."""
        bounds = self._bounds[batch] + self.starts[batch]
        return int(bounds[bucket]), int(bounds[bucket + 1])

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return len(self._bounds)

    def num_buckets(self, batch: int) -> int:
        """Number of buckets of a batch."""
        return len(self._bounds[batch]) - 1


class IdSegments:
    """Ids in buckets: integers, or text as lengths and bytes."""

    def __init__(self, folder: pathlib.Path, text: bool):
        self.text = text
        self._rows = ArraySegments(folder)  # of text: its length
        self._bytes = ArraySegments(folder) if text else None

    def append(self, ids: pa.Array, bounds: np.ndarray) -> None:
        """Add a batch [n] that is sorted by buckets; bounds [K + 1]."""
        if self._bytes is None:
            self._rows.append(ids.to_numpy(), bounds)
            return
        offsets, data = text_parts(ids)
        self._rows.append(np.diff(offsets), bounds)
        self._bytes.append(data, offsets[bounds])

    def read(self, batch: int, bucket: int) -> pa.Array:
        """Read the ids of a batch that are in a bucket."""
        rows = self._rows.read(batch, bucket)
        if self._bytes is None:
            return pa.array(rows)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(rows, out=offsets[1:])
        data = self._bytes.read(batch, bucket)
        return pa.LargeStringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(data))

    def num_buckets(self, batch: int) -> int:
        """Number of buckets of a batch."""
        return self._rows.num_buckets(batch)

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return self._rows.num_batches


def write_all(descriptor: int, rows: np.ndarray, position: int) -> None:
    """Write rows at a position of a file."""
    view = np.ascontiguousarray(rows).data.cast("B") if rows.size else memoryview(b"")
    while len(view):
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written
