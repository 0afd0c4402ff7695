"""Edges with types (column ``rel``) as relations of messages, one a type, and the same edges the other way.

m in-edges of the relation at this rank, x entries of edges that steps leave out, T types.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.graph.spill import exchange_columns
from hpcgnn.store.graph_partition import GraphPartition, InEdges, Relation

STORED, TYPED, BOTH = "stored", "typed", "both"
MESSAGES = (STORED, TYPED, BOTH)
LeftOut = dict[int, tuple[np.ndarray, np.ndarray]]  # by relation: positions [x] among its in-edges, and places [x]


def type_edges(
    partition: GraphPartition, relation: int, left_out: LeftOut, num_types: int, messages: str, world: World,
    channel: Channel,
) -> tuple[GraphPartition, LeftOut]:  # fmt: skip
    """Collective. The graph with T relations in the place of one, then, for messages "both", T that lead back; and what
    steps leave out of it. All have the relation's name."""
    kind, edges = partition.relations[relation], partition.edges[relation]
    none = np.empty(0, np.int64), np.empty(0, np.int64)
    entries = left_out.get(relation, none)
    kept = [number for number in range(len(partition.relations)) if number != relation]
    relations, lists = [partition.relations[number] for number in kept], [partition.edges[number] for number in kept]
    found = {new: left_out[number] for new, number in enumerate(kept) if number in left_out}
    pieces = [(kind, edges, entries)]
    if messages == BOTH:
        back = replace(kind, src_type=kind.dst_type, dst_type=kind.src_type)
        pieces.append((back, *_turned(partition, kind, edges, entries, channel)))
    for of, whole, left in pieces:
        rel = whole.columns["rel"].astype(np.int64)
        sizes = world.reduce_array(np.bincount(rel, minlength=num_types).astype(np.int64))
        within = _number_within(rel, num_types)
        for number in range(num_types):
            mine = rel[left[0]] == number
            found[len(lists)] = within[left[0][mine]], left[1][mine]
            relations.append(Relation(of.name, of.src_type, of.dst_type, int(sizes[number])))
            lists.append(whole.take(rel == number))
    return replace(partition, relations=tuple(relations), edges=tuple(lists)), found


def _number_within(rel: np.ndarray, num_types: int) -> np.ndarray:
    """Place [m] of every edge among those of its type."""
    order, counts = np.argsort(rel, kind="stable"), np.bincount(rel, minlength=num_types)
    within = np.empty(len(rel), np.int64)
    within[order] = np.arange(len(rel)) - (np.cumsum(counts) - counts)[rel[order]]
    return within


def _turned(
    partition: GraphPartition, kind: Relation, edges: InEdges, entries, channel: Channel
) -> tuple[InEdges, tuple[np.ndarray, np.ndarray]]:
    """Collective. The edges the other way, as in-edges at the owners of their sources, and the entries of these."""
    owner, _ = partition.book.locate(edges.src)
    dst = partition.global_ids(kind.dst_type)[edges.dst]
    src, dst, row, *columns = exchange_columns([edges.src, dst, edges.row, *edges.columns.values()], owner, channel)
    left_row, place = exchange_columns([edges.row[entries[0]], entries[1]], owner[entries[0]], channel)
    node = src - int(partition.book.of_type(kind.src_type).starts[partition.rank])
    order = np.lexsort((row, node))
    mine = partition.of_type(kind.src_type)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(node, minlength=mine.stop - mine.start))))
    named = {name: column[order] for name, column in zip(edges.columns, columns, strict=True)}
    by_row = np.argsort(row[order])
    position = by_row[np.searchsorted(row[order], left_row, sorter=by_row)] if len(row) else left_row
    return InEdges(indptr, dst[order], row[order], named), (position, place)
