"""Reads given negatives, which come from a file that names nodes by their original ids: pairs for a whole split, or
destinations for each of its edges. Rank 0 reads, a piece at a time, and each rank receives its share alone.

s seeds of this rank in a split, k negatives of each; m pairs of this rank.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.comm.exchange import Channel, exchange_columns
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

    def __init__(
        self, path: str, split: str, relation: Relation, partition: GraphPartition, world: World, channel: Channel
    ):
        """Raises DistributedError, on all ranks, for a file that cannot be used."""
        path, pairs = file_of(path, split), np.empty((0, 2), np.int64)
        with together(world, "read the negatives"):
            if world.rank == 0:
                pairs = read_pairs(path, _wanted(relation, split, partition))
        names = [_names_in(path, kind, partition, world) for kind in (relation.src_type, relation.dst_type)]
        total, own = world.broadcast(len(pairs)), []
        for first in range(0, total, AT_ONCE):
            world.working(f"read {path}", first)
            piece = pairs[first : first + AT_ONCE]
            found = np.column_stack([_find(path, piece[:, end], ids, world) for end, ids in enumerate(names)])
            # Rank r of R has the pairs from r * total // R on.
            owner = ((first + 1 + np.arange(len(piece))) * world.size - 1) // total
            own += exchange_columns([found], owner, channel)
        self.src, self.dst = np.concatenate([np.empty((0, 2), np.int64), *own]).T


def listed_negatives(
    path: str, pool: SeedPool, relation: Relation, partition: GraphPartition, world: World, channel: Channel
) -> tuple[np.ndarray, int]:  # fmt: skip
    """Collective. Find the negatives [s, k] int64, global ids, of a split's seeds, and count the lines of the file that
    are of no seed. Raises DistributedError, on all ranks, for a file that cannot be used, or that lacks an edge of the
    split."""
    path = file_of(path, pool.name)
    seeds = np.column_stack([pool.columns["row"], np.full(len(pool.place), world.rank), np.arange(len(pool.place))])
    seeds, file = world.gather_rows(seeds), None  # row, rank and place there
    blocks: list[np.ndarray] = []
    with together(world, "read the negatives"):
        if world.rank == 0:
            file = open_negatives(path, _wanted(relation, pool.name, partition))
            lines = _lines_of(file, seeds[:, 0], relation)
            blocks = _blocks(lines, max(1, AT_ONCE // file.per_event))
    ids = _names_in(path, relation.dst_type, partition, world)
    facts = None if file is None else (file.per_event, file.num_listed, len(blocks))
    width, listed, num_blocks = world.broadcast(facts)
    negatives = np.empty((len(pool.place), width), np.int64)
    for number in range(num_blocks):
        world.working(f"read {path}", number)
        names, some = np.empty((0, width), np.int64), np.empty((0, 3), np.int64)
        with together(world, "read the negatives"):
            if file is not None:
                names, some = _read(file, lines[blocks[number]]), seeds[blocks[number]]
        found = _find(path, names.ravel(), ids, world).reshape(-1, width)
        found, place = exchange_columns([found, some[:, 2]], some[:, 1], channel)
        negatives[place] = found
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
            f"{file.path}: row {lacking.min()} of {relation.name} has no negatives ({len(lacking)} such edges of the "
            "split): list every edge of the split"
        )
    return order[place]


def _blocks(lines: np.ndarray, size: int) -> list[np.ndarray]:
    """Divide the places of lines [s] among the blocks of ``size`` lines of a file, in order of their lines: so the file
    is read from its beginning to its end, whatever order its rows have."""
    order = np.argsort(lines)
    return np.split(order, 1 + np.flatnonzero(np.diff(lines[order] // size))) if len(lines) else []


def _read(file: NegativeFile, lines: np.ndarray) -> np.ndarray:
    """Read lines, which increase, in one piece of the file. Raises ValueError for short lines."""
    first = int(lines[0])
    names = file.read(first, int(lines[-1]) + 1)[lines - first]
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


def _find(path: str, names: np.ndarray, ids: OriginalIds, world: World) -> np.ndarray:
    """Collective. Find the global ids [n] of the names [n] that rank 0 gives; the other ranks get none. Raises
    DistributedError for an unknown name."""
    found = ids.find_for_first(names)
    with together(world, "look up the negatives"):
        if found is None:
            return np.empty(0, np.int64)
        if (found < 0).any():
            unknown = names[np.flatnonzero(found < 0)[0]]
            name = unknown.decode() if isinstance(unknown, bytes) else unknown
            raise ValueError(f"{path}: {name!s} is no {ids.node_type} of this graph: write ids of its source")
    return found
