"""A communicator of a job that pretends its size: of R ranks, only rank 0 exists.

Each of the others is taken to do what rank 0 does, as if the ranks stood in a circle and all looked alike from their
own place. So what rank 0 gives rank p, it gets from rank R - p: counts are those of its own messages, requests name
rows that it has, and its own answers come back as those of others. A reduction has R times the rank's own number.
Every rank is a node of its own. A record of what rank 0 does can be kept (``hpcgnn.comm.emulated.Trace``).
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcgnn.comm.emulated import COUNTS, MEET, ROWS, SUM, Meeting, Trace, Waited
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.world import CommConfig, World


class Recorder:
    """Keeps the record of rank 0: what it computes, and the exchanges in between, whose own time does not count."""

    def __init__(self, trace: Trace):
        self.trace = trace

    def at(self, stage: str) -> None:
        """Say what the rank is at from now on; an empty word: nothing that is to be noted."""
        self.trace.at(0, stage)

    @contextlib.contextmanager
    def exchange(self, kind: str, sent: np.ndarray | None = None, num_bytes: int = 0) -> Iterator[None]:
        """Note an exchange, which the block makes. sent [R]: bytes to each rank, of ROWS; num_bytes: of SUM."""
        self.trace.computes(0)
        row = None if sent is None else np.where(np.arange(self.trace.size) > 0, sent, 0)
        meeting = Meeting(np.arange(self.trace.size), self.trace.stages[0], kind, row, num_bytes)
        self.trace.add(meeting)
        self.trace.add(Waited(0, meeting))
        yield
        self.trace.compute()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leave out what the block computes: no real rank does."""
        self.trace.computes(0)
        yield
        self.trace.compute()


class PretendedComm:
    """Takes the place of an ``MPI.Comm`` of ``size`` ranks, of which this process is rank 0. recorder: of all
    communicators that come from this one."""

    rank = 0

    def __init__(self, size: int, recorder: Recorder):
        self.size, self.recorder = size, recorder
        self._posted: dict[int, list[np.ndarray]] = defaultdict(list)

    def Dup(self) -> PretendedComm:
        """Return another communicator of the same ranks."""
        return PretendedComm(self.size, self.recorder)

    def Free(self) -> None:
        """Do nothing."""

    def Barrier(self) -> None:
        """Do nothing: the others are here too."""

    def Split(self, color: int, key: int) -> Any:
        """Return the communicator of all ranks: they all choose alike."""
        return MPI.COMM_NULL if color == MPI.UNDEFINED else self.Dup()

    def Split_type(self, kind: int, key: int = 0) -> MPI.Comm:
        """Return the communicator of this rank's node, on which it is alone."""
        return MPI.COMM_SELF.Dup()

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        """Return the value, which rank 0 sends."""
        return value

    def gather(self, value: Any) -> list:
        """Return the value once for every rank."""
        with self.recorder.exchange(MEET):
            return [value] * self.size

    allgather = gather

    def allreduce(self, value: Any, operation: MPI.Op = MPI.SUM) -> Any:
        """Return the sum of the value over all ranks; of other operations, the value."""
        with self.recorder.exchange(MEET):
            return value * self.size if operation == MPI.SUM else value

    def Allreduce(self, send: Any, out: Any, operation: MPI.Op = MPI.SUM) -> None:
        """Sum ``out`` in place over all ranks; other operations leave it."""
        assert send is MPI.IN_PLACE
        with self.recorder.exchange(SUM, num_bytes=np.asarray(out).nbytes):
            if operation == MPI.SUM:
                out *= self.size

    def Allgather(self, send: np.ndarray, out: np.ndarray) -> None:
        """Fill ``out`` [R, ...]."""
        with self.recorder.exchange(MEET):
            out.reshape(self.size, -1)[:] = send.reshape(-1)

    def Gatherv(self, send: list, receive: list) -> None:
        """Fill the rows of all ranks."""
        rows, out = send[0], receive[0]
        out[:] = np.concatenate([rows] * self.size)

    def Alltoall(self, send: np.ndarray, out: np.ndarray) -> None:
        """Fill what rank R - p gave into the place of rank p."""
        with self.recorder.exchange(COUNTS):
            out[:] = send[-np.arange(self.size)]

    def Ialltoall(self, send: np.ndarray, out: np.ndarray) -> MPI.Request:
        """Like Alltoall; done at once."""
        self.Alltoall(send, out)
        return MPI.REQUEST_NULL

    def Alltoallv(self, send: list, receive: list) -> None:
        """Copy bytes to rank R - p into those from rank p; where they are fewer they repeat."""
        rows, out = (np.frombuffer(message[0], np.uint8) for message in (send, receive))
        (counts, starts), (wanted, places) = send[1], receive[1]
        with self.recorder.exchange(ROWS, counts):
            for peer in np.flatnonzero(wanted).tolist():
                other = -peer % self.size
                _fill(out[places[peer] :][: wanted[peer]], rows[starts[other] :][: counts[other]])

    def Ialltoallv(self, send: list, receive: list) -> MPI.Request:
        """Like Alltoallv; done at once."""
        self.Alltoallv(send, receive)
        return MPI.REQUEST_NULL

    def Irecv(self, message: list, peer: int, tag: int) -> MPI.Request:
        """Note memory for bytes, which are there once rank 0 has sent as many to rank R - p."""
        self._posted[-peer % self.size].append(np.frombuffer(message[0], np.uint8))
        return MPI.REQUEST_NULL

    def Isend(self, message: list, peer: int, tag: int) -> MPI.Request:
        """Copy bytes into the memory that waits for them; done at once."""
        if self._posted[peer]:
            _fill(self._posted[peer].pop(0), np.frombuffer(message[0], np.uint8))
        return MPI.REQUEST_NULL


def _fill(out: np.ndarray, rows: np.ndarray) -> None:
    """Copy bytes, again and again where they are fewer. Without any, zeros: the first rows of all tables."""
    if len(rows):
        out[:] = np.resize(rows, len(out)) if len(rows) < len(out) else rows[: len(out)]
    else:
        out[:] = 0


def pretended_world(config: CommConfig, recorder: Recorder) -> World:
    """Make a world of which this process is rank 0 and the others are pretended."""
    return World(config, PretendedComm(recorder.trace.size, recorder))  # type: ignore[arg-type]
