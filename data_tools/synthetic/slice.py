"""Partition sets of any size of which only some parts are written: the parts that one rank of many would open.

The graph looks the same from all its P parts: adding 1 to the part of every node (modulo P) leaves it unchanged. So a
part takes the space and the time of its own share, for any size of the whole, and one part determines all others. The
k-th node of part p has row k P + p: rows carry no information about parts, as in other graphs. n nodes and m edges or
events per part, N = P n nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import h5py
import numpy as np

from data_tools.synthetic.tables import random_stream
from hpcgnn.graph import files

TYPE, RELATION = "node", "node.to.node"
FRACTIONS = 0.8, 0.9  # of the events: where training, and where validation ends
SEEDS, CLASSES = 0.1, 16  # of the nodes: those that train, and as many that validate and test; classes of labels
SNAPSHOTS = 20
SKEW = 2.0  # power of the uniform numbers that choose nodes: the first ones of a part are chosen more often


def write_static_slice(
    folder: str | os.PathLike, num_parts: int, num_nodes: int, num_edges: int, width: int, parts: Iterable[int] = (0,)
) -> None:
    """Write a static graph with ``width`` features, a label and a split of every node: the book, and some parts."""

    def fill(file: h5py.File, part: int) -> None:
        rng = random_stream(0, 0)
        nodes = _write_nodes(file, part, num_parts, num_nodes)
        columns: dict[str, Any] = {"feat": rng.standard_normal((num_nodes, width), dtype=np.float32)} if width else {}
        columns |= {
            "label": rng.integers(CLASSES, size=num_nodes),
            "split": np.digitize(rng.random(num_nodes), (SEEDS, 2 * SEEDS)).astype(np.int8),
        }
        edges = _in_edges(rng, part, (num_parts, num_nodes), num_edges)
        _write_columns(nodes, columns)
        _write_columns(file.create_group(f"edges/{RELATION}"), edges)

    _write_set(folder, "static", num_parts, num_nodes, num_edges, fill, parts, [])


def write_snapshot_slice(
    folder: str | os.PathLike, num_parts: int, num_nodes: int, num_edges: int, width: int, parts: Iterable[int] = (0,),
    num_snapshots: int = SNAPSHOTS,
) -> None:  # fmt: skip
    """Write a graph of some snapshots with a target and ``width`` features of every node in each: the book, and
    some parts. An edge is in one snapshot or in some that follow each other."""

    def fill(file: h5py.File, part: int) -> None:
        rng = random_stream(0, 2)
        nodes = _write_nodes(file, part, num_parts, num_nodes)
        for name, shape in {"target": (), "feat": (width,)}.items():
            if 0 not in shape:
                _write_columns(nodes, {name: rng.standard_normal((num_nodes, num_snapshots, *shape), dtype=np.float32)})
                nodes[name].attrs["per_snapshot"] = True
        edges = _in_edges(rng, part, (num_parts, num_nodes), num_edges)
        edges["first"] = rng.integers(num_snapshots, size=num_edges).astype(np.int32)
        last = edges["first"] + rng.integers(4, size=num_edges)
        edges["last"] = np.minimum(last, num_snapshots - 1).astype(np.int32)
        _write_columns(file.create_group(f"edges/{RELATION}"), edges)

    sizes = num_parts, num_nodes, num_edges
    _write_set(folder, "snapshots", *sizes, fill, parts, ["first", "last"], num_snapshots=num_snapshots)


def write_temporal_slice(
    folder: str | os.PathLike, num_parts: int, num_nodes: int, num_events: int, width: int, parts: Iterable[int] = (0,)
) -> None:
    """Write a temporal graph, events with ``width`` features: the book, and some parts. Each part has one of P
    consecutive events, which have one time."""

    def fill(file: h5py.File, part: int) -> None:
        rng, sizes = random_stream(0, 1), (num_parts, num_nodes)
        _write_nodes(file, part, num_parts, num_nodes)
        source, target = (_choose(rng, num_nodes, num_events) for _ in range(2))
        target = np.where(target == source, (target + 1) % num_nodes, target)
        away, time = rng.integers(num_parts, size=num_events), np.arange(num_events)
        # Of every time this part has two events, one that begins and one that ends here: the parts of their sources.
        here: list[Any] = [part, (part - away) % num_parts]
        columns: dict[str, Any] = {
            "row": [time * num_parts + start for start in here],
            "src": [_node(start, source, sizes) for start in here],
            "dst": [_node(start + away, target, sizes) for start in here],
            "time": [time, time],
            "split": [np.digitize(time, [int(fraction * num_events) for fraction in FRACTIONS]).astype(np.int8)] * 2,
        }
        columns = {name: np.concatenate(pair) for name, pair in columns.items()}
        _, order = np.unique(columns["row"], return_index=True)  # an event within the part is there once
        columns = {name: column[order] for name, column in columns.items()}
        if width:
            columns["feat"] = rng.standard_normal((num_events, width), dtype=np.float32)[columns["time"]]
        _write_columns(file.create_group(f"edges/{RELATION}"), columns)
        _write_columns(file.create_group(f"history/{RELATION}"), _history(columns, part, num_nodes))

    names = ["time", "split"] + ["feat"] * (width > 0)
    _write_set(folder, "temporal", num_parts, num_nodes, num_events, fill, parts, names)


def _history(columns: dict[str, np.ndarray], part: int, num_nodes: int) -> dict[str, np.ndarray]:
    """Make the histories of a part's nodes: places of events, in their order."""
    node = np.concatenate([columns["src"], columns["dst"]]) - part * num_nodes
    own = np.flatnonzero((node >= 0) & (node < num_nodes))
    place = own % len(columns["src"])
    order = np.lexsort((place, node[own]))
    return {
        "indptr": np.searchsorted(node[own][order], np.arange(num_nodes + 1)),
        "event": place[order].astype(np.int32 if len(columns["src"]) < 2**31 else np.int64),
    }


