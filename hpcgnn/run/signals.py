"""What asks a run to checkpoint and leave: signals, and the end of the job's time."""

from __future__ import annotations

import os
import signal
import time

WATCHED = (signal.SIGUSR1, signal.SIGTERM)
END_TIMES = (
    "HPCGNN_JOB_END",
    "SLURM_JOB_END_TIME",
)  # in seconds since 1970; the first one counts
SHARE = 0.1  # of the time that is left at the start, which a run does not give up however early it should leave


class StopRequest:
    """Remembers that USR1 or TERM arrived; the run loop asks. A context manager that restores the old handlers."""

    def __init__(self):
        self._signalled, self._deadline = False, float("inf")
        self._old: dict = {}

    @property
    def requested(self) -> bool:
        """Whether to leave."""
        return self._signalled or time.time() >= self._deadline

    def leave_before_end(self, seconds: float) -> str:
        """Ask to leave so long before the end of the job's time, if the environment tells it, or with a tenth of the
        time left where that is less; returns what was decided, in words. 0: do not."""
        name = next((name for name in END_TIMES if os.environ.get(name)), None)
        if name is None or seconds <= 0:
            return ""
        try:
            end = float(os.environ[name])
        except ValueError as error:
            raise ValueError(f"{name}={os.environ[name]}: expected seconds since 1970") from error
        left = end - time.time()
        early = min(seconds, SHARE * max(0.0, left))
        self._deadline = end - early
        return f"{left / 60:.0f} minutes left; the run leaves {early:.0f} s before the end with a checkpoint"

    def __enter__(self) -> StopRequest:
        self._old = {number: signal.signal(number, self._remember) for number in WATCHED}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _remember(self, *_) -> None:
        self._signalled = True
