"""The graph that a partitioner sees (`data_tools.partition.pair_graph`), on disk: read once, in order.

The edges are first dealt, in both directions, to *buckets*, blocks of nodes; then every bucket is sorted and its
repeated pairs are merged. So memory is bounded by a bucket and a few numbers a node, however many edges there are.
N nodes of all types numbered together, A adjacency entries.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from data_tools.partition.csc import stable_order
from data_tools.partition.pair_graph import add_duplicates, snapshots_of
from data_tools.partition.runs import run_starts
from data_tools.partition.source import Relation, Source, endpoint_slabs

Adjacency = tuple[np.ndarray, np.ndarray, np.ndarray]  # indptr [n + 1], neighbour, tie

ENTRY_BYTES = 64  # of memory for an entry of a bucket while it is sorted
LEAST_ENTRIES = 1 << 16  # of a bucket: smaller ones would cost more than they save


@dataclass(frozen=True, slots=True)
class SpooledGraph:
    """Symmetric weighted graph in CSR form, rows in the order ``order`` of nodes; neighbours and ties lie in files."""

    order: np.ndarray  # [N] int64, nodes
    indptr: np.ndarray  # [N + 1] int64
    neighbor: IO[bytes]  # [A] of dtype, nodes
    tie: IO[bytes]  # [A] of dtype
    dtype: np.dtype
    total_ties: int  # both directions of a pair count once

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return len(self.order)

    def degrees(self) -> np.ndarray:
        """Distinct neighbours [N] int64."""
        degrees = np.empty(self.num_nodes, np.int64)
        degrees[self.order] = np.diff(self.indptr)
        return degrees

    def slabs(self, limit: int, step: int = 1) -> Iterator[tuple[np.ndarray, Adjacency]]:
        """Runs of nodes with at most ``limit`` entries (or one node): nodes [n] and (indptr [n + 1], neighbour, tie);
        step -1: the last run first."""
        starts = run_starts(self.indptr, limit)
        for first, stop in list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))[::step]:
            yield self.slab(first, stop)

    def slab(self, first: int, stop: int) -> tuple[np.ndarray, Adjacency]:
        """Rows first .. stop - 1, as `slabs` tells them."""
        begin, end = int(self.indptr[first]), int(self.indptr[stop])
        neighbor, tie = (read_run(file, self.dtype, begin, end) for file in (self.neighbor, self.tie))
        return self.order[first:stop], (self.indptr[first : stop + 1] - begin, neighbor, tie)


def read_run(file: IO[bytes], dtype: np.dtype, begin: int, end: int) -> np.ndarray:
    """Values begin .. end - 1 of a file."""
    values = np.empty(end - begin, dtype)
    view, place = values.data.cast("B"), begin * dtype.itemsize
    while len(view):
        count = os.preadv(file.fileno(), [view], place)
        assert count > 0, "a scratch file is shorter than what was written"
        view, place = view[count:], place + count
    return values


def write_run(file: IO[bytes], values: np.ndarray, begin: int) -> None:
    """Put values at place ``begin`` of a file."""
    view, place = np.ascontiguousarray(values).data.cast("B"), begin * values.itemsize
    while len(view):
        count = os.pwrite(file.fileno(), view, place)
        view, place = view[count:], place + count


def entry_dtype(source: Source) -> np.dtype:
    """int32 where node numbers and ties fit, else int64."""
    largest = max(source.num_nodes, 2 * source.num_edges * source.snapshots.get("num_snapshots", 1))
    return np.dtype(np.int32 if largest < 2**31 else np.int64)


def tied_slabs(source: Source, relation: Relation) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Edges between two nodes, in slabs: both ends, and how much each counts where that is not 1."""
    for start, src, dst in endpoint_slabs(source, relation):
        apart = src != dst
        stays = source.kind == "snapshots" and "last" in relation.columns
        yield src[apart], dst[apart], snapshots_of(source, relation, start, len(src))[apart] if stays else None


def count_entries(source: Source) -> np.ndarray:
    """Entries of every node before repeated pairs are merged [N] int64."""
    counts = np.zeros(source.num_nodes, np.int64)
    for relation in source.relations:
        for src, dst, _ in tied_slabs(source, relation):
            np.add.at(counts, src, 1)
            np.add.at(counts, dst, 1)
    return counts


