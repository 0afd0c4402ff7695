"""Ranks that are threads of one process, one of which runs at a time, and a record of what they do.

A job of R ranks runs as it is on a machine that has fewer: its messages go from thread to thread, and the seconds that
each rank computes between them are measured, as nobody else computes meanwhile. What the messages would take on a real
network is not measured but added by a model (``Trace.price``). Clauss et al., Single Node On-Line Simulation of MPI
Applications with SMPI (IPDPS 2011), simulate jobs so.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.mpi import MPI

OPERATIONS = ((MPI.SUM, np.add), (MPI.MAX, np.maximum), (MPI.MIN, np.minimum), (MPI.BOR, np.bitwise_or))
ROWS, COUNTS, SUM, MEET = "rows", "counts", "sum", "meet"  # alltoallv, alltoall, all-reduce, others with small messages


@dataclass(slots=True)
class Meeting:
    """An exchange of some ranks. members [m]: of the job; stage: what the job was at; kind: ROWS, COUNTS, SUM or MEET;
    sent: bytes of ROWS, by source and destination [m, m], or of the first member [m] where all do alike, each from its
    own place; num_bytes: of each rank, of SUM."""

    members: np.ndarray
    stage: str
    kind: str
    sent: np.ndarray | Any = None
    num_bytes: int = 0

    def matrix(self) -> np.ndarray:
        """Return the bytes of ROWS by source and destination, [m, m]."""
        place = np.arange(len(self.members))
        return self.sent[place - place[:, None]] if self.sent.ndim == 1 else self.sent


@dataclass(frozen=True, slots=True)
class Computed:
    """Seconds that a rank computed by itself."""

    rank: int
    seconds: float
    stage: str


@dataclass(frozen=True, slots=True)
class Waited:
    """A rank waits for the end of a meeting that it began earlier, or just now."""

    rank: int
    meeting: Meeting


class Trace:
    """What the ranks of a job did, in order: ``Computed``, ``Meeting`` and ``Waited``. stages [R]: a word for what each
    rank is at; nothing is noted while it is empty. clock: the seconds that a rank computes are read from."""

    def __init__(self, size: int, clock: Callable[[], float] = time.perf_counter):
        self.size, self.stages = size, [""] * size
        self.events: list[Computed | Meeting | Waited] = []
        self._clock, self._began = clock, clock()

    def compute(self) -> None:
        """Begin to time what a rank computes."""
        self._began = self._clock()

    def computes(self, rank: int) -> None:
        """Note what the rank has computed since then, and time on."""
        self.add(Computed(rank, self._clock() - self._began, self.stages[rank]))
        self.compute()

    def at(self, rank: int, stage: str) -> None:
        """Say what the rank, which computes, is at from now on."""
        self.computes(rank)
        self.stages[rank] = stage

    def add(self, event: Computed | Meeting | Waited) -> None:
        """Note an event."""
        stage = event.meeting.stage if isinstance(event, Waited) else event.stage
        if stage:
            self.events.append(event)

    def sent(self, stage: str = "") -> np.ndarray:
        """Sum up the bytes [R, R] by source and destination, of a stage or of all."""
        total = np.zeros((self.size, self.size), np.int64)
        for event in self.events:
            if isinstance(event, Meeting) and event.kind == ROWS and stage in ("", event.stage):
                total[np.ix_(event.members, event.members)] += event.matrix()
        return total

    def computed(self, stage: str) -> np.ndarray:
        """Sum up the seconds [R] that ranks computed in a stage."""
        total = np.zeros(self.size)
        for event in self.events:
            if isinstance(event, Computed) and event.stage == stage:
                total[event.rank] += event.seconds
        return total

    def price(self, stage: str, cost: Callable[[Meeting], float], speed: float = 1.0) -> float:
        """Return the seconds of a stage: ranks compute, ``speed`` times as fast as here, and a meeting ends ``cost``
        seconds after the last of its members has come to it."""
        clock = np.zeros(self.size)
        ends: dict[int, float] = {}
        for event in self.events:
            if isinstance(event, Waited):
                if event.meeting.stage == stage:
                    clock[event.rank] = max(clock[event.rank], ends[id(event.meeting)])
            elif event.stage != stage:
                continue
            elif isinstance(event, Computed):
                clock[event.rank] += event.seconds / speed
            else:
                ends[id(event)] = clock[event.members].max() + cost(event)
        return float(clock.max(initial=0.0))


class _Room:
    """Where the ranks of a communicator meet: what each has brought, and the rooms that they opened from here."""

    def __init__(self, job: _Job, members: np.ndarray):
        self.job, self.members = job, members
        self.brought: list[Any] = [None] * len(members)
        self.barrier = threading.Barrier(len(members))
        self.noted: Any = None
        job.barriers.append(self.barrier)


class _Job:
    """What all ranks of a job share: the turn to run, and the record of what they do. Each has torch's random numbers
    for itself."""

    def __init__(self, size: int, clock: Callable[[], float]):
        self.trace, self._random = Trace(size, clock), [torch.get_rng_state()] * size
        self.barriers: list[threading.Barrier] = []
        self._turn, self._running = threading.Lock(), -1

    def stop(self, rank: int) -> None:
        """End the rank's turn, if it has one."""
        if self._running == rank:
            self.trace.computes(rank)
            self._random[rank] = torch.get_rng_state()
            self._running = -1
            self._turn.release()

    def go_on(self, rank: int) -> None:
        """Wait for a turn."""
        self._turn.acquire()
        torch.set_rng_state(self._random[rank])
        self._running = rank
        self.trace.compute()


