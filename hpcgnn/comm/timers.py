"""Adds up the time that stages take."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

Item = TypeVar("Item")
_END: Any = object()


class Timers:
    """Adds up the seconds spent in named stages, ``with timers("exchange"): ...``, over all threads.

    mark: makes a context manager of a stage's name, such as a range in a profile; entered with every stage.
    """

    def __init__(self, mark: Callable[[str], AbstractContextManager] = nullcontext):
        self._lock = threading.Lock()
        self.mark = mark
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            with self.mark(stage):
                yield
        finally:
            with self._lock:
                self.seconds[stage] += time.perf_counter() - begin

    def waiting(self, stage: str, items: Iterable[Item]) -> Iterator[Item]:
        """Iterate over items; making each of them is the stage."""
        source = iter(items)
        while True:
            with self(stage):
                item = next(source, _END)
            if item is _END:
                return
            yield item

    def clear(self) -> None:
        """Forget all seconds."""
        self.seconds.clear()
