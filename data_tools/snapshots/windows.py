"""Cuts the events of a temporal graph file into windows, each a snapshot.

E events, S windows, N nodes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, cast

import h5py
import numpy as np

from data_tools.graph.narrow import read_wide
from data_tools.snapshots.graph import SnapshotGraph
from data_tools.snapshots.parallel_edges import REDUCE, merge_parallel
from data_tools.source.edge_rows import both_directions
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError

TYPE, RELATION = "type", "rel"  # columns of nodes and of edges, where there are several of them
FEATURES = "feat"  # of nodes


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """How events become snapshots. Exactly one of:

    windows: their number, with nearly equally many events in each; events of one time stay together;
    events: the number in each window;
    length: of time, in the source's unit, from the first event on.

    stride: from one window's begin to the next, in events or time; 0: windows do not overlap. cumulative: every window
    begins with the first event. merge: parallel edges of a window are one, ``weight`` counts its events; reduce:
    reductions of further columns ("sum", "mean", "last").
    """

    windows: int = 0
    events: int = 0
    length: float = 0
    stride: float = 0
    cumulative: bool = False
    merge: bool = True
    reduce: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        chosen = [name for name in ("windows", "events", "length") if getattr(self, name)]
        if len(chosen) != 1 or min(self.windows, self.events, self.length) < 0:
            raise ValueError("windows: exactly one of --windows, --events and --length is needed, above 0")
        if self.stride and (self.windows or not 0 < self.stride <= (self.events or self.length)):
            raise ValueError(
                "--stride needs --events or --length and must be above 0 and at most that, so that no event is lost"
            )
        if self.events and self.stride != int(self.stride):
            raise ValueError(f"--stride counts events: {self.stride} is not an integer")
        for name, how in self.reduce.items():
            if how not in REDUCE or not self.merge:
                raise ValueError(f"--reduce {name}={how}: expected COLUMN={'|'.join(REDUCE)}, and merged edges")


@dataclass(slots=True)
class WindowEvents:
    """Events of all relations: src, dst [E] rows of all nodes numbered together, time [E] non-decreasing, columns [E,
    ...] and what their numbers stand for (attribute ``names``) by name."""

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    columns: dict[str, np.ndarray]
    attributes: dict[str, dict]


def read_windows(path: str | os.PathLike, options: WindowOptions, both: bool = False) -> SnapshotGraph:
    """Read a temporal graph file as a snapshot graph. Several node types are numbered one after the other, with a
    column ``type``; several relations have a column ``rel``. Ids, features and further columns of nodes stay. both:
    edges in both directions. Raises FileFormatError.
    """
    with files.reading(path, files.GRAPH, "write it anew with hpcgnn convert") as file:
        if file.attrs.get("kind") != "temporal":
            raise FileFormatError(f"{path}: kind is {file.attrs.get('kind')!r}, expected a temporal graph")
        events = _read_events(file)
        relation = file["edges"][files.relations(file)[0]]
        scale = float(relation.attrs.get("time_scale", relation["time"].attrs.get("time_scale", 1)))
        zone = str(relation.attrs.get("zone", ""))
        nodes = _read_nodes(file)
    if not len(events.time):
        raise FileFormatError(f"{path}: no events, so no windows")
    for name in options.reduce:
        if name not in events.columns or events.columns[name].dtype.kind not in "iufb":
            names = ", ".join(events.columns) or "none"
            raise FileFormatError(f"{path}: --reduce {name}: no such column of numbers; the events have {names}")
    begin, end = window_bounds(events.time, options, scale)
    first = np.searchsorted(end, np.arange(len(events.time)), side="right")
    last = np.searchsorted(begin, np.arange(len(events.time)), side="right") - 1
    graph = SnapshotGraph(
        nodes.count, len(begin), events.src, events.dst, first, last, events.columns, nodes.columns, id=nodes.id,
        attributes=nodes.attributes, notes=nodes.notes, clock=window_clock(int(events.time[0]), options, scale, zone),
        edge_attributes={name: held for name, held in events.attributes.items() if name not in options.reduce},
    )  # fmt: skip
    if both:
        row, flipped = both_directions(np.arange(len(graph.src)), graph.src, graph.dst)
        graph.src, graph.dst = (
            np.where(flipped, graph.dst[row], graph.src[row]),
            np.where(flipped, graph.src[row], graph.dst[row]),
        )
        graph.first, graph.last = first[row], last[row]
        graph.edges = {name: column[row] for name, column in graph.edges.items()}
    return merge_parallel(graph, options.reduce) if options.merge else graph


def window_clock(first: int, options: WindowOptions, scale: float, zone: str) -> dict[str, Any]:
    """Return the date at which the first window begins, the step between windows, both in seconds, and the zone: of
    windows of a length in time, where times come from dates. first: time of the first event."""
    start, step = first / scale, float(options.stride or options.length)
    is_dated = zone and options.length and not options.cumulative and start.is_integer() and step.is_integer()
    return {"first": int(start), "step": int(step), "zone": zone} if is_dated else {}


def window_bounds(time: np.ndarray, options: WindowOptions, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Find the first event, and the first after the last, of every window [S]; scale: stored time / time of the
    source."""
    total = len(time)
    if options.windows:
        cuts = np.arange(options.windows + 1) * total // options.windows
        cuts[1:-1] = np.searchsorted(time, time[cuts[1:-1]])  # equal times stay together
        begin, end = cuts[:-1], cuts[1:]
    else:
        size = options.events or options.length * scale
        stride = (options.stride * (1 if options.events else scale)) or size
        span = total if options.events else int(time[-1] - time[0]) + 1
        starts = np.arange(1 + max(0, int(np.ceil((span - size) / stride)))) * stride
        if options.events:
            begin, end = (np.minimum(edge, total).astype(np.int64) for edge in (starts, starts + size))
        else:
            begin, end = (np.searchsorted(time - time[0], edge) for edge in (starts, starts + size))
    return np.zeros_like(begin) if options.cumulative else begin, end


