"""Order statistics of keys that are too many to sort in memory: a radix select over several passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

# One pass counts this many bits of the keys, fewer where there are many groups.
BITS, CELLS = 16, 1 << 22
Slabs = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]


def select_keys(slabs: Slabs, ranks: np.ndarray) -> np.ndarray:
    """For every group g the key that has ``ranks[g]`` keys of its group below it when all are sorted, [G] uint64.

    ``slabs()`` starts a pass over pieces (keys [n] uint64, groups [n] int64 in [0, G)); the pieces must be the same in
    every pass. A rank must be below the number of keys of its group, or the result for that group means nothing.
    """
    rest = np.array(ranks, np.int64)
    prefix = np.zeros(len(rest), np.uint64)
    bits = max(1, min(BITS, (CELLS // max(1, len(rest))).bit_length() - 1))
    known = 0
    while known < 64:
        step = min(bits, 64 - known)
        counts = count_digits(slabs, prefix, known, step)
        below = np.cumsum(counts, axis=1)
        digit = np.minimum((below <= rest[:, None]).sum(axis=1), (1 << step) - 1)
        rest -= np.where(digit > 0, below[np.arange(len(rest)), np.maximum(digit, 1) - 1], 0)
        prefix = (prefix << np.uint64(step)) | digit.astype(np.uint64)
        known += step
    return prefix


def count_digits(slabs: Slabs, prefix: np.ndarray, known: int, step: int) -> np.ndarray:
    """How many keys of each group start with its prefix (``known`` bits) and go on with each digit: [G, 2**step]."""
    counts = np.zeros((len(prefix), 1 << step), np.int64)
    for keys, groups in slabs():
        if known:
            match = keys >> np.uint64(64 - known) == prefix[groups]
            keys, groups = keys[match], groups[match]
        digit = (keys >> np.uint64(64 - known - step)).astype(np.int64) & ((1 << step) - 1)
        counts += np.bincount((groups << step) + digit, minlength=counts.size).reshape(counts.shape)
    return counts
