"""Link prediction on static graphs. s seeds of this rank, edges; k negatives a seed; Z embedding width."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn.functional import embedding

from hpcgnn.nn.graph_decoders import binary_loss, margin_loss, softmax_loss
from hpcgnn.sample.graph_plan import GraphPlan
from hpcgnn.tasks.graph_config import GraphTaskConfig
from hpcgnn.tasks.graph_task import GraphTask
from hpcgnn.tasks.temporal_link import Scores

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class GraphLinkTask(GraphTask):
    """Scores every seed and its negatives with the model's decoder."""

    def __init__(self, types: tuple[int, int], loss: Loss, *shared):
        """types: of source and destination; loss: of scores [s] and [k, s], a sum; shared: as GraphTask."""
        super().__init__(*shared)
        self._types, self._sum = types, loss

    def _score(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> Scores:
        (source, destination), (src, dst, negative) = self._types, plan.roots
        return score_links(
            self.model.decoder, embedding(src, outputs[source]), embedding(dst, outputs[destination]),
            embedding(negative.T, outputs[destination]), plan.columns.get("rel"),
        )  # fmt: skip

    def _loss(self, scores: Scores) -> torch.Tensor:
        return self._sum(scores.positive, scores.negative)


def score_links(decoder: nn.Module, source, destination, negative, relation: torch.Tensor | None) -> Scores:
    """Scores of embeddings source, destination [s, Z], negative [k, s, Z]; relation [s] edge types or None."""
    return Scores(decoder(source, destination, relation), decoder(source, negative, relation))


def make_loss(config: GraphTaskConfig) -> Loss:
    """Of scores [s] and those of negatives [k, s]: a sum over the seeds."""
    return {"binary": binary_loss, "margin": partial(margin_loss, margin=config.margin), "softmax": _softmax}[
        config.loss
    ]


def _softmax(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    target = torch.zeros(len(positive), dtype=torch.int64, device=positive.device)
    return softmax_loss(torch.cat([positive[None], negative]).T, target)
