"""Write the part files of a static partition set: nodes, in-edges as CSC, and on request out-edges and the ranking of
remote nodes for caches.

N nodes of all types numbered together, P parts.
"""

from __future__ import annotations

import math

import numpy as np

from data_tools.partition.access import access_by_part
from data_tools.partition.csc import in_columns, out_columns, write_csc
from data_tools.partition.journal import Journal
from data_tools.partition.layout import Layout
from data_tools.partition.options import StaticOptions
from data_tools.partition.source import NodeType, Source
from data_tools.partition.temporal import PartGroup, carry_attributes, open_group, part_groups, write_node_columns
from hpcgnn.graph import files


def write_static_parts(source: Source, layout: Layout, journal: Journal, options: StaticOptions) -> dict:
    """Write the part files that are not finished; with a cache ranking, returns under ``cache`` which shares of the
    expected accesses are local and within the ranking."""
    accesses = np.zeros(3)
    for parts in part_groups(range(layout.num_parts)):
        found = journal.group(parts)
        if found is None:
            with open_group(layout, journal.folder, journal.set_id, parts) as opened:
                write_group(source, layout, opened, options)
                found = write_caches(source, layout, opened, options) if options.cache_ranking else [0.0, 0.0, 0.0]
            journal.note_group(parts, found)
        accesses += found
    if not options.cache_ranking:
        return {}
    total, local, ranked = accesses.tolist()
    share = lambda value: round(value / total, 6) if total else 0.0  # noqa: E731
    return {"cache": {"local": share(local), "ranked": share(ranked)}}


def write_group(source: Source, layout: Layout, group: PartGroup, options: StaticOptions) -> None:
    """Nodes and edges of a group of parts."""
    sections = ("nodes", "edges", *(("out",) if options.out_edges else ()))
    for file in group.files:
        for name in sections:
            file.create_group(name)
    write_node_columns(source, layout, group)
    for relation in source.relations:
        columns = in_columns(source, layout, relation)
        write_csc(source, layout, group, relation, "dst", f"edges/{relation.name}", columns)
        if options.out_edges:
            columns = out_columns(source, layout, relation)
            write_csc(source, layout, group, relation, "src", f"out/{relation.name}", columns)
    carry_attributes(source, group)


def write_caches(source: Source, layout: Layout, group: PartGroup, options: StaticOptions) -> list[float]:
    """The cache ranking of a group of parts; returns expected accesses: all, local, and those of ranked nodes."""
    parts = range(group.first, group.first + len(group.files))
    accesses = np.zeros(3)
    for part, probability in access_by_part(source, layout.part, parts, options.fanouts, options.batch_size):
        accesses[:2] += probability.sum(dtype=np.float64), probability[layout.part == part].sum(dtype=np.float64)
        for node_type in source.types:
            ids, values = rank_remote(layout, part, probability, node_type, options.cache_ranking)
            parent = group.files[part - group.first].require_group(f"cache/{node_type.name}")
            files.create_column(parent, "id", len(ids), (), np.int64)[:] = ids
            files.create_column(parent, "probability", len(ids), (), np.float32)[:] = values
            accesses[2] += values.sum(dtype=np.float64)
    return accesses.tolist()


def rank_remote(
    layout: Layout, part: int, probability: np.ndarray, node_type: NodeType, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Global ids and probabilities of the nodes of other parts that are reached most likely, at most a share of the
    type's nodes; probability [N]."""
    mine = slice(node_type.base, node_type.base + node_type.num_nodes)
    remote = node_type.base + np.flatnonzero((layout.part[mine] != part) & (probability[mine] > 0))
    order = np.lexsort((layout.global_id[remote], -probability[remote]))
    remote = remote[order[: math.ceil(share * node_type.num_nodes)]]
    return layout.global_id[remote], probability[remote]
