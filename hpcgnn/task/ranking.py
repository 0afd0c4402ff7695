"""Ranks edges among all nodes, from exact embeddings at the owners of the nodes.

S seeds of a step on all ranks, c candidate nodes at this rank, Z embedding width. One end of a seed is the query, the
other end is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.task.metrics import check_finite

SCORES = 1 << 24  # of a rank at once
BLOCK = 64  # candidates whose highest score is looked at first
# Changes scores [Q, c] of this rank's candidates in place, by the queries' global ids [Q], edge types [Q] and reverse.
AddToScores = Callable[[torch.Tensor, np.ndarray, np.ndarray, bool], None]
BEST = np.dtype([("number", np.int64), ("score", np.float64), ("row_id", np.int64), ("node", np.int64)])


class Candidates:
    """Ranks answers among this rank's nodes of a type. Known edges do not count as wrong answers; reverse: answers are
    the sources of edges."""

    def __init__(
        self, known: KnownAnswers, most: int, reverse: bool, dtype: torch.dtype = torch.float32,
        add: AddToScores | None = None,
    ):  # fmt: skip
        """most: number of such nodes at the rank that has most; dtype: of the scores that ``ranks`` compares.
        float32 hides the rounding of a model's sums; a rule without rounding needs float64. add: changes the decoder's
        scores."""
        self.known, self._reverse, self._dtype, self._add = known, reverse, dtype, add
        self._chunk = max(1, SCORES // max(1, most))

    def ranks(
        self, decoder: Any, embeddings: torch.Tensor, rows: torch.Tensor, query, edge_type, answer, world: World
    ) -> np.ndarray:  # fmt: skip
        """Collective. Rank every answer: [S] float64. A rank is 1 + the mean of two counts of other candidates, without
        known answers: the ones with a higher score, and the ones with at least the same score. NaN where a candidate's
        score is not finite.

        embeddings [c, Z] of the candidates; rows [S, Z] of the queries; query, edge_type, answer [S], on all ranks
        alike.
        """
        ranks, order = np.empty(len(query)), np.lexsort((edge_type, query))
        for at in range(0, len(query), self._chunk):
            world.working("ranking", at)
            part = order[at : at + self._chunk]
            keys, first, number = np.unique(
                np.column_stack([query[part], edge_type[part]]), axis=0, return_index=True, return_inverse=True
            )
            relation, place = (torch.from_numpy(array).to(rows.device) for array in (keys[:, 1], part[first]))
            score = decoder.all_pairs(rows[place], embeddings, relation, self._reverse)
            if self._add is not None:
                self._add(score, keys[:, 0], keys[:, 1], self._reverse)
            ranks[part] = self._count_better(score.to(self._dtype), keys, number.ravel(), answer[part], world)
        return ranks

    def best(
        self, decoder: Any, embeddings: torch.Tensor, rows: torch.Tensor, query, edge_type, row_id, count: int,
        world: World, channel: Channel, is_candidate: np.ndarray | None = None, leave_query: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Collective. Find the ``count`` candidates of all ranks that score highest for each query, without known
        answers. Returns a structured array of number (of the query), score (compared in float32), row_id and node
        (counted over all ranks, from 0). It is sorted by query and from the highest score on; of equal scores the lower
        row_id comes first. Alike on all ranks.

        Raises DistributedError for scores that are not finite.

        embeddings [c, Z], row_id [c] of the candidates; rows [Q, Z] of the queries; query, edge_type [Q], alike.
        is_candidate [c] bool: candidates that may be answers, None: all. leave_query: queries, which
        ``known`` has as global ids, are no answers to themselves.
        """
        found, is_finite, step = (
            [],
            True,
            max(1, self._chunk // 4),
        )  # scores that are passed over again stay in the cache
        for at in range(0, len(query), step):
            part = slice(at, at + step)
            relation = torch.from_numpy(edge_type[part]).to(rows.device)
            score = decoder.all_pairs(rows[part], embeddings, relation, self._reverse).float()
            if self._add is not None:
                self._add(score, query[part], edge_type[part], self._reverse)
            is_finite = is_finite and _is_finite(score)
            places = (torch.from_numpy(array).to(score.device) for array in self.known.of(query[part], edge_type[part]))
            score[tuple(places)] = -math.inf
            if leave_query:
                place = query[part] - self.known.first
                here = np.flatnonzero((place >= 0) & (place < self.known.count))
                score[torch.from_numpy(here), torch.from_numpy(place[here])] = -math.inf
            if is_candidate is not None:
                score[:, torch.from_numpy(~is_candidate)] = -math.inf
            found.append(self._highest(score, row_id, count, at))
        check_finite(is_finite, world)
        own = np.concatenate(found) if found else np.empty(0, BEST)
        sent = torch.from_numpy(own.view(np.int64).reshape(-1, BEST.itemsize // 8).copy())
        every = channel.everyone(sent).numpy().reshape(-1).view(BEST)
        return _first_of_each(every, count)

    def _highest(self, score: torch.Tensor, row_id: np.ndarray, count: int, first: int) -> np.ndarray:
        """Choose this rank's highest scores [q, c] of each query; ``first``: number of the first query."""
        number, place = (part.cpu().numpy() for part in _reaching(score, count))
        found = np.empty(len(number), BEST)
        found["number"], found["score"] = number + first, score[number, place].cpu().numpy()
        found["row_id"], found["node"] = row_id[place], place + self.known.first
        return _first_of_each(found, count)

    def _count_better(self, score: torch.Tensor, keys, number, answer, world: World) -> np.ndarray:
        """Collective. Rank answers [S] from scores [Q, c] of this rank's candidates for Q different pairs of a query
        and an edge type, ``keys`` [Q, 2]; number [S]: which of these an answer belongs to. The scores of known answers
        are overwritten."""
        place = answer - self.known.first
        here = np.flatnonzero((place >= 0) & (place < self.known.count))
        put = lambda array: torch.from_numpy(array).to(score.device)  # noqa: E731
        own = (put(number[here]), put(place[here]))
        own_score = torch.full((len(answer),), -math.inf, dtype=score.dtype)
        own_score[torch.from_numpy(here)] = score[own].cpu()
        threshold = world.reduce_array(own_score.numpy(), "max")
        is_finite = torch.isfinite(score).all(dim=1).cpu().numpy()  # nothing ranks above NaN: a perfect rank
        score[tuple(put(array) for array in self.known.of(*keys.T))] = -math.inf
        # How many candidates score higher, plus how many score at least as high, but for the answer itself.
        counts = native.count_reaching(score, put(number), put(threshold)).cpu().numpy()
        counts[here] -= score[own].cpu().numpy() == threshold[here]
        counts, unusable = world.reduce_array(np.stack([counts, ~is_finite[number]]))
        return np.where(unusable > 0, math.nan, 1 + 0.5 * counts)


def _is_finite(score: torch.Tensor) -> bool:
    """Whether all scores are finite. Their sum, which takes one fast pass, is so only then, and nearly always then."""
    return math.isfinite(score.sum()) or bool(torch.isfinite(score).all())


def _reaching(score: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the places (query, candidate) of scores [q, c] that reach a bound that at least ``count`` candidates of the
    query reach; none of -inf. The highest scores are among them with all that are equal to the last one, as which of
    equal scores is kept must not depend on the rank.

    The bound is the ``count``-th of the highest scores of blocks of candidates, and of the few single ones behind them:
    one fast pass over all scores, and further work in a few blocks only.
    """
    whole = score.shape[1] // BLOCK * BLOCK
    blocks, rest = score[:, :whole].unflatten(1, (-1, BLOCK)) if whole else score[:, :0, None], score[:, whole:]
    highest = torch.cat([blocks.amax(2) if whole else score[:, :0], rest], 1)
    least = torch.full((len(score), 1), -math.inf, dtype=score.dtype, device=score.device)
    if highest.shape[1] > count:
        least = torch.topk(highest, count, sorted=False).values.amin(dim=1, keepdim=True)
    query, place = ((highest >= least) & (highest > -math.inf)).nonzero(as_tuple=True)
    single = place >= blocks.shape[1]
    query, block, further = query[~single], place[~single], (query[single], place[single] - blocks.shape[1] + whole)
    values = blocks[query, block]
    row, column = ((values >= least[query]) & (values > -math.inf)).nonzero(as_tuple=True)
    within = (query[row], block[row] * BLOCK + column)
    return torch.cat([within[0], further[0]]), torch.cat([within[1], further[1]])


def _first_of_each(found: np.ndarray, count: int) -> np.ndarray:
    """Sort entries of ``BEST`` by query, score and row, and keep the first ``count`` of each query."""
    found = found[np.lexsort((found["row_id"], -found["score"], found["number"]))]
    _, first, size = np.unique(found["number"], return_index=True, return_counts=True)
    place = np.arange(len(found)) - np.repeat(first, size)
    return found[place < count]
