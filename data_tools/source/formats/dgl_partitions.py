"""Reads partitions as DGL writes them (partition_graph, dispatch_data.py), unpacked to chunks, one part at a time.

A type's nodes come in order of the parts, part 0 first, as DGL numbers them; column ``part`` keeps the part of a node.
Where orig_nids.dgl exists, the column ``id`` holds the original ids, in order of the rows. Edges are in the order of
their ids in DGL.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_tools.source.formats.chunks_dgl import MASKS, local_name, stored_column
from data_tools.source.formats.dgl_files import read_part, read_tensors
from data_tools.source.schema import items
from hpcgnn.graph.decode import decode_json
from hpcgnn.graph.files import FileFormatError, relation_name
from hpcgnn.graph.splits import NO_SPLIT, add_to_split

ONLY_TYPE, ONLY_RELATION = "_N", "_N:_E:_N"


@dataclass(frozen=True, slots=True)
class DglBook:
    """The metadata of a partition set: per type, and per relation, the ranges [P, 2] of global ids of the parts."""

    folder: pathlib.Path
    files: list[dict[str, str]]
    nodes: dict[str, np.ndarray]
    edges: dict[str, np.ndarray]


def find_book(folder: pathlib.Path) -> pathlib.Path | None:
    """Find the metadata file of a partition set in a folder, if there is one."""
    for path in sorted(folder.glob("*.json")):
        try:
            data = decode_json(path.read_text())
        except ValueError:
            continue
        if isinstance(data, dict) and "num_parts" in data and "node_map" in data:
            return path
    return None


def read_book(path: pathlib.Path) -> DglBook:
    """Read the metadata of a partition set. Raises ValueError naming what is missing."""
    data = decode_json(path.read_text())
    maps = []
    for key, only in (("node_map", ONLY_TYPE), ("edge_map", ONLY_RELATION)):
        ranges = data.get(key)
        ranges = {only: ranges} if isinstance(ranges, list) else dict(items(key, ranges))
        order = data.get("ntypes" if key == "node_map" else "etypes") or {only: 0}
        if set(order) != set(ranges) or not all(isinstance(value, list) for value in ranges.values()):
            raise ValueError(f"{key}: expected the ranges of ids of {', '.join(order)}")
        arrays = {name: np.array(ranges[name], np.int64) for name in sorted(order, key=order.__getitem__)}
        # Older files have only the id after the last of every part.
        maps.append(
            {
                name: array if array.ndim == 2 else np.stack([np.r_[0, array[:-1]], array], axis=1)
                for name, array in arrays.items()
            }
        )
    files = [dict(items(f"part-{i}", data.get(f"part-{i}"))) for i in range(int(data["num_parts"]))]
    return DglBook(path.parent, files, *maps)


def unpack(path: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    """Write npy chunks of all parts into a folder; returns the spec that reads them. Raises FileFormatError."""
    book = read_book(path)
    writer = Chunks(folder)
    original = original_ids(book)
    for part, names in enumerate(book.files):
        unpack_part(book, part, names, original, writer)
    nodes = []
    for name, ranges in book.nodes.items():
        ids = {"ids": "row", "count": int((ranges[:, 1] - ranges[:, 0]).sum())}
        if original is not None:
            ids = {"ids": "int", "id": "array", "file": f"nodes.{name}.id"}
        nodes.append({"type": local_name(name), **ids, "columns": writer.columns(f"nodes.{name}")})
    edges = []
    for name in book.edges:
        relation = relation_name(*map(local_name, relation_of(name)))
        ends = {"file": f"edges.{name}.ends", "src": "array[:,0]", "dst": "array[:,1]"}
        edges.append({"relation": relation, **ends, "columns": writer.columns(f"edges.{name}")})
    return {"kind": "static", "files": writer.files, "nodes": nodes, "edges": edges}


class Chunks:
    """Arrays written as chunks, by name."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._dtypes: dict[str, np.dtype] = {}
        self.files: dict[str, dict[str, Any]] = {}

    def add(self, name: str, array: np.ndarray) -> None:
        """Write the next chunk of an array, into a file with the array's name, as reports name sources."""
        self._dtypes.setdefault(name, array.dtype)
        np.save(self._next(name, "npy"), array)

    def add_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the next chunk of several arrays of one length."""
        np.savez(self._next(name, "npz"), **arrays)  # type: ignore[arg-type]

    def _next(self, name: str, suffix: str) -> str:
        chunks = self.files.setdefault(name, {"chunks": []})["chunks"]
        folder = self._folder / str(list(self.files).index(name))
        folder.mkdir(exist_ok=True)
        chunks.append(str(folder / f"{name.replace('/', '_')}-{len(chunks)}.{suffix}"))
        return chunks[-1]

    def columns(self, prefix: str) -> dict[str, Any]:
        """Make the columns of a table for a spec, without ids and ends."""
        columns: dict[str, dict[str, Any]] = {}
        for name, dtype in self._dtypes.items():
            table, _, column = name.rpartition(".")
            if table == prefix and column not in ("id", "ends"):
                columns |= stored_column(name, column, "array", dtype)
        return columns


def original_ids(book: DglBook) -> dict[str, np.ndarray] | None:
    """Read the original id of every node [N], by type; None where they were not saved. Raises FileFormatError for parts
    of GraphBolt."""
    paths = []
    for part, names in enumerate(book.files):
        if "part_graph" not in names:
            raise FileFormatError(
                f"{book.folder}: part {part} has no part_graph, but {', '.join(names)}; parts of GraphBolt are not "
                "read: partition with use_graphbolt=False"
            )
        paths.append((book.folder / names["part_graph"]).parent / "orig_nids.dgl")
    if not all(path.is_file() for path in paths):
        return None
    parts = [read_tensors(path) for path in paths]
    return {name: np.concatenate([part[name] for part in parts]) for name in book.nodes}


def unpack_part(
    book: DglBook, part: int, names: dict[str, str], original: dict[str, np.ndarray] | None, writer: Chunks
) -> None:
    """Write the chunks of one part: its own nodes and edges, with their columns."""
    for name, ranges in book.nodes.items():
        counts = ranges[:, 1] - ranges[:, 0]
        writer.add(f"nodes.{name}.part", np.full(counts[part], part, np.int32))
        if original is not None:
            first = int(counts[:part].sum())
            writer.add(f"nodes.{name}.id", original[name][first : first + counts[part]])
    write_columns(book.folder / names["node_feats"], "nodes", ONLY_TYPE, book.nodes, part, writer)
    write_edges(book, part, book.folder / names["part_graph"], original, writer)
    write_columns(book.folder / names["edge_feats"], "edges", ONLY_RELATION, book.edges, part, writer)


def write_columns(
    path: pathlib.Path, kind: str, only: str, ranges: dict[str, np.ndarray], part: int, writer: Chunks
) -> None:
    """Write the tensors of a file of features, named type/column; old files leave out the only type."""
    for key, tensor in masks_to_split(read_tensors(path)).items():
        table, _, column = key.rpartition("/")
        table = table or only
        # Relations are also called by the middle one of their three names.
        matching = [name for name in ranges if table in (name, name.split(":")[len(name.split(":")) // 2])]
        if len(matching) != 1:
            raise FileFormatError(f"a feature of {table!r}, which is none of {', '.join(ranges)}")
        table = matching[0]
        count = int(ranges[table][part, 1] - ranges[table][part, 0])
        if len(tensor) != count:
            raise FileFormatError(f"{path}: {key} has {len(tensor)} rows, part {part} has {count} of {table}")
        writer.add(f"{kind}.{table}.{local_name(column)}", tensor)


def masks_to_split(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Put ``split`` [n] int8 in place of the masks of training, validation and test."""
    columns = dict(tensors)
    for key in [key for key in tensors if key.rpartition("/")[2] == "train_mask"]:
        prefix = key.removesuffix("train_mask")
        split = np.full(len(tensors[key]), NO_SPLIT, np.int8)
        for mask, name in MASKS.items():
            if prefix + mask in columns:
                add_to_split(split, columns.pop(prefix + mask).astype(bool), name, f"masks {prefix}*_mask")
        columns[prefix + "split"] = split
    return columns


