"""Move nodes between parts until no part is too heavy, and as long as fewer ties are cut.

Nodes are visited again and again; each goes where its ties and a penalty on the squared excesses of loads over their
limits cost least, and the penalty rises from visit to visit. The sum of squares is convex in the loads, so with small
nodes no exchange is needed to reach limits that can be met; where nodes are large, exchanges follow.
N nodes, P parts, C constraints.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from data_tools.pair_graph import PairGraph
from data_tools.part_limits import load_limits, part_distance, spread_giants
from data_tools.swap_nodes import swap_nodes
from hpcgnn.native.parts import PartProblem, balance_parts

TARGET = 1.05  # what a part may have of the mean
SLACK = 0.005  # how far below that the penalty begins
PENALTY, RISE, SWEEPS = 0.02, 1.5, 36  # the first in cut weight of a mean part, the factor of the next, how many
ROUNDS = 4  # of sweeps, while constraints are not met; those weigh twice as much in the next
EPSILON = 1e-6  # units: rounding
STRICT_SWEEPS = 3  # that cut less and leave the balance as it is


def rebalance(graph: PairGraph, part: np.ndarray, weights: np.ndarray, num_parts: int, near: bool = True) -> np.ndarray:
    """Part per node [N] int32 with loads within TARGET of the mean, as far as single nodes and the constraints together
    allow it.

    weights [N, C]. near: consecutive parts are neighbours and stay so: a tie costs more the fewer ranks can cut it.
    A node heavier than a mean part stays where it is, unless it shares the part with another.
    """
    weights = weights[:, weights.sum(axis=0) > 0].astype(np.float64)
    part = part.astype(np.int32)
    if num_parts == 1 or not weights.size:
        return part
    means = weights.sum(axis=0) / num_parts
    weights /= means
    giant = np.any(weights > 1, axis=1)
    spread_giants(part, weights, np.flatnonzero(giant), num_parts, TARGET)
    limit = load_limits(part, weights, giant, num_parts, TARGET)
    # Of few units a part must be allowed a whole number.
    limit = np.maximum(limit, np.ceil(limit / TARGET * means - EPSILON) / means + SLACK)
    distance = part_distance(num_parts) if near else 1.0 - np.eye(num_parts)
    problem = PartProblem(graph.indptr, graph.neighbor, graph.weight, distance, weights, limit)
    return improve(problem, np.flatnonzero(~giant), part)


def improve(problem: PartProblem, nodes: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Part per node [N] after nodes [n] have moved; the best of several rounds."""
    best, least = part, np.inf
    for _ in range(ROUNDS):
        part = part.copy()
        loads = part_loads(problem, part)
        sweep(problem, nodes, part, loads)
        over = np.maximum(loads - problem.limit, 0)
        if over.sum() < least:
            best, least = part, over.sum()
        if least == 0:
            break
        emphasis = np.where(over.any(axis=0), 2.0, 1.0)
        problem = replace(problem, weight=problem.weight * emphasis, limit=problem.limit * emphasis)
    return best


def part_loads(problem: PartProblem, part: np.ndarray) -> np.ndarray:
    """Loads [P, C] of an assignment [N]."""
    loads = np.zeros_like(problem.limit)
    np.add.at(loads, part, problem.weight)
    return loads


def sweep(problem: PartProblem, nodes: np.ndarray, part: np.ndarray, loads: np.ndarray) -> None:
    """Move nodes [n] under a rising penalty; part [N] and loads [P, C] change in place."""
    penalty = PENALTY * max(1.0, float(problem.tie.sum())) / 2 / len(loads)
    within = replace(problem, limit=problem.limit - SLACK)
    for _ in range(SWEEPS):
        moves = balance_parts(within, nodes, penalty, part, loads)
        if moves <= len(nodes) // 1000 and (loads <= problem.limit).all():
            break
        penalty *= RISE
    if swap_nodes(part, problem.weight, loads, problem.limit):
        balance_parts(within, nodes, penalty, part, loads)
    for _ in range(STRICT_SWEEPS):
        balance_parts(problem, nodes, -1.0, part, loads)
