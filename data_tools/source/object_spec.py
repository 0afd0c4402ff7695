"""Saves tables in memory as arrays, and makes the spec that reads them.

Options are the keys of node types and relations in `data_tools.source.spec`: a key that is added there is an option
here. n rows of a table.
"""

from __future__ import annotations

import dataclasses
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_tools.source.formats.dates import UNIX, UTC, Dates, Zones
from data_tools.source.object_columns import TEXT, ColumnZone, plain_column, zone_of_column
from data_tools.source.spec import EdgeSpec, NodeSpec
from data_tools.source.spec_file import DEFAULT_DTYPES, RESERVED, RESERVED_OF_EDGES
from hpcgnn.graph.files import relation_name, split_relation

Options = Mapping[str, Any]
OF_TABLES = {"type", "relation", "file", "count", "id", "src", "dst", "time"}  # keys of specs that tables decide
ENDS = {"src": "src", "dst": "dst"}  # keys of a relation whose columns are called so
OF_TIMES = ("time_scale", "dates", "zone", "sort")  # options that do nothing without times


@dataclass
class ObjectTable:
    """A node type or a relation. columns: [n, ...] by the name that the object gives them; names: other names that they
    get in the graph file; keys: the columns that are ``src``, ``dst``, ``time`` or ``id``; count: number of nodes that
    are numbered by rows."""

    columns: dict[str, np.ndarray] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    count: int | None = None


