"""Which step of which run a model is in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepKey:
    """What dropout is keyed by besides node, column and the place in the model."""

    seed: int = 0
    epoch: int = 0
    step: int = 0
    training: bool = False
