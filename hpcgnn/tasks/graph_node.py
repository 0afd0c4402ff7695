"""Node classification on static graphs."""

from __future__ import annotations

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from hpcgnn.sample.graph_plan import GraphPlan
from hpcgnn.task.labels import LabelScores
from hpcgnn.tasks.graph_task import GraphTask


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
