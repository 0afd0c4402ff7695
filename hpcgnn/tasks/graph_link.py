"""Link prediction on static graphs. s seeds of this rank, edges; k negatives a seed; c candidates of this rank, m of
all ranks; Z embedding width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import embedding

from hpcgnn.comm.exchange import Channel
from hpcgnn.native.dispatch import on_host
from hpcgnn.nn.graph_decoders import binary_loss, margin_loss, softmax_loss
from hpcgnn.sample.graph_plan import GraphPlan
from hpcgnn.sample.link_negatives import COUNTS, HIDDEN
from hpcgnn.tasks.graph_config import GraphTaskConfig
from hpcgnn.tasks.graph_task import GraphTask

SOURCE, DESTINATION = 0, 1
SCORES, DEVICE_SCORES = 1 << 19, 1 << 25  # of seeds with all candidates at once
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class LinkScores:
    """Logits of one step: positive [s], negatives [k, s] in the place of each replaced end, -inf where there is
    none."""

    positive: torch.Tensor
    negatives: list[torch.Tensor]

    def detach(self) -> LinkScores:
        """Without their gradients."""
        return LinkScores(self.positive.detach(), [scores.detach() for scores in self.negatives])

    def arrays(self) -> dict[str, np.ndarray]:
        """positive [s], negative [s, k of all ends], float64."""
        columns = {"positive": self.positive, "negative": torch.cat(self.negatives).T}
        return {name: values.double().cpu().numpy() for name, values in columns.items()}


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
        return LinkScores(decoder(*ends, relation), negatives)

    def _ends(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [embedding(roots, outputs[kind]) for roots, kind in zip(plan.roots[:2], self._types, strict=True)]

    def _loss(self, scores: LinkScores) -> torch.Tensor:
        total: Any = sum(self._sum(scores.positive, negative) for negative in scores.negatives)
        return total / len(scores.negatives)

    def _learn(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> tuple[torch.Tensor, LinkScores | None]:
        """As in GraphTask; without scores where there are candidates. Then the graph of the backward pass is cut at the
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
            mine = self._loss(self._score_candidates(plan, part, cut, shared)) / max(1, plan.batch_size)
            mine.backward()
            loss += mine.detach()
            for gradient, rows in zip(gradients, cut, strict=True):
                gradient[part] = rows.grad
        return loss, gradients

    def _score_candidates(self, plan: GraphPlan, part: slice, ends, shared: list[torch.Tensor]) -> LinkScores:
        """Of some of the seeds, whose ends these are."""
        decoder, relation, negatives = self.model.decoder, plan.columns.get("rel"), []
        relation = None if relation is None else relation[part]
        for place, rows in zip(self._replaced, shared, strict=True):
            stays = ends[SOURCE if place.end == DESTINATION else DESTINATION]
            scores = decoder.all_pairs(stays, rows, relation, place.end == SOURCE)
            negatives.append(_hide(scores, plan.columns[place.column + HIDDEN], part.start).T)
        return LinkScores(decoder(*ends, relation), negatives)


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


def make_loss(config: GraphTaskConfig) -> Loss:
    """Of scores [s] and those of negatives [k, s]: a sum over the seeds."""
    losses: dict[str, Loss] = {
        "binary": partial(binary_loss, adversarial=config.adversarial),
        "margin": partial(margin_loss, margin=config.margin, adversarial=config.adversarial),
        "softmax": softmax_loss,
    }
    return losses[config.loss]
