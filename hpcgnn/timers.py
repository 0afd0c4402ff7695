"""Time per stage."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


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

    def waiting(self, stage: str, items: Iterable[Item]) -> Iterator[Item]:
        """The items; making each one is the stage."""
        source = iter(items)
        while True:
            with self(stage):
                item = next(source, _END)
            if item is _END:
                return
            yield item

    def clear(self) -> None:
        """Start anew."""
        self.seconds.clear()
