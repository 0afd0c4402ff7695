"""Cuts the events of a temporal graph file into windows, each a snapshot.

E events, S windows, N nodes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import h5py
import numpy as np

from data_tools.snapshots.graph import SnapshotGraph
from data_tools.snapshots.parallel_edges import REDUCE, merge_parallel
from data_tools.source.edge_rows import both_directions
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """How events become snapshots. Exactly one of:

    windows: so many, of nearly equally many events each; events of one time stay together;
    events: so many each;
    length: of time, in the source's unit, from the first event on.

    stride: from one window's begin to the next, in events or time; 0: windows do not overlap. cumulative: every window
    begins with the first event. merge: parallel edges of a window are one, ``weight`` counts its events; reduce: what
    becomes of further columns then ("sum", "mean", "last").
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
                "--stride goes with --events or --length and is above 0 and not above it, so that no event is lost"
            )
        if self.events and self.stride != int(self.stride):
            raise ValueError(f"--stride counts events: {self.stride} is not an integer")
        for name, how in self.reduce.items():
            if how not in REDUCE or not self.merge:
                raise ValueError(f"--reduce {name}={how}: expected COLUMN={'|'.join(REDUCE)}, and merged edges")


@dataclass(slots=True)
class WindowEvents:
    """Events of all relations: src, dst [E] rows of all nodes numbered together, time [E] non-decreasing, columns [E,
    ...] by name."""

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    columns: dict[str, np.ndarray]


def read_windows(path: str | os.PathLike, options: WindowOptions, both: bool = False) -> SnapshotGraph:
    """Read a temporal graph file as a snapshot graph. Node types are numbered one after the other, with a column
    ``type`` where there are several, and so are relations; both: edges in both directions. Raises FileFormatError.
    """
    with files.reading(path, files.GRAPH, "write it anew with data_tools.convert") as file:
        if file.attrs.get("kind") != "temporal":
            raise FileFormatError(f"{path}: kind is {file.attrs.get('kind')!r}, expected a temporal graph")
        events = _read_events(file)
        relation = file["edges"][files.relations(file)[0]]
        scale = float(relation.attrs.get("time_scale", relation["time"].attrs.get("time_scale", 1)))
        nodes, ids, count = _read_nodes(file)
    if not len(events.time):
        raise FileFormatError(f"{path}: no events, so no windows")
    for name in options.reduce:
        if name not in events.columns or events.columns[name].dtype.kind not in "iufb":
            names = ", ".join(events.columns) or "none"
            raise FileFormatError(f"{path}: --reduce {name}: no such column of numbers; the events have {names}")
    begin, end = window_bounds(events.time, options, scale)
    first = np.searchsorted(end, np.arange(len(events.time)), side="right")
    last = np.searchsorted(begin, np.arange(len(events.time)), side="right") - 1
    graph = SnapshotGraph(count, len(begin), events.src, events.dst, first, last, events.columns, nodes, id=ids)
    if both:
        row, flipped = both_directions(np.arange(len(graph.src)), graph.src, graph.dst)
        graph.src, graph.dst = (
            np.where(flipped, graph.dst[row], graph.src[row]),
            np.where(flipped, graph.src[row], graph.dst[row]),
        )
        graph.first, graph.last = first[row], last[row]
        graph.edges = {name: column[row] for name, column in graph.edges.items()}
    return merge_parallel(graph, options.reduce) if options.merge else graph


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
    base, num_nodes = {}, 0
    for name in files.node_types(file):
        base[name] = num_nodes
        num_nodes += int(file["nodes"][name].attrs["num_nodes"])
    tables = []
    names = files.relations(file)
    for number, name in enumerate(names):
        group = file["edges"][name]
        src_type, _, dst_type = files.split_relation(name)
        columns = {key: group[key][:] for key in group if key not in ("src", "dst", "time")}
        if len(names) > 1:
            columns["type"] = np.full(len(group["src"]), number, np.int64)
        ends = group["src"][:] + base[src_type], group["dst"][:] + base[dst_type]
        src, dst = (end.astype(np.int64) for end in ends)
        tables.append(WindowEvents(src, dst, group["time"][:], columns))
    layouts = [{key: (column.shape[1:], column.dtype) for key, column in table.columns.items()} for table in tables]
    common = [key for key, layout in layouts[0].items() if all(other.get(key) == layout for other in layouts)]
    time = np.concatenate([table.time for table in tables])
    order = np.argsort(time, kind="stable")
    src, dst = (np.concatenate([getattr(table, end) for table in tables])[order] for end in ("src", "dst"))
    columns = {key: np.concatenate([table.columns[key] for table in tables])[order] for key in common}
    return WindowEvents(src, dst, time[order], columns)


def _read_nodes(file: h5py.File) -> tuple[dict[str, np.ndarray], np.ndarray | None, int]:
    """Read columns, ids and number of nodes; with several types the only column says which type a node is of."""
    names = files.node_types(file)
    counts = [int(file["nodes"][name].attrs["num_nodes"]) for name in names]
    if len(names) > 1:
        return {"type": np.repeat(np.arange(len(names)), counts)}, None, sum(counts)
    columns = {name: column[:] for name, column in file["nodes"][names[0]].items()}
    ids = columns.pop("id", None)
    return columns, ids, counts[0]
