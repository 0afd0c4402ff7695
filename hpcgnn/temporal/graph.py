"""A rank's share of a temporal graph: its nodes, their histories as one T-CSR, and the events whose source it owns.

A rank reads the parts that the book gives it. *Flat row id*: first flat id of the node's type + row id in the graph
file; it identifies a node on any partition set. n local nodes, m history entries, e own events.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import h5py
import numpy as np

from hpcgnn.comm.group import unwatched
from hpcgnn.comm.world import World
from hpcgnn.graph import files
from hpcgnn.graph.book import Book, Relation, open_parts
from hpcgnn.graph.columns import REMEDY, Piece, StoredColumn
from hpcgnn.graph.original_ids import OriginalIds

FIXED = ("row", "src", "dst", "time")
FEATURE, LABEL, SPLIT = KEPT = ("feat", "label", "split")  # further columns of events that runs have a use for
OF_NODES = ("row", "id", "feat")  # columns of nodes that runs have a use for


@dataclass(frozen=True, slots=True)
class History:
    """T-CSR of the local nodes: entries of a node in order of event row id (hence of time).

    indptr [n + 1], other [m] global id of the other endpoint, time [m], event [m] row id; all int64.
    """

    indptr: np.ndarray
    other: np.ndarray
    time: np.ndarray
    event: np.ndarray

    def graph(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the arrays that the kernels of sampling take."""
        return self.indptr, self.time, self.event


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Features of events [e, F] that are copied only when they are read as an array: row index[i] of ``table``, or of
    ``more`` from len(table) on."""

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
class StoredFeatures:
    """Features of events that are left in the part files until their place in memory is decided. column [k, F]: the
    events of a rank's parts, one part after the other; row [k] int64: their row ids; source_rank [k] int64: the owners
    of their sources. An event that two parts have is there twice."""

    column: StoredColumn
    row: np.ndarray
    source_rank: np.ndarray

    @property
    def width(self) -> int:
        """Width F of the features."""
        return self.column.shape[1]

    def read(self, table: np.ndarray, places: np.ndarray) -> None:
        """Read the rows into ``table`` [., F] at ``places`` [k] int64, in slabs; rows with negative places are skipped.
        Raises FileFormatError."""
        for first, rows in self.column.slabs():
            place = places[first : first + len(rows)]
            is_wanted = place >= 0
            table[place[is_wanted]] = rows[is_wanted]


@dataclass(frozen=True, slots=True)
class TemporalPartition:
    """A rank's share of a temporal graph.

    flat_row [n]: of every local node; graph_hash: of the graph file, the same for all its partition sets; node_feature:
    None where the graph has none. node_ids: original ids by type; stored: event features in the files, None without;
    features: the event features in memory (``hpcgnn.temporal.features``), None before they were read. unread,
    unread_of_nodes: names of columns that were left in the files; time_scale: times of the graph / times of its
    source; classes: words that the events' labels were made from; zone: of dates, as in ``Relation``."""

    book: Book
    graph_hash: str
    relation: str
    num_events: int
    flat_row: np.ndarray
    node_feature: np.ndarray | None
    node_ids: dict[str, np.ndarray]
    history: History
    events: Events
    stored: StoredFeatures | None
    unread: tuple[str, ...] = ()
    unread_of_nodes: tuple[str, ...] = ()
    time_scale: float = 1
    classes: tuple[str, ...] = ()
    features: Any = None
    zone: str = ""

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
        source = self.stored if self.features is None else self.features
        return 0 if source is None else source.width

    @property
    def node_width(self) -> int:
        """Width of the node features; 0 without."""
        return 0 if self.node_feature is None else self.node_feature.shape[1]


@dataclass(frozen=True, slots=True)
class _Part:
    """The contents of one part file that a rank keeps. rows, node_columns: of its nodes by type; degree [n]; entries
    [m] of the history by name; own: the events whose source is a node of the part; feature: where the features of its k
    events are stored, None without; event, source_rank [k]: row ids of these events and the owners of their sources."""

    rows: list[np.ndarray]
    node_columns: list[dict[str, np.ndarray]]
    degree: np.ndarray
    entries: dict[str, np.ndarray]
    own: Events
    feature: Piece | None
    event: np.ndarray
    source_rank: np.ndarray
    unread: tuple[str, ...]
    unread_of_nodes: tuple[str, ...]
    classes: tuple[str, ...]


