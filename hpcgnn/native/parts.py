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
    """Visit nodes [n] int64 in order and move each to the part of least cost; returns the number of moves. The cost is
    the cost of its ties plus ``penalty`` times the squared excesses of loads over their limits.

    part [N] int32 and loads [P, C] float64 change in place. With a penalty below 0 no move may raise the excesses.
    """
    p = problem
    return _native.balance_parts(
        p.indptr, p.neighbor, p.tie, p.distance, p.weight, p.limit, nodes, penalty, part, loads
    )


@dataclass(frozen=True, slots=True)
class PartLoads:
    """Loads of P parts by C constraints, and the rule that chooses a node's part among the parts with room for it.

    ldg: the largest ties * (1 - fill of the part); fennel: the largest ties - price * sqrt(fill). Of equal parts the
    emptier is taken, then the first; only constraints in which the node has weight count. Without room anywhere, the
    part that is least overfull with the node is taken.
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

    The loads count the nodes assigned before; parts of nodes that come later count as ties only.
    """
    _native.stream_parts(*nodes.arrays(), loads.loads, loads.capacity, RULES[loads.rule], loads.price, part)


def even_parts(nodes: StreamNodes, loads: PartLoads, part: np.ndarray) -> int:
    """Move nodes, the last first, out of parts over capacity in a constraint in which the node has weight. The loads,
    of all nodes, and ``part`` [N] int32 change in place. Returns the number of moved nodes.

    A move lowers the sum of the squared excesses over all capacities. The node takes the move with the best score among
    the moves that lower this sum by at least half as much as the best move does.
    """
    return _native.even_parts(*nodes.arrays(), loads.loads, loads.capacity, RULES[loads.rule], loads.price, part)
