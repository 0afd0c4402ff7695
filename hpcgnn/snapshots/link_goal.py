"""The goal of links between snapshots: whether two nodes have an edge in a later one, and how that is measured.

Edges rank among all pairs of nodes (Pareja et al., EvolveGCN, 2020), or their ends among all nodes. n nodes of this
rank, N of all ranks, C output columns, Z width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.nn.decoders import DECODERS, DecoderSizes
from hpcgnn.snapshots.config import ALL, BOTH, DRAWN, FILTERED, SnapshotConfig
from hpcgnn.snapshots.goals import SnapshotGoal
from hpcgnn.snapshots.graph import SnapshotPartition
from hpcgnn.snapshots.pairs import ALL_PAIRS, ANSWERS, TYPE, Answers, PairPlanner, Pairs, TargetEdges, score_pairs
from hpcgnn.task.goal import Collected, Measure, SplitMeasure
from hpcgnn.task.levels import MatrixLevels
from hpcgnn.task.links import LinkScores
from hpcgnn.task.losses import make_loss
from hpcgnn.task.metrics import (
    PAIRS,
    PER_SNAPSHOT,
    RANKS,
    check_finite,
    drawn_metrics,
    link_metrics,
    mean_known,
    names_of,
    ranking_metrics,
)
from hpcgnn.task.ranking import Candidates

ALL_NAMES = ("map", "mrr", "auc")
ELEMENTS = 1 << 24  # of what is compared at once
SCORES = 1 << 18  # of pairs at once: they stay in a cache


@dataclass(slots=True)
class RankedPairs:
    """How well edges rank among all pairs. values [t, 3] of t targets, the same on all ranks: average precision of
    edges against all other pairs; mean over sources of the mean reciprocal rank of their edges among all destinations,
    other edges too; ROC AUC. Infinite where a score is not finite."""

    values: np.ndarray

    @classmethod
    def join(cls, ranked: list[RankedPairs]) -> RankedPairs:
        """Join the ranks of several targets."""
        return cls(np.concatenate([r.values for r in ranked]))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the values by name [t]."""
        return dict(zip(ALL_NAMES, self.values.T, strict=True))


