"""Average precision and ROC AUC from counts: no rank gathers the scores of negatives, and the number of ranks does not
change a bit of the results.

U different scores of positives (edges, events or nodes of class 1) on all ranks, increasing: *levels*. Scores are
compared in float32, so that equal pairs stay tied whatever the order of additions that led to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm.world import World

AT_ONCE = 1 << 22


@dataclass(slots=True)
class Levels:
    """score [U] float32 and number of positives [U] of every level, the same on all ranks; negatives of this rank so
    far: above, level [U] that score higher, or the same; total."""

    score: np.ndarray
    positives: np.ndarray
    above: np.ndarray
    level: np.ndarray
    total: int = 0

    @classmethod
    def of(cls, positive: np.ndarray, world: World) -> Levels:
        """Collective. Of the scores [s] of this rank's positives."""
        everyone = np.concatenate(world.allgather(positive.astype(np.float32)))
        score, positives = np.unique(everyone, return_counts=True)
        above, level = (np.zeros(len(score), np.int64) for _ in range(2))
        return cls(score, positives, above, level)

    def add(self, scores: torch.Tensor, sign: int = 1) -> None:
        """Count negatives with these scores; sign -1: count them no longer."""
        levels = torch.from_numpy(self.score)
        lowest = torch.cat([levels.new_full((1,), math.nan), levels])  # of the scores of a place
        for piece in scores.detach().ravel().split(AT_ONCE):
            piece = piece.float().cpu()
            upto = torch.bucketize(piece, levels, out_int32=True, right=True)
            same = torch.bincount(upto[lowest[upto] == piece], minlength=len(lowest)).numpy()[1:]
            self.above += sign * (_at_least(upto, len(levels)) - same)
            self.level += sign * same
            self.total += sign * len(piece)

    def summed(self, world: World) -> Levels:
        """Collective. Over all ranks."""
        counts = world.reduce_array(np.concatenate([self.above, self.level, [self.total]]).astype(np.int64))
        above, level = np.split(counts[:-1], 2)
        return Levels(self.score, self.positives, above, level, int(counts[-1]))

    def average_precision(self) -> float:
        """Sum over levels of the positives' share times the precision down to it; NaN without any of either."""
        if not len(self.positives) or not self.total:
            return math.nan
        found = np.cumsum(self.positives[::-1])[::-1]
        return math.fsum(self.positives * found / (found + self.above + self.level)) / int(self.positives.sum())

    def auc(self) -> float:
        """Share of pairs of a positive and a negative that are in order, ties counted half; NaN without one."""
        if not len(self.positives) or not self.total:
            return math.nan
        wrong = math.fsum(self.positives * (self.above + 0.5 * self.level))
        return 1 - wrong / (int(self.positives.sum()) * self.total)


def count_levels(positive: np.ndarray, negative: np.ndarray, world: World) -> Levels:
    """Collective. Of the scores of this rank's positives [s] and negatives, of any shape."""
    levels = Levels.of(positive, world)
    levels.add(torch.from_numpy(np.ascontiguousarray(negative)))
    return levels.summed(world)


def _at_least(places: torch.Tensor, levels: int) -> np.ndarray:
    """How many places are above 0, 1, ... levels - 1."""
    count = torch.bincount(places, minlength=levels + 1).numpy()
    return np.cumsum(count[::-1])[::-1][1:]
