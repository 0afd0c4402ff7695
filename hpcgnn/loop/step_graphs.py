"""Sizes to which the tensors of a step are padded, so that many steps have the same shapes."""

from __future__ import annotations

SMALLEST = 64
PER_OCTAVE = 4


def padded_length(length: int) -> int:
    """The next size that is not smaller; 0 stays 0."""
    octave = 1 << max(1, length - 1).bit_length() - 1
    quantum = max(SMALLEST, octave // PER_OCTAVE)
    return -(-length // quantum) * quantum
