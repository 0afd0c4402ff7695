"""Training steps of R ranks that are threads of this process, one of which runs at a time.

A job of R ranks runs unchanged on a machine with fewer cores: its messages go from thread to thread. The seconds that
each rank computes between messages are measured, as no other rank computes meanwhile. A model adds the time that the
messages would take on a real network (``Trace.price``). Clauss et al., Single Node On-Line Simulation of MPI
Applications with SMPI (IPDPS 2011), simulate jobs so.
"""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from hpcgnn.bench.steps import WHOLE_MESSAGES, SimulatedSteps, clock_of, in_place, train_steps
from hpcgnn.bench.trace import COUNTS, MEET, ROWS, SUM, Meeting, Recorder, Trace
from hpcgnn.comm import shared
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.world import World

OPERATIONS = ((MPI.SUM, np.add), (MPI.MAX, np.maximum), (MPI.MIN, np.minimum), (MPI.BOR, np.bitwise_or))


class _SharedState:
    """State of one emulated communicator: each rank's contribution to the current exchange, its record, a barrier."""

    def __init__(self, job: _EmulatedJob, members: np.ndarray):
        self.job, self.members = job, members
        self.brought: list[Any] = [None] * len(members)
        self.barrier = threading.Barrier(len(members))
        self.meeting: Any = None
        job.barriers.append(self.barrier)


class _EmulatedJob:
    """State of all ranks of a job: which of them runs, torch's random numbers of each, the trace, and the barriers of
    all communicators."""

    def __init__(self, size: int, clock: Callable[[], float]):
        self.trace, self._random = Trace(size, clock), [torch.get_rng_state()] * size
        self.barriers: list[threading.Barrier] = []
        self._turn, self._running = threading.Lock(), -1

    def end_turn(self, recorder: Recorder) -> None:
        """Stop running a rank, if it runs."""
        if self._running == recorder.rank:
            recorder.note_computed()
            self._random[recorder.rank] = torch.get_rng_state()
            self._running = -1
            self._turn.release()

    def take_turn(self, recorder: Recorder) -> None:
        """Wait until no other rank runs, then run this one."""
        self._turn.acquire()
        torch.set_rng_state(self._random[recorder.rank])
        self._running = recorder.rank
        recorder.start_clock()


class _EmulatedRequest:
    """An exchange that is over, but that a rank has not waited for yet."""

    def __init__(self, recorder: Recorder, meeting: Meeting):
        self._recorder, self._meeting = recorder, meeting

    def Wait(self) -> None:
        """Record that the rank waits."""
        self._recorder.note_wait(self._meeting)

    def Test(self) -> bool:
        """Wait."""
        self.Wait()
        return True


class EmulatedComm:
    """Takes the place of an ``MPI.Comm`` whose ranks are threads of this process, all on one machine. Objects are
    copied, as messages copy them. recorder: of this rank, for all of its communicators."""

    def __init__(self, state: _SharedState, rank: int, recorder: Recorder):
        self._state, self.rank, self.size, self.recorder = state, rank, len(state.members), recorder

    def share(self, value: Any) -> list:
        """Collective. Return what each rank of this communicator brings: the objects themselves."""
        return self._meet(value, list, MEET)

    def _meet(self, value: Any, take: Callable[[list], Any], kind: str, **sizes: Any) -> Any:
        """Collective. Return ``take`` of what each rank brings, and wait for the end of the exchange."""
        taken, meeting = self._begin(value, take, kind, **sizes)
        self.recorder.note_wait(meeting)
        return taken

    def _begin(self, value: Any, take: Callable[[list], Any], kind: str, **sizes: Any) -> tuple[Any, Meeting]:
        """Collective. Return ``take`` of what each rank brings, which no rank changes meanwhile, and the exchange, for
        whose end the rank has yet to wait. sizes: of the Meeting; functions of what the ranks bring are called."""
        state, job = self._state, self._state.job
        state.brought[self.rank] = value
        job.end_turn(self.recorder)
        if state.barrier.wait() == 0:
            known = {name: size(state.brought) if callable(size) else size for name, size in sizes.items()}
            state.meeting = self.recorder.meeting(state.members, kind, **known)
        state.barrier.wait()
        taken, meeting = take(state.brought), state.meeting
        state.barrier.wait()
        job.take_turn(self.recorder)
        return taken, meeting

    def Split(self, color: int, key: int) -> Any:
        """Collective. Return the communicator of the ranks with this color, in the order of this one."""
        colors = self.share(int(color))
        if color == MPI.UNDEFINED:
            self.share(None)
            return MPI.COMM_NULL
        mates = np.flatnonzero(np.array(colors) == color)
        is_first = mates[0] == self.rank
        states = self.share(_SharedState(self._state.job, self._state.members[mates]) if is_first else None)
        return EmulatedComm(states[mates[0]], int(np.flatnonzero(mates == self.rank)[0]), self.recorder)

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

        return _EmulatedRequest(self.recorder, self._begin(send, take, COUNTS)[1])

    def Alltoallv(self, send: list, receive: list) -> None:
        """Collective. Send every rank its bytes, and receive the bytes that each rank sends to this one."""
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
        return _EmulatedRequest(self.recorder, self._begin(brought, take, ROWS, sent=sent)[1])

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
    on one, the others are given up and its error is raised. clock: as of the Trace."""
    job = _EmulatedJob(size, clock)
    state, results, errors = _SharedState(job, np.arange(size)), [None] * size, {}

    def run(rank: int) -> None:
        recorder = Recorder(job.trace, rank)
        job.take_turn(recorder)
        try:
            results[rank] = work(EmulatedComm(state, rank, recorder))
            job.end_turn(recorder)
        except BaseException as error:
            errors[rank] = error
            job.end_turn(recorder)
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


class _ThreadMemory:
    """Takes the place of ``shared.MachineMemory`` among ranks that are threads."""

    def __init__(self, world: World, machine: Any, num_bytes: int):
        self.machine = machine
        self.bytes = machine.share(np.empty(num_bytes, np.uint8) if machine.rank == 0 else None)[0][:]

    def meet(self) -> None:
        """Collective. Wait for the other ranks of the machine."""
        self.machine.Barrier()

    def close(self) -> None:
        """Collective. Forget the memory."""
        self.bytes = np.empty(0, np.uint8)


def emulate_steps(config: Any, path: str, num_ranks: int, steps: int, skipped: int, folder: Path) -> SimulatedSteps:
    """Train ``skipped`` steps and then ``steps`` recorded ones on ``num_ranks`` ranks, each with at least one part. A
    machine has ``comm.ranks_per_machine`` of them (0: one). folder: for the files of the run."""
    config, hook = copy.deepcopy(config), sys.excepthook
    config.comm.device, config.comm.gradients, config.comm.watchdog_seconds = "cpu", "mpi", 0
    config.comm.max_message_bytes, config.comm.ranks_per_machine = WHOLE_MESSAGES, max(1, config.comm.ranks_per_machine)
    config.comm.threads = max(1, config.comm.threads)

    def train(comm: EmulatedComm) -> SimulatedSteps:
        world = World(config.comm, comm)  # type: ignore[arg-type]
        return train_steps(config, path, folder, world, comm.recorder, steps, skipped)

    try:
        with in_place(), mock.patch.object(shared, "MachineMemory", _ThreadMemory):
            return emulate(num_ranks, train, clock_of(config))[0]
    finally:
        sys.excepthook = hook
