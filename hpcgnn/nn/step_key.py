"""Which step of which run a model is in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn import native
from hpcgnn.native import Random, Stream

SNAPSHOT_BITS = 16  # of a key's step, in models of snapshots: the number of the snapshot; above it is the step
STEP_NUMBERS = 1 << SNAPSHOT_BITS  # as many steps of an epoch, and snapshots, are told apart


@dataclass(frozen=True, slots=True)
class StepKey:
    """What dropout is keyed by besides node, column and the place in the model."""

    seed: int = 0
    epoch: int = 0
    step: int = 0
    training: bool = False

    def dropout_mask(self, identity: torch.Tensor, site: int, p: float, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Make the factors [n, width] of keyed dropout for the nodes with row ids [n], at a site of the model."""
        random = Random(self.seed, Stream.DROPOUT, self.step, self.epoch, relation=site)
        return native.dropout_mask(random, identity, width, p, dtype)