@dataclass(slots=True)
class AnswerRanks:
    """Where right answers rank among all nodes: rank [r] for this rank's edges."""

    rank: np.ndarray

    @classmethod
    def join(cls, ranks: list[AnswerRanks]) -> AnswerRanks:
        """Join the ranks of several targets."""
        return cls(np.concatenate([r.rank for r in ranks]))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the ranks [r] by name."""
        return {"rank": self.rank}


class SnapshotLinkGoal(SnapshotGoal):
    """Predicts whether two nodes have an edge ``sampling.horizon`` snapshots later. An edge is handled by the owner of
    its destination."""

    def __init__(
        self, config: SnapshotConfig, partition: SnapshotPartition, world: World, planning: Channel, channel: Channel
    ):  # fmt: skip
        task, horizon = config.task, config.sampling.horizon
        self._task, self._horizon, self._world, self._channel = task, horizon, world, channel
        self.num_outputs = config.model.hidden
        self._loss = make_loss(task)
        self.last = partition.num_snapshots - 1 - horizon
        self._types = _count_types(partition, world) if task.is_typed else 0
        edges = TargetEdges(partition, horizon, task.undirected, task.new_links, self._types, planning)
        negatives = task.negatives, {DRAWN: task.eval_negatives, ALL: ALL_PAIRS, FILTERED: ANSWERS}[task.eval_pairs]
        seed, both_ends = config.train.seed, task.negative_ends == BOTH
        self._pairs = PairPlanner(partition, edges, negatives, both_ends, task.strict, seed, world, planning)
        counts = [len(edges.at(n).row) if n <= self.last else 0 for n in range(partition.num_snapshots)]
        self.roots = world.reduce_array(np.array(counts, np.int64))

    def extend(self, model: nn.Module) -> nn.Module:
        """Add the decoder that scores links to the model."""
        sizes = DecoderSizes(self.num_outputs, self._types, self._task.temperature)
        self._decoder = model.decoder = DECODERS[self._task.decoder].make(sizes)
        return model

    def want(self, split: str, epoch: int, number: int) -> Pairs:
        return self._pairs(split, epoch, number)

    def score(self, outputs: torch.Tensor, pairs: Pairs, chain: HaloChain):
        if pairs.answers is not None:
            return rank_answers(self._decoder, outputs, pairs.answers, self._channel, self._world)
        if pairs.negative is None:
            return rank_all_pairs(self._decoder, outputs, pairs, self._channel, self._world)
        assert pairs.reach is not None
        return score_pairs(self._decoder, pairs.reach.bring(outputs, chain, self._channel), pairs)

    def loss(self, scores: LinkScores) -> torch.Tensor:
        return scores.loss(self._loss)

    def join(self, scores: list, training: bool):
        if scores:
            return type(scores[0]).join(scores)
        if self._task.eval_pairs == ALL and not training:
            return RankedPairs(np.empty((0, len(ALL_NAMES))))
        if self._task.eval_pairs == FILTERED and not training:
            return AnswerRanks(np.empty(0))
        negatives = self._task.negatives if training else self._task.eval_negatives
        none = torch.empty(0, dtype=torch.int64)
        return LinkScores(torch.empty(0), torch.empty((negatives, 0)), number=none)

    def collector(self) -> Collected:
        return Collected(MEASURES[self._task.eval_pairs][1])

    def metric_names(self) -> tuple[str, ...]:
        return MEASURES[self._task.eval_pairs][0]()

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Measure pairs against their negatives."""
        return names_of(PAIRS) + names_of(RANKS), lambda s, world: drawn_metrics(s["positive"], s["negative"], world)

    def describe(self) -> str:
        task = self._task
        kind = ("new " if task.new_links else "") + ("undirected " if task.undirected else "") + "links"
        drawn = f"{task.eval_negatives} negatives each"
        against = {DRAWN: drawn, ALL: "all pairs", FILTERED: "all nodes at both ends"}[task.eval_pairs]
        return (
            f"{kind} {self._horizon} snapshots later, {'strict, ' if task.strict else ''}{task.negatives} negatives "
            f"each, in evaluation {against}"
        )


def rank_answers(decoder: Any, outputs: torch.Tensor, answers: Answers, channel: Channel, world: World) -> AnswerRanks:
    """Collective. Rank both ends of every edge, other edges of the snapshot left out; from outputs [n, Z]."""
    most, ranks = int(world.reduce_array(np.array([len(outputs)]), "max")[0]), []
    types = answers.edges[:, 2]
    for asks, ((reached, place), known_edges) in enumerate(zip(answers.rows, answers.known, strict=True)):
        rows = reached.bring(outputs, HaloChain(), channel)[place]
        candidates = Candidates(known_edges, most, reverse=asks == 1)
        query, answer = answers.edges[:, asks], answers.edges[:, 1 - asks]
        ranks.append(candidates.ranks(decoder, outputs, rows, query, types, answer, world)[answers.own])
    return AnswerRanks(np.concatenate(ranks))


def rank_all_pairs(decoder: Any, outputs: torch.Tensor, pairs: Pairs, channel: Channel, world: World):
    """Collective. Rank edges among all pairs, from outputs [n, Z]; pairs: sources as global ids, destinations as local
    rows."""
    everyone = channel.everyone(outputs)  # in order of global id
    score = score_matrix(decoder, everyone, outputs)
    positive = score[pairs.destination, pairs.source]
    if world.reduce_array(np.array([bool(torch.isfinite(score).all())], np.int64), "min")[0] == 0:
        return RankedPairs(np.full((1, len(ALL_NAMES)), np.inf))  # told by all ranks later: others may rank nothing now
    levels = MatrixLevels(positive.cpu().numpy(), world)
    levels.add(score)
    levels.add(positive, -1)
    ap, auc = levels.measure()
    return RankedPairs(np.array([[ap, _mean_reciprocal_rank(score, pairs.source, positive, channel, world), auc]]))


