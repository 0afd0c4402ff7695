"""How heavy each part may be: as heavy as the mean, unless single nodes are heavier than that.

N nodes, P parts, C constraints. Weights are in means of a part, so that all loads of a constraint add up to P.
"""

from __future__ import annotations

import numpy as np

from data_tools.quality import rank_of_parts

ROOM_BESIDE = 0.5  # means: what a part may hold beside a node that is heavier than a part
LEAST_SHARE = 0.5  # means: of parts in the same run as such nodes


def run_sizes(num_parts: int) -> list[int]:
    """Numbers of ranks, 2, 4, ... and that of the parts, whose runs of parts should be even."""
    return [*(1 << power for power in range(1, num_parts.bit_length()) if 1 << power < num_parts), num_parts]


def part_distance(num_parts: int) -> np.ndarray:
    """For every two parts [P, P] float64, for how many of `run_sizes` they lie at different ranks."""
    distance = np.zeros((num_parts, num_parts))
    for ranks in run_sizes(num_parts):
        rank = rank_of_parts(num_parts, ranks)
        distance += rank[:, None] != rank[None, :]
    return distance


def load_limits(
    part: np.ndarray, weight: np.ndarray, giant: np.ndarray, num_parts: int, tolerance: float
) -> np.ndarray:
    """Limits of the loads [P, C] float64 by constraint, for an assignment [N] of nodes with weights [N, C].

    A part without a giant (mask [N]: nodes heavier than a mean part) may have ``tolerance`` times the mean; where there
    are giants, the others share what remains, and parts of the same runs as they are get less of it.
    """
    held = np.zeros((num_parts, weight.shape[1]))
    np.add.at(held, part[giant], np.where(weight[giant] > 1, weight[giant], 0.0))
    limits = np.empty_like(held)
    for column in range(weight.shape[1]):
        share, giants = np.empty(num_parts), held[:, column] > 0
        least = np.minimum(held[:, column] + ROOM_BESIDE, tolerance * held[:, column].max())
        rest = (num_parts - least[giants].sum()) / max(1, np.count_nonzero(~giants))
        least[~giants] = max(0.0, min(LEAST_SHARE, rest))
        divide(share, least, 0, num_parts, float(num_parts))
        limits[:, column] = np.where(giants, share, tolerance * share)
    return limits


def divide(share: np.ndarray, least: np.ndarray, begin: int, end: int, amount: float) -> None:
    """Divide a load among the parts begin .. end - 1, into share [P]: halves get equal amounts a part, but no part less
    than its least [P]."""
    if end - begin == 1:
        share[begin] = amount
        return
    middle = begin + (end - begin) // 2
    low, high = least[begin:middle].sum(), amount - least[middle:end].sum()
    left = min(max(amount * (middle - begin) / (end - begin), low), max(high, low))
    divide(share, least, begin, middle, left)
    divide(share, least, middle, end, amount - left)


def spread_giants(part: np.ndarray, weight: np.ndarray, giants: np.ndarray, num_parts: int, tolerance: float) -> None:
    """Move giants [n], nodes heavier than a mean part, so that no part and no run of parts has more of them than it
    must; part [N] changes in place."""
    ranks = [rank_of_parts(num_parts, count) for count in run_sizes(num_parts)]
    held = [np.zeros((rank[-1] + 1, weight.shape[1])) for rank in ranks]
    for node in giants[np.argsort(-weight[giants].max(axis=1), kind="stable")]:
        mine = np.where(weight[node] > 1, weight[node], 0.0)
        surplus = np.zeros(num_parts)
        for rank, load in zip(ranks, held, strict=True):
            allowed = np.maximum(tolerance * np.bincount(rank)[:, None], mine)
            surplus += np.maximum(load + mine - allowed, 0)[rank].sum(axis=1)
        if surplus[part[node]] > surplus.min():
            part[node] = np.argmin(surplus)
        for rank, load in zip(ranks, held, strict=True):
            load[rank[part[node]]] += mine
