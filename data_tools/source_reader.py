"""Reads the files of a spec in one pass each, and spools the parsed columns to unnamed temporary files.

A spooled column comes back as a memory map, so the size of a source is bounded by the disk, not by the memory.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from data_tools.arrays import Sparse
from data_tools.id_spaces import IdSpace, RowIds, duplicate_row, make_id_space
from data_tools.source_spec import SPLITS, ColumnSpec, EdgeSpec, NodeSpec, Reference, SourceSpec
from data_tools.tables import open_table, read_array
from data_tools.values import Place, Raw, parse_numbers, parse_times
from hpcgnn.store.files import FileFormatError, split_relation

Convert = Callable[[Raw, str, int], np.ndarray]


@dataclass(frozen=True, slots=True)
class Field:
    """A column to read: ``convert(raw, file name, first row)`` gives the array to spool."""

    name: str
    file: str
    reference: Reference | Sparse
    convert: Convert


@dataclass(frozen=True, slots=True)
class NodeTable:
    """What the source says about a node type: its id space and its columns in source order (``codes`` name their
    rows)."""

    spec: NodeSpec
    space: IdSpace
    codes: np.ndarray | None
    columns: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class EdgeTable:
    """The rows of a relation in source order; src and dst hold codes."""

    spec: EdgeSpec
    file: str
    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray | None
    columns: dict[str, np.ndarray]


class Spool:
    """A column of unknown length on disk, in an unnamed temporary file."""

    def __init__(self, folder: pathlib.Path):
        self._file = tempfile.TemporaryFile(dir=folder)
        self._rows = 0
        self._like: np.ndarray | None = None

    def append(self, rows: np.ndarray) -> None:
        """Add rows [n, ...]; the trailing shape and the dtype stay the same."""
        if self._like is None:
            self._like = rows[:0]
        assert (rows.dtype, rows.shape[1:]) == (self._like.dtype, self._like.shape[1:])
        np.ascontiguousarray(rows).tofile(self._file)
        self._rows += len(rows)

    def column(self) -> np.ndarray:
        """All rows [N, ...], writable."""
        if self._like is None:
            return np.empty(0, np.int64)
        if self._rows == 0 or 0 in self._like.shape[1:]:
            return np.empty((self._rows, *self._like.shape[1:]), self._like.dtype)
        self._file.flush()
        return np.memmap(self._file, self._like.dtype, "r+", shape=(self._rows, *self._like.shape[1:]))


def read_fields(spec: SourceSpec, fields: list[Field], folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Read columns, each file once; they must all have the same number of rows. Columns of width 0 are left out."""
    columns: dict[str, np.ndarray] = {}
    for file in dict.fromkeys(field.file for field in fields):
        here = [field for field in fields if field.file == file]
        table = open_table(spec.files[file])
        spools = {field.name: Spool(folder) for field in here}
        first_row = 0
        for batch in table.batches({field.name: field.reference for field in here}):
            for field in here:
                spools[field.name].append(field.convert(batch[field.name], table.name, first_row))
            first_row += batch[here[0].name].num_rows
        columns |= {name: spool.column() for name, spool in spools.items()}
    lengths = {spec.files[field.file].path: len(columns[field.name]) for field in fields}
    if len(set(lengths.values())) > 1:
        raise FileFormatError(f"files with rows that belong together differ in length: {lengths}")
    return {name: column for name, column in columns.items() if 0 not in column.shape[1:]}


def column_fields(columns: dict[str, ColumnSpec], file: str | None) -> list[Field]:
    """Fields for the plain columns of a table (those with ``sets`` are not row by row)."""
    return [
        Field(
            name,
            column.file or file,
            Sparse(column.sparse) if column.sparse is not None else column.column,
            partial(convert_column, name, column),
        )
        for name, column in columns.items()
        if not column.sets
    ]


def convert_column(name: str, column: ColumnSpec, raw: Raw, file: str, first_row: int) -> np.ndarray:
    """Parse one piece of a stored column; features are always a matrix."""
    values = parse_numbers(raw, file, first_row, np.dtype(column.dtype), column.fill, column.values)
    return values[:, None] if name == "feat" and values.ndim == 1 else values


