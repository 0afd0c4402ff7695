"""Where every node goes: from a part per node to global ids.

Parts that come in no order are numbered so that consecutive ones are neighbours. N nodes of all types numbered
together, P parts. Global ids are contiguous by (node type, part).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_tools.partition.methods.metis import metis_partition
from data_tools.partition.pair_graph import PairGraph, add_duplicates, from_pairs
from data_tools.partition.source import Source


@dataclass(frozen=True, slots=True)
class Layout:
    """An assignment of all nodes to P parts and the global ids that follow from it."""

    num_parts: int
    part: np.ndarray  # [N] int32
    global_id: np.ndarray  # [N] int64
    offsets: tuple[np.ndarray, ...]  # per type [P + 1] int64, absolute
    rows: tuple[np.ndarray, ...]  # per type [N_type] int64: row ids by (part, row)

    def local_bases(self, part: int) -> np.ndarray:
        """First local index [T + 1] of each type within a part, types concatenated."""
        sizes = [offsets[part + 1] - offsets[part] for offsets in self.offsets]
        return np.r_[0, np.cumsum(sizes, dtype=np.int64)]


def make_layout(source: Source, part: np.ndarray, num_parts: int) -> Layout:
    """Number the nodes of a source globally for an assignment ``part`` [N]."""
    global_id = np.empty(source.num_nodes, np.int64)
    offsets, rows = [], []
    for node_type in source.types:
        mine = part[node_type.base : node_type.base + node_type.num_nodes]
        order = np.argsort(mine, kind="stable")
        sizes = np.bincount(mine, minlength=num_parts)
        offsets.append(node_type.base + np.r_[0, np.cumsum(sizes)].astype(np.int64))
        rows.append(order.astype(np.int64))
        global_id[node_type.base + order] = node_type.base + np.arange(node_type.num_nodes)
    return Layout(num_parts, part.astype(np.int32), global_id, tuple(offsets), tuple(rows))


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
