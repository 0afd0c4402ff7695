"""Holds the in-edges of all relations as one list for each pair of a relation and a node that has such edges.

So memory and the work of a draw do not depend on nodes times relations. P pairs, m in-edges of all relations, n local
nodes, N nodes to draw for, with Q pairs; L relations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.graph.partition import WEIGHT, GraphPartition
from hpcgnn.native.dispatch import Uploads


@dataclass(frozen=True, slots=True)
class InLists:
    """T in-edge lists, from which neighbors are drawn. indptr [T + 1], identity [T] flat row ids of their nodes; for
    every edge weight [m] uint32 and source_identity [m], or None."""

    indptr: np.ndarray
    identity: np.ndarray
    weight: np.ndarray | None
    source_identity: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of N nodes. pair [Q]: rows of the lists, or None where these were drawn from; place [Q]: of the nodes
    among the N; relation [Q] int32, or None where the graph has one relation."""

    pair: Any
    place: Any
    relation: Any


@dataclass(frozen=True, slots=True)
class PairLists:
    """In-edge lists of pairs, of a rank or of the whole graph; relation after relation, at every rank, within it in
    order of node.

    of_pairs: lists [P]; source [m]: global ids. first [n + 1], pair [P], relation [P] int64: the pairs of each local
    node, by their lists and relations. In a graph of one relation these are None: pairs are the local nodes ``nodes``
    of its destination type, with edges or without, all nodes where that is None. starts [L]: place of a relation's
    first edge among the m; of the whole graph zeros, and shift: for blocks of edges their first places, and what leads
    to places among the edges of their relation.
    """

    of_pairs: InLists
    source: Any
    relation: Any
    first: Any
    pair: Any
    nodes: slice | None
    starts: np.ndarray
    shift: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def columns(self) -> list[np.ndarray]:
        """All arrays that grow with nodes, pairs or edges."""
        lists = self.of_pairs
        columns = (lists.indptr, lists.identity, lists.weight, lists.source_identity,
                   self.source, self.relation, self.first, self.pair)  # fmt: skip
        return [column for column in columns if column is not None]

    def on(self, device: torch.device) -> PairLists:
        """Copy the lists to a device."""
        put = Uploads(device)

        def upload(column: Any) -> Any:
            return None if column is None else put(column, torch.int64 if column.dtype == np.int64 else None)

        lists = self.of_pairs
        of_pairs = InLists(*map(upload, (lists.indptr, lists.identity, lists.weight, lists.source_identity)))
        columns = {name: upload(getattr(self, name)) for name in ("source", "relation", "first", "pair")}
        return replace(self, of_pairs=of_pairs, **columns)

    def unweighted(self) -> PairLists:
        """Return the lists without weights."""
        return replace(self, of_pairs=replace(self.of_pairs, weight=None))

    def find(self, rows: Any, fanouts: list[int], bounds: np.ndarray | None = None) -> Pairs:
        """Find the pairs of local nodes [N], of relations whose fanout is not 0, in order of group, then relation, then
        place. bounds [G + 1]: of the groups among the nodes; None: one group."""
        if self.relation is None:
            return self._find_nodes(rows)
        if isinstance(rows, torch.Tensor):
            return self._find_on_device(rows, fanouts)
        return Pairs(*native.find_pairs((self.first, self.pair, self.relation), rows, fanouts, bounds))

    def _find_nodes(self, rows: Any) -> Pairs:
        """Find the pairs of local nodes of a graph of one relation; the place is None for the pairs of all nodes."""
        if self.nodes is None:
            return Pairs(rows, None, None)
        is_inside = (rows >= self.nodes.start) & (rows < self.nodes.stop)
        place = torch.nonzero(is_inside).squeeze(1) if isinstance(rows, torch.Tensor) else np.flatnonzero(is_inside)
        return Pairs(rows[place] - self.nodes.start, place, None)

    def _find_on_device(self, rows: torch.Tensor, fanouts: list[int]) -> Pairs:
        begin = self.first[rows]
        count = self.first[rows + 1] - begin
        place = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
        behind = count.cumsum(0)
        of_node = torch.arange(len(place), device=place.device) + (begin - behind + count)[place]
        relation, order = torch.sort(self.relation[of_node], stable=True)
        pair, place, relation = self.pair[of_node[order]], place[order], relation.int()
        if 0 in fanouts:
            is_drawn = torch.tensor(fanouts, device=place.device)[relation.long()] != 0
            pair, place, relation = pair[is_drawn], place[is_drawn], relation[is_drawn]
        return Pairs(pair, place, relation)