def _in_edges(rng: np.random.Generator, part: int, sizes: tuple[int, int], num_edges: int) -> dict[str, Any]:
    """Draw the in-edges of a part's nodes; sizes: P and n."""
    dst = np.sort(_choose(rng, sizes[1], num_edges))
    return {
        "indptr": np.searchsorted(dst, np.arange(sizes[1] + 1)),
        "src": _node(part + rng.integers(sizes[0], size=num_edges), _choose(rng, sizes[1], num_edges), sizes),
        "row": part * num_edges + np.arange(num_edges),
    }


def _choose(rng: np.random.Generator, num_nodes: int, count: int) -> np.ndarray:
    return (num_nodes * rng.random(count) ** SKEW).astype(np.int64)


def _node(part: np.ndarray | int, number: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
    """Return the global ids of the nodes with a number within their part, which is taken modulo P; sizes: P and n."""
    return part % sizes[0] * sizes[1] + number


def _write_nodes(file: h5py.File, part: int, num_parts: int, num_nodes: int) -> h5py.Group:
    group = file.create_group(f"nodes/{TYPE}")
    _write_columns(group, {"row": np.arange(num_nodes) * num_parts + part})
    return group


def _write_columns(group: h5py.Group, columns: dict[str, np.ndarray]) -> None:
    for name, values in columns.items():
        files.create_column(group, name, len(values), values.shape[1:], values.dtype)[:] = values


def _write_set(
    folder, kind: str, num_parts: int, num_nodes: int, num_edges: int, fill, parts, columns, **further: Any
) -> None:
    """Write the parts, each by ``fill(file, part)``, and the book, as if the parts left out were there; columns: names
    of the edges' columns; further: attributes of the book."""
    set_id, hashes = f"slice-{kind}-{num_parts}-{num_nodes}-{num_edges}", [b""] * num_parts
    sizes = np.zeros(num_parts, np.int64)
    for part in parts:
        path = files.part_path(folder, part)
        with files.writing(path, files.PART, part=part, num_parts=num_parts, set_id=set_id) as file:
            fill(file, part)
        hashes[part], sizes[part] = files.file_hash(path).encode(), os.path.getsize(path)
    attributes: dict[str, Any] = {"seed": 0, "method": "slice", "options": "{}", "quality": "{}"}
    attributes |= further | {"source_name": "slice", "source_hash": set_id, "set_id": set_id, "num_parts": num_parts}
    with files.writing(files.book_path(folder), files.BOOK, kind=kind, **attributes) as book:
        nodes, edges = book.create_group(f"nodes/{TYPE}"), book.create_group(f"edges/{RELATION}")
        nodes.attrs["num_nodes"], nodes.attrs["type_id"] = num_parts * num_nodes, 0
        nodes["offsets"] = np.arange(num_parts + 1) * num_nodes
        edges.attrs["num_edges"], edges.attrs["relation_id"] = num_parts * num_edges, 0
        edges["columns"] = np.array([name.encode() for name in columns], "S")
        book["parts/hash"] = np.array(hashes, "S64")
        book["parts/bytes"] = np.where(sizes > 0, sizes, sizes.max())
