"""Plans made ahead in a background thread, with a window that is the same on every rank."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from hpcgnn.comm.world import DistributedError

Plan = TypeVar("Plan")


class Prefetcher(Generic[Plan]):
    """Iterates over ``make(i)`` for i in ``range(start, stop)``, at most ``depth`` ahead of the consumer.

    Making a plan is collective, so all ranks must make the same plans: when the consumer stops early, the thread still
    finishes those that the window allows (every rank consumed equally many), and no other. depth 0 makes plans in
    place, ``in_a_row`` at once: graph and code stay in the caches meanwhile.
    """

    def __init__(self, make: Callable[[int], Plan], start: int, stop: int, depth: int, in_a_row: int = 1):
        self._make, self._start, self._stop, self._in_a_row = make, start, stop, in_a_row
        self._ready: queue.SimpleQueue = queue.SimpleQueue()
        self._window = threading.Condition()
        self._allowed, self._closing = depth, False
        self._thread = (
            threading.Thread(target=self._run, name="planner", daemon=True) if depth and stop > start else None
        )
        if self._thread:
            self._thread.start()

    def __iter__(self) -> Iterator[Plan]:
        if self._thread is None:
            yield from self._in_place()
            return
        for _ in range(self._start, self._stop):
            plan, error = self._ready.get()
            if error is not None:
                raise error
            with self._window:
                self._allowed += 1
                self._window.notify()
            yield plan

    def _in_place(self) -> Iterator[Plan]:
        for begin in range(self._start, self._stop, self._in_a_row):
            plans = deque(self._make(index) for index in range(begin, min(begin + self._in_a_row, self._stop)))
            while plans:
                yield plans.popleft()

    def close(self) -> None:
        """Let the thread finish its window and end."""
        with self._window:
            self._closing = True
            self._window.notify()
        if self._thread:
            self._thread.join()

    def __enter__(self) -> Prefetcher[Plan]:
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None or issubclass(kind, (GeneratorExit, DistributedError)):  # all ranks leave at the same step
            self.close()

    def _run(self) -> None:
        for made, index in enumerate(range(self._start, self._stop)):
            with self._window:
                self._window.wait_for(lambda made=made: made < self._allowed or self._closing)
                if made >= self._allowed:
                    return
            try:
                self._ready.put((self._make(index), None))
            except BaseException as error:
                self._ready.put((None, error))
                return
