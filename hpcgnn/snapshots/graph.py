"""A rank's share of a snapshot graph: its nodes with their columns, and the in-edges of every snapshot.

n nodes of this rank, S snapshots, m rows of edges, each of them in one snapshot or in several that follow each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.comm.group import unwatched
from hpcgnn.graph import files
from hpcgnn.graph.book import Book
from hpcgnn.graph.decode import decode_json
from hpcgnn.graph.names import renumber
from hpcgnn.graph.partition import FEATURES, GraphPartition, open_graph_partition
from hpcgnn.graph.splits import SPLITS

STAMPS = ("first", "last")
DEGREE = "degree"
TYPE = "rel"  # column of the edges that holds their types
WEIGHT = "weight"  # column of the edges that messages are multiplied by
UNWEIGHTED = "write others, or set model.edge_weights false"


@dataclass(frozen=True, slots=True)
class SnapshotEdges:
    """Edges into the nodes of a rank in one snapshot, in order of destination, then row. src [e] global ids, dst [e]
    local rows, row [e] rows of the graph file, all int64; columns [e, ...] by name."""

    src: np.ndarray
    dst: np.ndarray
    row: np.ndarray
    columns: dict[str, np.ndarray]


class SnapshotPartition:
    """A rank's share of a snapshot graph. series: columns [n, S, ...] of the nodes by name; columns: columns [n, ...]
    of the nodes that are the same in all snapshots, features among them. scales: by series, the number that its values
    were divided by; names, edge_names: by column of nodes or edges, the names of its classes; splits: first and last
    snapshot of the splits that the graph names; clock: first date and step in seconds, and zone, of snapshots at dates;
    counts_degrees: whether the series ``degree`` was counted here;
    least_edge_types: number of edge types that a typed decoder has at least; all_sources [m]: global ids of the sources
    of all rows of edges; unread: columns of the edges that were left in the file."""

    def __init__(
        self, partition: GraphPartition, num_snapshots: int, series: tuple[str, ...], scales: dict[str, float],
        splits: dict[str, tuple[int, int]] | None = None, clock: dict[str, Any] | None = None,
    ):  # fmt: skip
        self.book: Book = partition.book
        self.graph_hash, self.rank, self.num_snapshots = partition.graph_hash, partition.rank, num_snapshots
        self.splits, self.clock = splits or {}, clock or {}
        table = f"nodes/{partition.types[0]}/"
        self.names = {
            column.removeprefix(table): words for column, words in partition.words.items() if column.startswith(table)
        }
        self.flat_row, self.num_nodes = partition.flat_row, partition.num_nodes
        columns = _all_columns(partition)
        for name in series:
            columns[name] = _checked_series(columns[name], name, num_snapshots)
        self.series = {name: columns.pop(name) for name in series}
        self.columns, self.scales = columns, scales
        self.global_ids = partition.global_ids(0)
        self.num_edges = partition.relations[0].num_edges
        (edges,) = partition.edges
        self._dst, self._edges = edges.dst, edges
        self.unread = partition.unread[0]
        self.all_sources = edges.src
        self.counts_degrees, self.least_edge_types = False, 0
        self.edge_names = {
            column.rpartition("/")[2]: words for column, words in partition.words.items() if column.startswith("edges/")
        }
        self._first, self._last = (_checked_stamps(edges.columns.get(name), name) for name in STAMPS)
        self._by_first = np.argsort(self._first, kind="stable")
        self._starts = np.searchsorted(self._first[self._by_first], np.arange(num_snapshots + 1))

    @property
    def edge_columns(self) -> tuple[str, ...]:
        """Names of the edges' columns, except the first and last snapshot of an edge."""
        return tuple(name for name in self._edges.columns if name not in STAMPS)

    def edge_column(self, name: str) -> np.ndarray:
        """Return a column of all rows of edges [m, ...]. Raises ValueError where there is none."""
        if name not in self.edge_columns:
            has = ", ".join((*self.edge_columns, *self.unread)) or "none"
            raise ValueError(f"{name}: no such column of edges; the graph has {has}")
        return self._edges.columns[name]

    def renumber_edges(self, name: str, trained: list[str]) -> None:
        """Renumber a column of edges by the place of its words in ``trained``; without such a column nothing changes.
        Raises ValueError for a word that is not in ``trained``."""
        if name in self._edges.columns:
            names = self.edge_names.get(name, [])
            self._edges.columns[name] = renumber(self._edges.columns[name], names, trained, f"column {name} of edges:")

    def check_weights(self) -> None:
        """Raise ValueError for edges whose column weight is no number from 0 on, by whose sums one can divide."""
        weight = self.edge_column(WEIGHT)
        if weight.ndim != 1 or weight.dtype.kind not in "iufb":
            raise ValueError(
                f"column weight of edges must hold a number each, got {weight.dtype} {weight.shape[1:]}; {UNWEIGHTED}"
            )
        wrong = np.flatnonzero(~(weight >= 0))
        if len(wrong):
            row, number = self._edges.row[wrong[0]], self._first[wrong[0]]
            raise ValueError(
                f"column weight of edges: {weight[wrong[0]]:.7g} in row {row} of the graph file, snapshot {number} "
                f"({len(wrong)} below 0 at this rank), but models divide by the weights' sums; {UNWEIGHTED}"
            )

    @property
    def first_id(self) -> int:
        """Global id of local row 0."""
        return int(self.global_ids[0]) if self.num_nodes else 0

    @property
    def _ends(self) -> np.ndarray:
        """The first snapshot that each row of edges is no longer in [m]."""
        return (self._first if self._last is None else self._last) + 1

    def edges_at(self, number: int, columns: tuple[str, ...] = ()) -> SnapshotEdges:
        """Return the edges of one snapshot, with some of their columns."""
        if self._last is None:  # stable: increasing within a snapshot
            place = self._by_first[self._starts[number] : self._starts[number + 1]]
        else:
            begun = self._by_first[: self._starts[number + 1]]
            place = np.sort(begun[self._last[begun] >= number])
        taken = {name: self._edges.columns[name][place] for name in columns}
        return SnapshotEdges(self._edges.src[place], self._dst[place], self._edges.row[place], taken)

    def count_repeated(self, value: np.ndarray, known: np.ndarray, before: range, after: range) -> np.ndarray:
        """Count the edges of the snapshots ``after``: the edges that are in a snapshot of ``before`` with the same
        value, and all edges, int64 [2]. value [m], known [m] bool: of all rows of edges."""
        first, ends = self._first, self._ends
        key = np.unique(self._edges.src * max(1, self.num_nodes) + self._dst, return_inverse=True)[1]
        values = np.unique(value, return_inverse=True)[1]
        key = key * (1 + values.max(initial=0)) + values
        times = np.clip(np.minimum(ends, after.stop) - np.maximum(first, after.start), 0, None) * known
        there = known & (first < before.stop) & (ends > before.start)
        return np.array([times[np.isin(key, key[there])].sum(), times.sum()], np.int64)

    def count_edges(self) -> np.ndarray:
        """Count the edges into this rank's nodes in every snapshot, int64 [S]."""
        change = np.zeros(self.num_snapshots + 1, np.int64)
        np.add.at(change, self._first, 1)
        np.add.at(change, self._ends, -1)
        return np.cumsum(change)[:-1]

    def add_degrees(self) -> None:
        """Add a series ``degree`` [n, S] float32 where there is none of that name: log of 1 + in-degree."""
        if DEGREE not in self.series:
            self.counts_degrees = True
            change = np.zeros((self.num_nodes, self.num_snapshots + 1), np.int64)
            np.add.at(change, (self._dst, self._first), 1)
            np.add.at(change, (self._dst, self._ends), -1)
            self.series[DEGREE] = np.log1p(np.cumsum(change, axis=1)[:, :-1]).astype(np.float32)

    def changes(self) -> np.ndarray:
        """Return whether edges into this rank's nodes begin with a snapshot, or ended with the one before, bool [S]."""
        changed = np.zeros(self.num_snapshots + 1, bool)
        changed[0] = True
        changed[self._first] = True
        changed[self._ends] = True
        return changed[:-1]


