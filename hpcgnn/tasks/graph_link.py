"""Link prediction on static graphs. s seeds of this rank, edges; k negatives a seed; c candidates of this rank, m of
all ranks; Z embedding width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import embedding

from hpcgnn.comm.exchange import Channel
from hpcgnn.nn.graph_decoders import binary_loss, margin_loss, softmax_loss
from hpcgnn.sample.graph_plan import GraphPlan
from hpcgnn.sample.link_negatives import COUNTS, HIDDEN
from hpcgnn.tasks.graph_config import GraphTaskConfig
from hpcgnn.tasks.graph_task import GraphTask

SOURCE, DESTINATION = 0, 1
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
        return sum(self._sum(scores.positive, negative) for negative in scores.negatives) / len(scores.negatives)

    def _learn(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> tuple[torch.Tensor, LinkScores]:
        """As in GraphTask. With candidates the graph of the backward pass is cut at the outputs: candidates go to all
        ranks, their gradients come back, then the model's own backward pass follows."""
        if self._replaced[0].column + COUNTS not in plan.columns:
            return super()._learn(plan, outputs)
        cut = [rows.detach().requires_grad_() for rows in outputs]
        shared = [self._gather(plan, cut, number) for number in range(len(self._replaced))]
        scores = self._score_candidates(plan, cut, shared)
        loss = self._loss(scores) / max(1, plan.batch_size)
        loss.backward()
        gradients = [torch.zeros_like(rows) if rows.grad is None else rows.grad for rows in cut]
        for number, (place, rows) in enumerate(zip(self._replaced, shared, strict=True)):
            gradients[place.node_type].index_add_(0, plan.roots[2 + number], self._scatter(plan, rows.grad, number))
        learnt = [(rows, grad) for rows, grad in zip(outputs, gradients, strict=True) if rows.requires_grad]
        torch.autograd.backward(*zip(*learnt, strict=True))
        return loss, scores

    def _gather(self, plan: GraphPlan, outputs: list[torch.Tensor], number: int) -> torch.Tensor:
        """Collective. Embeddings [m, Z] of all candidates of an end."""
        own = outputs[self._replaced[number].node_type].detach()[plan.roots[2 + number]]
        rows = _channel(plan).everyone(own, self._counts(plan, number))
        return rows.requires_grad_()

    def _scatter(self, plan: GraphPlan, gradient: torch.Tensor, number: int) -> torch.Tensor:
        """Collective. Gradients [m, Z] of an end's candidates, summed over ranks where they belong: [c, Z]."""
        channel, counts = _channel(plan), self._counts(plan, number)
        if channel.size == 1:
            return gradient
        own = int(counts[channel.rank])
        received = channel.rows(gradient, counts, np.full(channel.size, own, np.int64))
        return received.view(channel.size, own, gradient.shape[1]).sum(0)

    def _counts(self, plan: GraphPlan, number: int) -> np.ndarray:
        """Candidates by rank [R]."""
        return plan.columns[self._replaced[number].column + COUNTS].cpu().numpy()

    def _score_candidates(self, plan: GraphPlan, outputs, shared: list[torch.Tensor]) -> LinkScores:
        ends, decoder, relation = self._ends(plan, outputs), self.model.decoder, plan.columns.get("rel")
        negatives = []
        for place, rows in zip(self._replaced, shared, strict=True):
            stays = ends[SOURCE if place.end == DESTINATION else DESTINATION]
            scores = decoder.all_pairs(stays, rows, relation, place.end == SOURCE)
            hidden = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
            hidden[tuple(plan.columns[place.column + HIDDEN].T)] = True
            negatives.append(scores.masked_fill(hidden, float("-inf")).T)
        return LinkScores(decoder(*ends, relation), negatives)


def _channel(plan: GraphPlan) -> Channel:
    """What moves the plan's rows."""
    return plan.fetches[0].route.channel


def score_negatives(decoder: nn.Module, ends, negative: torch.Tensor, replaced: int, relation) -> torch.Tensor:
    """Scores [k, s] with embeddings negative [k, s, Z] in the place of one of ends, source and destination [s, Z];
    relation [s] edge types or None."""
    source, destination = ends
    if replaced == SOURCE:
        return decoder(negative, destination, relation)
    return decoder(source, negative, relation)


def make_loss(config: GraphTaskConfig) -> Loss:
    """Of scores [s] and those of negatives [k, s]: a sum over the seeds."""
    losses = {
        "binary": partial(binary_loss, adversarial=config.adversarial),
        "margin": partial(margin_loss, margin=config.margin, adversarial=config.adversarial),
        "softmax": softmax_loss,
    }
    return losses[config.loss]
