"""Write the part files of a temporal partition set: nodes, events of both endpoints' parts, and the history (T-CSR).

Columns are copied slab by slab into all part files of a group of parts at once. Histories are sorted for as many nodes
of a part at a time as memory allows.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import h5py
import numpy as np

from data_tools.graph import source as graph_source
from data_tools.graph.source import EdgeType, NodeType, Source
from data_tools.partition.blocks import run_starts
from data_tools.partition.layout import PartLayout
from hpcgnn.graph import files

INT64 = np.dtype(np.int64)
HISTORY_BYTES = 32  # of memory for an entry of a history while it is sorted


@dataclass(frozen=True, slots=True)
class Routing:
    """Which rows of a slab go to which of G parts."""

    start: int
    stop: int
    rows: np.ndarray  # [k] int64, relative to start, grouped by part, increasing within a part
    bounds: np.ndarray  # [G + 1] int64 into rows

    def pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (part relative to the group, rows) of every part that gets something."""
        for index in np.flatnonzero(np.diff(self.bounds)):
            yield int(index), self.rows[self.bounds[index] : self.bounds[index + 1]]


@dataclass(frozen=True, slots=True)
class PartGroup:
    """The open files of parts first .. first + len(files) - 1."""

    first: int
    files: list[h5py.File]

    def flush(self) -> None:
        """Write buffered data to the disk. Raises OSError for a full one."""
        for file in self.files:
            file.flush()

    def route(self, start: int, stop: int, parts: np.ndarray, rows: np.ndarray) -> Routing:
        """Group (part, row) pairs by part; pairs of parts outside the group are dropped."""
        keep = (parts >= self.first) & (parts < self.first + len(self.files))
        length = max(1, stop - start)
        key = np.sort((parts[keep].astype(np.int64) - self.first) * length + rows[keep])
        bounds = np.searchsorted(key, np.arange(len(self.files) + 1) * length)
        return Routing(start, stop, key % length, bounds)


