"""Makes plans ahead in background threads, in a window that is the same on every rank, and on a device that can make
them; finds the tensors of plans."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch

from hpcgnn.comm.world import DistributedError
from hpcgnn.native.dispatch import on_cuda

Plan = TypeVar("Plan")


class Prefetcher(Generic[Plan]):
    """Iterates over ``make(i)`` for i in ``range(start, stop)``, at most ``depth`` ahead of the consumer.

    Making a plan is collective, so all ranks must make the same plans. When the consumer stops early, the threads still
    finish the plans that the window allows (every rank consumed the same number), and no other. ``make`` may be a list
    of at most ``depth`` functions: each makes plans in a separate thread, plan k by number k modulo their count. With
    depth 0, plans are made in place, ``in_a_row`` at once, so that graph and code stay in the caches.
    """

    def __init__(
        self, make: Callable[[int], Plan] | Sequence[Callable[[int], Plan]], start: int, stop: int, depth: int,
        in_a_row: int = 1,
    ):  # fmt: skip
        self._make = [make] if callable(make) else list(make)
        self._start, self._stop, self._in_a_row = start, stop, in_a_row
        assert len(self._make) <= max(1, depth)
        self._ready: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in self._make]
        self._window = threading.Condition()
        self._allowed, self._closing = depth, False
        numbers = range(min(len(self._make), stop - start)) if depth else ()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name="planner", daemon=True) for number in numbers
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Plan]:
        if not self._threads:
            for begin in range(self._start, self._stop, self._in_a_row):
                stop = min(begin + self._in_a_row, self._stop)
                plans = deque(self._make[0](index) for index in range(begin, stop))
                while plans:
                    yield plans.popleft()
            return
        for number in range(self._stop - self._start):
            plan, error = self._ready[number % len(self._make)].get()
            if error is not None:
                raise error
            keep_for_consumer(plan)
            with self._window:  # before the plan is used: the next one is made meanwhile
                self._allowed += 1
                self._window.notify_all()
            yield plan

    def close(self) -> None:
        """Let the threads finish their window and end."""
        with self._window:
            self._closing = True
            self._window.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Prefetcher[Plan]:
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None or issubclass(kind, (GeneratorExit, DistributedError)):  # all ranks leave at the same step
            self.close()

    def _run(self, number: int) -> None:
        for index in range(number, self._stop - self._start, len(self._make)):
            with self._window:
                self._window.wait_for(lambda index=index: index < self._allowed or self._closing)  # type: ignore[misc]
                if index >= self._allowed:  # plans within the window are still made: other ranks wait for them
                    return
            try:
                self._ready[number].put((self._make[number](self._start + index), None))
            except BaseException as error:
                self._ready[number].put((None, error))
                return


def tensors_of(value) -> Iterator[torch.Tensor]:
    """Iterate over all tensors of a plan, in order of its fields. Raises TypeError for a list in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list):  # a tensor that is overlooked here is freed while the device still uses it
        raise TypeError("a plan with a list: use a tuple")
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
    elif isinstance(value, tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(item)


def map_tensors(value, change: Callable[[str, torch.Tensor], torch.Tensor], name: str = "") -> Any:
    """Copy a plan with ``change(field, tensor)`` in place of every tensor."""
    if isinstance(value, torch.Tensor):
        return change(name, value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: map_tensors(getattr(value, f.name), change, f.name) for f in fields(value)})
    if isinstance(value, tuple):
        return tuple(map_tensors(item, change, name) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change, name) for key, item in value.items()}
    return value


def shapes_of(value, name: str = "") -> Iterator:
    """Iterate over all of a plan that decides which kernels its step launches: neither values of tensors, nor the
    number of the step or epoch."""
    if isinstance(value, torch.Tensor):
        yield value.dtype, *value.shape
    elif is_dataclass(value):
        for field in fields(value):
            if field.name not in ("step", "epoch"):
                yield from shapes_of(getattr(value, field.name), field.name)
    elif isinstance(value, tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from shapes_of(item, name)
    elif value is None or isinstance(value, int | float | str):
        yield value


def other_device(device: torch.device) -> str:
    """Say why a device cannot make plans; empty: it can."""
    if on_cuda(torch.empty(0, device=device)):
        return ""
    return f"comm.device is {device.type}, plans are made on CUDA devices"


class PlanStream:
    """Makes plans on a stream of a CUDA device; on other devices they are made as they come."""

    def __init__(self, device: torch.device):
        self._device, self._stream = device, None
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # what plans are made from is there
            self._stream = torch.cuda.Stream(device)

    def run(self, make: Callable[[], Plan]) -> Plan:
        """Call ``make`` and wait for what it makes, whose memory is kept for the work of the calling thread's stream; a
        planning thread's is the default one."""
        if self._stream is None:
            return make()
        consumer = torch.cuda.current_stream(self._device)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            plan = make()
            self._stream.synchronize()
        for tensor in tensors_of(plan):
            tensor.record_stream(consumer)
        return plan


def keep_for_consumer(plan: Any) -> None:
    """Keep the memory of a plan for the work of this thread's stream too, where that is not the default one, as in a
    user's own loop: otherwise a planning thread would get the memory while that stream still uses it."""
    if not torch.cuda.is_initialized():
        return
    stream = torch.cuda.current_stream()
    if stream == torch.cuda.default_stream():
        return
    for tensor in tensors_of(plan):
        if tensor.is_cuda:
            tensor.record_stream(stream)
