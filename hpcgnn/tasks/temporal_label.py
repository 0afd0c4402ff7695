"""Labels of temporal events: classes of nodes or events, or numbers. b events, C classes, Z embedding width.

"node" is dynamic node classification (Kumar et al., JODIE, KDD 2019; Rossi et al., TGN, 2020): the label of event
(u, v, t) is the state of u at t, predicted from the embedding of u just before the event. "edge" and "edge_regression"
see both endpoints and the event's features.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from hpcgnn import native
from hpcgnn.native import Random, Stream
from hpcgnn.nn.config import ModelConfig
from hpcgnn.nn.head import Head
from hpcgnn.sample.plan import StepPlan
from hpcgnn.task.kinds import EDGE_REGRESSION, NODE
from hpcgnn.task.labels import LabelScores
from hpcgnn.tasks.labels import MISSING
from hpcgnn.tasks.temporal import TemporalTask, by_role

HEAD_HOP = 1  # field of the random numbers that keeps the head's dropout apart from the embedding's


def make_head(kind: str, model: ModelConfig, edge_width: int, classes: int) -> Head:
    """The head of a task; classes: C, or 1 for numbers."""
    width = model.embed_dim if kind == NODE else 2 * model.embed_dim + edge_width
    return Head(width, model.embed_dim, classes)


class TemporalLabelTask(TemporalTask):
    """Scores the label of every event. The loss is the (weighted) cross entropy or squared error of the labelled
    events, divided by the number of all events of the global batch: a labelled event counts the same whatever batch it
    is in, and nothing has to be counted over ranks."""

    def __init__(self, kind: str, weights: torch.Tensor | None, *shared, **options):
        """weights [C] of the classes; shared, options: as TemporalTask. The model's decoder is a Head."""
        super().__init__(*shared, **options)
        self._kind, self._weights = kind, weights

    def _score(self, plan: StepPlan, embedding: torch.Tensor) -> LabelScores:
        source, destination = by_role(plan, embedding)[:2]
        rows = source if self._kind == NODE else torch.cat([source, destination, plan.event_feature], dim=1)
        return LabelScores(self.model.decoder(rows, self._mask(plan, rows)), plan.columns["label"])

    def _mask(self, plan: StepPlan, rows: torch.Tensor) -> torch.Tensor | None:
        """Dropout of the head in training, keyed by event."""
        head, p = self.model.decoder, self.model.config.dropout
        if not head.training or p == 0:
            return None
        random = Random(self._seed, Stream.DROPOUT, plan.step, plan.epoch, HEAD_HOP)
        identity = plan.identity[: plan.num_events]
        return native.dropout_mask(random, identity, head.hidden.out_features, p, rows.dtype)

    def _loss(self, scores: LabelScores, batch_size: int) -> torch.Tensor:
        if self._kind == EDGE_REGRESSION:
            output, label = scores.output[:, 0], scores.label.to(scores.output.dtype)
            error = torch.where(torch.isnan(label), 0.0, output - label.nan_to_num())
            return error.square().sum() / max(1, batch_size)
        loss = cross_entropy(scores.output, scores.label, self._weights, ignore_index=MISSING, reduction="sum")
        return loss / max(1, batch_size)
