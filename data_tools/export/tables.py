"""Opens the tables of a graph file, or of one part of a partition set, for an export.

N nodes of a type, E edges of a relation. Columns are datasets of the file or arrays; both are read slab by slab.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import h5py
import numpy as np

from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError

Column: TypeAlias = "h5py.Dataset | np.ndarray | RowNumbers | Lookup"
REMEDY = "write it anew, or check it with data_tools.verify"


@dataclass(frozen=True, slots=True)
class ExportTable:
    """The nodes of a type or the edges of a relation; ``attributes`` belong to columns, such as the names of classes,
    or to the relation."""

    name: str
    num_rows: int
    columns: Mapping[str, Column]
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
    nodes = {}
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
    """Read the tables of one part: its nodes, and after them the nodes of other parts that its edges touch (column
    ``inner`` tells them apart), with their columns; src and dst are rows of these tables, ``row`` row ids of the graph
    file.

    Raises FileFormatError for a part that is not there.
    """
    with files.reading(files.book_path(folder), files.BOOK, REMEDY) as book:
        num_parts = int(book.attrs["num_parts"])
        if not 0 <= part < num_parts:
            raise FileFormatError(f"{folder}: no part {part}; it has 0 to {num_parts - 1}")
        kind = str(book.attrs["kind"])
        offsets = {name: book["nodes"][name]["offsets"][:] for name in files.node_types(book)}
        relations = files.relations(book)
    with files.reading(files.part_path(folder, part), files.PART, REMEDY) as file:
        edges = {name: read_edges(file, name, offsets, part, kind) for name in relations}
        edge_attributes = {name: attributes(file["edges"][name]) for name in relations}
    nodes, outer = [], {}
    for name, bounds in offsets.items():
        ends = [
            columns[end]
            for relation, columns in edges.items()
            for end, node_type in zip(("src", "dst"), files.split_relation(relation)[::2], strict=True)
            if node_type == name
        ]
        ids = np.unique(np.concatenate([np.empty(0, np.int64), *ends]))
        outer[name] = ids[(ids < bounds[part]) | (ids >= bounds[part + 1])]
        nodes.append(read_nodes(folder, name, bounds, part, outer[name]))
    for relation, columns in edges.items():
        for end, name in zip(("src", "dst"), files.split_relation(relation)[::2], strict=True):
            ids, (low, high) = columns[end], offsets[name][part : part + 2]
            inner = (ids >= low) & (ids < high)
            rows = np.where(inner, ids - low, high - low + np.searchsorted(outer[name], ids))
            columns[end] = rows.astype(np.int64)
    tables = [ExportTable(name, len(columns["src"]), columns, edge_attributes[name]) for name, columns in edges.items()]
    return Tables(kind, nodes, tables, part)


def read_edges(
    file: h5py.File, name: str, offsets: dict[str, np.ndarray], part: int, kind: str
) -> dict[str, np.ndarray]:
    """Read the columns of the edges of a relation in a part; src and dst are global ids."""
    group = file["edges"][name]
    columns = {key: group[key][:] for key in group if key != "indptr"}
    if kind in files.BY_DESTINATION:
        indptr, first = group["indptr"][:], int(offsets[files.split_relation(name)[2]][part])
        columns["dst"] = first + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return {"src": columns.pop("src"), "dst": columns.pop("dst"), **columns}


def read_nodes(folder: pathlib.Path, name: str, offsets: np.ndarray, part: int, outer: np.ndarray) -> ExportTable:
    """Read the nodes of a type in a part, and after them the outer nodes (global ids, increasing)."""
    with files.reading(files.part_path(folder, part), files.PART, REMEDY) as file:
        pieces = {key: [column[:]] for key, column in file["nodes"][name].items()}
        node_attributes = attributes(file["nodes"][name])
    num_inner = len(pieces["row"][0])
    for other in range(len(offsets) - 1):
        low, high = np.searchsorted(outer, offsets[other : other + 2])
        if low == high:
            continue
        with files.reading(files.part_path(folder, other), files.PART, REMEDY) as file:
            for key, column in file["nodes"][name].items():
                pieces[key].append(column[outer[low:high] - offsets[other]])
    columns = {"row": np.concatenate(pieces.pop("row"))}
    columns["inner"] = np.arange(num_inner + len(outer)) < num_inner
    columns |= {key: np.concatenate(arrays) for key, arrays in pieces.items()}
    return ExportTable(name, num_inner + len(outer), columns, node_attributes)
