"""Keys of the orders in which an epoch takes its seeds."""

from __future__ import annotations

from hpcgnn.native import Random, Stream


def epoch_shuffle(seed: int, epoch: int) -> Random:
    """The key of an epoch's order of seeds."""
    return Random(seed, Stream.SHUFFLE, epoch=epoch)
