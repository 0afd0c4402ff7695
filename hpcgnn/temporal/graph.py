"""A rank's share of a temporal graph: its nodes, their histories as one T-CSR, and the events whose source it owns.

A rank reads the parts that the book gives it. *Flat row id*: first flat id of the node's type + row id in the graph
file; it identifies a node on any partition set. The row id of an event in a graph of several relations is its place
among the events of all of them, in order of time (column ``event``); a node has one history over all relations.
*Edge type*: number of the relation of an event, or the value of a column of numbers. n local nodes, m history entries,
e own events, k events with an end in a rank's parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import h5py
import numpy as np

from hpcgnn.comm.group import unwatched
from hpcgnn.comm.world import World
from hpcgnn.graph import files
from hpcgnn.graph.book import Book, Relation, open_parts
from hpcgnn.graph.columns import REMEDY, HeldColumn, Piece, StoredColumn
from hpcgnn.graph.narrow import Encoding, common_encoding, read_encoding
from hpcgnn.graph.original_ids import OriginalIds
from hpcgnn.task.labels import MISSING

FIXED = ("row", "src", "dst", "time")
FEATURE, LABEL, SPLIT = KEPT = ("feat", "label", "split")  # further columns of events that runs have a use for
EDGE_TYPE = "rel"  # column of events in memory, where there are edge types
MOST_EDGE_TYPES = 1024  # each is a column of the events' features
OF_NODES = ("row", "id", "feat")  # columns of nodes that runs have a use for
LABELS_OF_NODES = ("label", "split", "label_time")  # columns of nodes that task.kind node_class reads, too


@dataclass(frozen=True, slots=True)
class History:
    """T-CSR of the local nodes: entries of a node in order of event row id (hence of time).

    indptr [n + 1], other [m] global id of the other endpoint, time [m], event [m] row id; all int64. edge_type [m]
    int16, or None where all events are of one type.
    """

    indptr: np.ndarray
    other: np.ndarray
    time: np.ndarray
    event: np.ndarray
    edge_type: np.ndarray | None = None

    def take(self, index: np.ndarray, indptr: np.ndarray) -> History:
        """Return the entries at ``index``, of which ``indptr`` says whose they are."""
        edge_type = None if self.edge_type is None else self.edge_type[index]
        return History(indptr, self.other[index], self.time[index], self.event[index], edge_type)

    def by_type(self, num_types: int) -> History:
        """Return the history as that of n * num_types nodes: number num_types * node + type has the node's events of a
        type. Copies the entries, unless there is but one type."""
        if self.edge_type is None:
            assert num_types == 1
            return self
        node = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        place = node * num_types + self.edge_type
        counts = np.bincount(place, minlength=(len(self.indptr) - 1) * num_types)
        return self.take(np.argsort(place, kind="stable"), np.concatenate(([0], np.cumsum(counts))))

    def graph(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the arrays that the kernels of sampling take."""
        return self.indptr, self.time, self.event


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Features of events [e, F] that are copied only when they are read as an array: row index[i] of ``table``, or of
    ``more`` from len(table) on. encoding: narrow form of both, which the array has not; None: plain numbers."""

    table: np.ndarray
    more: np.ndarray
    index: np.ndarray
    encoding: Encoding | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: np.ndarray | slice) -> FeatureRows:
        return FeatureRows(self.table, self.more, self.index[chosen], self.encoding)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        rows = np.empty(
            (len(self), self.table.shape[1]), self.table.dtype if self.encoding else dtype or self.table.dtype
        )
        in_table = self.index < len(self.table)
        rows[in_table] = self.table[self.index[in_table]]
        rows[~in_table] = self.more[self.index[~in_table] - len(self.table)]
        return rows if self.encoding is None else self.encoding.decode(rows).astype(dtype or np.float32, copy=False)


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


def places_of_features(widths: Sequence[int]) -> tuple[list[int], int]:
    """Place the features of several tables side by side: the first column of each, and the width of all together.
    Tables of one width share their columns; of different widths, each has columns of its own."""
    if len({width for width in widths if width}) <= 1:
        return [0] * len(widths), max(widths, default=0)
    *starts, width = np.cumsum([0, *widths]).tolist()
    return starts, width


@dataclass(frozen=True, slots=True)
class StoredFeatures:
    """Features of events that are left in the part files until their place in memory is decided. columns: of each
    relation the features of the events of a rank's parts, one part after the other; row [k] int64: their row ids, one
    relation after the other; source_rank [k] int64: the owners of their sources. An event that two parts have is there
    twice. edge_type [k] int64, or None: behind the features follow num_edge_types columns, 1 for the event's type and
    0 for others, so that each layer that reads events has a learned row for every edge type."""

    columns: tuple[StoredColumn, ...]
    row: np.ndarray
    source_rank: np.ndarray
    edge_type: np.ndarray | None = None
    num_edge_types: int = 0

    @property
    def width(self) -> int:
        """Width F of the features, edge types included."""
        return places_of_features([column.shape[1] for column in self.columns])[1] + self.num_edge_types

    @property
    def encoding(self) -> Encoding | None:
        """Narrow form of the rows; None for float32."""
        widths = [column.shape[1] for column in self.columns]
        encoding = common_encoding([column.encoding for column in self.columns], widths)
        return encoding and encoding.with_flags(self.num_edge_types)

    def read(self, table: np.ndarray, places: np.ndarray) -> None:
        """Read the rows into ``table`` [., F], float32 or narrow, at ``places`` [k] int64, in slabs; rows with negative
        places are skipped. Raises FileFormatError."""
        starts, width = places_of_features([column.shape[1] for column in self.columns])
        encoding = self.encoding
        if self.edge_type is not None:
            is_wanted, one = places >= 0, 1 if encoding is None else encoding.encode(np.ones((1, self.width)))[0, -1]
            table[places[is_wanted]] = 0
            table[places[is_wanted], width + self.edge_type[is_wanted]] = one
        before = 0
        for column, start in zip(self.columns, starts, strict=True):
            for first, rows in column.slabs() if encoding is None else column.stored_slabs():
                place = places[before + first : before + first + len(rows)]
                is_wanted = place >= 0
                table[place[is_wanted], start : start + rows.shape[1]] = rows[is_wanted]
            before += column.shape[0]


@dataclass(frozen=True, slots=True)
class TemporalPartition:
    """A rank's share of a temporal graph.

    flat_row [n]: of every local node; graph_hash: of the graph file, the same for all its partition sets; node_feature:
    None where the graph has none, else in the narrow form node_encoding, None: float32. node_ids: original ids by type;
    stored: event features in the files, None without; features: the event features in memory
    (``hpcgnn.temporal.features``), None before they were read. unread, unread_of_nodes: names of columns that were left
    in the files; classes: words that the events' labels were made from; edge_types: names of the types of events, none
    where all events are of one relation. node_columns: of LABELS_OF_NODES, the columns that were asked for, by node
    type in local order; node_classes: the words that the labels of each type were made from."""

    book: Book
    graph_hash: str
    relations: tuple[Relation, ...]
    num_events: int
    flat_row: np.ndarray
    node_feature: np.ndarray | None
    node_ids: dict[str, np.ndarray]
    history: History
    events: Events
    stored: StoredFeatures | None
    unread: tuple[str, ...] = ()
    unread_of_nodes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    features: Any = None
    edge_types: tuple[str, ...] = ()
    node_columns: tuple[dict[str, np.ndarray], ...] = ()
    node_classes: tuple[tuple[str, ...], ...] = ()
    node_encoding: Encoding | None = None

    @property
    def relation(self) -> str:
        """Full name of the relation, or of all relations."""
        return ", ".join(relation.name for relation in self.relations)

    @property
    def time_scale(self) -> float:
        """Times of the graph / times of its source."""
        return self.relations[0].time_scale

    @property
    def zone(self) -> str:
        """Zone of dates, as in ``Relation``; UTC where relations have several."""
        zones = {relation.zone for relation in self.relations}
        return zones.pop() if len(zones) == 1 else "UTC"

    def type_of_ends(self, end: str) -> np.ndarray:
        """Return the node type of an end, "src" or "dst", of every edge type, or of the only relation, int64."""
        kinds = np.array([getattr(relation, f"{end}_type") for relation in self.relations], np.int64)
        return kinds if len(kinds) > 1 else np.repeat(kinds, max(1, len(self.edge_types)))

    @property
    def names_of_types(self) -> tuple[str, ...]:
        """Names of the edge types, or the short name of the only relation."""
        return self.edge_types or (files.split_relation(self.relations[0].name)[1],)

    @property
    def number_of_type(self) -> dict[str, int]:
        """Numbers of the edge types by name; of relations by full name, too."""
        names = (
            {}
            if len(self.names_of_types) > len(self.relations)
            else {relation.name: number for number, relation in enumerate(self.relations)}
        )
        return names | {name: number for number, name in enumerate(self.names_of_types)}

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

    def wide_node_feature(self) -> np.ndarray | None:
        """Return the features of the local nodes [n, F] in float32; None where the graph has none."""
        if self.node_feature is None or self.node_encoding is None:
            return self.node_feature
        return self.node_encoding.decode(self.node_feature)

    @property
    def node_width(self) -> int:
        """Width of the node features; 0 without."""
        return 0 if self.node_feature is None else self.node_feature.shape[1]


@dataclass(frozen=True, slots=True)
class _PartEvents:
    """The events of a relation in one part file that a rank keeps. degree [n], entries [m]: of the history, by name;
    own: the events whose source is a node of the part; feature: where the features of its k events are stored, None
    without; event, source_rank [k]: row ids of these events and the owners of their sources; edge_type [k]: their
    types, None without."""

    degree: np.ndarray
    entries: dict[str, np.ndarray]
    own: Events
    feature: Piece | None
    event: np.ndarray
    source_rank: np.ndarray
    edge_type: np.ndarray | None
    unread: tuple[str, ...]
    classes: tuple[str, ...]
    type_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """The contents of one part file that a rank keeps. rows, node_columns: of its nodes by type; events: by
    relation."""

    rows: list[np.ndarray]
    node_columns: list[dict[str, np.ndarray]]
    events: list[_PartEvents]
    unread_of_nodes: tuple[str, ...]
    node_classes: tuple[tuple[str, ...], ...]
    node_encodings: list[Encoding | None]


def open_partition(
    path: str | os.PathLike, rank: int, size: int, check_hash: bool = True, working: Callable[..., None] = unwatched,
    columns: Collection[str] = KEPT, *, of_nodes: Collection[str] = (), type_column: str = "",
    label_relation: str | None = None,
) -> TemporalPartition:  # fmt: skip
    """Read the share of ``rank`` of ``size`` from a temporal partition set. columns: of KEPT, columns of events to read
    in addition to FIXED; of_nodes: of LABELS_OF_NODES, columns of nodes to read in addition to OF_NODES; type_column:
    column of numbers with the edge types of a graph of one relation, empty: none. label_relation: the relation whose
    labels are read where there are several, empty: the only one that has some; None: no labels are read then. Features
    are only found, not read. Raises as ``open_parts``, and FileFormatError for several relations whose events are in no
    common order, or which have labels and none of them is named."""
    read_part = partial(
        _read_part, wanted=columns, of_nodes=of_nodes, type_column=type_column, label_relation=label_relation
    )
    check_book = partial(_check_book, columns=columns, type_column=type_column)
    with open_parts(path, rank, size, "temporal", read_part, check_book, check_hash, working) as opened:
        book, parts, relations = opened.book, opened.contents, opened.relations
        types, first = book.node_types, opened.contents[0].events
        node_ids = {}
        for node_type, name in enumerate(types):  # row ids where the graph has no original ones
            ids = [p.node_columns[node_type].get("id", p.rows[node_type]) for p in parts]
            node_ids[name] = np.concatenate(ids)
        by_relation = [[part.events[number] for part in parts] for number in range(len(relations))]
        histories = [_merge_history(parts, number, len(types)) for number in range(len(relations))]
        unread = dict.fromkeys(name for events in first for name in events.unread)
        node_feature, node_encoding = _node_feature(parts, types)
        return TemporalPartition(
            book, opened.graph_hash, relations, sum(relation.num_edges for relation in relations), opened.flat_row,
            node_feature, node_ids, _interleave(histories),
            _merge_events([events.own for pieces in by_relation for events in pieces]),
            _join_features(path, by_relation) if FEATURE in columns else None, tuple(unread),
            parts[0].unread_of_nodes, first[0].classes, edge_types=_name_edge_types(relations, first[0].type_names),
            node_columns=_node_columns(parts, of_nodes), node_classes=parts[0].node_classes,
            node_encoding=node_encoding,
        )  # fmt: skip


def _check_book(book: h5py.File, columns: Collection[str], type_column: str) -> None:
    names = files.relations(book)
    if len(names) == 1:
        return
    if type_column:
        raise files.FileFormatError(
            f"{book.filename}: data.type_column {type_column} is for one relation; here the relations are the edge "
            f"types: {', '.join(names)}; leave it out"
        )
    stored = {name: [column.decode() for column in book["edges"][name]["columns"][()]] for name in names}
    for name, present in stored.items():
        if files.EVENT not in present:
            raise files.FileFormatError(
                f"{book.filename}: events of {name} lack the column {files.EVENT}, their order among all relations: "
                "convert and partition the source again"
            )
        if SPLIT in columns and (SPLIT in present) != (SPLIT in stored[names[0]]):
            raise files.FileFormatError(
                f"{book.filename}: some relations have a column split and some have none: convert the source again "
                "with a split of all events, or of none"
            )


def _name_edge_types(relations: Sequence[Relation], words: tuple[str, ...]) -> tuple[str, ...]:
    """Name the edge types: relations by their short names, if these differ."""
    if len(relations) == 1:
        return words
    names = tuple(relation.name for relation in relations)
    short = tuple(files.split_relation(name)[1] for name in names)
    return short if len(set(short)) == len(short) else names


def _read_part(
    file: h5py.File, part: int, book: Book, relations: tuple[Relation, ...], wanted: Collection[str],
    of_nodes: Collection[str], type_column: str, label_relation: str | None,
) -> _Part:  # fmt: skip
    """Read one part, and keep what ``_Part`` says: of the events of others with its nodes no more than the history."""
    of_types = [file["nodes"][name] for name in book.node_types]
    wanted_of_nodes = (*OF_NODES, *of_nodes)
    nodes = [{key: of_type[key][()] for key in wanted_of_nodes if key in of_type} for of_type in of_types]
    unread_of_nodes = dict.fromkeys(name for of_type in of_types for name in of_type if name not in wanted_of_nodes)
    labeled = LABEL in of_nodes
    names = [files.class_names(of_type[LABEL]) if labeled and LABEL in of_type else () for of_type in of_types]
    several, labels = len(relations) > 1, None
    if label_relation is not None and LABEL in wanted:
        labels = _labels_of(file["edges"], relations, label_relation)
    events = [
        _read_events(file, part, book, relation.name, wanted, number if several else type_column, labels)
        for number, relation in enumerate(relations)
    ]
    rows = [of_type.pop("row") for of_type in nodes]
    encodings = [read_encoding(of_type[FEATURE]) if FEATURE in of_type else None for of_type in of_types]
    return _Part(rows, nodes, events, tuple(unread_of_nodes), tuple(map(tuple, names)), encodings)


def _labels_of(edges: h5py.Group, relations: tuple[Relation, ...], wanted: str) -> h5py.Dataset | None:
    """Find the labels that are learned: of the wanted relation, or of the only one with labels. Raises
    FileFormatError."""
    names = [relation.name for relation in relations]
    if wanted:
        named = [name for name in names if wanted in (name, files.split_relation(name)[1])]
        if len(named) != 1:
            found = "several relations have this name" if named else "no such relation"
            raise files.FileFormatError(f"task.relation {wanted}: {found}; the graph has {', '.join(names)}")
        names = named
    labeled = [name for name in names if LABEL in edges[name]]
    if len(labeled) > 1:
        raise files.FileFormatError(f"labels are learned of one relation: set task.relation to {' or '.join(labeled)}")
    return edges[labeled[0]][LABEL] if labeled else None


def _read_labels(labels: h5py.Dataset, relation: h5py.Group, own: np.ndarray) -> np.ndarray:
    """Read the labels of this part's own events [k] bool of a relation; all are missing if the labels are of another
    one."""
    if labels.parent == relation:
        return labels[()][own]
    shape = (int(own.sum()), *labels.shape[1:])
    return np.full(shape, np.nan, labels.dtype) if labels.dtype.kind == "f" else np.full(shape, MISSING)


def _read_events(
    file: h5py.File, part: int, book: Book, relation: str, wanted: Collection[str], edge_type: int | str,
    labels: h5py.Dataset | None,
) -> _PartEvents:  # fmt: skip
    """Read the events of a relation. edge_type: number of their type, where there are several relations; else the name
    of the column of types, empty for none. labels: the column that is learned, of this relation or of another one, if
    it is known; None in a graph of one relation: its column is learned."""
    group, several = file["edges"][relation], isinstance(edge_type, int)
    files.refuse_split_words(group)
    needed = [*FIXED, files.EVENT if several else edge_type]
    missing = [column for column in needed if column and column not in group]
    if missing:
        raise KeyError(f"/edges/{relation} has no column {missing[0]}")
    row, src, dst, time = (
        group[files.EVENT if several and key == "row" else key][()].astype(np.int64, copy=False) for key in FIXED
    )
    indptr, entry = (file["history"][relation][key][()].astype(np.int64) for key in ("indptr", "event"))
    node = np.repeat(np.concatenate([np.arange(ids[part], ids[part + 1]) for ids in book.offsets]), np.diff(indptr))
    entries = {"other": np.where(src[entry] == node, dst[entry], src[entry]), "time": time[entry], "event": row[entry]}
    block = np.searchsorted(book.offsets[:, 0], src, side="right") - 1
    own = (src >= book.offsets[block, part]) & (src < book.offsets[block, part + 1])
    learned = group[LABEL] if not several and LABEL in group and LABEL in wanted else labels
    wanted = {*wanted} - (set() if learned is not None and learned.parent == group else {LABEL})
    columns = {SPLIT: group[SPLIT][()][own]} if SPLIT in group and SPLIT in wanted else {}
    columns |= {} if learned is None else {LABEL: _read_labels(learned, group, own)}
    kinds = None
    if several:
        kinds = np.full(len(row), edge_type, np.int64)
    elif edge_type:
        kinds = _read_edge_types(group[edge_type])
    columns |= {} if kinds is None else {EDGE_TYPE: kinds[own]}
    entries |= {} if kinds is None else {"edge_type": kinds[entry].astype(np.int16)}
    feature, event, source_rank = None, row[:0], row[:0]
    has_features = FEATURE in group and FEATURE in wanted
    if has_features or (kinds is not None and FEATURE in wanted):
        event, source_rank = row, book.locate(src)[0]
    if has_features:
        feature = Piece.of(group[FEATURE])
        if feature.rows != len(row):
            raise ValueError(f"{feature.name} has {feature.rows} rows, {len(row)} events")
    known = {*FIXED, *wanted, files.EVENT if several else edge_type}
    return _PartEvents(
        np.diff(indptr), entries, Events(row[own], src[own], dst[own], time[own], columns), feature, event,
        source_rank, kinds, tuple(name for name in group if name not in known),
        tuple(files.class_names(learned)) if learned is not None else (),
        tuple(files.class_names(group[edge_type])) if kinds is not None and not several else (),
    )  # fmt: skip


def _read_edge_types(column: h5py.Dataset) -> np.ndarray:
    """Read a column of edge types, int64. Raises ValueError for values that are no small numbers from 0 on."""
    values = column[()]
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"{column.name} holds {values.dtype} {values.shape[1:]}, edge types are an integer an event")
    wrong = np.flatnonzero((values < 0) | (values >= MOST_EDGE_TYPES))
    if len(wrong):
        raise ValueError(
            f"{column.name}: {values[wrong[0]]} is no edge type; they are numbered from 0 on, at most {MOST_EDGE_TYPES}"
        )
    return values.astype(np.int64)


def agree_on_edge_types(partition: TemporalPartition, world: World) -> TemporalPartition:
    """Collective. Give the types of a column of numbers their names on all ranks, words or numbers, and their columns
    among the features."""
    kinds = partition.events.columns.get(EDGE_TYPE)
    if kinds is None:
        return partition
    own = max(len(partition.edge_types), int(kinds.max(initial=0)) + 1)
    count = int(world.reduce_array(np.array([own]), "max")[0])
    names = (*partition.edge_types, *map(str, range(len(partition.edge_types), count)))
    stored = partition.stored and replace(partition.stored, num_edge_types=count)
    return replace(partition, edge_types=names, stored=stored)


def _join_features(path, by_relation: list[list[_PartEvents]]) -> StoredFeatures | None:
    """Join the features of the parts, relation by relation. Raises FileFormatError where only some of the parts have
    any of a relation."""
    columns = []
    for parts in by_relation:
        pieces = [part.feature for part in parts if part.feature is not None]
        if 0 < len(pieces) < len(parts):
            raise files.FileFormatError(f"{path}: some parts have features of events and some have none; {REMEDY}")
        none = np.empty((sum(len(part.event) for part in parts), 0), np.float32)
        columns.append(StoredColumn(pieces) if pieces else HeldColumn(none))
    parts = [part for of_relation in by_relation for part in of_relation]
    event, source_rank = (np.concatenate([getattr(p, name) for p in parts]) for name in ("event", "source_rank"))
    kinds = [part.edge_type for part in parts if part.edge_type is not None]
    if not kinds and not columns[0].shape[1]:
        return None
    num_types = len(by_relation) if len(by_relation) > 1 else 0
    return StoredFeatures(tuple(columns), event, source_rank, np.concatenate(kinds) if kinds else None, num_types)


def _merge_history(parts: list[_Part], relation: int, num_types: int) -> History:
    """Concatenate the parts' histories over a relation in local order: type by type, part by part."""
    pieces, degrees = [], []
    for node_type in range(num_types):
        for part in parts:
            events = part.events[relation]
            begin = sum(len(rows) for rows in part.rows[:node_type])
            end, indptr = begin + len(part.rows[node_type]), np.concatenate(([0], np.cumsum(events.degree)))
            degrees.append(events.degree[begin:end])
            pieces.append({key: values[indptr[begin] : indptr[end]] for key, values in events.entries.items()})
    indptr = np.concatenate(([0], np.cumsum(np.concatenate(degrees)))).astype(np.int64)
    return History(indptr, **{key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]})


