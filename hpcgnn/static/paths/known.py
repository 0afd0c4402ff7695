"""Leaves the facts of a step out of the graph that carries its messages.

E edges of a block, F facts of a step.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import torch

from hpcgnn.native import EdgeLists
from hpcgnn.static.config import STORED
from hpcgnn.static.model.blocks import Block, RelationPairs
from hpcgnn.static.sampling.edges import BOTH
from hpcgnn.static.whole import FullGraph, Half


@dataclass(frozen=True)
class ThinnedBlock(Block):
    """A block without some of its edges, of which a layer reads ``pairs`` alone."""

    thinned: RelationPairs | None = None

    @property
    def pairs(self) -> RelationPairs:
        """Edges that are left, by relation, then destination."""
        assert self.thinned is not None
        return self.thinned


def _keys(relation: np.ndarray, source: np.ndarray, destination: np.ndarray, num_nodes: int) -> np.ndarray:
    """Make one number of a relation and both ends."""
    return (relation * num_nodes + source) * num_nodes + destination


class _Edges:
    """The edges [E] of a half of the graph, found by their keys."""

    def __init__(self, half: Half, num_nodes: int):
        pairs, identity = half.block.pairs, half.identity[0].cpu().numpy()
        degree = pairs.lists.degree.cpu().numpy()
        self._pair = np.repeat(np.arange(len(degree)), degree)
        relation = np.repeat(np.array(pairs.relations, np.int64), pairs.counts)[self._pair]
        destination = pairs.destination.cpu().numpy()[self._pair]
        source = pairs.lists.source.cpu().numpy()
        keys = _keys(relation, identity[source], identity[destination], num_nodes)
        self._order = np.argsort(keys, kind="stable")
        self._keys, self._half = keys[self._order], half

    def without(self, keys: np.ndarray) -> Half:
        """Return the half without the edges of these keys [F]."""
        begin, end = (np.searchsorted(self._keys, keys, side=side) for side in ("left", "right"))
        count = end - begin
        found = self._order[np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(count.sum())]
        if not len(found):
            return self._half
        block = self._half.block
        pairs, stays = block.pairs, np.ones(len(self._keys), bool)
        stays[found] = False
        lost = torch.from_numpy(np.bincount(self._pair[found], minlength=len(pairs.lists)))
        degree = pairs.lists.degree - lost.to(pairs.lists.degree.device)
        source = pairs.lists.source[torch.from_numpy(stays).to(pairs.lists.source.device)]
        lists = EdgeLists(torch.cat([degree.new_zeros(1), degree.cumsum(0)]), source, pairs.lists.num_sources)
        thinned = replace(pairs, lists=lists)
        given = block.relations, block.num_src, block.num_dst, block.device
        return replace(self._half, block=ThinnedBlock(*given, thinned))


class KnownFacts:
    """Finds the edges that tell of facts in a rank's share of a graph of one node type."""

    def __init__(self, graph: FullGraph, num_nodes: int, telling: np.ndarray):
        """num_nodes: of the whole graph. telling [T, k]: by edge type, the relations of the graph that tell of its
        facts, in either direction."""
        self._graph, self._num_nodes, self._telling = graph, num_nodes, telling
        self._inner, self._outer = (_Edges(half, num_nodes) for half in (graph.inner, graph.outer))

    def without(self, facts: np.ndarray) -> FullGraph:
        """Return the share without the edges that tell of facts [F, 3]: both ends, as flat row ids, and edge types."""
        one, other, edge_type = (column[:, None] for column in facts.T)
        relation = self._telling[edge_type[:, 0]]
        forth, back = (_keys(relation, *ends, self._num_nodes) for ends in ((one, other), (other, one)))
        keys = np.unique(np.concatenate([forth, back]))
        return replace(self._graph, inner=self._inner.without(keys), outer=self._outer.without(keys))


def telling_relations(
    messages: str, relation: int, num_types: int, num_relations: int, reverses: Collection[int]
) -> np.ndarray:  # fmt: skip
    """List, by edge type [T, k], the relations of the graph of messages that tell of facts. messages: ``message_edges``
    of the task; relation: the learned one, before it is divided by types; num_relations: after that; reverses: the
    relations that hold its edges in reverse, numbered as it is."""
    others = sorted(number for number in reverses if number != relation)
    types = np.arange(num_types)[:, None]
    if messages == STORED:
        return np.concatenate([np.full_like(types, number) for number in (relation, *others)], axis=1)
    copies = 1 + (messages == BOTH)
    first = num_relations - copies * num_types
    typed = [types + first + copy * num_types for copy in range(copies)]
    rest = [np.full_like(types, number - (number > relation)) for number in others]
    return np.concatenate([*typed, *rest], axis=1)
