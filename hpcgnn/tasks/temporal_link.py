"""Temporal link prediction: whether an event happens, against negatives. b events, k negatives."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from hpcgnn.nn.link_step import LinkStep, make_link_step
from hpcgnn.sample.plan import StepPlan
from hpcgnn.task.links import Scores
from hpcgnn.tasks.temporal import TemporalTask, by_role


class TemporalLinkTask(TemporalTask):
    """Scores events and negatives. The loss is the mean over the global batch of -log p(event) - mean over negatives
    of log(1 - p)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._step = make_link_step(self.model)

    def _train(self, plan: StepPlan) -> tuple[torch.Tensor | float, Scores]:
        """As every task's; without autograd where the model's parts allow it."""
        return super()._train(plan) if self._step is None or plan.paired else self._train_by_hand(plan, self._step)

    @torch.no_grad()
    def _train_by_hand(self, plan: StepPlan, step: LinkStep) -> tuple[float, Scores]:
        reading, roles = self._read(plan, step.update), 2 + plan.num_negatives
        with self._timers("compute"):
            loss, gradient, logits = step.learn(
                reading.memory, plan.query, self._dropout(plan), roles, plan.batch_size
            )  # fmt: skip
        if self._at_owner:
            with self._timers("exchange"):
                gradient = plan.route.push_sum(gradient)
        with self._timers("compute"):
            step.update_backward(gradient)
        self._write(plan, reading, None)
        return loss, Scores(logits[0], logits[1:])

    def _score(self, plan: StepPlan, embedding: torch.Tensor) -> Scores:
        rows, k = by_role(plan, embedding), plan.num_negatives
        nearby = None if plan.nearby is None else tuple(map(partial(by_role, plan), plan.nearby))
        if not plan.paired:
            logits = self.model.decode(rows, nearby)
            return Scores(logits[0], logits[1:])
        source, destination = slice(2 + k, 2 + 2 * k), slice(2, 2 + k)
        positive = self.model.decode(rows[:2], nearby and tuple(ids[:2] for ids in nearby))
        between = nearby and (*(ids[source] for ids in nearby), *(ids[destination] for ids in nearby))
        return Scores(positive[0], self.model.decode_pairs(rows[source], rows[destination], between))

    def _loss(self, scores: Scores, batch_size: int) -> torch.Tensor:
        positive = bce(scores.positive, torch.ones_like(scores.positive), reduction="sum")
        negative = bce(scores.negative, torch.zeros_like(scores.negative), reduction="sum")
        return (positive + negative / max(1, len(scores.negative))) / max(1, batch_size)
