"""Static neighbour sampling on a CSC of in-edges. N nodes to sample for, n rows, m entries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from hpcgnn.native.build import _native
from hpcgnn.native.dispatch import empty_like, on_cuda, planning_backend
from hpcgnn.native.random import Random

MODES = {"uniform": 0, "replace": 1, "labor": 2}
FULL = -1
MAX_FANOUT = 1 << 16  # slots that the counter of the random numbers has room for
DENSE_LIMIT = 1 << 26  # nodes up to which Relabel keeps a stamp for each
_ALL = np.iinfo(np.int32).max  # how the kernels call FULL


def sample_neighbors(
    indptr, nodes, identity, fanout: int, random: Random, *, mode="uniform", weight=None, source_identity=None,
    threads=1,
):  # fmt: skip
    """In-edges drawn for every node: (offsets [N + 1], positions [offsets[-1]]) int64; positions index the CSC.

    indptr [n + 1], nodes [N] rows, identity [n] int64, below 2^48: the draws of a row are a function of ``random``
    and its identity alone. NumPy arrays or CUDA tensors. A row has fewer than 2^32 entries. Positions increase within
    a node, unless drawn with replacement: then they are in order of the draws.

    mode: "uniform" draws without replacement (Floyd's algorithm: Bentley and Floyd, CACM 1987), all entries where
    there are no more than ``fanout``; "replace" draws ``fanout`` times with replacement; "full", or fanout -1 in any
    mode, takes all. weight [m] uint32 (not for "labor"): probabilities in proportion; without replacement one entry
    after another among those that are left (successive sampling). Entries of weight 0 are never taken.

    "labor" is LABOR-0 (Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023) in its sequential Poisson form:
    every source has one 64-bit random number a call, keyed by source_identity [m] int64 (the identity of each entry's
    source), and a node takes the entries with the ``fanout`` smallest numbers, of equal ones the first. So nodes share
    neighbours, each has exactly min(degree, fanout), and its entries are equally likely; of parallel edges all or the
    first are taken. No importance weights (LABOR-1 and LABOR-* have them).
    """
    fanout, mode = _checked(fanout, mode, weight)
    entries = None if on_cuda(nodes) else int(indptr[-1])  # a device is not waited for
    _check_weight(weight, entries)
    if mode == MODES["labor"] and source_identity is None:
        raise ValueError("mode labor needs source_identity: one number per entry of the CSC")
    if mode == MODES["labor"] and entries not in (None, len(source_identity)):
        raise ValueError(f"source_identity must have {entries} entries, got {len(source_identity)}")
    kernels, execution = planning_backend(nodes, threads)
    offsets = empty_like(nodes, len(nodes) + 1, "int64")
    offsets[0] = 0
    kernels.count_neighbors(indptr, weight, fanout, mode, nodes, offsets[1:], execution)
    (torch if on_cuda(nodes) else np).cumsum(offsets, 0, out=offsets)
    positions = empty_like(nodes, int(offsets[-1]), "int64")
    keys = empty_like(nodes, len(positions), "int64") if mode == MODES["labor"] else None
    key = random.native()
    drawn_from = (indptr, weight, fanout, mode, nodes, identity, source_identity, key)
    kernels.sample_neighbors(*drawn_from, offsets, positions, keys, execution)
    return offsets, positions


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


def sample_layers(
    indptr, src, seeds, identity, fanouts, random: Random, relabel: Relabel, *, mode="uniform", weight=None,
    with_positions=False, threads=1,
):  # fmt: skip
    """A whole batch in one call: per hop (offsets [F + 1] int64, source [E] int32, positions [E] int64 or None).

    One node type, one relation, all of it here: indptr [n + 1], src [m], identity [n] int64, ``relabel`` of n nodes.
    The frontier of a hop, F nodes, are all unique nodes so far, the different seeds first; source is the place of
    each neighbour among the unique nodes after the hop, ``relabel.unique`` in the end. Equal, bit for bit, to
    ``sample_neighbors`` with ``random.hop`` one more each hop, followed by ``relabel.add(src[positions])``; for mode
    and weight see there. NumPy only; releases the GIL, so that threads with a Relabel each may sample a batch each.
    """
    fanouts = [_checked(fanout, mode, weight)[0] for fanout in fanouts]
    _check_weight(weight, len(src))
    if fanouts:
        replace(random, hop=random.hop + len(fanouts) - 1)  # refuses more hops than the counter has room for
    drawn_from = (indptr, src, identity, weight, MODES.get(mode, 0), seeds, fanouts, with_positions, random.native())
    return _native.sample_layers(*drawn_from, relabel._native, threads)


def _checked(fanout: int, mode: str, weight) -> tuple[int, int]:
    """Fanout and mode as the kernels have them."""
    if mode not in (*MODES, "full"):
        raise ValueError(f"sampling mode must be one of {', '.join((*MODES, 'full'))}; got {mode!r}")
    if mode == "labor" and weight is not None:
        raise ValueError("mode labor takes no weights: leave them out, or choose uniform or replace")
    if fanout != FULL and not 1 <= fanout <= MAX_FANOUT:
        raise ValueError(f"fanout must be in [1, {MAX_FANOUT}], or {FULL} for all neighbours; got {fanout}")
    return (_ALL, MODES["uniform"]) if fanout == FULL or mode == "full" else (fanout, MODES[mode])


def _check_weight(weight, entries: int | None) -> None:
    if weight is None:
        return
    if str(weight.dtype).removeprefix("torch.") != "uint32":
        raise ValueError(f"weights must be uint32 (draws use integers only), got {weight.dtype}")
    if entries not in (None, len(weight)):
        raise ValueError(f"weights must be as many as the CSC has entries, {entries}; got {len(weight)}")
