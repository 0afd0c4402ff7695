"""A rank's share of a static graph: its nodes with their columns, and all their in-edges (CSC) by relation.

A rank reads the parts that the book gives it, except for features: a ``StoredColumn`` has the place of their rows.
Local rows: the rank's nodes type by type, in order of global id. *Flat row id*: first flat id of the node's type + row
id in the graph file; it identifies a node on any partition set."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import h5py
import numpy as np

from hpcgnn.comm.group import unwatched
from hpcgnn.graph import files
from hpcgnn.graph.book import VERIFY, Book, Relation, open_parts
from hpcgnn.graph.columns import Piece, StoredColumn
from hpcgnn.graph.narrow import STORED_AS, Encoding, encoding_of

FEATURES = "feat"  # the column of nodes that is left in the files
WEIGHT = "weight"  # the column of edges that messages are multiplied by, or neighbors drawn by


@dataclass(frozen=True, slots=True)
class InEdges:
    """A relation's edges into this rank's n nodes of its destination type, as CSC: starts [n + 1], src [m] global ids,
    row [m] edge row ids, all int64. row increases within a node, and is empty where it was not read; columns: further
    columns [m, ...] by name. Where few nodes have edges, nodes [k] are these, increasing, of ``size`` n, and starts
    [k + 1] are theirs: with many relations, memory for all nodes of each would exceed that of the edges."""

    starts: np.ndarray
    src: np.ndarray
    row: np.ndarray
    columns: dict[str, np.ndarray]
    nodes: np.ndarray | None = None
    size: int = 0

    @property
    def num_nodes(self) -> int:
        """Number n of nodes."""
        return len(self.starts) - 1 if self.nodes is None else self.size

    @property
    def indptr(self) -> np.ndarray:
        """The starts [n + 1] of the edges of all nodes; where ``nodes`` are few it is made at each call."""
        return self.starts if self.nodes is None else self.between(0, self.size)[0]

    def between(self, begin: int, end: int) -> tuple[np.ndarray, slice]:
        """Return the starts [end - begin + 1], from 0 on, of the nodes begin .. end - 1, and the places of their
        edges."""
        if self.nodes is None:
            starts = self.starts[begin : end + 1]
            return starts - starts[0], slice(int(starts[0]), int(starts[-1]))
        first, last = np.searchsorted(self.nodes, (begin, end))
        degree = np.zeros(end - begin + 1, np.int64)
        degree[1 + self.nodes[first:last] - begin] = np.diff(self.starts[first : last + 1])
        return np.cumsum(degree), slice(int(self.starts[first]), int(self.starts[last]))

    def filled(self) -> tuple[np.ndarray, np.ndarray]:
        """List the nodes [k] that have edges, and their numbers of edges [k]."""
        degree = np.diff(self.starts)
        has_edges = np.flatnonzero(degree)
        return has_edges if self.nodes is None else self.nodes[has_edges], degree[has_edges]

    def compact(self) -> InEdges:
        """Return the edges with ``nodes``, where most nodes have none."""
        nodes, degree = self.filled()
        if 2 * len(nodes) >= self.num_nodes:
            return self
        return replace(self, starts=np.concatenate(([0], np.cumsum(degree))), nodes=nodes, size=self.num_nodes)

    @property
    def dst(self) -> np.ndarray:
        """The destination [m] of each edge, counted from this rank's first node of the type."""
        return np.repeat(np.arange(self.num_nodes) if self.nodes is None else self.nodes, np.diff(self.starts))

    def degrees_only(self) -> InEdges:
        """Return only the degrees: src, row and columns are empty."""
        none = np.empty(0, np.int64)
        return replace(self, src=none, row=none, columns={})

    def take(self, mask: np.ndarray) -> InEdges:
        """Return only the edges where mask [m] bool is set."""
        below = np.concatenate(([0], np.cumsum(mask)))
        columns = {name: column[mask] for name, column in self.columns.items()}
        row = self.row[mask] if len(self.row) else self.row
        return replace(self, starts=below[self.starts], src=self.src[mask], row=row, columns=columns)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Remote nodes of a type that a rank is likely to sample: id [k] global ids, unique; probability [k] float32,
    decreasing. Empty where the parts were stored without a ranking."""

    id: np.ndarray
    probability: np.ndarray

    def of(self, mask: np.ndarray) -> Ranking:
        """Return only the nodes where mask [k] bool is set."""
        return Ranking(self.id[mask], self.probability[mask])


@dataclass(frozen=True, slots=True)
class GraphPartition:
    """A rank's share of a graph.

    graph_hash: of the graph file, the same for all its partition sets; flat_row [n] int64 of every local node;
    type_start [T + 1]: first local row of every type. columns: by type, [n of the type, ...] by name, without the
    features. features: by type, the place of the rows [n of the type, F], None for a type without features. edges: one
    for each of ``relations``; ranking: by type. out: by relation, the out-edges of this rank's nodes of its source
    type, with the destinations as ``src``; empty where they were not read. unread: by relation, names of the edges'
    columns that were not read. book_attributes: of the root of the book; column_attributes: by a column's place in part
    files, such as ``nodes/paper/label``; each has ``names``, a list. weighs: degrees are sums of the edges' column
    ``weight``; strength [n]: these sums, where the edges were left out. turned: every relation is reversed: its types
    are swapped, and ``edges`` are the graph's out-edges."""

    book: Book
    graph_hash: str
    rank: int
    relations: tuple[Relation, ...]
    flat_row: np.ndarray
    type_start: np.ndarray
    columns: tuple[dict[str, np.ndarray], ...]
    features: tuple[StoredColumn | None, ...]
    edges: tuple[InEdges, ...]
    ranking: tuple[Ranking, ...]
    out: tuple[InEdges, ...] = ()
    unread: tuple[tuple[str, ...], ...] = ()
    book_attributes: dict[str, Any] = field(default_factory=dict)
    column_attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    weighs: bool = False
    strength: np.ndarray | None = None
    turned: bool = False

    @property
    def num_nodes(self) -> int:
        """Number n of local nodes."""
        return len(self.flat_row)

    @property
    def types(self) -> tuple[str, ...]:
        """Names of the node types."""
        return self.book.node_types

    @property
    def words(self) -> dict[str, list[str]]:
        """Words that the numbers from 0 stand for in columns that were made from words, by the column's place."""
        return {column: found["names"] for column, found in self.column_attributes.items() if found["names"]}

    def edge_encoding(self, relation: int, column: str) -> Encoding | None:
        """Return the narrow form of a column of a relation's edges; None for plain numbers. Raises FileFormatError."""
        place, values = f"edges/{self.relations[relation].name}/{column}", self.edges[relation].columns[column]
        text = self.column_attributes.get(place, {}).get(STORED_AS)
        return encoding_of(place, values.dtype, values.shape, text)

    def of_type(self, node_type: int) -> slice:
        """Return the local rows of a type."""
        return slice(int(self.type_start[node_type]), int(self.type_start[node_type + 1]))

    def global_ids(self, node_type: int) -> np.ndarray:
        """List the global ids of this rank's nodes of a type, int64."""
        starts = self.book.of_type(node_type).starts
        return np.arange(starts[self.rank], starts[self.rank + 1])

    def degrees_only(self) -> GraphPartition:
        """Return the share with only the degrees of its nodes in place of edges."""
        strength = self.in_degree() if self.weighs else None
        return replace(self, edges=tuple(edges.degrees_only() for edges in self.edges), strength=strength)

    def in_degree(self) -> np.ndarray:
        """Count the in-edges of every local node over all relations, int64 [n]; with ``weighs``, sum their weights,
        float64 [n], where an edge without a weight counts 1."""
        if self.strength is not None:
            return self.strength
        degree = np.zeros(self.num_nodes, np.float64 if self.weighs else np.int64)
        for relation, edges in zip(self.relations, self.edges, strict=True):
            of_type = degree[self.of_type(relation.dst_type)]
            if self.weighs and WEIGHT in edges.columns:
                of_type += np.bincount(edges.dst, edges.columns[WEIGHT], len(of_type))
            else:
                nodes, counts = edges.filled()
                of_type[nodes] += counts
        return degree

    def relation_of(self, name: str, key: str = "") -> int:
        """Return the number of a relation. Raises ValueError that names the ``key`` of the setting, and all
        relations."""
        names = [relation.name for relation in self.relations]
        if name not in names:
            raise ValueError(f"{key}{': ' * bool(key)}no relation {name}; the graph has {', '.join(names)}")
        return names.index(name)

    def relation_in_graph(self, number: int) -> Relation:
        """Return a relation with the source and destination types of the graph file, even where it is turned."""
        kind = self.relations[number]
        return replace(kind, src_type=kind.dst_type, dst_type=kind.src_type) if self.turned else kind

    def type_of(self, name: str) -> int:
        """Return the number of a node type. Raises ValueError that names all types."""
        if name not in self.types:
            raise ValueError(f"no node type {name!r}; the graph has {', '.join(self.types)}")
        return self.types.index(name)


