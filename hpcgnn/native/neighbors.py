"""Static neighbor sampling on a CSC of in-edges. N nodes to sample for, n rows, m entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hpcgnn.native.dispatch import check_index, empty_like, on_cuda, planning_backend
from hpcgnn.native.random import Random

MODES = {"uniform": 0, "replace": 1, "labor": 2}
FULL = -1
MAX_FANOUT = 1 << 16  # slots that the counter of the random numbers has room for
_ALL = np.iinfo(np.int32).max  # how the kernels call FULL


def sample_neighbors(
    indptr, nodes, identity, fanout: int | list[int], random: Random, *, mode="uniform", weight=None,
    source_identity=None, threads=1, relation=None,
):  # fmt: skip
    """In-edges drawn for every node: (offsets [N + 1], positions [offsets[-1]]) int64; positions index the CSC.

    indptr [n + 1], nodes [N] rows, identity [n] int64, below 2^48: the draws of a row are a function of ``random``
    and its identity alone. NumPy arrays or CUDA tensors. A row has fewer than 2^32 entries. Positions increase within
    a node, unless drawn with replacement: then they are in order of the draws.

    mode: "uniform" draws without replacement (Floyd's algorithm: Bentley and Floyd, CACM 1987), and takes all entries
    where there are no more than ``fanout``. "replace" draws ``fanout`` times with replacement; "full", or fanout -1 in
    any mode, takes all. weight [m] uint32 (not for "labor"): probabilities in proportion; without replacement, one
    entry after another from the remaining entries (successive sampling). Entries of weight 0 are never taken.

    "labor" is LABOR-0 (Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023) in its sequential Poisson form.
    Every source has one 64-bit random number per call, keyed by source_identity [m] int64 (the identity of each entry's
    source). A node takes the entries with the ``fanout`` smallest numbers, of equal ones the first. So nodes share
    neighbors, each has exactly min(degree, fanout), and its entries are equally likely; of parallel edges all or the
    first are taken. No importance weights (LABOR-1 and LABOR-* have them).

    relation [N] int32: rows of several relations, whose fanouts ``fanout`` lists, 0 for none. The draws are the same
    as of a call for each relation with its number in ``random``; fastest where rows of a relation are side by side.
    """
    entries = None if on_cuda(nodes) else int(indptr[-1])  # a device is not waited for
    fanouts: Any
    fanouts, mode = checked_fanouts(fanout, mode, weight, source_identity, entries)
    if isinstance(fanout, list):
        fanout, fanouts = 1, torch.from_numpy(fanouts).to(nodes.device) if on_cuda(nodes) else fanouts  # 1: of no row
    else:
        fanout, fanouts = int(fanouts[0]), None
    if on_cuda(nodes):
        check_index("sample_neighbors", nodes, len(indptr) - 1, least=0)
    kernels, execution = planning_backend(nodes, threads)
    offsets = empty_like(nodes, len(nodes) + 1, "int64")
    offsets[0] = 0
    kernels.count_neighbors(indptr, weight, fanout, mode, nodes, relation, fanouts, offsets[1:], execution)
    (torch if on_cuda(nodes) else np).cumsum(offsets, 0, out=offsets)
    positions = empty_like(nodes, int(offsets[-1]), "int64")
    keys = empty_like(nodes, len(positions), "int64") if mode == MODES["labor"] else None
    key = random.native()
    drawn_from = (indptr, weight, fanout, mode, nodes, relation, fanouts, identity, source_identity, key)
    kernels.sample_neighbors(*drawn_from, offsets, positions, keys, execution)
    return offsets, positions


def checked_fanouts(
    fanout: int | list[int], mode: str, weight, source_identity, entries: int | None
) -> tuple[np.ndarray, int]:  # fmt: skip
    """Translate one fanout, or the fanouts of relations, 0 for none, into the kernels' numbers int32, and the mode.
    ValueError as ``checked_draws``, and for a mode "labor" without a source_identity for every entry."""
    fanouts, any_of = ([*fanout], 1) if isinstance(fanout, list) else ([fanout], fanout)
    checked = {each: checked_draws(each, mode, weight, entries) for each in {*fanouts} - {0} | {any_of}}
    number = checked[any_of][1]
    if number == MODES["labor"] and source_identity is None:
        raise ValueError("mode labor needs source_identity: one number per entry of the CSC")
    if number == MODES["labor"] and entries not in (None, len(source_identity)):
        raise ValueError(f"source_identity must have {entries} entries, got {len(source_identity)}")
    return np.array([each and checked[each][0] for each in fanouts], np.int32), number


def checked_draws(fanout: int, mode: str, weight, entries: int | None) -> tuple[int, int]:
    """Translate fanout and mode into the kernels' numbers. ValueError for others, for weights that the mode cannot take
    or that are not uint32, and for another number of them than of entries, where that is known."""
    if mode not in (*MODES, "full"):
        raise ValueError(f"sampling mode must be one of {', '.join((*MODES, 'full'))}; got {mode!r}")
    if mode == "labor" and weight is not None:
        raise ValueError("mode labor takes no weights: leave them out, or choose uniform or replace")
    if fanout != FULL and not 1 <= fanout <= MAX_FANOUT:
        raise ValueError(f"fanout must be in [1, {MAX_FANOUT}], or {FULL} for all neighbors; got {fanout}")
    if weight is not None and str(weight.dtype).removeprefix("torch.") != "uint32":
        raise ValueError(f"weights must be uint32 (draws use integers only), got {weight.dtype}")
    if weight is not None and entries not in (None, len(weight)):
        raise ValueError(f"weights must be as many as the CSC has entries, {entries}; got {len(weight)}")
    return (_ALL, MODES["uniform"]) if fanout == FULL or mode == "full" else (fanout, MODES[mode])
