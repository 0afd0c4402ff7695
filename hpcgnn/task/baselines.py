"""Baselines of links: rules that score pairs from the training edges alone, without training, and their table. One is
ranked in the place of a model, among the same candidates: a model must beat it.

A query is the end of an edge that stays, an answer the end that is predicted; of user.likes.item, a user and an item. Q
queries at once; c answers at this rank, I at all ranks; n pairs of this rank. Pairs are different, however often an
edge is stored, and one rule alone tells edge types apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.choices import Part, check_choices, tables_of
from hpcgnn.comm.exchange import Channel, exchange_columns
from hpcgnn.comm.memory import free_bytes
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.native import EdgeLists
from hpcgnn.task.known_edges import KnownAnswers

SCORES = 1 << 24  # most numbers of a dense table that is made for some queries at once


@dataclass(frozen=True, slots=True)
class TrainingPairs:
    """The pairs that training edges join, each at the owner of its answer, in order of query, then answer: global ids
    int64 [n]. queries, answers: ownership of both types of nodes; dtype: of scores. edge_type, typed_answer [f]: of the
    different edges, where those of several types count apart, in order of edge type."""

    query: np.ndarray
    answer: np.ndarray
    queries: BlockOwnership
    answers: BlockOwnership
    world: World
    channel: Channel
    dtype: torch.dtype
    edge_type: np.ndarray
    typed_answer: np.ndarray

    @classmethod
    def of_edges(
        cls, query: np.ndarray, answer: np.ndarray, edge_type: np.ndarray, queries: BlockOwnership,
        answers: BlockOwnership, world: World, channel: Channel, dtype: torch.dtype,
    ) -> TrainingPairs:  # fmt: skip
        """Collective. Make the pairs of edges that any rank has."""
        owner, _ = answers.locate(answer)
        edges = np.column_stack(exchange_columns([edge_type, query, answer], owner, channel))
        edges = np.unique(edges, axis=0)
        query, answer = np.ascontiguousarray(np.unique(edges[:, 1:], axis=0).T)
        typed = edges[:, 0].copy(), edges[:, 2].copy()
        return cls(query, answer, queries, answers, world, channel, dtype, *typed)

    @property
    def first(self) -> int:
        """Global id of this rank's first answer."""
        return int(self.answers.starts[self.world.rank])

    @property
    def num_answers(self) -> int:
        """Number c of this rank's answers."""
        return int(self.answers.starts[self.world.rank + 1]) - self.first

    def degrees(self) -> np.ndarray:
        """Count the pairs of each of this rank's answers, int64 [c]."""
        return np.bincount(self.answer - self.first, minlength=self.num_answers)


