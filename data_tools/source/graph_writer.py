"""Writes the tables of a source as a graph file, slab by slab."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import h5py
import numpy as np

from data_tools.reports import describe_dates
from data_tools.source.edge_rows import EdgeRows, choose_rows
from data_tools.source.event_rows import write_event_rows
from data_tools.source.file_spec import ColumnSpec, FileSpec
from data_tools.source.formats.dates import UTC, Zones
from data_tools.source.id_spaces import MISSING
from data_tools.source.reader import NodeTable
from data_tools.source.relation_types import EdgeTable
from data_tools.source.rewrite import create_table, write_column
from data_tools.source.segments import ArraySegments, sorted_buckets
from data_tools.source.spec import EdgeSpec, NodeSpec, SourceSpec
from data_tools.source.spool import forget
from hpcgnn.graph.files import GRAPH, FileFormatError, create_column, file_hash, row_bytes, slabs, writing
from hpcgnn.graph.splits import NO_SPLIT

SLAB_BYTES = 16 << 20  # of a column that goes to another order by way of the disk


@dataclass(frozen=True, slots=True)
class Summary:
    """Sizes of a written graph by name, the range of its times, also as dates, and notes on changes for users."""

    kind: str
    nodes: dict[str, int]
    edges: dict[str, int]
    times: tuple[int, int] | None
    dates: str
    notes: list[str]


def write_graph(
    path: str | os.PathLike,
    spec: SourceSpec,
    nodes: dict[str, NodeTable],
    edges: list[EdgeTable],
    folder: pathlib.Path,
    num_buckets: int = 0,
) -> Summary:
    """Write the graph file from finished tables; returns what is in it. ``num_buckets``: number of pieces in ``folder``
    into which work that does not go row by row is divided (0: it is done in memory). Raises FileFormatError without
    edges."""
    if not any(len(edge.src) for edge in edges):
        raise FileFormatError(f"no edges in {', '.join(edge.file for edge in edges)}; is a file empty?")
    files = {spec.files[name].title: spec.files[name] for name in spec.used_files()}
    sources = json.dumps([describe_source(file) for file in files.values()])
    times = [edge.time for edge in edges if edge.time is not None and len(edge.time)]
    ranges = [find_range(time) for time in times]
    time_range = (min(first for first, _ in ranges), max(last for _, last in ranges)) if times else None
    dates = describe_dates(time_range, edges[0].spec.time_scale, bool(edges[0].zone))
    summary = Summary(spec.graph_kind, {}, {}, time_range, dates, [])
    settings = json.dumps(describe_spec(spec), default=str)
    with writing(path, GRAPH, kind=spec.graph_kind, sources=sources, spec=settings) as file:
        for type_id, (name, table) in enumerate(nodes.items()):
            group = create_table(file, "nodes", name, table.space.num_nodes, type_id)
            write_nodes(group, table, folder, num_buckets)
            summary.nodes[name] = table.space.num_nodes
            summary.notes.extend(note_unlabeled(group, name, table.spec))
            if table.space.trimmed is not None:
                summary.notes.append(f"{name}: white space around ids left out, first in {table.space.trimmed}")
            missing = table.num_missing
            if missing:
                summary.notes.append(f"{name}: {missing:,} {'row' if missing == 1 else 'rows'} without an id dropped")
            added = 0 if table.codes is None else table.space.num_nodes - len(table.codes) + missing
            if added:
                summary.notes.append(f"{name}: {added:,} node{'' if added == 1 else 's'} added that only edges name")
        for edge in edges:
            chosen = choose_rows(edge, folder, num_buckets)
            summary.notes.extend(f"{edge.spec.relation}: {note}" for note in chosen.notes)
            write_relation(file, edge, chosen, summary)
        if spec.graph_kind == "temporal" and len(edges) > 1:
            write_event_rows(file)
    summary.notes.extend(note_zones([*nodes.values(), *edges]))
    return summary


def note_zones(tables: list[NodeTable | EdgeTable]) -> list[str]:
    """Name the columns whose dates have several zones, within a table or, except for times of events, in several, or
    have offsets."""
    distinct: dict[int, tuple[str, Zones]] = {}  # relations of one table share their zones
    for table in tables:
        for name, zones in table.zones.items():
            title = f"{table.spec.relation}: time" if isinstance(table, EdgeTable) and name == "time" else name
            distinct.setdefault(id(zones), (title, zones))
    found: dict[str, Zones] = {}
    for title, zones in distinct.values():
        found.setdefault(title, Zones()).add(zones)
    return [note for title, zones in found.items() for note in zones.notes(title)]


def note_unlabeled(group: h5py.Group, name: str, table: NodeSpec | EdgeSpec) -> list[str]:
    """Count the labels of a table that are not known, by the fill that stands for them, in a note, or none. Of integers
    without a gap, the negative ones are counted."""
    fill = table.columns["label"].fill if "label" in table.columns and "label" in group else None
    if fill is None or fill >= 0:
        return []
    count, column = 0, group["label"]
    may_be_numbers = fill != fill and column.dtype.kind == "i"
    for start, stop in slabs(len(column), row_bytes(column)):
        labels = column[start:stop].reshape(stop - start, -1)
        missing = labels < 0 if may_be_numbers else np.isnan(labels) if fill != fill else labels == fill
        count += int(np.count_nonzero(missing.all(axis=1)))
    what = "with a negative label, which is missing as a class" if may_be_numbers else "without a label"
    return [f"{name}: {count:,} of {len(column):,} {what}"] if count else []


def find_range(column: np.ndarray) -> tuple[int, int]:
    """Find the smallest and the largest value of a column of integers, slab by slab."""
    low, high = column[0], column[0]
    for start, stop in slabs(len(column), row_bytes(column)):
        low, high = min(low, column[start:stop].min()), max(high, column[start:stop].max())
        forget(column)
    return int(low), int(high)


def describe_source(file: FileSpec) -> dict[str, object]:
    """Describe a source file by name, size and sha256, and by its declared source; no folder, since files move. For
    chunks and the files of a folder: the sum of their sizes, and the sha256 of their sha256."""
    paths = [str(piece.path) for piece in file.pieces()]
    hashes = [file_hash(path) for path in paths]
    described = {"name": pathlib.Path(paths[0]).name, "bytes": sum(map(os.path.getsize, paths)), "sha256": hashes[0]}
    if paths != [file.path]:
        described |= {"sha256": hashlib.sha256("".join(hashes).encode()).hexdigest(), "chunks": len(paths)}
    return described | ({"source": file.source} if file.source else {})


def describe_spec(value: Any) -> Any:
    """Write a spec, or a part of one, as plain values: what differs from the defaults, files by their names, as
    ``describe_source`` has them."""
    if isinstance(value, FileSpec):
        names = [pathlib.Path(path).name for path in (value.path, *value.chunks) if path]
        value = replace(value, path=names[0] if value.path else None, chunks=names if value.chunks else [])
    if is_dataclass(value):
        pairs = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: describe_spec(item) for field, item in pairs if item not in (None, [], {}, field.default)}
    if isinstance(value, dict):
        return {str(name): describe_spec(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe_spec(item) for item in value]
    return ".nan" if isinstance(value, float) and value != value else value  # as in YAML; JSON has no NaN


def write_nodes(group: h5py.Group, table: NodeTable, folder: pathlib.Path, num_buckets: int) -> None:
    """Write a node type: ids in order of rows, and its columns brought into that order."""
    ids, num_nodes = table.space.ids, table.space.num_nodes
    if ids is not None:
        write_column(group, "id", ids)
    for name, column in table.columns.items():
        if table.codes is None:
            write_column(group, name, column)
            continue
        fill = table.spec.columns[name].fill if name in table.spec.columns else None
        fill = NO_SPLIT if fill is None and name == "split" else fill
        dtype = column.dtype
        if fill != fill and dtype.kind == "i" and np.count_nonzero(table.codes != MISSING) < num_nodes:
            dtype = np.dtype(np.float64)  # the labels of some nodes are missing
        dataset = create_column(group, name, num_nodes, column.shape[1:], dtype)
        for start, rows, there in scattered(column, table.codes, num_nodes, folder, num_buckets):
            if fill is None and not there.all():
                assert ids is not None
                raise FileFormatError(
                    f"node type {table.spec.type}: column {name} has no value for node "
                    f"{ids[start + int(np.argmin(there))]}, which occurs in edges only; declare a fill for the column"
                )
            if not there.all():
                rows = rows.astype(dtype)
                rows[~there] = fill
            dataset[start : start + len(rows)] = rows
    write_classes(group, table.classes)
    write_zones(group, table.spec.columns, table.zones)


def scattered(
    column: np.ndarray, rows: np.ndarray, num_rows: int, folder: pathlib.Path, num_buckets: int = 0
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Bring a column [n, ...] into another order, its i-th row to place ``rows[i]`` of ``num_rows``, or nowhere where
    that is MISSING: pieces (first place, rows [m, ...], there [m] bool). Places that no row goes to are not there, and
    undefined. ``num_buckets``: number of pieces by way of the disk (0: reading the column in any order)."""
    if num_buckets:
        yield from _scattered_by_buckets(column, rows, num_rows, folder, num_buckets)
        return
    order = np.full(num_rows, -1, np.int64)
    present = np.flatnonzero(rows != MISSING)
    order[rows[present]] = present
    for start, stop in slabs(num_rows, row_bytes(column)):
        chosen = order[start:stop]
        there = chosen >= 0
        values = (
            column[np.maximum(chosen, 0)] if len(column) else np.zeros((stop - start, *column.shape[1:]), column.dtype)
        )
        forget(column)
        yield start, values, there


