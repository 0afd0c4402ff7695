"""Average precision and ROC AUC from counts: no rank gathers the scores of negatives.

U different scores of edges on all ranks, increasing: *levels*. Scores are compared in float32, so that equal pairs stay
tied whatever the order of additions that led to them.
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
    """score [U] float32 and edges [U] of every level, the same on all ranks; negatives of this rank so far: above,
    level [U] that score higher, or the same; total."""

    score: np.ndarray
    edges: np.ndarray
    above: np.ndarray
    level: np.ndarray
    total: int = 0

    @classmethod
    def of(cls, positive: np.ndarray, world: World) -> Levels:
        """Collective. Of the scores [s] of this rank's edges."""
        everyone = np.concatenate(world.allgather(positive.astype(np.float32)))
        score, edges = np.unique(everyone, return_counts=True)
        above, level = (np.zeros(len(score), np.int64) for _ in range(2))
        return cls(score, edges, above, level)

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
        return Levels(self.score, self.edges, above, level, int(counts[-1]))

    def average_precision(self) -> float:
        """Sum over levels of the edges' share times the precision down to it; NaN without edges or negatives."""
        if not len(self.edges) or not self.total:
            return math.nan
        found = np.cumsum(self.edges[::-1])[::-1]
        return math.fsum(self.edges * found / (found + self.above + self.level)) / int(self.edges.sum())

    def auc(self) -> float:
        """Share of pairs of an edge and a negative that are in order, ties counted half; NaN without any."""
        if not len(self.edges) or not self.total:
            return math.nan
        wrong = math.fsum(self.edges * (self.above + 0.5 * self.level))
        return 1 - wrong / (int(self.edges.sum()) * self.total)


def count_levels(positive: np.ndarray, negative: np.ndarray, world: World) -> Levels:
    """Collective. Of this rank's edges [s] and their negatives [s, k]."""
    levels = Levels.of(positive, world)
    levels.add(torch.from_numpy(np.ascontiguousarray(negative)))
    return levels.summed(world)


def _at_least(places: torch.Tensor, levels: int) -> np.ndarray:
    """How many places are above 0, 1, ... levels - 1."""
    count = torch.bincount(places, minlength=levels + 1).numpy()
    return np.cumsum(count[::-1])[::-1][1:]