@dataclass(frozen=True, slots=True)
class _PartColumns:
    """What is read from one part file, by type or by relation."""

    rows: list[np.ndarray]
    nodes: list[dict[str, np.ndarray]]
    features: list[Piece | None]
    edges: list[InEdges]
    rankings: list[Ranking]
    out: list[InEdges]
    unread: list[tuple[str, ...]]
    attributes: dict[str, dict[str, Any]]


def open_graph_partition(
    path: str | os.PathLike, rank: int, size: int, check_hash: bool = True, edges: bool = True, columns: bool = True,
    with_out: bool = False, kind: str = "static", working: Callable[..., None] = unwatched,
    edge_columns: Collection[str] | None = None,
) -> GraphPartition:  # fmt: skip
    """Read the share of ``rank`` of ``size`` ranks from a partition set of a kind of graph. Without ``edges`` only
    their numbers are kept (``degrees_only``); without ``columns`` no column of the nodes is read. with_out: out-edges
    too; edge_columns: columns of the edges to read, ``row`` among them, in addition to their ends; None: all.
    ``unread`` of the result names the columns that were not read.

    Raises as ``open_parts``, and FileFormatError for out-edges that are not stored.
    """

    def check_book(file: h5py.File) -> None:
        if with_out and not (files.json_attribute(file, "options") or {}).get("out_edges"):
            raise files.FileFormatError(f"{path}: no out-edges are stored; partition again with --out_edges")

    read_part = partial(
        _read_part, rank=rank, with_edges=edges, with_columns=columns, with_out=with_out, edge_columns=edge_columns
    )
    with open_parts(path, rank, size, kind, read_part, check_book, check_hash, working) as opened:
        book, parts, types = opened.book, opened.contents, range(len(opened.book.node_types))
        numbers = range(len(opened.relations))
        return GraphPartition(
            book, opened.graph_hash, rank, opened.relations, opened.flat_row, book.type_start(rank),
            tuple(_merge_columns([p.nodes[t] for p in parts]) for t in types),
            tuple(_merge_features(path, [p.features[t] for p in parts]) for t in types),
            tuple(_merge_edges([p.edges[r] for p in parts]) for r in numbers),
            tuple(_merge_rankings([p.rankings[t] for p in parts], book, t, rank) for t in types),
            tuple(_merge_edges([p.out[r] for p in parts]) for r in numbers if with_out),
            tuple(parts[0].unread), opened.attributes, parts[0].attributes,
        )  # fmt: skip


