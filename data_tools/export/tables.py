"""Opens the tables of a graph file, or of one part of a partition set, for an export.

N nodes of a type, E edges of a relation. Columns are datasets of the file or arrays; both are read slab by slab.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import h5py
import numpy as np

from data_tools.graph.book import SetBook, open_book, part_ends
from data_tools.graph.narrow import WideColumn, read_wide
from data_tools.graph.source import EdgeType, NodeType
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError

Column: TypeAlias = "h5py.Dataset | np.ndarray | RowNumbers | Lookup | WideColumn"
REMEDY = "write it anew, or check it with hpcgnn verify"


@dataclass(frozen=True, slots=True)
class ExportTable:
    """The nodes of a type or the edges of a relation; ``attributes`` belong to columns, such as the names of classes,
    or to the relation."""

    name: str
    num_rows: int
    columns: dict[str, Column]
    attributes: dict[str, object]


@dataclass(frozen=True, slots=True)
class Tables:
    """All node types in order of type_id, all relations in order of relation_id.

    Edges have src and dst: rows of the tables of nodes (of a graph file: row ids). ``part`` is None for a whole graph.
    """

    kind: str
    nodes: list[ExportTable]
    edges: list[ExportTable]
    part: int | None = None


def graph_tables(file: h5py.File) -> Tables:
    """Open the tables of a graph file, and the ids of the ends of edges, src_id and dst_id, where their types have
    ids."""
    nodes, file = {}, read_wide(file)
    for name in files.node_types(file):
        group = file["nodes"][name]
        columns = {"row": RowNumbers(int(group.attrs["num_nodes"])), **{key: group[key] for key in group}}
        nodes[name] = ExportTable(name, int(group.attrs["num_nodes"]), columns, attributes(group))
    edges = []
    for name in files.relations(file):
        group = file["edges"][name]
        ends = {
            f"{end}_id": Lookup(nodes[node_type].columns["id"], group[end])
            for end, node_type in zip(("src", "dst"), files.split_relation(name)[::2], strict=True)
            if "id" in nodes[node_type].columns
        }
        columns = {key: group[key] for key in ("src", "dst")} | ends
        columns |= {key: group[key] for key in group if key not in columns}
        edges.append(ExportTable(name, int(group.attrs["num_edges"]), columns, attributes(group)))
    return Tables(str(file.attrs["kind"]), list(nodes.values()), edges)


class RowNumbers:
    """0 .. N - 1 as a column."""

    dtype, ndim = np.dtype(np.int64), 1

    def __init__(self, num_rows: int):
        self.shape = (num_rows,)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.arange(*rows.indices(self.shape[0]))


class Lookup:
    """``values[rows]`` as a column [E]; the values are read when they are first asked for."""

    def __init__(self, values: h5py.Dataset, rows: h5py.Dataset):
        self._values, self._rows = values, rows
        self._read: np.ndarray | None = None
        self.dtype, self.shape, self.ndim = values.dtype, rows.shape, 1

    def __getitem__(self, rows: slice) -> np.ndarray:
        if self._read is None:
            self._read = self._values[:]
        return self._read[self._rows[rows]] if len(self._read) else np.empty(0, self.dtype)


def attributes(group: h5py.Group) -> dict[str, object]:
    """Read the attributes of a table and of its columns, as text and numbers."""
    own = {key: value.item() if isinstance(value, np.generic) else value for key, value in group.attrs.items()}
    return own | {f"{name}.{key}": value for name, column in group.items() for key, value in column.attrs.items()}


def part_tables(folder: pathlib.Path, part: int) -> Tables:
    """Read the tables of one part: its nodes, and after them the nodes of other parts that its edges touch, with their
    columns. Column ``inner`` marks the part's own nodes; src and dst are rows of these tables, ``row`` row ids of the
    graph file.

    Raises FileFormatError for a part that is not there.
    """
    book = open_book(folder)
    if not 0 <= part < book.num_parts:
        raise FileFormatError(f"{folder}: no part {part}; it has 0 to {book.num_parts - 1}")
    with files.reading(book.part_path(part), files.PART, REMEDY) as file:
        edges = [read_edges(read_wide(file["edges"])[relation.name], relation, part) for relation in book.relations]
    nodes, outer = [], {}
    for node_type in book.types:
        ends: list[Any] = [
            table.columns[end]
            for relation, table in zip(book.relations, edges, strict=True)
            for end, end_type in (("src", relation.src_type), ("dst", relation.dst_type))
            if end_type.name == node_type.name
        ]
        ids = np.unique(np.concatenate([np.empty(0, np.int64), *ends]))
        outer[node_type.name] = ids[node_type.owner(ids) != part]
        nodes.append(read_nodes(book, node_type, part, outer[node_type.name]))
    for relation, table in zip(book.relations, edges, strict=True):
        for end, node_type in (("src", relation.src_type), ("dst", relation.dst_type)):
            global_ids: Any = table.columns[end]
            low, high = node_type.offsets[part : part + 2]
            inner = (global_ids >= low) & (global_ids < high)
            outside = high - low + np.searchsorted(outer[node_type.name], global_ids)
            rows = np.where(inner, global_ids - low, outside)
            table.columns[end] = rows.astype(np.int64)
    return Tables(book.kind, nodes, edges, part)


def read_edges(group: h5py.Group, relation: EdgeType, part: int) -> ExportTable:
    """Read the edges of a relation in a part; src and dst are global ids."""
    src, dst = part_ends(group, relation, part)
    columns: dict[str, Column] = {"src": src, "dst": dst}
    columns |= {key: group[key][:] for key in group if key not in ("indptr", "src", "dst")}
    return ExportTable(relation.name, len(src), columns, attributes(group))


def read_nodes(book: SetBook, node_type: NodeType, part: int, outer: np.ndarray) -> ExportTable:
    """Read the nodes of a type in a part, and after them the outer nodes (global ids, increasing)."""
    name, owner = node_type.name, node_type.owner(outer)
    with files.reading(book.part_path(part), files.PART, REMEDY) as file:
        group = read_wide(file["nodes"])[name]
        pieces, node_attributes = {key: [column[:]] for key, column in group.items()}, attributes(group)
    num_inner = len(pieces["row"][0])
    for other in np.unique(owner).tolist():
        with files.reading(book.part_path(other), files.PART, REMEDY) as file:
            for key, column in read_wide(file["nodes"])[name].items():
                pieces[key].append(column[outer[owner == other] - node_type.offsets[other]])
    columns: dict[str, Column] = {"row": np.concatenate(pieces.pop("row"))}
    columns["inner"] = np.arange(num_inner + len(outer)) < num_inner
    columns |= {key: np.concatenate(arrays) for key, arrays in pieces.items()}
    return ExportTable(name, num_inner + len(outer), columns, node_attributes)
