"""Node classification on static graphs. s seeds of this rank, C classes."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from hpcgnn.sample.graph_plan import GraphPlan
from hpcgnn.store.embeddings import EmbeddingStore
from hpcgnn.store.features import NodeRows
from hpcgnn.tasks.temporal_label import LabelScores
from hpcgnn.timers import Timers

FEATURE = "feature"


class GraphNodeTask:
    """Runs planned steps; ``train``, ``score`` and ``evaluate`` are collective. last_scores: of the newest training
    step.

    The loss is the cross entropy summed over a rank's seeds, divided by the number of seeds of all ranks. The graph of
    the backward pass ends at the pulled input rows: gradients of learnable ones go to their owners on every rank.
    """

    def __init__(
        self, model: torch.nn.Module, rows: tuple[NodeRows, ...], embeddings: EmbeddingStore, seed_type: int,
        timers: Timers,
    ):  # fmt: skip
        self.model, self._rows, self._embeddings = model, rows, embeddings
        self._seed_type, self.timers = seed_type, timers
        self.last_scores: LabelScores | None = None

    def train(self, plan: GraphPlan) -> torch.Tensor:
        """Collective. Gradients of one step; returns this rank's part of the loss."""
        self.model.train()
        inputs, learnt = self._inputs(plan)
        with self.timers("compute"):
            for rows in learnt.values():
                rows.requires_grad_()
            scores = self._score(plan, inputs, learnt)
            known = plan.columns["label"]
            loss = cross_entropy(scores.output, known, reduction="sum") / max(1, plan.batch_size)
            loss.backward()
        self._push(plan, learnt)
        self.last_scores = scores
        return loss.detach()

    @torch.no_grad()
    def score(self, plan: GraphPlan) -> LabelScores:
        """Collective. Outputs of one step."""
        self.model.eval()
        return self._score(plan, *self._inputs(plan))

    evaluate = score

    def _inputs(self, plan: GraphPlan) -> tuple[list[torch.Tensor | None], dict[int, torch.Tensor]]:
        """Collective. Features by node type (None without), and learnable rows of the types that have them."""
        with self.timers("exchange"):
            features = [
                rows.fetch(fetch, FEATURE) if FEATURE in rows.tables else None
                for rows, fetch in zip(self._rows, plan.fetches, strict=True)
            ]
            learnt = {
                kind: plan.fetches[kind].route.pull(table.weight)[0]
                for kind, table in sorted(self._embeddings.tables.items())
            }
        return features, learnt

    def _score(self, plan: GraphPlan, features, learnt: dict[int, torch.Tensor]) -> LabelScores:
        inputs = [_joined(feature, learnt.get(kind), plan, kind) for kind, feature in enumerate(features)]
        output = self.model(plan.batch, inputs)[self._seed_type]
        return LabelScores(output[plan.seed], plan.columns["label"])

    def _push(self, plan: GraphPlan, learnt: dict[int, torch.Tensor]) -> None:
        """Collective. Gradients of learnable rows to their owners, whose optimizer moves them."""
        with self.timers("exchange"):
            for kind, rows in learnt.items():
                gradient = torch.zeros_like(rows) if rows.grad is None else rows.grad
                self._embeddings.tables[kind].apply(plan.fetches[kind].route, gradient)


def _joined(feature: torch.Tensor | None, learnt: torch.Tensor | None, plan: GraphPlan, kind: int) -> torch.Tensor:
    """A type's input rows [U, F]: features, then learnable rows; F = 0 where it has neither."""
    pieces = [piece for piece in (feature, learnt) if piece is not None]
    if not pieces:
        identity = plan.batch.identity[kind]
        return torch.empty((len(identity), 0), device=identity.device)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
