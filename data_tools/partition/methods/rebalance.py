"""Moves nodes between parts until no part is too heavy, and as long as fewer ties are cut.

A part may be as heavy as the mean, unless single nodes are heavier than that. Nodes are visited again and again. Each
goes where its ties and a penalty on the squared excesses of loads over their limits cost least; the penalty rises from
visit to visit. The sum of squares is convex in the loads, so with small nodes no exchange is needed to reach limits
that can be met. Where nodes are large, exchanges follow. N nodes, P parts, C constraints. Weights are in means of a
part, so that all loads of a constraint add up to P.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from data_tools.partition.methods.swap_nodes import swap_nodes
from data_tools.partition.pair_graph import PairGraph
from data_tools.partition.quality import rank_of_parts
from hpcgnn.native.parts import PartProblem, balance_parts

ROOM_BESIDE = 0.5  # means: what a part may hold beside a node that is heavier than a part
LEAST_SHARE = 0.5  # means: of parts in the same run as such nodes


def run_sizes(num_parts: int) -> list[int]:
    """List the numbers of ranks, 2, 4, ... and that of the parts, whose blocks of consecutive parts should be
    even."""
    return [*(1 << power for power in range(1, num_parts.bit_length()) if 1 << power < num_parts), num_parts]


def part_distance(num_parts: int) -> np.ndarray:
    """Count for every two parts [P, P] float64 at how many of `run_sizes` they lie at different ranks."""
    distance = np.zeros((num_parts, num_parts))
    for ranks in run_sizes(num_parts):
        rank = rank_of_parts(num_parts, ranks)
        distance += rank[:, None] != rank[None, :]
    return distance


def load_limits(
    part: np.ndarray, weight: np.ndarray, giant: np.ndarray, num_parts: int, tolerance: float
) -> np.ndarray:
    """Compute the limits of the loads [P, C] float64 by constraint, for an assignment [N] of nodes with weights [N, C].

    A part without a giant (mask [N]: nodes heavier than a mean part) may have ``tolerance`` times the mean. Where there
    are giants, the other parts share the remaining load; parts in the same runs as a giant get less of it.
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
    """Move giants [n], nodes heavier than a mean part. No part and no block of consecutive parts has more of them than
    it must; part [N] changes in place."""
    ranks = [rank_of_parts(num_parts, count) for count in run_sizes(num_parts)]
    held = [np.zeros((rank[-1] + 1, weight.shape[1])) for rank in ranks]
    for node in giants[np.argsort(-weight[giants].max(axis=1), kind="stable")]:
        node_weight = np.where(weight[node] > 1, weight[node], 0.0)
        surplus = np.zeros(num_parts)
        for rank, load in zip(ranks, held, strict=True):
            allowed = np.maximum(tolerance * np.bincount(rank)[:, None], node_weight)
            surplus += np.maximum(load + node_weight - allowed, 0)[rank].sum(axis=1)
        if surplus[part[node]] > surplus.min():
            part[node] = np.argmin(surplus)
        for rank, load in zip(ranks, held, strict=True):
            load[rank[part[node]]] += node_weight


TARGET = 1.05  # what a part may have of the mean
SLACK = 0.005  # how far below that the penalty begins
PENALTY, RISE, SWEEPS = 0.02, 1.5, 36  # the first in cut weight of a mean part, the factor of the next, how many
ROUNDS = 4  # of sweeps, while constraints are not met; those weigh twice as much in the next
EPSILON = 1e-6  # units: rounding
STRICT_SWEEPS = 3  # that cut less and leave the balance as it is


def rebalance(graph: PairGraph, part: np.ndarray, weights: np.ndarray, num_parts: int, near: bool = True) -> np.ndarray:
    """Even out an assignment: part per node [N] int32 with loads within TARGET of the mean, as far as single nodes and
    the constraints together allow it.

    weights [N, C]. near: consecutive parts are neighbors and stay so: a tie costs more the fewer ranks can cut it.
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
    """Move nodes [n] in several rounds; returns the part per node [N] of the best."""
    best, least = part, np.inf
    for _ in range(ROUNDS):
        part = part.copy()
        loads = np.zeros_like(problem.limit)
        np.add.at(loads, part, problem.weight)
        sweep(problem, nodes, part, loads)
        over = np.maximum(loads - problem.limit, 0)
        if over.sum() < least:
            best, least = part, over.sum()
        if least == 0:
            break
        emphasis = np.where(over.any(axis=0), 2.0, 1.0)
        problem = replace(problem, weight=problem.weight * emphasis, limit=problem.limit * emphasis)
    return best


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