def _read_part(
    file: h5py.File, part: int, book: Book, relations: tuple[Relation, ...], *, rank: int, with_edges: bool,
    with_columns: bool, with_out: bool, edge_columns: Collection[str] | None,
) -> _PartColumns:  # fmt: skip
    types, nodes = book.node_types, []
    for node_type in types:
        group = file["nodes"][node_type]
        nodes.append({key: group[key][()] for key in group if key == "row" or (with_columns and key != FEATURES)})
    features = [_find_features(file["nodes"][t]) if with_columns else None for t in types]
    rows = [columns.pop("row") for columns in nodes]
    counts = [len(row) for row in rows]
    edges = [_read_lists(file["edges"][r.name], "src", counts[r.dst_type], edge_columns) for r in relations]
    out = [_read_lists(file["out"][r.name], "dst", counts[r.src_type], edge_columns) for r in relations if with_out]
    unread = [_unread(file["edges"][r.name], edge_columns) for r in relations]
    if not with_edges:
        edges, out = ([lists.degrees_only() for lists in by_relation] for by_relation in (edges, out))
    rankings = [_read_ranking(file, t) for t in types]
    attributes = _read_attributes(file) if part == book.parts_of(rank)[0] else {}  # the same in all parts
    return _PartColumns(rows, nodes, features, edges, rankings, out, unread, attributes)


