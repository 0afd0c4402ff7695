"""Write the edges of one relation into part files, grouped by the node that owns them (CSC, or CSR for out-edges).

A column is first scattered, in slabs of the graph file's order, into *buckets*, runs of nodes in their final place.
Then every bucket is sorted by node where it lies. So memory is bounded by a slab, however large a part or column. n
nodes of the owning type in a group of parts, numbered by global id; B buckets.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import h5py
import numpy as np

from data_tools.graph import source as graph_source
from data_tools.graph.source import EdgeType, Source
from data_tools.partition.layout import PartLayout
from data_tools.partition.temporal import Column, PartGroup, endpoint_ids
from hpcgnn.graph import durable, files


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of a relation's edges: the endpoints ``side`` (dst: in-edges, src: out-edges), as far as they lie in a
    group of parts. offsets [G + 1]: first node of each part, and the end."""

    source: Source
    layout: PartLayout
    relation: EdgeType
    side: str
    first_id: int
    offsets: np.ndarray

    @classmethod
    def of(cls, source: Source, layout: PartLayout, group: PartGroup, relation: EdgeType, side: str) -> Owners:
        """Find the owners in a group of parts."""
        owners = relation.dst_type if side == "dst" else relation.src_type
        offsets = layout.offsets[owners.index][group.first : group.first + len(group.files) + 1]
        return cls(source, layout, relation, side, int(offsets[0]), offsets - offsets[0])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read the owning nodes [stop - start] of some rows; outside 0 .. n - 1 where another group has them."""
        return endpoint_ids(self.source, self.layout, self.relation, self.side, start, stop) - self.first_id

    def slabs(self, row_bytes: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first row, owning nodes of a slab)."""
        size = max(16, row_bytes)
        for start, stop in self.source.edge_slabs(self.relation, size):
            yield start, self.read(start, stop)

    def indptr(self) -> np.ndarray:
        """Find the first edge of every node in the group, and the end [n + 1] int64."""
        degree = np.zeros(int(self.offsets[-1]) + 1, np.int64)
        for _, owner in self.slabs(8):
            np.add.at(degree, owner[(owner >= 0) & (owner < len(degree) - 1)] + 1, 1)
        return np.cumsum(degree)


def bucket_starts(indptr: np.ndarray, offsets: np.ndarray, limit: int) -> np.ndarray:
    """Find the first node of every bucket, and n [B + 1]. No bucket spans parts; with several nodes it has at most 2 *
    limit edges, and one node may have any number."""
    num_nodes = len(indptr) - 1
    # Counted from the part's first edge: what a file looks like must not depend on the parts written beside it.
    stretch = (indptr[:-1] - np.repeat(indptr[offsets[:-1]], np.diff(offsets))) // limit
    large = np.flatnonzero(np.diff(indptr) > limit)
    starts = (offsets, np.flatnonzero(np.diff(stretch)) + 1, large, large + 1, [0, num_nodes])
    return np.unique(np.concatenate(starts))


