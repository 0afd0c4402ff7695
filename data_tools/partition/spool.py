"""The graph that streaming partitioners read (`data_tools.partition.pair_graph`), on disk, its rows dealt to the ranks.

*Rows* number the nodes again, the nodes with most edges first. They lie in slabs, slab k on rank k modulo R. The edges
are first dealt, in both directions, to the slabs of their rows; then every slab is sorted and its repeated pairs are
merged. So memory is bounded by a slab and a few numbers per node, for any number of edges. N nodes of all types
numbered together, n of them in a rank's block; K slabs of rows, m rows of a rank; A adjacency entries of the rank's
rows.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import tempfile
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from data_tools.graph.source import Source
from data_tools.memory import give_back_freed_memory
from data_tools.partition.blocks import NodeBlocks, add_duplicates, run_starts
from data_tools.partition.csc import stable_order
from data_tools.partition.pair_graph import tied_slabs
from data_tools.team import Team
from hpcgnn.graph import durable

Adjacency = tuple[np.ndarray, np.ndarray, np.ndarray]  # indptr [k + 1], neighbor, tie

ENTRY_BYTES = 100  # of memory for an entry of a slab, while it is sorted or streamed
LEAST_ENTRIES = 1 << 12  # of a slab: smaller ones would take many exchanges


@dataclass(frozen=True, slots=True)
class RowSlabs:
    """Which rank has which rows. starts [K + 1]: first row of every slab."""

    team: Team
    starts: np.ndarray

    @property
    def num_slabs(self) -> int:
        """Slabs of all ranks."""
        return len(self.starts) - 1

    @property
    def num_rounds(self) -> int:
        """Slabs of the rank that has most."""
        return -(-self.num_slabs // self.team.size)

    @property
    def local_starts(self) -> np.ndarray:
        """First of this rank's rows in each of its slabs, and m."""
        return np.r_[0, np.cumsum(np.diff(self.starts)[self.team.rank :: self.team.size])]

    def rows(self) -> np.ndarray:
        """Return the rows [m] of this rank."""
        own = range(self.team.rank, self.num_slabs, self.team.size)
        return np.concatenate([np.empty(0, np.int64), *(np.arange(self.starts[k], self.starts[k + 1]) for k in own)])

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the rank [k] that has each row, and its place among the rank's rows."""
        size = self.team.size
        if size == 1:
            return np.broadcast_to(np.int64(0), len(rows)), rows
        sizes = np.diff(self.starts)
        first = np.zeros(len(sizes), np.int64)  # place of a slab's first row
        for number in range(size, len(sizes)):
            first[number] = first[number - size] + sizes[number - size]
        slab = np.searchsorted(self.starts, rows, side="right") - 1
        return slab % size, first[slab] + rows - self.starts[slab]

    def lookup(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Collective. Look up the values [k, ...] of rows [k] of any rank; values [m, ...] of this rank's rows."""
        return self.team.look_up(*self.locate(rows), values)

    def deal(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Collective. Return the values [m, ...] of this rank's rows, from the values [k, ...] that ranks have of rows
        [k]."""
        rank, place = self.locate(rows)
        place, values = self.team.send(rank, place, values)
        dealt = np.empty_like(values)
        dealt[place] = values
        return dealt


@dataclass(frozen=True, slots=True)
class RowGraph:
    """Symmetric weighted graph in CSR form, of this rank's rows; neighbors, which are rows too, and ties lie in files.

    row: of every node of this rank's block.
    """

    slabs: RowSlabs
    row: np.ndarray  # [n]
    indptr: np.ndarray  # [m + 1] int64
    neighbor: IO[bytes]  # [A] of dtype
    tie: IO[bytes]  # [A] of dtype
    dtype: np.dtype
    total_ties: int  # of the whole graph, both directions of a pair count once

    def of_block(self, values: np.ndarray) -> np.ndarray:
        """Collective. Return the values [n, ...] of the nodes of this rank's block, from the values [m, ...] of its
        rows."""
        return self.slabs.lookup(values, self.row)

    def degrees(self) -> np.ndarray:
        """Collective. Count the distinct neighbors [n] of the nodes of this rank's block."""
        return self.of_block(np.diff(self.indptr))

    def slab(self, first: int, stop: int) -> Adjacency:
        """Read the entries of this rank's rows first .. stop - 1."""
        begin, end = int(self.indptr[first]), int(self.indptr[stop])
        neighbor, tie = (read_run(file, self.dtype, begin, end) for file in (self.neighbor, self.tie))
        return self.indptr[first : stop + 1] - begin, neighbor, tie


def read_run(file: IO[bytes], dtype: np.dtype, begin: int, end: int) -> np.ndarray:
    """Read the values begin .. end - 1 of a file."""
    values = np.empty(end - begin, dtype)
    view, place = values.data.cast("B"), begin * dtype.itemsize
    while len(view):
        count = os.preadv(file.fileno(), [view], place)
        assert count > 0, "a scratch file is shorter than what was written"
        view, place = view[count:], place + count
    return values


def write_run(file: IO[bytes], values: np.ndarray, begin: int) -> None:
    """Put values at place ``begin`` of a file."""
    durable.write_at(file.fileno(), np.ascontiguousarray(values), begin * values.itemsize)


def entry_dtype(source: Source) -> np.dtype:
    """Choose int32 where node numbers and ties fit, else int64."""
    largest = max(source.num_nodes, 2 * source.num_edges * source.facts.get("num_snapshots", 1))
    return np.dtype(np.int32 if largest < 2**31 else np.int64)


def spool_bytes(counts: Any, work: int) -> int:
    """Predict the bytes of memory that the graph on disk takes while it is written or streamed, from `memory.Counts`;
    work: for tables whose size can be chosen."""
    return 60 * counts.rank_nodes + min(work, 2 * ENTRY_BYTES * counts.edges // counts.ranks)


def build_row_graph(
    source: Source, blocks: NodeBlocks, folder: pathlib.Path | None, memory: int, by_degree: bool = True
) -> RowGraph:
    """Collective. Write this rank's rows to unnamed files in a folder (None: the system's temporary one), in slabs that
    take about ``memory`` bytes while they are sorted. by_degree: nodes with most edges first, else, in one process, in
    the order of the nodes."""
    entries, team = np.zeros(len(blocks.own), np.int64), blocks.team
    for src, dst, _ in tied_slabs(source, team):
        blocks.add_up(src, 1, entries)
        blocks.add_up(dst, 1, entries)
    limit = max(LEAST_ENTRIES, memory // ENTRY_BYTES)
    if by_degree:
        table, row = number_rows(team, entries)
        slabs = RowSlabs(team, table.slab_starts(min(limit, -(-table.cost // team.size))))
        entries = table.entries_of(slabs.rows())
    else:
        row, slabs = np.arange(len(entries)), RowSlabs(team, run_starts(np.r_[0, np.cumsum(entries)], limit))
    indptr = np.r_[0, np.cumsum(entries)]
    del entries
    with durable.naming_disk(folder or tempfile.gettempdir()), tempfile.TemporaryFile(dir=folder) as spool:
        deal_entries(source, slabs, blocks, row, indptr, spool)
        give_back_freed_memory()  # sorting a slab takes most
        return merge_slabs(source, slabs, row, indptr, spool, folder)


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows by their number of entries; far fewer different numbers occur than there are rows. entries [D]: these
    numbers, decreasing; first_row [D + 1]: first row with each number, and the end."""

    entries: np.ndarray
    first_row: np.ndarray

    def entries_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the entries [k] of rows [k]."""
        return self.entries[np.searchsorted(self.first_row, rows, side="right") - 1]

    def slab_starts(self, limit: int) -> np.ndarray:
        """Find the first row of every slab, and N [K + 1]: about ``limit`` entries and rows together, or one row."""
        costs = np.r_[0, np.cumsum((self.entries + 1) * np.diff(self.first_row))]  # before the first of so many
        targets = np.arange(0, costs[-1], max(1, limit))
        index = np.searchsorted(costs, targets, side="right") - 1
        rows = self.first_row[index] - (costs[index] - targets) // (self.entries[index] + 1)
        return np.unique(np.r_[rows, self.first_row[-1]]).astype(np.int64)

    @property
    def cost(self) -> int:
        """Entries and rows in all."""
        return int(((self.entries + 1) * np.diff(self.first_row)).sum())


def number_rows(team: Team, entries: np.ndarray) -> tuple[RowTable, np.ndarray]:
    """Collective. Number the rows by their entries. Also returns the row [n] of every node of this rank's block, which
    has ``entries`` [n]; nodes with the same number stay in order."""
    distinct, inverse, own_counts = np.unique(-entries, return_inverse=True, return_counts=True)
    tables = team.everyone((distinct, own_counts))
    values = np.unique(np.concatenate([values for values, _ in tables]))
    counts = np.zeros((len(tables), len(values)), np.int64)  # [R, D]
    for rank, (rank_values, amount) in enumerate(tables):
        counts[rank, np.searchsorted(values, rank_values)] = amount
    first_row = np.r_[0, np.cumsum(counts.sum(axis=0))]
    start = first_row[:-1] + counts[: team.rank].sum(axis=0)
    order = np.argsort(inverse, kind="stable")
    row = np.empty(len(entries), np.int64)
    row[order] = np.arange(len(entries)) - np.repeat(np.cumsum(own_counts) - own_counts, own_counts)
    row += start[np.searchsorted(values, distinct)][inverse]
    return RowTable(-values, first_row), row


def deal_entries(
    source: Source, slabs: RowSlabs, blocks: NodeBlocks, row: np.ndarray, indptr: np.ndarray, spool: IO[bytes]
) -> None:
    """Collective. Write (row's place on its rank, neighbor, tie) of every edge, from both ends, behind the entries of
    the row's slab. row [n]: of this rank's block; indptr [m + 1]: of its rows before repeated pairs are merged."""
    starts, dtype = slabs.local_starts, entry_dtype(source)
    cursor = indptr[starts[:-1]].copy()
    row = row.astype(dtype)
    for src, dst, ties in tied_slabs(source, slabs.team):
        src, dst = blocks.lookup(row, src), blocks.lookup(row, dst)
        for own, neighbor in ((src, dst), (dst, src)):
            rank, place = slabs.locate(own)
            columns = (place, neighbor) if ties is None else (place, neighbor, ties)
            received = [column.astype(dtype, copy=False) for column in columns]
            append_entries(spool, starts, cursor, *slabs.team.send(rank, *received))


def append_entries(
    spool: IO[bytes],
    starts: np.ndarray,
    cursor: np.ndarray,
    place: np.ndarray,
    neighbor: np.ndarray,
    ties: np.ndarray | None = None,
) -> None:
    """Append entries [k] of some rows to their slabs; cursor [number of slabs] moves on."""
    slab = np.searchsorted(starts, place, side="right") - 1
    order = stable_order(slab, len(cursor))
    entries = np.ones((len(place), 3), place.dtype)
    entries[:, 0], entries[:, 1] = place[order], neighbor[order]
    if ties is not None:
        entries[:, 2] = ties[order]
    bounds = np.searchsorted(slab[order], np.arange(len(starts)))
    for index in np.flatnonzero(np.diff(bounds)):
        piece = entries[bounds[index] : bounds[index + 1]]
        write_run(spool, piece, 3 * int(cursor[index]))
        cursor[index] += len(piece)


def merge_slabs(
    source: Source,
    slabs: RowSlabs,
    row: np.ndarray,
    indptr: np.ndarray,
    spool: IO[bytes],
    folder: pathlib.Path | None,
) -> RowGraph:
    """Collective. Sort every slab by (row, neighbor), merge equal pairs and append them to the graph's files."""
    neighbor, tie = tempfile.TemporaryFile(dir=folder), tempfile.TemporaryFile(dir=folder)
    starts, dtype, num_nodes = slabs.local_starts.tolist(), entry_dtype(source), source.num_nodes
    merged, done, total = np.zeros(len(indptr), np.int64), 0, 0
    for first, stop in itertools.pairwise(starts):
        entries = read_run(spool, dtype, 3 * int(indptr[first]), 3 * int(indptr[stop])).reshape(-1, 3)
        keys = (entries[:, 0].astype(np.int64) - first) * num_nodes + entries[:, 1]
        ties = entries[:, 2].astype(np.int64) if (entries[:, 2] != 1).any() else None
        del entries
        # Counting is much faster than adding.
        keys, ties = np.unique(keys, return_counts=True) if ties is None else add_duplicates(keys, ties)
        place, other = np.divmod(keys, num_nodes)
        merged[first + 1 : stop + 1] = np.bincount(place, minlength=stop - first)
        write_run(neighbor, other.astype(dtype), done)
        write_run(tie, ties.astype(dtype), done)
        done, total = done + len(keys), total + int(ties.sum())
    total = int(slabs.team.sum(np.array([total]))[0]) // 2
    return RowGraph(slabs, row, np.cumsum(merged, out=merged), neighbor, tie, dtype, total)
