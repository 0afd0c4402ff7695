"""Local search over an assignment of nodes to parts. NumPy only.

N nodes, P parts, C constraints.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.native.build import _native


@dataclass(frozen=True, slots=True)
class PartProblem:
    """What does not change while nodes move: ties between nodes (symmetric CSR), what they cost, loads and limits."""

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
