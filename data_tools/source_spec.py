"""The declarative description of a source: which columns of which files become nodes, edges, times and features.

A spec is a YAML file; the presets are just such files::

    kind: auto                    # auto: temporal when a relation has a time, else static; or snapshots
    files:
      events:                     # a name for the file; without `path` it is filled in by --set events=PATH
        path: events.csv.gz       # relative to the spec; .gz, and .zip with one member, are read as they are
        format: auto              # text, npz, npy, parquet; auto goes by the suffix
        delimiter: ","            # one character, or whitespace (any run of spaces and tabs)
        header: names             # names: the first line names the columns; skip: it is ignored; none: there is none
        columns: [u, i, ts]       # names by position, for header skip or none
        comment: "#%"             # lines that start with one of these characters are skipped
    nodes:                        # the order gives type_id
      - type: user
        ids: int                  # int, string; row: the ids are the row numbers 0 .. num_nodes-1 of the table
        count: 100                # ids: row without a table
        file: users               # a table of nodes, if there is one; it then says which nodes exist
        id: name                  # its id column (ids: int, string)
        others: error             # ids met only in edges: error, or add (the columns need a `fill`)
        columns: {feat: "1:", label: {column: kind, fill: -1}}
    edges:                        # the order gives relation_id; a reverse relation follows its own
      - relation: user.interacts.item
        file: events
        src: u
        dst: i
        time: ts
        time_scale: 1             # stored time = round(source * time_scale), refused when that is not exact
        sort: false               # sort by time (stable) instead of refusing an unsorted source
        duplicates: keep          # same (src, dst, time): keep, drop (the later), error
        self_loops: keep          # keep, drop, error
        undirected: false         # static: store each edge in both directions
        reverse: rated_by         # static: a further relation with the directions swapped
        columns: {label: 3, feat: "4:"}

A column is a name, a position (0, 1, ...), a range of positions ("4:", one matrix; dropped when it selects nothing)
or a list of names and positions. In npz and npy files it is an array with an optional index as in NumPy:
"edges[:,0]", "edge_index[1]", "array[1:]" ("array" is what an npy file holds). The long form of a column is a
mapping: `column`, or `sparse` (prefix of the arrays data, indices, indptr, shape, or data, row, col, shape, of a
sparse matrix), or `sets` (train, val, test: arrays of row numbers or masks, which give a split); `file` (row-aligned,
else that of the table); `dtype`; `fill` (stored for empty and NaN values); `values` (a mapping of the source's words
to integers). A split holds 0 train, 1 val, 2 test, -1 none.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from data_tools.schema import build, items, one_of
from hpcgnn.store.files import KINDS, relation_name, split_relation

PRESETS = pathlib.Path(__file__).parent / "presets"
SPLITS = {"train": 0, "val": 1, "test": 2}
DTYPES = ("int8", "int16", "int32", "int64", "float32", "float64")
DEFAULT_DTYPES = {"feat": "float32", "label": "int64", "weight": "float32", "split": "int8"}
RESERVED = {"id", "src", "dst", "time", "row"}
POLICIES = ("keep", "drop", "error")

Reference = int | str | list


@dataclass(frozen=True, slots=True)
class FileSpec:
    """One source file and how its text is laid out."""

    path: str | None = None
    format: str = "auto"
    delimiter: str = ","
    header: str = "names"
    columns: list[str] = field(default_factory=list)
    comment: str = ""

    def __post_init__(self):
        one_of("format", self.format, ("auto", "text", "npz", "npy", "parquet"))
        one_of("header", self.header, ("names", "skip", "none"))
        if self.delimiter != "whitespace" and len(self.delimiter) != 1:
            raise ValueError(f"delimiter: {self.delimiter!r} is neither one character nor 'whitespace'")
        if self.columns and self.header == "names":
            raise ValueError("columns: the header names the columns already; set header: skip (or none)")


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One stored column: where its values come from and their type."""

    column: Reference | None = None
    sparse: str | None = None
    sets: dict[str, Reference] = field(default_factory=dict)
    file: str | None = None
    dtype: str | None = None
    fill: float | None = None
    values: dict[str, int] = field(default_factory=dict)

    def __post_init__(self):
        if (self.column is not None) + (self.sparse is not None) + bool(self.sets) != 1:
            raise ValueError("exactly one of column, sparse and sets says where the values are")
        if self.dtype is not None:
            one_of("dtype", self.dtype, DTYPES)
        for name in self.sets:
            one_of("sets", name, tuple(SPLITS))


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node type: its id space and, if any, its table."""

    type: str
    ids: str = "int"
    count: int | None = None
    file: str | None = None
    id: Reference | None = None
    others: str = "error"
    columns: dict[str, ColumnSpec] = field(default_factory=dict)

    def __post_init__(self):
        one_of("ids", self.ids, ("int", "string", "row"))
        one_of("others", self.others, ("error", "add"))
        if self.ids == "row" and (self.id is not None or self.others == "add"):
            raise ValueError("ids: row numbers the rows itself; leave out id and others")
        if self.ids == "row" and self.count is None and not self.columns:
            raise ValueError("ids: row needs columns or a count, which say how many nodes there are")
        if self.ids != "row" and self.count is not None:
            raise ValueError("count: only with ids: row; otherwise the ids found are counted")
        if self.ids != "row" and self.columns and (self.id is None or self.file is None):
            raise ValueError("columns: a node table needs a file and an id column (or ids: row)")
        for name, column in self.columns.items():
            if column.file is None and self.file is None:
                raise ValueError(f"columns.{name}: no file, neither here nor for the node type")
            if column.sets and self.ids != "row":
                raise ValueError(f"columns.{name}: sets hold row numbers, which needs ids: row")


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """One relation and what is done to its rows."""

    relation: str
    file: str
    src: Reference
    dst: Reference
    time: Reference | None = None
    time_scale: float = 1
    sort: bool = False
    duplicates: str = "keep"
    self_loops: str = "keep"
    undirected: bool = False
    reverse: str | None = None
    columns: dict[str, ColumnSpec] = field(default_factory=dict)

    def __post_init__(self):
        source, _, destination = split_relation(self.relation)
        one_of("duplicates", self.duplicates, POLICIES)
        one_of("self_loops", self.self_loops, POLICIES)
        if not self.time_scale > 0:
            raise ValueError(f"time_scale: {self.time_scale} is not positive")
        if self.undirected and source != destination:
            raise ValueError(f"undirected: {source} and {destination} differ; use `reverse: <relation>`")
        if self.undirected and self.reverse:
            raise ValueError("undirected and reverse exclude each other")
        if self.time is not None and self.reverse:
            raise ValueError("reverse: an event with a time is in the history of both ends already")
        if any(column.sets for column in self.columns.values()):
            raise ValueError("sets: only for columns of nodes")

    @property
    def reverse_relation(self) -> str | None:
        """Full name of the reverse relation, if one is asked for."""
        source, _, destination = split_relation(self.relation)
        return relation_name(destination, self.reverse, source) if self.reverse else None


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A whole source: files, node types in order of type_id, relations in order of relation_id."""

    files: dict[str, FileSpec]
    nodes: list[NodeSpec]
    edges: list[EdgeSpec]
    kind: str = "auto"

    def __post_init__(self):
        one_of("kind", self.kind, ("auto", *KINDS))
        types = [node.type for node in self.nodes]
        names = [name for edge in self.edges for name in (edge.relation, edge.reverse_relation) if name]
        for what, values in (("nodes", types), ("edges", names)):
            if not values:
                raise ValueError(f"{what}: at least one is needed")
            if len(set(values)) < len(values):
                raise ValueError(f"{what}: a name is used twice in {values}")
        for edge in self.edges:
            for end in split_relation(edge.relation)[::2]:
                one_of(f"edges: {edge.relation}: node type", end, tuple(types))
        for name in self.used_files():
            one_of("file", name, tuple(self.files))
        self._check_times()

    def _check_times(self) -> None:
        timed = {edge.time is not None for edge in self.edges}
        if len(timed) > 1:
            raise ValueError("edges: either every relation has a time or none has")
        if self.kind in KINDS and (self.kind != "static") != timed.pop():
            raise ValueError(
                f"kind: {self.kind}, but the relations {'have no' if self.kind != 'static' else 'have a'} time"
            )
        if self.graph_kind == "temporal" and any(edge.undirected for edge in self.edges):
            raise ValueError("undirected: an event with a time is in the history of both ends already; leave it out")

    @property
    def graph_kind(self) -> str:
        """The kind of the graph file: as declared, else temporal when there are times."""
        if self.kind != "auto":
            return self.kind
        return "static" if self.edges[0].time is None else "temporal"

    def used_files(self) -> list[str]:
        """Names of the files that columns are read from, each once, in order of use."""
        tables = [*self.nodes, *self.edges]
        names = [file for table in tables for file in (table.file, *(c.file for c in table.columns.values()))]
        return list(dict.fromkeys(name for name in names if name is not None))


