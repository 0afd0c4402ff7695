"""Ghosts: nodes of other ranks (or parts) that have edges to a rank's own nodes, and so are in its halo.

Of a node type, n own nodes and g ghosts; E edges of a relation into own nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcgnn.graph.book import Book


def is_remote(book: Book, rank: int, node_type: int, ids: np.ndarray) -> np.ndarray:
    """Tell which global ids of a node type belong to other ranks, bool [n]."""
    starts = book.of_type(node_type).starts
    return (ids < starts[rank]) | (ids >= starts[rank + 1])


def find_ghosts(
    book: Book, rank: int, sources: Sequence[tuple[int, np.ndarray, np.ndarray]]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Find the ghosts, and number the sources of all edges.

    sources: by relation, the source type, global ids [E] int64, and whether each is a ghost, bool [E]. Returns by node
    type the ghosts' global ids [g], increasing, and by relation the sources' rows [E] among [own nodes | ghosts].
    """
    ghosts, rows = [], []
    for node_type in range(len(book.node_types)):
        ids = [src[is_ghost] for src_type, src, is_ghost in sources if src_type == node_type]
        ghosts.append(np.unique(np.concatenate([np.empty(0, np.int64), *ids])))
    for src_type, src, is_ghost in sources:
        first, stop = book.of_type(src_type).starts[rank : rank + 2]
        row = src - first
        row[is_ghost] = stop - first + np.searchsorted(ghosts[src_type], src[is_ghost])
        rows.append(row)
    return ghosts, rows
