"""The declarative description of a source: which columns of which files become nodes, edges, times and features.

A spec is a YAML file; the presets are just such files::

    kind: auto                    # auto: temporal when a relation has a time, else static
    settings: {fold: 0}           # $fold anywhere below is this value, or that of --set fold=3; null: must be given
    files:
      events:                     # a name for the file; without `path` it is filled in by --set events=PATH
        path: events.csv.gz       # relative to the spec; .gz, .bz2, .xz, .zst, and .zip with one member, are read as
                                  # they are; a folder: its Parquet files, with the keys of year=2024/ as columns
        chunks: [e-*.csv.gz]      # instead of path: files, or patterns of such, whose rows follow each other
        rows: [1000, 900]         # how many rows the chunks must have, one number each, or one for all together
        archive: data             # instead of path: a file of this list that is a folder, a .tar(.gz) or a .zip, and
        member: raw/edge.csv.gz   # the end of the path in it
        format: auto              # see below; auto goes by the suffix
        delimiter: ","            # one character, or whitespace (any run of spaces and tabs)
        header: names             # names: the first line names the columns; skip: it is ignored; none: there is none
        columns: [u, i, ts]       # names by position, for header skip or none
        comment: "#%"             # lines that start with one of these characters are skipped
        quote: '"'                # none: quotes are part of values, as by default with tabs; not with whitespace
        encoding: latin-1         # of text that is not UTF-8
        dtype: float32            # of the numbers of a file of format raw, and how many of them a row has; 0: the rows
        width: 1024               # are single numbers
        source: https://host/e.gz # where the content comes from, as the graph file and predictions keep it
    nodes:                        # the order gives type_id
      - type: user
        ids: int                  # int, string; row: the ids are the row numbers 0 .. num_nodes-1 of the table
        count: 100                # ids: row without a table; or {file, column} of the one number in a file
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
        dates: iso                # times are dates: iso, a format of strptime, or unix_ms; timestamps need none
        time_scale: 1             # stored time = round(source * time_scale), refused when that is not exact
        sort: false               # sort by time (stable) instead of refusing an unsorted source
        duplicates: keep          # same (src, dst, time, rel): keep, drop (the later), error, sum (their weights)
        self_loops: keep          # keep, drop, error
        dangling: error           # an end that has no row in its table of nodes: error, drop (the edge), or keep (the
                                  # node is added, as with others: add); not given: as `others` says
        missing_ids: error        # a row without an id (empty, null, NaN): error, drop; of tables of nodes, too
        undirected: false         # static: store each edge in both directions (duplicates: drop, where both are there)
        reverse: rated_by         # static: a further relation with the directions swapped
        columns: {label: 3, feat: "4:"}
        types: predicate          # a column whose every value makes a relation of its own, named by the last part of
        left_out: [employs]       # the value, in place of * in `relation: entity.*.entity` and `reverse: "*_of"`;
                                  # rows with these values make no edges

The `file` of a table of nodes with an id, and of edges, may be a mapping {train: a, val: b, test: c} of files of one
layout. Their rows follow each other, and a column `split` has the set that they come from.

Formats are the rows of FORMATS in data_tools/source/formats/tables.py, which the help of hpcgnn convert lists. A
blank node of triples belongs to its file.

A column is a name, a position (0, 1, ...), a range of positions ("4:", one matrix; dropped when it selects nothing) or
a list of names and positions. In npz, npy and mat files it is an array with an optional index as in NumPy:
"edges[:,0]", "edge_index[1]", "array[1:]" ("array" is the content of an npy file), or a list of such arrays. The long
form of a column is a mapping with one of `column`, `sparse` and `sets`, and further keys:

- `column`: the short form of the column.
- `sparse`: prefix of the arrays data, indices, indptr, shape, or data, row, col, shape, of a sparse matrix.
- `sets` (train, val, test): arrays of row numbers or masks, which give a split. Or {file, column}: row numbers in a
  separate file, or, with `mask: true`, a mask there. Edges have masks only.
- `file`: the file with the column, row-aligned. Default: the file of the table.
- `dtype`: the type of the stored values.
- `fill`: stored for empty and NaN values. .nan, in a column of floats to be learned: not known; neither loss nor
  metrics count it. Default in `label`: -1 for classes, .nan for numbers, with which integers become floats.
- `values`: a mapping of the source's words to integers.
- `classes: true`: the words are numbered in their order, and stored as attribute `names` of the column.
- `dates`, `zone`: the column has dates, as the times of edges do, or seconds since 1970; stored as seconds.

A split holds 0 train, 1 val, 2 test, -1 none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from data_tools.source.file_spec import ColumnSpec, FileColumn, FileSpec, TableFile
from data_tools.source.formats.dates import Dates
from data_tools.source.formats.tables import FORMATS
from data_tools.source.formats.text_stream import TextSource
from data_tools.source.formats.values import Reference
from data_tools.source.schema import one_of
from hpcgnn.graph.files import relation_name, split_relation
from hpcgnn.graph.splits import SPLITS

KINDS = ("temporal", "static")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node type: its id space and, if any, its table.

    Attributes:
        type: Name of the node type.
        ids: Form of the ids. int, string: as columns hold them; row: the ids are the row numbers 0 .. num_nodes-1.
        count: Number of nodes, with `ids: row` and no table: a number, or {file, column} of the one number in a file.
        file: Table of nodes, by its name in `files`; it decides which nodes exist. {train, val, test}: three files.
        id: Column of the ids in the table.
        others: Ids that only edges name. error: refuse them; add: make nodes of them (columns then need a `fill`).
        missing_ids: Rows without an id: empty, null or NaN. error: refuse them; drop: leave them out.
        columns: Columns to store, by the name that the graph file gives them.
    """

    type: str
    ids: Literal["int", "string", "row"] = "int"
    count: int | FileColumn | None = None
    file: TableFile | None = None
    id: Reference | None = None
    others: Literal["error", "add"] = "error"
    missing_ids: Literal["error", "drop"] = "error"
    columns: dict[str, ColumnSpec] = field(default_factory=dict)

    def __post_init__(self):
        if self.ids == "row" and (self.id is not None or self.others == "add"):
            raise ValueError("ids: row numbers the rows itself; leave out id and others")
        if self.ids == "row" and self.count is None and not self.columns:
            raise ValueError("ids: row needs columns or a count, which say how many nodes there are")
        if self.ids != "row" and self.count is not None:
            raise ValueError("count: only with ids: row; otherwise the ids found are counted")
        if self.ids != "row" and self.columns and (self.id is None or self.file is None):
            raise ValueError("columns: a node table needs a file and an id column (or ids: row)")
        if self.ids == "row" and isinstance(self.file, dict):
            raise ValueError("file: several files of nodes need an id column; with ids: row give each column its file")
        check_table_file(self.file, self.columns)
        for name, column in self.columns.items():
            if column.file is None and self.file is None:
                raise ValueError(f"columns.{name}: no file, neither here nor for the node type")
            if column.sets and self.ids != "row":
                raise ValueError(f"columns.{name}: sets hold row numbers, which needs ids: row")


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """One relation, and the treatment of its rows.

    Attributes:
        relation: Name of the relation, SOURCE.NAME.DESTINATION, such as user.buys.item.
        file: Table of edges, by its name in `files`. {train, val, test}: three files, which give a split.
        src: Column of the source nodes.
        dst: Column of the destination nodes.
        time: Column of the times; a graph has times for all relations or for none.
        time_scale: Factor from the source's times to the stored integers; a product that is no integer is refused.
        dates: Form of times that are dates: iso (ISO 8601), a format of strptime such as %d.%m.%Y %H:%M, or, of numbers
            since 1970, unix (seconds), unix_ms, unix_us or unix_ns. Stored are seconds since 1970 times time_scale.
            Columns of the type timestamp or date need no form.
        zone: Time zone of dates that name none, such as Europe/Berlin, and of dates in answers. For numbers since 1970,
            only of answers.
        sort: Sort by time (stable) instead of refusing an unsorted source.
        duplicates: Edges with the same source, destination, time and column `rel`. drop: keep the first one; sum: keep
          it, with the sum of their weights.
        self_loops: Edges from a node to itself.
        dangling: Edges with an end that the table of nodes lacks. error: refuse; drop: leave the edge out; keep: add
          the node. Default: the setting `others` of the node type.
        missing_ids: Rows without an id at one end: empty, null or NaN. error: refuse them; drop: leave them out.
        undirected: Store each edge in both directions (static graphs).
        reverse: Name of a further relation with the directions swapped (static graphs).
        columns: Columns to store, by the name that the graph file gives them.
        types: Column whose every value makes a relation; its name takes the place of * in `relation` and `reverse`.
        left_out: Values of `types` whose rows make no edges.
    """

    relation: str
    file: TableFile
    src: Reference
    dst: Reference
    time: Reference | None = None
    time_scale: float = 1
    dates: str = ""
    zone: str = "UTC"
    sort: bool = False
    duplicates: Literal["keep", "drop", "error", "sum"] = "keep"
    self_loops: Literal["keep", "drop", "error"] = "keep"
    dangling: Literal[None, "keep", "drop", "error"] = None
    missing_ids: Literal["error", "drop"] = "error"
    undirected: bool = False
    reverse: str | None = None
    columns: dict[str, ColumnSpec] = field(default_factory=dict)
    types: Reference | None = None
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self):
        source, _, destination = split_relation(self.relation)
        Dates(self.dates, self.zone)
        if not self.time_scale > 0:
            raise ValueError(f"time_scale: {self.time_scale} is not positive")
        if self.undirected and source != destination:
            raise ValueError(f"undirected: {source} and {destination} differ; use `reverse: <relation>`")
        if self.undirected and self.reverse:
            raise ValueError("undirected and reverse exclude each other")
        if self.time is not None and self.reverse:
            raise ValueError("reverse: an event with a time is in the history of both ends already")
        weight = self.columns.get("weight")
        if self.duplicates == "sum" and (weight is None or weight.dtype not in ("float32", "float64")):
            raise ValueError("duplicates: sum: adds up the column weight, which must be there with a dtype of floats")
        sets = [item for column in self.columns.values() for item in column.sets.values()]
        if not all(isinstance(item, FileColumn) and item.mask for item in sets):
            raise ValueError("sets: of edges only with masks, {file, column, mask: true}")
        check_table_file(self.file, self.columns)
        names = [self.relation, *([self.reverse] if self.reverse else [])]
        if any(("*" in name) != (self.types is not None) for name in names):
            raise ValueError("types: goes together with a * in relation and reverse, which its values replace")
        if self.left_out and self.types is None:
            raise ValueError("left_out: holds values of the column `types`, which is missing")
        if self.types is not None and (self.time is not None or "error" in (self.duplicates, self.self_loops)):
            raise ValueError("types: not with a time, duplicates: error or self_loops: error")

    @property
    def reverse_relation(self) -> str | None:
        """Full name of the reverse relation, if there is one."""
        source, _, destination = split_relation(self.relation)
        return relation_name(destination, self.reverse, source) if self.reverse else None


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A whole source: files, node types in order of type_id, relations in order of relation_id.

    Attributes:
        files: Source files by a name of your choice; one without a path gets it from --set NAME=PATH.
        nodes: Node types, in order of type_id.
        edges: Relations, in order of relation_id; a reverse relation follows the one that it reverses.
        kind: Kind of graph. auto: temporal when a relation has a time, else static.
    """

    files: dict[str, FileSpec]
    nodes: list[NodeSpec]
    edges: list[EdgeSpec]
    kind: str = "auto"

    def __post_init__(self):
        if self.kind == "snapshots":
            raise ValueError(
                "kind: snapshots: hpcgnn snapshots makes such graphs, of tables (format tables) and of events (windows)"
            )
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
        timed = {edge.time is not None for edge in self.edges}
        if len(timed) > 1:
            raise ValueError("edges: either every relation has a time or none has")
        if self.kind in KINDS and (self.kind == "temporal") != timed.pop():
            raise ValueError(
                f"kind: {self.kind}, but the relations {'have a' if self.kind == 'static' else 'have no'} time"
            )
        if self.graph_kind == "temporal" and any(edge.undirected for edge in self.edges):
            raise ValueError("undirected: an event with a time is in the history of both ends already; leave it out")
        for node in self.nodes:
            policies = self._dangling(node.type) | ({"keep"} if node.others == "add" else set())
            if "keep" in policies and (len(policies) > 1 or node.ids == "row"):
                why = "its ids are row numbers" if node.ids == "row" else f"others say {sorted(policies - {'keep'})}"
                raise ValueError(f"nodes: {node.type}: dangling: keep (or others: add) cannot be, as {why}")

    def adds_nodes(self, node: NodeSpec) -> bool:
        """Say whether ids that only edges name become nodes of a type."""
        return node.others == "add" or "keep" in self._dangling(node.type)

    def _dangling(self, node_type: str) -> set[str]:
        return {e.dangling for e in self.edges if e.dangling and node_type in split_relation(e.relation)[::2]}

    @property
    def graph_kind(self) -> str:
        """The kind of the graph file: as declared, else temporal when there are times."""
        if self.kind != "auto":
            return self.kind
        return "static" if self.edges[0].time is None else "temporal"

    def triples_files(self) -> dict[TextSource, int]:
        """Number the files that have blank nodes, from 1: such a node belongs to its file."""
        pieces = [piece for name in self.used_files() for piece in self.files[name].pieces()]
        sources = dict.fromkeys(piece.text for piece in pieces if FORMATS[piece.kind].has_blank_nodes)
        return {source: number for number, source in enumerate(sources, 1)}

    def used_files(self) -> list[str]:
        """List the names of the files that columns are read from, each once, in order of use."""
        names: list[str | None] = []
        tables: list[NodeSpec | EdgeSpec] = [*self.nodes, *self.edges]
        for table in tables:
            names += table_files(table.file)
            if isinstance(table, NodeSpec) and isinstance(table.count, FileColumn):
                names.append(table.count.file)
            for column in table.columns.values():
                names += [column.file, *(item.file for item in column.sets.values() if isinstance(item, FileColumn))]
        return list(dict.fromkeys(name for name in names if name is not None))


DATACLASSES = (SourceSpec, FileSpec, NodeSpec, EdgeSpec, ColumnSpec, FileColumn)


def table_files(file: TableFile | None) -> list[str]:
    """List the names of the files of a table, in order of its rows."""
    return list(file.values()) if isinstance(file, dict) else [file] if file is not None else []


def check_table_file(file: TableFile | None, columns: dict[str, ColumnSpec]) -> None:
    """Raise ValueError for a mapping of files whose keys are not splits, or that other settings contradict."""
    if not isinstance(file, dict):
        return
    for name in file:
        one_of("file", name, SPLITS)
    if "split" in columns:
        raise ValueError("columns.split: comes from the mapping of files already")
    for name, column in columns.items():
        if column.file is not None:
            raise ValueError(f"columns.{name}: a file of its own does not go with several files of the table")
