"""The watchdog: a hang is a defect, so it is found, named and ended.

Every rank's main thread reports where it is (``at``). A background thread on each rank answers questions about that;
when its own main thread has not moved for ``seconds``, it asks all ranks, prints who is where (ranks that are behind,
or do not answer, are the late ones) and aborts the job.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING

from mpi4py import MPI

if TYPE_CHECKING:
    from hpcgnn.comm.world import World

ASK, TELL = 1, 2
POLL_SECONDS = 0.25
ANSWER_SECONDS = 3.0


class Watchdog:
    """Collective to create and to close. A context manager; ``seconds`` = 0 switches it off."""

    def __init__(self, world: World, seconds: float):
        self._world, self.seconds = world, seconds
        self._state = ("start", 0, 0, time.monotonic())
        self._closing = threading.Event()
        self._comm = world.mpi.Dup()
        enabled = seconds > 0 and world.can_prefetch
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True) if enabled else None
        if self._thread:
            self._thread.start()

    def at(self, stage: str, step: int = 0) -> None:
        """Report progress: the main thread is now in ``stage`` of ``step``."""
        self._state = (stage, step, self._state[2] + 1, time.monotonic())

    def close(self) -> None:
        """Stop watching. Ranks may close at different times: questions to a closed rank count as "finished"."""
        self._closing.set()
        if self._thread:
            self._thread.join()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _watch(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            self._answer()
            if time.monotonic() - self._state[3] > self.seconds:
                self._report_and_abort()

    def _answer(self) -> None:
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, ASK, status):
            self._comm.recv(source=status.source, tag=ASK)
            self._comm.isend(self._where(), status.source, TELL)

    def _where(self) -> tuple[str, int, int, float]:
        """Stage, step, how many times this rank has reported, and seconds since it last did."""
        stage, step, count, since = self._state
        return stage, step, count, time.monotonic() - since

    def _report_and_abort(self) -> None:
        world = self._world
        for rank in range(world.size):
            if rank != world.rank:
                self._comm.isend(None, rank, ASK)
        answers = {world.rank: self._where()}
        deadline = time.monotonic() + ANSWER_SECONDS
        status = MPI.Status()
        while len(answers) < world.size and time.monotonic() < deadline:
            self._answer()
            if self._comm.Iprobe(MPI.ANY_SOURCE, TELL, status):
                answers[status.source] = self._comm.recv(source=status.source, tag=TELL)
            else:
                time.sleep(0.02)
        with contextlib.suppress(OSError):
            print(describe(answers, world.size, world.rank, world.host, self.seconds), file=sys.stderr, flush=True)
        world.abort(1)


def describe(answers: dict[int, tuple[str, int, int, float]], size: int, rank: int, host: str, seconds: float) -> str:
    """The message: where every rank is; late are those that do not answer, else those that have reported least often.

    answers: by rank, stage, step, number of reports, and seconds since the last one.
    """
    silent = [r for r in range(size) if r not in answers]
    least = min(count for _, _, count, _ in answers.values())
    behind = [r for r, (_, _, count, _) in answers.items() if count == least]
    if silent:
        late = f"no answer from rank {', '.join(map(str, silent))}"
    elif len(behind) < size:
        late = f"late: rank {', '.join(map(str, sorted(behind)))}"
    else:
        late = "all ranks are equally far"
    lines = [f"hpcgnn watchdog: rank {rank} on {host} made no progress for {seconds:g} s; {late}"]
    lines += [
        f"  rank {r}: {stage}, step {step}, for {age:.1f} s" for r, (stage, step, _, age) in sorted(answers.items())
    ]
    return "\n".join(lines)
