"""Links between snapshots: the goal of predicting whether two nodes have an edge in a later one, and its rankings.

Edges are compared with drawn negatives, or ranked among all pairs of nodes (Pareja et al., EvolveGCN, 2020), or each of
their ends among all nodes. n nodes of this rank, N of all ranks, C output columns, Z width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hpcgnn.choices import Part
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain, RankRows
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.native.random import StepKey
from hpcgnn.nn.decoders import DECODERS, DecoderSizes, EvolvedDecoder, score_at
from hpcgnn.snapshots.goals import EdgeLabelGoal, NodeLabelGoal, RegressionGoal, SnapshotGoal
from hpcgnn.snapshots.graph import TYPE, SnapshotPartition
from hpcgnn.snapshots.model.frame import EvolvedOutputs
from hpcgnn.snapshots.pairs import TRAIN, EndQueries, PairPlanner, TargetEdges, TargetPairs
from hpcgnn.snapshots.recurrency import Added, FactHistory, LearnedRecurrency, RecurrencyAt
from hpcgnn.task import metrics
from hpcgnn.task.all_candidates import BlockAnswers
from hpcgnn.task.goal import Collected, Measure, SplitMeasure
from hpcgnn.task.levels import MatrixLevels
from hpcgnn.task.links import LinkScores
from hpcgnn.task.losses import LOSSES, make_loss
from hpcgnn.task.metrics import PAIRS, PER_SNAPSHOT, RANKS, SOURCES, BestEdges, check_finite, mean_known, names_of
from hpcgnn.task.ranking import AddToScores, Candidates

ALL_NAMES = ("map", "mrr", "auc")
PAIR = "pair"  # of task.negative_ends
FILTERED, RAW = "filtered", "raw"
DECODER_SITE = 1 << 10  # of dropout: the sites of a model's layers are below
QUERY_SCORES = 1 << 22  # scores of queries with the nodes of a rank at once, in training
ELEMENTS = 1 << 24  # scores compared at once
SCORES = 1 << 18  # pairs scored at once: they stay in a cache


@dataclass(slots=True)
class Ranked:
    """Ranking quality of edges: columns by name, with a row for each of t targets, the same on all ranks, or of r
    ranks.

    Rankings among all pairs have columns by target. "map": average precision of edges against all other pairs. "mrr":
    mean over sources of the mean reciprocal rank of their edges among all destinations, other edges too. "auc". All are
    infinite where a score is not finite. Rankings of ends among all nodes have the "rank" of this rank's edges.
    """

    columns: dict[str, np.ndarray]

    @classmethod
    def join(cls, ranked: list[Ranked]) -> Ranked:
        """Join the columns of several targets."""
        return cls({name: np.concatenate([r.columns[name] for r in ranked]) for name in ranked[0].columns})

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the columns by name."""
        return self.columns


@dataclass(slots=True)
class QueryScores:
    """The loss of queries against all nodes, this rank's share of the sum. The scores themselves are not kept."""

    value: torch.Tensor

    @classmethod
    def join(cls, scores: list[QueryScores]) -> QueryScores:
        """Add up the losses of several targets."""
        return cls(torch.stack([score.value for score in scores]).sum())

    def loss(self, loss: object) -> torch.Tensor:
        """Return the loss."""
        return self.value

    def detach(self) -> QueryScores:
        """Return the loss without its gradient."""
        return QueryScores(self.value.detach())


def scorer_of(decoder: Any, outputs: torch.Tensor | EvolvedOutputs) -> tuple[Any, torch.Tensor]:
    """Return what scores pairs of outputs, and the outputs [n, Z]: the decoder, with the rows of edge types where the
    model evolves them."""
    if isinstance(outputs, EvolvedOutputs):
        return EvolvedDecoder(decoder, outputs.relation), outputs.rows
    return decoder, outputs


