"""Finds hangs, names the late ranks and ends the job.

Every rank's main thread reports where it is (``at``). A background thread on each rank answers requests for that
report; when its main thread has not moved for ``seconds``, it sends such requests to all ranks. Where none has moved in
that time, it prints the place of every rank (ranks that are behind, or do not answer, are late) and aborts the job. A
rank that waits for requests is ``idle``: it checks from time to time whether the other ranks are still there. A rank
whose launcher has died ends itself: MPI notifies only ranks that call it. A rank that was requested to leave has
LEAVE_SECONDS for its checkpoint: Open MPI's mpirun forwards SIGTERM and ends at once.

Where MPI allows no calls from several threads, the background thread makes none: it watches its own rank only. That
rank ends when it has not moved for ``seconds``, whatever the others do; the launcher then ends the job.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcgnn.comm.launch import launched_tasks
from hpcgnn.comm.mpi import MPI

if TYPE_CHECKING:
    from hpcgnn.comm.world import World

ASK, TELL = 1, 2
IDLE = "idle"
POLL_SECONDS = 0.25
ANSWER_SECONDS = 3.0
LEAVE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Where:
    """Progress of a rank's main thread: stage, step, number of its reports, seconds since the last report, and the line
    of code that it is in."""

    stage: str
    step: int
    count: int
    age: float
    line: str = ""


class Watchdog:
    """Watches the main threads of all ranks; ``seconds`` = 0 switches it off; is_leaving: returns whether this rank was
    requested to leave. A context manager, collective to create and to close."""

    def __init__(self, world: World, seconds: float, is_leaving: Callable[[], bool] | None = None):
        self._is_leaving = is_leaving
        self._world, self.seconds = world, seconds
        self._state = ("start", 0, 0, time.monotonic())
        self._closing, self._launcher = threading.Event(), os.getppid() if launched_tasks()[0] else None
        self._asks = world.can_prefetch and seconds > 0
        # Never freed, as a rank may ask one that has closed: one communicator a command.
        self._comm: Any = world.mpi.Dup() if self._asks else None
        self._hosts = world.allgather(world.host)
        world.working = self.working
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True) if seconds > 0 else None
        if self._thread:
            self._thread.start()

    def describe(self) -> list[str]:
        """Say in a line what differs from a watch over all ranks, if anything does."""
        if self._asks or not self._thread:
            return []
        return ["watchdog: MPI allows no calls from several threads, so each rank checks only itself"]

    def at(self, stage: str, step: int = 0) -> None:
        """Report progress: the main thread is now in ``stage`` of ``step``."""
        self._state = (stage, step, self._state[2] + 1, time.monotonic())

    def working(self, stage: str, step: int = 0) -> None:
        """Report progress of this rank within a stage, which other ranks may wait for, or pass with fewer reports: it
        does not count where ranks are compared."""
        self._state = (stage, step, self._state[2], time.monotonic())

    def idle(self) -> None:
        """Report that this rank has nothing to do until others ask it, which may take any time."""
        self._state = (IDLE, *self._state[1:3], time.monotonic())

    def close(self) -> None:
        """Stop watching. Ranks may close at different times: a closed rank that does not answer counts as finished."""
        self._closing.set()
        if self._thread:
            self._thread.join()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, kind, error: Any, trace) -> None:
        """Add its stage to an error, and its explanation if there is one, for the message that ends the job, and stop
        watching."""
        if error is not None:
            error.stage = f"{self._state[0]}, step {self._state[1]}"
            error.explained = self._world.explain(error)
        self.close()

    def _watch(self) -> None:
        heard = looked = time.monotonic()
        orphaned = float("inf")
        while not self._closing.wait(POLL_SECONDS):
            if time.monotonic() - looked > ANSWER_SECONDS:
                heard = time.monotonic()  # this thread did not run either: the job was suspended
            if self._asks:
                self._answer()
            if self._launcher not in (None, os.getppid()):
                orphaned = min(orphaned, time.monotonic())
                may_finish = self._is_leaving is not None and self._is_leaving()
                if not may_finish or time.monotonic() > orphaned + LEAVE_SECONDS:
                    self._leave_orphaned()
            if time.monotonic() - max(heard, self._state[3]) > self.seconds:
                before, answers = self._state, self._ask() if self._asks else {self._world.rank: self._where()}
                heard, asked = time.monotonic(), self._world.size if self._asks else 1
                # Ranks that have ended do not answer one that has moved in the meantime.
                has_moved = self._closing.is_set() or self._state is not before
                if not has_moved and is_stuck(answers, self._world.rank, asked, self.seconds):
                    self._report_and_abort(answers)
            looked = time.monotonic()

    def _answer(self) -> None:
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, ASK, status):
            self._comm.recv(source=status.source, tag=ASK)
            self._comm.isend(self._where(), status.source, TELL)

    def _where(self) -> Where:
        stage, step, count, since = self._state
        frame, line = sys._current_frames().get(threading.main_thread().ident or 0), ""
        if frame:
            line = f"{frame.f_code.co_name}, {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        return Where(stage, step, count, time.monotonic() - since, line)

    def _ask(self) -> dict[int, Where]:
        """Ask all ranks where they are; returns answers by rank, without the ranks that do not answer in time."""
        world = self._world
        for rank in range(world.size):
            if rank != world.rank:
                self._comm.isend(None, rank, ASK)
        answers = {world.rank: self._where()}
        deadline = time.monotonic() + ANSWER_SECONDS
        status = MPI.Status()
        while len(answers) < world.size and time.monotonic() < deadline and not self._closing.is_set():
            self._answer()  # else two ranks that ask each other would take each other for silent
            if self._comm.Iprobe(MPI.ANY_SOURCE, TELL, status):
                answers[status.source] = self._comm.recv(source=status.source, tag=TELL)
            else:
                time.sleep(0.02)
        return answers

    def _leave_orphaned(self) -> None:
        with contextlib.suppress(OSError):
            print(f"hpcgnn: rank {self._world.rank} on {self._world.host}: the launcher has died", file=sys.stderr)
        os._exit(1)

    def _report_and_abort(self, answers: dict[int, Where]) -> None:
        world = self._world
        if self._asks:
            text = describe(answers, world.rank, self._hosts, self.seconds, world.config.sampling_servers)
        else:
            text = describe_alone(answers[world.rank], world.rank, world.host, self.seconds)
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)
        if not self._asks:
            os._exit(1)  # MPI's Abort is a call, too
        world.abort(1)


def is_stuck(answers: dict[int, Where], rank: int, size: int, seconds: float) -> bool:
    """Say whether the job must end, as a rank that has not moved for ``seconds`` sees it: a rank does not answer, or
    none has moved. A rank that is at work makes the others wait as long as it needs, one that is idle does not.

    answers: by rank, this one's among them.
    """
    if len(answers) < size or answers[rank].stage == IDLE:
        return len(answers) < size
    return not any(at.stage != IDLE and at.age < seconds for at in answers.values())


def describe_alone(at: Where, rank: int, host: str, seconds: float) -> str:
    """Write the message of a rank that cannot ask the others."""
    return (
        f"hpcgnn watchdog: rank {rank} on {host} made no progress for {seconds:g} s; other ranks were not checked, as "
        "MPI allows no calls from several threads\n"
        f"  rank {rank}: {at.stage}, step {at.step}, for {at.age:.1f} s, in {at.line}"
    )


def describe(answers: dict[int, Where], rank: int, hosts: list[str], seconds: float, samplers: int = 0) -> str:
    """Write the message with the place of every rank and the late ranks. Ranks that do not answer are late. If all
    answer, the ranks with the fewest reports are late: of the samplers (the last ranks) if any of them is at work, else
    of all ranks at work.

    answers: by rank; hosts: of all ranks.
    """
    size = len(hosts)
    silent = [r for r in range(size) if r not in answers]
    working = [r for r in answers if answers[r].stage != IDLE]
    judged = [r for r in working if r >= size - samplers] or working
    least = min((answers[r].count for r in judged), default=0)
    behind = sorted(r for r in judged if answers[r].count == least)
    name = lambda r: f"{r} (sampler)" if r >= size - samplers else str(r)  # noqa: E731
    placed = lambda ranks: ", ".join(f"{name(r)} on {hosts[r]}" for r in ranks)  # noqa: E731
    if silent:
        late = f"no answer from rank {placed(silent)}"
    elif len(behind) < len(working):
        late = f"late: rank {placed(behind)}"
    else:
        late = "all ranks are at the same step"
    lines = [f"hpcgnn watchdog: rank {placed([rank])} made no progress for {seconds:g} s; {late}"]
    lines += [
        f"  rank {name(r)}: {at.stage}, step {at.step}, for {at.age:.1f} s, in {at.line}"
        for r, at in sorted(answers.items())
    ]
    return "\n".join(lines)
