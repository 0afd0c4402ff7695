"""Chooses which rows of an edge table become edges, and in which order.

The rows of a relation are chosen without holding the table: a byte per row marks the kept rows, and `EdgeRows.pieces`
then gives the rows slab by slab. Only sorting by time takes eight more bytes a row.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data_tools.source.id_spaces import MISSING, UNKNOWN
from data_tools.source.relation_types import EdgeTable
from data_tools.source.segments import ArraySegments, hash_rows, to_buckets
from data_tools.source.spool import forget
from hpcgnn.graph.files import FileFormatError, slabs, split_relation

Pairs = tuple[np.ndarray, np.ndarray]  # rows that repeat another, and the first rows that they repeat
SCAN_ROWS = 1 << 18
SAMPLE_ROWS = 1 << 18
COMPARED = ("split", "label")  # of rows whose weights are added up


@dataclass(frozen=True, slots=True)
class EdgeRows:
    """The edges of a relation, E in all; ``notes``: texts about rows that were left out or doubled."""

    num_edges: int
    notes: list[str]
    _table: EdgeTable
    _keep: np.ndarray
    _order: np.ndarray | None

    def pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield the rows of the source [e] in the order of the edges, and ``flipped`` [e]: where src and dst change
        places (None: nowhere)."""
        num_rows = len(self._keep if self._order is None else self._order)
        for start, stop in slabs(num_rows, 1, SCAN_ROWS):
            rows = start + np.flatnonzero(self._keep[start:stop]) if self._order is None else self._order[start:stop]
            if self._table.spec.undirected:
                yield both_directions(rows, self._table.src, self._table.dst)
            else:
                yield rows, None


def choose_rows(table: EdgeTable, folder: pathlib.Path, num_buckets: int = 0) -> EdgeRows:
    """Apply the options of a relation to its rows; the search for duplicates divides them into ``num_buckets`` pieces
    on disk (0: it is done in memory).

    Raises FileFormatError, naming file and row, for a self-loop or duplicate where the option is ``error``.
    """
    edge = table.spec
    notes: list = []
    keep = np.ones(len(table.src), bool)
    if edge.missing_ids == "drop":
        missing = (start + np.flatnonzero(np.minimum(src, dst) == MISSING) for start, src, dst in scan(table))
        leave_out(table, keep, missing, "drop", ("row without an id", "rows without an id"), notes)
    if edge.dangling == "drop":
        dangling = (start + np.flatnonzero(np.minimum(src, dst) == UNKNOWN) for start, src, dst in scan(table))
        leave_out(table, keep, dangling, "drop", ("dangling edge", "dangling edges"), notes)
    homogeneous = len(set(split_relation(edge.relation)[::2])) == 1
    if homogeneous and edge.self_loops != "keep":
        leave_out(table, keep, loop_rows(table, keep), edge.self_loops, ("self-loop", "self-loops"), notes)
    if edge.duplicates != "keep":
        pairs = repeated_rows(table, keep, folder, num_buckets)
        if edge.duplicates == "sum":
            pairs = add_up(table, pairs)
        repeated = (later for later, _ in pairs)
        leave_out(table, keep, repeated, edge.duplicates, ("duplicate edge", "duplicate edges"), notes)
    order = None
    if edge.sort and table.time is not None:
        order = np.flatnonzero(keep)
        times = table.time[order]
        forget(table.time)
        order = order[np.argsort(times, kind="stable")]
    num_edges = int(keep.sum())
    if edge.undirected:
        notes.append("both directions")
        if edge.duplicates == "keep" and (count := mutual_rows(table, keep)):
            notes.append(
                f"{count} edges have their reverse in the source already and are there twice now; set duplicates: "
                "drop, or leave out undirected"
            )
        num_edges = 2 * num_edges - sum(map(len, loop_rows(table, keep)))
    return EdgeRows(num_edges, notes, table, keep, order)


def leave_out(
    table: EdgeTable, keep: np.ndarray, bad: Iterator[np.ndarray], policy: str, what: tuple[str, str], notes: list[str]
) -> None:
    """Drop rows, which come in pieces, from ``keep`` [E]; ``what``: names one, and several. Raises FileFormatError if
    the policy is ``error``."""
    count, first = 0, len(keep)
    for rows in bad:
        if len(rows):
            count, first = count + len(rows), min(first, int(rows.min()))
            keep[rows] = False
    if policy == "error" and count:
        file, row = table.origin.find(first)
        raise FileFormatError(
            f"{file}: row {row + 1}: {what[0]} ({count} in the file); remove them, or set the option to drop or keep"
        )
    if count:
        how = "added to the weights of the first ones" if policy == "sum" else "dropped"
        notes.append(f"{count:,} {what[count > 1]} {how}")


def add_up(table: EdgeTable, pairs: Iterator[Pairs]) -> Iterator[Pairs]:
    """Add the weight of each later row to the weight of the first row that it repeats, in place and in the order of the
    rows. Raises FileFormatError where the split or label of both rows differ, since the weight of a held-out edge would
    enter an edge of training."""
    weight = table.columns["weight"]
    known = {name: table.columns[name] for name in COMPARED if name in table.columns}
    for later, first in pairs:
        for name, column in known.items():
            refuse_difference(table, name, column, later, first)
        np.add.at(weight, first, weight[later])
        yield later, first


