"""The text format of graphs that METIS and ParMETIS read (METIS manual, 4.1.1), and the assignments they write.

N nodes of all types numbered together, C constraints.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator

import numpy as np

from data_tools.partition.blocks import run_starts
from data_tools.partition.pair_graph import PairGraph
from data_tools.partition.spool import RowGraph

LINE_ENTRIES = 1 << 20  # of adjacency that become text at once


Slab = tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]


def pair_slabs(graph: PairGraph) -> Iterator[Slab]:
    """Yield runs of the nodes of a graph: (nodes [n], (indptr [n + 1], neighbor, tie))."""
    for first, stop in itertools.pairwise(run_starts(graph.indptr, LINE_ENTRIES).tolist()):
        own = slice(int(graph.indptr[first]), int(graph.indptr[stop]))
        indptr = graph.indptr[first : stop + 1] - own.start
        yield np.arange(first, stop), (indptr, graph.neighbor[own], graph.weight[own])


def row_slabs(graph: RowGraph) -> Iterator[Slab]:
    """Yield runs of the nodes of a graph on disk, whose rows are the nodes, as `pair_slabs` does."""
    for first, stop in itertools.pairwise(run_starts(graph.indptr, LINE_ENTRIES).tolist()):
        yield np.arange(first, stop), graph.slab(first, stop)


def write_metis(path: str | os.PathLike, num_pairs: int, slabs: Iterable[Slab], weights: np.ndarray) -> None:
    """Write a graph given in slabs of nodes in order, as pair_slabs yields them; weights [N, C] of its nodes."""
    constraints = "" if weights.shape[1] == 1 else f" {weights.shape[1]}"
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{len(weights)} {num_pairs} 11{constraints}\n")
        for nodes, (indptr, neighbor, tie) in slabs:
            entries = np.stack([neighbor + 1, tie], axis=1)  # METIS numbers from 1
            for row, node in enumerate(nodes.tolist()):
                values = [*weights[node].tolist(), *entries[indptr[row] : indptr[row + 1]].ravel().tolist()]
                file.write(" ".join(map(str, values)) + "\n")
