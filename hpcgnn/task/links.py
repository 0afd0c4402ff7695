"""The scores of links: logits of pairs and of their negatives. n or s positive pairs, k negatives each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn.task.losses import Loss


def mean_loss(loss: Loss, positives: Sequence[torch.Tensor], negatives: Sequence[torch.Tensor]) -> torch.Tensor:
    """Average the losses of pairs [n] against negatives [k, n] over the ends that negatives stand in for."""
    total: Any = sum(loss(*pair) for pair in zip(positives, negatives, strict=True))
    return total / len(negatives)


@dataclass(slots=True)
class LinkScores:
    """Logits of one step: positive [s]; negative [k, s], -inf where there is none.

    ends: where negatives replace both ends of a pair, the number of the k that replace each end; number [s]: the
    snapshot that a pair is predicted from; source [s]: its source's global id. count [s]: the number of the k, the
    first ones, that count for each pair, None: all.
    """

    positive: torch.Tensor
    negative: torch.Tensor
    ends: tuple[int, ...] = ()
    number: torch.Tensor | None = None
    source: torch.Tensor | None = None
    count: torch.Tensor | None = None

    @classmethod
    def of_ends(cls, positive: torch.Tensor, negatives: list[torch.Tensor]) -> LinkScores:
        """Make scores from the negatives [k, s] that stand in for each end."""
        if len(negatives) == 1:
            return cls(positive, negatives[0])
        return cls(positive, torch.cat(negatives), tuple(map(len, negatives)))

    def loss(self, loss: Loss) -> torch.Tensor:
        """Sum a loss over pairs; where negatives stand in for both ends, it is the mean of both."""
        negatives = self.negative.split(self.ends) if self.ends else [self.negative]
        return mean_loss(loss, [self.positive] * len(negatives), negatives)

    def detach(self) -> LinkScores:
        """Return the scores without their gradients."""
        return replace(self, positive=self.positive.detach(), negative=self.negative.detach())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return positive [s] and negative [s, k] float64; of snapshots also number and source [s] int64; where not all
        negatives count, count [s] int64."""
        columns = {"positive": self.positive.double(), "negative": self.negative.T.double()}
        further = {"number": self.number, "source": self.source, "count": self.count}
        columns |= {name: values for name, values in further.items() if values is not None}
        return {name: values.cpu().numpy() for name, values in columns.items()}

    @classmethod
    def join(cls, scores: list[LinkScores]) -> LinkScores:
        """Join the scores of several target snapshots."""
        positive, negative = torch.cat([s.positive for s in scores]), torch.cat([s.negative for s in scores], 1)
        number, source = (torch.cat([getattr(s, name) for s in scores]) for name in ("number", "source"))
        return cls(positive, negative, number=number, source=source)