def refuse_difference(table: EdgeTable, name: str, column: np.ndarray, later: np.ndarray, first: np.ndarray) -> None:
    """Raise FileFormatError for a later row [m] that has another value of a column than the first row [m] that it
    repeats."""
    values, expected = column[later], column[first]
    same = (values == expected) | ((values != values) & (expected != expected))  # NaN: an unknown label
    different = np.flatnonzero(~same.all(axis=tuple(range(1, same.ndim))))
    if len(different):
        index = different[np.argmin(later[different])]
        file, row = table.origin.find(int(later[index]))
        _, earlier = table.origin.find(int(first[index]))
        raise FileFormatError(
            f"{file}: row {row + 1}: repeats row {earlier + 1}, but its {name} is another, so duplicates: sum cannot "
            "add up their weights; give equal edges one value, or set duplicates: keep or drop"
        )


def scan(table: EdgeTable) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Read the ends of all rows in slabs: first row, src, dst."""
    for start, stop in slabs(len(table.src), 1, SCAN_ROWS):
        yield start, np.array(table.src[start:stop]), np.array(table.dst[start:stop])
        forget(table.src)
        forget(table.dst)


def loop_rows(table: EdgeTable, keep: np.ndarray) -> Iterator[np.ndarray]:
    """Find the kept rows whose ends are the same."""
    for start, src, dst in scan(table):
        yield start + np.flatnonzero((src == dst) & keep[start : start + len(src)])


def mutual_rows(table: EdgeTable, keep: np.ndarray) -> str:
    """Count the kept rows whose reverse is kept too; of many rows it is estimated from a sample of their pairs. Returns
    the number in words, or nothing."""
    divisor, pieces, num_rows = 1 + len(keep) // SAMPLE_ROWS, [], 0
    for start, src, dst in scan(table):
        low, high = np.minimum(src, dst), np.maximum(src, dst)
        chosen = keep[start : start + len(src)] & (low != high)
        chosen &= hash_rows([low, high]) % np.uint64(divisor) == 0
        if num_rows <= 4 * SAMPLE_ROWS:  # equal pairs may be many
            pieces.append(np.stack([low[chosen], high[chosen], (src < dst)[chosen]], axis=1))
            num_rows += len(pieces[-1])
    if not num_rows:
        return ""
    pairs = np.concatenate(pieces)
    pairs = pairs[np.lexsort(pairs.T[1::-1])]
    first = np.flatnonzero(np.r_[True, (pairs[1:, :2] != pairs[:-1, :2]).any(axis=1)])
    forward, sizes = pairs[:, 2], np.diff(np.append(first, num_rows))
    mutual = np.minimum.reduceat(forward, first) != np.maximum.reduceat(forward, first)
    count = divisor * int(sizes[mutual].sum())
    return f"{'about ' if divisor > 1 else ''}{count:,}" if count else ""


def repeated_rows(table: EdgeTable, keep: np.ndarray, folder: pathlib.Path, num_buckets: int) -> Iterator[Pairs]:
    """Find the kept rows whose (src, dst, time, kind) occurred in an earlier one, with the first such row; undirected:
    in either direction."""
    if not num_buckets:
        pieces = list(keys(table, keep))
        if pieces:
            yield later_of_equal(np.concatenate(pieces))
        return
    records = ArraySegments(folder)
    for piece in keys(table, keep):
        _, order, bounds = to_buckets(hash_rows(list(piece.T[1:])), num_buckets)
        records.append(piece[order], bounds)
    for bucket in range(num_buckets):
        # Of equal records, which are all in one bucket, only the first stays in memory.
        different: list[np.ndarray] = []
        waiting: list[np.ndarray] = []
        num_waiting = 0
        for batch in range(records.num_batches):
            waiting.append(records.read(batch, bucket))
            num_waiting += len(waiting[-1])
            if num_waiting < max(SCAN_ROWS, sum(map(len, different))) and batch < records.num_batches - 1:
                continue
            both = np.concatenate([*different, *waiting])
            later, first = later_of_equal(both)
            yield later, first
            different, waiting, num_waiting = [both[~np.isin(both[:, 0], later)]], [], 0


def keys(table: EdgeTable, keep: np.ndarray) -> Iterator[np.ndarray]:
    """Read row, src, dst and, where there are any, time and column ``rel`` of the kept rows, [n, 3 to 5] int64. Edges
    that differ in one of them are different; all other columns are left out of the comparison."""
    further = [column for column in (table.time, table.columns.get("rel")) if column is not None]
    further = [column for column in further if column.dtype.kind in "iu" and column.ndim == 1]
    for start, src, dst in scan(table):
        rows = np.flatnonzero(keep[start : start + len(src)])
        src, dst = src[rows], dst[rows]
        if table.spec.undirected:
            src, dst = np.minimum(src, dst), np.maximum(src, dst)
        columns = [column[start + rows].astype(np.int64) for column in further]
        for column in further:
            forget(column)
        yield np.stack([start + rows, src, dst, *columns], axis=1)


def later_of_equal(records: np.ndarray) -> Pairs:
    """Find the rows (first column) of records [n, ...] that equal an earlier record [m], and the first rows that they
    equal [m]; records are in order of their rows."""
    rows, *columns = records.T
    order = np.lexsort(columns)  # stable, so the first of equal rows is the earliest
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in columns:
        same &= column[order[1:]] == column[order[:-1]]
    begins = np.flatnonzero(np.r_[True, ~same][: len(order)])
    first = np.repeat(order[begins], np.diff(np.append(begins, len(order))))[1:]
    return rows[order[1:][same]], rows[first[same]]


def both_directions(rows: np.ndarray, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Repeat each row [n] next to itself, the second time flipped, but a self-loop: rows [m], flipped [m] bool."""
    doubled = np.repeat(rows, 2)
    flipped = np.tile(np.array([False, True]), len(rows))
    keep = ~(flipped & (np.asarray(src)[doubled] == np.asarray(dst)[doubled]))
    return doubled[keep], flipped[keep]