def event_parts(layout: PartLayout, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the (part, row) pairs of a slab of events between nodes src, dst [n]: once per distinct part of the
    endpoints."""
    first, second = layout.part[src], layout.part[dst]
    other = np.flatnonzero(first != second)
    return np.r_[first, second[other]], np.r_[np.arange(len(src)), other]


def count_events(layout: PartLayout, endpoints: Iterator[tuple[int, np.ndarray, np.ndarray]]) -> np.ndarray:
    """Count the events stored in each part [P] int64."""
    counts = np.zeros(layout.num_parts, np.int64)
    for _, src, dst in endpoints:
        counts += np.bincount(event_parts(layout, src, dst)[0], minlength=layout.num_parts)
    return counts


@dataclass(frozen=True, slots=True)
class Column:
    """A column to write; read(start, stop) gives its values for positions start .. stop - 1 of a source."""

    name: str
    read: Callable[..., np.ndarray]
    tail: tuple[int, ...] = ()
    dtype: np.dtype = INT64

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.tail, dtype=np.int64))


def stored_columns(table: Any, names: tuple[str, ...]) -> list[Column]:
    """List columns of a source, to be copied unchanged."""
    read = lambda dataset, start, stop: dataset[start:stop]  # noqa: E731
    return [Column(name, partial(read, table[name]), table[name].shape[1:], table[name].dtype) for name in names]


def edge_columns(source: Source, layout: PartLayout, relation: EdgeType, ends: tuple[str, ...]) -> list[Column]:
    """List the columns of edges that follow from the layout: row ids, and the global ids of some ends."""
    ids = [Column(end, partial(endpoint_ids, source, layout, relation, end)) for end in ends]
    return [Column("row", partial(source.edge_rows, relation)), *ids]


def endpoint_ids(
    source: Source, layout: PartLayout, relation: EdgeType, side: str, start: int, stop: int
) -> np.ndarray:
    """Read the global ids [stop - start] int64 of one endpoint of rows start .. stop - 1."""
    base = (relation.dst_type if side == "dst" else relation.src_type).base
    return layout.global_id[source.edges(relation)[side][start:stop].astype(np.int64) + base]


def scatter(group: PartGroup, path: str, counts: np.ndarray, column: Column, routes: Iterator[Routing]) -> None:
    """Create a column below ``path`` in every file of the group and fill it; counts [G] rows per part."""
    targets = [
        files.create_column(file.require_group(path), column.name, int(count), column.tail, column.dtype)
        for file, count in zip(group.files, counts, strict=True)
    ]
    cursor = np.zeros(len(targets), np.int64)
    for routing in routes:
        slab = column.read(routing.start, routing.stop)
        for index, rows in routing.pieces():
            begin = cursor[index]
            targets[index][begin : begin + len(rows)] = slab[rows]
            cursor[index] += len(rows)
    group.flush()


def write_node_columns(source: Source, layout: PartLayout, group: PartGroup) -> None:
    """Write row ids and all columns of the nodes of a group of parts."""
    for node_type in source.types:
        offsets = layout.offsets[node_type.index][group.first : group.first + len(group.files) + 1]

        def routes(row_bytes: int, node_type=node_type) -> Iterator[Routing]:
            for start, stop in source.node_slabs(node_type, max(8, row_bytes)):
                parts = source.node_parts(layout, node_type, start, stop)
                yield group.route(start, stop, parts, np.arange(stop - start))

        rows = Column("row", partial(source.node_rows, node_type))
        for column in (rows, *stored_columns(source.nodes(node_type), node_type.columns)):
            scatter(group, f"nodes/{node_type.name}", np.diff(offsets), column, routes(column.row_bytes))


def write_edge_columns(
    source: Source, layout: PartLayout, group: PartGroup, relation: EdgeType, counts: np.ndarray
) -> None:
    """Write row ids, endpoints as global ids and all columns of the events of a group of parts; counts [P]."""
    columns = source.edges(relation)

    def routes(row_bytes: int) -> Iterator[Routing]:
        for start, stop in source.edge_slabs(relation, max(16, row_bytes)):
            src = columns["src"][start:stop].astype(np.int64) + relation.src_type.base
            dst = columns["dst"][start:stop].astype(np.int64) + relation.dst_type.base
            yield group.route(start, stop, *event_parts(layout, src, dst))

    group_counts = counts[group.first : group.first + len(group.files)]
    own = edge_columns(source, layout, relation, ("src", "dst"))
    for column in own + stored_columns(columns, relation.columns):
        scatter(group, f"edges/{relation.name}", group_counts, column, routes(column.row_bytes))


def local_index(layout: PartLayout, node_type: NodeType, part: int, global_ids: np.ndarray) -> np.ndarray:
    """Find the local indices [n] of nodes of one type in a part (types concatenated); -1 for nodes of other parts."""
    offsets, base = layout.offsets[node_type.index], layout.local_bases(part)[node_type.index]
    inside = (global_ids >= offsets[part]) & (global_ids < offsets[part + 1])
    return np.where(inside, global_ids - offsets[part] + base, -1)


def history_keys(src: np.ndarray, dst: np.ndarray, nodes: tuple[int, int], start: int, num_events: int) -> np.ndarray:
    """Make the keys (node - first) * num_events + event position [k] int64 of the history entries of nodes first ..
    stop - 1.

    src, dst [m]: local indices of the endpoints of the events from ``start`` on, -1 where the endpoint is in another
    part. A self-loop is one entry.
    """
    first, stop = nodes
    src_rows = np.flatnonzero((src >= first) & (src < stop))
    dst_rows = np.flatnonzero((dst >= first) & (dst < stop) & (dst != src))
    rows, ends = np.r_[src_rows, dst_rows], np.r_[src[src_rows], dst[dst_rows]]
    return (ends - first) * num_events + start + rows


def write_history(layout: PartLayout, file: h5py.File, part: int, relation: EdgeType, memory: int) -> None:
    """Write the history of a part's nodes over one relation (T-CSR), from the events just written: as many nodes at a
    time as fit into ``memory``."""
    edges, num_local = file["edges"][relation.name], int(layout.local_bases(part)[-1])
    num_events = len(edges["src"])

    def ends() -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield slabs of the part's events: (first row, local indices of both endpoints)."""
        for start, stop in files.slabs(num_events, 16, graph_source.SLAB_BYTES):
            src = local_index(layout, relation.src_type, part, edges["src"][start:stop])
            yield start, src, local_index(layout, relation.dst_type, part, edges["dst"][start:stop])

    counts = np.zeros(num_local + 1, np.int64)
    for start, src, dst in ends():
        keys = history_keys(src, dst, (0, num_local), start, num_events)
        counts[1:] += np.bincount(keys // num_events, minlength=num_local)
    indptr = np.cumsum(counts)
    group, dtype = file.require_group(f"history/{relation.name}"), np.int32 if num_events < 2**31 else np.int64
    files.create_column(group, "indptr", len(indptr), (), np.int64)[:] = indptr
    event = files.create_column(group, "event", int(indptr[-1]), (), dtype)
    for first, stop in itertools.pairwise(run_starts(indptr, memory // HISTORY_BYTES).tolist()):
        if indptr[first] == indptr[stop]:
            continue
        keys = np.concatenate([history_keys(src, dst, (first, stop), start, num_events) for start, src, dst in ends()])
        keys.sort()
        event[indptr[first] : indptr[stop]] = keys % num_events
    file.flush()


@contextlib.contextmanager
def open_group(layout: PartLayout, folder: str | os.PathLike, set_id: str, parts: range) -> Iterator[PartGroup]:
    """Open new files for ``parts``; they are committed at the end, removed after an error."""
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(
                files.writing(
                    files.part_path(folder, part), files.PART, part=part, num_parts=layout.num_parts, set_id=set_id
                )
            )
            for part in parts
        ]
        yield PartGroup(parts.start, opened)


def carry_attributes(source: Source, group: PartGroup) -> None:
    """Copy attributes of the source's columns, such as the names of classes, into every file of the group."""
    tables = [(f"nodes/{item.name}", source.nodes(item), item.columns) for item in source.types]
    tables += [(f"edges/{item.name}", source.edges(item), item.columns) for item in source.relations]
    for path, columns, names in tables:
        for name in names:
            for key, value in columns[name].attrs.items():
                for file in group.files:
                    file[path][name].attrs[key] = value


def write_group(source: Source, layout: PartLayout, group: PartGroup, counts: list[np.ndarray], memory: int) -> None:
    """Fill the files of a group of parts."""
    for file in group.files:
        for name in ("nodes", "edges", "history"):
            file.create_group(name)
    write_node_columns(source, layout, group)
    for relation, relation_counts in zip(source.relations, counts, strict=True):
        write_edge_columns(source, layout, group, relation, relation_counts)
        for index, file in enumerate(group.files):
            write_history(layout, file, group.first + index, relation, memory)
    carry_attributes(source, group)