class _LossOverAll(torch.autograd.Function):
    """Computes the loss of queries [Q, Z] of all ranks against this rank's nodes [n, Z], block by block, with its
    gradients: no rank holds more scores than a block's with its nodes. added [x]: is added to the scores of the
    answers that queries had before, None: nothing is. Collective."""

    @staticmethod
    def forward(ctx, asked, candidate, added, queries: EndQueries, match, loss, total: int, reduce):
        gradients, value = (torch.zeros_like(asked), torch.zeros_like(candidate)), asked.new_zeros(())
        of_added = None if added is None else torch.zeros_like(added)
        most = max(1, QUERY_SCORES // queries.most)
        for first in range(0, len(asked), most):
            part = slice(first, first + most)
            bounds = torch.tensor([first, first + most], device=asked.device)
            begin, end = torch.searchsorted(queries.query, bounds).tolist()
            size = torch.ones(len(asked[part]), dtype=torch.int64, device=asked.device)
            answers = BlockAnswers(queries.query[begin:end] - first, queries.place[begin:end], size, total, reduce)
            with torch.enable_grad():
                sides = asked[part].detach().requires_grad_(), candidate.detach().requires_grad_()
                score = match(*sides)
            raised = score.detach()
            if added is not None:
                chosen, *places = queries.recurring_in(first, first + most)
                raised[tuple(places)] += added[chosen]
            share, slope = loss(raised, answers)
            if of_added is not None:
                of_added[chosen] = slope[tuple(places)]
            of_queries, of_candidates = torch.autograd.grad(score, sides, slope)
            gradients[0][part] = of_queries
            gradients[1].add_(of_candidates)
            value += share
        ctx.save_for_backward(*gradients, of_added)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        of_queries, of_candidates, of_added = ctx.saved_tensors
        of_added = None if of_added is None else gradient * of_added
        return gradient * of_queries, gradient * of_candidates, of_added, None, None, None, None, None


def score_drawn(
    decoder: Any, outputs: torch.Tensor, pairs: TargetPairs, chain: HaloChain, channel: Channel, world,
    add: Added | None = None,
):  # fmt: skip
    """Collective. Score edges and the negatives that were drawn for them, from outputs [n, Z]. add: adds to scores."""
    assert pairs.reach is not None
    assert pairs.negative is not None
    rows = pairs.reach.bring(outputs, chain, channel)
    destination = torch.cat([pairs.destination.unsqueeze(0), pairs.negative])
    source = pairs.source
    if pairs.negative_source is not None:
        source = torch.cat([source.unsqueeze(0), pairs.negative_source])
    scores = score_at(decoder, (rows, rows), (source, destination), pairs.relation)
    if add is not None:
        assert pairs.seen is not None
        scores = scores + add.to_facts(pairs.seen)
    positive, negative = scores.split((1, len(pairs.negative)))
    number = torch.full_like(pairs.source, pairs.number)
    return LinkScores(positive.squeeze(0), negative, number=number, source=pairs.source_id)


def rank_answers(
    decoder: Any, outputs: torch.Tensor, pairs: TargetPairs, chain, channel: Channel, world: World,
    dtype: torch.dtype = torch.float32, add: AddToScores | None = None,
):  # fmt: skip
    """Collective. Rank both ends of every edge, other edges of the snapshot left out; from outputs [n, Z]. Scores are
    compared in ``dtype``. add: changes the decoder's scores."""
    most, ranks, answers = int(world.reduce_array(np.array([len(outputs)]), "max")[0]), [], pairs.answers
    assert answers is not None
    types = answers.edges[:, 2]
    for asks, ((reached, place), known_edges) in enumerate(zip(answers.rows, answers.known, strict=True)):
        rows = reached.bring(outputs, HaloChain(), channel)[place]
        candidates = Candidates(known_edges, most, reverse=asks == 1, dtype=dtype, add=add)
        query, answer = answers.edges[:, asks], answers.edges[:, 1 - asks]
        ranks.append(candidates.ranks(decoder, outputs, rows, query, types, answer, world)[answers.own])
    return Ranked({"rank": np.concatenate(ranks)})


def rank_all_pairs(
    decoder: Any, outputs: torch.Tensor, pairs: TargetPairs, chain, channel: Channel, world: World,
    add: Added | None = None,
):  # fmt: skip
    """Collective. Rank edges among all pairs, from outputs [n, Z]; pairs: sources as global ids, destinations as local
    rows. add: adds to scores."""
    if isinstance(decoder, RecurrencyAt):
        score = decoder.matrix()
    else:
        score = score_matrix(decoder, channel.everyone(outputs), outputs)
    if add is not None:
        everyone = np.arange(score.shape[1])
        add(score.T, everyone, np.zeros_like(everyone), False)
    positive = score[pairs.destination, pairs.source]
    if world.reduce_array(np.array([bool(torch.isfinite(score).all())], np.int64), "min")[0] == 0:
        # Raised when the split is measured, by all ranks together: other groups may be at another snapshot now.
        return Ranked(dict.fromkeys(ALL_NAMES, np.array([np.inf])))
    levels = MatrixLevels(positive.cpu().numpy(), world)
    levels.add(score)
    levels.add(positive, -1)
    ap, auc = levels.measure()
    values = ap, _mean_reciprocal_rank(score, pairs.source, positive, channel, world), auc
    return Ranked({name: np.array([value]) for name, value in zip(ALL_NAMES, values, strict=True)})


def score_matrix(decoder: Any, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    """Score destinations [n, Z] with all sources [N, Z], in order of global id: [n, N] float32."""
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
    """Collective. Average the columns of ``rank_all_pairs``, which all ranks of a group have, over snapshots with
    edges."""
    values = np.column_stack([scores[name] for name in ALL_NAMES])
    check_finite(not np.isinf(values).any(), world)
    if world.size > 1:
        values = world.broadcast(world.gather_rows(values))
    return {name: mean_known(column) for name, column in zip(ALL_NAMES, values.T, strict=True)}


def measure_drawn(scores: dict[str, np.ndarray], batches: Any, world: World) -> dict[str, float]:
    """Collective. Compute the metrics of pairs and of their ranks, and means over snapshots of the metrics of pairs.

    scores: positive [s], negative [s, k], number [s], the snapshots that this rank's pairs are predicted from, and
    source [s], global ids; the batches list the snapshots of all ranks. Raises DistributedError for a score that is not
    finite.
    """
    positive, negative, number = scores["positive"], scores["negative"], scores["number"]
    result, by_snapshot = measure_pairs(scores, world), []
    for snapshot in sorted(snapshot for targets in batches.targets for snapshot in targets):
        here = number == snapshot
        by_snapshot.append(metrics.link_metrics(positive[here], negative[here], world))
    means = {name: mean_known(values[name] for values in by_snapshot) for name in names_of(PAIRS)}
    return result | {name + PER_SNAPSHOT: mean for name, mean in means.items()}


def measure_pairs(scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
    """Collective. Compute the metrics of pairs, of their ranks, and of the sources' best edges, from the scores of
    ``measure_drawn``."""
    rank = metrics.ranks_of(scores["positive"], scores["negative"])
    found = metrics.link_metrics(scores["positive"], scores["negative"], world) | metrics.ranking_metrics(rank, world)
    best = BestEdges(scores["positive"], rank, scores["number"], scores["source"], world)
    return found | metrics.measured(SOURCES, best)


def _pair_names() -> tuple[str, ...]:
    return tuple(name for kind in (PAIRS, RANKS, SOURCES) for name in names_of(kind))


def _drawn_names() -> tuple[str, ...]:
    return _pair_names() + tuple(name + PER_SNAPSHOT for name in names_of(PAIRS))


def _no_scores(count: int) -> LinkScores:
    none = torch.empty(0, dtype=torch.int64)
    return LinkScores(torch.empty(0), torch.empty((count, 0)), number=none, source=none)


@dataclass(frozen=True)
class RankingPart(Part):
    """A way to evaluate links. make: collective, scores a target, from the decoder, outputs [n, Z], pairs, a chain, a
    channel and the world; plan: collective, plans the pairs, as ``PairPlanner.drawn`` does. none: makes the scores of
    no target, for a number of negatives. names: of the metrics; measure: collective, computes them from all scores.
    against: the pairs or nodes that edges are compared with, in words, for the log; whole: it ranks all edges of a
    snapshot at once, of all types together; of_ends: it ranks each end of an edge among all nodes."""

    make: Callable[..., Any]
    plan: Callable[[PairPlanner, str, int, int, int], TargetPairs]
    none: Callable[[int], Any]
    names: Callable[[], tuple[str, ...]]
    measure: SplitMeasure
    against: str
    whole: bool = False
    of_ends: bool = False


def _ranking_of_ends(filtered: bool, description: str, against: str) -> RankingPart:
    """Make the row of a ranking of both ends of an edge among all nodes."""
    return RankingPart(
        rank_answers, description, partial(PairPlanner.ends, filtered=filtered),
        lambda count: Ranked({"rank": np.empty(0)}), lambda: names_of(RANKS),
        lambda scores, batches, world: metrics.ranking_metrics(scores["rank"], world), against, of_ends=True,
    )  # fmt: skip


RANKINGS = {
    "": RankingPart(
        score_drawn, "each edge against eval.negatives drawn negatives", PairPlanner.drawn,
        _no_scores, _drawn_names, measure_drawn, "{} negatives each",
    ),
    "all": RankingPart(
        rank_all_pairs, "edges among all pairs of nodes, with all scores in memory", PairPlanner.all_pairs,
        lambda count: Ranked(dict.fromkeys(ALL_NAMES, np.empty(0))),
        lambda: ALL_NAMES, measure_all_pairs, "all pairs", whole=True,
    ),
    FILTERED: _ranking_of_ends(
        True, "both ends of an edge among all nodes, without other edges of the snapshot", "all nodes at both ends"
    ),
    RAW: _ranking_of_ends(
        False, "both ends of an edge among all nodes, other edges of the snapshot too",
        "all nodes at both ends, other edges too",
    ),
}  # fmt: skip
DRAWN = RANKINGS[""]


class SnapshotLinkGoal(SnapshotGoal):
    """Predicts whether two nodes have an edge ``task.horizon`` snapshots later. An edge is handled by the owner of
    its destination."""

    def __init__(self, config: Any, partition: SnapshotPartition, world: World, planning: Channel, channel: Channel):
        task, horizon, self._eval = config.task, config.task.horizon, config.eval
        self._task, self._horizon, self._world, self._channel = task, horizon, world, channel
        self.num_outputs, self._ranking = config.model.hidden, RANKINGS[config.eval.ranking]
        self.sum, self._global_ids, self._num_nodes = make_loss(task), partition.global_ids, partition.book.num_nodes
        self._over_all, self._dropout, self._seed = LOSSES[task.loss].over_all, config.model.dropout, config.train.seed
        self.last = partition.num_snapshots - 1 - horizon
        self.num_edge_types = _count_types(partition, task.decoder, world) if task.is_typed else 0
        edges = TargetEdges(partition, horizon, task.undirected, task.new_links, self.num_edge_types, planning)
        drawn = task.negative_ends == PAIR, task.strict, config.train.seed
        types = self.num_edge_types
        self._history = FactHistory(partition, types, planning, world) if task.recurrency else None
        self._pairs = PairPlanner(partition, edges, *drawn, world, planning, task.negative_kind, self._history)
        self.roots = self.count_roots(lambda number: len(edges.at(number).row), partition, world)

    def extend(self, model: nn.Module) -> nn.Module:
        """Add the decoder that scores links to the model."""
        task = self._task
        distances = {"distance": task.distance, "offset": task.offset}
        evolves = bool(model.evolves_relations)
        sizes = DecoderSizes(self.num_outputs, self.num_edge_types, task.temperature, reciprocal=evolves, **distances)
        self._decoder = model.decoder = DECODERS[task.decoder].make(sizes)
        if evolves:
            del self._decoder.relation  # the model has the rows
        if self._history is not None:
            kinds = self._history.num_kinds // (1 if self._over_all else 2)
            self._recurrency = model.recurrency = LearnedRecurrency(kinds, self._horizon)
        return model

    def want(self, split: str, epoch: int, number: int) -> TargetPairs:
        if split == TRAIN and self._over_all:
            return self._pairs.queries(split, epoch, number, 0)
        row, section = (DRAWN, self._task) if split == TRAIN else (self._ranking, self._eval)
        return row.plan(self._pairs, split, epoch, number, section.negatives)

    def score(self, outputs: torch.Tensor | EvolvedOutputs, pairs: TargetPairs, chain: HaloChain):
        decoder, rows = scorer_of(self._decoder, outputs)
        if pairs.queries is not None:
            return self._score_queries(decoder, rows, pairs, pairs.queries, chain)
        row = self._ranking if pairs.negative is None else DRAWN
        add = None if self._history is None else self.adder(pairs.number)
        return row.make(decoder, rows, pairs, chain, self._channel, self._world, add=add)

    def adder(self, number: int) -> Added | None:
        """Return what adds the learned scores of facts up to a snapshot to a decoder's. None: nothing is added."""
        return None if self._history is None else Added(self._history, self._recurrency, number)

    def _score_queries(
        self, decoder: Any, outputs: torch.Tensor, pairs: TargetPairs, queries: EndQueries, chain: HaloChain
    ) -> QueryScores:  # fmt: skip
        """Collective. Compute the loss of both ends of every edge against all nodes, from outputs [n, Z]; the loss of
        an edge is the mean of both."""
        assert pairs.reach is not None
        rows = pairs.reach.bring(outputs, chain, self._channel)
        ends = ((pairs.source, False), (pairs.destination, True))
        asked = [decoder.ask(functional.embedding(at, rows), pairs.relation, reverse) for at, reverse in ends]
        everyone = self._ask_everyone(self._dropped(torch.cat(asked), pairs.number, queries), queries.counts, chain)
        total, recurring, added = self._num_nodes, queries.recurring, None
        if recurring is not None:
            added = self._recurrency(recurring.seen, pairs.number)
        value = _LossOverAll.apply(everyone, outputs, added, queries, decoder.match, self.sum, total, self._reduce)
        return QueryScores(value / len(ends))

    def _dropped(self, asked: torch.Tensor, number: int, queries: EndQueries) -> torch.Tensor:
        """Drop entries of the rows [2 s, Z] of queries, keyed by edge and end, in training."""
        if not self._dropout:
            return asked
        key = StepKey(self._seed, queries.epoch, number, True)
        return asked * key.dropout_mask(queries.identity, DECODER_SITE, self._dropout, asked.shape[1], asked.dtype)

    def _ask_everyone(self, asked: torch.Tensor, counts: np.ndarray, chain: HaloChain) -> torch.Tensor:
        """Collective. Bring the rows [., Z] of queries of all ranks, in rank order."""
        if self._channel.size == 1:
            return asked
        most, ranks = int(counts.max()), RankRows(chain, self._channel)
        padded = functional.pad(asked, (0, 0, 0, most - len(asked)))
        received = ranks.finish(ranks.start(padded)).view(self._channel.size, most, asked.shape[1])
        return torch.cat([of_rank[:count] for of_rank, count in zip(received, counts, strict=True)])

    def _reduce(self, values: torch.Tensor, operation: str) -> torch.Tensor:
        """Collective. Reduce values [b] over the ranks."""
        if self._world.size == 1:
            return values
        return torch.from_numpy(self._world.reduce_array(values.cpu().numpy(), operation)).to(values.device)

    def compare(self, rule: RecurrencyAt, pairs: TargetPairs) -> Ranked | LinkScores:
        """Collective. Score a target by a rule, which reads global ids [., 1] in place of embeddings and returns
        float64."""
        ids = torch.from_numpy(self._global_ids).unsqueeze(1).to(self._world.device)
        exact = {"dtype": torch.float64} if self._ranking.of_ends else {}
        return self._ranking.make(rule, ids, pairs, HaloChain(), self._channel, self._world, **exact)

    def loss(self, scores: LinkScores) -> torch.Tensor:
        return scores.loss(self.sum)

    def join(self, scores: list, training: bool):
        if scores:
            return type(scores[0]).join(scores)
        if training and self._over_all:
            return QueryScores(torch.zeros(()))
        return DRAWN.none(self._task.negatives) if training else self._ranking.none(self._eval.negatives)

    def collector(self) -> Collected:
        return Collected(self._ranking.measure)

    def metric_names(self) -> tuple[str, ...]:
        return self._ranking.names()

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Measure pairs against their negatives."""
        return _pair_names(), measure_pairs

    def describe(self) -> str:
        task = self._task
        kind = ("new " if task.new_links else "") + ("undirected " if task.undirected else "") + "links"
        kind += f" of {self.num_edge_types} types" if self.num_edge_types else ""
        against = self._ranking.against.format(self._eval.negatives)
        learned = f"{'strict, ' if task.strict else ''}{task.negatives} negatives each"
        learned = "both ends against all nodes" if self._over_all else learned
        return f"{kind} {self._horizon} snapshots later, {learned}, in evaluation {against}"


GOALS = {
    "regression": Part(RegressionGoal, "node regression, a number in every snapshot (NaN: missing)"),
    "node": Part(NodeLabelGoal, "node classification, a class in every snapshot or for all (negative: missing)"),
    "link": Part(SnapshotLinkGoal, "link prediction, whether two nodes have an edge"),
    "edge": Part(EdgeLabelGoal, "edge classification by a column of the edges"),
    "edge_regression": Part(EdgeLabelGoal, "edge regression by a column of the edges"),
}


def _count_types(partition: SnapshotPartition, decoder: str, world: World) -> int:
    """Collective. Count the types in the edges' column. Raises ValueError where it holds none, on all ranks."""
    with together(world, "read the types of edges"):
        if TYPE not in partition.edge_columns:
            there = ", ".join((*partition.edge_columns, *partition.unread)) or "none"
            untyped = [name for name, part in DECODERS.items() if not (part.typed or part.needs_events)]
            raise ValueError(
                f"task.decoder {decoder} needs edge types, and the edges have no column {TYPE}, an integer from 0 on "
                f"(columns: {there}): add it to the table of edges and convert again, or set task.decoder "
                f"{' or '.join(untyped)}"
            )
        types = partition.edge_column(TYPE)
        if types.dtype.kind not in "iu" or types.min(initial=0) < 0:
            raise ValueError(f"column {TYPE} of edges must hold types, integers from 0 on")
    return max(partition.least_edge_types, 1 + max(world.allgather(int(types.max(initial=0)))))
