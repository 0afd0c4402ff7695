"""Runs planned steps on sampled blocks of a static graph: input rows, loss, backward pass, gradients of embeddings.

s seeds of this rank, nodes or edges; k negatives a seed; c candidates of this rank, m of all ranks; Z embedding width.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import embedding

from hpcgnn.comm.route import Route
from hpcgnn.comm.timers import Timers
from hpcgnn.comm.world import World
from hpcgnn.graph.columns import everything
from hpcgnn.graph.embeddings import EmbeddingStore
from hpcgnn.loop.session import StepTask
from hpcgnn.native.dispatch import on_host
from hpcgnn.native.products import add_product, product, rounded
from hpcgnn.native.random import MOST_RELATIONS, StepKey
from hpcgnn.nn.decoders import score_at
from hpcgnn.static.features import FEATURE, NodeRows
from hpcgnn.static.model.blocks import IndexedRows, rows_of
from hpcgnn.static.model.models import GraphModel
from hpcgnn.static.plan import GraphPlan
from hpcgnn.static.sampling.negatives import COUNTS, HIDDEN
from hpcgnn.static.sampling.queries import (
    ALL_ENDS,
    ALL_SIZES,
    ALL_TYPES,
    ANSWERS,
    DESTINATION,
    END,
    NUMBER,
    SHARES,
    SOURCE,
    USED,
)
from hpcgnn.task.all_candidates import BlockAnswers, power_sums
from hpcgnn.task.labels import LabelScores
from hpcgnn.task.links import LinkScores, mean_loss
from hpcgnn.task.losses import Loss

Rows = torch.Tensor | IndexedRows
Pushed = dict[int, tuple[Route, torch.Tensor]]  # by node type: gradients [U, D] of the rows of a route


class GraphStepTask(StepTask):
    """Base of tasks that run planned steps: input rows, the model's outputs, and where gradients go."""

    def __init__(
        self, model: GraphModel, rows: tuple[NodeRows, ...], embeddings: EmbeddingStore, timers: Timers
    ):  # fmt: skip
        super().__init__()
        self.model, self._rows, self._embeddings, self.timers = model, rows, embeddings, timers

    def _set_mode(self, training: bool) -> None:
        self.model.train(training)

    @torch.no_grad()
    def outputs(self, plan: GraphPlan) -> list[torch.Tensor]:
        """Collective. Compute the model's outputs by type for the last nodes of a plan, as in evaluation."""
        self._set_mode(training=False)
        return self._outputs(plan, *self._inputs(plan))

    def _inputs(self, plan: GraphPlan) -> tuple[list[Rows | None], dict[int, torch.Tensor]]:
        """Collective. Fetch the features [U, F] by node type (None without), and the learnable node embeddings of the
        types that have them."""
        features: list[Rows | None] = []
        with self.timers("exchange"):
            for rows, fetch, fetched in zip(self._rows, plan.fetches, plan.features, strict=True):
                features.append(rows.wanted(fetch, FEATURE) if fetched is None else fetched)
            learned = {
                kind: self._rows[kind].fetch_learned(plan.fetches[kind], table.weight)
                for kind, table in sorted(self._embeddings.tables.items())
            }
        return features, learned

    def _outputs(self, plan: GraphPlan, features, learned: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        inputs = [joined(of_type, learned.get(kind)) for kind, of_type in enumerate(features)]
        return self.model(plan.batch, inputs)

    def _pushed(self, plan: GraphPlan, learned: dict[int, torch.Tensor]) -> Pushed:
        """Return the gradients of the learnable node embeddings that a plan fetched."""
        gradients = {}
        for kind, rows in learned.items():
            fetch, gradient = plan.fetches[kind], torch.zeros_like(rows) if rows.grad is None else rows.grad
            gradients[kind] = fetch.route, fetch.summed(gradient)
        return gradients


class GraphTask(GraphStepTask):
    """Runs planned steps; ``train``, ``score`` and ``evaluate`` are collective.

    The loss is a sum over a rank's seeds, divided by the number of seeds of all ranks. The graph of the backward pass
    ends at the pulled input rows; gradients of learnable node embeddings go to their owners on every rank.
    """

    @abstractmethod
    def _score(self, plan: GraphPlan, outputs: list[torch.Tensor]):
        """Score the seeds by the model's outputs, by node type."""

    @abstractmethod
    def _loss(self, scores) -> torch.Tensor:
        """Compute the sum of the losses of the seeds."""

    def _train(self, plan: GraphPlan) -> tuple[torch.Tensor, Any]:
        loss, scores, gradients = self.learn(plan)
        self.move_rows([gradients])
        return loss, scores

    def learn(self, plan: GraphPlan) -> tuple[torch.Tensor, Any, Pushed]:
        """Collective. Do a step forward and backward; returns its loss, its scores (None where they are not kept), and
        the gradients of learnable node embeddings."""
        inputs, learned = self._inputs(plan)
        with self.timers("compute"):
            for rows in learned.values():
                rows.requires_grad_()
            loss, scores = self._learn(plan, self._outputs(plan, inputs, learned))
        return loss.detach(), None if scores is None else scores.detach(), self._pushed(plan, learned)

    def move_rows(self, gradients: list[Pushed]) -> None:
        """Collective. Bring the gradients of one or more ``learn`` of a step to the owners, whose optimizers move every
        row once: on every rank, also one without seeds, since others send to it."""
        with self.timers("exchange"):
            for kind, table in sorted(self._embeddings.tables.items()):
                table.apply_all([of_task[kind] for of_task in gradients])
            self._embeddings.publish()

    def _learn(self, plan: GraphPlan, outputs: list[torch.Tensor]):
        """Compute loss and scores of a step from the model's outputs by node type, and run the backward pass to its
        inputs."""
        scores = self._score(plan, outputs)
        loss = self._loss(scores) / max(1, plan.batch_size)
        loss.backward()
        return loss, scores

    @torch.no_grad()
    def score(self, plan: GraphPlan):
        """Collective. Score the seeds of one step."""
        return self._score(plan, self.outputs(plan))

    evaluate = score


def joined(feature: Rows | None, learned: torch.Tensor | Any) -> Rows:
    """Join a type's input rows [U, F] of features and learnable embeddings; it has at least one of the two."""
    if feature is None or learned is None:
        return learned if feature is None else feature
    return torch.cat([rows_of(feature), learned], dim=1)


SCORES, DEVICE_SCORES = 1 << 19, 1 << 25  # most scores of seeds with all candidates at once
QUERY_SCORES = 1 << 22  # likewise of queries with all nodes of a rank, on the host
RELATION_SITE = MOST_RELATIONS - 1  # of dropout, beyond those in a model


Rooted = tuple[torch.Tensor, torch.Tensor]  # embeddings [m, Z], and the nodes' places in them, [s] or [k, s]


@dataclass(frozen=True, slots=True)
class ReplacedEnd:
    """An end that negatives take the place of. end: SOURCE or DESTINATION; node_type: its type; column: name of the
    negatives' column."""

    end: int
    node_type: int
    column: str


class GraphLinkTask(GraphTask):
    """Scores every seed and its negatives with a decoder.

    A plan's roots are the sources, the destinations, and then for each of ``replaced`` the negatives. Negatives are
    drawn for every seed, or are candidates of all seeds, which their owners embed and send to all ranks.
    """

    def __init__(
        self, types: tuple[int, int], replaced: tuple[ReplacedEnd, ...], together: bool, loss: Loss,
        decoder: nn.Module, *shared,
    ):  # fmt: skip
        """types: of source and destination; together: negatives of both ends make pairs; loss: of scores [s] and [k,
        s], a sum; shared: what GraphTask takes."""
        super().__init__(*shared)
        self._types, self._replaced, self._together, self._sum = types, replaced, together, loss
        self._decoder: Any = decoder

    def _score(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> LinkScores:
        """Score the seeds and the negatives that were drawn for each."""
        decoder, relation = self._decoder, plan.columns.get("rel")
        ends = [(outputs[kind], roots) for roots, kind in zip(plan.roots[:2], self._types, strict=True)]
        drawn = [
            (outputs[place.node_type], roots.T) for place, roots in zip(self._replaced, plan.roots[2:], strict=True)
        ]
        negatives = score_negatives(decoder, ends, drawn, self._replaced, self._together, relation)
        return LinkScores.of_ends(score_ends(decoder, ends[SOURCE], ends[DESTINATION], relation), negatives)

    def _loss(self, scores: LinkScores) -> torch.Tensor:
        return scores.loss(self._sum)

    def _learn(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> tuple[torch.Tensor, LinkScores | None]:
        """Compute loss and scores and run the backward pass; without scores where there are candidates.

        Then the graph of the backward pass is cut at the embeddings: candidates go to all ranks, their gradients come
        back, and the model's own backward pass follows.
        """
        if self._replaced[0].column + COUNTS not in plan.columns:
            return super()._learn(plan, outputs)
        channel, kinds = plan.fetches[0].route.channel, [*self._types, *(place.node_type for place in self._replaced)]
        embeddings = [embedding(roots, outputs[kind]) for roots, kind in zip(plan.roots, kinds, strict=True)]
        counts = [plan.columns[place.column + COUNTS].cpu().numpy() for place in self._replaced]
        candidates = [
            channel.everyone(rows.detach(), count).clone().requires_grad_()
            for rows, count in zip(embeddings[2:], counts, strict=True)
        ]
        loss, gradients = self._learn_ends(plan, embeddings[:2], candidates)
        # Outside autograd, which calls no backward function on a rank without seeds and would leave the others waiting.
        for rows, count in zip(candidates, counts, strict=True):
            gradient = torch.zeros_like(rows) if rows.grad is None else rows.grad
            if channel.size > 1:  # owners sum the gradients of their candidates over the ranks
                num_own = int(count[channel.rank])
                received = channel.rows(gradient, count, np.full(channel.size, num_own, np.int64))
                gradient = received.view(channel.size, num_own, gradient.shape[1]).sum(0)
            gradients.append(gradient)
        reached = [(rows, grad) for rows, grad in zip(embeddings, gradients, strict=True) if rows.requires_grad]
        if reached:
            torch.autograd.backward([rows for rows, _ in reached], [grad for _, grad in reached])
        return loss, None

    def _learn_ends(
        self, plan: GraphPlan, ends, candidates: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Compute the loss and its gradients by sources and destinations [s, Z]; those by candidates [m, Z] are added
        to their ``grad``. Seeds are scored a part at a time: as many as have scores that stay in a cache or, on a
        device, so many that there are few launches."""
        loss, gradients = ends[0].new_zeros(()), [torch.zeros_like(rows) for rows in ends]
        scores = SCORES if on_host(ends[0]) else DEVICE_SCORES
        most = max(1, scores // max(1, *(len(rows) for rows in candidates)))
        for first in range(0, len(ends[0]), most):
            part = slice(first, first + most)
            cut = [rows[part].detach().requires_grad_() for rows in ends]
            share = mean_loss(self._sum, *self._score_candidates(plan, part, cut, candidates)) / max(1, plan.batch_size)
            share.backward()
            loss += share.detach()
            for gradient, rows in zip(gradients, cut, strict=True):
                if rows.grad is not None:  # a loss of the user's own may read negatives alone
                    gradient[part] = rows.grad
        return loss, gradients

    def _score_candidates(
        self, plan: GraphPlan, part: slice, ends, candidates: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Score the seeds of a part, whose ends these are, for each replaced end: [s], and the candidates [m, s] in its
        place, -inf where they are no negatives."""
        decoder, relation, negatives = self._decoder, plan.columns.get("rel"), []
        relation = None if relation is None else relation[part]
        for place, rows in zip(self._replaced, candidates, strict=True):
            stays = ends[SOURCE if place.end == DESTINATION else DESTINATION]
            scores = decoder.all_pairs(stays, rows, relation, place.end == SOURCE)
            pairs = plan.columns[place.column + HIDDEN]  # in order of seeds
            bounds = torch.tensor([part.start, part.start + len(scores)], device=pairs.device)
            begin, end = torch.searchsorted(pairs[:, 0].contiguous(), bounds).tolist()
            seed, candidate = pairs[begin:end].T
            hidden = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
            hidden[seed - part.start, candidate] = True
            negatives.append(scores.masked_fill(hidden, float("-inf")).T)
        positive = decoder(*ends, relation)
        if not getattr(decoder, "reciprocal", False):
            return [positive] * len(negatives), negatives
        asked = decoder.ask(ends[DESTINATION], relation, reverse=True)
        back = decoder.compare(asked, ends[SOURCE])
        return [back if place.end == SOURCE else positive for place in self._replaced], negatives


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """How queries are learned. types: of their nodes, and of the nodes that answer; total: number of the latter, most:
    at the rank that has most. task: the section ``task``; seed: of the run."""

    types: tuple[int, int]
    total: int
    most: int
    task: Any
    seed: int


class GraphQueryTask(GraphStepTask):
    """Scores the queries of a step with all nodes of a type, the candidates, at their owners.

    The rows that a decoder makes of queries go to all ranks. Each scores them with its own candidates, a block of
    queries at a time; the sums of a softmax are added up over the ranks, and the gradients of the rows go back. No rank
    holds more scores than a block's with its own candidates. s queries of this rank; c candidates of this rank.
    """

    def __init__(self, options: QueryOptions, loss: Any, decoder: nn.Module, world: World, *shared):
        """loss: one of ``all_candidates``; shared: what GraphStepTask takes."""
        super().__init__(*shared)
        self._options, self._sum, self._world = options, loss, world
        self._decoder: Any = decoder

    def _train(self, plan: GraphPlan) -> tuple[torch.Tensor, None]:
        features, learned = self._inputs(plan)
        with self.timers("compute"):
            for rows in learned.values():
                rows.requires_grad_()
            query = self._outputs(plan, features, learned)[self._options.types[0]]
            weight, candidate = self._candidates(plan, features, learned)
            loss = self._learn(plan, query, candidate, weight)
        pushed = self._pushed(plan, learned)
        with self.timers("exchange"):
            for kind, table in sorted(self._embeddings.tables.items()):
                if kind == self._options.types[1]:
                    table.apply_to_all(weight.grad, [pushed[kind]])
                else:
                    table.apply_all([pushed[kind]])
            self._embeddings.publish()
        return loss, None

    def _learn(
        self, plan: GraphPlan, rows: torch.Tensor, candidate: torch.Tensor, weight: torch.Tensor | Any
    ) -> torch.Tensor:
        """Collective. Compute this rank's share of the loss and run the backward pass to ``rows``, among them the
        queries' nodes, to the rows [c, Z] of the candidates and to their learnable embeddings [c, D]."""
        asked = self._ask(plan, embedding(plan.roots[0], rows))
        loss, gradients = self._learn_queries(plan, asked.detach(), candidate.detach())
        reached = [pair for pair in zip((asked, candidate), gradients, strict=True) if pair[0].requires_grad]
        torch.autograd.backward([rows for rows, _ in reached], [gradient for _, gradient in reached])
        for penalty in self._penalties(plan, weight):
            penalty.backward()
            loss += penalty.detach()
        return loss

    def _candidates(self, plan: GraphPlan, features, learned: dict[int, torch.Tensor]) -> tuple[Any, torch.Tensor]:
        """Make the rows [c, Z] of the candidates; also returns the learnable embeddings [c, D] in them, or None."""
        kind = self._options.types[1]
        tables: dict[str, Any] = self._rows[kind].tables
        table = self._embeddings.tables.get(kind)
        weight = None if table is None else table.weight.detach().requires_grad_()
        rows = [rows_of(joined(of_type, learned.get(number)))[:0] for number, of_type in enumerate(features)]
        identity = [of_type[:0] for of_type in plan.batch.identity]
        own = everything(tables[FEATURE]) if FEATURE in tables else None
        rows[kind] = rows_of(joined(own, weight))
        identity[kind] = tables["identity"].to(rows[kind].device)
        return weight, self.model(replace(plan.batch, identity=tuple(identity)), rows)[kind]

    def _ask(self, plan: GraphPlan, query: torch.Tensor) -> torch.Tensor:
        """Make the rows [s, Z] of this rank's queries from the rows of their nodes."""
        columns, p, factor = plan.columns, self._options.task.relation_dropout, None
        if p:
            key, width = StepKey(self._options.seed, plan.epoch, plan.step), self._decoder.relation.weight.shape[1]
            factor = key.dropout_mask(columns[NUMBER], RELATION_SITE, p, width, query.dtype)
        pieces, places = [], []
        for end in (SOURCE, DESTINATION):
            place = (columns[END] == end).nonzero().squeeze(1)
            of_end = None if factor is None else factor[place]
            pieces.append(self._decoder.ask(query[place], columns["rel"][place], end == SOURCE, of_end))
            places.append(place)
        return torch.cat(pieces)[torch.cat(places).argsort()]

    def _learn_queries(
        self, plan: GraphPlan, asked: torch.Tensor, candidate: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Collective. Compute this rank's share of the loss, and the gradients by the rows [s, Z] of its queries and by
        its candidates [c, Z]."""
        channel, shares = plan.fetches[0].route.channel, plan.columns[SHARES].cpu().numpy()
        rows, pairs = channel.everyone(asked, shares), plan.columns[ANSWERS]
        gradient, of_candidates, loss = torch.zeros_like(rows), torch.zeros_like(candidate), rows.new_zeros(())
        candidates = max(1, self._options.most)
        most = max(1, (QUERY_SCORES if on_host(rows) else DEVICE_SCORES) // candidates)
        if self._decoder.is_product:
            # With fewer queries in a block than columns, the candidates' gradient is read more often than scores.
            most, candidate = max(most, min(rows.shape[1], DEVICE_SCORES // candidates)), rounded(candidate)
        for first in range(0, len(rows), most):
            part = slice(first, first + most)
            bounds = torch.tensor([first, first + most], device=pairs.device)
            begin, end = torch.searchsorted(pairs[:, 0].contiguous(), bounds).tolist()
            query, place = pairs[begin:end].T
            size = plan.columns[ALL_SIZES][part]
            answers = BlockAnswers(query - first, place, size, self._options.total, self._reduce)
            share, gradient[part] = self._learn_block(rows[part], candidate, answers, of_candidates)
            loss += share
        own, number = int(shares[channel.rank]), max(1, plan.batch_size)
        received = channel.rows(gradient, shares, np.full(channel.size, own, np.int64))
        of_queries = received.view(channel.size, own, gradient.shape[1]).sum(0)
        return loss / number, [of_queries / number, of_candidates.div_(number)]

    def _learn_block(
        self, rows: torch.Tensor, candidate: torch.Tensor, answers: BlockAnswers, of_candidates: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Collective. Compute this rank's share of the loss of a block of queries [b, Z], and the gradient by them; the
        gradient by the candidates is added to ``of_candidates`` [c, Z]."""
        if self._decoder.is_product:
            # Without autograd, which would make the gradient of candidates anew for every block.
            share, slope = self._sum(product(rows, candidate.T), answers)
            slope = rounded(slope)
            add_product(of_candidates, slope.T, rows)
            return share, product(slope, candidate)
        rows, others = rows.detach().requires_grad_(), candidate.detach().requires_grad_()
        score = self._decoder.match(rows, others)
        share, slope = self._sum(score.detach(), answers)
        of_rows, more = torch.autograd.grad(score, (rows, others), slope)
        of_candidates += more
        return share, of_rows

    def _reduce(self, values: torch.Tensor, operation: str) -> torch.Tensor:
        """Collective. Reduce values [b] over the ranks."""
        if self._world.size == 1:
            return values
        return torch.from_numpy(self._world.reduce_array(values.cpu().numpy(), operation)).to(values.device)

    def _penalties(self, plan: GraphPlan, weight: torch.Tensor | Any) -> list[torch.Tensor]:
        """Compute this rank's shares of the penalties: of its learnable embeddings [c, D] and, on the first rank, of
        the rows of edge types."""
        task, decoder, columns = self._options.task, self._decoder, plan.columns
        found = []

        def add(factor: float, rows: torch.Tensor, place: torch.Tensor, count: torch.Tensor, is_complex: bool) -> None:
            if not task.penalty_counts:
                place = place.unique()
                count = torch.ones_like(place)
            total = (count.to(rows.dtype) * power_sums(rows[place], task.penalty, is_complex)).sum()
            found.append(factor / max(1, plan.batch_size) * total)

        if task.node_penalty:
            place, count = columns[USED].T
            add(task.node_penalty, weight, place.long(), count, getattr(decoder, "is_complex", False))
        if task.relation_penalty and self._world.rank == 0:
            is_source, count = columns[ALL_ENDS] == SOURCE, columns[ALL_SIZES].double() ** task.answer_power
            places = [decoder.place(columns[ALL_TYPES][is_source == end], end) for end in (True, False)]
            count = torch.cat([count[is_source], count[~is_source]])
            add(task.relation_penalty, decoder.relation.weight, torch.cat(places), count, decoder.is_complex_relation)
        return found


def score_ends(decoder: nn.Module, source: Rooted, destination: Rooted, relation: torch.Tensor | None) -> torch.Tensor:
    """Score pairs, [s] or [k, s]; relation [s]: edge types or None."""
    tables, places = zip(source, destination, strict=True)
    return score_at(decoder, tables, places, relation)


def score_negatives(
    decoder: nn.Module, ends: Sequence[Rooted], negatives: Sequence[Rooted], replaced: Sequence[ReplacedEnd],
    together: bool, relation: torch.Tensor | None,
) -> list[torch.Tensor]:  # fmt: skip
    """Score the pairs [k, s] of the end that stays and the negatives [k, s] for each end that is ``replaced``; or,
    ``together``, the pairs of the negatives of both. ends: source and destination [s]; relation [s]: edge types or
    None."""
    by_end = {place.end: rooted for place, rooted in zip(replaced, negatives, strict=True)}
    if together:
        return [score_ends(decoder, by_end[SOURCE], by_end[DESTINATION], relation)]
    return [
        score_ends(decoder, rooted, ends[DESTINATION], relation)
        if end == SOURCE
        else score_ends(decoder, ends[SOURCE], rooted, relation)
        for end, rooted in by_end.items()
    ]


def label_edges(head: nn.Module, ends: Iterable[torch.Tensor], columns: Iterable[torch.Tensor]) -> torch.Tensor:
    """Compute the outputs [s, C] of edges by a head, from the embeddings [s, Z] of source and destination, and from
    columns [s] or [s, F] of the edges."""
    source, destination = ends
    rows = (column.to(source.dtype).reshape(len(column), math.prod(column.shape[1:])) for column in columns)
    return head(torch.cat([source, destination, *rows], dim=1))


class GraphEdgeTask(GraphTask):
    """Scores the label of every seed, an edge."""

    def __init__(self, types: tuple[int, int], columns: Sequence[str], loss: Loss, head: nn.Module, *shared):
        """types: of source and destination; columns: of the edges, which the head reads; loss: a sum over seeds;
        shared: what GraphTask takes."""
        super().__init__(*shared)
        self._types, self._names, self._sum, self._head = types, columns, loss, head

    def _score(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> LabelScores:
        ends = (embedding(roots, outputs[kind]) for roots, kind in zip(plan.roots, self._types, strict=True))
        output = label_edges(self._head, ends, [plan.columns[name] for name in self._names])
        return LabelScores(output, plan.columns["label"])

    def _loss(self, scores: LabelScores) -> torch.Tensor:
        return self._sum(scores.output, scores.label)


class GraphNodeTask(GraphTask):
    """Scores the classes of every seed, a node."""

    def __init__(self, seed_type: int, loss: Loss, head: Callable[[torch.Tensor], torch.Tensor], *shared):
        """loss: a sum over seeds; head: of the model's outputs; shared: what GraphTask takes."""
        super().__init__(*shared)
        self._seed_type, self._sum, self._head = seed_type, loss, head

    def _score(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> LabelScores:
        return LabelScores(self._head(outputs[self._seed_type][plan.roots[0]]), plan.columns["label"])

    def _loss(self, scores: LabelScores) -> torch.Tensor:
        return self._sum(scores.output, scores.label)
