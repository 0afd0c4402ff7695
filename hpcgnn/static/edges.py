"""Edges as sampling sees them: turned round, with their rows and columns, and split by type.

m in-edges of a relation at this rank, o out-edges, x entries of edges that steps leave out, T types; E edges of a
block's relation, whose positions count all edges of the relation, rank after rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import World
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.graph.partition import GraphPartition, InEdges, Relation
from hpcgnn.graph.spill import exchange_columns
from hpcgnn.native.dispatch import upload
from hpcgnn.static.model.blocks import Adjacency, Block
from hpcgnn.static.neighbors import edges_below


def outward(partition: GraphPartition, channel: Channel) -> GraphPartition:
    """Collective. The graph with every relation reversed, its lists those of out-edges: in-edges of the result are
    out-edges of the graph, with the columns of their edges. The partition must have been opened with out-edges."""
    edges = [
        replace(out, columns=_columns_of(out.row, mine, relation.num_edges, channel))
        for relation, mine, out in zip(partition.relations, partition.edges, partition.out, strict=True)
    ]
    relations = [Relation(r.name, r.dst_type, r.src_type, r.num_edges) for r in partition.relations]
    return replace(partition, relations=tuple(relations), edges=tuple(edges), out=())


def _columns_of(rows: np.ndarray, edges: InEdges, num_edges: int, channel: Channel) -> dict[str, np.ndarray]:
    """Collective. Columns of the edges with row ids ``rows`` [o], unique, by way of ranks that hold them by row id."""
    if not edges.columns:
        return {}
    blocks = BlockOwnership.even(num_edges, channel.size)
    owner, _ = blocks.locate(edges.row)
    row, *columns = exchange_columns([edges.row, *edges.columns.values()], owner, channel)
    order, route = np.argsort(row), Route.plan(blocks, rows, channel)
    return {
        name: _pull(route, column[order]) for name, column in zip(edges.columns, columns, strict=True)
    }  # fmt: skip


def _pull(route: Route, column: np.ndarray) -> np.ndarray:
    """Collective. Wanted rows of a column of any dtype."""
    width = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    raw = np.ascontiguousarray(column).reshape(-1).view(np.uint8).reshape(len(column), width)
    (found,) = route.pull(torch.from_numpy(raw))
    return found.numpy().reshape(-1).view(column.dtype).reshape(-1, *column.shape[1:])


class EdgeTables:
    """Collective to create and to use. What steps fetch of edges, by relation."""

    def __init__(
        self, partition: GraphPartition, columns: Sequence[str], dtype: torch.dtype, device: torch.device,
        channel: Channel,
    ):  # fmt: skip
        """columns: names; a relation without one goes without it; dtype: of those of floating point."""
        self._owners = [BlockOwnership(starts) for starts in edges_below(partition, channel).T]
        self._tables = [_tables(edges, columns, dtype) for edges in partition.edges]
        self._device = device

    def attach(self, blocks: tuple[Block, ...], channel: Channel) -> tuple[Block, ...]:
        """Collective. The blocks with row ids and columns of their edges in place of positions; one request and one
        reply a relation."""
        numbers = sorted({adjacency.relation for block in blocks for adjacency in block.relations})
        found = {number: self._fetch(number, blocks, channel) for number in numbers}
        return tuple(
            replace(block, relations=tuple(found[adjacency.relation].pop(0) for adjacency in block.relations))
            for block in blocks
        )

    def _fetch(self, relation: int, blocks: tuple[Block, ...], channel: Channel) -> list[Adjacency]:
        """Collective. A relation's part of every block."""
        mine: list[Any] = [part for block in blocks for part in block.relations if part.relation == relation]
        positions = torch.cat([adjacency.edge for adjacency in mine]).cpu().numpy()
        unique, inverse = np.unique(positions, return_inverse=True)
        route = Route.plan(self._owners[relation], unique, channel)
        names, tables = zip(*self._tables[relation].items(), strict=True)
        rows = [upload(table[torch.from_numpy(inverse)], self._device) for table in route.pull(*tables)]
        pieces = zip(*(row.split([len(adjacency.edge) for adjacency in mine]) for row in rows), strict=True)
        return [
            replace(adjacency, edge=piece[0], columns=dict(zip(names[1:], piece[1:], strict=True)))
            for adjacency, piece in zip(mine, pieces, strict=True)
        ]


def check_columns(partition: GraphPartition, columns: Sequence[str]) -> None:
    """Raises ValueError for a column that no relation has."""
    known = {name for edges in partition.edges for name in edges.columns}
    for name in columns:
        if name not in known:
            raise ValueError(f"no relation has a column {name}; there are {', '.join(sorted(known)) or 'none'}")


def _tables(edges: InEdges, columns: Sequence[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Row ids, then the columns."""
    found = {"row": torch.from_numpy(edges.row)}
    for name in columns:
        if name in edges.columns:
            column = edges.columns[name]
            floating = column.dtype.kind == "f"
            found[name] = torch.from_numpy(column).to(dtype) if floating else torch.from_numpy(column.astype(np.int64))
    return found


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