def write_edges(
    book: DglBook, part: int, path: pathlib.Path, original: dict[str, np.ndarray] | None, writer: Chunks
) -> None:
    """Write the ends of the edges that a part owns, relation by relation, in the order of their ids. path: of the graph
    of the part."""
    edges, nodes = read_part(path)
    ids, own, global_ids = edges.columns["_ID"], edges.columns["inner_edge"].astype(bool), nodes["_ID"]
    for name, ranges in book.edges.items():
        low, high = ranges[part]
        chosen = np.flatnonzero(own & (ids >= low) & (ids < high))
        if len(chosen) != high - low:
            raise FileFormatError(f"part {part} has {len(chosen)} edges of {name}, its metadata say {high - low}")
        chosen = chosen[np.argsort(ids[chosen])]
        source, _, destination = relation_of(name)
        ends = [(edges.src, source), (edges.dst, destination)]
        rows = [type_rows(global_ids[end[chosen]], book.nodes[node_type], name) for end, node_type in ends]
        if original is not None:
            rows = [original[node_type][row] for row, (_, node_type) in zip(rows, ends, strict=True)]
        writer.add(f"edges.{name}.ends", np.stack(rows, axis=1))


def type_rows(global_ids: np.ndarray, ranges: np.ndarray, name: str) -> np.ndarray:
    """Find the row ids within a type [E] of global ids, by the ranges of the parts."""
    counts = ranges[:, 1] - ranges[:, 0]
    part = np.searchsorted(ranges[:, 0], global_ids, side="right") - 1
    rows = global_ids - ranges[part, 0]
    if len(rows) and (part.min() < 0 or (rows >= counts[part]).any()):
        raise FileFormatError(f"an edge of {name} has an end that is not of its type")
    return (np.cumsum(counts) - counts)[part] + rows


def relation_of(name: str) -> tuple[str, str, str]:
    """Split the name of a relation into its three parts."""
    if name.count(":") != 2:
        raise FileFormatError(f"edge_map: {name!r} is not of the form source:relation:destination")
    source, relation, destination = name.split(":")
    return source, relation, destination
