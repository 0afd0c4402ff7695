"""Recurrency: answers to a query by the facts of earlier snapshots, as rules without a model (Gastinger et al., History
repeats itself: a baseline for temporal knowledge graph forecasting, 2024), and as a learned part of a model's scores.

n nodes of this rank, S snapshots, f facts whose answer is a node of this rank, Q queries, T edge types. A query of a
destination has the number of its edge type as kind, a query of a source the number plus T.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.comm.exchange import Channel, ask
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.snapshots.graph import TYPE, SnapshotEdges, SnapshotPartition
from hpcgnn.snapshots.neighborhood import reversed_edges

NEVER = np.iinfo(np.int64).max
AGES = 8  # classes of ages; the last one is from 2 to the power of 7 snapshots on
QUERIES = 256  # scored at once with all nodes
GAIN = 10.0  # a learned score is this times its weight: a step of Adam then moves it by 10 learning rates


@dataclass(frozen=True, slots=True)
class SeenFacts:
    """What is known of facts [...]: the latest snapshot with each, -1 where there is none, and how many snapshots had
    it; kind: broadcast to them. int64."""

    kind: np.ndarray
    number: np.ndarray
    times: np.ndarray


@dataclass(frozen=True, slots=True)
class Recurring:
    """Answers [x] that queries had before, of this rank's nodes. query: place among the queries; answer: local row;
    seen: of the facts. int64, in order of query, then answer; each pair of a query and an answer once."""

    query: np.ndarray
    answer: np.ndarray
    seen: SeenFacts


class FactHistory:
    """The different facts of all snapshots, as answers to the queries of both their ends."""

    def __init__(self, partition: SnapshotPartition, types: int, channel: Channel, world: World):
        """Collective. types: number of edge types, 0: edges have none."""
        self.num_kinds, columns = 2 * max(1, types), (TYPE,) if types else ()
        self._partition, pieces = partition, [np.empty((0, 4), np.int64)]
        for number in range(partition.num_snapshots):
            edges = partition.edges_at(number, columns)
            for end, of_end in enumerate((edges, reversed_edges(edges, partition, channel))):
                kind = _types_of(of_end) + end * max(1, types)
                pieces.append(np.column_stack([of_end.src, kind, of_end.dst, np.full(len(kind), number)]))
        with together(world, "index the facts of all snapshots"):
            self._index(np.unique(np.concatenate(pieces), axis=0))

    def kind(self, edge_type: np.ndarray, reverse: bool) -> np.ndarray:
        """Return the kinds of queries about edge types [Q]. reverse: queries are destinations, and ask for sources."""
        return edge_type + reverse * (self.num_kinds // 2)

    def _index(self, facts: np.ndarray) -> None:
        """Index different facts [f, 4], sorted: query, kind, answer and number."""
        query, self._kind, self._answer, self._number = np.ascontiguousarray(facts.T)
        self._key = query * self.num_kinds + self._kind
        is_first = np.ones(len(facts), bool)
        is_first[1:] = (np.diff(self._key) != 0) | (np.diff(self._answer) != 0)
        first = np.flatnonzero(is_first)
        self._times = 1 + np.arange(len(facts)) - np.repeat(first, np.diff(np.append(first, len(facts))))
        self._until = np.full(len(facts), NEVER)  # the snapshot in which the fact is there again
        self._until[:-1][~is_first[1:]] = self._number[1:][~is_first[1:]]
        self._by_kind = np.lexsort((self._number, self._kind))

    def find(self, query: np.ndarray, kind: np.ndarray, last: int) -> Recurring:
        """Find the answers that queries (global ids and kinds [Q]) had up to snapshot ``last``."""
        key = query * self.num_kinds + kind
        begin, end = np.searchsorted(self._key, key), np.searchsorted(self._key, key, side="right")
        count = end - begin
        number = np.repeat(np.arange(len(key)), count)
        place = np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(count.sum())
        is_latest = (self._number[place] <= last) & (last < self._until[place])
        number, place = number[is_latest], place[is_latest]
        seen = SeenFacts(self._kind[place], self._number[place], self._times[place])
        return Recurring(number, self._answer[place], seen)

    def latest(self, facts: np.ndarray, last: int) -> np.ndarray:
        """Look up facts [m, 3]: query, kind and answer, global ids; answers are nodes of this rank. Returns the latest
        snapshot up to ``last`` with each, -1 where there is none, and how many snapshots had it: [m, 2]."""
        first, num_nodes = self._partition.first_id, self._partition.num_nodes
        queries, number = np.unique(facts[:, :2], axis=0, return_inverse=True)
        found = self.find(queries[:, 0], queries[:, 1], last)
        known, wanted = found.query * num_nodes + found.answer, number.ravel() * num_nodes + facts[:, 2] - first
        place = np.searchsorted(known, wanted)
        held = np.flatnonzero(np.append(known, -1)[place] == wanted)
        latest = np.array([[-1, 0]]).repeat(len(facts), 0)
        latest[held] = np.column_stack([found.seen.number, found.seen.times])[place[held]]
        return latest

    def see(self, query: np.ndarray, kind: np.ndarray, answer: np.ndarray, last: int, channel: Channel) -> SeenFacts:
        """Collective. Look up facts, arrays of one shape or broadcast to one, up to snapshot ``last``. The owners of
        the answers are asked."""
        query, kind, answer = np.broadcast_arrays(query, kind, answer)
        facts = np.stack([query, kind, answer], -1).reshape(-1, 3)
        owner, _ = self._partition.book.locate(facts[:, 2])
        latest = ask(facts, owner, channel, lambda asked: self.latest(asked, last))
        return SeenFacts(kind, *(column.reshape(kind.shape) for column in latest.T))

    def count_answers(self, kind: int, last: int) -> np.ndarray:
        """Count the facts of a kind up to snapshot ``last`` by answer [n]."""
        begin, end = np.searchsorted(self._kind, [kind, kind + 1], sorter=self._by_kind)
        places = self._by_kind[begin:end]
        places = places[: np.searchsorted(self._number[places], last, side="right")]
        return np.bincount(self._answer[places], minlength=self._partition.num_nodes)


class LearnedRecurrency(nn.Module):
    """Scores facts by how many snapshots ago they were there, and how often. Both have learned weights for each kind of
    query: one for each class of ages, which are the whole parts of the logarithms to base 2, and one for the logarithm
    of the number of snapshots that had the fact. Weights begin at 0."""

    def __init__(self, num_kinds: int, horizon: int):
        """num_kinds: 2 T, or T where queries of both ends have the same weights. horizon: snapshots from the last known
        one to the predicted one."""
        super().__init__()
        self._horizon = horizon
        self.age = nn.Parameter(torch.zeros(num_kinds, AGES))
        self.times = nn.Parameter(torch.zeros(num_kinds))

    def forward(self, seen: SeenFacts, last: int) -> torch.Tensor:
        """Score facts [...] as they are known up to snapshot ``last``; new ones score 0."""
        put = lambda array: torch.from_numpy(array).to(self.age.device)  # noqa: E731
        ages = np.minimum(np.log2(np.maximum(1, last + self._horizon - seen.number)).astype(np.int64), AGES - 1)
        often = put(np.log2(np.maximum(1, seen.times))).to(self.age.dtype)
        rows = put(seen.kind % len(self.times))
        score = self.age.flatten()[rows * AGES + put(ages)] + self.times[rows] * often
        return GAIN * torch.where(put(seen.number) < 0, torch.zeros_like(score), score)


@dataclass(frozen=True, slots=True)
class Added:
    """Adds to a decoder's scores what facts up to snapshot ``last`` have learned."""

    history: FactHistory
    learned: LearnedRecurrency
    last: int

    def __call__(self, score: torch.Tensor, query: np.ndarray, edge_type: np.ndarray, reverse: bool) -> None:
        """Add to the scores [Q, n] of queries, global ids [Q], with all nodes of this rank, in place."""
        found = self.history.find(query, self.history.kind(edge_type, reverse), self.last)
        places = tuple(torch.from_numpy(array).to(score.device) for array in (found.query, found.answer))
        score[places] += self.learned(found.seen, self.last).to(score.dtype)

    def to_facts(self, seen: SeenFacts) -> torch.Tensor:
        """Return what is added to the scores of facts [...]."""
        return self.learned(seen, self.last)

    def to_pairs(
        self, source: np.ndarray, edge_type: np.ndarray, destination: np.ndarray, channel: Channel
    ) -> np.ndarray:  # fmt: skip
        """Collective. Return what is added to the scores of pairs [m] of global ids, [m]."""
        seen = self.history.see(source, edge_type, destination, self.last, channel)
        return self.to_facts(seen).detach().cpu().numpy()


