"""Runs planned steps on sampled blocks of a static graph: input rows, loss, backward pass, gradients of learnable rows.

s seeds of this rank, nodes or edges; k negatives a seed; c candidates of this rank, m of all ranks; Z embedding width.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, embedding

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.timers import Timers
from hpcgnn.graph.columns import GatheredTable
from hpcgnn.graph.embeddings import EmbeddingStore
from hpcgnn.loop.step_graphs import StepTask
from hpcgnn.native.dispatch import on_host
from hpcgnn.static.model.blocks import IndexedRows, rows_of
from hpcgnn.static.model.models import GraphModel
from hpcgnn.static.negatives import COUNTS, HIDDEN
from hpcgnn.static.plan import GraphPlan
from hpcgnn.static.rows import FEATURE, NodeRows
from hpcgnn.task.labels import LabelScores
from hpcgnn.task.links import LinkScores, Loss, mean_loss

Rows = torch.Tensor | IndexedRows


class GraphTask(StepTask):
    """Runs planned steps; ``train``, ``score`` and ``evaluate`` are collective.

    The loss is a sum over a rank's seeds, divided by the number of seeds of all ranks. The graph of the backward pass
    ends at the pulled input rows: gradients of learnable ones go to their owners on every rank.
    """

    def __init__(
        self, model: GraphModel, rows: tuple[NodeRows, ...], embeddings: EmbeddingStore, timers: Timers
    ):  # fmt: skip
        super().__init__()
        self.model, self._rows, self._embeddings, self.timers = model, rows, embeddings, timers

    @abstractmethod
    def _score(self, plan: GraphPlan, outputs: list[torch.Tensor]):
        """Scores of the seeds from the model's outputs by node type."""

    @abstractmethod
    def _loss(self, scores) -> torch.Tensor:
        """The sum over the seeds."""

    def _set_mode(self, training: bool) -> None:
        self.model.train(training)

    def _train(self, plan: GraphPlan) -> tuple[torch.Tensor, Any]:
        inputs, learnt = self._inputs(plan)
        with self.timers("compute"):
            for rows in learnt.values():
                rows.requires_grad_()
            loss, scores = self._learn(plan, self._outputs(plan, inputs, learnt))
        self._push(plan, learnt)
        return loss.detach(), None if scores is None else scores.detach()

    def _learn(self, plan: GraphPlan, outputs: list[torch.Tensor]):
        """Loss and scores of a step from the model's outputs by node type, with the backward pass to its inputs."""
        scores = self._score(plan, outputs)
        loss = self._loss(scores) / max(1, plan.batch_size)
        loss.backward()
        return loss, scores

    @torch.no_grad()
    def score(self, plan: GraphPlan):
        """Collective. Scores of one step."""
        self._set_mode(training=False)
        return self._score(plan, self._outputs(plan, *self._inputs(plan)))

    evaluate = score

    def _inputs(self, plan: GraphPlan) -> tuple[list[Rows | None], dict[int, torch.Tensor]]:
        """Collective. Features by node type (None without), and learnable rows of the types that have them."""
        with self.timers("exchange"):
            features = [self._features(plan, kind) for kind in range(len(self._rows))]
            learnt = {
                kind: plan.fetches[kind].route.pull(table.weight)[0]
                for kind, table in sorted(self._embeddings.tables.items())
            }
        return features, learnt

    def _features(self, plan: GraphPlan, kind: int) -> Rows | None:
        """Collective. A type's features [U, F]; on one rank where they lie in memory."""
        rows, fetch = self._rows[kind], plan.fetches[kind]
        table = rows.tables.get(FEATURE)
        if table is None:
            return None
        if fetch.route.channel.size == 1 and not isinstance(table, GatheredTable):
            return IndexedRows(table, fetch.route.requests)
        return rows.fetch(fetch, FEATURE)

    def _outputs(self, plan: GraphPlan, features, learnt: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        inputs = [joined(feature, learnt.get(kind)) for kind, feature in enumerate(features)]
        return self.model(plan.batch, inputs)

    def _push(self, plan: GraphPlan, learnt: dict[int, torch.Tensor]) -> None:
        """Collective. Gradients of learnable rows to their owners, whose optimizer moves them."""
        with self.timers("exchange"):
            for kind, rows in learnt.items():
                gradient = torch.zeros_like(rows) if rows.grad is None else rows.grad
                self._embeddings.tables[kind].apply(plan.fetches[kind].route, gradient)


def joined(feature: Rows | None, learnt: torch.Tensor | Any) -> Rows:
    """A type's input rows [U, F]: features, then learnable rows; it has at least one of the two."""
    if feature is None or learnt is None:
        return learnt if feature is None else feature
    return torch.cat([rows_of(feature), learnt], dim=1)


SOURCE, DESTINATION = 0, 1
SCORES, DEVICE_SCORES = 1 << 19, 1 << 25  # of seeds with all candidates at once


@dataclass(frozen=True, slots=True)
class ReplacedEnd:
    """SOURCE or DESTINATION, the node type, and the column of the negatives that stand in for it."""

    end: int
    node_type: int
    column: str


class GraphLinkTask(GraphTask):
    """Scores every seed and its negatives with the model's decoder. A plan's roots are the sources, the destinations,
    and then for each of ``replaced`` the negatives: drawn for every seed, or candidates of all seeds, which their
    owners embed and send to all ranks."""

    def __init__(self, types: tuple[int, int], replaced: tuple[ReplacedEnd, ...], loss: Loss, *shared):
        """types: of source and destination; loss: of scores [s] and [k, s], a sum; shared: as GraphTask."""
        super().__init__(*shared)
        self._types, self._replaced, self._sum = types, replaced, loss

    def _score(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> LinkScores:
        """With negatives drawn for every seed."""
        ends, decoder, relation = self._ends(plan, outputs), self.model.decoder, plan.columns.get("rel")
        negatives = [
            score_negatives(decoder, ends, embedding(roots.T, outputs[place.node_type]), place.end, relation)
            for place, roots in zip(self._replaced, plan.roots[2:], strict=True)
        ]
        return LinkScores.of_ends(decoder(*ends, relation), negatives)

    def _ends(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [embedding(roots, outputs[kind]) for roots, kind in zip(plan.roots[:2], self._types, strict=True)]

    def _loss(self, scores: LinkScores) -> torch.Tensor:
        return scores.loss(self._sum)

    def _learn(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> tuple[torch.Tensor, LinkScores | None]:
        """Loss and scores, without scores where there are candidates. Then the graph of the backward pass is cut at the
        embeddings: candidates go to all ranks, their gradients come back, and the model's own backward pass follows."""
        if self._replaced[0].column + COUNTS not in plan.columns:
            return super()._learn(plan, outputs)
        ends, channel = self._ends(plan, outputs), plan.fetches[0].route.channel
        own = [
            embedding(roots, outputs[place.node_type])
            for place, roots in zip(self._replaced, plan.roots[2:], strict=True)
        ]
        counts = [plan.columns[place.column + COUNTS].cpu().numpy() for place in self._replaced]
        shared = [
            channel.everyone(rows.detach(), count).clone().requires_grad_()
            for rows, count in zip(own, counts, strict=True)
        ]
        loss, gradients = self._learn_ends(plan, ends, shared)
        gradients += [_returned(rows, count, channel) for rows, count in zip(shared, counts, strict=True)]
        reached = [(rows, grad) for rows, grad in zip(ends + own, gradients, strict=True) if rows.requires_grad]
        if reached:
            torch.autograd.backward([rows for rows, _ in reached], [grad for _, grad in reached])
        return loss, None

    def _learn_ends(self, plan: GraphPlan, ends, shared: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The loss, and its gradients by sources and destinations [s, Z]; those by ``shared`` [m, Z] are left there.
        So many seeds at once that their scores stay in a cache, on a device that launches are few."""
        loss, gradients = ends[0].new_zeros(()), [torch.zeros_like(rows) for rows in ends]
        scores = SCORES if on_host(ends[0]) else DEVICE_SCORES
        most = max(1, scores // max(1, *(len(rows) for rows in shared)))
        for first in range(0, len(ends[0]), most):
            part = slice(first, first + most)
            cut = [rows[part].detach().requires_grad_() for rows in ends]
            mine = mean_loss(self._sum, *self._score_candidates(plan, part, cut, shared)) / max(1, plan.batch_size)
            mine.backward()
            loss += mine.detach()
            for gradient, rows in zip(gradients, cut, strict=True):
                gradient[part] = rows.grad
        return loss, gradients

    def _score_candidates(
        self, plan: GraphPlan, part: slice, ends, shared: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Scores [s] of some of the seeds, whose ends these are, and of the candidates [m, s] in the place of each
        replaced end, -inf where they are no negatives."""
        decoder, relation, negatives = self.model.decoder, plan.columns.get("rel"), []
        relation = None if relation is None else relation[part]
        for place, rows in zip(self._replaced, shared, strict=True):
            stays = ends[SOURCE if place.end == DESTINATION else DESTINATION]
            scores = decoder.all_pairs(stays, rows, relation, place.end == SOURCE)
            negatives.append(_hide(scores, plan.columns[place.column + HIDDEN], part.start).T)
        return decoder(*ends, relation), negatives


def _hide(scores: torch.Tensor, pairs: torch.Tensor, first: int) -> torch.Tensor:
    """Scores [n, m] of seeds from ``first`` on, -inf for the pairs [x, 2], in order of seeds, that are no negatives."""
    bounds = torch.tensor([first, first + len(scores)], device=pairs.device)
    begin, end = torch.searchsorted(pairs[:, 0].contiguous(), bounds).tolist()
    seed, candidate = pairs[begin:end].T
    hidden = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    hidden[seed - first, candidate] = True
    return scores.masked_fill(hidden, float("-inf"))


def _returned(rows: torch.Tensor, counts: np.ndarray, channel: Channel) -> torch.Tensor:
    """Collective. The gradients of all candidates ``rows`` [m, Z] at the ranks that have so many of them, summed: [c,
    Z]."""
    gradient = torch.zeros_like(rows) if rows.grad is None else rows.grad
    if channel.size == 1:
        return gradient
    own = int(counts[channel.rank])
    received = channel.rows(gradient, counts, np.full(channel.size, own, np.int64))
    return received.view(channel.size, own, gradient.shape[1]).sum(0)


def score_negatives(decoder: nn.Module, ends, negative: torch.Tensor, replaced: int, relation) -> torch.Tensor:
    """Scores [k, s] with embeddings negative [k, s, Z] in the place of one of ends, source and destination [s, Z];
    relation [s] edge types or None."""
    source, destination = ends
    if replaced == SOURCE:
        return decoder(negative, destination, relation)
    return decoder(source, negative, relation)


class GraphNodeTask(GraphTask):
    """Scores the classes of every seed, a node."""

    def __init__(self, seed_type: int, *shared):
        """shared: as GraphTask."""
        super().__init__(*shared)
        self._seed_type = seed_type

    def _score(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> LabelScores:
        return LabelScores(outputs[self._seed_type][plan.roots[0]], plan.columns["label"])

    def _loss(self, scores: LabelScores) -> torch.Tensor:
        return node_loss(scores)


def node_loss(scores: LabelScores) -> torch.Tensor:
    """The sum over the nodes: cross entropy, or, where a node may have several labels, the binary one, a mean over the
    classes."""
    output, label = scores.output, scores.label
    if label.ndim == 2:
        return binary_cross_entropy_with_logits(output, label.to(output.dtype), reduction="sum") / output.shape[1]
    return cross_entropy(output, label, reduction="sum")
