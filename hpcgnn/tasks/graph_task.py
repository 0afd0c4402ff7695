"""A task on sampled blocks of a static graph: input rows, the backward pass, gradients of learnable rows."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from hpcgnn.nn.graph_models import GraphModel
from hpcgnn.nn.message_blocks import IndexedRows, rows_of
from hpcgnn.sample.graph_plan import GraphPlan
from hpcgnn.store.embeddings import EmbeddingStore
from hpcgnn.store.features import FEATURE, NodeRows
from hpcgnn.store.input_rows import GatheredTable
from hpcgnn.tasks.step_graphs import StepTask
from hpcgnn.timers import Timers

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
