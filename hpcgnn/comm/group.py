"""Ranks that exchange NumPy arrays and agree on errors: what tools need of MPI. Loads no torch, which takes more memory
than a tool does.

R ranks.
"""

from __future__ import annotations

import math
import socket
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcgnn.comm.launch import launched_tasks

MAX_BYTES = 1 << 30
FORWARD_SECONDS = 0.2  # the launcher forwards a message before it kills everything


class DistributedError(RuntimeError):
    """One rank's error, raised on all ranks; ``user_error`` when the user's input caused it."""

    def __init__(self, message: str, user_error: bool):
        super().__init__(message)
        self.user_error = user_error


class Group:
    """Collective to create. Ranks with a communicator of their own. ``job``: the group of all ranks whose verdicts are
    one; max_bytes: of one round of an exchange."""

    def __init__(self, comm: MPI.Comm | None = None, max_bytes: int = MAX_BYTES):
        self._comm = self._whole = (comm or MPI.COMM_WORLD).Dup()
        self.rank, self.size, self.max_bytes = self._comm.rank, self._comm.size, max_bytes
        self.job, self.host = self, socket.gethostname()

    @staticmethod
    def check_singleton() -> None:
        """Refuse N copies of "rank 0 of 1": a launcher started several tasks, but MPI sees one rank.

        Raises ValueError.
        """
        if MPI.COMM_WORLD.size > 1:
            return
        variable, tasks = launched_tasks()
        if tasks > 1:
            raise ValueError(
                f"{variable}={tasks}, but MPI sees a single rank: the launcher and the MPI library of mpi4py "
                f"({MPI.Get_library_version().splitlines()[0]}) do not know each other; use the mpirun of that "
                "library, or srun with the --mpi plugin it supports (srun --mpi=list)"
            )

    @property
    def mpi(self) -> MPI.Comm:
        """The communicator, for other modules of ``comm``."""
        return self._comm

    def ranks_on_node(self) -> int:
        """Collective. Ranks on this rank's node, itself included."""
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        size = node.size
        node.Free()
        return size

    def allgather(self, value: Any) -> list:
        """Collective. One picklable object a rank, on every rank."""
        return self._comm.allgather(value)

    def broadcast(self, value: Any = None, root: int = 0) -> Any:
        """Collective. Any picklable object from ``root``."""
        return self._comm.bcast(value, root)

    def reduce_array(self, values: np.ndarray, operation: str = "sum") -> np.ndarray:
        """Collective. Elementwise "sum", "max", "min" or "or" over ranks, on every rank."""
        operations = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN, "or": MPI.BOR}
        out = np.ascontiguousarray(values).copy()
        self._comm.Allreduce(MPI.IN_PLACE, out, operations[operation])
        return out

    def barrier(self) -> None:
        """Collective."""
        self._comm.Barrier()

    def exchange(self, rows: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collective. Send rows [n, ...] of any dtype, grouped by rank, counts [R] of them; returns what came, by
        source, and how many rows from each [R]."""
        counts, received = np.ascontiguousarray(counts, np.int64), np.empty(self.size, np.int64)
        self._comm.Alltoall(counts, received)
        out = np.empty((int(received.sum()), *rows.shape[1:]), rows.dtype)
        width = rows.dtype.itemsize * math.prod(rows.shape[1:])
        if width:
            self._move(_bytes(np.ascontiguousarray(rows)), _bytes(out), counts * width, received * width)
        return out, received

    def _move(self, rows: np.ndarray, out: np.ndarray, send: np.ndarray, receive: np.ndarray) -> None:
        """Bytes by alltoallv, whose total stays below 2 GiB: no pair of ranks moves more than a share of max_bytes in
        one round."""
        limit = max(1, self.max_bytes // self.size)
        most = int(self.reduce_array(np.array([send.max(initial=0)]), "max")[0])
        if most <= limit:
            self._alltoallv(rows, out, send, receive)
            return
        for begin in range(0, most, limit):
            sizes, coming = (np.clip(counts - begin, 0, limit) for counts in (send, receive))
            packed = [
                rows[start + begin : start + begin + size] for start, size in zip(_starts(send), sizes, strict=True)
            ]
            came = np.empty(coming.sum(), np.uint8)
            self._alltoallv(np.concatenate(packed), came, sizes, coming)
            for start, size, first in zip(_starts(receive), coming, _starts(coming), strict=True):
                out[start + begin : start + begin + size] = came[first : first + size]

    def _alltoallv(self, rows: np.ndarray, out: np.ndarray, send: np.ndarray, receive: np.ndarray) -> None:
        self._comm.Alltoallv([rows, (send, _starts(send)), MPI.BYTE], [out, (receive, _starts(receive)), MPI.BYTE])

    def agree(self, error: BaseException | None, stage: str) -> None:
        """Collective. When any rank of the job brings an error, raise DistributedError on all, naming rank, host and
        stage."""
        verdict = None if error is None else (str(error) or type(error).__name__, isinstance(error, ValueError))
        job = self.job.mpi
        if not job.allreduce(error is not None, MPI.LOR):
            return
        verdicts = job.allgather(verdict)
        rank, (message, user_error) = next((r, v) for r, v in enumerate(verdicts) if v is not None)
        raise DistributedError(f"{message} [{stage}, rank {rank} of {job.size}]", user_error) from error

    def abort(self, code: int) -> None:
        """End all ranks of the job at once, on both sides of one that was split."""
        sys.stderr.flush()
        time.sleep(FORWARD_SECONDS)
        self._whole.Abort(code)


def _bytes(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(-1).view(np.uint8)


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts) - counts
