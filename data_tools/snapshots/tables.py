"""Makes a snapshot graph of ordinary tables: edges, series of values of the nodes, and properties of the nodes.

A series is a long table, with a row per node and time, or a wide one, with a row per time and a column per node. Edges
are in all snapshots, or have times. N nodes, S snapshots, R rows of a table.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.snapshots.graph import SnapshotGraph
from data_tools.snapshots.speeds import SPEED, TARGET, Missing, read_weight
from data_tools.snapshots.table_source import (
    NamedTable,
    NodeNames,
    Parser,
    SnapshotClock,
    Times,
    parse_words,
    sort_words,
)
from data_tools.source.formats.text_stream import UTF8
from data_tools.source.formats.values import Raw, Reference, is_number, single, to_arrow, to_text
from hpcgnn.graph.files import FileFormatError

FEATURES, LABEL, WEIGHT, TIME = "feat", "label", "weight", "time"
FORWARD = "forward"
UNKNOWN_CLASS = "-1"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Which columns of the tables are what.

    time, node, src, dst, weight: names of columns; where they are empty, ``time`` and ``weight`` if there are such
    columns, and for the time of a wide table its first column. target, label: a column of values; feat: columns of
    features. fill: by feature, or "" for all others, what takes the place of missing values: ``forward`` (the node's
    last value), a number, or both. missing: texts for a missing value. dates, zone: form of times that are dates. step:
    time between two snapshots (0: one for every time of the table). scaled: the target is divided by its largest value.
    delimiter, encoding: of text; an empty delimiter is found in the first line of each table.
    """

    time: str = ""
    node: str = "node"
    src: str = "src"
    dst: str = "dst"
    weight: str = ""
    target: str = ""
    label: str = ""
    feat: Sequence[str] = ()
    fill: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    dates: str = ""
    zone: str = "UTC"
    step: int = 0
    scaled: bool = True
    delimiter: str = ""
    encoding: str = UTF8

    def __post_init__(self):
        if self.label and self.label in (self.target, *self.feat):
            raise ValueError(f"--label {self.label}: the column is a target or feature, too")
        for name, text in self.fill.items():
            if name and name not in self.feat:
                why = "a missing target is left out of loss and metrics" if name == self.target else "no such feature"
                raise ValueError(f"--fill {name}={text}: {why}; features are {', '.join(self.feat) or 'none'}")
            if not all(item == FORWARD or (is_number(item) and np.isfinite(float(item))) for item in text.split(",")):
                raise ValueError(f"--fill {name}={text}: expected {FORWARD}, a number, or {FORWARD},NUMBER")


