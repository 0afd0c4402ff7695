"""Temporal link prediction: executes plans. Memory is read through the step's route, updated, and written back by its
winners.

`memory.update_at: owner`: the owner works the mail in once, users pull the result, and gradients go back by push_sum.
`user`: users pull memory and mail and each works the mail in for itself: more bytes and flops, one exchange less.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from hpcgnn.native import Random, Stream
from hpcgnn.nn.temporal import TemporalModel
from hpcgnn.sample.temporal import StepPlan
from hpcgnn.store.memory import MemoryRows, NodeMemory
from hpcgnn.timers import Timers

UPDATE_AT = ("owner", "user")


@dataclass
class MemoryConfig:
    """Node memory.

    Attributes:
        update_at: "owner" (once per node) or "user" (once per rank that needs the node).
    """

    update_at: str = "owner"

    def __post_init__(self):
        if self.update_at not in UPDATE_AT:
            raise ValueError(f"memory.update_at must be owner or user, got {self.update_at!r}")


@dataclass(slots=True)
class _Reading:
    """What a step read: memory [U, D] of its unique nodes, the owner's updated rows [S, D] (owner mode), node
    features."""

    memory: torch.Tensor
    served: torch.Tensor | None
    feature: torch.Tensor | None


@dataclass(slots=True)
class Scores:
    """Logits of one step: positive [b], negative [k, b]."""

    positive: torch.Tensor
    negative: torch.Tensor


class TemporalLinkTask:
    """Runs planned steps. ``train`` and ``evaluate`` are collective."""

    def __init__(
        self,
        model: TemporalModel,
        memory: NodeMemory,
        node_feature: torch.Tensor | None,
        update_at: str,
        seed: int,
        timers: Timers,
    ):
        self.model, self.memory, self._seed, self._timers = model, memory, seed, timers
        self._node_feature = node_feature
        self._at_owner = update_at == "owner"

    def train(self, plan: StepPlan) -> torch.Tensor:
        """Collective. Forward, backward (gradients accumulate in the parameters) and write-back; returns this rank's
        share of the loss: the mean over the global batch of -log p(event) - mean over negatives of log(1 - p)."""
        self.model.train()
        reading = self._read(plan)
        with self._timers("compute"):
            scores = self._score(plan, reading)
            loss = self._loss(scores, plan.batch_size)
            loss.backward()
        self._backward(plan, reading)
        self._write(plan, reading)
        return loss.detach()

    @torch.no_grad()
    def score(self, plan: StepPlan) -> Scores:
        """Collective. Scores only; memory stays as it is."""
        self.model.eval()
        return self._score(plan, self._read(plan))

    @torch.no_grad()
    def evaluate(self, plan: StepPlan) -> Scores:
        """Collective. Scores, then write-back."""
        self.model.eval()
        reading = self._read(plan)
        with self._timers("compute"):
            scores = self._score(plan, reading)
        self._write(plan, reading)
        return scores

    def _read(self, plan: StepPlan) -> _Reading:
        features = () if self._node_feature is None else (self._node_feature,)
        if self._at_owner:
            with self._timers("compute"):
                served = self._update(self.memory.read(plan.route.served))
            with self._timers("exchange"):
                own_features = tuple(f[plan.route.served] for f in features)
                memory, *feature = plan.route.pull_served(served.detach(), *own_features)
        else:
            with self._timers("exchange"):
                pulled = plan.route.pull(*self.memory.table.tensors(), *features)
            served, feature = None, pulled[5:]
            with self._timers("compute"):
                memory = self._update(MemoryRows(*pulled[:5]))
        if self._at_owner and torch.is_grad_enabled():
            memory.requires_grad_()
        return _Reading(memory, served, feature[0] if feature else None)

    def _update(self, rows: MemoryRows) -> torch.Tensor:
        return self.model.update(rows.state, rows.mail, rows.mailed - rows.updated, rows.has_mail)

    def _score(self, plan: StepPlan, reading: _Reading) -> Scores:
        random = Random(self._seed, Stream.DROPOUT, plan.step, plan.epoch)
        embedding = self.model.embed(
            reading.memory, reading.feature, plan.root, plan.root_transpose, plan.edge, plan.attention,
            self.model.dropout(random, plan.identity),
        ).view(2 + plan.num_negatives, plan.num_events, self.model.config.embed_dim)  # fmt: skip
        logits = self.model.decoder(embedding[0], embedding[1:])
        return Scores(logits[0], logits[1:])

    def _loss(self, scores: Scores, batch_size: int) -> torch.Tensor:
        positive = bce(scores.positive, torch.ones_like(scores.positive), reduction="sum")
        negative = bce(scores.negative, torch.zeros_like(scores.negative), reduction="sum")
        return (positive + negative / max(1, len(scores.negative))) / max(1, batch_size)

    def _backward(self, plan: StepPlan, reading: _Reading) -> None:
        """Owner mode: gradients of the pulled rows go to their owners, through the update. On every rank, always."""
        if not self._at_owner:
            return
        gradient = reading.memory.grad if reading.memory.grad is not None else torch.zeros_like(reading.memory)
        with self._timers("exchange"):
            served_gradient = plan.route.push_sum(gradient)
        if reading.served.requires_grad:
            with self._timers("compute"):
                reading.served.backward(served_gradient)

    @torch.no_grad()
    def _write(self, plan: StepPlan, reading: _Reading) -> None:
        write, memory = plan.write, reading.memory.detach()
        with self._timers("write-back"):
            mail = torch.cat([memory[write.other], plan.event_feature[write.event]], dim=1)
            if self._at_owner:
                pushed = write.route.push(mail)
                state = reading.served.detach()[write.place]
            else:
                pushed = write.route.push(torch.cat([memory[write.node], mail], dim=1))
                state, pushed = pushed[:, : memory.shape[1]], pushed[:, memory.shape[1] :]
            self.memory.write(write.rows, state.contiguous(), torch.cat([state, pushed], dim=1), write.time)
