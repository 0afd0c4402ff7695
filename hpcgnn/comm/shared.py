"""Shares memory between the ranks of a machine, by MPI-3 shared-memory windows: ranks read rows there in place of
messages.

A arrays of a rank, R ranks of the world. ``MachineRows``: one copy a machine of the rows of all ranks; the first rank
of each machine broadcasts what its ranks have written to the other machines. ``MachineColumns``: one table a machine of
the rows of its own ranks.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.group import MAX_BYTES, DistributedError
from hpcgnn.comm.ledger import Ledger
from hpcgnn.comm.memory import free_bytes
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.world import World

BACKING = Path("/dev/shm")  # where Linux keeps shared memory
Shape = tuple[tuple[int, ...], torch.dtype]
SPARE = 64 << 20  # bytes of it that are left to others
MOST_UNDER_WAY = 32  # broadcasts


class MachineMemory:
    """Memory that the ranks of a machine share. Collective to create and to close.

    machine: their communicator; bytes [num_bytes] uint8. The memory is gone when the last of its processes is."""

    def __init__(self, world: World, machine: Any, num_bytes: int):
        """machine: of ``world.machine``; num_bytes: the same on all its ranks. Raises DistributedError where one
        refuses."""
        self.machine = machine
        # All at rank 0, so that it is one piece; an empty window would have no address.
        own_bytes, error = (max(1, num_bytes) if machine.rank == 0 else 0), None
        try:
            self._window = MPI.Win.Allocate_shared(own_bytes, 1, comm=self.machine)
        except MPI.Exception as caught:
            error = ValueError(f"no shared memory of {num_bytes} bytes on {world.host}: {caught}")
        try:
            world.agree(error, "share memory")
        except DistributedError:
            if machine.allreduce(error is None, MPI.LAND):  # another machine refused
                self._window.Free()
            raise
        buffer, _ = self._window.Shared_query(0)
        self.bytes = np.frombuffer(buffer, np.uint8)[:num_bytes]  # type: ignore[call-overload]
        self._window.Lock_all(MPI.MODE_NOCHECK)  # Sync needs an access epoch: one, as long as the memory lasts
        if isinstance(machine, Ledger):
            machine.remember_window(self._window)

    def meet(self) -> None:
        """Collective. Make what ranks of the machine have written visible to its other ranks."""
        self._window.Sync()  # ends this rank's writes; after the barrier: begins its reads
        self.machine.Barrier()
        self._window.Sync()

    def close(self) -> None:
        """Collective. Free the memory; nothing may refer to it any more."""
        self._window.Unlock_all()
        self.bytes = np.empty(0, np.uint8)
        self._window.Free()
        self.machine.Free()


class MachineRows:
    """Rows of all ranks, of which the ranks of a machine share one copy of ``num_bytes`` bytes. Collective to create
    and to close. arrays: the rows of all ranks one behind the other, read-only."""

    def __init__(self, world: World, pieces: list[np.ndarray], max_bytes: int = MAX_BYTES):
        """pieces [n, ...]: this rank's rows of every array, of one dtype and width on all ranks. max_bytes: of one
        broadcast.

        Raises DistributedError where a machine has no room for the copy.
        """
        counts = world.allgather_array(np.array([len(piece) for piece in pieces], np.int64))  # [R, A]
        width = np.array([_row_bytes(piece.dtype, piece.shape[1:]) for piece in pieces])
        size = counts.sum(axis=0) * width
        start, self.num_bytes = _places(size, 8)
        self._shared = MachineMemory(world, world.machine(), self.num_bytes)
        begin = start + (np.cumsum(counts, axis=0) - counts) * width  # [R, A]
        for piece, at in zip(pieces, begin[world.rank], strict=True):
            raw = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
            self._shared.bytes[at : at + len(raw)] = raw
        self._shared.meet()
        self._spread(world, begin, begin + counts * width, max_bytes)
        self._shared.meet()
        self._shared.bytes.flags.writeable = False
        self._spans = list(zip(start.tolist(), (start + size).tolist(), strict=True))
        self.arrays = [
            self._shared.bytes[first:last].view(piece.dtype).reshape(-1, *piece.shape[1:])
            for piece, (first, last) in zip(pieces, self._spans, strict=True)
        ]

    def span(self, first: int, last: int) -> np.ndarray:
        """Return the arrays first to last - 1, of one dtype of 8 bytes a row, as one array."""
        begin, end = self._spans[first][0], self._spans[last - 1][1]
        return self._shared.bytes[begin:end].view(self.arrays[first].dtype)

    def _spread(self, world: World, begin: np.ndarray, end: np.ndarray, max_bytes: int) -> None:
        """Collective. Broadcast the rows that the ranks of one machine wrote to the other machines."""
        memory = self._shared.bytes
        head = self._shared.machine.bcast(world.rank)
        head_of = np.array(world.allgather(head))
        heads = world.mpi.Split(0 if head == world.rank else MPI.UNDEFINED, world.rank)
        if heads == MPI.COMM_NULL:
            return
        if heads.size > 1:
            roots = np.searchsorted(np.unique(head_of), head_of)
            first = np.flatnonzero(np.diff(roots, prepend=-1))  # of consecutive ranks of a machine, whose rows adjoin
            last = np.append(first[1:], len(roots)) - 1
            under_way: list[MPI.Request] = []  # begun in one order on all heads: MPI matches collectives by it
            for root, lowers, uppers in zip(roots[first].tolist(), begin[first], end[last], strict=True):
                for lower, upper in zip(lowers.tolist(), uppers.tolist(), strict=True):
                    for at in range(lower, upper, max_bytes):
                        under_way.append(heads.Ibcast([memory[at : min(at + max_bytes, upper)], MPI.BYTE], root))
                        if len(under_way) == MOST_UNDER_WAY:
                            under_way.pop(0).Wait()
            MPI.Request.Waitall(under_way)
        heads.Free()

    def close(self) -> None:
        """Collective. Free the memory; the arrays must not be used any more."""
        self.arrays = []
        self._shared.close()


@dataclass(frozen=True, slots=True)
class MachineTable:
    """The rows [N, ...] of all ranks of this machine, or what reads them; first [R] int64: the row of the table at
    which a rank's rows begin, -1 for the ranks of other machines."""

    table: torch.Tensor | Any
    first: np.ndarray


