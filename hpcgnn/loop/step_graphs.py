"""Launches training steps as CUDA graphs: a step of shapes that were seen before as a whole, not kernel by kernel.

What a graph reads and writes lies where it lay when it was recorded: weights, gradients and node memory do anyway, the
plan of a step is copied to where that of the recorded step was, and dropout's masks, which are other ones in every
step, are made before. Lengths are padded to a few sizes, so that many steps have the same shapes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from hpcgnn.comm.timers import Timers
from hpcgnn.loop.prefetch import map_tensors, shapes_of, tensors_of
from hpcgnn.native.random import LaterMask, MaskKind, later_masks, noted_masks

MOST_GRAPHS = 64
Result = TypeVar("Result")


class CudaGraphs:
    """Makes graphs that are recorded on one stream and share memory for what they hold while they run."""

    def __init__(self):
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def __call__(self) -> CudaGraph:
        return CudaGraph(self._pool, self._stream)


class CudaGraph:
    """Work of a device that is recorded once."""

    def __init__(self, pool, stream: torch.cuda.Stream):
        self._graph, self._pool, self._stream = torch.cuda.CUDAGraph(), pool, stream

    def record(self, work: Callable[[], Result]) -> Result:
        """What ``work`` gives once it has been replayed; other threads may use the device meanwhile."""
        with torch.cuda.graph(self._graph, self._pool, self._stream, capture_error_mode="thread_local"):
            return work()

    def replay(self) -> None:
        """Do the work, on the current stream."""
        self._graph.replay()

    def close(self) -> None:
        """Give its memory back."""
        self._graph.reset()


class StepGraphs:
    """Calls ``step(plan)``, which gives tensors and waits for nothing; from the second plan of the same shapes on as a
    graph, up to MOST_GRAPHS of them, as "compute" of the timers.

    ``record``: what makes a graph, by default CUDA's.
    """

    def __init__(self, step: Callable[[Any], Any], timers: Timers, record: Callable[[], Any] | None = None):
        self._step, self._timers, self._record = step, timers, record or CudaGraphs()
        self._steps: dict[tuple, _RecordedStep] = {}
        self._seen: dict[tuple, list[MaskKind]] = {}  # shapes that came once, and their masks
        self.recorded = self.replayed = 0

    def __call__(self, plan) -> Any:
        """What the step gives, in memory of its own."""
        shape = tuple(shapes_of(plan))
        known = self._steps.get(shape)
        if known is None:
            if self.recorded == MOST_GRAPHS:
                return self._step(plan)
            if shape not in self._seen:
                return self._first(shape, plan)
            known = self._steps[shape] = _RecordedStep(self._step, plan, self._seen.pop(shape), self._record())
            self.recorded += 1
        self.replayed += 1
        with self._timers("compute"):
            return known(plan)

    def _first(self, shape: tuple, plan) -> Any:
        with noted_masks() as masks:
            result = self._step(plan)
        self._seen[shape] = masks
        return result

    def close(self) -> None:
        """Give all memory back; there are no more steps."""
        for step in self._steps.values():
            step.close()
        self._steps.clear()
        self._seen.clear()


class StepTask(ABC):
    """A task whose training steps may be launched as graphs. last_scores: of the newest training step."""

    def __init__(self):
        self.last_scores: Any = None
        self._graphs: StepGraphs | None = None

    def use_graphs(self, graphs: Callable[[Callable[[Any], Any]], StepGraphs]) -> None:
        """Train by graphs, on one rank. ``graphs`` makes them of the function that does a step."""
        self._graphs = graphs(self._train)

    def train(self, plan) -> torch.Tensor | float:
        """Collective. Forward and backward (gradients accumulate in the parameters), and what the step leaves to the
        next ones; returns this rank's share of the loss."""
        self._set_mode(training=True)
        loss, self.last_scores = (self._graphs or self._train)(plan)
        return loss

    def close(self) -> None:
        """There are no more steps."""
        if self._graphs is not None:
            self._graphs.close()
            self._graphs = None

    @abstractmethod
    def _set_mode(self, training: bool) -> None:
        """Of the model's parts."""

    @abstractmethod
    def _train(self, plan) -> tuple[torch.Tensor | float, Any]:
        """Collective. Loss and scores of a step, with its backward pass."""


class _RecordedStep:
    """The step of one plan, done with others of its shapes."""

    def __init__(self, step: Callable[[Any], Any], plan, masks: list[MaskKind], graph):
        self._plan, self._graph = map_tensors(plan, _copied), graph
        targets = zip(tensors_of(self._plan), tensors_of(plan), strict=True)
        self._is_copied = [target is not source for target, source in targets]
        with later_masks(masks) as later:
            self._result = graph.record(lambda: step(map_tensors(self._plan, _itself)))
        self._masks: list[LaterMask] = later.given
        self._check()

    def __call__(self, plan) -> Any:
        self._load(plan)
        for mask in self._masks:
            mask.fill(plan.step, plan.epoch)
        self._graph.replay()
        return map_tensors(self._result, lambda name, tensor: tensor.clone())

    def close(self) -> None:
        """Give its memory back."""
        self._graph.close()

    def _load(self, plan) -> None:
        """Copy a plan's tensors to where the graph reads them, type by type in one launch."""
        pairs: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for target, source, copied in zip(tensors_of(self._plan), tensors_of(plan), self._is_copied, strict=True):
            if copied:
                targets, sources = pairs.setdefault(target.dtype, ([], []))
                targets.append(target)
                sources.append(source)
        for targets, sources in pairs.values():
            torch._foreach_copy_(targets, sources)

    def _check(self) -> None:
        """Masks are made of what is known before the step, and no result keeps the step's own graph of autograd."""
        known = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(self._plan)}
        if any(tensor.grad_fn is not None for tensor in tensors_of(self._result)):
            raise ValueError("a task whose results can be differentiated: set train.cuda_graphs false")
        if any(mask.identity.untyped_storage().data_ptr() not in known for mask in self._masks):
            raise ValueError("a model whose dropout depends on what its step computes: set train.cuda_graphs false")


def _itself(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """For a plan of the same tensors: what a plan keeps once it was asked for belongs to the graph."""
    return tensor


def _copied(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A copy, but of the event features, which all plans share."""
    return tensor if name == "edge" else tensor.clone()


SMALLEST = 64
PER_OCTAVE = 4


def padded_length(length: int) -> int:
    """The next size that is not smaller; 0 stays 0."""
    octave = 1 << max(1, length - 1).bit_length() - 1
    quantum = max(SMALLEST, octave // PER_OCTAVE)
    return -(-length // quantum) * quantum
