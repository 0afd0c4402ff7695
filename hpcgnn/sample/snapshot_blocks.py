"""The neighbourhoods of single snapshots, with the routes that bring their ghosts.

n nodes of this rank, g ghosts, e edges of a snapshot. A *ghost* is a node of another rank, or, by part, of another part
than the edge's destination: what depends on ghosts being remote must not depend on the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.graph.spill import exchange_columns
from hpcgnn.native import EdgeLists
from hpcgnn.nn.neighborhood import Edges, Neighborhood
from hpcgnn.store.snapshot_partition import SnapshotEdges, SnapshotPartition

WEIGHT = "weight"


@dataclass(frozen=True, slots=True)
class Block:
    """A neighbourhood and the route to its ghosts, None where there is but one rank and ghosts are of other ranks;
    ghost [g] global ids, ghost_row [g] flat row ids."""

    neighborhood: Neighborhood
    route: Route | None
    ghost: np.ndarray
    ghost_row: np.ndarray


@dataclass(frozen=True, slots=True)
class Builder:
    """Collective to build with. weighted: messages are multiplied by the edges' column weight, where there is one;
    by_part: ghosts are nodes of other parts."""

    partition: SnapshotPartition
    channel: Channel
    dtype: torch.dtype
    device: torch.device
    weighted: bool = True
    by_part: bool = False

    def build(self, number: int, reverse: bool = False) -> Block:
        """Collective. The in-neighbours of all nodes in a snapshot; reverse: out-neighbours."""
        columns = (WEIGHT,) if self.weighted and WEIGHT in self.partition.edge_columns else ()
        edges = self.partition.edges_at(number, columns)
        if reverse:
            edges = reversed_edges(edges, self.partition, self.channel)
        weight = torch.from_numpy(edges.columns[WEIGHT]).to(self.dtype) if columns else None
        degree = _sum_weights(edges.dst, weight, self.partition.num_nodes, self.dtype)
        looped = torch.zeros(self.partition.num_nodes, dtype=torch.bool)
        looped[torch.from_numpy(edges.dst[edges.src == edges.dst + self.partition.first_id])] = True
        remote = self._is_remote(edges)
        own, ghost = np.flatnonzero(~remote), np.flatnonzero(remote)
        ids, source = np.unique(edges.src[ghost], return_inverse=True)
        route, ghost_degree, ghost_looped, ghost_row = None, degree[:0], looped[:0], ids[:0]
        if self.channel.size > 1 or self.by_part:
            route = Route.plan(self.partition.book, ids, self.channel)
            known = degree, looped, torch.from_numpy(self.partition.flat_row)
            ghost_degree, ghost_looped, flat_row = route.pull(*known)
            ghost_row = flat_row.numpy()
            route = route.to(self.device)
        indptr = np.searchsorted(edges.dst[own], np.arange(self.partition.num_nodes + 1))
        lists = self._lists(indptr, edges.src[own] - self.partition.first_id, self.partition.num_nodes)
        rows, counts = np.unique(edges.dst[ghost], return_counts=True)
        reach = self._lists(np.concatenate([[0], np.cumsum(counts)]), source, len(ids))
        degrees = [found.to(self.device) for found in (degree, ghost_degree)]
        loops = [found.to(self.device) for found in (looped, ghost_looped)]
        return Block(
            Neighborhood(
                self.partition.num_nodes, Edges(lists, self._taken(weight, own)),
                Edges(reach, self._taken(weight, ghost), torch.from_numpy(rows).to(self.device)),
                degrees[0], degrees[1], loops[0], loops[1],
            ), route, ids, ghost_row,
        )  # fmt: skip

    def _is_remote(self, edges: SnapshotEdges) -> np.ndarray:
        """Whether the source of each edge is a ghost, bool [e]."""
        first, count = self.partition.first_id, self.partition.num_nodes
        if self.by_part:
            part_of = self.partition.book.part_of
            return part_of(edges.src) != part_of(edges.dst + first)
        return (edges.src < first) | (edges.src >= first + count)

    def _lists(self, indptr: np.ndarray, source: np.ndarray, num_sources: int) -> EdgeLists:
        begin, place = (torch.from_numpy(array.astype(np.int64)).to(self.device) for array in (indptr, source))
        return EdgeLists(begin, place, num_sources)

    def _taken(self, weight: torch.Tensor | None, place: np.ndarray) -> torch.Tensor | None:
        return None if weight is None else weight[torch.from_numpy(place)].to(self.device)


def reversed_edges(edges: SnapshotEdges, partition: SnapshotPartition, channel: Channel) -> SnapshotEdges:
    """Collective. The edges of a snapshot the other way, at the owners of what were their sources."""
    owner, _ = partition.book.locate(edges.src)
    sent = [edges.src, edges.dst + partition.first_id, edges.row, *edges.columns.values()]
    dst, src, row, *columns = exchange_columns(sent, owner, channel) if channel.size > 1 else sent
    order = np.lexsort((row, dst))
    found = {name: column[order] for name, column in zip(edges.columns, columns, strict=True)}
    return SnapshotEdges(src[order], dst[order] - partition.first_id, row[order], found)


def _sum_weights(dst: np.ndarray, weight: torch.Tensor | None, num_nodes: int, dtype: torch.dtype) -> torch.Tensor:
    """Sum of the weights of every node's edges [n]."""
    values = None if weight is None else weight.double().numpy()
    return torch.from_numpy(np.bincount(dst, values, num_nodes)).to(dtype)