def score_matrix(decoder: Any, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    """Score destinations [n, Z] with all sources [N, Z]: [n, N] float32."""
    score = torch.empty((len(destination), len(source)), device=source.device)
    most = max(1, SCORES // max(1, len(source)))
    for at in range(0, len(destination), most):
        score[at : at + most] = decoder.all_pairs(destination[at : at + most], source, None, True)
    return score


def _mean_reciprocal_rank(score: torch.Tensor, source, positive, channel: Channel, world: World) -> float:
    """Collective. Rank a source's edges among all destinations, ties counted half; average the reciprocals by source,
    then over sources."""
    source, positive = (channel.everyone(values.contiguous()) for values in (source, positive))
    if len(source) == 0:
        return math.nan
    most, counts = max(1, ELEMENTS // max(1, len(score))), []
    for at in range(0, len(source), most):
        column, own = score[:, source[at : at + most]], positive[at : at + most]
        counts.append(torch.stack([(column > own).sum(0), (column >= own).sum(0)]))
    above, upto = world.reduce_array(torch.cat(counts, dim=1).cpu().numpy())
    _, number, edges = np.unique(source.cpu().numpy(), return_inverse=True, return_counts=True)
    reciprocal = 1 / (1 + 0.5 * (above + upto - 1))
    order = np.argsort(reciprocal)  # so that sums over a source's edges do not depend on who scored them
    return math.fsum(np.bincount(number[order], reciprocal[order]) / edges) / len(edges)


def measure_all_pairs(scores: dict[str, np.ndarray], batches: object, world: World) -> dict[str, float]:
    """Collective. Average over snapshots with edges what ranking made of each; all ranks of a group know the same."""
    values = np.column_stack([scores[name] for name in ALL_NAMES])
    check_finite(not np.isinf(values).any(), world)
    if world.size > 1:
        values = world.broadcast(world.gather_rows(values))
    return {name: mean_known(column) for name, column in zip(ALL_NAMES, values.T, strict=True)}


def measure_drawn(scores: dict[str, np.ndarray], batches: Any, world: World) -> dict[str, float]:
    """Collective. Compute the metrics of pairs, those of their ranks, and means over snapshots of the former.

    scores: positive [s], negative [s, k] and number [s], the snapshots that this rank's pairs are predicted from; the
    batches list those of all ranks. Raises DistributedError for a score that is not finite.
    """
    positive, negative, number = scores["positive"], scores["negative"], scores["number"]
    result, by_snapshot = drawn_metrics(positive, negative, world), []
    for snapshot in sorted(snapshot for targets in batches.targets for snapshot in targets):
        here = number == snapshot
        by_snapshot.append(link_metrics(positive[here], negative[here], world))
    means = {name: mean_known(metrics[name] for metrics in by_snapshot) for name in names_of(PAIRS)}
    return result | {name + PER_SNAPSHOT: mean for name, mean in means.items()}


def _drawn_names() -> tuple[str, ...]:
    return names_of(PAIRS) + names_of(RANKS) + tuple(name + PER_SNAPSHOT for name in names_of(PAIRS))


# Names of the metrics and the function that computes them.
MEASURES: dict[str, tuple[Callable[[], tuple[str, ...]], SplitMeasure]] = {
    DRAWN: (_drawn_names, measure_drawn),
    ALL: (lambda: ALL_NAMES, measure_all_pairs),
    FILTERED: (lambda: names_of(RANKS), lambda scores, batches, world: ranking_metrics(scores["rank"], world)),
}


def _count_types(partition: SnapshotPartition, world: World) -> int:
    """Collective. Count the types in the edges' column. Raises ValueError where it holds none, on all ranks."""
    with together(world, "read the types of edges"):
        types = partition.edge_column(TYPE)
        if types.dtype.kind not in "iu" or types.min(initial=0) < 0:
            raise ValueError(f"column {TYPE} of edges must hold types, integers from 0 on")
    return 1 + max(world.allgather(int(types.max(initial=0))))
