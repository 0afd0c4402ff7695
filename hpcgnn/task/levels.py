"""Average precision and ROC AUC from counts, exact on any number of ranks: not a bit of them depends on that number.

U different scores of positives (edges, events or nodes of class 1) of all ranks, increasing: *levels*. Scores are
compared in float32, so that equal pairs stay tied whatever the order of additions that led to them. R ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm.group import Group
from hpcgnn.graph.directory import bounds_of_least

AT_ONCE = 1 << 20  # scores, whose temporary arrays stay small
MANTISSA = 53  # bits of a float64
LOW = 27  # bits of the lower half of a mantissa: 2^26 of them add up exactly in a float64
LEAST = 1126  # the last bit of the mantissa of the smallest float64 counts 2^-1126
KIND = 31  # an entry: 32 bits of a score, one that says "negative", and as many of how often it occurs


def rounded(scores: np.ndarray) -> np.ndarray:
    """Round scores to float32, in which they are compared; infinite where they are too large, without a warning."""
    with np.errstate(over="ignore"):
        return scores.astype(np.float32)


class ExactSum:
    """Adds up finite numbers of all ranks as float64 without rounding; the sum is rounded once."""

    def __init__(self):
        self._total = 0  # in units of 2^-LEAST

    def add(self, values: np.ndarray) -> None:
        """Add numbers [n] of this rank, at most 2^26."""
        mantissa, exponent = np.frexp(values.astype(np.float64))
        whole, place = (mantissa * (1 << MANTISSA)).astype(np.int64), exponent + (LEAST - MANTISSA)
        for half, shift in ((whole >> LOW, LOW), (whole & ((1 << LOW) - 1), 0)):
            sums = np.bincount(place, half)
            self._total += sum(int(sums[bit]) << (int(bit) + shift) for bit in np.flatnonzero(sums))

    def over(self, group: Group) -> float:
        """Collective. Return the sum over ranks."""
        return sum(group.allgather(self._total)) / (1 << LEAST)


def exact_sum(values: np.ndarray, group: Group) -> float:
    """Collective. Sum finite numbers [n] of all ranks as float64, rounded once, at the end."""
    total = ExactSum()
    for begin in range(0, len(values), AT_ONCE):
        total.add(values[begin : begin + AT_ONCE])
    return total.over(group)


@dataclass(slots=True)
class Levels:
    """Counts over all ranks at u of the levels. positives [u]: positives with just this score; down_to [u]: positives
    with this score or a higher one; above, level [u]: negatives with a higher score, and with just this one."""

    positives: np.ndarray
    down_to: np.ndarray
    above: np.ndarray
    level: np.ndarray


def _measure(levels: Iterable[Levels], positives: int, negatives: int, group: Group) -> tuple[float, float]:
    """Collective. Compute average precision and ROC AUC from levels, each of which one rank has, and from the numbers
    of all positives and negatives; both NaN without any of either.

    The first is the sum over levels of their share of the positives times the precision down to them, the second the
    share of the pairs of a positive and a negative that are in order, ties counted half.
    """
    precision, wrong = ExactSum(), ExactSum()
    for piece in levels:
        precision.add(piece.positives * piece.down_to / (piece.down_to + piece.above + piece.level))
        wrong.add(piece.positives * (piece.above + 0.5 * piece.level))
    sums = precision.over(group), wrong.over(group)
    if not positives or not negatives:
        return math.nan, math.nan
    return sums[0] / positives, 1 - sums[1] / (positives * negatives)


def ap_auc(positive: np.ndarray, negative: np.ndarray, group: Group) -> tuple[float, float]:
    """Collective. Compute average precision and ROC AUC from this rank's scores of positives [s] and of negatives, of
    any shape. No score may be NaN; both results are NaN where there are no positives or no negatives. The scores of all
    ranks are sorted, and each rank counts at nearly the same number of distinct scores: no rank holds more than its
    share."""
    entries = np.concatenate([*_entries(positive, False, group), *_entries(negative, True, group)])
    entries.sort()
    if group.size > 1:
        entries = _exchanged(entries, group)
    pieces = np.split(entries, np.searchsorted(entries, entries[AT_ONCE::AT_ONCE] >> 32 << 32))
    own = np.sum([_totals(piece) for piece in pieces], axis=0)
    totals = np.array(group.allgather(own))
    positives, negatives = totals.sum(axis=0).tolist()
    return _measure(_levels(pieces, totals[group.rank + 1 :].sum(axis=0)), positives, negatives, group)


def _entries(scores: np.ndarray, negative: bool, group: Group) -> Iterator[np.ndarray]:
    """List scores as entries [e] int64, which increase with the score, equal ones of a piece as one."""
    scores = scores.ravel()
    yield np.empty(0, np.int64)
    for begin in range(0, len(scores), AT_ONCE):
        group.working("metrics", begin)
        piece = rounded(scores[begin : begin + AT_ONCE]) + np.float32(0)  # -0 becomes 0
        score, counts = np.unique(piece, return_counts=True)
        bits = score.view(np.int32)
        key = (bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(np.int64)  # increases with the score, below 0 too
        yield key << 32 | int(negative) << KIND | counts


def _exchanged(entries: np.ndarray, group: Group) -> np.ndarray:
    """Collective. Sort the entries of all ranks: each gets those of a range of scores, higher ranks higher ones."""
    total = int(group.reduce_array(np.array([len(entries)]))[0])
    bounds = bounds_of_least(entries >> 32, np.arange(1, group.size) * total // group.size, group)
    cuts = np.searchsorted(entries, bounds << 32)
    entries, _ = group.exchange(entries, np.diff(cuts, prepend=0, append=len(entries)))
    entries.sort()
    return entries


def _totals(entries: np.ndarray) -> np.ndarray:
    """Count the positives and the negatives, [2] int64."""
    count, is_negative = entries & (1 << KIND) - 1, entries >> KIND & 1
    negatives = int((count * is_negative).sum())
    return np.array([int(count.sum()) - negatives, negatives])


def _levels(pieces: list[np.ndarray], higher: np.ndarray) -> Iterator[Levels]:
    """Count at sorted entries, from the last piece on. higher [2]: positives and negatives of higher ranks."""
    positives_above, negatives_above = higher
    for entries in reversed(pieces):
        kind, count = entries >> KIND, entries & (1 << KIND) - 1
        first = np.flatnonzero(np.diff(kind, prepend=-(1 << 62)))
        kind, count = kind[first], np.add.reduceat(count, first) if len(first) else count
        is_negative = kind & 1 == 1
        below = np.concatenate(([0], np.cumsum(count * is_negative)))  # negatives before each entry
        at = np.flatnonzero(~is_negative)
        after = at + 1 + (np.append(kind, 0)[at + 1] == kind[at] + 1)  # behind the negatives of the same score
        positives = count[at]
        down_to = np.cumsum(positives[::-1])[::-1]
        above = below[-1] - below[after]
        yield Levels(positives, down_to + positives_above, above + negatives_above, below[after] - below[at])
        positives_above += positives.sum()
        negatives_above += below[-1]


class MatrixLevels:
    """Counts negatives by level where there are many more of them than of positives, as in the scores of all pairs of
    nodes. Negatives stay on their ranks, and every rank has all levels."""

    def __init__(self, positive: np.ndarray, group: Group):
        """Collective. positive [s]: scores of this rank's positives; no negative is counted yet."""
        everyone = np.concatenate(group.allgather(rounded(positive)))
        self._score, self._positives = np.unique(everyone, return_counts=True)
        self._counts = np.zeros((2, len(self._score)), np.int64)  # negatives that score higher, and the same
        self._group, self._total = group, 0

    def add(self, scores: torch.Tensor, sign: int = 1) -> None:
        """Count negatives with these scores; with sign -1, take them out of the counts."""
        levels = torch.from_numpy(self._score)
        lowest = torch.cat([levels.new_full((1,), math.nan), levels])  # lowest[i]: the lowest score that i levels reach
        for piece in scores.detach().ravel().split(AT_ONCE):
            piece = piece.float().cpu()
            upto = torch.bucketize(piece, levels, out_int32=True, right=True)
            same = torch.bincount(upto[lowest[upto] == piece], minlength=len(lowest)).numpy()[1:]
            reached = torch.bincount(upto, minlength=len(lowest)).numpy()
            at_least = np.cumsum(reached[::-1])[::-1][1:]  # scores that reach a level, or a higher one
            self._counts += sign * np.stack([at_least - same, same])
            self._total += sign * len(piece)

    def measure(self) -> tuple[float, float]:
        """Collective. Compute average precision and ROC AUC of what all ranks have counted."""
        group = self._group
        counts = group.reduce_array(self._counts)
        own = slice(*(len(self._score) * np.arange(group.rank, group.rank + 2) // group.size))
        down_to = np.cumsum(self._positives[::-1])[::-1]
        levels = Levels(self._positives[own], down_to[own], *counts[:, own])
        total = int(group.reduce_array(np.array([self._total]))[0])
        return _measure([levels], int(self._positives.sum()), total, group)
