"""Prepares edges for sampling: reverses them, fetches their rows and columns, splits them by type.

m in-edges of a relation at this rank, o out-edges, x entries of edges that steps leave out, T types. E edges of a
block's relation, whose positions count all edges of the relation, rank after rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel, exchange_columns
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import World
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.graph.columns import Widening
from hpcgnn.graph.partition import WEIGHT, GraphPartition, InEdges, Relation
from hpcgnn.native.dispatch import upload
from hpcgnn.native.rows import gather_rows
from hpcgnn.static.config import STORED
from hpcgnn.static.model.blocks import Adjacency, Block
from hpcgnn.static.sampling.neighbors import HiddenEdges, edges_below


def outward(partition: GraphPartition, channel: Channel) -> GraphPartition:
    """Collective. Reverse every relation: in-edges of the result are out-edges of the graph, with the columns of their
    edges. The partition must have been opened with out-edges."""
    relations, lists = [], []
    for relation, edges, out in zip(partition.relations, partition.edges, partition.out, strict=True):
        columns = {}
        if edges.columns:  # by way of the ranks that hold them in order of row id
            blocks = BlockOwnership.even(relation.num_edges, channel.size)
            owner, _ = blocks.locate(edges.row)
            row, *values = exchange_columns([edges.row, *edges.columns.values()], owner, channel)
            order, route = np.argsort(row), Route.plan(blocks, out.row, channel)
            columns = {name: _pull(route, column[order]) for name, column in zip(edges.columns, values, strict=True)}
        lists.append(replace(out, columns=columns))
        relations.append(Relation(relation.name, relation.dst_type, relation.src_type, relation.num_edges))
    return replace(partition, relations=tuple(relations), edges=tuple(lists), out=(), turned=True)


def _pull(route: Route, column: np.ndarray) -> np.ndarray:
    """Collective. Pull the wanted rows of a column of any dtype."""
    width = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    raw = np.ascontiguousarray(column).reshape(-1).view(np.uint8).reshape(len(column), width)
    (rows,) = route.pull(torch.from_numpy(raw))
    return rows.numpy().reshape(-1).view(column.dtype).reshape(-1, *column.shape[1:])


class EdgeColumns:
    """Row ids and columns of this rank's edges, by relation, for blocks of its nodes.

    columns: names; a relation that lacks one goes without it; dtype: of floating columns, others are int64. Narrow
    features stay so in memory and in messages, and are widened in the blocks. With ``partition.weighs``, the column
    ``weight`` becomes the factors of the messages. with_rows: row ids, too; by default with columns."""

    def __init__(
        self, partition: GraphPartition, columns: Sequence[str], dtype: torch.dtype, with_rows: bool | None = None
    ):
        weighs = self._weighs = partition.weighs
        self._tables: list[dict[str, torch.Tensor]] = []
        self._widenings: list[dict[str, Widening]] = []
        for number, edges in enumerate(partition.edges):
            widenings: dict[str, Widening] = {}
            tables = {"row": torch.from_numpy(edges.row)} if with_rows or (with_rows is None and columns) else {}
            for name in dict.fromkeys([*columns, *[WEIGHT] * weighs]):
                if name in edges.columns:
                    column, encoding = edges.columns[name], partition.edge_encoding(number, name)
                    if encoding is not None:
                        widenings[name] = Widening(encoding, dtype, False)
                        tables[name] = widenings[name].stored(column)
                    elif column.dtype.kind == "f" or (weighs and name == WEIGHT):
                        tables[name] = torch.from_numpy(column).to(dtype)
                    else:
                        tables[name] = torch.from_numpy(column.astype(np.int64))
            self._tables.append(tables)
            self._widenings.append(widenings)

    def take(self, edges: Adjacency, places: torch.Tensor | slice) -> Adjacency:
        """Give a relation's edges in a block their rows and columns: of this rank's edges at ``places``."""
        return self._filled(edges, {name: table[places] for name, table in self._tables[edges.relation].items()})

    def _filled(self, edges: Adjacency, columns: dict[str, torch.Tensor]) -> Adjacency:
        if not columns:
            return replace(edges, edge=None)
        for name, widening in self._widenings[edges.relation].items():
            columns[name] = widening(columns[name])
        edge, weight = columns.pop("row", None), columns.get(WEIGHT) if self._weighs else None
        return replace(edges, edge=edge, columns=columns, weight=weight)


class EdgeTables(EdgeColumns):
    """Columns of edges for the sampled blocks of steps, whose edges may be those of any rank. Collective to create and
    to use."""

    def __init__(
        self, partition: GraphPartition, columns: Sequence[str], dtype: torch.dtype, device: torch.device,
        channel: Channel,
    ):  # fmt: skip
        super().__init__(partition, columns, dtype, bool(columns) or not partition.weighs)
        self._owners, self._device = [BlockOwnership(starts) for starts in edges_below(partition, channel).T], device

    def attach(self, blocks: tuple[Block, ...], channel: Channel) -> tuple[Block, ...]:
        """Collective. Return the blocks with row ids and columns of their edges in place of positions; one request and
        one reply a relation."""
        numbers = sorted({adjacency.relation for block in blocks for adjacency in block.relations})
        attached = {number: self._attach_relation(number, blocks, channel) for number in numbers}
        return tuple(
            replace(block, relations=tuple(attached[adjacency.relation].pop(0) for adjacency in block.relations))
            for block in blocks
        )

    def _attach_relation(self, relation: int, blocks: tuple[Block, ...], channel: Channel) -> list[Adjacency]:
        """Collective. Attach rows and columns to a relation's adjacencies, in the order of the blocks that have one."""
        adjacencies: list[Any] = [part for block in blocks for part in block.relations if part.relation == relation]
        if not self._tables[relation]:
            return [replace(adjacency, edge=None) for adjacency in adjacencies]
        if channel.size == 1:
            return [self._local(adjacency) for adjacency in adjacencies]
        names, tables = zip(*self._tables[relation].items(), strict=True)
        positions = torch.cat([adjacency.edge for adjacency in adjacencies]).cpu()
        unique, inverse = np.unique(positions.numpy(), return_inverse=True)
        pulled = Route.plan(self._owners[relation], unique, channel).pull(*tables)
        rows = [upload(table[torch.from_numpy(inverse)], self._device) for table in pulled]
        pieces = zip(*(row.split([len(adjacency.edge) for adjacency in adjacencies]) for row in rows), strict=True)
        return [
            self._filled(adjacency, dict(zip(names, piece, strict=True)))
            for adjacency, piece in zip(adjacencies, pieces, strict=True)
        ]

    def _local(self, edges: Adjacency) -> Adjacency:
        """Attach rows and columns of this rank's edges, which are all edges."""
        assert edges.edge is not None
        positions = edges.edge.cpu()
        tables = self._tables[edges.relation].items()
        return self._filled(edges, {name: upload(_taken(table, positions), self._device) for name, table in tables})


