"""Time per stage."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Timers:
    """Seconds spent in named stages: ``with timers("exchange"): ...``; those of several threads are added."""

    def __init__(self):
        self._lock = threading.Lock()
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds[stage] += time.perf_counter() - begin

    def clear(self) -> None:
        """Start anew."""
        self.seconds.clear()