def open_snapshot_partition(
    path: str | os.PathLike, rank: int, size: int, check_hash: bool = True, working: Callable[..., None] = unwatched,
    edge_columns: Collection[str] | None = None,
) -> SnapshotPartition:  # fmt: skip
    """Read the share of ``rank`` of ``size`` from a partition set of a snapshot graph. working: called for every part;
    edge_columns: columns of the edges to read, in addition to their ends and snapshots, None: all.

    Raises as ``open_graph_partition``, and FileFormatError for columns that do not fit the number of snapshots.
    """
    wanted = None if edge_columns is None else {"row", *STAMPS, *edge_columns}
    partition = open_graph_partition(
        path, rank, size, check_hash, kind="snapshots", working=working, edge_columns=wanted
    )
    book = files.book_path(path)
    if (len(partition.types), len(partition.relations)) != (1, 1):
        raise files.FileFormatError(
            f"{book}: snapshots have one node type and one relation, found {len(partition.types)} and "
            f"{len(partition.relations)}; partition again"
        )
    with files.naming(book, "partition again"):
        num_snapshots = int(partition.book_attributes["num_snapshots"])
        splits = decode_json(partition.book_attributes.get("splits", "null")) or {}
        if not 1 <= num_snapshots <= files.MOST_SNAPSHOTS:
            raise files.FileFormatError(
                f"{book}: {num_snapshots} snapshots, expected 1 to {files.MOST_SNAPSHOTS}; partition again"
            )
        splits = _checked_splits(splits, num_snapshots)
        clock = _checked_clock(decode_json(partition.book_attributes.get(files.CLOCK, "null")) or {})
    table = f"nodes/{partition.types[0]}/"
    attributes = {
        column.removeprefix(table): found
        for column, found in partition.column_attributes.items() if column.startswith(table)
    }  # fmt: skip
    series = tuple(name for name, found in attributes.items() if found.get("per_snapshot", False))
    scales = {name: _checked_scale(name, attributes[name]["scale"]) for name in series if "scale" in attributes[name]}
    return SnapshotPartition(partition, num_snapshots, series, scales, splits, clock)


