"""Looks up known edges, such as training edges, which are at the owners of one of their ends.

A query is a node and an edge type; its answers are the nodes that known edges of the type join it to. m known edges,
n queries or pairs.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.comm.exchange import Channel, ask
from hpcgnn.graph.book import BlockOwnership


class KnownAnswers:
    """The known edges whose answers are this rank's nodes of a type: ``count`` nodes from global id ``first`` on."""

    def __init__(self, ownership: BlockOwnership, rank: int, query, edge_type, node):
        """ownership: of the answers' type; query, node [m] global ids, edge_type [m], arrays int64."""
        self._ownership, starts = ownership, ownership.starts
        self.first, self.count = int(starts[rank]), int(starts[rank + 1] - starts[rank])
        self._types = int(edge_type.max(initial=0)) + 1
        key = query * self._types + edge_type
        order = np.lexsort((node, key))
        self._key, self._node = key[order], (node - self.first)[order]
        self._unique, number = np.unique(self._key, return_inverse=True)
        self._pair = self._pairs(number, self._node)

    def of(self, query: np.ndarray, edge_type: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the answers of queries [n] at this rank: positions of the queries, increasing, and nodes counted from
        ``first``."""
        key = self._keys(query, edge_type)
        begin, end = np.searchsorted(self._key, key), np.searchsorted(self._key, key, side="right")
        degree = end - begin
        index = np.repeat(begin - (np.cumsum(degree) - degree), degree) + np.arange(degree.sum())
        return np.repeat(np.arange(len(key)), degree), self._node[index]

    def hold(self, query: np.ndarray, edge_type: np.ndarray, node: np.ndarray, channel: Channel) -> np.ndarray:
        """Collective. Say which pairs [n] of a query and a node (global id) are known, bool; the owners are asked."""
        owner, _ = self._ownership.locate(node)
        pairs = np.column_stack([query, edge_type, node])
        return ask(pairs, owner, channel, lambda asked: self._hold_here(*asked.T))

    def _hold_here(self, query: np.ndarray, edge_type: np.ndarray, node: np.ndarray) -> np.ndarray:
        if len(self._unique) == 0:
            return np.zeros(len(query), bool)
        key = self._keys(query, edge_type)
        number = np.minimum(np.searchsorted(self._unique, key), len(self._unique) - 1)
        pair = self._pairs(number, node - self.first)
        place = np.minimum(np.searchsorted(self._pair, pair), len(self._pair) - 1)
        return (self._unique[number] == key) & (self._pair[place] == pair)

    def _pairs(self, number: np.ndarray, node: np.ndarray) -> np.ndarray:
        """Sort keys of pairs of a query's number and a node counted from ``first``; int64 would not hold them."""
        return number.astype(np.uint64) * np.uint64(self.count) + node.astype(np.uint64)

    def _keys(self, query: np.ndarray, edge_type: np.ndarray) -> np.ndarray:
        """Sort keys of queries, as known edges have them; -1 for a type that no known edge has."""
        return np.where(edge_type < self._types, query * self._types + edge_type, -1)
