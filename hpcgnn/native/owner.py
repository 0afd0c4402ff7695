"""Which rank owns an id, and where it lies there; messages by rank. NumPy only."""

from __future__ import annotations

import numpy as np

from hpcgnn.native.build import _native


def locate(ids, blocks):
    """Owning rank and the owner's local row of every id, int64 [n]. NumPy only.

    blocks: (start, rank, local) [B] int64 each; start increases. The ids from start[b] to the next start belong to
    rank[b], and the first of them is its local row local[b]. An id below start[0] is the caller's mistake.
    """
    owner, local = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    _native.locate(ids, *blocks, owner, local)
    return owner, local


def locate_by_owner(ids, blocks, size: int):
    """Stable order [n] of ids by owner, their local rows [n] in that order, and counts [size], all int64; ``blocks``
    of locate."""
    order, local, counts = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64), np.empty(size, np.int64)
    _native.locate_by_owner(ids, *blocks, order, local, counts)
    return order, local, counts


def order_of_ranks(ranks, size: int):
    """Stable order [n] int64 of ranks [n] in [0, size). NumPy only."""
    order = np.empty(len(ranks), np.int64)
    _native.order_of_ranks(np.ascontiguousarray(ranks, np.int64), size, order)
    return order


def unique_by_owner(ids, blocks, size: int):
    """Unique ids, sorted by owner, and where each id went: unique [U], inverse [n] int32, local [U], counts [size].

    Within an owner in order of first occurrence; a negative id is padding; ``blocks`` of locate. NumPy only.
    """
    unique, local, counts = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64), np.empty(size, np.int64)
    inverse = np.empty(len(ids), np.int32)
    num_unique = _native.unique_by_owner(ids, *blocks, unique, inverse, local, counts)
    return unique[:num_unique], inverse, local[:num_unique], counts


def gather_ranges(values, begin, length):
    """Join ranges of ``values`` [n] int64, each from ``begin`` [m] on and of ``length`` [m]: [sum(length)]. NumPy
    only."""
    out = np.empty(int(length.sum()), np.int64)
    _native.gather_ranges(values, begin, length, out)
    return out
