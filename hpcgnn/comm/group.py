"""Ranks that exchange NumPy arrays and agree on errors. Tools use this module alone: it does not load torch, which
takes more memory than a tool.

R ranks.
"""

from __future__ import annotations

import errno
import math
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcgnn.comm.launch import explain_copies, launched_tasks
from hpcgnn.comm.mpi import MPI

MAX_BYTES = 1 << 30
REMEDIES = {
    errno.EROFS: "; nothing can be written there: choose another folder, such as by output.dir",
    errno.ENOSPC: "; make room there, or choose another place, and start again",
    errno.EACCES: "; ask for the permission, or choose another file or folder",
}  # of system errors, which name the file
FORWARD_SECONDS = 0.2  # the launcher forwards a message before it kills everything
MEET_SECONDS = 0.05  # between two looks of a rank that waits for others at work


class DistributedError(RuntimeError):
    """Raised on all ranks for an error of one; user_error: whether the user's input caused it."""

    def __init__(self, message: str, user_error: bool):
        super().__init__(message)
        self.user_error = user_error


def unwatched(stage: str, step: int = 0) -> None:
    """Ignore a report of progress, where there is no watchdog."""


class Group:
    """Ranks with a private communicator. Collective to create; raises ValueError for one of several copies of a process
    that MPI takes for jobs of one rank (``check_singleton``). job: the group of all ranks that share verdicts;
    max_bytes: of one round of an exchange. working: reports that this rank is at work in a long stage (a watchdog sets
    it)."""

    def __init__(self, comm: MPI.Comm | None = None, max_bytes: int = MAX_BYTES):
        if comm is None:
            self.check_singleton()
        # A duplicate, so that no other library's messages match the group's.
        self._comm = self._whole = (comm or MPI.COMM_WORLD).Dup()
        self.rank, self.size, self.max_bytes = self._comm.rank, self._comm.size, max_bytes
        self.job, self.host = self, socket.gethostname()
        self.working: Callable[..., None] = unwatched

    @staticmethod
    def check_singleton() -> None:
        """Raise ValueError for N copies of "rank 0 of 1": a launcher started several tasks, but MPI sees one rank."""
        if MPI.COMM_WORLD.size > 1:
            return
        variable, tasks = launched_tasks()
        if tasks > 1:
            raise ValueError(explain_copies(variable, tasks, mpi_library()))

    @property
    def mpi(self) -> MPI.Comm:
        """The communicator, for other modules of ``comm``."""
        return self._comm

    def ranks_on_machine(self) -> int:
        """Collective. Count the ranks on this rank's machine, itself included."""
        machine = self._comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        size = machine.size
        machine.Free()
        return size

    def allgather(self, value: Any) -> list:
        """Collective. Return one picklable object of each rank, on every rank."""
        return self._comm.allgather(value)

    def broadcast(self, value: Any = None, root: int = 0) -> Any:
        """Collective. Return a picklable object of ``root`` on every rank."""
        return self._comm.bcast(value, root)

    def reduce_array(self, values: np.ndarray, operation: str = "sum") -> np.ndarray:
        """Collective. Reduce elementwise over ranks, by "sum", "max", "min" or "or"; returns the result on every
        rank."""
        operations = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN, "or": MPI.BOR}
        out = np.ascontiguousarray(values).copy()
        self._comm.Allreduce(MPI.IN_PLACE, out, operations[operation])
        return out

    def barrier(self) -> None:
        """Collective. Wait for all ranks."""
        self._comm.Barrier()

    def meet(self) -> None:
        """Collective. Wait for all ranks, however long they work, and leave them the cores meanwhile."""
        request = self._comm.Ibarrier()
        while not request.Test():
            time.sleep(MEET_SECONDS)

    def exchange(self, rows: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collective. Send rows [n, ...] of any dtype, grouped by destination, counts [R] to each; returns the received
        rows by source, and their counts [R]."""
        counts, received = np.ascontiguousarray(counts, np.int64), np.empty(self.size, np.int64)
        self._comm.Alltoall(counts, received)
        out = np.empty((int(received.sum()), *rows.shape[1:]), rows.dtype)
        width = rows.dtype.itemsize * math.prod(rows.shape[1:])
        if width:
            self._move(_bytes(np.ascontiguousarray(rows)), _bytes(out), counts * width, received * width)
        return out, received

    def _move(self, rows: np.ndarray, out: np.ndarray, send: np.ndarray, receive: np.ndarray) -> None:
        """Send bytes by alltoallv, whose total stays below 2 GiB: no pair of ranks moves more than its share of
        max_bytes in one round."""
        limit = max(1, self.max_bytes // self.size)
        most = int(self.reduce_array(np.array([send.max(initial=0)]), "max")[0])
        if most <= limit:
            self._alltoallv(rows, out, send, receive)
            return
        for begin in range(0, most, limit):
            sent_sizes, sizes = (np.clip(counts - begin, 0, limit) for counts in (send, receive))
            pieces = zip(_starts(send), sent_sizes, strict=True)
            packed = [rows[start + begin : start + begin + size] for start, size in pieces]
            received = np.empty(sizes.sum(), np.uint8)
            self._alltoallv(np.concatenate(packed), received, sent_sizes, sizes)
            for start, size, first in zip(_starts(receive), sizes, _starts(sizes), strict=True):
                out[start + begin : start + begin + size] = received[first : first + size]

    def _alltoallv(self, rows: np.ndarray, out: np.ndarray, send: np.ndarray, receive: np.ndarray) -> None:
        self._comm.Alltoallv([rows, (send, _starts(send)), MPI.BYTE], [out, (receive, _starts(receive)), MPI.BYTE])

    def agree(self, error: BaseException | None, stage: str) -> None:
        """Collective. Raise DistributedError on all ranks of the job when any has an error; the message names rank and
        stage."""
        verdict = None
        if error is not None:
            said = str(error) or type(error).__name__
            remedy = REMEDIES.get(error.errno or 0, "") if isinstance(error, OSError) else ""
            verdict = said if remedy in said else said + remedy, isinstance(error, ValueError)
        job = self.job.mpi
        if not job.allreduce(error is not None, MPI.LOR):  # nearly always: verdicts are gathered only after an error
            return
        verdicts = job.allgather(verdict)
        rank, (message, user_error) = next((r, v) for r, v in enumerate(verdicts) if v is not None)
        raise DistributedError(f"{message} [{stage}, rank {rank} of {job.size}]", user_error) from error

    def explain(self, error: BaseException) -> str:
        """Describe an error, besides ValueError and OSError, that the user's data may cause; empty: a defect."""
        return ""

    def abort(self, code: int) -> None:
        """End all ranks of the job at once, on both sides of a job that was split."""
        sys.stderr.flush()
        time.sleep(FORWARD_SECONDS)
        self._whole.Abort(code)


def mpi_library() -> str:
    """Name the MPI library with its version, in one line; some libraries end it with a NUL byte."""
    return MPI.Get_library_version().splitlines()[0].strip("\0 ")


def _bytes(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(-1).view(np.uint8)


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts) - counts
