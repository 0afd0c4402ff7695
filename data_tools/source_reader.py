"""Reads the files of a spec in one pass each, and spools the parsed columns to unnamed temporary files.

A spooled column comes back as a memory map, so the size of a source is bounded by the disk, not by the memory.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from data_tools.arrays import Sparse
from data_tools.classes import Classes
from data_tools.disk_ids import DiskIds
from data_tools.id_spaces import IdColumn, IdSpace, RowIds, duplicate_row, duplicate_row_id, make_id_space
from data_tools.relation_types import EdgeTable, Origin, split_by_type
from data_tools.source_spec import (
    SPLITS,
    ColumnSpec,
    EdgeSpec,
    FileColumn,
    FileSpec,
    NodeSpec,
    Reference,
    SourceSpec,
    TableFile,
    table_files,
)
from data_tools.spool import Spool
from data_tools.tables import open_table, read_array
from data_tools.values import Place, Raw, parse_ids, parse_numbers, parse_times
from hpcgnn.store.files import FileFormatError, row_bytes, slabs, split_relation

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
    rows, ``ids`` resolves them); ``classes`` holds the words of those columns that number them."""

    spec: NodeSpec
    space: IdSpace
    codes: np.ndarray | None
    ids: IdColumn | None
    columns: dict[str, np.ndarray]
    classes: dict[str, list[str]]
    origin: Origin

    def finish(self) -> None:
        """Number the ids; ``codes`` become row ids. No column of ids is read after this."""
        self.space.finish()
        if self.codes is None:
            return
        self.ids.resolve(self.codes)
        if isinstance(self.space, DiskIds):
            check_table_ids(self, duplicate_row_id(self.codes, self.space.num_nodes))


@dataclass(frozen=True, slots=True)
class ReadEdges:
    """The rows of a relation as they were read; ``ends`` resolve src and dst, and ``types`` [E] are positions in
    ``words`` where a column of types makes several relations of them."""

    table: EdgeTable
    ends: tuple[IdColumn, IdColumn]
    types: np.ndarray | None
    words: list[str]

    def finish(self, folder: pathlib.Path) -> list[EdgeTable]:
        """The relations, src and dst as row ids; the spaces must be finished."""
        for ids, codes in zip(self.ends, (self.table.src, self.table.dst), strict=True):
            ids.resolve(codes)
        return [self.table] if self.types is None else split_by_type(self.table, self.types, self.words, folder)


def read_fields(
    spec: SourceSpec, fields: list[Field], folder: pathlib.Path, origin: Origin | None = None
) -> dict[str, np.ndarray]:
    """Read columns, each file once; they must all have the same number of rows. Columns of width 0 are left out.

    ``origin`` notes where the rows of the first field come from.
    """
    columns: dict[str, np.ndarray] = {}
    for file in dict.fromkeys(field.file for field in fields):
        here = [field for field in fields if field.file == file]
        spools = {field.name: Spool(folder) for field in here}
        for piece in spec.files[file].pieces():
            num_rows = read_piece(piece, here, spools)
            if origin is not None and file == fields[0].file:
                origin.add(pathlib.Path(piece.path).name, num_rows)
        columns |= {name: spool.column() for name, spool in spools.items()}
        check_rows(spec.files[file].title, len(columns[here[0].name]), spec.files[file].rows)
    lengths = {spec.files[field.file].title: len(columns[field.name]) for field in fields}
    if len(set(lengths.values())) > 1:
        raise FileFormatError(f"files with rows that belong together differ in length: {lengths}")
    return {name: column for name, column in columns.items() if 0 not in column.shape[1:]}


def read_piece(piece: FileSpec, fields: list[Field], spools: dict[str, Spool]) -> int:
    """Add the columns of one file to spools; returns its number of rows."""
    table = open_table(piece)
    first_row = 0
    for batch in table.batches({field.name: field.reference for field in fields}):
        for field in fields:
            rows = field.convert(batch[field.name], table.name, first_row)
            if not spools[field.name].fits(rows):
                raise FileFormatError(f"{piece.path}: its rows differ in width from those of the files before it")
            spools[field.name].append(rows)
        first_row += batch[fields[0].name].num_rows
    check_rows(piece.path, first_row, piece.rows)
    return first_row


