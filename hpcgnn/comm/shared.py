"""Shares memory between the ranks of a node: one copy a node of rows that come from all ranks.

A ranks' arrays, R ranks. The copy is an MPI-3 shared-memory window of the node's ranks; between nodes the first rank
of each broadcasts what its own ranks have written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcgnn.comm.exchange import MAX_BYTES
from hpcgnn.comm.memory import free_bytes
from hpcgnn.comm.world import World

ALIGNMENT = 8
BACKING = Path("/dev/shm")  # where Linux keeps shared memory


class SharedRows:
    """Rows of all ranks, of which the ranks of a node share one copy of ``num_bytes`` bytes. Collective to create and
    to close. arrays: the rows of all ranks one behind the other, read-only."""

    def __init__(self, world: World, pieces: list[np.ndarray], node_size: int = 0, max_bytes: int = MAX_BYTES):
        """pieces [n, ...]: this rank's rows of every array, of one dtype and width on all ranks. node_size: so many
        ranks count as a node; 0: all ranks that can share memory. max_bytes: of one broadcast.

        Raises ValueError, on all ranks, where a node has no room for the copy.
        """
        self._node: Any = world.mpi.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank)
        if node_size:
            whole, self._node = self._node, self._node.Split(world.rank // node_size)
            whole.Free()
        counts = world.allgather_array(np.array([len(piece) for piece in pieces], np.int64))  # [R, A]
        width = np.array([piece.dtype.itemsize * int(np.prod(piece.shape[1:], dtype=np.int64)) for piece in pieces])
        size = counts.sum(axis=0) * width
        padded = -(-size // ALIGNMENT) * ALIGNMENT
        start = np.cumsum(padded) - padded
        self.num_bytes = int(padded.sum())
        self._allocate(world)
        begin = start + (np.cumsum(counts, axis=0) - counts) * width  # [R, A]
        for piece, at in zip(pieces, begin[world.rank], strict=True):
            raw = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
            self._memory[at : at + len(raw)] = raw
        self._meet()
        self._spread(world, begin, begin + counts * width, max_bytes)
        self._meet()
        self._memory.flags.writeable = False
        self._spans = list(zip(start.tolist(), (start + size).tolist(), strict=True))
        self.arrays = [
            self._memory[first:last].view(piece.dtype).reshape(-1, *piece.shape[1:])
            for piece, (first, last) in zip(pieces, self._spans, strict=True)
        ]

    def span(self, first: int, last: int) -> np.ndarray:
        """Return the arrays first to last - 1, of one dtype of 8 bytes a row, as one array."""
        begin, end = self._spans[first][0], self._spans[last - 1][1]
        return self._memory[begin:end].view(self.arrays[first].dtype)

    def _allocate(self, world: World) -> None:
        """Collective. Make the window; the first rank of a node holds all of it."""
        own_bytes, error = (max(1, self.num_bytes) if self._node.rank == 0 else 0), None
        try:
            self._window = MPI.Win.Allocate_shared(own_bytes, 1, comm=self._node)
        except MPI.Exception as caught:
            error = ValueError(f"no shared memory of {self.num_bytes} bytes on {world.host}: {caught}")
        world.agree(error, "share memory")
        buffer, _ = self._window.Shared_query(0)
        self._memory = np.frombuffer(buffer, np.uint8)[: self.num_bytes]  # type: ignore[call-overload]
        self._window.Lock_all(MPI.MODE_NOCHECK)

    def _meet(self) -> None:
        """Collective. Make what ranks of the node have written visible to its other ranks."""
        self._window.Sync()
        self._node.Barrier()
        self._window.Sync()

    def _spread(self, world: World, begin: np.ndarray, end: np.ndarray, max_bytes: int) -> None:
        """Collective. Broadcast the rows that the ranks of one node wrote to the other nodes."""
        head = self._node.bcast(world.rank)
        head_of = np.array(world.allgather(head))
        heads = world.mpi.Split(0 if head == world.rank else MPI.UNDEFINED, world.rank)
        if heads == MPI.COMM_NULL:
            return
        roots = np.searchsorted(np.unique(head_of), head_of)
        if heads.size > 1:
            for root, first, last in zip(roots, begin, end, strict=True):
                for lower, upper in zip(first.tolist(), last.tolist(), strict=True):
                    for at in range(lower, upper, max_bytes):
                        heads.Bcast([self._memory[at : min(at + max_bytes, upper)], MPI.BYTE], int(root))
        heads.Free()

    def close(self) -> None:
        """Collective. Free the memory; the arrays must not be used any more."""
        self._window.Unlock_all()
        self.arrays, self._memory = [], np.empty(0, np.uint8)
        self._window.Free()
        self._node.Free()


def free_memory(world: World) -> int:
    """Collective. Return the bytes that every node has free for sharing, in this job."""
    free = [free_bytes()]
    if BACKING.is_dir():
        space = os.statvfs(BACKING)
        free.append(space.f_bavail * space.f_frsize)
    return int(world.reduce_array(np.array([min(free)], np.int64), "min")[0])