def _scattered_by_buckets(
    column: np.ndarray, rows: np.ndarray, num_rows: int, folder: pathlib.Path, num_buckets: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Reorder by way of the disk: a bucket is a range of places."""
    size = max(1, -(-num_rows // num_buckets))
    places, values = ArraySegments(folder), ArraySegments(folder)
    for start, stop in slabs(len(rows), row_bytes(column) + 8, SLAB_BYTES):
        present = np.flatnonzero(rows[start:stop] != MISSING)
        here = np.array(rows[start:stop])[present]
        order, bounds = sorted_buckets(here // size, num_buckets)
        places.append(here[order], bounds)
        values.append(np.array(column[start:stop])[present[order]], bounds)
        forget(column)
    for bucket, first in enumerate(range(0, num_rows, size)):
        count = min(size, num_rows - first)
        piece, there = np.zeros((count, *column.shape[1:]), column.dtype), np.zeros(count, bool)
        for batch in range(places.num_batches):
            here = places.read(batch, bucket) - first
            piece[here], there[here] = values.read(batch, bucket), True
        yield first, piece, there


def write_classes(group: h5py.Group, classes: dict[str, list[str]]) -> None:
    """Store the names of the classes of columns, as attribute ``names`` (JSON) of each."""
    for name, words in classes.items():
        # One text of variable length: HDF5 keeps it outside of the attribute, which is limited to 64 KiB.
        group[name].attrs["names"] = json.dumps(words)


def write_zones(group: h5py.Group, columns: dict[str, ColumnSpec], zones: dict[str, Zones]) -> None:
    """Store the zones of columns of dates, as attribute ``zone`` of each. zones: the ones that their rows have."""
    for name, column in columns.items():
        if column.has_dates:
            group[name].attrs["zone"] = zones[name].common or column.zone or UTC


def write_relation(file: h5py.File, edge: EdgeTable, chosen: EdgeRows, summary: Summary) -> None:
    """Write a relation and, if asked for, its reverse."""
    ends = {edge.spec.relation: (edge.src, edge.dst), edge.spec.reverse_relation: (edge.dst, edge.src)}
    for name, (src, dst) in ends.items():
        if name is None:
            continue
        group = create_table(file, "edges", name, chosen.num_edges, len(summary.edges))
        if edge.type_name is not None:
            group.attrs["source_name"] = edge.type_name
        write_edges(group, edge, src, dst, chosen)
        summary.edges[name] = chosen.num_edges
        if name == edge.spec.relation:
            summary.notes.extend(note_unlabeled(group, name, edge.spec))


def write_edges(group: h5py.Group, edge: EdgeTable, src: np.ndarray, dst: np.ndarray, chosen: EdgeRows) -> None:
    """Write ends, times and columns of the chosen rows."""
    # Both stay open until all columns are written: when HDF5 closes a dataset decides where the next one lies.
    outputs = [create_column(group, name, chosen.num_edges, (), np.int64) for name in ("src", "dst")]
    start = 0
    for rows, flipped in chosen.pieces():
        first, second = src[rows], dst[rows]
        if flipped is not None:
            first, second = np.where(flipped, second, first), np.where(flipped, first, second)
        outputs[0][start : start + len(rows)], outputs[1][start : start + len(rows)] = first, second
        start += len(rows)
        forget(src)
        forget(dst)
    if edge.time is not None:
        group.attrs["time_scale"] = edge.spec.time_scale
        if edge.zone:
            group.attrs["dates"] = True
            group.attrs["zone"] = edge.zone
        write_chosen(group, "time", edge.time, chosen)
    for name, column in edge.columns.items():
        write_chosen(group, name, column, chosen)
    write_classes(group, edge.classes)
    write_zones(group, edge.spec.columns, edge.zones)


def write_chosen(group: h5py.Group, name: str, column: np.ndarray, chosen: EdgeRows) -> None:
    """Write the chosen rows of a column slab by slab."""
    dataset = create_column(group, name, chosen.num_edges, column.shape[1:], column.dtype)
    position = 0
    for rows, _ in chosen.pieces():
        for start, stop in slabs(len(rows), row_bytes(column)):
            dataset[position : position + stop - start] = column[rows[start:stop]]
            position += stop - start
            forget(column)
