"""Ranks of edges among all nodes, from exact embeddings at their owners.

S seeds of a step on all ranks, c candidate nodes at this rank, Z embedding width. A seed asks with one end, the query,
for the other, the answer.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.world import World
from hpcgnn.task.known_edges import KnownAnswers

TOP = 20
FILTERED_NAMES = ("mrr", "hits@1", "hits@10")
FULL_NAMES = (f"recall@{TOP}", f"ndcg@{TOP}")
SCORES = 1 << 24  # of a rank at once


class Candidates:
    """The nodes of a type at this rank as answers. ``known`` edges are no wrong answers; reverse: answers are the
    sources of edges."""

    def __init__(self, known: KnownAnswers, most: int, reverse: bool):
        """most: nodes of the rank that has most of them."""
        self._known, self._reverse = known, reverse
        self._chunk = max(1, SCORES // max(1, most))

    def ranks(
        self, decoder: Any, embeddings: torch.Tensor, rows: torch.Tensor, query, edge_type, answer, world: World
    ) -> np.ndarray:  # fmt: skip
        """Collective. Rank [S] of every answer: 1 + the mean of the numbers of other candidates, known ones left out,
        that score higher and that score at least as high. Compared in float32.

        embeddings [c, Z] of the candidates; rows [S, Z] of the queries; query, edge_type, answer [S], on all ranks
        alike.
        """
        found, order = np.empty(len(query)), np.lexsort((edge_type, query))
        for at in range(0, len(query), self._chunk):
            part = order[at : at + self._chunk]
            keys, first, number = np.unique(
                np.column_stack([query[part], edge_type[part]]), axis=0, return_index=True, return_inverse=True
            )
            relation, asked = torch.from_numpy(keys[:, 1]).to(rows.device), torch.from_numpy(part[first])
            score = decoder.all_pairs(rows[asked.to(rows.device)], embeddings, relation, self._reverse)
            found[part] = self._count_better(score.float().cpu().numpy(), keys, number.ravel(), answer[part], world)
        return found

    def _count_better(self, score: np.ndarray, keys, number, answer, world: World) -> np.ndarray:
        """Collective. From scores [Q, c] of this rank's candidates for different queries and edge types, keys [Q, 2];
        number: of these, for every answer."""
        place = answer - self._known.first
        here = np.flatnonzero((place >= 0) & (place < self._known.count))
        right = np.full(len(answer), -np.inf, np.float32)
        right[here] = score[number[here], place[here]]
        right = world.reduce_array(right, "max")
        score[self._known.of(*keys.T)] = -np.inf
        own = np.zeros(len(answer), np.int64)
        own[here] = score[number[here], place[here]] == right[here]
        above, level = (np.array([np.count_nonzero(compare(score[q], r)) for q, r in zip(number, right, strict=True)],
                                 np.int64) for compare in (np.greater, np.greater_equal))  # fmt: skip
        return 1 + 0.5 * world.reduce_array(above + level - own)


def filtered_metrics(scores: dict[str, np.ndarray], batches: object, world: World) -> dict[str, float]:
    """Collective. ``FILTERED_NAMES`` over all seeds, from their rank [n]."""
    rank = scores["rank"]
    return means(FILTERED_NAMES, [1 / rank, rank <= 1, rank <= 10], world)


def full_metrics(scores: dict[str, np.ndarray], batches: object, world: World) -> dict[str, float]:
    """Collective. ``FULL_NAMES`` over all queries, from the rank and the query of seeds [n], each at the owner of its
    query."""
    rank = scores["rank"]
    _, query, count = np.unique(scores["query"], return_inverse=True, return_counts=True)
    top = rank <= TOP
    gain = np.bincount(query[top], 1 / np.log2(1 + rank[top]), len(count))
    ideal = np.cumsum(1 / np.log2(2 + np.arange(TOP)))[np.minimum(count, TOP) - 1]
    return means(FULL_NAMES, [np.bincount(query[top], minlength=len(count)) / count, gain / ideal], world)


def means(names: tuple[str, ...], values: list[np.ndarray], world: World) -> dict[str, float]:
    """Collective. Means over all ranks; NaN of nothing."""
    total = world.total(len(values[0]))
    sums = [math.fsum(world.allgather(math.fsum(column))) for column in values]
    return {name: value / total if total else math.nan for name, value in zip(names, sums, strict=True)}
