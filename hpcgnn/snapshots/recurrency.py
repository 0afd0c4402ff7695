"""Recurrency: rules that answer a query by the facts of earlier snapshots, without a model (Gastinger et al., History
repeats itself: a baseline for temporal knowledge graph forecasting, 2024).

n nodes of this rank, S snapshots, f facts whose answer is a node of this rank, Q queries, T edge types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.snapshots.graph import TYPE, SnapshotEdges, SnapshotPartition
from hpcgnn.snapshots.neighborhood import reversed_edges


@dataclass(frozen=True, slots=True)
class Facts:
    """Different facts [f]: the number of the query and edge type (``key``), the edge type, the answer as a local row,
    and the snapshot ``number``, int64. In order of key, then number. by_type [f]: the places of the facts in order of
    edge type, then number."""

    key: np.ndarray
    edge_type: np.ndarray
    answer: np.ndarray
    number: np.ndarray
    by_type: np.ndarray

    @classmethod
    def of_edges(cls, snapshots: list[SnapshotEdges], types: int) -> Facts:
        """Make the facts of all snapshots: a fact is an edge from its query to its answer."""
        columns = [
            np.column_stack([edges.src, _types_of(edges), edges.dst, np.full(len(edges.src), number)])
            for number, edges in enumerate(snapshots)
        ]
        query, edge_type, answer, number = np.unique(np.concatenate(columns), axis=0).T
        key = query * types + edge_type
        order = np.lexsort((number, key))
        key, edge_type, answer, number = (column[order] for column in (key, edge_type, answer, number))
        return cls(key, edge_type, answer, number, np.lexsort((number, edge_type)))

    def of(self, key: np.ndarray, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the facts of queries [Q] up to snapshot ``last``: places of the queries, and places of the facts."""
        begin, end = np.searchsorted(self.key, key), np.searchsorted(self.key, key, side="right")
        count = end - begin
        query = np.repeat(np.arange(len(key)), count)
        place = np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(count.sum())
        known = self.number[place] <= last
        return query[known], place[known]

    def count_answers(self, edge_type: int, last: int, num_nodes: int) -> np.ndarray:
        """Count the facts of an edge type up to snapshot ``last`` by answer [n]."""
        begin, end = np.searchsorted(self.edge_type, [edge_type, edge_type + 1], sorter=self.by_type)
        places = self.by_type[begin:end]
        places = places[: np.searchsorted(self.number[places], last, side="right")]
        return np.bincount(self.answer[places], minlength=num_nodes)


class Recurrency:
    """Scores answers by how recent the same fact is, 2 to the power of -``baseline.decay`` times the snapshots since it
    (strict recurrency; 0 for a new fact), and by the share of the facts of the edge type that have this answer,
    whatever the query (relaxed recurrency). The score is the sum of both, times their weights.

    Called with the snapshot that predictions are made from, it takes the place of a decoder. Scores are float64.
    """

    def __init__(self, session: Any, strict_weight: float | None):
        """Collective. strict_weight: weight of strict recurrency, None: ``baseline.strict_weight``; the other weight is
        1 minus it."""
        partition: SnapshotPartition = session.partition
        channel: Channel = session.graph.channel
        self._world: World = session.world
        self._num_nodes, self._horizon = partition.num_nodes, session.config.task.horizon
        self._types, section = max(1, session.goal.num_edge_types), session.config.baseline
        self._decay = section.decay
        self._strict = section.strict_weight if strict_weight is None else strict_weight
        columns = (TYPE,) if session.goal.num_edge_types else ()
        edges, back = [], []
        for number in range(partition.num_snapshots):
            edges.append(partition.edges_at(number, columns))
            back.append(reversed_edges(edges[-1], partition, channel))
        with together(self._world, "baseline"):
            self._facts = [Facts.of_edges(of_end, self._types) for of_end in (edges, back)]
        self._number = 0

    def __call__(self, number: int) -> Recurrency:
        """Let facts up to a snapshot be known."""
        self._number = number
        return self

    def all_pairs(self, query: torch.Tensor, candidate, relation: torch.Tensor, reverse: bool = False) -> torch.Tensor:
        """Collective. Score queries with all nodes of this rank, [Q, n] float64. query: global ids [Q, 1], relation
        [Q]: edge types, both the same on all ranks; reverse: sources are the answers. candidate is not read."""
        facts, edge_type = self._facts[reverse], relation.cpu().numpy()
        key = query.cpu().numpy()[:, 0] * self._types + edge_type
        score = np.zeros((len(key), self._num_nodes))
        row, place = facts.of(key, self._number)
        ago = self._number + self._horizon - facts.number[place]
        np.maximum.at(score, (row, facts.answer[place]), self._strict * np.exp2(-self._decay * ago))
        if self._strict < 1:
            score += (1 - self._strict) * self._shares(facts, edge_type)
        return torch.from_numpy(score)

    def _shares(self, facts: Facts, edge_type: np.ndarray) -> np.ndarray:
        """Collective. Compute the share of the facts of each edge type [Q] that have each answer: [Q, n]."""
        types, place = np.unique(edge_type, return_inverse=True)
        counts = [facts.count_answers(kind, self._number, self._num_nodes) for kind in types]
        table = np.stack(counts) if counts else np.zeros((0, self._num_nodes), np.int64)
        total = self._world.reduce_array(table.sum(axis=1))
        return (table / np.maximum(1, total)[:, None])[place.ravel()]


def _types_of(edges: SnapshotEdges) -> np.ndarray:
    return edges.columns[TYPE].astype(np.int64) if edges.columns else np.zeros_like(edges.src)