class MachineColumns:
    """Columns of rows in one table per machine: each of its ranks writes its own rows and reads the rows of all.
    Collective to create, to publish and to close.

    own: this rank's rows [n, ...] of every column, to be filled before ``publish``; tables: of the machine, by column;
    memory: all of it, uint8."""

    def __init__(self, world: World, machine: Any, shapes: Sequence[Shape]):
        """shapes: of this rank's rows [n, ...] of every column, of one dtype and width on all ranks. Raises
        DistributedError where a machine refuses."""
        lengths = machine.allgather([shape[0] for shape, _ in shapes])
        counts = np.array(lengths, np.int64).reshape(machine.size, len(shapes))
        members = np.array(machine.allgather(world.rank))
        width = np.array([_row_bytes(dtype, shape[1:]) for shape, dtype in shapes], np.int64)
        start, num_bytes = _places(counts.sum(axis=0) * width, 64)
        self._shared = MachineMemory(world, machine, num_bytes)
        below = np.cumsum(counts, axis=0) - counts  # [ranks of the machine, A]
        self.tables, self.own, self.memory = [], [], torch.from_numpy(self._shared.bytes)
        for column, (shape, dtype) in enumerate(shapes):
            total, at = int(counts[:, column].sum()), int(start[column])
            raw = self._shared.bytes[at : at + total * int(width[column])]
            first = np.full(world.size, -1, np.int64)
            first[members] = below[:, column]
            table = torch.empty((total, *shape[1:]), dtype=dtype)
            if len(raw):
                table = torch.from_numpy(raw).view(dtype).view(table.shape)
            self.tables.append(MachineTable(table, first))
            own = int(below[machine.rank, column])
            self.own.append(table[own : own + shape[0]])

    def publish(self) -> None:
        """Collective. Let the other ranks of the machine see what this rank has written."""
        self._shared.meet()

    def close(self) -> None:
        """Collective. Free the memory; the tables must not be used any more."""
        self.tables, self.own, self.memory = [], [], torch.empty(0, dtype=torch.uint8)
        self._shared.close()


def share_columns(world: World, shapes: Sequence[Shape]) -> MachineColumns | None:
    """Collective. Make MachineColumns; None, on all ranks, where a machine lacks the memory or refuses it: then rows
    travel in messages."""
    machine = world.machine()
    needed = machine.allreduce(sum(shape[0] * _row_bytes(dtype, shape[1:]) for shape, dtype in shapes))
    has_room = needed + SPARE <= free_memory(world) // world.num_groups  # groups of a machine share at the same time
    if not world.any(not has_room):
        with contextlib.suppress(DistributedError):
            return MachineColumns(world, machine, shapes)
    machine.Free()
    return None


def has_neighbors(world: World) -> bool:
    """Collective. Say whether some machine has several ranks."""
    machine = world.machine()
    size = machine.size
    machine.Free()
    return world.any(size > 1)


def free_memory(world: World) -> int:
    """Collective. Return the bytes that every machine has free for sharing, in this job."""
    free = [free_bytes()]
    if BACKING.is_dir():
        space = os.statvfs(BACKING)
        free.append(space.f_bavail * space.f_frsize)
    return int(world.reduce_array(np.array([min(free)], np.int64), "min")[0])


def _row_bytes(dtype: np.dtype | torch.dtype, shape: Sequence[int]) -> int:
    return dtype.itemsize * math.prod(shape)


def _places(sizes: np.ndarray, alignment: int) -> tuple[np.ndarray, int]:
    """Return the first byte of each of several arrays of these sizes, laid one behind the other, and their total."""
    padded = -(-sizes // alignment) * alignment
    return np.cumsum(padded) - padded, int(padded.sum())
