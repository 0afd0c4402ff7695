"""Unique ids, last events, transposed indices.

Nothing here waits for a device but `unique_relabel` and a padded `transpose_index`, which cut results to lengths that
depend on the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.native.build import _native
from hpcgnn.native.dispatch import check_index, compute_backend, on_cuda

DENSE_LIMIT = 1 << 26  # nodes up to which Relabel keeps a stamp for each


@dataclass(slots=True)
class Scratch:
    """Device memory that is kept from call to call and only grows; for one stream at a time."""

    memory: torch.Tensor | None = None

    def of(self, num_bytes: int, device: torch.device) -> torch.Tensor:
        """Return at least ``num_bytes`` uint8 on the device."""
        if self.memory is None or self.memory.device != device or self.memory.numel() < num_bytes:
            self.memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        return self.memory


def unique_relabel(ids):
    """Unique ids in order of first occurrence (int64) and the inverse (int32); a negative id is padding, inverse -1."""
    if on_cuda(ids):
        unique, inverse, count = unique_on_device(ids)
        return unique[: int(count)], inverse
    unique, inverse = np.empty(len(ids), np.int64), np.empty(len(ids), np.int32)
    return unique[: _native.unique_relabel(ids, unique, inverse)], inverse


def unique_on_device(ids: torch.Tensor, scratch: Scratch | None = None):
    """unique_relabel of a CUDA tensor, without waiting: unique ids [N], of which only the first ``count`` are defined,
    the inverse [N] int32 and count [1] int64."""
    kernels, stream = compute_backend(ids)
    unique, count = torch.empty_like(ids), ids.new_empty(1)
    inverse = torch.empty_like(ids, dtype=torch.int32)
    memory = (scratch or Scratch()).of(kernels.unique_relabel_scratch_bytes(len(ids)), ids.device)
    kernels.unique_relabel(ids, unique, inverse, count, memory, stream)
    return unique, inverse, count


def last_event(nodes, events, scratch: Scratch | None = None):
    """Boolean [N]: marks, for each node, the first of its entries with the node's largest event row id. ``scratch`` is
    for CUDA tensors."""
    if on_cuda(nodes):
        kernels, stream = compute_backend(nodes)
        flags = torch.empty_like(nodes, dtype=torch.uint8)
        memory = (scratch or Scratch()).of(kernels.last_event_scratch_bytes(len(nodes)), nodes.device)
        kernels.last_event(nodes, events, flags, memory, stream)
        return flags.view(torch.bool)
    winner = np.empty(len(nodes), np.uint8)
    _native.last_event(nodes, events, winner)
    return winner.view(bool)


def transpose_index(index, targets: int, padded: bool = True, scratch: Scratch | None = None):
    """CSR of the positions that point at each target: indptr [targets + 1], order int64; -1 points nowhere.

    Not ``padded``: there is no -1, or order may end with the positions that point nowhere; nobody waits for a device to
    count them. ``scratch`` is for CUDA tensors.
    """
    if on_cuda(index):
        check_index("transpose_index", index, targets, least=-1)
        kernels, stream = compute_backend(index)
        starts = torch.empty(targets + 1, dtype=torch.int64, device=index.device)
        positions = torch.empty_like(index, dtype=torch.int64)
        memory = (scratch or Scratch()).of(kernels.transpose_index_scratch_bytes(len(index), targets), index.device)
        kernels.transpose_index(index, starts, positions, memory, stream)
        return starts, positions[: int(starts[-1])] if padded else positions
    indptr, order = np.empty(targets + 1, np.int64), np.empty(len(index), np.int64)
    _native.transpose_index(index, indptr, order)
    return indptr, order[: indptr[-1]]


class Relabel:
    """Positions of ids among the unique ones so far, in order of first occurrence, over several calls. NumPy only.

    Ids are below ``num_nodes``. Dense: four bytes for each of them, ``begin`` costs nothing; else a hash table of the
    ids that occur (None: dense up to DENSE_LIMIT nodes). The answer is the same. For one thread at a time.
    """

    def __init__(self, num_nodes: int, dense: bool | None = None):
        self.num_nodes = num_nodes
        self._native = _native.Relabeler(num_nodes, num_nodes <= DENSE_LIMIT if dense is None else dense)

    def begin(self) -> None:
        """Forget all ids."""
        self._native.begin()

    def add(self, ids: np.ndarray) -> np.ndarray:
        """Position [k] int32 of every id of ids [k] int64; unseen ids are appended; a negative id is padding, -1."""
        position = np.empty(len(ids), np.int32)
        self._native.add(ids, position)
        return position

    @property
    def unique(self) -> np.ndarray:
        """The unique ids so far [u] int64: a view that the next ``begin`` and ``add`` overwrite."""
        return self._native.unique()


MOST_IDS, IDS_AT_ONCE = (1 << 63) - 1, 1 << 14


def unique_sorted(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unique ids [u] in ascending order, and the place of every id among them, in the shape of ``ids``, int64 both.

    As np.unique of ids int64 of at least 0, which sorts all ids. Here the unique ones alone are sorted, which is faster
    where ids repeat.
    """
    relabel, flat = Relabel(MOST_IDS, dense=False), np.ascontiguousarray(ids).reshape(-1)
    # The table grows with the ids that are added at once: in blocks it stays in the cache.
    pieces = [relabel.add(flat[at : at + IDS_AT_ONCE]) for at in range(0, len(flat), IDS_AT_ONCE)]
    order = np.argsort(relabel.unique)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return relabel.unique[order], place[np.concatenate(pieces or [order])].reshape(ids.shape)