def _read_events(file: h5py.File) -> WindowEvents:
    """Read the events of all relations in order of time."""
    base, num_nodes, file = {}, 0, read_wide(file)
    for name in files.node_types(file):
        base[name] = num_nodes
        num_nodes += int(file["nodes"][name].attrs["num_nodes"])
    tables, layouts = [], []
    names = files.relations(file)
    for number, name in enumerate(names):
        group = file["edges"][name]
        src_type, _, dst_type = files.split_relation(name)
        fixed = {"src", "dst", "time"} | ({files.EVENT} if len(names) > 1 else set())
        columns = {key: group[key][:] for key in group if key not in fixed}
        attributes = {key: {"names": group[key].attrs["names"]} for key in columns if "names" in group[key].attrs}
        layouts.append({key: _layout_of(group[key]) for key in columns})
        if len(names) > 1:
            columns[RELATION], layouts[-1][RELATION] = np.full(len(group["src"]), number, np.int64), ()
            attributes[RELATION] = {"names": json.dumps(list(names))}
        ends = group["src"][:] + base[src_type], group["dst"][:] + base[dst_type]
        src, dst = (end.astype(np.int64) for end in ends)
        tables.append(WindowEvents(src, dst, group["time"][:], columns, attributes))
    common = [key for key, layout in layouts[0].items() if all(other.get(key) == layout for other in layouts)]
    time = np.concatenate([table.time for table in tables])
    order = np.argsort(time, kind="stable")
    src, dst = (np.concatenate([getattr(table, end) for table in tables])[order] for end in ("src", "dst"))
    columns = {key: np.concatenate([table.columns[key] for table in tables])[order] for key in common}
    attributes = {key: held for key, held in tables[0].attributes.items() if key in columns}
    return WindowEvents(src, dst, time[order], columns, attributes)


