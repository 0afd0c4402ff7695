"""Assignment of nodes to parts. NumPy only: unlike `hpcgnn.native` it loads no torch.

Local search over an assignment of N nodes to P parts under C constraints; linear deterministic greedy and Fennel for
nodes that come one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.native.build import _native

RULES = {"ldg": 0, "fennel": 1}


@dataclass(frozen=True, slots=True)
class PartProblem:
    """The constants of a local search: ties between nodes (symmetric CSR) and their costs, the nodes' weights, and the
    limits of the loads."""

    indptr: np.ndarray  # [N + 1] int64
    neighbor: np.ndarray  # [entries] int64
    tie: np.ndarray  # [entries] int64
    distance: np.ndarray  # [P, P] float64: what a tie of weight 1 between two parts costs
    weight: np.ndarray  # [N, C] float64
    limit: np.ndarray  # [P, C] float64, of the loads


def balance_parts(problem: PartProblem, nodes: np.ndarray, penalty: float, part: np.ndarray, loads: np.ndarray) -> int:
    """Visit nodes [n] int64 in order and move each to where its ties and ``penalty`` times the squared excesses of
    loads over their limits cost least; returns the number of moves.

    part [N] int32 and loads [P, C] float64 change in place. With a penalty below 0 no move may raise the excesses.
    """
    p = problem
    return _native.balance_parts(
        p.indptr, p.neighbor, p.tie, p.distance, p.weight, p.limit, nodes, penalty, part, loads
    )


@dataclass(frozen=True, slots=True)
class PartLoads:
    """Loads of P parts by C constraints, and the rule that chooses a node's part among those with room for it.

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
    """Nodes [n] with their weights [n, C] and adjacency (indptr [n + 1], neighbor [A], tie [A]), integers."""

    node: np.ndarray
    weight: np.ndarray
    adjacency: tuple[np.ndarray, np.ndarray, np.ndarray]

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays as contiguous int64, in the kernels' order."""
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
