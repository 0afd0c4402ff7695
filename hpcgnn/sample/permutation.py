"""Keyed permutations of [0, n): every place is computed by itself, so ranks shuffle without talking.

A Feistel network over the next even number of bits, walked until it falls below n (Black and Rogaway: Ciphers with
arbitrary finite domains, CT-RSA 2002).
"""

from __future__ import annotations

import numpy as np

from hpcgnn import native
from hpcgnn.native import Random

ROUNDS = 8


def permute(places: np.ndarray, size: int, random: Random) -> np.ndarray:
    """Where a permutation of [0, size) puts ``places`` [n] int64. A function of the random key alone."""
    return _walk(_network, places, size, random)


def permute_back(places: np.ndarray, size: int, random: Random) -> np.ndarray:
    """The inverse of ``permute``."""
    return _walk(_network_back, places, size, random)


def _walk(network, places: np.ndarray, size: int, random: Random) -> np.ndarray:
    half = max(1, (max(1, size - 1).bit_length() + 1) // 2)
    keys = native.random_integers(random, np.arange(ROUNDS), 2, (1 << 32) - 1).astype(np.uint64)
    out = places.astype(np.uint64)
    outside = np.arange(len(out))
    while len(outside):
        out[outside] = network(out[outside], np.uint64(half), keys)
        outside = outside[out[outside] >= size]
    return out.astype(np.int64)


def _network(values: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ _round(right, key, mask)
    return (left << half) | right


def _network_back(values: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys[::-1]:
        left, right = right ^ _round(left, key, mask), left
    return (left << half) | right


def _round(values: np.ndarray, key: np.ndarray, mask: np.uint64) -> np.ndarray:
    add, multiply = key
    return _mix(values + (add << np.uint64(32)) + multiply) & mask


def _mix(values: np.ndarray) -> np.ndarray:
    """A 64-bit finalizer (Stafford's variant 13 of MurmurHash3's)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