class OrderedTimes:
    """Parses times and refuses the first that is smaller than the one before it."""

    def __init__(self, scale: float, check: bool):
        self._scale = scale
        self._check = check
        self._last: int | None = None

    def __call__(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        times = parse_times(raw, file, first_row, self._scale)
        if self._check and len(times):
            before = np.concatenate([times[:1] if self._last is None else [self._last], times[:-1]])
            if len(bad := np.flatnonzero(times < before)):
                row = int(bad[0])
                raise Place(file, raw.labels[0], first_row).error(
                    row,
                    f"the time decreases from {before[row]} to {times[row]}{self._unit()}; pass --sort (or set "
                    "sort: true) to sort the events by time",
                )
            self._last = int(times[-1])
        return times

    def _unit(self) -> str:
        return "" if self._scale == 1 else f" (scaled by {self._scale:g})"


def read_nodes(spec: SourceSpec, node: NodeSpec, folder: pathlib.Path) -> NodeTable:
    """Read the table of a node type, if it has one, and start its id space."""
    space = make_id_space(node.type, node.ids)
    fields = column_fields(node.columns, node.file)
    if node.id is not None:
        fields.append(Field("id", node.file, node.id, space.encode))
    columns = read_fields(spec, fields, folder)
    codes = columns.pop("id", None)
    if isinstance(space, RowIds):
        space.num_nodes = row_count(node, columns)
        columns |= {name: read_sets(spec, node, column, space.num_nodes) for name, column in set_columns(node)}
    if codes is not None:
        check_table_ids(spec, node, codes)
        if node.others == "error":
            space.seal()
    return NodeTable(node, space, codes, columns)


def row_count(node: NodeSpec, columns: dict[str, np.ndarray]) -> int:
    """Number of nodes whose ids are row numbers."""
    lengths = {len(column) for column in columns.values()} | ({node.count} if node.count is not None else set())
    if len(lengths) != 1:
        raise FileFormatError(
            f"node type {node.type}: count and columns must give one number of rows, got {sorted(lengths)}"
        )
    return lengths.pop()


def check_table_ids(spec: SourceSpec, node: NodeSpec, codes: np.ndarray) -> None:
    """Every node has one row in the node table."""
    row = duplicate_row(codes)
    if row is not None:
        name = pathlib.Path(spec.files[node.file].path).name
        raise FileFormatError(
            f"{name}: column {node.id!r}, row {row + 1}: the id occurs a second time; keep one row a node"
        )


def set_columns(node: NodeSpec) -> list[tuple[str, ColumnSpec]]:
    """Columns that are given as sets of rows."""
    return [(name, column) for name, column in node.columns.items() if column.sets]


def read_sets(spec: SourceSpec, node: NodeSpec, column: ColumnSpec, num_nodes: int) -> np.ndarray:
    """A split [N], int8, from arrays of row numbers or masks; -1 where a node is in no set."""
    split = np.full(num_nodes, -1, np.int8)
    for name, reference in column.sets.items():
        file = spec.files[column.file or node.file]
        rows = read_array(file, reference)
        mask = rows.dtype.kind == "b"
        if rows.ndim != 1 or (mask and len(rows) != num_nodes) or rows.dtype.kind not in "biu":
            raise FileFormatError(
                f"{file.path}: {reference!r} ({rows.dtype}, shape {rows.shape}) is neither a list of rows nor a "
                f"mask of {num_nodes} rows"
            )
        if not mask and len(rows) and (rows.min() < 0 or rows.max() >= num_nodes):
            raise FileFormatError(f"{file.path}: {reference!r} names rows outside of 0 .. {num_nodes - 1}")
        split[rows] = SPLITS[name]
    return split


def read_edges(spec: SourceSpec, edge: EdgeSpec, spaces: dict[str, IdSpace], folder: pathlib.Path) -> EdgeTable:
    """Read the rows of one relation; new ids are added to the spaces of its two node types."""
    source, _, destination = split_relation(edge.relation)
    fields = [
        Field("src", edge.file, edge.src, spaces[source].encode),
        Field("dst", edge.file, edge.dst, spaces[destination].encode),
        *column_fields(edge.columns, edge.file),
    ]
    if edge.time is not None:
        fields.append(Field("time", edge.file, edge.time, OrderedTimes(edge.time_scale, not edge.sort)))
    columns = read_fields(spec, fields, folder)
    src, dst, time = columns.pop("src"), columns.pop("dst"), columns.pop("time", None)
    return EdgeTable(edge, pathlib.Path(spec.files[edge.file].path).name, src, dst, time, columns)
