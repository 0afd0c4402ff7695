"""What a rank holds of a temporal graph: its nodes, their histories as one T-CSR, and the events whose source it owns.

A rank reads the parts that the book gives it. *Flat row id*: first flat id of the node's type + row id in the graph
file; it identifies a node on any partition set. n local nodes, m history entries, e own events.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from hpcgnn.comm.world import World
from hpcgnn.graph import files
from hpcgnn.graph.book import Book, check_counts, read_offsets, reading_part
from hpcgnn.graph.original_ids import OriginalIds

FIXED = ("row", "src", "dst", "time")
FEATURE, LABEL, SPLIT = KEPT = ("feat", "label", "split")  # further columns of events that training uses


@dataclass(frozen=True, slots=True)
class History:
    """T-CSR of the local nodes: entries of a node in order of event row id (hence of time).

    indptr [n + 1], other [m] global id of the other endpoint, time [m], event [m] row id, feature [m] row of
    ``features`` or None; all int64.
    """

    indptr: np.ndarray
    other: np.ndarray
    time: np.ndarray
    event: np.ndarray
    feature: np.ndarray | None

    def graph(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the arrays that the kernels of sampling take."""
        return self.indptr, self.time, self.event


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """A column of event features [e, F] that stays where it is until it is read as an array: rows ``index`` [e] of a
    table, behind which those of ``more`` are numbered."""

    table: np.ndarray
    more: np.ndarray
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: np.ndarray | slice) -> FeatureRows:
        return FeatureRows(self.table, self.more, self.index[chosen])

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        rows = np.empty((len(self), self.table.shape[1]), dtype or self.table.dtype)
        in_table = self.index < len(self.table)
        rows[in_table] = self.table[self.index[in_table]]
        rows[~in_table] = self.more[self.index[~in_table] - len(self.table)]
        return rows


