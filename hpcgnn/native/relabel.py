"""Unique ids, last events, transposed indices."""

from __future__ import annotations

import numpy as np

from hpcgnn.native import cuda as native_cuda
from hpcgnn.native.build import _native
from hpcgnn.native.dispatch import on_cuda


def unique_relabel(ids):
    """Unique ids in order of first occurrence (int64) and the inverse (int32); a negative id is padding, inverse -1."""
    if on_cuda(ids):
        unique, inverse, count = native_cuda.unique_relabel(ids)
        return unique[: int(count)], inverse
    unique, inverse = np.empty(len(ids), np.int64), np.empty(len(ids), np.int32)
    return unique[: _native.unique_relabel(ids, unique, inverse)], inverse


def last_event(nodes, events):
    """Boolean [N]: the first entry among those of its node that carry the node's largest event row id."""
    if on_cuda(nodes):
        return native_cuda.last_event(nodes, events)
    winner = np.empty(len(nodes), np.uint8)
    _native.last_event(nodes, events, winner)
    return winner.view(bool)


def transpose_index(index, targets: int, padded: bool = True):
    """CSR of the positions that point at each target: indptr [targets + 1], order int64; -1 points nowhere. Not
    ``padded``: there is none, and nobody waits for a device to count them."""
    if on_cuda(index):
        indptr, order = native_cuda.transpose_index(index, targets)
        return indptr, order[: int(indptr[-1])] if padded else order
    indptr, order = np.empty(targets + 1, np.int64), np.empty(len(index), np.int64)
    _native.transpose_index(index, indptr, order)
    return indptr, order[: indptr[-1]]
