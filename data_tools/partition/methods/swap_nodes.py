"""Exchange two nodes of different parts where no single move helps: few nodes have most of the weight that a part may
have.

N nodes, P parts, C constraints.
"""

from __future__ import annotations

import numpy as np

COARSE = 0.01  # means: nodes lighter than this can be moved one by one
TRIED = 16  # nodes of a part that is too heavy
BUDGET = 200_000_000  # exchanges looked at, in all


def swap_nodes(part: np.ndarray, weight: np.ndarray, loads: np.ndarray, limit: np.ndarray) -> int:
    """Exchange nodes of parts above a limit as long as that lowers the squared excesses; returns the number of
    exchanges. weight [N, C]; part [N] and loads [P, C] change in place."""
    coarse = np.flatnonzero(weight.max(axis=1, initial=0) > COARSE)
    steps = BUDGET // max(1, TRIED * len(coarse))
    hopeless = np.zeros_like(loads, bool)
    exchanged = 0
    while steps > 0:
        over = np.where(hopeless, 0, loads - limit)
        heavy, column = map(int, np.unravel_index(np.argmax(over), over.shape))
        if over[heavy, column] <= 0:
            break
        pair = best_exchange(part, weight, loads, limit, coarse, heavy, column)
        if pair is None:
            hopeless[heavy, column] = True
        else:
            exchange(part, weight, loads, *pair)
            hopeless[:] = False
            exchanged += 1
        steps -= 1
    return exchanged


def best_exchange(
    part: np.ndarray,
    weight: np.ndarray,
    loads: np.ndarray,
    limit: np.ndarray,
    coarse: np.ndarray,
    heavy: int,
    column: int,
) -> tuple[int, int] | None:
    """Find the node of part ``heavy`` and the one of another part whose exchange lowers the squared excesses most, or
    none; coarse [n]: the nodes looked at."""
    in_heavy = np.flatnonzero(part[coarse] == heavy)
    own = coarse[in_heavy[np.argsort(-weight[coarse[in_heavy], column], kind="stable")[:TRIED]]]
    others = coarse[part[coarse] != heavy]
    before = square_over(loads, limit)
    best, least = None, -1e-9
    for node in own:
        change = weight[node] - weight[others]  # what the other part gains
        goal = part[others]
        after = square_over(loads[heavy] - change, limit[heavy]) + square_over(loads[goal] + change, limit[goal])
        change = after - before[heavy] - before[goal]
        if len(others) and change.min() < least:
            least = change.min()
            best = int(node), int(others[np.argmin(change)])
    return best


def square_over(loads: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Sum the squared excess over the limits over the constraints [..., C]."""
    return (np.maximum(loads - limit, 0) ** 2).sum(axis=-1)


def exchange(part: np.ndarray, weight: np.ndarray, loads: np.ndarray, first: int, second: int) -> None:
    """Exchange two nodes."""
    change = weight[first] - weight[second]
    loads[part[first]] -= change
    loads[part[second]] += change
    part[first], part[second] = part[second], part[first]