@dataclass(frozen=True, slots=True)
class Events:
    """Events in order of row id: row, src, dst (global ids), time, all int64 [e]; columns: further columns by name."""

    row: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    columns: dict[str, Any]

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: np.ndarray | slice) -> Events:
        """Return the events at ``index``."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return Events(self.row[index], self.src[index], self.dst[index], self.time[index], columns)


@dataclass(frozen=True, slots=True)
class TemporalPartition:
    """A rank's share. flat_row [n] of every local node; graph: hash of the graph file, the same for all its partition
    sets; features, node_feature only where the graph has them; node_ids: original ids by type; unused: columns of
    events that training does not look at; time_scale: times of the graph / times of its source."""

    book: Book
    graph: str
    relation: str
    num_events: int
    flat_row: np.ndarray
    node_feature: np.ndarray | None
    node_ids: dict[str, np.ndarray]
    history: History
    events: Events
    features: np.ndarray | None
    unused: tuple[str, ...] = ()
    time_scale: float = 1

    @property
    def num_nodes(self) -> int:
        """Local nodes, n."""
        return len(self.flat_row)

    def original_ids(self, node_type: str, world: World) -> OriginalIds:
        """Return what finds the nodes of a type by original id."""
        return OriginalIds(self.book, node_type, self.node_ids[node_type], world)

    @property
    def edge_width(self) -> int:
        """Width of the event features; 0 without."""
        return 0 if self.features is None else self.features.shape[1]

    @property
    def node_width(self) -> int:
        """Width of the node features; 0 without."""
        return 0 if self.node_feature is None else self.node_feature.shape[1]


@dataclass(frozen=True, slots=True)
class _Part:
    """Raw columns of one part file."""

    rows: list[np.ndarray]
    node_columns: list[dict[str, np.ndarray]]
    edges: dict[str, np.ndarray]
    indptr: np.ndarray
    entry: np.ndarray


def open_partition(
    path: str | os.PathLike, rank: int, size: int, check_hash: bool = True, working: Callable[..., None] | None = None
) -> TemporalPartition:
    """Read the share of ``rank`` of ``size`` from a temporal partition set; working: is told about every part.

    Raises FileFormatError (a ValueError) naming the file for a damaged set, parts of another set, or a graph that is
    not temporal with one relation, and ValueError for more ranks than parts.
    """
    # What NumPy raises where columns do not fit each other names no file.
    with files.naming(path, "run data_tools.verify, or partition again", keep=(ValueError,)):
        return _open(path, rank, size, check_hash, working)


def _open(path: str | os.PathLike, rank: int, size: int, check_hash: bool, working) -> TemporalPartition:
    offsets, types = read_offsets(path)
    book = Book(offsets, size, types)
    with files.reading(files.book_path(path), files.BOOK, "partition again") as file:
        set_id, graph = str(file.attrs["set_id"]), str(file.attrs["source_hash"])
        hashes = [digest.decode() for digest in file["parts/hash"][()]]
        relation, num_events, time_scale = _only_relation(file)
        if len(hashes) != offsets.shape[1] - 1:
            raise ValueError(f"/parts/hash has {len(hashes)} entries for {offsets.shape[1] - 1} parts")
    digests = hashes if check_hash else [None] * len(hashes)
    parts = []
    for part in book.parts_of(rank):
        if working:
            working("read the parts", part)
        parts.append(_read_part(path, part, set_id, digests[part], types, relation))
    for part, columns in zip(book.parts_of(rank), parts, strict=True):
        check_counts(files.part_path(path, part), columns.rows, offsets[:, part + 1] - offsets[:, part], types)
    base = book.type_base()
    flat_row = np.concatenate([base[t] + p.rows[t] for t in range(len(types)) for p in parts]).astype(np.int64)
    features, feature_of = _merge_features(parts)
    history = _merge_history(parts, book, rank, feature_of)
    rows_of = [None] * len(parts) if feature_of is None else feature_of
    own = [_own_events(*of_part, book) for of_part in zip(parts, book.parts_of(rank), rows_of, strict=True)]
    node_ids = {}
    for kind, name in enumerate(types):  # row ids where the graph has no original ones
        node_ids[name] = np.concatenate([p.node_columns[kind].get("id", p.rows[kind]) for p in parts])
    return TemporalPartition(
        book, graph, relation, num_events, flat_row, _node_feature(path, parts, types), node_ids, history,
        _merge_events(own, features), features, tuple(name for name in parts[0].edges if name not in FIXED + KEPT),
        time_scale,
    )  # fmt: skip


def _only_relation(file: h5py.File) -> tuple[str, int, float]:
    files.check_kind(file, "temporal")
    names = files.relations(file)
    if len(names) != 1:
        raise files.FileFormatError(
            f"{file.filename}: temporal training takes one relation, this set has {', '.join(names)}"
        )
    group = file["edges"][names[0]]
    return names[0], int(group.attrs["num_edges"]), float(group.attrs.get("time_scale", 1))


def _read_part(path, part: int, set_id: str, digest: str | None, types, relation: str) -> _Part:
    with reading_part(path, part, set_id, digest) as file:
        nodes = [{key: column[()] for key, column in file["nodes"][t].items()} for t in types]
        edges = {key: column[()] for key, column in file["edges"][relation].items()}
        indptr, entry = (file["history"][relation][key][()].astype(np.int64) for key in ("indptr", "event"))
        missing = [column for column in FIXED if column not in edges]
        if missing:
            raise KeyError(f"/edges/{relation} has no column {missing[0]}")
        return _Part([n.pop("row") for n in nodes], nodes, edges, indptr, entry)


def _merge_features(parts: list[_Part]) -> tuple[np.ndarray | None, list[np.ndarray] | None]:
    """Merge the features of events: one row for each that any part holds, float32, and for each part the row of each of
    its events."""
    if FEATURE not in parts[0].edges:
        return None, None
    numbers = np.cumsum([len(part.edges["row"]) for part in parts])
    unique, inverse = np.unique(np.concatenate([part.edges["row"] for part in parts]), return_inverse=True)
    rows_of = np.split(inverse, numbers[:-1])
    features = np.empty((len(unique), files.as_matrix(parts[0].edges[FEATURE]).shape[1]), np.float32)
    for part, rows in zip(parts, rows_of, strict=True):
        features[rows] = files.as_matrix(part.edges.pop(FEATURE))  # each part's own are freed at once
    return features, rows_of


def _merge_history(parts: list[_Part], book: Book, rank: int, feature_of) -> History:
    """Concatenate the parts' histories in local order: type by type, part by part."""
    columns = [_entry_columns(p, book, part) for p, part in zip(parts, book.parts_of(rank), strict=True)]
    if feature_of is not None:
        for column, part, rows in zip(columns, parts, feature_of, strict=True):
            column["feature"] = rows[part.entry]
    pieces, degrees = [], []
    for node_type in range(len(book.node_types)):
        for part, column in zip(parts, columns, strict=True):
            begin = sum(len(rows) for rows in part.rows[:node_type])
            indptr = part.indptr[begin : begin + len(part.rows[node_type]) + 1]
            degrees.append(np.diff(indptr))
            pieces.append({key: values[indptr[0] : indptr[-1]] for key, values in column.items()})
    indptr = np.concatenate(([0], np.cumsum(np.concatenate(degrees)))).astype(np.int64)
    merged = {key: np.concatenate([piece[key] for piece in pieces]).astype(np.int64) for key in pieces[0]}
    return History(indptr, merged["other"], merged["time"], merged["event"], merged.get("feature"))