def open_partition(
    path: str | os.PathLike, rank: int, size: int, check_hash: bool = True, working: Callable[..., None] = unwatched,
    columns: Collection[str] = KEPT,
) -> TemporalPartition:  # fmt: skip
    """Read the share of ``rank`` of ``size`` from a temporal partition set. columns: of KEPT, columns of events to read
    in addition to FIXED. Features are only found, not read. Raises as ``open_parts``, and FileFormatError for a graph
    of several relations."""
    read_part = partial(_read_part, wanted=columns)
    with open_parts(path, rank, size, "temporal", read_part, _check_book, check_hash, working) as opened:
        book, parts, (relation,) = opened.book, opened.contents, opened.relations
        types = book.node_types
        node_ids = {}
        for node_type, name in enumerate(types):  # row ids where the graph has no original ones
            ids = [p.node_columns[node_type].get("id", p.rows[node_type]) for p in parts]
            node_ids[name] = np.concatenate(ids)
        return TemporalPartition(
            book, opened.graph_hash, relation.name, relation.num_edges, opened.flat_row,
            _node_feature(path, parts, types), node_ids, _merge_history(parts, len(types)),
            _merge_events([p.own for p in parts]), _join_features(path, parts), parts[0].unread,
            parts[0].unread_of_nodes, relation.time_scale, parts[0].classes, zone=relation.zone,
        )  # fmt: skip


def _check_book(book: h5py.File) -> None:
    names = files.relations(book)
    if len(names) != 1:
        raise files.FileFormatError(
            f"{book.filename}: temporal training takes one relation, this set has {', '.join(names)}"
        )


def _read_part(
    file: h5py.File, part: int, book: Book, relations: tuple[Relation, ...], wanted: Collection[str]
) -> _Part:  # fmt: skip
    """Read one part, and keep what ``_Part`` says: of the events of others with its nodes no more than the history."""
    relation = relations[0].name
    of_types = [file["nodes"][name] for name in book.node_types]
    nodes = [{key: of_type[key][()] for key in OF_NODES if key in of_type} for of_type in of_types]
    group = file["edges"][relation]
    files.refuse_split_words(group)
    missing = [column for column in FIXED if column not in group]
    if missing:
        raise KeyError(f"/edges/{relation} has no column {missing[0]}")
    row, src, dst, time = (group[key][()].astype(np.int64, copy=False) for key in FIXED)
    indptr, entry = (file["history"][relation][key][()].astype(np.int64) for key in ("indptr", "event"))
    node = np.repeat(np.concatenate([np.arange(ids[part], ids[part + 1]) for ids in book.offsets]), np.diff(indptr))
    entries = {"other": np.where(src[entry] == node, dst[entry], src[entry]), "time": time[entry], "event": row[entry]}
    block = np.searchsorted(book.offsets[:, 0], src, side="right") - 1
    own = (src >= book.offsets[block, part]) & (src < book.offsets[block, part + 1])
    columns = {key: group[key][()][own] for key in (LABEL, SPLIT) if key in group and key in wanted}
    feature, event, source_rank = None, row[:0], row[:0]
    if FEATURE in group and FEATURE in wanted:
        feature, event, source_rank = Piece.of(group[FEATURE]), row, book.locate(src)[0]
        if feature.rows != len(row):
            raise ValueError(f"{feature.name} has {feature.rows} rows, {len(row)} events")
    unread = tuple(name for name in group if name not in FIXED and not (name in KEPT and name in wanted))
    unread_of_nodes = dict.fromkeys(name for of_type in of_types for name in of_type if name not in OF_NODES)
    return _Part(
        [of_type.pop("row") for of_type in nodes], nodes, np.diff(indptr), entries,
        Events(row[own], src[own], dst[own], time[own], columns), feature, event, source_rank, unread,
        tuple(unread_of_nodes), tuple(files.class_names(group[LABEL])) if LABEL in columns else (),
    )  # fmt: skip


def _join_features(path, parts: list[_Part]) -> StoredFeatures | None:
    """Join the features of the parts. Raises FileFormatError where only some of the parts have any."""
    pieces = [part.feature for part in parts if part.feature is not None]
    if not pieces:
        return None
    if len(pieces) < len(parts):
        raise files.FileFormatError(f"{path}: some parts have features of events and some have none; {REMEDY}")
    event, source_rank = (np.concatenate([getattr(p, name) for p in parts]) for name in ("event", "source_rank"))
    return StoredFeatures(StoredColumn(pieces), event, source_rank)


def _merge_history(parts: list[_Part], num_types: int) -> History:
    """Concatenate the parts' histories in local order: type by type, part by part."""
    pieces, degrees = [], []
    for node_type in range(num_types):
        for part in parts:
            begin = sum(len(rows) for rows in part.rows[:node_type])
            end, indptr = begin + len(part.rows[node_type]), np.concatenate(([0], np.cumsum(part.degree)))
            degrees.append(part.degree[begin:end])
            pieces.append({key: values[indptr[begin] : indptr[end]] for key, values in part.entries.items()})
    indptr = np.concatenate(([0], np.cumsum(np.concatenate(degrees)))).astype(np.int64)
    return History(indptr, *(np.concatenate([piece[key] for piece in pieces]) for key in ("other", "time", "event")))


def _merge_events(pieces: list[Events]) -> Events:
    row, src, dst, time = (np.concatenate([getattr(p, key) for p in pieces]) for key in FIXED)
    columns: dict[str, Any] = {key: np.concatenate([p.columns[key] for p in pieces]) for key in pieces[0].columns}
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