def _interleave(histories: list[History]) -> History:
    """Make one history of the histories over each relation."""
    if len(histories) == 1:
        return histories[0]
    node = np.concatenate([np.repeat(np.arange(len(h.indptr) - 1), np.diff(h.indptr)) for h in histories])
    names = ("other", "time", "event", "edge_type")
    columns = {name: np.concatenate([getattr(h, name) for h in histories]) for name in names}
    order = np.lexsort((columns["event"], node))
    indptr = np.sum([h.indptr for h in histories], axis=0)
    return History(indptr, **{name: column[order] for name, column in columns.items()})


def _node_columns(parts: list[_Part], names: Collection[str]) -> tuple[dict[str, np.ndarray], ...]:
    """Join some columns of the nodes of each type, in local order."""
    types = [[part.node_columns[kind] for part in parts] for kind in range(len(parts[0].node_columns))]
    return tuple(
        {name: np.concatenate([columns[name] for columns in pieces]) for name in names if name in pieces[0]}
        for pieces in types
    )


def _merge_events(pieces: list[Events]) -> Events:
    row, src, dst, time = (np.concatenate([getattr(p, key) for p in pieces]) for key in FIXED)
    columns: dict[str, Any] = {key: np.concatenate([p.columns[key] for p in pieces]) for key in pieces[0].columns}
    events = Events(row, src, dst, time, columns)
    is_sorted = bool((row[1:] > row[:-1]).all())  # those of one part are: nothing is copied
    return events if is_sorted else events.take(np.argsort(row, kind="stable"))


def _node_feature(parts: list[_Part], types: Sequence[str]) -> tuple[np.ndarray | None, Encoding | None]:
    """Join the node features of all types in local order, side by side as ``places_of_features`` does; also returns
    their narrow form, None for float32. Raises ValueError for parts of different forms."""
    encodings = parts[0].node_encodings
    if any(part.node_encodings != encodings for part in parts):
        raise ValueError(f"features of nodes are stored in different forms in different parts; {REMEDY}")
    widths = [files.as_matrix(p["feat"]).shape[1] if "feat" in p else 0 for p in parts[0].node_columns]
    starts, width = places_of_features(widths)
    if width == 0:
        return None, None
    common, pieces = common_encoding(encodings, widths), []
    for t, encoding in enumerate(encodings):
        for part in parts:
            rows = np.zeros((len(part.rows[t]), width), np.float32 if common is None else common.dtype)
            if widths[t]:
                stored = files.as_matrix(part.node_columns[t]["feat"])
                if common is None and encoding is not None:
                    stored = encoding.decode(stored)
                rows[:, starts[t] : starts[t] + widths[t]] = stored
            pieces.append(rows)
    return np.concatenate(pieces), common