class TableReader:
    """Reads tables as the options say."""

    def __init__(self, options: TableOptions):
        self.options, self._missing = options, Missing(tuple(options.missing))
        self.times = Times(options.dates, options.zone)

    def read_edges(self, source: NamedTable) -> dict[str, np.ndarray]:
        """Read src, dst and, where there are such columns, time and weight."""
        options = self.options
        fields: dict[str, tuple[Reference, Parser]] = {
            "src": (options.src, parse_words), "dst": (options.dst, parse_words)
        }  # fmt: skip
        if (options.time or TIME) in source.names:
            fields[TIME] = (options.time or TIME, self.times)
        if options.weight or WEIGHT in source.names:
            fields[WEIGHT] = (options.weight or WEIGHT, read_weight)
        return source.read(fields)

    def read_series(self, source: NamedTable) -> tuple[dict[str, np.ndarray], str]:
        """Read node, time and columns of values [R], of a wide table as of a long one; returns the target's name,
        too."""
        options, names = self.options, source.names
        if options.node not in names:
            return self._read_wide(source), TARGET
        time, values = options.time or TIME, self._values(source)
        target = options.target
        rest = [name for name in names if name not in ("", options.node, time)]
        if not (values or target):
            if len(rest) == 1:
                target, values = rest[0], {rest[0]: (rest[0], self._numbers)}
            elif not (options.feat or options.label):
                raise FileFormatError(
                    f"{source.name}: columns of values are {', '.join(rest) or 'none'}; choose by --target, --feat "
                    "and --label"
                )
        fields: dict[str, tuple[Reference, Parser]] = {
            "node": (options.node, parse_words), TIME: (time, self.times)
        }  # fmt: skip
        return source.read(fields | values), target

    def _read_wide(self, source: NamedTable) -> dict[str, np.ndarray]:
        """Read a table with a row per time and a column per node as a long one."""
        options, names = self.options, source.names
        place = names.index(options.time or TIME) if (options.time or TIME) in names else 0
        if options.target or (options.time and options.time not in names):
            raise FileFormatError(
                f"{source.name}: columns {', '.join(names[:5])}: without a column {options.node!r} (--node), it "
                "is a table of nodes by times, whose values are the target; leave out --target, and name the "
                "column of times by --time"
            )
        columns = [*names[:place], *names[place + 1 :]]
        if "" in columns or len(set(columns)) < len(columns) or not columns:
            raise FileFormatError(f"{source.name}: every column but {names[place]!r} is a node and needs a name")
        numbers: list[Reference] = [position for position in range(len(names)) if position != place]
        found = source.read({TIME: (place, self.times), TARGET: (numbers, self._missing.read)})
        count = len(found[TIME])
        node = np.repeat(np.array(columns, object), count)
        return {"node": node, TIME: np.tile(found[TIME], len(columns)), TARGET: found[TARGET].T.ravel()}

    def read_nodes(self, source: NamedTable) -> dict[str, np.ndarray]:
        """Read the ids of nodes, and their columns of values [R]."""
        name = next((name for name in (self.options.node, "id") if name in source.names), self.options.node)
        return source.read({"node": (name, parse_words), **self._values(source)})

    def _values(self, source: NamedTable) -> dict[str, tuple[Reference, Parser]]:
        """List the columns of a table that the options name, with their parsers."""
        options = self.options
        parsers: dict[str, Parser] = dict.fromkeys((options.target, *options.feat), self._numbers)
        parsers |= {options.label: self._words}
        return {name: (name, parse) for name, parse in parsers.items() if name and name in source.names}

    def _numbers(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        return self._missing.read(raw, file, first_row)[:, 0]

    def _words(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """Give the words of classes [n], empty where not known."""
        part, place = single(raw, file, first_row)
        column = to_arrow(part)
        if pa.types.is_floating(column.type):  # as pandas has integers beside missing ones
            column = pc.if_else(pc.is_nan(column), None, column)
            column = column.cast(pa.int64()) if not (np.modf(column.drop_null())[0]).any() else column
        words = pc.utf8_trim_whitespace(pc.fill_null(to_text(column, place), ""))
        unknown = pc.is_in(words, pa.array(self._missing.texts, pa.string()))
        return np.array(pc.if_else(unknown, "", words).to_pylist(), object)


def read_tables(
    edges: pathlib.Path, series: pathlib.Path | None, nodes: pathlib.Path | None, options: TableOptions
) -> SnapshotGraph:
    """Make a graph of a table of edges, a series of values and a table of nodes. The nodes are the ones of the table of
    nodes, else of the series, else of the edges. Raises FileFormatError."""
    tables = TableReader(options)
    sources = {
        name: NamedTable(path, options.delimiter, options.encoding)
        for name, path in (("edges", edges), ("series", series), ("nodes", nodes))
        if path
    }
    links = tables.read_edges(sources["edges"])
    measured, target = tables.read_series(sources["series"]) if series else ({}, options.target)
    people = tables.read_nodes(sources["nodes"]) if nodes else {}
    if both := [name for name in people if name in measured and name != "node"]:
        titles = " and ".join(sources[name].name for name in ("series", "nodes"))
        raise FileFormatError(f"{titles} both have the column {both[0]!r}: rename it in one of them")
    words = next((table["node"] for table in (people, measured) if table), np.r_[links["src"], links["dst"]])
    space = NodeNames(words, str((nodes or series or edges).name))
    times = measured.get(TIME, links.get(TIME))
    if times is None:
        raise FileFormatError(
            f"{edges.name}: neither times of edges ({options.time or TIME}) nor --series: all would be one snapshot; "
            "hpcgnn convert makes a static graph"
        )
    clock = SnapshotClock(times, (series or edges).name, options.step, tables.times.show)
    src, dst = (space.rows(links[end], getattr(options, end), edges.name) for end in ("src", "dst"))
    first, last = np.zeros(len(src), np.int64), None
    if TIME in links:
        first = clock.number(links[TIME], options.time or TIME, edges.name)
    else:
        last = first + clock.count - 1
    weights = {WEIGHT: links[WEIGHT]} if WEIGHT in links else {}
    zones = tables.times.zones
    graph = SnapshotGraph(
        len(space.ids), clock.count, src, dst, first, last, weights, id=space.ids,
        clock=clock.facts(zones.common), notes=[*clock.notes(), *zones.notes("times")],
    )  # fmt: skip
    values = {
        **(place_values(people, space, None, options, sources["nodes"].name) if people else {}),
        **(place_values(measured, space, clock, options, sources["series"].name) if measured else {}),
    }
    store_target(graph, values, target, options.scaled)
    store_label(graph, values, options.label)
    store_features(graph, values, options, space.words, clock)
    unread = {source.name: source.unread() for source in sources.values()}
    graph.notes += [f"{name}: columns that are not read: {', '.join(rest)}" for name, rest in unread.items() if rest]
    return graph


def place_values(
    found: dict[str, np.ndarray], space: NodeNames, clock: SnapshotClock | None, options: TableOptions, name: str
) -> dict[str, np.ndarray]:
    """Put the values of rows [R] to their nodes and snapshots: [N, S]; without a clock [N]. NaN, or an empty word,
    where there is no row. Raises FileFormatError for two rows of one place."""
    places, shape = space.rows(found["node"], options.node, name), [len(space.ids)]
    if clock is not None:
        places = places * clock.count + clock.number(found[TIME], options.time or TIME, name)
        shape.append(clock.count)
    refuse_second(places, name, "node and time" if clock else "node")
    columns = {}
    for key, column in found.items():
        if key not in ("node", TIME):
            columns[key] = np.full(np.prod(shape), "" if column.dtype == object else np.nan, column.dtype)
            columns[key][places] = column
            columns[key] = columns[key].reshape(shape)
    return columns


def refuse_second(places: np.ndarray, name: str, what: str) -> None:
    """Raise FileFormatError for the first row whose place is the one of an earlier row."""
    order = np.argsort(places, kind="stable")
    again = order[1:][places[order[1:]] == places[order[:-1]]]
    if len(again):
        row = int(again.min())
        first = int(np.argmax(places == places[row]))
        raise FileFormatError(f"{name}: row {row + 1}: the same {what} as row {first + 1}; keep one of them")


def store(graph: SnapshotGraph, name: str, values: np.ndarray, is_series: bool) -> None:
    """Add a column of nodes, with values of every snapshot or not."""
    (graph.series if is_series else graph.nodes)[name] = values


def find_values(values: dict[str, np.ndarray], option: str, name: str) -> np.ndarray:
    """Find the column that an option names. Raises FileFormatError."""
    if name not in values:
        raise FileFormatError(f"--{option} {name}: no such column in the series and the table of nodes")
    return values[name]


def store_target(graph: SnapshotGraph, values: dict[str, np.ndarray], name: str, scaled: bool) -> None:
    """Add the target, divided by its largest value if ``scaled``, and count missing numbers."""
    if not name:
        return
    target = find_values(values, "target", name)
    missing = int(np.isnan(target).sum())
    if missing == target.size:
        raise FileFormatError(f"target {name}: no value is known")
    scale = float(np.nanmax(np.abs(target))) if scaled else 1.0
    scale = scale if scale > 0 else 1.0
    store(graph, TARGET, target / SPEED.type(scale), target.ndim > 1)
    graph.attributes[TARGET] = {"scale": scale}
    graph.notes += [f"{missing:,} of {target.size:,} targets are missing"] if missing else []


def store_label(graph: SnapshotGraph, values: dict[str, np.ndarray], name: str) -> None:
    """Add classes 0, 1, ... with their words, -1 where they are missing, which are counted."""
    if not name:
        return
    words = find_values(values, "label", name)
    absent = words == UNKNOWN_CLASS
    others = set(words[~absent]) - {""}
    if absent.any() and others and all(map(is_integer, others)):
        classes = ", ".join(sort_words(np.array(list(others), object))[0][:5])
        raise FileFormatError(
            f"label {name}: {np.count_nonzero(absent):,} of {words.size:,} are {UNKNOWN_CLASS}, beside classes "
            f"{classes}: pass --missing {UNKNOWN_CLASS} if it is a missing class, or else give the classes other names"
        )
    words = np.where(absent, "", words)
    known = words != ""
    if not known.any():
        raise FileFormatError(f"label {name}: no class is known")
    names, _ = sort_words(words[known])
    number = {word: place for place, word in enumerate(names)} | {"": -1}
    store(graph, LABEL, np.vectorize(number.__getitem__, otypes=[np.int64])(words), words.ndim > 1)
    graph.attributes[LABEL] = {"names": json.dumps(names)}
    missing = int(np.count_nonzero(~known))
    graph.notes += [f"{missing:,} of {words.size:,} labels are missing"] if missing else []


def is_integer(word: str) -> bool:
    """Whether a word is an integer."""
    return word.removeprefix("-").isdecimal()


def store_features(
    graph: SnapshotGraph, values: dict[str, np.ndarray], options: TableOptions, words: list[str], clock: SnapshotClock
) -> None:
    """Add the features, all of them of every snapshot if one is. Raises FileFormatError where a value is missing and no
    fill is declared for it."""
    columns = [find_values(values, "feat", name) for name in options.feat]
    is_series = any(column.ndim > 1 for column in columns)
    filled = []
    for name, column in zip(options.feat, columns, strict=True):
        how = options.fill.get(name, options.fill.get("", ""))
        full = fill_in(column, how)
        if np.isnan(full).any():
            node, *number = np.argwhere(np.isnan(full))[0]
            at = f" at {clock.show(number[0])}" if number else ""
            raise FileFormatError(
                f"feature {name}: {int(np.isnan(full).sum()):,} values are missing, such as of {words[node]}{at}; "
                f"declare --fill {name}={FORWARD} (the node's last value), --fill {name}=0 (a number), or "
                f"--fill {name}={FORWARD},0"
            )
        missing = int(np.isnan(column).sum())
        graph.notes += [f"{missing:,} of {column.size:,} values of {name} filled in ({how})"] if missing else []
        filled.append(full[:, None] if is_series and full.ndim == 1 else full)
    if filled:
        store(graph, FEATURES, np.stack(np.broadcast_arrays(*filled), axis=-1), is_series)


def fill_in(values: np.ndarray, how: str) -> np.ndarray:
    """Replace NaN among values [N, S] or [N] by each step of ``how`` in turn: ``forward``, a number, or nothing."""
    for step in filter(None, how.split(",")):
        if step != FORWARD:
            values = np.where(np.isnan(values), SPEED.type(step), values)
        elif values.ndim > 1:
            latest = np.where(np.isnan(values), 0, np.arange(values.shape[1]))
            values = np.take_along_axis(values, np.maximum.accumulate(latest, axis=1), axis=1)
    return values
