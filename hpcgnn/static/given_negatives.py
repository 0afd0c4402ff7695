"""Reads given negatives, which come from a file that names nodes by their original ids: pairs for a whole split, or
destinations for each of its edges. Rank 0 reads, a piece at a time.

s seeds of this rank in a split, k negatives of each; m pairs of this rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.negative_file import (
    NegativeFile,
    Wanted,
    file_of,
    is_beside_graph,
    is_none,
    open_negatives,
    read_pairs,
)
from hpcgnn.graph.original_ids import OriginalIds
from hpcgnn.graph.partition import GraphPartition, Relation
from hpcgnn.static.sampling.seeds import SeedPool

AT_ONCE = 1 << 22  # negatives that are looked up at once


def original_ids(partition: GraphPartition, kind: int) -> np.ndarray:
    """Return the original ids [n] of this rank's nodes of a type, or their rows where the graph has none."""
    return partition.columns[kind].get("id", rows_of(partition, kind))


def rows_of(partition: GraphPartition, kind: int) -> np.ndarray:
    """Return the rows in the graph file [n] of this rank's nodes of a type."""
    return partition.flat_row[partition.of_type(kind)] - partition.book.type_base()[kind]


class NegativePairs:
    """Collective to create. This rank's share of the pairs of a split that are no edges: src, dst [m] global ids."""

    def __init__(self, path: str, split: str, relation: Relation, partition: GraphPartition, world: World):
        """Raises DistributedError, on all ranks, for a file that cannot be used."""
        path, found = file_of(path, split), []
        with together(world, "read the negatives"):
            pairs = read_pairs(path, _wanted(relation, split, partition)) if world.rank == 0 else None
        for place, kind in enumerate((relation.src_type, relation.dst_type)):
            names = None if pairs is None else pairs[:, place]
            found.append(_find(path, names, _names_in(path, kind, partition, world), world))
        first, last = (rank * len(found[0]) // world.size for rank in (world.rank, world.rank + 1))
        self.src, self.dst = (ids[first:last] for ids in found)


def listed_negatives(
    path: str, pool: SeedPool, relation: Relation, partition: GraphPartition, world: World
) -> tuple[np.ndarray, int]:  # fmt: skip
    """Collective. Find the negatives [s, k] int64, global ids, of a split's seeds, and count the lines of the file that
    are of no seed. Raises DistributedError, on all ranks, for a file that cannot be used, or that lacks an edge of the
    split."""
    path = file_of(path, pool.name)
    rows, places = (world.gather_rows(column) for column in (pool.columns["row"], pool.place))
    file: Any = None
    lines = np.empty(0, np.int64)
    with together(world, "read the negatives"):
        if world.rank == 0:
            file = open_negatives(path, _wanted(relation, pool.name, partition))
            lines = _lines_of(file, rows[np.argsort(places)], relation)
    ids = _names_in(path, relation.dst_type, partition, world)
    width, listed = world.broadcast(None if file is None else (file.per_event, file.num_listed))
    negatives, size = np.empty((len(pool.place), width), np.int64), max(1, AT_ONCE // width)
    for first in range(0, pool.total, size):
        world.working(f"read {path}", first)
        names = None
        with together(world, "read the negatives"):
            if file is not None:
                names = _read(file, lines[first : first + size])
        found = _find(path, None if names is None else names.ravel(), ids, world)
        own = (pool.place >= first) & (pool.place < first + size)
        negatives[own] = found.reshape(-1, width)[pool.place[own] - first]
    return negatives, listed - pool.total


def _lines_of(file: NegativeFile, rows: np.ndarray, relation: Relation) -> np.ndarray:
    """Return the lines of the file that list edges with these rows. Raises ValueError."""
    if file.row is None:
        raise ValueError(f"{file.path}: negatives of edges are listed by row, in .npz or .h5: write 'row' [m]")
    order = np.argsort(file.row)
    place = np.minimum(np.searchsorted(file.row, rows, sorter=order), len(order) - 1)
    lacking = rows[file.row[order[place]] != rows]
    if len(lacking):
        raise ValueError(
            f"{file.path}: row {lacking[0]} of {relation.name} has no negatives ({len(lacking)} such edges of the "
            "split): list every edge of the split"
        )
    return order[place]


def _read(file: NegativeFile, lines: np.ndarray) -> np.ndarray:
    """Read lines in one piece of the file, which is nearly in order of row. Raises ValueError for short lines."""
    first = int(lines.min())
    names = file.read(first, int(lines.max()) + 1)[lines - first]
    if (short := is_none(names).any(axis=1)).any():
        raise ValueError(
            f"{file.path}: line {lines[short][0]} has fewer negatives than others: list as many for every edge"
        )
    return names


def _wanted(relation: Relation, split: str, partition: GraphPartition) -> Wanted:
    src, dst = np.diff(partition.book.type_base())[[relation.src_type, relation.dst_type]].tolist()
    return Wanted(relation.name, split, (src, dst, relation.num_edges))


def _names_in(path: str, kind: int, partition: GraphPartition, world: World) -> OriginalIds:
    """Collective. Find how a file names the nodes of a type: by original ids, or by rows beside a graph file."""
    by_row = world.broadcast(world.rank == 0 and is_beside_graph(path))
    known = rows_of(partition, kind) if by_row else original_ids(partition, kind)
    return OriginalIds(partition.book, partition.types[kind], known, world)


def _find(path: str, names: np.ndarray | None, ids: OriginalIds, world: World) -> np.ndarray:
    """Collective. Find the global ids of the names that rank 0 gives; all ranks get them. Raises DistributedError for
    an unknown name."""
    found = ids.find_for_first(names)
    with together(world, "look up the negatives"):
        if names is not None and (found < 0).any():
            unknown = names[np.flatnonzero(found < 0)[0]]
            name = unknown.decode() if isinstance(unknown, bytes) else unknown
            raise ValueError(f"{path}: {name!s} is no {ids.node_type} of this graph: write ids of its source")
    return world.broadcast(found)
