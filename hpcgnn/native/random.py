"""Numbers that are a function of a key and an identity: integers, and the masks of keyed dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum

import torch

from hpcgnn.native.build import _native
from hpcgnn.native.dispatch import compute_backend, empty_like, planning_backend

MOST_EPOCHS, MOST_RELATIONS, MOST_HOPS = 1 << 16, 1 << 12, 1 << 4  # that a key tells apart
MOST_CHOICES = (1 << 32) - 1  # that a random integer is drawn from


class Stream(IntEnum):
    """Purpose of a random number; part of the key, so that no two purposes share numbers."""

    NEGATIVE = 1
    SAMPLE = 2
    DROPOUT = 3
    HIDDEN_NODE = 4
    DECAY = 5
    CHUNK = 6
    NEIGHBOR = 7
    SHUFFLE = 8
    EMBEDDING = 9
    BOUNDARY = 10
    WALK = 11
    EVAL_NEGATIVE = 65
    EVAL_SAMPLE = 66
    EVAL_DECAY = 69
    EVAL_NEIGHBOR = 71


@dataclass(frozen=True, slots=True)
class Random:
    """Key and counter fields that one call has in common; ``native/include/hpcgnn/random.h`` documents the layout."""

    seed: int
    stream: int
    step: int = 0
    epoch: int = 0
    hop: int = 0
    relation: int = 0

    def __post_init__(self):
        limits = {"seed": 56, "stream": 8, "step": 32, "epoch": 16, "hop": 4, "relation": 12}
        for name, bits in limits.items():
            if not 0 <= getattr(self, name) < 1 << bits:
                raise ValueError(f"random {name} must be in [0, 2^{bits}), got {getattr(self, name)}")

    def native(self) -> _native.RandomContext:
        """Make the kernels' counterpart of this key."""
        return _native.RandomContext(self.seed, self.stream, self.step, self.epoch, self.hop, self.relation)


def random_integers(random: Random, identity, slots: int, bound: int, threads: int = 1):
    """Unbiased integers in [0, bound), [N, slots] int64, a function of the random key and ``identity`` [N] only."""
    if not 0 < bound <= MOST_CHOICES:
        raise ValueError(f"bound must be in [1, 2^32), got {bound}")
    out = empty_like(identity, (len(identity), slots), "int64")
    kernels, execution = planning_backend(identity, threads)
    kernels.random_integers(random.native(), identity, bound, out, execution)
    return out


def dropout_mask(random: Random, identity: torch.Tensor, columns: int, p: float, dtype: torch.dtype) -> torch.Tensor:
    """Keyed dropout multipliers [N, columns]: 0 with probability p, else 1 / (1 - p)."""
    if not 0 <= p < 1:
        raise ValueError(f"dropout probability must be in [0, 1), got {p}")
    shape = (identity.shape[0], columns)
    if _masks is not None:
        return _masks.take(random, identity, p, shape)
    mask = torch.empty(shape, dtype=dtype, device=identity.device)
    if mask.numel():
        _fill_mask(random, identity, p, mask)
    if _noted is not None:
        _noted.append(MaskKind(shape, dtype, mask.device))
    return mask


@dataclass(frozen=True, slots=True)
class StepKey:
    """The step and the run, which key dropout in a model together with node, column and place in the model."""

    seed: int = 0
    epoch: int = 0
    step: int = 0
    training: bool = False

    def dropout_mask(self, identity: torch.Tensor, site: int, p: float, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Make the factors [n, width] of keyed dropout for the nodes with row ids [n], at a site of the model."""
        random = Random(self.seed, Stream.DROPOUT, self.step, self.epoch, relation=site)
        return dropout_mask(random, identity, width, p, dtype)


@dataclass(frozen=True, slots=True)
class MaskKind:
    """Shape, dtype and device of a mask, from which another one like it is made."""

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class LaterMask:
    """A mask that ``dropout_mask`` returned without filling it, with the key and the row ids to fill it from."""

    random: Random
    identity: torch.Tensor
    p: float
    mask: torch.Tensor

    def fill(self, step: int, epoch: int) -> None:
        """Fill the mask with the draws of a step."""
        if self.mask.numel():
            _fill_mask(replace(self.random, step=step, epoch=epoch), self.identity, self.p, self.mask)


class LaterMasks:
    """Masks that are allocated before ``dropout_mask`` returns them, unfilled. ``given``: those returned so far."""

    def __init__(self, like: list[MaskKind]):
        self._ready = [torch.empty(kind.shape, dtype=kind.dtype, device=kind.device) for kind in like]
        self.given: list[LaterMask] = []

    def take(self, random: Random, identity: torch.Tensor, p: float, shape: tuple[int, int]) -> torch.Tensor:
        """Return the next mask, which must have this shape."""
        mask = self._ready[len(self.given)]
        if mask.shape != shape:
            raise ValueError(f"a mask of shape {tuple(shape)} where one of {tuple(mask.shape)} was made before")
        self.given.append(LaterMask(random, identity, p, mask))
        return mask


_masks: LaterMasks | None = None
_noted: list[MaskKind] | None = None


@contextmanager
def noted_masks() -> Iterator[list[MaskKind]]:
    """Within this context ``dropout_mask`` adds the kind of each of its masks to the list."""
    global _noted
    _noted = []
    try:
        yield _noted
    finally:
        _noted = None


@contextmanager
def later_masks(like: list[MaskKind]) -> Iterator[LaterMasks]:
    """Within this context ``dropout_mask`` returns masks of these kinds, one after another, and fills none."""
    global _masks
    _masks = LaterMasks(like)
    try:
        yield _masks
    finally:
        _masks = None


def _fill_mask(random: Random, identity: torch.Tensor, p: float, mask: torch.Tensor) -> None:
    kernels, execution = compute_backend(identity)
    kernels.dropout_mask(random.native(), identity, p, mask, execution)