def build_spooled_graph(source: Source, folder: pathlib.Path, memory: int, by_degree: bool = True) -> SpooledGraph:
    """Write the pair graph of a source to unnamed files in a folder, within about ``memory`` bytes besides a few
    numbers a node; by_degree: those with most edges first, else in their own order."""
    counts = count_entries(source)
    order = np.argsort(-counts, kind="stable") if by_degree else np.arange(len(counts))
    indptr = np.r_[0, np.cumsum(counts[order])]
    starts = run_starts(indptr, max(LEAST_ENTRIES, memory // ENTRY_BYTES))
    with tempfile.TemporaryFile(dir=folder) as spool:
        deal_entries(source, order, indptr, starts, spool)
        return merge_buckets(order, indptr, starts, entry_dtype(source), spool, folder, len(order))


def deal_entries(source: Source, order: np.ndarray, indptr: np.ndarray, starts: np.ndarray, spool: IO[bytes]) -> None:
    """Write (row, neighbour, tie) of every edge, from both ends, to the run of its row's bucket."""
    cursor, dtype = indptr[starts[:-1]].copy(), entry_dtype(source)
    row_of = np.empty(len(order), dtype)
    row_of[order] = np.arange(len(order))
    for relation in source.relations:
        for src, dst, ties in tied_slabs(source, relation):
            for node, other in ((src, dst), (dst, src)):
                deal_slab(row_of[node], other, ties, starts, cursor, spool)


def deal_slab(
    row: np.ndarray,
    other: np.ndarray,
    ties: np.ndarray | None,
    starts: np.ndarray,
    cursor: np.ndarray,
    spool: IO[bytes],
) -> None:
    """Write the entries of a slab behind those that their buckets hold; cursor [B] moves on."""
    bucket = np.searchsorted(starts, row, side="right") - 1
    order = stable_order(bucket, len(cursor))
    entries = np.ones((len(row), 3), row.dtype)
    entries[:, 0], entries[:, 1] = row[order], other[order]
    if ties is not None:
        entries[:, 2] = ties[order]
    bounds = np.searchsorted(bucket[order], np.arange(len(starts)))
    for index in np.flatnonzero(np.diff(bounds)):
        piece = entries[bounds[index] : bounds[index + 1]]
        write_run(spool, piece, 3 * int(cursor[index]))
        cursor[index] += len(piece)


def merge_buckets(
    order: np.ndarray,
    indptr: np.ndarray,
    starts: np.ndarray,
    dtype: np.dtype,
    spool: IO[bytes],
    folder: pathlib.Path | None,
    num_nodes: int,
) -> SpooledGraph:
    """Sort every bucket by (row, neighbour), merge equal pairs and append them to the graph's files; neighbours are
    below ``num_nodes``."""
    neighbor, tie = tempfile.TemporaryFile(dir=folder), tempfile.TemporaryFile(dir=folder)
    merged, done, total = np.zeros(len(order) + 1, np.int64), 0, 0
    for first, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        entries = read_run(spool, dtype, 3 * int(indptr[first]), 3 * int(indptr[stop])).reshape(-1, 3)
        keys = (entries[:, 0].astype(np.int64) - first) * num_nodes + entries[:, 1]
        keys, ties = merge_keys(keys, entries[:, 2])
        row, other = np.divmod(keys, num_nodes)
        merged[first + 1 : stop + 1] = np.bincount(row, minlength=stop - first)
        write_run(neighbor, other.astype(dtype), done)
        write_run(tie, ties.astype(dtype), done)
        done, total = done + len(keys), total + int(ties.sum())
    return SpooledGraph(order, np.cumsum(merged, out=merged), neighbor, tie, dtype, total // 2)


def merge_keys(keys: np.ndarray, ties: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted keys, each once, and the sums of their ties; where all ties are 1, counting them is much faster."""
    if (ties == 1).all():
        return np.unique(keys, return_counts=True)
    return add_duplicates(keys, ties.astype(np.int64))