def check_rows(title: str, found: int, expected: list[int]) -> None:
    """FileFormatError where a file has not as many rows as it must have."""
    if expected and found != sum(expected):
        raise FileFormatError(f"{title}: has {found:,} rows, expected {sum(expected):,}; is a file cut short?")


def read_table(
    spec: SourceSpec, file: TableFile | None, fields: list[Field], folder: pathlib.Path, origin: Origin
) -> dict[str, np.ndarray]:
    """Read the columns of a table; from several files one after the other, with a column ``split`` [N] int8."""
    if not isinstance(file, dict):
        return read_fields(spec, fields, folder, origin)
    spools: dict[str, Spool] = {}
    empty: dict[str, np.ndarray] = {}
    for split, name in file.items():
        piece = read_fields(spec, [dataclasses.replace(field, file=name) for field in fields], folder, origin)
        piece["split"] = np.full(len(piece[fields[0].name]), SPLITS[split], np.int8)
        if not len(piece["split"]):
            empty = piece
            continue
        if spools and spools.keys() != piece.keys():
            raise FileFormatError(f"{spec.files[name].title}: its columns {sorted(piece)} are not {sorted(spools)}")
        for key, column in piece.items():
            append_all(spools.setdefault(key, Spool(folder)), column, spec.files[name])
    return {key: spool.column() for key, spool in spools.items()} or empty


def append_all(spool: Spool, column: np.ndarray, file: FileSpec) -> None:
    """Add a whole column to a spool, slab by slab; FileFormatError when its width is not that of the files before."""
    if not spool.fits(column):
        raise FileFormatError(f"{file.title}: its rows differ in width from those of the files before it")
    for start, stop in slabs(len(column), row_bytes(column)):
        spool.append(column[start:stop])


