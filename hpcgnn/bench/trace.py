"""A record of the work of a job's ranks, in order: seconds of computing, exchanges, and waits for exchanges.

A model of the network prices it (``Trace.price``). R ranks, m members of an exchange.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

PLAN, STEP = "plan", "step"  # stages of a training step
ROWS, COUNTS, SUM, MEET = "rows", "counts", "sum", "meet"  # alltoallv, alltoall, all-reduce, others with small messages


@dataclass(slots=True)
class Meeting:
    """An exchange between some ranks.

    members [m]: ranks of the job; stage: PLAN or STEP; kind: ROWS, COUNTS, SUM or MEET. num_bytes: of each rank, of
    SUM; part: of the stage, a name of the run's timers. sent: bytes of ROWS, by source and destination [m, m]. It has
    only the first member's bytes [m] where member i sends to member i + k what the first one sends to member k.
    """

    members: np.ndarray
    stage: str
    kind: str
    sent: np.ndarray | Any = None
    num_bytes: int = 0
    part: str = ""

    def matrix(self) -> np.ndarray:
        """Return the bytes of ROWS by source and destination, [m, m]."""
        place = np.arange(len(self.members))
        return self.sent[place - place[:, None]] if self.sent.ndim == 1 else self.sent


@dataclass(frozen=True, slots=True)
class Computed:
    """Seconds that a rank computed between its exchanges."""

    rank: int
    seconds: float
    stage: str


@dataclass(frozen=True, slots=True)
class Waited:
    """A rank waits for the end of an exchange that it began earlier, or just now."""

    rank: int
    meeting: Meeting


class Trace:
    """The events of ``size`` ranks in order: ``Computed``, ``Meeting`` and ``Waited``. clock: returns the seconds that
    computing is measured by."""

    def __init__(self, size: int, clock: Callable[[], float] = time.perf_counter):
        self.size, self.clock = size, clock
        self.events: list[Computed | Meeting | Waited] = []

    def add(self, event: Computed | Meeting | Waited) -> None:
        """Append an event, unless its stage is empty."""
        if event.meeting.stage if isinstance(event, Waited) else event.stage:
            self.events.append(event)

    def meetings(self, stage: str = "") -> list[Meeting]:
        """List the exchanges of a stage, or of all."""
        return [event for event in self.events if isinstance(event, Meeting) and stage in ("", event.stage)]

    def sent(self, stage: str = "") -> np.ndarray:
        """Sum up the bytes [R, R] by source and destination, of a stage or of all."""
        total = np.zeros((self.size, self.size), np.int64)
        for meeting in self.meetings(stage):
            if meeting.kind == ROWS:
                total[np.ix_(meeting.members, meeting.members)] += meeting.matrix()
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


class Recorder:
    """Adds what one rank does to a trace. stage: PLAN, STEP, or empty while nothing is recorded; part: the innermost of
    the run's timers that is on."""

    def __init__(self, trace: Trace, rank: int = 0):
        self.trace, self.rank, self.stage, self.part = trace, rank, "", ""
        self._began = trace.clock()

    def start_clock(self) -> None:
        """Measure from now on what the rank computes."""
        self._began = self.trace.clock()

    def note_computed(self) -> None:
        """Record what the rank has computed since its clock was started, and start it again."""
        self.trace.add(Computed(self.rank, self.trace.clock() - self._began, self.stage))
        self.start_clock()

    def note_wait(self, meeting: Meeting) -> None:
        """Record that the rank waits for the end of an exchange."""
        self.note_computed()
        self.trace.add(Waited(self.rank, meeting))

    def enter(self, stage: str) -> None:
        """Begin a stage; an empty one is not recorded."""
        self.note_computed()
        self.stage = stage

    @contextlib.contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Attribute the exchanges of the block to a part of the stage."""
        outer, self.part = self.part, part
        try:
            yield
        finally:
            self.part = outer

    def meeting(self, members: np.ndarray, kind: str, **sizes: Any) -> Meeting:
        """Record an exchange of some ranks, in this rank's stage and part; sizes: of the Meeting."""
        meeting = Meeting(members, self.stage, kind, part=self.part, **sizes)
        self.trace.add(meeting)
        return meeting

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leave out what the block computes: no real rank does."""
        self.note_computed()
        yield
        self.start_clock()
