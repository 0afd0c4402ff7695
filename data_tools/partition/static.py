"""Write the part files of a static partition set: nodes, in-edges as CSC, and on request out-edges and the ranking of
remote nodes for caches.

N nodes of all types numbered together, P parts.
"""

from __future__ import annotations

import math

import numpy as np

from data_tools.graph.source import NodeType, Source
from data_tools.partition.access import access_by_part
from data_tools.partition.csc import write_csc
from data_tools.partition.layout import PartLayout
from data_tools.partition.options import StaticOptions
from data_tools.partition.temporal import PartGroup, carry_attributes, edge_columns, stored_columns, write_node_columns
from hpcgnn.graph import files


def write_group(source: Source, layout: PartLayout, group: PartGroup, options: StaticOptions) -> None:
    """Write nodes and edges of a group of parts."""
    sections = ("nodes", "edges", *(("out",) if options.out_edges else ()))
    for file in group.files:
        for name in sections:
            file.create_group(name)
    write_node_columns(source, layout, group)
    for relation in source.relations:
        (rows, src), (_, dst) = (edge_columns(source, layout, relation, (end,)) for end in ("src", "dst"))
        columns = [src, rows, *stored_columns(source.edges(relation), relation.columns)]
        write_csc(source, layout, group, relation, "dst", f"edges/{relation.name}", columns)
        if options.out_edges:
            write_csc(source, layout, group, relation, "src", f"out/{relation.name}", [dst, rows])
    carry_attributes(source, group)


def write_caches(
    source: Source, layout: PartLayout, group: PartGroup, options: StaticOptions
) -> dict[int, tuple[float, float, float]]:
    """Write the cache ranking of a group of parts; returns the expected accesses of each: to all nodes, local ones and
    ranked ones. source: the graph file, as every part may reach every node; layout: of its nodes."""
    parts = range(group.first, group.first + len(group.files))
    accesses = {}
    for part, probability in access_by_part(source, layout.part, parts, options.fanouts, options.batch_size):
        ranked = 0.0
        for node_type in source.types:
            ids, values = rank_remote(layout, part, probability, node_type, options.cache_ranking)
            parent = group.files[part - group.first].require_group(f"cache/{node_type.name}")
            files.create_column(parent, "id", len(ids), (), np.int64)[:] = ids
            files.create_column(parent, "probability", len(ids), (), np.float32)[:] = values
            ranked += float(values.sum(dtype=np.float64))
        local = probability[layout.part == part].sum(dtype=np.float64)
        accesses[part] = float(probability.sum(dtype=np.float64)), float(local), ranked
    return accesses


def rank_remote(
    layout: PartLayout, part: int, probability: np.ndarray, node_type: NodeType, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Rank the nodes of other parts that are reached most likely, at most a share of the type's nodes: global ids and
    probabilities; probability [N]."""
    of_type = slice(node_type.base, node_type.base + node_type.num_nodes)
    remote = node_type.base + np.flatnonzero((layout.part[of_type] != part) & (probability[of_type] > 0))
    order = np.lexsort((layout.global_id[remote], -probability[remote]))
    remote = remote[order[: math.ceil(share * node_type.num_nodes)]]
    return layout.global_id[remote], probability[remote]
