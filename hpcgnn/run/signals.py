"""Signals that ask a run to checkpoint and leave."""

from __future__ import annotations

import signal

WATCHED = (signal.SIGUSR1, signal.SIGTERM)


class StopRequest:
    """Remembers that USR1 or TERM arrived; the run loop asks. A context manager that restores the old handlers."""

    def __init__(self):
        self.requested = False
        self._old: dict = {}

    def __enter__(self) -> StopRequest:
        self._old = {number: signal.signal(number, self._remember) for number in WATCHED}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _remember(self, *_) -> None:
        self.requested = True
