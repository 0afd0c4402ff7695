"""Node classification on a static graph by passes over all of it.

n nodes of this rank, s seeds of it, D width of the last layer's rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain
from hpcgnn.nn.graph_models import GraphModel
from hpcgnn.nn.step_key import StepKey
from hpcgnn.sample.full_graph import FullGraph
from hpcgnn.store.embeddings import EmbeddingStore
from hpcgnn.task.labels import LabelScores
from hpcgnn.tasks.full_graph_pass import FullGraphPass
from hpcgnn.tasks.graph_node import node_loss
from hpcgnn.timers import Timers


@dataclass(frozen=True, slots=True)
class FullPlan:
    """A step, the only one of its epoch. batch_size: seeds of all ranks; place [s]: stacked rows of this rank's; label
    [s, ...]."""

    step: int
    epoch: int
    batch_size: int
    place: torch.Tensor
    label: torch.Tensor
    final: bool = True


class FullGraphTask:
    """``train`` and ``rows`` are collective. features: by type, rows of [own nodes in the partition's order | ghosts],
    None without. last_scores: of the newest training step."""

    def __init__(
        self, model: GraphModel, graph: FullGraph, features: list[torch.Tensor | None], embeddings: EmbeddingStore,
        seed: int, channel: Channel, timers: Timers, overlap: bool = True,
    ):  # fmt: skip
        self.model, self._graph, self.features, self._embeddings = model, graph, features, embeddings
        self._seed, self._channel, self.timers = seed, channel, timers
        self.last_scores: LabelScores | None = None
        self._overlap = overlap

    def train(self, plan: FullPlan) -> torch.Tensor:
        """Collective. Gradients of one step; returns this rank's part of the loss."""
        self.model.train()
        learnt = {kind: table.weight.detach().requires_grad_() for kind, table in self._embeddings.tables.items()}
        with self.timers("compute"):
            run = self._pass(learnt, StepKey(self._seed, plan.epoch, plan.step, True))
            outputs = self.model.last(run.rows())
            scores = LabelScores(outputs[plan.place], plan.label)
            loss = node_loss(scores) / max(1, plan.batch_size)
            run.chain.tie(loss).backward()
        for kind, rows in learnt.items():
            self._embeddings.tables[kind].move(torch.zeros_like(rows) if rows.grad is None else rows.grad)
        self.last_scores = scores.detach()
        return loss.detach()

    @torch.no_grad()
    def rows(self) -> torch.Tensor:
        """Collective. Rows of all local nodes [n, D] after the last layer, in the partition's order."""
        self.model.eval()
        learnt = {kind: table.weight for kind, table in self._embeddings.tables.items()}
        return self._pass(learnt, StepKey(self._seed)).rows()[self._graph.place]

    def _pass(self, learnt: dict[int, torch.Tensor], key: StepKey) -> FullGraphPass:
        chain = HaloChain(self.timers, self._overlap)
        return FullGraphPass(self.model, self._graph, self.features, learnt, key, self._channel, chain)