@dataclass(slots=True)
class _Nodes:
    """Nodes of all types, one type after the other: count; columns [count, ...] with their attributes, by name; id
    [count] or None; notes: what users should know of them."""

    count: int
    columns: dict[str, np.ndarray]
    attributes: dict[str, dict]
    id: np.ndarray | None
    notes: list[str] = field(default_factory=list)


def _read_nodes(file: h5py.File) -> _Nodes:
    """Read the nodes; with several types a column says which one a node is of."""
    file = read_wide(file)
    tables = {name: file["nodes"][name] for name in files.node_types(file)}
    counts = [int(table.attrs["num_nodes"]) for table in tables.values()]
    if len(tables) == 1:
        (table,) = tables.values()
        columns = {name: column[:] for name, column in table.items()}
        attributes = {name: dict(column.attrs) for name, column in table.items()}
        return _Nodes(counts[0], columns, attributes, columns.pop("id", None))
    ids, how = _join_ids(tables, counts)
    columns, attributes = {TYPE: np.repeat(np.arange(len(tables)), counts)}, {TYPE: {"names": json.dumps([*tables])}}
    notes, names = [f"ids are {how}"], dict.fromkeys(name for table in tables.values() for name in table)
    for name in names:
        if name == "id":
            continue
        having = {key: table[name] for key, table in tables.items() if name in table}
        if name == TYPE or len({_layout_of(column) for column in having.values()}) > 1:
            notes.append(f"column {name} is left out: it is not alike in all types of nodes")
            continue
        columns[name] = _join_column(name, [having.get(key) for key in tables], counts)
        attributes[name] = dict(next(iter(having.values())).attrs)
        if len(having) < len(tables):
            rest = "0" if name == FEATURES else "not known"
            notes.append(f"column {name} is of {', '.join(having)}, {rest} for other nodes")
    return _Nodes(sum(counts), columns, attributes, ids, notes)


def _layout_of(column: h5py.Dataset) -> tuple:
    """Describe the layout that columns must share to become one: width, type, names of classes."""
    kind = column.dtype if column.dtype.kind != "S" else "text"
    return column.shape[1:], kind, column.attrs.get("names")


def _join_ids(tables: dict[str, h5py.Group], counts: list[int]) -> tuple[np.ndarray, str]:
    """Join the original ids of all types, rows where a type has none; where two types share one, or are of other
    kinds, they are ``TYPE:id``. Returns how they are, too."""
    own = [table["id"][:] if "id" in table else None for table in tables.values()]
    known = [ids for ids in own if ids is not None]
    if len(known) == len(own) and len({ids.dtype.kind for ids in known}) == 1:
        joined = np.concatenate(known)
        if len(np.unique(joined)) == len(joined):
            return joined, "those of the source"
    pieces = []
    for name, ids, count in zip(tables, own, counts, strict=True):
        values = np.arange(count) if ids is None else ids
        text: Any = values if values.dtype.kind == "S" else np.char.encode(values.astype(str))
        pieces.append(np.char.add(f"{name}:".encode(), text))
    return np.concatenate(pieces), "TYPE:ID, with those of the source"


def _join_column(name: str, columns: list[h5py.Dataset | None], counts: list[int]) -> np.ndarray:
    """Join the columns of all types; nodes of a type without one have 0 as features, else NaN, empty text or -1."""
    like = next(column for column in columns if column is not None)
    dtype, fill = like.dtype, cast(Any, 0)
    if name != FEATURES and any(column is None for column in columns):
        fill = {"f": np.nan, "S": b""}.get(dtype.kind, -1)
        dtype = np.promote_types(dtype, np.int8) if dtype.kind in "iub" else dtype
    pieces = [
        np.full((count, *like.shape[1:]), fill, dtype) if column is None else column[:]
        for column, count in zip(columns, counts, strict=True)
    ]
    return np.concatenate(pieces)
