"""Reads the tables of a spec: node types with their id spaces, and relations."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass

import numpy as np

from data_tools.source.classes import Classes
from data_tools.source.columns import (
    Field,
    OrderedTimes,
    column_fields,
    number_classes,
    read_fields,
    read_table,
    zones_of,
)
from data_tools.source.disk_ids import DiskIds
from data_tools.source.file_spec import ColumnSpec, FileColumn
from data_tools.source.formats.dates import Dates, Zones
from data_tools.source.formats.values import Reference, parse_ids
from data_tools.source.id_spaces import ID_SPACES, MAP_ROWS, MISSING, IdColumn, IdSpace, RowIds
from data_tools.source.relation_types import EdgeTable, Origin, split_by_type
from data_tools.source.spec import EdgeSpec, NodeSpec, SourceSpec, table_files
from hpcgnn.graph.files import FileFormatError, split_relation
from hpcgnn.graph.splits import NO_SPLIT, add_to_split


@dataclass(frozen=True, slots=True)
class NodeTable:
    """A node type as the source has it: its id space and its columns in source order (``codes`` name their rows,
    ``ids`` resolves them). classes: words of the columns that number them; zones: of columns of dates."""

    spec: NodeSpec
    space: IdSpace
    codes: np.ndarray | None
    ids: IdColumn | None
    columns: dict[str, np.ndarray]
    classes: dict[str, list[str]]
    zones: dict[str, Zones]
    origin: Origin

    def finish(self, folder: pathlib.Path) -> None:
        """Number the ids; ``codes`` become row ids. No column of ids is read after this."""
        self.space.finish(folder)
        if self.codes is None:
            return
        assert self.ids is not None
        self.ids.resolve(self.codes)
        if isinstance(self.space, DiskIds):
            self.refuse_second(duplicate_row_id(self.codes, self.space.num_nodes))

    @property
    def num_missing(self) -> int:
        """Number of rows without an id, of which nothing is made."""
        return 0 if self.codes is None else int(np.count_nonzero(self.codes == MISSING))

    def refuse_second(self, row: int | None) -> None:
        """Raise FileFormatError for the first row of a node that has had a row before, if there is one."""
        if row is not None:
            file, row = self.origin.find(row)
            raise FileFormatError(
                f"{file}: column {self.spec.id!r}, row {row + 1}: the id occurs a second time; keep one row a node"
            )


@dataclass(frozen=True, slots=True)
class ReadEdges:
    """The rows of a relation in source order. ends: resolve src and dst; types [E]: positions in ``words`` where a
    column of types makes several relations from the rows."""

    table: EdgeTable
    ends: tuple[IdColumn, IdColumn]
    types: np.ndarray | None
    words: list[str]

    def finish(self, folder: pathlib.Path) -> list[EdgeTable]:
        """Make the relations, src and dst as row ids; the spaces must be finished."""
        for ids, codes in zip(self.ends, (self.table.src, self.table.dst), strict=True):
            ids.resolve(codes)
        return [self.table] if self.types is None else split_by_type(self.table, self.types, self.words, folder)


def read_nodes(spec: SourceSpec, node: NodeSpec, folder: pathlib.Path, num_buckets: int = 0) -> NodeTable:
    """Read the table of a node type, if it has one, and start its id space: on disk where there are buckets."""
    on_disk = num_buckets and node.ids != "row"
    space: IdSpace = ID_SPACES[node.ids](node.type)
    if on_disk:
        space = DiskIds(node.type, node.ids == "string", folder, num_buckets)
    fields = column_fields(node.columns, node.file)
    ids = space.column(leave_out=node.missing_ids == "drop") if node.id is not None else None
    if ids is not None:
        fields.insert(0, Field("id", table_files(node.file)[0], node.id, ids))
    origin = Origin()
    columns = read_table(spec, node.file, fields, folder, origin)
    classes = number_classes(fields, columns)
    codes = columns.pop("id", None)
    if isinstance(space, RowIds):
        space.num_nodes = count_rows(spec, node, columns, folder)
        for name, column in node.columns.items():
            if column.sets:
                columns[name] = read_sets(spec, node, column, space.num_nodes, folder)
    table = NodeTable(node, space, codes, ids, columns, classes, zones_of(fields), origin)
    if codes is not None:
        if not on_disk:
            table.refuse_second(duplicate_row(codes))
        space.sealed = not spec.adds_nodes(node)
    return table


def count_rows(spec: SourceSpec, node: NodeSpec, columns: dict[str, np.ndarray], folder: pathlib.Path) -> int:
    """Count the nodes whose ids are row numbers: by the declared count, by a count in a file, and by the length of
    their columns."""
    lengths = {len(column) for column in columns.values()}
    if isinstance(node.count, FileColumn):
        numbers = read_rows(spec, node.count.file, node.count.column, folder)
        if len(numbers) != 1:
            title = spec.files[node.count.file].title
            raise FileFormatError(f"{title}: expected one number of nodes, got {len(numbers)}")
        lengths.add(int(numbers[0]))
    elif node.count is not None:
        lengths.add(node.count)
    if len(lengths) != 1:
        raise FileFormatError(
            f"node type {node.type}: count and columns must give one number of rows, got {sorted(lengths)}"
        )
    return lengths.pop()


def read_sets(
    spec: SourceSpec, table: NodeSpec | EdgeSpec, column: ColumnSpec, num_rows: int, folder: pathlib.Path
) -> np.ndarray:
    """Make a split [N], int8, of arrays of row numbers or masks; -1 where a row of the table is in no set."""
    split = np.full(num_rows, NO_SPLIT, np.int8)
    for name, item in column.sets.items():
        if isinstance(item, FileColumn):
            file, reference = item.file, item.column
            rows = read_rows(spec, file, reference, folder)
        else:
            file, reference = column.file or table_files(table.file)[0], item
            rows = spec.files[file].open().array(reference)
        title = spec.files[file].title
        if isinstance(item, FileColumn) and item.mask:
            if len(rows) and rows.max() > 1:
                raise FileFormatError(f"{title}: {reference!r} is no mask: it holds {rows.max()}")
            rows = rows.astype(bool)
        if rows.ndim == 2 and 1 in rows.shape:
            rows = rows.ravel()
        is_mask = rows.dtype.kind == "b"
        if rows.ndim != 1 or (is_mask and len(rows) != num_rows) or rows.dtype.kind not in "biu":
            raise FileFormatError(
                f"{title}: {reference!r} ({rows.dtype}, shape {rows.shape}) is neither a list of rows nor a "
                f"mask of {num_rows} rows"
            )
        if not is_mask and len(rows) and (rows.min() < 0 or rows.max() >= num_rows):
            raise FileFormatError(f"{title}: {reference!r} names rows outside of 0 .. {num_rows - 1}")
        try:
            add_to_split(split, rows, name, f"{title}: {reference!r}")
        except ValueError as error:
            raise FileFormatError(str(error)) from None
    return split


def read_rows(spec: SourceSpec, file: str, reference: Reference, folder: pathlib.Path) -> np.ndarray:
    """Read row numbers [n] from a column."""
    return read_fields(spec, [Field("rows", file, reference, parse_ids)], folder)["rows"]


def read_edges(spec: SourceSpec, edge: EdgeSpec, spaces: dict[str, IdSpace], folder: pathlib.Path) -> ReadEdges:
    """Read the rows of one relation, or of the relations that a column of types makes. New ids are added to the spaces
    of its two node types."""
    source, _, destination = split_relation(edge.relation)
    files = table_files(edge.file)
    drop, leave_out = edge.dangling == "drop", edge.missing_ids == "drop"
    ends = spaces[source].column(drop, leave_out), spaces[destination].column(drop, leave_out)
    fields = [
        Field("src", files[0], edge.src, ends[0]),
        Field("dst", files[0], edge.dst, ends[1]),
        *column_fields(edge.columns, edge.file),
    ]
    times = OrderedTimes(edge.time_scale, not edge.sort, Dates(edge.dates, edge.zone))
    if edge.time is not None:
        fields.append(Field("time", files[0], edge.time, times))
    if edge.types is not None:
        fields.append(Field("types", files[0], edge.types, Classes()))
    origin = Origin()
    columns = read_table(spec, edge.file, fields, folder, origin)
    classes = number_classes(fields, columns)
    src, dst = columns.pop("src"), columns.pop("dst")
    sets = {name: column for name, column in edge.columns.items() if column.sets}
    columns |= {name: read_sets(spec, edge, column, len(src), folder) for name, column in sets.items()}
    time, types = columns.pop("time", None), columns.pop("types", None)
    title = ", ".join(dict.fromkeys(pathlib.Path(spec.files[file].title).name for file in files))
    table = EdgeTable(edge, title, origin, src, dst, time, columns, classes, zones_of(fields))
    return ReadEdges(table, ends, types, classes.pop("types", []))


def unread_columns(spec: SourceSpec) -> dict[str, list[str]]:
    """List the named columns of files that nothing is made of, by the name of the file."""
    references: dict[str, list[Reference]] = {name: [] for name in spec.used_files()}
    tables: list[NodeSpec | EdgeSpec] = [*spec.nodes, *spec.edges]
    for table in tables:
        columns = table.columns.values()
        own = [table.id] if isinstance(table, NodeSpec) else [table.src, table.dst, table.time, table.types]
        own += [column.column for column in columns if column.file is None]
        counts = [table.count] if isinstance(table, NodeSpec) else []
        items = [*counts, *(item for column in columns for item in column.sets.values())]
        placed = [(file, reference) for file in table_files(table.file) for reference in own]
        placed += [(column.file, column.column) for column in columns if column.file is not None]
        placed += [(item.file, item.column) for item in items if isinstance(item, FileColumn)]
        for file, reference in placed:
            if reference is not None:
                references[file].append(reference)
    unread = {}
    for name, of_file in references.items():
        if of_file:
            opened = spec.files[name].pieces()[0].open()
            unread[opened.name] = opened.unread({str(i): reference for i, reference in enumerate(of_file)})
    return unread


def duplicate_row_id(rows: np.ndarray, num_nodes: int) -> int | None:
    """Find the position of the first of the row ids [n], all below ``num_nodes``, that occurred before, or None.
    MISSING is none of them. Only a slab of them is in memory."""
    seen = np.zeros(num_nodes, bool)
    for start in range(0, len(rows), MAP_ROWS):
        piece = rows[start : start + MAP_ROWS]
        present = np.flatnonzero(piece != MISSING)
        again = present[seen[piece[present]]]
        within = duplicate_row(piece)
        if len(again) or within is not None:
            return start + int(min([*again[:1], *([] if within is None else [within])]))
        seen[piece[present]] = True
    return None


def duplicate_row(codes: np.ndarray) -> int | None:
    """Find the position of the first code that occurred before, or None; MISSING is none."""
    order = np.argsort(codes, kind="stable")
    later = codes[order[1:]]
    repeated = order[1:][(later == codes[order[:-1]]) & (later != MISSING)]
    return int(repeated.min()) if len(repeated) else None