def _entry_columns(part: _Part, book: Book, index: int) -> dict[str, np.ndarray]:
    """Return other endpoint, time and event of every history entry of one part."""
    own = np.concatenate([np.arange(row[index], row[index + 1]) for row in book.offsets])
    node = np.repeat(own, np.diff(part.indptr))
    src, dst = part.edges["src"][part.entry], part.edges["dst"][part.entry]
    return {
        "other": np.where(src == node, dst, src),
        "time": part.edges["time"][part.entry],
        "event": part.edges["row"][part.entry],
    }


def _own_events(part: _Part, index: int, feature_rows: np.ndarray | None, book: Book) -> Events:
    """Choose the events of a part whose source lies in it; in place of features, their rows among those of all
    parts."""
    block = np.searchsorted(book.offsets[:, 0], part.edges["src"], side="right") - 1
    own = (part.edges["src"] >= book.offsets[block, index]) & (part.edges["src"] < book.offsets[block, index + 1])
    fixed = {key: part.edges[key][own].astype(np.int64) for key in FIXED}
    columns = {key: part.edges[key][own] for key in (LABEL, SPLIT) if key in part.edges}
    if feature_rows is not None:
        columns[FEATURE] = feature_rows[own]
    return Events(**fixed, columns=columns)


def _merge_events(pieces: list[Events], features: np.ndarray | None) -> Events:
    row, src, dst, time = (np.concatenate([getattr(p, key) for p in pieces]) for key in ("row", "src", "dst", "time"))
    columns: dict[str, Any] = {key: np.concatenate([p.columns[key] for p in pieces]) for key in pieces[0].columns}
    if features is not None:
        columns[FEATURE] = FeatureRows(features, features[:0], columns[FEATURE])
    events = Events(row, src, dst, time, columns)
    is_sorted = bool((row[1:] > row[:-1]).all())  # those of one part are: nothing is copied
    return events if is_sorted else events.take(np.argsort(row, kind="stable"))


def _node_feature(path, parts: list[_Part], types) -> np.ndarray | None:
    """Join the node features of all types in local order, float32; all types must have the same width, or none."""
    widths = [files.as_matrix(p["feat"]).shape[1] if "feat" in p else 0 for p in parts[0].node_columns]
    if not any(widths):
        return None
    if len(set(widths)) > 1:
        listed = ", ".join(f"{t}: {w}" for t, w in zip(types, widths, strict=True))
        raise files.FileFormatError(f"{path}: node features must have one width for all node types, found {listed}")
    pieces = [files.as_matrix(p.node_columns[t]["feat"]) for t in range(len(types)) for p in parts]
    return np.concatenate(pieces).astype(np.float32)
