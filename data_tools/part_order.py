"""Number parts so that consecutive ones are neighbours, for methods whose parts come in no order."""

from __future__ import annotations

import numpy as np

from data_tools.metis import metis_partition
from data_tools.pair_graph import PairGraph, add_duplicates, from_pairs


def order_parts(graph: PairGraph, part: np.ndarray, num_parts: int, seed: int) -> np.ndarray:
    """Renumber the parts of an assignment [N] by bisecting the graph of the parts again and again."""
    ties = part_ties(graph, part, num_parts)
    order = bisect(ties, np.arange(num_parts), seed)
    new_number = np.empty(num_parts, np.int32)
    new_number[order] = np.arange(num_parts)
    return new_number[part]


def part_ties(graph: PairGraph, part: np.ndarray, num_parts: int) -> np.ndarray:
    """Weight of the edges between parts [P, P], zero on the diagonal."""
    own = np.repeat(part, graph.degrees()).astype(np.int64)
    cells = own * num_parts + part[graph.neighbor]
    ties = (
        np.bincount(cells, weights=graph.weight, minlength=num_parts**2).astype(np.int64).reshape(num_parts, num_parts)
    )
    np.fill_diagonal(ties, 0)
    return ties


def bisect(ties: np.ndarray, parts: np.ndarray, seed: int) -> np.ndarray:
    """Order of parts [n]: two halves of n // 2 and the rest with few ties between them, each ordered in turn."""
    if len(parts) <= 2:
        return parts
    inside = ties[np.ix_(parts, parts)]
    low, high = np.nonzero(np.triu(inside, 1))
    quotient = from_pairs(*add_duplicates(low * len(parts) + high, inside[low, high]), len(parts))
    side = metis_partition(quotient, 2, np.ones((len(parts), 1), np.int64), tolerance=1.001, seed=seed)
    # METIS may be one off: the parts that lean most to the other side change over.
    lean = inside[:, side == 1].sum(axis=1) - inside[:, side == 0].sum(axis=1)
    order = np.lexsort((np.arange(len(parts)), lean, side))
    half = len(parts) // 2
    return np.r_[bisect(ties, parts[np.sort(order[:half])], seed), bisect(ties, parts[np.sort(order[half:])], seed)]
