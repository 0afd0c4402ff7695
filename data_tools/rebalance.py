"""Move nodes from parts that are too heavy to lighter ones, losing as little cut as possible.

N nodes, P parts, C constraints.
"""

from __future__ import annotations

import numpy as np

from data_tools.pair_graph import PairGraph

TARGET = 1.10  # a part may have this much of the mean; on wikipedia 1.05 costs a fifth more cut between 4 ranks
PASSES = 4  # over all parts, after those over runs


def rebalance(graph: PairGraph, part: np.ndarray, weights: np.ndarray, num_parts: int) -> np.ndarray:
    """Part per node [N] int32 in which parts over TARGET have given nodes away, where other parts had room.

    weights [N, C]. A node heavier than a mean part stays where it is, so the target may remain out of reach.
    """
    weights = weights[:, weights.sum(axis=0) > 0].astype(np.float64)
    limit = TARGET * weights.sum(axis=0) / num_parts
    part = part.copy()
    loads = np.zeros((num_parts, weights.shape[1]))
    np.add.at(loads, part, weights)
    # Near parts first: moves within a run of parts leave the cut between ranks that take such runs as it is.
    for power in range(1, num_parts.bit_length() + PASSES):
        heavy = np.flatnonzero((loads > limit).any(axis=1))
        worst_first = heavy[np.argsort(-(loads[heavy] / limit).max(axis=1), kind="stable")]
        for index in worst_first:
            relieve(graph, part, weights, loads, limit, int(index), 1 << power)
    return part


def relieve(
    graph: PairGraph,
    part: np.ndarray,
    weights: np.ndarray,
    loads: np.ndarray,
    limit: np.ndarray,
    heavy: int,
    width: int,
) -> None:
    """Move nodes out of part ``heavy`` until it is within the limit; part and loads change in place.

    Only parts of the same aligned run of ``width`` parts receive nodes.
    """
    open_parts = (loads < limit).all(axis=1)
    open_parts &= np.arange(len(loads)) // width == heavy // width
    if not open_parts.any():
        return
    nodes = np.flatnonzero(part == heavy)
    over = loads[heavy] > limit
    nodes = nodes[weights[nodes][:, over].any(axis=1)]
    ties = connections(graph, part, nodes, len(loads))
    # Among equally connected parts the lightest is preferred.
    room = -(loads / limit).max(axis=1) / 2
    target = np.argmax(np.where(open_parts[None, :], ties + room[None, :], -np.inf), axis=1)
    loss = ties[:, heavy] - ties[np.arange(len(nodes)), target]
    relief = (weights[nodes] / limit)[:, over].sum(axis=1)
    for index in np.argsort(loss / relief, kind="stable"):
        node, goal = nodes[index], target[index]
        if (loads[heavy] <= limit).all():
            break
        if (loads[goal] + weights[node] <= limit).all():
            loads[heavy] -= weights[node]
            loads[goal] += weights[node]
            part[node] = goal


def connections(graph: PairGraph, part: np.ndarray, nodes: np.ndarray, num_parts: int) -> np.ndarray:
    """Weight of the ties of nodes [n] to every part [n, P]."""
    degrees = graph.degrees()[nodes]
    begin = np.repeat(graph.indptr[nodes] - (np.cumsum(degrees) - degrees), degrees)
    entries = begin + np.arange(degrees.sum())
    cells = np.repeat(np.arange(len(nodes)), degrees) * num_parts + part[graph.neighbor[entries]]
    ties = np.bincount(cells, weights=graph.weight[entries], minlength=len(nodes) * num_parts)
    return ties.reshape(len(nodes), num_parts)
