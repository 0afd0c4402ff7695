"""Parts for nodes that come one after the other: linear deterministic greedy and Fennel. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.native.build import _native

RULES = {"ldg": 0, "fennel": 1}


@dataclass(frozen=True, slots=True)
class PartLoads:
    """What P parts hold of C constraints, and how a node chooses among those with room for it.

    ldg: the largest ties * (1 - how full the part is); fennel: the largest ties - price * sqrt(how full). Of equal ones
    the emptier, then the first; only what the node weighs on counts. Without room anywhere: the part that is least
    overfull with the node.
    """

    loads: np.ndarray  # [P, C] float64, changes in place
    capacity: np.ndarray  # [C] float64, above 0
    rule: str = "ldg"
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamNodes:
    """Nodes [n] with their weights [n, C] and adjacency (indptr [n + 1], neighbour [A], tie [A]), integers."""

    node: np.ndarray
    weight: np.ndarray
    adjacency: tuple[np.ndarray, np.ndarray, np.ndarray]

    def arrays(self) -> list[np.ndarray]:
        """All of them, int64 and contiguous."""
        return [np.ascontiguousarray(array, np.int64) for array in (self.node, self.weight, *self.adjacency)]


def stream_parts(nodes: StreamNodes, loads: PartLoads, part: np.ndarray) -> None:
    """Assign nodes in their order; the loads and ``part`` [N] int32 (-1: none yet) change in place.

    The loads are those of the nodes assigned before; parts of nodes that come later count as ties only.
    """
    _native.stream_parts(*nodes.arrays(), loads.loads, loads.capacity, RULES[loads.rule], loads.price, part)


def even_parts(nodes: StreamNodes, loads: PartLoads, part: np.ndarray) -> int:
    """Move nodes, the last first, out of parts that are over capacity in what they weigh on; the loads, of all nodes,
    and ``part`` [N] int32 change in place. Returns how many were moved.

    A move lowers the sum of the squared excesses over all capacities; of those that lower it by at least half as much
    as the best one does, the node takes that with the best score.
    """
    return _native.even_parts(*nodes.arrays(), loads.loads, loads.capacity, RULES[loads.rule], loads.price, part)