def preset_names() -> list[str]:
    """Names of the presets that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_spec(path: pathlib.Path, assigned: Mapping[str, str], sort: bool = False) -> SourceSpec:
    """Read a spec file, fill in the files of ``--set`` and check everything.

    Paths in the spec are relative to its folder, those of ``assigned`` to the working directory. ``sort`` turns
    sorting on for every relation that has a time. Raises ValueError naming the spec, the place and the allowed
    values.
    """
    try:
        data = yaml.safe_load(path.read_text())
        spec = build_spec(data, path.parent, assigned)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    edges = [dataclasses.replace(edge, sort=edge.sort or sort) for edge in spec.edges]
    return dataclasses.replace(spec, edges=edges)


def build_spec(data: Any, folder: pathlib.Path, assigned: Mapping[str, str]) -> SourceSpec:
    """A checked spec from the decoded YAML."""
    items("spec", data)
    files = {name: build(FileSpec, value or {}, f"files.{name}") for name, value in items("files", data.get("files"))}
    for name in assigned:
        one_of("--set", name, tuple(files))
    nodes = build_tables(NodeSpec, "nodes", data.get("nodes"))
    edges = build_tables(EdgeSpec, "edges", data.get("edges"))
    spec = build(SourceSpec, {**data, "files": files, "nodes": nodes, "edges": edges}, "")
    return dataclasses.replace(spec, files=place_files(spec, folder, assigned))


def build_tables(kind: type, what: str, data: Any) -> list:
    """The node types or relations, with their columns in the long form."""
    if not isinstance(data, list):
        raise ValueError(f"{what}: expected a list, got {type(data).__name__}")
    tables = []
    for i, table in enumerate(data):
        where = f"{what}[{i}]"
        items(where, table)
        columns = table.get("columns") or {}
        table = {**table, "columns": {name: build_column(where, name, value) for name, value in items(where, columns)}}
        tables.append(build(kind, table, where))
    return tables


def build_column(where: str, name: str, value: Any) -> ColumnSpec:
    """One column from its short form (a reference) or its long form (a mapping), with the default dtype of its name."""
    where = f"{where}.columns.{name}"
    if name in RESERVED or "/" in name:
        raise ValueError(f"{where}: the name {name!r} is taken or not allowed")
    column = build(ColumnSpec, value if isinstance(value, Mapping) else {"column": value}, where)
    dtype = column.dtype or DEFAULT_DTYPES.get(name)
    if dtype is None:
        raise ValueError(f"{where}: key 'dtype' is missing; only {', '.join(DEFAULT_DTYPES)} have a default")
    return dataclasses.replace(column, dtype=dtype)


def place_files(spec: SourceSpec, folder: pathlib.Path, assigned: Mapping[str, str]) -> dict[str, FileSpec]:
    """The files with their final paths; one that is used but has none is refused."""
    placed = {}
    for name, file in spec.files.items():
        path = assigned.get(name) or (str(folder / file.path) if file.path else None)
        if path is None and name in spec.used_files():
            raise ValueError(f"files.{name} has no path; pass --set {name}=PATH")
        placed[name] = dataclasses.replace(file, path=path)
    return placed
