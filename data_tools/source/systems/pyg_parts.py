"""Reads the folder that torch_geometric.distributed.Partitioner writes, and joins its parts to one graph.

The layout is that of torch_geometric/distributed/partition.py (version 2.8.1 of PyTorch Geometric)::

    META.json                       num_parts, is_hetero, node_types, edge_types, node_offset
    node_map.pt, edge_map.pt        the part of every node and edge; with types node_map/<type>.pt and
                                    edge_map/<a__r__b>.pt
    part_<i>/graph.pt               edge_id, row, col (numbers before the partition), by type where there are any
    part_<i>/node_feats.pt          global_id, feats {x}, and with types id; time of all nodes
    part_<i>/edge_feats.pt          feats {edge_attr} and edge_time, in the order of graph.pt

Nodes and edges get their numbers before the partition, and column ``part`` keeps the part of a node. Labels and masks
are not in such a folder. Edge ids of heterogeneous graphs number all relations together, in order of edge_types.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from data_tools.source.formats.arrays import open_tensors
from data_tools.source.object_columns import array_of
from data_tools.source.objects import NODE
from data_tools.source.systems.joined_parts import ENDS, JoinedParts
from hpcgnn.graph.decode import decode_json

META = "META.json"
ONLY = (NODE, "to", NODE)


def unpack_pyg(folder: pathlib.Path, unpacked: pathlib.Path) -> dict[str, Any]:
    """Write the arrays of all parts to a folder; returns the spec that reads them. Raises FileFormatError naming the
    file, and KeyError or TypeError for a value of another form."""
    meta = decode_json((folder / META).read_text())
    types = list(meta["node_types"] or [NODE])
    relations = [(str(src), str(name), str(dst)) for src, name, dst in meta["edge_types"] or [ONLY]]
    is_typed = bool(meta["is_hetero"])
    node_map = {kind: read_map(folder / "node_map", kind if is_typed else "") for kind in types}
    edge_map = {key: read_map(folder / "edge_map", "__".join(key) if is_typed else "") for key in relations}
    counts = {key: len(parts) for key, parts in edge_map.items()}
    joined = JoinedParts(unpacked, {kind: len(parts) for kind, parts in node_map.items()}, counts)
    for kind, parts in node_map.items():
        joined.put(kind, "part", np.arange(len(parts)), parts.astype(np.int32), folder / "node_map")
    first = dict(zip(relations, accumulate(counts.values(), initial=0), strict=False)) if is_typed else {}
    for part in range(int(meta["num_parts"])):
        put_part(joined, folder / f"part_{part}", part, first)
    return joined.spec()


def read_map(path: pathlib.Path, kind: str) -> np.ndarray:
    """Read the part of every node or edge."""
    return array_of(open_tensors(path / f"{kind}.pt" if kind else path.with_suffix(".pt")))


def put_part(joined: JoinedParts, folder: pathlib.Path, part: int, first: Mapping[tuple[str, str, str], int]) -> None:
    """Put the rows of one part into the tables. first: of a graph with types, the first edge id of each relation."""
    graph, nodes, edges = (open_tensors(folder / f"{name}.pt") for name in ("graph", "node_feats", "edge_feats"))
    for key, ends in graph.items() if first else [(ONLY, graph)]:
        rows = array_of(ends["edge_id"]) - first.get(key, 0)
        pairs = np.stack([array_of(ends["row"]), array_of(ends["col"])], axis=1)
        joined.put(key, ENDS, rows, pairs, folder / "graph.pt")
        of_edges = edges.get(key, {}) if first else edges
        put_columns(joined, key, rows, of_edges, folder / "edge_feats.pt")
        if "edge_time" in of_edges:
            joined.put(key, "time", rows, of_edges["edge_time"], folder / "edge_feats.pt")
    for kind, table in nodes.items() if first else [(NODE, nodes)]:
        put_columns(joined, kind, table["id" if first else "global_id"], table, folder / "node_feats.pt")
        if "time" in table and part == 0:  # every part has the times of all nodes
            time = array_of(table["time"])
            joined.put(kind, "time", np.arange(len(time)), time, folder / "node_feats.pt")


def put_columns(joined: JoinedParts, key: Any, rows: Any, table: Mapping[str, Any], origin: pathlib.Path) -> None:
    """Put the features of a table, if it has any, into a type or relation."""
    for name, values in table.get("feats", {}).items():
        if values is not None:
            joined.put(key, name, rows, values, origin)