def _checked_scale(name: str, scale: Any) -> float:
    """Check what the numbers of a series were divided by."""
    if np.ndim(scale) or not 0 < float(scale) < np.inf:
        raise files.FileFormatError(f"column {name} of nodes: scale is {scale}, expected a number above 0")
    return float(scale)


def _checked_splits(splits: dict[str, list[int]], num_snapshots: int) -> dict[str, tuple[int, int]]:
    """Check the splits of a book: ranges of snapshots that follow each other."""
    bounds = [number for name in SPLITS if name in splits for number in splits[name]]
    if not (set(splits) <= set(SPLITS) and bounds == sorted(bounds) and all(0 <= n < num_snapshots for n in bounds)):
        raise files.FileFormatError(f"splits are {splits}, expected ranges of {num_snapshots} snapshots in order")
    return {name: (int(first), int(last)) for name, (first, last) in splits.items()}


def _checked_clock(clock: dict[str, Any]) -> dict[str, Any]:
    """Check the dates of snapshots of a book."""
    kinds = {"first": int, "step": int, "zone": str}
    if clock and {name: type(value) for name, value in clock.items()} != kinds:
        raise files.FileFormatError(f"clock is {clock}, expected first, step and zone")
    return clock


def _all_columns(partition: GraphPartition) -> dict[str, np.ndarray]:
    """Read the nodes' columns, features among them."""
    columns, features = dict(partition.columns[0]), partition.features[0]
    if features is not None:
        columns[FEATURES] = np.concatenate(
            [rows for _, rows in features.slabs()] or [np.empty(features.shape, features.dtype)]
        )
    return columns


def _checked_series(column: np.ndarray, name: str, num_snapshots: int) -> np.ndarray:
    """Check a series, and return it as [n, S, ...]; features come as matrices [n, S * F]."""
    if name == FEATURES and column.ndim == 2 and column.shape[1] % num_snapshots == 0:
        return column.reshape(len(column), num_snapshots, column.shape[1] // num_snapshots)
    if column.shape[1:2] != (num_snapshots,):
        raise files.FileFormatError(
            f"column {name} of nodes has shape {column.shape}, expected [nodes, {num_snapshots} snapshots, ...]; write "
            "the graph file anew with hpcgnn snapshots"
        )
    return column


def _checked_stamps(column: np.ndarray | None, name: str) -> np.ndarray | Any:
    """Check the column of the first or the last snapshot that edges are in."""
    if (column is None and name == "first") or (column is not None and (column.ndim, column.dtype.kind) != (1, "i")):
        problem = "missing" if column is None else f"{column.dtype} {list(column.shape)}"
        raise files.FileFormatError(
            f"column {name} of edges is {problem}, expected one signed integer an edge; partition the graph again"
        )
    return column
