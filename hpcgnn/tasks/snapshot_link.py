"""Links of snapshots: scores of pairs of nodes from a model's outputs, and losses.

s edges of this rank, k negatives each, Z width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hpcgnn.nn.graph_decoders import average, margin_loss, softmax_loss
from hpcgnn.sample.snapshot_pairs import Pairs
from hpcgnn.tasks.snapshot_config import SnapshotTaskConfig

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class SnapshotLinkScores:
    """Logits: positive [s], negative [k, s]; number [s]: of the snapshot that each is predicted from."""

    positive: torch.Tensor
    negative: torch.Tensor
    number: torch.Tensor

    def detach(self) -> SnapshotLinkScores:
        """Without their gradients."""
        return SnapshotLinkScores(self.positive.detach(), self.negative.detach(), self.number)

    def arrays(self) -> dict[str, np.ndarray]:
        """positive [s], negative [s, k], float64; number [s] int64."""
        columns = {"positive": self.positive.double(), "negative": self.negative.T.double(), "number": self.number}
        return {name: values.cpu().numpy() for name, values in columns.items()}

    @classmethod
    def join(cls, scores: list[SnapshotLinkScores]) -> SnapshotLinkScores:
        """Those of several targets as one."""
        names = {"positive": 0, "negative": 1, "number": 0}
        return cls(**{name: torch.cat([getattr(s, name) for s in scores], dim) for name, dim in names.items()})


def score_pairs(decoder: nn.Module, rows: torch.Tensor, pairs: Pairs) -> SnapshotLinkScores:
    """Of the rows that the pairs' places are of [w, Z]."""
    source, destination = functional.embedding(pairs.source, rows), functional.embedding(pairs.destination, rows)
    assert pairs.negative is not None
    drawn = functional.embedding(pairs.negative, rows)
    if pairs.negative_source is not None:
        against = functional.embedding(pairs.negative_source, rows)
        relation = None if pairs.relation is None else pairs.relation.repeat(len(drawn))
        negative = decoder(against.flatten(0, 1), drawn.flatten(0, 1), relation).view(pairs.negative.shape)
    else:
        negative = decoder(source, drawn, pairs.relation)
    positive = decoder(source, destination, pairs.relation)
    return SnapshotLinkScores(positive, negative, torch.full_like(pairs.source, pairs.number))


def make_loss(config: SnapshotTaskConfig) -> Loss:
    """Of scores [s] and those of negatives [k, s]: a sum over the edges."""
    losses: dict[str, Loss] = {
        "binary": partial(_binary, weight=config.positive_weight),
        "margin": partial(margin_loss, margin=config.margin),
        "softmax": softmax_loss,
    }
    return losses[config.loss]


def _binary(positive: torch.Tensor, negative: torch.Tensor, weight: float) -> torch.Tensor:
    """weight times -log p(edge), and the mean over its negatives of -log(1 - p)."""
    against = average(functional.softplus(negative), negative, 0.0)
    return weight * functional.softplus(-positive).sum() + against.sum()
