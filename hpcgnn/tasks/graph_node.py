"""Node classification on static graphs."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from hpcgnn.sample.graph_plan import GraphPlan
from hpcgnn.tasks.graph_task import GraphTask
from hpcgnn.tasks.temporal_label import LabelScores


class GraphNodeTask(GraphTask):
    """Scores the classes of every seed, a node. The loss is the cross entropy."""

    def __init__(self, seed_type: int, *shared):
        """shared: as GraphTask."""
        super().__init__(*shared)
        self._seed_type = seed_type

    def _score(self, plan: GraphPlan, outputs: list[torch.Tensor]) -> LabelScores:
        return LabelScores(outputs[self._seed_type][plan.roots[0]], plan.columns["label"])

    def _loss(self, scores: LabelScores) -> torch.Tensor:
        return cross_entropy(scores.output, scores.label, reduction="sum")