class _Request:
    """An exchange that is over, but that a rank has not waited for yet."""

    def __init__(self, comm: EmulatedComm, meeting: Meeting):
        self._comm, self._meeting = comm, meeting

    def Wait(self) -> None:
        """Note that the rank waits."""
        self._comm.note_wait(self._meeting)

    def Test(self) -> bool:
        """Wait."""
        self.Wait()
        return True


class EmulatedComm:
    """Takes the place of an ``MPI.Comm`` whose ranks are threads of this process, all on one node. Objects are
    copied, as messages copy them."""

    def __init__(self, room: _Room, rank: int):
        self._room, self.rank, self.size = room, rank, len(room.members)
        self._member = int(room.members[rank])

    @property
    def trace(self) -> Trace:
        """What the ranks of the job have done."""
        return self._room.job.trace

    def share(self, value: Any) -> list:
        """Collective. Return what each rank of this communicator brings: the objects themselves."""
        return self._meet(value, list, MEET)

    def _meet(self, value: Any, take: Callable[[list], Any], kind: str, **sizes: Any) -> Any:
        """Collective. Return ``take`` of what each rank brings, and wait for the end of the meeting."""
        taken, meeting = self._begin(value, take, kind, **sizes)
        self.note_wait(meeting)
        return taken

    def _begin(self, value: Any, take: Callable[[list], Any], kind: str, **sizes: Any) -> tuple[Any, Meeting]:
        """Collective. Return ``take`` of what each rank brings, which no rank changes meanwhile, and the meeting, for
        whose end the rank has yet to wait. sizes: of the meeting; functions of what the ranks bring are called."""
        room, job = self._room, self._room.job
        room.brought[self.rank] = value
        job.stop(self._member)
        if room.barrier.wait() == 0:
            known = {name: size(room.brought) if callable(size) else size for name, size in sizes.items()}
            room.noted = Meeting(room.members, job.trace.stages[self._member], kind, **known)
            job.trace.add(room.noted)
        room.barrier.wait()
        taken, meeting = take(room.brought), room.noted
        room.barrier.wait()
        job.go_on(self._member)
        return taken, meeting

    def note_wait(self, meeting: Meeting) -> None:
        """Note that this rank waits for the end of a meeting."""
        self.trace.computes(self._member)
        self.trace.add(Waited(self._member, meeting))

    def at(self, stage: str) -> None:
        """Say what this rank is at from now on; an empty word: nothing that is to be noted."""
        self.trace.at(self._member, stage)

    def Split(self, color: int, key: int) -> Any:
        """Collective. Return the communicator of the ranks with this color, in the order of this one."""
        colors = self.share(int(color))
        if color == MPI.UNDEFINED:
            self.share(None)
            return MPI.COMM_NULL
        mates = np.flatnonzero(np.array(colors) == color)
        is_first = mates[0] == self.rank
        rooms = self.share(_Room(self._room.job, self._room.members[mates]) if is_first else None)
        return EmulatedComm(rooms[mates[0]], int(np.flatnonzero(mates == self.rank)[0]))

    def Dup(self) -> EmulatedComm:
        """Collective. Return another communicator of the same ranks."""
        return self.Split(0, self.rank)

    def Split_type(self, kind: int, key: int = 0) -> EmulatedComm:
        """Collective. Return a communicator of all ranks, which share memory."""
        return self.Dup()

    def Free(self) -> None:
        """Do nothing."""

    def Barrier(self) -> None:
        """Collective. Wait for all ranks."""
        self.share(None)

    def allgather(self, value: Any) -> list:
        """Collective. Return one object of each rank."""
        return copy.deepcopy(self.share(copy.deepcopy(value)))

    gather = allgather

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        """Collective. Return the object of ``root``."""
        return self.allgather(value if self.rank == root else None)[root]

    def allreduce(self, value: Any, operation: MPI.Op = MPI.SUM) -> Any:
        """Collective. Reduce one number of each rank."""
        return reduce(operation, self.allgather(value))

    def Allreduce(self, send: Any, out: Any, operation: MPI.Op = MPI.SUM) -> None:
        """Collective. Reduce ``out`` in place, in the order of ranks."""
        assert send is MPI.IN_PLACE
        array, function = np.asarray(out), next(each for known, each in OPERATIONS if known == operation)
        array[...] = reduce(function, self._meet(array.copy(), list, SUM, num_bytes=array.nbytes))

    def Allgather(self, send: np.ndarray, out: np.ndarray) -> None:
        """Collective. Fill ``out`` [R, ...]."""
        out.reshape(self.size, -1)[:] = [piece.reshape(-1) for piece in self.share(send.copy())]

    def Gatherv(self, send: list, receive: list) -> None:
        """Collective. Fill the rows of all ranks, on rank 0."""
        pieces = self.share(send[0].copy())
        if self.rank == 0:
            receive[0][:] = np.concatenate(pieces)

    def Alltoall(self, send: np.ndarray, out: np.ndarray) -> None:
        """Collective. Give every rank its element, and take one of each."""
        self.Ialltoall(send, out).Wait()

    def Ialltoall(self, send: np.ndarray, out: np.ndarray) -> Any:
        """Collective. Like Alltoall; the exchange is over, the rank has yet to wait for it."""

        def take(brought: list[np.ndarray]) -> None:
            out[:] = [piece[self.rank] for piece in brought]

        return _Request(self, self._begin(send, take, COUNTS)[1])

    def Alltoallv(self, send: list, receive: list) -> None:
        """Collective. Give every rank its bytes, and take those of each."""
        self.Ialltoallv(send, receive).Wait()

    def Ialltoallv(self, send: list, receive: list) -> Any:
        """Collective. Like Alltoallv; the exchange is over, the rank has yet to wait for it."""
        out = np.frombuffer(receive[0], np.uint8)
        wanted, places = receive[1]

        def sent(brought: list) -> np.ndarray:
            return np.array([counts for _, (counts, _) in brought]) * (1 - np.eye(self.size, dtype=np.int64))

        def take(brought: list) -> None:
            for peer in np.flatnonzero(wanted).tolist():
                rows, (counts, starts) = brought[peer]
                begin, count = int(starts[self.rank]), int(counts[self.rank])
                out[int(places[peer]) :][:count] = rows[begin : begin + count]

        brought = np.frombuffer(send[0], np.uint8), send[1]
        return _Request(self, self._begin(brought, take, ROWS, sent=sent)[1])

    def Ibcast(self, message: list, root: int) -> MPI.Request:
        """Collective. Fill the memory with that of ``root``; done at once."""
        rows = np.frombuffer(message[0], np.uint8)

        def take(brought: list[np.ndarray]) -> None:
            if self.rank != root:
                rows[:] = brought[root]

        self._meet(rows, take, MEET)
        return MPI.REQUEST_NULL

    def Isend(self, message: list, peer: int, tag: int) -> MPI.Request:
        """Refuse: every exchange is one alltoallv, as it has no bound (``comm.max_message_bytes``)."""
        raise NotImplementedError("messages in several rounds")

    Irecv = Isend


def emulate(size: int, work: Callable[[EmulatedComm], Any], clock: Callable[[], float] = time.perf_counter) -> list:
    """Run ``work(communicator)`` on ``size`` ranks that are threads; returns what it returns on each. Where it fails
    on one, the others are given up and its error is raised. clock: the seconds that a rank computes are read from."""
    job = _Job(size, clock)
    room, results, errors = _Room(job, np.arange(size)), [None] * size, {}

    def run(rank: int) -> None:
        job.go_on(rank)
        try:
            results[rank] = work(EmulatedComm(room, rank))
            job.stop(rank)
        except BaseException as error:
            errors[rank] = error
            job.stop(rank)
            for barrier in job.barriers:
                barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    causes = [error for error in errors.values() if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (causes or list(errors.values()))[0]
    return results
