"""Scores of links. b positive links of a step, k negatives each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(slots=True)
class Scores:
    """Logits of one step: positive [b], negative [k, b]."""

    positive: torch.Tensor
    negative: torch.Tensor

    def detach(self) -> Scores:
        """Without their gradients."""
        return Scores(self.positive.detach(), self.negative.detach())

    def arrays(self) -> dict[str, np.ndarray]:
        """positive [b], negative [b, k], float64."""
        columns = {"positive": self.positive, "negative": self.negative.T}
        return {name: values.double().cpu().numpy() for name, values in columns.items()}