@dataclass
class GraphTables:
    """A graph as tables: nodes by type, edges by relation. A type without ids and count has the ids that edges name.
    notes: texts for users about content that is not kept, or changed."""

    nodes: dict[str, ObjectTable] = field(default_factory=dict)
    edges: dict[str, ObjectTable] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def all(self) -> dict[str, ObjectTable]:
        """All tables by node type and relation, in their order; of types that only relations name, empty ones."""
        ends = [kind for name in self.edges for kind in split_relation(name)[::2]]
        return {**self.nodes, **{kind: ObjectTable() for kind in ends if kind not in self.nodes}, **self.edges}

    def ends(self, kind: str) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield relation, column and ids [n] of all ends that are of a node type."""
        for relation, table in self.edges.items():
            for end, key in zip(split_relation(relation)[::2], ("src", "dst"), strict=True):
                if end == kind:
                    yield relation, table.keys[key], table.columns[table.keys[key]]


def option_names(spec: type) -> list[str]:
    """List the keys of a spec that are options."""
    return [item.name for item in dataclasses.fields(spec) if item.name not in OF_TABLES]


def options_by_table(options: Options, tables: GraphTables) -> dict[str, dict[str, Any]]:
    """Give each table its options. A value is for all tables that have the key, or a mapping of tables to values;
    ``columns``, a mapping itself, is for the only table that has columns, or by table. Raises ValueError for an option
    or a table that there is not."""
    specs = {name: EdgeSpec if name in tables.edges else NodeSpec for name in tables.all}
    chosen: dict[str, dict[str, Any]] = {name: {} for name in specs}
    for key, value in options.items():
        having = [name for name, spec in specs.items() if key in option_names(spec)]
        if not having:
            there = ", ".join(dict.fromkeys(option_names(EdgeSpec) + option_names(NodeSpec)))
            raise ValueError(
                f"no option {key!r}; there are {there}. Columns and attributes are kept under their names; columns="
                "{'feat': ['a', 'b']} makes features of some"
            )
        by_table = isinstance(value, Mapping) and (key != "columns" or value.keys() <= specs.keys())
        if not by_table and key == "columns":
            having = [name for name, table in tables.all.items() if table.columns]
            if len(having) > 1:
                shown = ", ".join(f"{name!r}: ..." for name in having)
                raise ValueError(f"columns: there are several tables; give columns by table: columns={{{shown}}}")
        for name, one in (value if by_table else dict.fromkeys(having, value)).items():
            if name not in having:
                raise ValueError(f"{key}: {name!r} is not one of {', '.join(having)}")
            if key == "columns" and not isinstance(one, Mapping):
                raise ValueError(f"columns: expected a mapping of names to columns, got {str(one)[:60]}")
            chosen[name][key] = one
    return chosen


def save_tables(
    tables: GraphTables, folder: pathlib.Path, options: Options | None = None, source: str = ""
) -> dict[str, Any]:
    """Save each table as an npz file in a folder; returns the spec that reads them. Its files are called as messages
    are to name the tables. Makes the columns plain, and adds to the notes of the tables.

    options: keys of node types and relations, as ``options_by_table`` takes them; source: where the data comes from.
    Raises ValueError for options, columns and ids that do not fit.
    """
    spec: dict[str, Any] = {"files": {}, "nodes": [], "edges": []}
    chosen = options_by_table(options or {}, tables)
    titles = {name: f"{'edges' if name in tables.edges else 'nodes'} of {name}" for name in chosen}
    declared = {name: _declare(tables, titles[name], table, chosen[name]) for name, table in tables.all.items()}
    for name, table in tables.all.items():
        is_relation, title = name in tables.edges, titles[name]
        relation_name(*(split_relation(name) if is_relation else (name, "to", name)))  # a name of a group, or refused
        entry: dict[str, Any] = {"relation": name} if is_relation else _ids(tables, name, table)
        if table.columns:
            entry |= {"file": title, **table.keys, "columns": declared[name]}
            save_arrays(folder / title, table.columns)
            spec["files"][title] = {"path": title, "format": "npz", "source": source}
        if is_relation and "time" not in table.keys:
            for key in OF_TIMES:
                if chosen[name].get(key):
                    raise ValueError(f"{key}: {title} have no times; name their column (time), or leave {key} out")
        spec["edges" if is_relation else "nodes"].append(entry | chosen[name])
    return spec


def _ids(tables: GraphTables, kind: str, table: ObjectTable) -> dict[str, Any]:
    """Describe the ids of a node type, by its table or by the edges that name them. Raises ValueError for words where
    ids are row numbers."""
    ends = list(tables.ends(kind))
    if table.count is None:
        ids = table.columns[table.keys["id"]] if "id" in table.keys else ends[0][-1]
        return {"type": kind, "ids": "string" if ids.dtype.kind in TEXT else "int"}
    for relation, column, ids in ends:
        if ids.dtype.kind in TEXT:
            raise ValueError(
                f"edges of {relation}: column {column} has words, and nodes of {kind} are numbered by their rows; name "
                f"the column of their ids (id), one of {', '.join(table.columns)}"
            )
    return {"type": kind, "ids": "row", "count": table.count}


def _declare(tables: GraphTables, title: str, table: ObjectTable, options: dict[str, Any]) -> dict[str, Any]:
    """Declare the columns to store, the ones of the option ``columns``, which is taken out, or else all; then make
    these, ids, ends and times plain, and leave out the others."""
    keys = [*table.keys.values(), options.get("types")]
    columns = options.pop("columns", None)
    if columns is None:
        columns = _all_columns(tables, title, table, [name for name in table.columns if name not in keys])
    used = {*keys, *(name for value in columns.values() for name in _references(value, table))}
    if left := [name for name in table.columns if name not in used]:
        tables.notes.append(f"{title}: not kept: {', '.join(left)}")
    if missing := [name for name in used if name is not None and name not in table.columns]:
        raise ValueError(f"{title}: no column {', '.join(sorted(missing))}; there are {', '.join(table.columns)}")
    titles = {name: f"{title}: column {name}" for name in table.columns if name in used}
    declared = dict.fromkeys(titles, options) | {
        name: value for value in columns.values() if isinstance(value, Mapping) and "zone" in value
        for name in _references(value, table)
    }  # fmt: skip
    zones = {name: _zone(table.columns[name], titles[name], declared[name]) for name in titles}
    tables.notes += [note for name, zone in zones.items() for note in Zones(set(zone.all)).notes(titles[name])]
    time = table.keys.get("time")
    if time in zones and zones[time].all:
        options.update(dates=UNIX, zone=zones[time].name)  # plain dates are in UTC
    table.columns = {
        name: plain_column(table.columns[name], named, name == time, UTC if zones[name].all else zones[name].name)
        for name, named in titles.items()
    }
    return {name: _typed(name, value, table, zones) for name, value in columns.items()}


def _zone(values: np.ndarray, title: str, declared: Mapping[str, Any]) -> ColumnZone:
    """Read the zone of a column of dates, by what the keys ``dates`` and ``zone`` declare. Raises ValueError."""
    try:
        return zone_of_column(values, Dates(str(declared.get("dates", "")), str(declared.get("zone", UTC))))
    except ValueError as error:
        raise ValueError(f"{title}: {error}") from None


def _all_columns(tables: GraphTables, title: str, table: ObjectTable, names: list[str]) -> dict[str, str]:
    """Name the columns as they are to be stored. Raises ValueError for two of one name."""
    columns: dict[str, str] = {}
    for name in names:
        stored = table.names.get(name, name)
        if stored in RESERVED or ("src" in table.keys and stored in RESERVED_OF_EDGES):
            tables.notes.append(f"{title}: {name} is kept as {stored}_")
            stored += "_"
        if stored in columns:
            both = f"{columns[stored]} and {name}"
            raise ValueError(f"{title}: {both} would both be column {stored}; rename or remove one")
        columns[stored] = name
    return columns


def _references(value: Any, table: ObjectTable) -> list[str]:
    """List the columns that a declaration reads; an index, as in ``a[0]``, is no part of a name."""
    items = [value.get("column"), *value.get("sets", {}).values()] if isinstance(value, Mapping) else [value]
    names = [name for item in items for name in (item if isinstance(item, list) else [item]) if isinstance(name, str)]
    return [name if name in table.columns else name.partition("[")[0] for name in names]


def _typed(name: str, value: Any, table: ObjectTable, zones: Mapping[str, ColumnZone]) -> dict[str, Any]:
    """Add the type of a column to its declaration: words are classes, dates have their zone, numbers keep their type,
    except in columns that training reads."""
    column = dict(value) if isinstance(value, Mapping) else {"column": value}
    references = _references(value, table)
    if not references or "dtype" in column or "values" in column or column.get("column") is None:
        return column
    dtypes = [table.columns[reference].dtype for reference in references]
    fill = column.get("fill")
    if any(dtype.kind in TEXT for dtype in dtypes):
        return column if name == "split" or "dates" in column else {"classes": True, "dtype": "int64"} | column
    if any(dtype.kind == "M" for dtype in dtypes):
        return column | {"dates": UNIX, "zone": zones[references[0]].name}
    dtype = np.result_type(*dtypes)
    are_numbers = name == "label" and dtype.kind == "f" and (fill is None or fill != fill)
    return {"dtype": _stored(dtype)} | column if are_numbers or name not in DEFAULT_DTYPES else column


def _stored(dtype: np.dtype) -> str:
    """Name the type in which numbers are stored: the same, or the next signed one."""
    if dtype.kind == "f":
        return "float64" if dtype.itemsize > 4 else "float32"
    size = dtype.itemsize * (2 if dtype.kind == "u" else 1)
    return f"int{8 * min(8, size)}"


def save_arrays(path: pathlib.Path, columns: Mapping[str, np.ndarray]) -> None:
    """Save arrays as an npz file; unlike in np.savez, any name will do, and the path stays."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(values), allow_pickle=False)