class LinkBaseline:
    """A rule, which takes the place of a decoder where answers are ranked. Collective to create."""

    def __init__(self, pairs: TrainingPairs, config: LinkBaselineConfig):
        self.pairs, self.config = pairs, config
        types = np.zeros(len(pairs.query), np.int64)
        self._known = KnownAnswers(pairs.answers, pairs.world.rank, pairs.query, types, pairs.answer)

    def scores(self, query: np.ndarray) -> torch.Tensor:
        """Collective. Score queries, global ids [Q] that are the same on all ranks, with this rank's answers [Q, c]."""
        raise NotImplementedError

    def all_pairs(self, query: torch.Tensor, candidate, relation=None, reverse: bool = False) -> torch.Tensor:
        """Collective. Score queries, global ids [Q], as a decoder's ``all_pairs`` scores their rows: [Q, c]."""
        return self.scores(query.numpy())

    def known(self, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the answers that training pairs give to queries at this rank: places in ``query``, and answers counted
        from this rank's first one."""
        return self._known.of(query, np.zeros_like(query))


class Popularity(LinkBaseline):
    """Scores an answer by its number of training pairs, whatever the query."""

    def __init__(self, pairs: TrainingPairs, config: LinkBaselineConfig):
        super().__init__(pairs, config)
        self._degree = torch.from_numpy(pairs.degrees()).to(pairs.dtype)

    def scores(self, query: np.ndarray) -> torch.Tensor:
        return self._degree.repeat(len(query), 1)


class PopularityByType(LinkBaseline):
    """Scores an answer by its number of training edges of the query's edge type, whatever the query."""

    def all_pairs(self, query: torch.Tensor, candidate, relation: Any = None, reverse: bool = False) -> torch.Tensor:
        edge_type, answer = self.pairs.edge_type, self.pairs.typed_answer - self.pairs.first
        types, place = torch.unique(relation, return_inverse=True)
        score = torch.zeros((len(types), self.pairs.num_answers), dtype=self.pairs.dtype)
        for row, kind in zip(score, types.tolist(), strict=True):
            begin, end = np.searchsorted(edge_type, [kind, kind + 1])
            row += torch.from_numpy(np.bincount(answer[begin:end], minlength=len(row)))
        return score[place]


class LinkPropagation(LinkBaseline):
    """Counts the paths from a query over a known answer and another query to an answer, each divided by powers of the
    numbers of pairs of the three nodes behind the query, with the exponents of ``baseline.exponents`` (Fu et al.,
    Revisiting neighborhood-based link prediction for collaborative filtering, 2022).

    With X the pairs, the known answers of Q queries are multiplied by X' and by X, of which a rank holds the columns of
    its answers, and all pairs of the V queries that have one of them: J answers.
    """

    def __init__(self, pairs: TrainingPairs, config: LinkBaselineConfig):
        super().__init__(pairs, config)
        over, query_power, last = self._exponents()
        degree = pairs.degrees()
        query, answer, degrees = _pairs_of_same_queries(pairs, degree[pairs.answer - pairs.first])
        queries, begin = np.unique(query, return_index=True)
        self._answers, first, column = np.unique(answer, return_index=True, return_inverse=True)
        self._of_query = _lists(np.append(begin, len(query)), column, len(self._answers))
        order = np.argsort(pairs.answer, kind="stable")
        row = np.searchsorted(queries, pairs.query[order])
        self._of_answer = _lists(np.concatenate([[0], np.cumsum(degree)]), row, len(queries))
        of_queries = self._of_query.degree.numpy()
        self._scales = [
            torch.from_numpy(np.maximum(count, 1.0) ** -power).to(pairs.dtype).unsqueeze(1)
            for count, power in ((degrees[first], over), (of_queries, query_power), (degree, last))
        ]  # fmt: skip

    def _exponents(self) -> list[float]:
        return self.config.exponents

    def scores(self, query: np.ndarray) -> torch.Tensor:
        place, own = self.known(query)
        found = np.column_stack([place, own + self.pairs.first])
        place_of_all, answer = self.pairs.channel.everyone(torch.from_numpy(found)).numpy().T
        column = np.minimum(np.searchsorted(self._answers, answer), max(0, len(self._answers) - 1))
        reaches = self._answers[column] == answer if len(self._answers) else np.zeros(len(answer), bool)
        place_of_all, column = (torch.from_numpy(values[reaches].copy()) for values in (place_of_all, column))
        over, of_queries, last = self._scales
        out = last.new_zeros((len(query), self.pairs.num_answers))
        step = max(1, SCORES // max(1, len(self._of_query), len(self._answers)))
        for at in range(0, len(query) if len(self._answers) else 0, step):
            part = out[at : at + step]
            is_here = (place_of_all >= at) & (place_of_all < at + step)
            rows = out.new_zeros((len(self._answers), len(part)))
            rows[column[is_here], place_of_all[is_here] - at] = over[column[is_here], 0]
            around = native.segment_sum(rows, self._of_query) * of_queries
            part.copy_((native.segment_sum(around, self._of_answer) * last).T)
        return out


class CosineNeighbors(LinkPropagation):
    """Item-to-item collaborative filtering: sums the cosines of an answer with the query's known answers. The cosine of
    two answers is the number of queries that have both, divided by the square root of the product of their numbers of
    pairs (Sarwar et al., Item-based collaborative filtering recommendation algorithms, 2001)."""

    def _exponents(self) -> list[float]:
        return [0.5, 0.0, 0.5]

    def scores(self, query: np.ndarray) -> torch.Tensor:
        out, known = super().scores(query), self.known(query)
        out[tuple(map(torch.from_numpy, known))] -= 1  # an answer's cosine with itself does not count
        return out


def _pairs_of_same_queries(pairs: TrainingPairs, degree: np.ndarray) -> list[np.ndarray]:
    """Collective. Bring all pairs of the queries that this rank has a pair of: query, answer, and number of pairs of
    the answer [m], in order of query, then answer. degree [n]: the latter number of this rank's pairs."""
    owner, _ = pairs.queries.locate(pairs.query)
    columns = _in_order(exchange_columns([pairs.query, pairs.answer, degree], owner, pairs.channel))
    query, answer, _ = columns
    wanted = np.unique(np.column_stack([query, pairs.answers.locate(answer)[0]]), axis=0)  # queries and ranks
    begin, end = (np.searchsorted(query, wanted[:, 0], side=side) for side in ("left", "right"))
    count = end - begin
    index = np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(count.sum())
    moved = [column[index] for column in columns]
    return _in_order(exchange_columns(moved, np.repeat(wanted[:, 1], count), pairs.channel))


def _in_order(columns: list[np.ndarray]) -> list[np.ndarray]:
    """Sort the rows of columns by the first, then the second."""
    order = np.lexsort((columns[1], columns[0]))
    return [column[order] for column in columns]


def _lists(indptr: np.ndarray, source: np.ndarray, num_sources: int) -> EdgeLists:
    """Make lists of int64 arrays."""
    first, second = (torch.from_numpy(np.ascontiguousarray(array, np.int64)) for array in (indptr, source))
    return EdgeLists(first, second, num_sources)


class Ease(LinkBaseline):
    """EASE: the linear model that predicts the pairs of a query from its other pairs, with the squares of its weights
    times ``baseline.l2`` added to the squared errors, in closed form (Steck, Embarrassingly shallow autoencoders for
    sparse data, 2019). Rank 0 inverts a dense matrix, and sends every rank the scores of its answers."""

    def __init__(self, pairs: TrainingPairs, config: LinkBaselineConfig):
        """Raises DistributedError, on all ranks, where the machine of rank 0 has too little memory."""
        super().__init__(pairs, config)
        self._model: LinearModel | Any = None
        columns = pairs.world.gather_rows(np.column_stack([pairs.query, pairs.answer]))
        with together(pairs.world, "baseline ease"):
            if columns is not None:
                self._model = LinearModel(columns, config.l2, pairs.dtype)

    def scores(self, query: np.ndarray) -> torch.Tensor:
        pairs, starts = self.pairs, self.pairs.answers.starts
        counts, num_all = np.diff(starts), int(starts[-1] - starts[0])
        out = torch.empty((len(query), pairs.num_answers), dtype=pairs.dtype)
        nothing = np.zeros_like(counts)
        send, receive = nothing if self._model is None else counts, nothing.copy()
        receive[0] = pairs.num_answers
        for at in range(0, len(query), step := max(1, SCORES // max(1, num_all))):
            part = query[at : at + step]
            rows = torch.empty((0, len(part)), dtype=pairs.dtype)
            if self._model is not None:
                rows = torch.zeros((num_all, len(part)), dtype=pairs.dtype)
                rows[torch.from_numpy(self._model.answers - starts[0])] = self._model.scores(part)
            out[at : at + step] = pairs.channel.rows(rows, send, receive).T
        return out


class LinearModel:
    """The weights of EASE, never written out. With X [U, I] the pairs, P the inverse of X'X + l2, the scores of queries
    x are x - (x P) / diagonal of P. It is made from the smaller one of two inverses: P, or K, that of X X' + l2, of
    which a row is the x P of a query before it is multiplied by X. answers [I]: global ids with a pair, increasing."""

    def __init__(self, columns: np.ndarray, l2: float, dtype: torch.dtype):
        """columns [., 2]: queries and answers. Raises ValueError where memory has no room for the inverse."""
        query, answer = _in_order(list(columns.T))
        self._queries, begin, row = np.unique(query, return_index=True, return_inverse=True)
        self.answers, column = np.unique(answer, return_inverse=True)
        order = np.argsort(column, kind="stable")
        count = np.bincount(column, minlength=len(self.answers))
        self._of_query = _lists(np.append(begin, len(query)), column, len(self.answers))
        self._of_answer = _lists(np.concatenate([[0], np.cumsum(count)]), row[order], len(self._queries))
        self._by_answer = len(self.answers) <= len(self._queries)
        side, other = (
            (self._of_answer, self._of_query) if self._by_answer else (self._of_query, self._of_answer)
        )  # fmt: skip
        self._inverse = _inverse(len(side), other, l2, dtype)
        self._diagonal = self._inverse.diagonal().clone() if self._by_answer else self._answer_diagonal(l2)

    def _answer_diagonal(self, l2: float) -> torch.Tensor:
        """Compute the diagonal of P [I] from K: (1 - sum of K over the pairs of queries that have the answer) / l2."""
        lists, sums = self._of_answer, []
        step = max(1, SCORES // len(self._queries))
        for at in range(0, len(lists), step):
            indptr = lists.indptr[at : at + step + 1]
            source = lists.source[indptr[0] : indptr[-1]]
            part = EdgeLists(indptr - indptr[0], source, lists.num_sources)
            values = native.segment_sum(self._inverse, part)[part.destination, source]
            each = EdgeLists(part.indptr, torch.arange(len(values)), len(values))
            sums.append(native.segment_sum(values.unsqueeze(1), each).squeeze(1))
        return (1 - torch.cat(sums)) / l2

    def scores(self, query: np.ndarray) -> torch.Tensor:
        """Score queries [q] with the answers, transposed: [I, q]."""
        found = np.minimum(np.searchsorted(self._queries, query), len(self._queries) - 1)
        place, is_known = torch.from_numpy(found), torch.from_numpy(self._queries[found] == query)
        degree = self._of_query.degree[place] * is_known
        indptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
        first = self._of_query.indptr[place] - indptr[:-1]
        number = torch.repeat_interleave(torch.arange(len(query)), degree)
        source = self._of_query.source[torch.arange(int(indptr[-1])) + first[number]]
        if self._by_answer:
            out = native.segment_sum(self._inverse, EdgeLists(indptr, source, len(self.answers))).T
        else:
            rows = self._inverse[place] * is_known.unsqueeze(1)
            out = native.segment_sum(rows.T.contiguous(), self._of_answer)
        out = -out / self._diagonal.unsqueeze(1)
        out[source, number] += 1
        return out


def _inverse(size: int, lists: EdgeLists, l2: float, dtype: torch.dtype) -> torch.Tensor:
    """Invert [size, size] l2 on the diagonal plus the number of lists that have both of two entries. Raises ValueError
    where memory has no room for it."""
    needed, free = 2 * size * size * dtype.itemsize, free_bytes()
    if needed > free:
        raise ValueError(
            f"baseline.kind ease inverts a matrix of {size:,} rows: it needs {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free on the machine of rank 0: use a machine with more memory, train.precision "
            "float32, or baseline.kind item_cf"
        )
    gram = torch.zeros((size, size), dtype=dtype)
    table, indptr, source = gram.numpy(), lists.indptr.tolist(), lists.source.numpy()
    for begin, end in pairwise(indptr):
        entries = source[begin:end]
        table[np.ix_(entries, entries)] += 1
    gram.diagonal().add_(l2)
    factor = torch.linalg.cholesky(gram)
    del gram, table  # of that size two fit, not three
    return torch.cholesky_inverse(factor)


@dataclass(frozen=True)
class LinkBaselinePart(Part):
    """A baseline. make: of TrainingPairs and the section ``baseline``, collectively; None: the model is evaluated.
    options: the keys of the section that it reads."""

    make: Callable[..., LinkBaseline] | None
    options: tuple[str, ...] = ()


LINK_BASELINES = {
    "": LinkBaselinePart(None, "the model"),
    "popularity": LinkBaselinePart(Popularity, "number of training edges of the answer"),
    "popularity_by_type": LinkBaselinePart(
        PopularityByType, "number of training edges of the answer that have the edge type of the query"
    ),
    "item_cf": LinkBaselinePart(
        CosineNeighbors, "cosines of the answer with the answers that the query has in training (Sarwar et al., 2001)"
    ),
    "link_propagation": LinkBaselinePart(
        LinkPropagation,
        "paths to the answer over a known answer and another query, divided by powers of their numbers of edges (Fu et "
        "al., LinkProp, 2022)", ("exponents",),
    ),
    "ease": LinkBaselinePart(
        Ease, "linear model in closed form, which rank 0 makes by inverting a dense matrix (Steck, EASE, 2019)",
        ("l2",),
    ),
}  # fmt: skip


@dataclass
class LinkBaselineConfig:
    """A baseline in the place of the model: nothing is trained, validation and test are ranked.

    Attributes:
        kind: Rule to evaluate in place of the model. Link prediction with eval.ranking destinations or filtered only.
        exponents: Exponents of baseline link_propagation, by which it divides paths: of the number of edges of the
            known answer, of the other query, and of the answer. The larger one, the less popular nodes count.
        l2: Weight of the squared weights of baseline ease. Larger values trust frequent pairs alone.
    """

    kind: Annotated[str, LINK_BASELINES] = ""
    exponents: list[float] = field(default_factory=lambda: [0.5, 1.0, 0.5])
    l2: float = 500.0

    def __post_init__(self):
        check_choices("baseline", self)
        if not 0 < self.l2 < math.inf:
            raise ValueError(f"baseline.l2 must be above 0, got {self.l2}")
        if len(self.exponents) != 3 or not all(map(math.isfinite, self.exponents)):
            raise ValueError(f"baseline.exponents must be three numbers, got {self.exponents}")
        part: Any = tables_of(type(self))["kind"][self.kind]
        for each in fields(self):
            default = each.default if each.default_factory is MISSING else each.default_factory()
            if each.name not in ("kind", *part.options) and getattr(self, each.name) != default:
                kind = self.kind or "empty"
                raise ValueError(f"baseline.{each.name}: baseline.kind {kind} does not read it; leave it out")