def number_classes(fields: list[Field], columns: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """Put the classes of those columns in order that have them; returns their words by column."""
    found = {field.name: field.convert for field in fields if isinstance(field.convert, Classes)}
    return {name: classes.finish(columns[name]) for name, classes in found.items()}


def column_fields(columns: dict[str, ColumnSpec], file: TableFile | None) -> list[Field]:
    """Fields for the plain columns of a table (those with ``sets`` are not row by row)."""
    names = table_files(file)
    return [
        Field(
            name,
            column.file or names[0],
            Sparse(column.sparse) if column.sparse is not None else column.column,
            Classes(column.dtype, column.fill) if column.classes else partial(convert_column, name, column),
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


def read_nodes(spec: SourceSpec, node: NodeSpec, folder: pathlib.Path, num_buckets: int = 0) -> NodeTable:
    """Read the table of a node type, if it has one, and start its id space: on disk where there are buckets."""
    on_disk = num_buckets and node.ids != "row"
    space = make_id_space(node.type, node.ids)
    if on_disk:
        space = DiskIds(node.type, node.ids == "string", folder, num_buckets)
    fields = column_fields(node.columns, node.file)
    ids = space.column() if node.id is not None else None
    if ids is not None:
        fields.insert(0, Field("id", table_files(node.file)[0], node.id, ids))
    origin = Origin()
    columns = read_table(spec, node.file, fields, folder, origin)
    classes = number_classes(fields, columns)
    codes = columns.pop("id", None)
    if isinstance(space, RowIds):
        space.num_nodes = row_count(node, read_count(spec, node.count, folder), columns)
        columns |= {name: read_sets(spec, node, column, space.num_nodes, folder) for name, column in set_columns(node)}
    table = NodeTable(node, space, codes, ids, columns, classes, origin)
    if codes is not None:
        if not on_disk:
            check_table_ids(table, duplicate_row(codes))
        if not spec.adds_nodes(node):
            space.seal()
    return table


def read_count(spec: SourceSpec, count: int | FileColumn | None, folder: pathlib.Path) -> int | None:
    """The declared number of nodes, which may stand in a file."""
    if not isinstance(count, FileColumn):
        return count
    numbers = read_rows(spec, count.file, count.column, folder)
    if len(numbers) != 1:
        raise FileFormatError(f"{spec.files[count.file].title}: expected one number of nodes, got {len(numbers)}")
    return int(numbers[0])


def row_count(node: NodeSpec, count: int | None, columns: dict[str, np.ndarray]) -> int:
    """Number of nodes whose ids are row numbers."""
    lengths = {len(column) for column in columns.values()} | ({count} if count is not None else set())
    if len(lengths) != 1:
        raise FileFormatError(
            f"node type {node.type}: count and columns must give one number of rows, got {sorted(lengths)}"
        )
    return lengths.pop()


def check_table_ids(table: NodeTable, row: int | None) -> None:
    """Every node has one row in the node table; ``row`` is the first of a node that has had one before."""
    if row is not None:
        file, row = table.origin.find(row)
        raise FileFormatError(
            f"{file}: column {table.spec.id!r}, row {row + 1}: the id occurs a second time; keep one row a node"
        )


def set_columns(node: NodeSpec) -> list[tuple[str, ColumnSpec]]:
    """Columns that are given as sets of rows."""
    return [(name, column) for name, column in node.columns.items() if column.sets]


def read_sets(spec: SourceSpec, node: NodeSpec, column: ColumnSpec, num_nodes: int, folder: pathlib.Path) -> np.ndarray:
    """A split [N], int8, from arrays of row numbers or masks; -1 where a node is in no set."""
    split = np.full(num_nodes, -1, np.int8)
    for name, item in column.sets.items():
        own = isinstance(item, FileColumn)
        file, reference = (item.file, item.column) if own else (column.file or node.file, item)
        rows = read_rows(spec, file, reference, folder) if own else read_array(spec.files[file], reference)
        if own and item.mask:
            if len(rows) and rows.max() > 1:
                raise FileFormatError(f"{spec.files[file].title}: {reference!r} is no mask: it holds {rows.max()}")
            rows = rows.astype(bool)
        if rows.ndim == 2 and 1 in rows.shape:
            rows = rows.ravel()
        mask = rows.dtype.kind == "b"
        path = spec.files[file].title
        if rows.ndim != 1 or (mask and len(rows) != num_nodes) or rows.dtype.kind not in "biu":
            raise FileFormatError(
                f"{path}: {reference!r} ({rows.dtype}, shape {rows.shape}) is neither a list of rows nor a "
                f"mask of {num_nodes} rows"
            )
        if not mask and len(rows) and (rows.min() < 0 or rows.max() >= num_nodes):
            raise FileFormatError(f"{path}: {reference!r} names rows outside of 0 .. {num_nodes - 1}")
        split[rows] = SPLITS[name]
    return split


def read_rows(spec: SourceSpec, file: str, reference: Reference, folder: pathlib.Path) -> np.ndarray:
    """Row numbers [n] from a column."""
    return read_fields(spec, [Field("rows", file, reference, parse_ids)], folder)["rows"]


def read_edges(spec: SourceSpec, edge: EdgeSpec, spaces: dict[str, IdSpace], folder: pathlib.Path) -> ReadEdges:
    """Read the rows of one relation, or of those that a column of types makes; new ids are added to the spaces of its
    two node types."""
    source, _, destination = split_relation(edge.relation)
    files = table_files(edge.file)
    drop = edge.dangling == "drop"
    ends = spaces[source].column(drop), spaces[destination].column(drop)
    fields = [
        Field("src", files[0], edge.src, ends[0]),
        Field("dst", files[0], edge.dst, ends[1]),
        *column_fields(edge.columns, edge.file),
    ]
    if edge.time is not None:
        fields.append(Field("time", files[0], edge.time, OrderedTimes(edge.time_scale, not edge.sort)))
    if edge.types is not None:
        fields.append(Field("types", files[0], edge.types, Classes()))
    origin = Origin()
    columns = read_table(spec, edge.file, fields, folder, origin)
    classes = number_classes(fields, columns)
    src, dst, time, types = (columns.pop(name, None) for name in ("src", "dst", "time", "types"))
    name = ", ".join(dict.fromkeys(pathlib.Path(spec.files[file].title).name for file in files))
    table = EdgeTable(edge, name, origin, src, dst, time, columns, classes)
    return ReadEdges(table, ends, types, classes.pop("types", []))
