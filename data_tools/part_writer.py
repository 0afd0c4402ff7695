"""Write the part files of a temporal partition set: nodes, events of both endpoints' parts, and the history (T-CSR).

Columns are copied slab by slab into all part files of a group of parts at once, so memory is bounded by a slab and by
the event positions of one part (about 48 bytes per event of the largest part while its history is sorted).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import h5py
import numpy as np

from data_tools import partition_source
from data_tools.part_layout import Layout
from data_tools.partition_source import Relation, Source, endpoint_slabs
from hpcgnn.store import files

PARTS_AT_ONCE = 64  # part files open together; each may hold a few MiB of chunk cache


@dataclass(frozen=True, slots=True)
class Routing:
    """Which rows of a slab go to which of G parts."""

    start: int
    stop: int
    rows: np.ndarray  # [k] int64, relative to start, grouped by part, increasing within a part
    bounds: np.ndarray  # [G + 1] int64 into rows

    def pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """(part relative to the group, rows) of every part that gets something."""
        for index in np.flatnonzero(np.diff(self.bounds)):
            yield int(index), self.rows[self.bounds[index] : self.bounds[index + 1]]


@dataclass(frozen=True, slots=True)
class PartGroup:
    """The open files of parts first .. first + len(files) - 1."""

    first: int
    files: list[h5py.File]

    def route(self, start: int, stop: int, parts: np.ndarray, rows: np.ndarray) -> Routing:
        """Group (part, row) pairs by part; pairs of parts outside the group are dropped."""
        keep = (parts >= self.first) & (parts < self.first + len(self.files))
        length = max(1, stop - start)
        key = np.sort((parts[keep].astype(np.int64) - self.first) * length + rows[keep])
        bounds = np.searchsorted(key, np.arange(len(self.files) + 1) * length)
        return Routing(start, stop, key % length, bounds)


def event_parts(layout: Layout, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The (part, row) pairs of a slab of events between nodes src, dst [n]: once per distinct part of the endpoints."""
    first, second = layout.part[src], layout.part[dst]
    other = np.flatnonzero(first != second)
    return np.r_[first, second[other]], np.r_[np.arange(len(src)), other]


def count_events(layout: Layout, endpoints: Iterator[tuple[int, np.ndarray, np.ndarray]]) -> np.ndarray:
    """Events stored in each part [P] int64."""
    counts = np.zeros(layout.num_parts, np.int64)
    for _, src, dst in endpoints:
        counts += np.bincount(event_parts(layout, src, dst)[0], minlength=layout.num_parts)
    return counts


def scatter(group: PartGroup, path: str, counts: np.ndarray, like, values: Callable, routes: Iterator[Routing]) -> None:
    """Create column ``path`` in every file of the group and fill it.

    counts [G] rows per part; like: (trailing shape, dtype); values(start, stop): the source's rows of a slab.
    """
    parent, name = path.rsplit("/", 1)
    tail, dtype = like
    targets = [
        files.create_column(file.require_group(parent), name, int(count), tail, dtype)
        for file, count in zip(group.files, counts, strict=True)
    ]
    cursor = np.zeros(len(targets), np.int64)
    for routing in routes:
        slab = values(routing.start, routing.stop)
        for index, rows in routing.pieces():
            begin = cursor[index]
            targets[index][begin : begin + len(rows)] = slab[rows]
            cursor[index] += len(rows)


def shape_of(dataset: h5py.Dataset) -> tuple[tuple[int, ...], np.dtype]:
    """Trailing shape and dtype of a column."""
    return dataset.shape[1:], dataset.dtype


def write_node_columns(source: Source, layout: Layout, group: PartGroup) -> None:
    """Row ids and all columns of the nodes of a group of parts."""
    for type_id, node_type in enumerate(source.types):
        columns = source.nodes(node_type)
        offsets = layout.offsets[type_id][group.first : group.first + len(group.files) + 1]

        def routes(row_bytes: int, node_type=node_type) -> Iterator[Routing]:
            for start, stop in files.slabs(node_type.num_nodes, max(8, row_bytes), partition_source.SLAB_BYTES):
                parts = layout.part[node_type.base + start : node_type.base + stop]
                yield group.route(start, stop, parts, np.arange(stop - start))

        counts, prefix = np.diff(offsets), f"nodes/{node_type.name}/"
        scatter(group, prefix + "row", counts, ((), np.int64), np.arange, routes(8))
        for name in node_type.columns:
            column = columns[name]
            read = lambda start, stop, column=column: column[start:stop]  # noqa: E731
            scatter(group, prefix + name, counts, shape_of(column), read, routes(files.row_bytes(column)))