def make_lists(partition: GraphPartition, mode: str, channel: Channel, column: str = WEIGHT) -> PairLists:
    """Collective. Make the lists that a mode of sampling draws from. "weighted" draws by a column, which needs
    ``check_drawn_by`` first."""
    edges = partition.edges
    source = joined([of_relation.src for of_relation in edges])
    weight = joined(integer_weights(partition, channel, column)) if mode == "weighted" else None
    source_identity = _source_identity(partition, source, channel) if mode == "labor" else None
    sizes = [len(of_relation.src) for of_relation in edges]
    starts = np.cumsum(sizes) - sizes
    if len(edges) == 1:
        of_type = partition.of_type(partition.relations[0].dst_type)
        lists = InLists(edges[0].indptr, partition.flat_row[of_type], weight, source_identity)
        return PairLists(lists, source, None, None, None, None if len(partition.types) == 1 else of_type, starts)
    nodes, degrees = [], []
    for kind, of_relation in zip(partition.relations, edges, strict=True):
        with_edges, degree = of_relation.filled()
        nodes.append(with_edges + partition.type_start[kind.dst_type])
        degrees.append(degree)
    relation = np.repeat(np.arange(len(edges)), [len(each) for each in nodes])
    node, count = np.concatenate(nodes), _sums(np.concatenate(degrees))
    pair = native.order_of_ranks(node, partition.num_nodes)
    of_pairs = InLists(count, partition.flat_row[node], weight, source_identity)
    first = _sums(np.bincount(node, minlength=partition.num_nodes))
    return PairLists(of_pairs, source, relation[pair], first, pair, None, starts)


def joined(arrays: list[np.ndarray]) -> np.ndarray:
    """Join arrays [.], without a copy where they are consecutive pieces of one array."""
    base, filled = arrays[0].base, [array for array in arrays if len(array)]
    if len(filled) == 1:
        return filled[0]
    if not filled or base is None or any(array.base is not base for array in filled):
        return np.concatenate(arrays)
    begin = [(array.ctypes.data - base.ctypes.data) // array.itemsize for array in filled]
    end = [first + len(array) for first, array in zip(begin, filled, strict=True)]
    is_one = base.ndim == 1 and base.dtype == filled[0].dtype and begin[1:] == end[:-1]
    return base[begin[0] : end[-1]] if is_one else np.concatenate(arrays)


def _sums(counts: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(counts)), dtype=np.int64)


def _source_identity(partition: GraphPartition, src: np.ndarray, channel: Channel) -> np.ndarray:
    """Collective. Pull the flat row id of every edge's source."""
    unique, inverse = np.unique(src, return_inverse=True)
    route = Route.plan(partition.book, unique, channel)
    return route.pull(torch.tensor(partition.flat_row))[0].numpy()[inverse]


def integer_weights(partition: GraphPartition, channel: Channel, column: str) -> list[np.ndarray]:
    """Collective. Convert each relation's column of weights, which ``check_weights`` passed, to uint32 [m]. Integers
    stay unchanged; others become multiples of 1 / 2^31 of the largest one of all ranks, at least 1 if above 0."""
    weights = []
    for edges in partition.edges:
        weight = edges.columns[column].astype(np.float64)
        whole = np.array([[float(np.all(weight == np.floor(weight))), weight.max(initial=0.0)]])
        everyone = channel.everyone(torch.from_numpy(whole)).numpy()
        largest = everyone[:, 1].max()
        if everyone[:, 0].all() and largest < 1 << 32:
            weights.append(weight.astype(np.uint32))
        else:
            weights.append(np.ceil(weight / largest * (1 << 31)).astype(np.uint32))
    return weights