def _taken(table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Copy values or rows of a table, in half the time of ``table[positions]``."""
    return table.index_select(0, positions) if table.dim() == 1 else gather_rows(table, positions)


def check_columns(partition: GraphPartition, columns: Sequence[str], key: str = "") -> None:
    """Check that each column is of some relation. Raises ValueError, which begins with the ``key`` that reads it, for
    one that no relation has."""
    names = {name for edges in partition.edges for name in edges.columns}.union(*partition.unread)
    for name in columns:
        if name not in names:
            begin, there = f"{key}: " if key else "", ", ".join(sorted(names)) or "none"
            raise ValueError(f"{begin}no relation has a column {name}; there are {there}")


TYPED, BOTH = "typed", "both"
MESSAGES = (STORED, TYPED, BOTH)
LeftOut = dict[int, HiddenEdges]  # by relation, what steps leave out


def type_edges(
    partition: GraphPartition, relation: int, left_out: LeftOut, num_types: int, messages: str, world: World,
    channel: Channel,
) -> tuple[GraphPartition, LeftOut]:  # fmt: skip
    """Collective. Replace a relation by T ones, one for each type of its edges, and, for messages "both", T more that
    lead back; all have the relation's name. Returns the graph, and the edges in it that steps leave out."""
    kind, edges = partition.relations[relation], partition.edges[relation]
    none = np.empty(0, np.int64)
    hidden = left_out.get(relation, HiddenEdges.of(none, none, none, none))
    others = [number for number in range(len(partition.relations)) if number != relation]
    relations = [partition.relations[number] for number in others]
    lists = [partition.edges[number] for number in others]
    hidden_of = {new: left_out[number] for new, number in enumerate(others) if number in left_out}
    directions = [(kind, edges, hidden)]
    if messages == BOTH:
        back = replace(kind, src_type=kind.dst_type, dst_type=kind.src_type, leads_back=True)
        directions.append((back, *_turned(partition, kind, edges, hidden, channel)))
    for of, whole, entries in directions:
        rel = whole.columns["rel"].astype(np.int64)
        counts = np.bincount(rel, minlength=num_types)
        order = np.argsort(rel, kind="stable")
        place = np.empty(len(rel), np.int64)  # of every edge in order of type
        place[order] = np.arange(len(rel))
        found = _hidden_of_types(entries, rel, place - (np.cumsum(counts) - counts)[rel], num_types)
        hidden_of |= {len(lists) + number: of_type for number, of_type in enumerate(found)}
        sizes = world.reduce_array(counts.astype(np.int64))
        relations += [replace(of, num_edges=size) for size in sizes.tolist()]
        lists += _of_types(whole, order, counts)
    source = np.concatenate([each.src for each in lists])  # one array, which samplers draw from
    sources = np.split(source, np.cumsum([len(each.src) for each in lists])[:-1])
    lists = [replace(each, src=src) for each, src in zip(lists, sources, strict=True)]
    return replace(partition, relations=tuple(relations), edges=tuple(lists)), hidden_of


def _of_types(edges: InEdges, order: np.ndarray, counts: np.ndarray) -> list[InEdges]:
    """Split edges by type. order [m]: their order by type, then as before; counts [T]: edges of each type."""
    dst, ends = edges.dst[order], np.cumsum(counts)
    begins = np.concatenate((ends - counts, np.flatnonzero(np.diff(dst)) + 1))
    starts = np.unique(begins[begins < len(dst)])  # of the edges of every type and node
    src, row = edges.src[order], edges.row[order] if len(edges.row) else edges.row
    columns, lists = {name: column[order] for name, column in edges.columns.items()}, []
    for begin, end in zip((ends - counts).tolist(), ends.tolist(), strict=True):
        first, last = np.searchsorted(starts, (begin, end))
        nodes, piece = dst[starts[first:last]], slice(begin, end)
        of_type = {name: column[piece] for name, column in columns.items()}
        offsets = np.append(starts[first:last], end) - begin
        lists.append(InEdges(offsets, src[piece], row[piece], of_type, nodes, edges.num_nodes))
    return lists


def _hidden_of_types(entries: HiddenEdges, rel: np.ndarray, within: np.ndarray, num_types: int) -> list[HiddenEdges]:
    """Split what steps leave out by the types rel [m] of the edges; within [m]: place of every edge among the edges of
    its type."""
    of_entry, seeds = rel[entries.position], np.argsort(entries.group, kind="stable")
    begin = np.searchsorted(entries.group[seeds], np.arange(len(entries.indptr)))
    order, hidden = np.argsort(of_entry, kind="stable"), [HiddenEdges.of(*[entries.place[:0]] * 4)] * num_types
    for chosen in np.split(order, 1 + np.flatnonzero(np.diff(of_entry[order]))) if len(order) else []:
        groups, group = np.unique(entries.edge_group[chosen], return_inverse=True)
        count = begin[groups + 1] - begin[groups]
        of_seeds = seeds[np.repeat(begin[groups] - (np.cumsum(count) - count), count) + np.arange(count.sum())]
        number = np.repeat(np.arange(len(groups)), count)
        position = within[entries.position[chosen]]
        hidden[of_entry[chosen[0]]] = HiddenEdges.of(position, group, entries.place[of_seeds], number)
    return hidden


def _turned(
    partition: GraphPartition, kind: Relation, edges: InEdges, hidden: HiddenEdges, channel: Channel
) -> tuple[InEdges, HiddenEdges]:
    """Collective. Turn the edges round: in-edges at the owners of their sources, and those that steps leave out."""
    owner, _ = partition.book.locate(edges.src)
    dst = partition.global_ids(kind.dst_type)[edges.dst]
    src, dst, row, *columns = exchange_columns([edges.src, dst, edges.row, *edges.columns.values()], owner, channel)
    node = src - int(partition.book.of_type(kind.src_type).starts[partition.rank])
    order = np.lexsort((row, node))
    nodes = partition.of_type(kind.src_type)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(node, minlength=nodes.stop - nodes.start))))
    named = {name: column[order] for name, column in zip(edges.columns, columns, strict=True)}
    entry_row, *entries = _turned_entries(edges, hidden, owner, channel)
    by_row = np.argsort(row[order])
    position = by_row[np.searchsorted(row[order], entry_row, sorter=by_row)] if len(row) else entry_row
    return InEdges(indptr, dst[order], row[order], named), HiddenEdges.of(position, *entries)


def _turned_entries(edges: InEdges, hidden: HiddenEdges, owner: np.ndarray, channel: Channel) -> list[np.ndarray]:
    """Collective. Send what steps leave out to the owners [m] of the edges' sources, one for all edges of a group:
    rows and groups of the edges, places and groups of the seeds."""
    sizes = channel.everyone(torch.tensor([[len(hidden.indptr) - 1]], dtype=torch.int64)).numpy().ravel()
    first, owner_of_edge = sizes[: channel.rank].sum(), owner[hidden.position]
    row, group = exchange_columns([edges.row[hidden.position], hidden.edge_group + first], owner_of_edge, channel)
    owner_of_group = owner_of_edge[hidden.indptr[:-1]]
    place, seed_group = exchange_columns([hidden.place, hidden.group + first], owner_of_group[hidden.group], channel)
    _, number = np.unique(np.concatenate([group, seed_group]), return_inverse=True)
    return [row, number[: len(group)], place, number[len(group) :]]