def write_edge_columns(
    source: Source, layout: Layout, group: PartGroup, relation: Relation, counts: np.ndarray
) -> None:
    """Row ids, endpoints as global ids and all columns of the events of a group of parts; counts [P]."""
    columns = source.edges(relation)
    src_base, dst_base = source.types[relation.src_type].base, source.types[relation.dst_type].base

    def routes(row_bytes: int) -> Iterator[Routing]:
        for start, stop in files.slabs(relation.num_edges, max(16, row_bytes), partition_source.SLAB_BYTES):
            src = columns["src"][start:stop].astype(np.int64) + src_base
            dst = columns["dst"][start:stop].astype(np.int64) + dst_base
            yield group.route(start, stop, *event_parts(layout, src, dst))

    def endpoint(name: str, base: int) -> Callable:
        return lambda start, stop: layout.global_id[columns[name][start:stop].astype(np.int64) + base]

    mine, prefix = counts[group.first : group.first + len(group.files)], f"edges/{relation.name}/"
    scatter(group, prefix + "row", mine, ((), np.int64), np.arange, routes(8))
    scatter(group, prefix + "src", mine, ((), np.int64), endpoint("src", src_base), routes(8))
    scatter(group, prefix + "dst", mine, ((), np.int64), endpoint("dst", dst_base), routes(8))
    for name in relation.columns:
        column = columns[name]
        read = lambda start, stop, column=column: column[start:stop]  # noqa: E731
        scatter(group, prefix + name, mine, shape_of(column), read, routes(files.row_bytes(column)))


def local_index(layout: Layout, type_id: int, part: int, global_ids: np.ndarray) -> np.ndarray:
    """Local indices [n] of nodes of one type in a part (types concatenated); -1 for nodes of other parts."""
    offsets, base = layout.offsets[type_id], layout.local_bases(part)[type_id]
    inside = (global_ids >= offsets[part]) & (global_ids < offsets[part + 1])
    return np.where(inside, global_ids - offsets[part] + base, -1)


def build_history(src: np.ndarray, dst: np.ndarray, num_local: int) -> tuple[np.ndarray, np.ndarray]:
    """T-CSR of a part: indptr [num_local + 1] int64 and event positions, increasing within a node.

    src, dst [m]: local indices of the endpoints, -1 where the endpoint is in another part. A self-loop is one entry.
    """
    m = max(1, len(src))
    mine_src, mine_dst = np.flatnonzero(src >= 0), np.flatnonzero((dst >= 0) & (dst != src))
    key = np.sort(np.r_[src[mine_src] * m + mine_src, dst[mine_dst] * m + mine_dst])
    indptr = np.searchsorted(key, np.arange(num_local + 1) * m).astype(np.int64)
    return indptr, (key % m).astype(np.int32 if m < 2**31 else np.int64)


def write_history(layout: Layout, file: h5py.File, part: int, relation: Relation) -> None:
    """History of a part's nodes over one relation, from the events just written."""
    edges = file["edges"][relation.name]
    src = local_index(layout, relation.src_type, part, edges["src"][:])
    dst = local_index(layout, relation.dst_type, part, edges["dst"][:])
    indptr, event = build_history(src, dst, int(layout.local_bases(part)[-1]))
    group = file.require_group(f"history/{relation.name}")
    for name, values in (("indptr", indptr), ("event", event)):
        files.create_column(group, name, len(values), (), values.dtype)[:] = values


def write_parts(source: Source, layout: Layout, folder: str | os.PathLike, set_id: str) -> list[np.ndarray]:
    """Write all part files; returns the number of events stored per part [P] for every relation."""
    counts = [count_events(layout, endpoint_slabs(source, relation)) for relation in source.relations]
    for group in part_groups(layout, folder, set_id):
        with group as opened:
            write_group(source, layout, opened, counts)
    return counts


def part_groups(layout: Layout, folder: str | os.PathLike, set_id: str) -> Iterator[AbstractContextManager[PartGroup]]:
    """Groups of parts, each to be opened with ``with``, which commits its files at the end."""
    for first in range(0, layout.num_parts, PARTS_AT_ONCE):
        yield open_group(layout, folder, set_id, range(first, min(first + PARTS_AT_ONCE, layout.num_parts)))


@contextlib.contextmanager
def open_group(layout: Layout, folder: str | os.PathLike, set_id: str, parts: range) -> Iterator[PartGroup]:
    """New files for some parts; committed at the end, removed after an error."""
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
    """Attributes of the source's columns, such as the names of classes, in every file of the group."""
    tables = [(f"nodes/{found.name}", source.nodes(found), found.columns) for found in source.types]
    tables += [(f"edges/{found.name}", source.edges(found), found.columns) for found in source.relations]
    for path, columns, names in tables:
        for name in names:
            for key, value in columns[name].attrs.items():
                for file in group.files:
                    file[path][name].attrs[key] = value


def write_group(source: Source, layout: Layout, group: PartGroup, counts: list[np.ndarray]) -> None:
    """Fill the files of a group of parts."""
    for file in group.files:
        for name in ("nodes", "edges", "history"):
            file.create_group(name)
    write_node_columns(source, layout, group)
    for relation, relation_counts in zip(source.relations, counts, strict=True):
        write_edge_columns(source, layout, group, relation, relation_counts)
        for index, file in enumerate(group.files):
            write_history(layout, file, group.first + index, relation)
    carry_attributes(source, group)
