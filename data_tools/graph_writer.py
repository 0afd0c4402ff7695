"""Writes the tables of a source as a graph file, slab by slab."""

from __future__ import annotations

import json
import os
import pathlib
from dataclasses import dataclass

import h5py
import numpy as np

from data_tools.edge_rows import EdgeRows, choose_rows
from data_tools.id_spaces import IdSpace
from data_tools.relation_types import EdgeTable
from data_tools.source_reader import NodeTable
from data_tools.source_spec import SourceSpec
from hpcgnn.store.files import GRAPH, FileFormatError, create_column, file_hash, slabs, split_relation, writing

MAP_ROWS = 1 << 20
NO_SPLIT = -1
ATTRIBUTE_BYTES = 60_000  # HDF5 keeps 64 KiB in an attribute


@dataclass(frozen=True, slots=True)
class Summary:
    """What was written: sizes by name, the range of times, and notes on what was changed."""

    kind: str
    nodes: dict[str, int]
    edges: dict[str, int]
    times: tuple[int, int] | None
    notes: list[str]


def write_graph(
    path: str | os.PathLike, spec: SourceSpec, nodes: dict[str, NodeTable], edges: list[EdgeTable]
) -> Summary:
    """Write the graph file and return what is in it. Finishes the id spaces of the nodes."""
    if not any(len(edge.src) for edge in edges):
        raise FileFormatError(f"no edges in {', '.join(edge.file for edge in edges)}; is a file empty?")
    paths = dict.fromkeys(spec.files[name].path for name in spec.used_files())
    sources = json.dumps([describe_file(path) for path in paths])
    summary = Summary(spec.graph_kind, {}, {}, time_range(edges), [])
    with writing(path, GRAPH, kind=spec.graph_kind, sources=sources) as file:
        for type_id, (name, table) in enumerate(nodes.items()):
            summary.nodes[name] = write_nodes(file.create_group(f"nodes/{name}"), type_id, table)
        for edge in edges:
            write_relation(file, edge, nodes, summary)
    return summary


def describe_file(path: str) -> dict[str, object]:
    """Name, size and sha256 of a source file; no folder, since files move."""
    return {"name": pathlib.Path(path).name, "bytes": os.path.getsize(path), "sha256": file_hash(path)}


def time_range(edges: list[EdgeTable]) -> tuple[int, int] | None:
    """Smallest and largest stored time of all relations."""
    times = [edge.time for edge in edges if edge.time is not None and len(edge.time)]
    return (int(min(t.min() for t in times)), int(max(t.max() for t in times))) if times else None


def write_nodes(group: h5py.Group, type_id: int, table: NodeTable) -> int:
    """Write a node type: ids in order of rows, and its columns brought into that order."""
    ids = table.space.finish()
    num_nodes = table.space.num_nodes
    group.attrs["num_nodes"], group.attrs["type_id"] = num_nodes, type_id
    if ids is not None:
        dataset = create_column(group, "id", num_nodes, (), ids.dtype)
        for start, stop in slabs(num_nodes, ids.dtype.itemsize):
            dataset[start:stop] = ids[start:stop]
    order = source_order(table, num_nodes)
    for name, column in table.columns.items():
        fill = table.spec.columns[name].fill if name in table.spec.columns else NO_SPLIT
        if fill is None and len(missing := np.flatnonzero(order < 0)):
            raise FileFormatError(
                f"node type {table.spec.type}: column {name} has no value for node {ids[missing[0]]}, which occurs in "
                "edges only; declare a fill for the column"
            )
        write_gathered(group, name, column, order, fill)
    write_classes(group, table.classes)
    return num_nodes


def write_classes(group: h5py.Group, classes: dict[str, list[str]]) -> None:
    """Store what the numbers of columns stand for, as attribute ``names`` (JSON) of each."""
    for name, words in classes.items():
        text = json.dumps(words)
        if len(text) > ATTRIBUTE_BYTES:
            raise FileFormatError(
                f"{group.name}: column {name}: {len(words):,} classes are too many to keep their names; number them "
                "in the source"
            )
        group[name].attrs["names"] = text


def source_order(table: NodeTable, num_nodes: int) -> np.ndarray:
    """For every node its row in the node table; -1 for nodes that only edges name."""
    if table.codes is None:
        return np.arange(num_nodes)
    order = np.full(num_nodes, -1, np.int64)
    order[table.space.rows(table.codes)] = np.arange(len(table.codes))
    return order


def write_gathered(
    group: h5py.Group, name: str, column: np.ndarray, rows: np.ndarray, fill: float | None = None
) -> None:
    """Write ``column[rows]`` slab by slab; row -1 stands for the fill value."""
    dataset = create_column(group, name, len(rows), column.shape[1:], column.dtype)
    row_bytes = int(column.dtype.itemsize * np.prod(column.shape[1:], dtype=np.int64))
    for start, stop in slabs(len(rows), row_bytes):
        chosen = rows[start:stop]
        missing = chosen < 0
        if missing.all():
            dataset[start:stop] = fill
            continue
        values = column[np.maximum(chosen, 0)]
        if missing.any():
            values[missing] = fill
        dataset[start:stop] = values


def write_relation(file: h5py.File, edge: EdgeTable, nodes: dict[str, NodeTable], summary: Summary) -> None:
    """Write a relation and, if asked for, its reverse."""
    source, _, destination = split_relation(edge.spec.relation)
    map_in_place(edge.src, nodes[source].space)
    map_in_place(edge.dst, nodes[destination].space)
    chosen = choose_rows(edge.spec, edge.file, edge.src, edge.dst, edge.time)
    summary.notes.extend(f"{edge.spec.relation}: {note}" for note in chosen.notes)
    ends = {edge.spec.relation: (edge.src, edge.dst), edge.spec.reverse_relation: (edge.dst, edge.src)}
    for name, (src, dst) in ends.items():
        if name is None:
            continue
        group = file.create_group(f"edges/{name}")
        group.attrs["num_edges"], group.attrs["relation_id"] = len(chosen.rows), len(summary.edges)
        if edge.type_name is not None:
            group.attrs["source_name"] = edge.type_name
        write_edges(group, edge, src, dst, chosen)
        summary.edges[name] = len(chosen.rows)


def map_in_place(codes: np.ndarray, space: IdSpace) -> None:
    """Replace codes by row ids."""
    for start in range(0, len(codes), MAP_ROWS):
        codes[start : start + MAP_ROWS] = space.rows(codes[start : start + MAP_ROWS])


def write_edges(group: h5py.Group, edge: EdgeTable, src: np.ndarray, dst: np.ndarray, chosen: EdgeRows) -> None:
    """Write ends, times and columns of the chosen rows."""
    outputs = [create_column(group, name, len(chosen.rows), (), np.int64) for name in ("src", "dst")]
    for start, stop in slabs(len(chosen.rows), 16):
        rows = chosen.rows[start:stop]
        first, second = src[rows], dst[rows]
        if chosen.flipped is not None:
            flipped = chosen.flipped[start:stop]
            first, second = np.where(flipped, second, first), np.where(flipped, first, second)
        outputs[0][start:stop], outputs[1][start:stop] = first, second
    if edge.time is not None:
        group.attrs["time_scale"] = edge.spec.time_scale
        write_gathered(group, "time", edge.time, chosen.rows)
    for name, column in edge.columns.items():
        write_gathered(group, name, column, chosen.rows)
    write_classes(group, edge.classes)