def _find_features(group: h5py.Group) -> Piece | None:
    """Find the features of a part's nodes of a type. Raises ValueError where there are fewer rows or more than
    nodes."""
    if FEATURES not in group:
        return None
    piece = Piece.of(group[FEATURES])
    if piece.rows != len(group["row"]):
        raise ValueError(f"{piece.name} has {piece.rows} rows, {len(group['row'])} nodes")
    return piece


def _merge_features(path, pieces: list[Piece | Any]) -> StoredColumn | None:
    """Join the features of the parts. Raises FileFormatError where only some of the parts have any."""
    if None not in pieces:
        return StoredColumn(pieces)
    if any(piece is not None for piece in pieces):
        raise files.FileFormatError(f"{path}: some parts have features and some have none; {VERIFY}")
    return None


def _read_lists(group: h5py.Group, neighbor: str, num_nodes: int, wanted: Collection[str] | None) -> InEdges:
    """Read the edge lists of ``num_nodes`` nodes; neighbor: name of the column of neighbors; wanted: of the others."""
    ends = ("indptr", neighbor)
    columns = {name: group[name][()] for name in group if wanted is None or name in (*ends, *wanted)}
    if wanted is not None and "row" not in wanted:
        columns["row"] = np.empty(0, np.int64)
    indptr, src, row = (columns.pop(key).astype(np.int64, copy=False) for key in (*ends, "row"))
    if len(indptr) != num_nodes + 1 or indptr[-1] != len(src):
        raise ValueError(f"{group.name}/indptr does not fit the part's nodes and edges")
    return InEdges(indptr, src, row, columns).compact()


def _read_attributes(file: h5py.File) -> dict[str, dict[str, Any]]:
    """Read the attributes of all columns of nodes and edges, by the columns' places."""
    groups = [group for table in ("nodes", "edges") for group in file[table].values()]
    for group in groups:
        files.refuse_split_words(group)
    columns = (group[name] for group in groups for name in group)
    return {column.name.lstrip("/"): {**column.attrs, "names": files.class_names(column)} for column in columns}


def _unread(group: h5py.Group, wanted: Collection[str] | None) -> tuple[str, ...]:
    """List the columns of edges that ``_read_lists`` leaves in the file."""
    return () if wanted is None else tuple(name for name in group if name not in ("indptr", "src", "row", *wanted))


def _read_ranking(file: h5py.File, node_type: str) -> Ranking:
    path = f"cache/{node_type}"
    if path not in file:
        return Ranking(np.empty(0, np.int64), np.empty(0, np.float32))
    return Ranking(file[path]["id"][()].astype(np.int64), file[path]["probability"][()].astype(np.float32))


def _merge_rankings(pieces: list[Ranking], book: Book, node_type: int, rank: int) -> Ranking:
    """Join the rankings of the parts, without the rank's own nodes; a node has the highest of its probabilities."""
    ids = np.concatenate([piece.id for piece in pieces])
    probability = np.concatenate([piece.probability for piece in pieces])
    order = np.lexsort((ids, -probability))
    order = order[book.of_type(node_type).locate(ids[order])[0] != rank]
    _, first = np.unique(ids[order], return_index=True)
    order = order[np.sort(first)]
    return Ranking(ids[order], probability[order])


def _merge_columns(pieces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _merge_edges(pieces: list[InEdges]) -> InEdges:
    """Join the edges of the parts, one behind the other, which is the order of their nodes."""
    starts, nodes, size = np.cumsum([0, *(piece.starts[-1] for piece in pieces)]), None, 0
    if any(piece.nodes is not None for piece in pieces):
        sizes = [piece.num_nodes for piece in pieces]
        first = np.cumsum([0, *sizes])
        filled = [piece.filled() for piece in pieces]
        nodes, size = np.concatenate([n + f for (n, _), f in zip(filled, first, strict=False)]), int(first[-1])
        starts = np.concatenate(([0], np.cumsum(np.concatenate([degree for _, degree in filled]))))
    else:
        shifted = [piece.starts[:-1] + start for piece, start in zip(pieces, starts, strict=False)]
        starts = np.concatenate([*shifted, starts[-1:]])
    return InEdges(
        starts.astype(np.int64),
        np.concatenate([piece.src for piece in pieces]),
        np.concatenate([piece.row for piece in pieces]),
        _merge_columns([piece.columns for piece in pieces]), nodes, size,
    )  # fmt: skip
