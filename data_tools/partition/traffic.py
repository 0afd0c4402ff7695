"""Counts the edges and nodes that the parts of a set need of each other, from the part files.

P parts, R ranks, T node types, N nodes of all types by global id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from data_tools.graph.book import SetBook
from data_tools.partition.access import access_probability, seed_probability
from data_tools.partition.layout import PartLayout, PartOfId
from data_tools.partition.quality import Measured, halo_keys, rank_of_parts
from data_tools.team import Team


@dataclass(frozen=True, slots=True)
class Traffic:
    """edges [P, P]: by part of src and of dst; halo [P, P]: nodes of the second part that edges of the first need."""

    edges: np.ndarray
    halo: np.ndarray


def read_traffic(book: SetBook) -> Traffic:
    """Count the edges and halos of all parts."""
    num_parts, offsets = book.num_parts, tuple(node_type.offsets for node_type in book.types)
    part_of: Any = PartOfId(offsets)  # indexed as an array is
    layout = PartLayout(num_parts, part_of, np.empty(0, np.int64), offsets)
    measured = Measured(Team(), book, layout, range(num_parts))
    edges = sum((measured.part_pairs(relation) for relation in book.relations), np.zeros((num_parts, num_parts), int))
    node, part = np.divmod(halo_keys(measured, book.kind == "temporal", (0, 1)), num_parts)
    halo = np.bincount(part * num_parts + part_of[node], minlength=num_parts**2)
    return Traffic(edges, halo.reshape(num_parts, num_parts))


def expected_rows(book: SetBook, num_ranks: int, fanouts: tuple[int, ...], batch_size: int) -> np.ndarray:
    """Compute the expected rows [R, T] of other ranks' nodes that a rank fetches in a training step of a static graph,
    by type. The rank has the seeds of its block of consecutive parts."""
    rank = rank_of_parts(book.num_parts, num_ranks)[book.part_of_nodes()]
    seeds = seed_probability(book, rank, range(num_ranks), batch_size)
    reached = access_probability(book, seeds, fanouts)
    reached[rank == np.arange(num_ranks)[:, None]] = 0
    return np.add.reduceat(reached, [node_type.base for node_type in book.types], axis=1)
