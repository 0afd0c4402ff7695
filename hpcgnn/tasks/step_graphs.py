"""Training steps as CUDA graphs: a step of shapes that were seen before is launched as a whole, not kernel by kernel.

What a graph reads and writes lies where it lay when it was recorded: weights, gradients and node memory do anyway, the
plan of a step is copied to where that of the recorded step was, and dropout's masks, which are other ones in every
step, are made before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from hpcgnn.native.random import LaterMask, later_masks
from hpcgnn.sample.plan_tensors import map_tensors, shapes_of, tensors_of
from hpcgnn.timers import Timers

MOST_GRAPHS = 64
Result = TypeVar("Result")


class CudaGraph:
    """Work of a device that is recorded once. All graphs share memory for what they hold while they run."""

    _pool = None

    def __init__(self):
        if CudaGraph._pool is None:
            CudaGraph._pool = torch.cuda.graph_pool_handle()
        self._graph = torch.cuda.CUDAGraph()

    def record(self, work: Callable[[], Result]) -> Result:
        """What ``work`` gives once it has been replayed; other threads may use the device meanwhile."""
        with torch.cuda.graph(self._graph, pool=CudaGraph._pool, capture_error_mode="thread_local"):
            return work()

    def replay(self) -> None:
        """Do the work, on the current stream."""
        self._graph.replay()


class StepGraphs:
    """Calls ``step(plan)``, which gives tensors and waits for nothing; from the second plan of the same shapes on as a
    graph, up to MOST_GRAPHS of them, as "compute" of the timers.

    ``record``: what makes a graph.
    """

    def __init__(self, step: Callable[[Any], Any], timers: Timers, record: Callable[[], Any] = CudaGraph):
        self._step, self._timers, self._record = step, timers, record
        self._steps: dict[tuple, _RecordedStep | None] = {}
        self.recorded = self.replayed = 0

    def __call__(self, plan) -> Any:
        """What the step gives, in memory of its own."""
        shape = tuple(shapes_of(plan))
        known = self._steps.get(shape)
        if known is None:
            if shape not in self._steps or self.recorded == MOST_GRAPHS:
                self._steps[shape] = None
                return self._step(plan)
            known = self._steps[shape] = _RecordedStep(self._step, plan, self._record())
            self.recorded += 1
        self.replayed += 1
        with self._timers("compute"):
            return known(plan)


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

    @abstractmethod
    def _set_mode(self, training: bool) -> None:
        """Of the model's parts."""

    @abstractmethod
    def _train(self, plan) -> tuple[torch.Tensor | float, Any]:
        """Collective. Loss and scores of a step, with its backward pass."""


class _RecordedStep:
    """The step of one plan, done with others of its shapes."""

    def __init__(self, step: Callable[[Any], Any], plan, graph):
        self._plan, self._graph = map_tensors(plan, _copied), graph
        targets = zip(tensors_of(self._plan), tensors_of(plan), strict=True)
        self._is_copied = [target is not source for target, source in targets]
        with later_masks() as masks:
            self._result = graph.record(lambda: step(map_tensors(self._plan, _itself)))
        self._masks: list[LaterMask] = masks
        self._check(masks)

    def __call__(self, plan) -> Any:
        self._load(plan)
        for mask in self._masks:
            mask.fill(plan.step, plan.epoch)
        self._graph.replay()
        return map_tensors(self._result, lambda name, tensor: tensor.detach().clone())

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

    def _check(self, masks: list[LaterMask]) -> None:
        """Masks are made of what is known before the step."""
        known = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(self._plan)}
        if any(mask.identity.untyped_storage().data_ptr() not in known for mask in masks):
            raise ValueError("a model whose dropout depends on what its step computes: set train.cuda_graphs false")


def _itself(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """For a plan of the same tensors: what a plan keeps once it was asked for belongs to the graph."""
    return tensor


def _copied(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A copy, but of the event features, which all plans share."""
    return tensor if name == "edge" else tensor.clone()
