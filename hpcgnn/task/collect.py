"""What a step reports of its roots, for metrics over a whole split."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class StepScores(Protocol):
    """What a step says of its b events."""

    def detach(self) -> StepScores:
        """Without their gradients."""

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, one row an event: [b, ...]."""