class Recurrency:
    """Scores answers by how recent the same fact is, 2 to the power of -``baseline.decay`` times the snapshots since it
    (strict recurrency; 0 for a new fact), and by the share of the facts of the edge type that have this answer,
    whatever the query (relaxed recurrency). The score is the sum of both, times their weights.

    Called with the snapshot that predictions are made from, it returns what takes the place of a decoder.
    """

    def __init__(self, session: Any, strict_weight: float | None):
        """Collective. strict_weight: weight of strict recurrency, None: ``baseline.strict_weight``; the other weight is
        1 minus it."""
        section = session.config.baseline
        self.world, self.channel, self.partition = session.world, session.graph.channel, session.partition
        self.history = FactHistory(session.partition, session.goal.num_edge_types, self.channel, self.world)
        self._horizon, self._decay = session.config.task.horizon, section.decay
        self.strict_weight = section.strict_weight if strict_weight is None else strict_weight

    def __call__(self, number: int) -> RecurrencyAt:
        """Let facts up to a snapshot be known."""
        return RecurrencyAt(self, number)

    def strict(self, latest: np.ndarray, number: int) -> np.ndarray:
        """Compute the strict part of the scores of facts [x] that were there last in snapshots ``latest``."""
        return self.strict_weight * np.exp2(-self._decay * (number + self._horizon - latest))

    def relaxed(self, kind: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Collective. Compute the relaxed part of scores for the different kinds among ``kind`` [Q], which is the same
        on all ranks: the kinds [k], and scores of this rank's nodes [k, n]."""
        kinds = np.unique(kind)
        counts = [self.history.count_answers(each, number) for each in kinds]
        table = np.stack(counts) if counts else np.zeros((0, self.partition.num_nodes), np.int64)
        total = self.world.reduce_array(table.sum(axis=1))
        return kinds, (1 - self.strict_weight) * table / np.maximum(1, total)[:, None]


@dataclass(frozen=True, slots=True)
class RecurrencyAt:
    """Scores answers as ``rule`` does by the facts up to snapshot ``number``, float64. Where a decoder reads embeddings
    it reads global ids, [..., 1] int64."""

    rule: Recurrency
    number: int

    def all_pairs(
        self, query: torch.Tensor, candidate: torch.Tensor, relation: torch.Tensor, reverse: bool = False
    ) -> torch.Tensor:  # fmt: skip
        """Collective. Score queries [Q] with all nodes of this rank, [Q, n]. relation [Q]: edge types; query and
        relation are the same on all ranks; reverse: sources are the answers. candidate is not read."""
        rule, kind = self.rule, self.rule.history.kind(relation.cpu().numpy(), reverse)
        score = np.zeros((len(kind), rule.partition.num_nodes))
        found = rule.history.find(query.cpu().numpy()[:, 0], kind, self.number)
        score[found.query, found.answer] = rule.strict(found.seen.number, self.number)
        if rule.strict_weight < 1:
            kinds, shares = rule.relaxed(kind, self.number)
            score += shares[np.searchsorted(kinds, kind)]
        return torch.from_numpy(score).to(query.device)

    def __call__(
        self, source: torch.Tensor, destination: torch.Tensor, relation: torch.Tensor | None = None
    ) -> torch.Tensor:  # fmt: skip
        """Collective. Score pairs [m] or [k, m], as answers to the queries of their sources."""
        source, destination = torch.broadcast_tensors(source.squeeze(-1), destination.squeeze(-1))
        kind = torch.zeros_like(source) if relation is None else relation.expand_as(source)
        asked = torch.stack([source, kind, destination], -1).reshape(-1, 3).cpu().numpy()
        owner, _ = self.rule.partition.book.locate(asked[:, 2])
        _, shares = self.rule.relaxed(np.arange(self.rule.history.num_kinds // 2), self.number)
        score = ask(asked, owner, self.rule.channel, partial(self._score_here, shares))
        return torch.from_numpy(score).view(source.shape).to(source.device)

    def _score_here(self, shares: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """Score facts [m, 3] with answers of this rank. shares [T, n]: relaxed part of the scores."""
        latest = self.rule.history.latest(asked, self.number)[:, 0]
        score = shares[asked[:, 1], asked[:, 2] - self.rule.partition.first_id]
        score[latest >= 0] += self.rule.strict(latest[latest >= 0], self.number)
        return score

    def matrix(self) -> torch.Tensor:
        """Collective. Score this rank's nodes as answers to the queries of all N nodes, of a graph without edge types:
        [n, N] float32."""
        size = self.rule.partition.book.num_nodes
        score = torch.empty((self.rule.partition.num_nodes, size), device=self.rule.world.device)
        for at in range(0, size, QUERIES):
            query = torch.arange(at, min(at + QUERIES, size)).unsqueeze(1)
            score[:, at : at + QUERIES] = self.all_pairs(query, query, torch.zeros(len(query), dtype=torch.int64)).T
        return score


def _types_of(edges: SnapshotEdges) -> np.ndarray:
    return edges.columns[TYPE].astype(np.int64) if edges.columns else np.zeros_like(edges.src)
