"""Brings columns into another order, in memory or, where that is too small, in pieces on disk."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np

from data_tools.source.segments import ArraySegments, sorted_buckets
from data_tools.source.spool import forget
from hpcgnn.graph.files import row_bytes, slabs

SLAB_BYTES = 16 << 20


def scattered(
    column: np.ndarray, rows: np.ndarray, num_rows: int, folder: pathlib.Path, num_buckets: int = 0
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Bring a column [n, ...] into another order, its i-th row to place ``rows[i]`` of ``num_rows``: pieces (first
    place, rows [m, ...], there [m] bool). What no row goes to is not there, and undefined. ``num_buckets``: in so many
    pieces by way of the disk (0: reading the column in any order)."""
    if num_buckets:
        yield from _by_buckets(column, rows, num_rows, folder, num_buckets)
        return
    order = np.full(num_rows, -1, np.int64)
    order[rows] = np.arange(len(rows))
    for start, stop in slabs(num_rows, row_bytes(column)):
        chosen = order[start:stop]
        there = chosen >= 0
        values = (
            column[np.maximum(chosen, 0)] if len(column) else np.zeros((stop - start, *column.shape[1:]), column.dtype)
        )
        yield start, values, there


def _by_buckets(
    column: np.ndarray, rows: np.ndarray, num_rows: int, folder: pathlib.Path, num_buckets: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Reorder by way of the disk: a bucket is a range of places."""
    size = max(1, -(-num_rows // num_buckets))
    places, values = ArraySegments(folder), ArraySegments(folder)
    for start, stop in slabs(len(rows), row_bytes(column) + 8, SLAB_BYTES):
        here = np.array(rows[start:stop])
        order, bounds = sorted_buckets(here // size, num_buckets)
        places.append(here[order], bounds)
        values.append(np.array(column[start:stop])[order], bounds)
        forget(column)
    for bucket, first in enumerate(range(0, num_rows, size)):
        count = min(size, num_rows - first)
        piece, there = np.zeros((count, *column.shape[1:]), column.dtype), np.zeros(count, bool)
        for batch in range(places.num_batches):
            here = places.read(batch, bucket) - first
            piece[here], there[here] = values.read(batch, bucket), True
        yield first, piece, there