def write_csc(
    source: Source,
    layout: PartLayout,
    group: PartGroup,
    relation: EdgeType,
    side: str,
    path: str,
    columns: list[Column],
) -> None:
    """Write indptr and columns of a relation below ``path`` in every file of the group."""
    owners = Owners.of(source, layout, group, relation, side)
    indptr = owners.indptr()
    limit = max(1, graph_source.SLAB_BYTES // max(8, *(column.row_bytes for column in columns)))
    starts = bucket_starts(indptr, owners.offsets, limit)
    targets = CscTargets(group, owners.offsets, indptr, starts)
    targets.write_indptr(path)
    folder = pathlib.Path(group.files[0].filename).parent
    with durable.naming_disk(folder), tempfile.TemporaryFile(dir=folder) as keys:
        targets.spool_owners(owners, keys)
        for column in columns:
            targets.scatter(owners, path, column)
        targets.sort(path, [column.name for column in columns], keys)
    group.flush()


@dataclass(frozen=True, slots=True)
class CscTargets:
    """The place of every edge: buckets of nodes starts[b] .. starts[b + 1] - 1 in the files of a group of parts."""

    group: PartGroup
    offsets: np.ndarray  # [G + 1] first node of each part
    indptr: np.ndarray  # [n + 1]
    starts: np.ndarray  # [B + 1]

    def write_indptr(self, path: str) -> None:
        """Write the index pointer of every part."""
        for index, file in enumerate(self.group.files):
            values = self.indptr[self.offsets[index] : self.offsets[index + 1] + 1]
            parent = file.require_group(path)
            # With many relations most have an edge at few nodes only, and their indptr would be most of the set.
            sparse = values[-1] - values[0] < len(values) - 1
            packed = {"chunks": (min(len(values), 1 << 17),), "compression": "gzip", "compression_opts": 1}
            parent.create_dataset("indptr", data=values - values[0], **(packed if sparse else {"chunks": True}))

    def pieces(self, owners: Owners, row_bytes: int) -> Iterator[tuple[int, int, list[tuple[int, int, np.ndarray]]]]:
        """Yield of every slab its first row, its length, and where its rows go: (bucket, first edge in the group, rows
        of the slab)."""
        cursor = self.indptr[self.starts[:-1]].copy()
        for start, owner in owners.slabs(row_bytes):
            bucket = np.searchsorted(self.starts, owner, side="right") - 1
            bucket[bucket < 0] = len(cursor)  # of another group
            order = stable_order(bucket, len(cursor))
            bounds = np.searchsorted(bucket[order], np.arange(len(self.starts)))
            moves = []
            for index in np.flatnonzero(np.diff(bounds)):
                rows = order[bounds[index] : bounds[index + 1]]
                moves.append((int(index), int(cursor[index]), rows))
                cursor[index] += len(rows)
            yield start, len(owner), moves

    def spool_owners(self, owners: Owners, keys: IO[bytes]) -> None:
        """Write the owning node of every edge, int64, bucket after bucket, to a scratch file."""
        for start, length, moves in self.pieces(owners, 8):
            owner = owners.read(start, start + length)
            for _, begin, rows in moves:
                durable.write_at(keys.fileno(), owner[rows], 8 * begin)

    def scatter(self, owners: Owners, path: str, column: Column) -> None:
        """Create a column in every file and fill its buckets, in the order of the rows within each."""
        first = self.indptr[self.offsets]
        targets = [
            files.create_column(file[path], column.name, int(count), column.tail, column.dtype)
            for file, count in zip(self.group.files, np.diff(first), strict=True)
        ]
        part = self.part_of_bucket()
        for start, length, moves in self.pieces(owners, column.row_bytes):
            slab = column.read(start, start + length)
            for bucket, begin, rows in moves:
                begin -= int(first[part[bucket]])
                targets[part[bucket]][begin : begin + len(rows)] = slab[rows]
        self.group.flush()

    def part_of_bucket(self) -> np.ndarray:
        """Find the part of every bucket [B], relative to the group."""
        return np.searchsorted(self.offsets, self.starts[:-1], side="right") - 1

    def sort(self, path: str, names: list[str], keys: IO[bytes]) -> None:
        """Sort the edges of every bucket by node; within a node they stay in the order of their rows."""
        part, edges = self.part_of_bucket(), self.indptr[self.starts]
        for bucket in np.flatnonzero((np.diff(edges) > 1) & (np.diff(self.starts) > 1)):
            begin, end = int(edges[bucket]), int(edges[bucket + 1])
            owner = np.frombuffer(os.pread(keys.fileno(), 8 * (end - begin), 8 * begin), np.int64)
            order = stable_order(owner - self.starts[bucket], int(self.starts[bucket + 1] - self.starts[bucket]))
            first = int(self.indptr[self.offsets[part[bucket]]])
            for name in names:
                permute(self.group.files[part[bucket]][path][name], begin - first, end - first, order)


def stable_order(keys: np.ndarray, largest: int) -> np.ndarray:
    """Find the stable order that sorts keys [k] from 0 to ``largest``; NumPy sorts 16 bits much faster than 64."""
    return np.argsort(keys.astype(np.uint16) if largest < 1 << 16 else keys, kind="stable")


def permute(dataset: h5py.Dataset, begin: int, end: int, order: np.ndarray) -> None:
    """Put rows begin .. end - 1 into another order."""
    dataset[begin:end] = dataset[begin:end][order]
