"""Launches training steps as CUDA graphs: a step of shapes that came before is launched as a whole, not by kernels.

A graph reads and writes memory at the addresses of its recording. Weights, gradients and node memory stay there anyway.
The plan of a step is copied to the place of the recorded step's plan. Dropout's masks, which differ in every step, are
made before. Lengths are padded to a few sizes, so that many steps have the same shapes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from hpcgnn.choices import ON
from hpcgnn.comm.timers import Timers
from hpcgnn.loop.prefetch import map_tensors, shapes_of, tensors_of
from hpcgnn.native.random import LaterMask, MaskKind, later_masks, noted_masks

MOST_GRAPHS = 64
AUTO = "auto"
Result = TypeVar("Result")


def records_steps(wanted: str, device: torch.device, hindrances: dict[str, Any]) -> bool:
    """Whether training steps become CUDA graphs: on a GPU, unless something hinders it. wanted: ``train.cuda_graphs``;
    hindrances: reasons, with whether each holds. Raises ValueError for a reason where graphs are asked for."""
    reason = next((reason for reason, holds in hindrances.items() if holds), "")
    if wanted == ON and reason:
        raise ValueError(f"train.cuda_graphs on: {reason}; leave it auto")
    return wanted == ON or (wanted == AUTO and device.type == "cuda" and not reason)


class CudaGraph:
    """Work of a device that is recorded once and replayed often."""

    def __init__(self, pool, stream: torch.cuda.Stream):
        self._graph, self._pool, self._stream = torch.cuda.CUDAGraph(), pool, stream

    def record(self, work: Callable[[], Result]) -> Result:
        """Record ``work`` and return the tensors that replays fill; other threads may use the device meanwhile."""
        with torch.cuda.graph(self._graph, self._pool, self._stream, capture_error_mode="thread_local"):
            return work()

    def replay(self) -> None:
        """Do the work again, on the current stream."""
        self._graph.replay()

    def close(self) -> None:
        """Free the graph's memory."""
        self._graph.reset()


class StepGraphs:
    """Calls ``step(plan)``, which returns tensors and waits for nothing. From the second plan of the same shapes on it
    is replayed as a graph, in the stage "compute" of the timers; there are at most MOST_GRAPHS graphs.

    required: a step that cannot be recorded is an error; if not, all further steps run kernel by kernel. make_graph:
    makes an empty graph, by default a CUDA graph; all CUDA graphs are recorded on one stream and share memory.
    """

    def __init__(
        self, step: Callable[[Any], Any], timers: Timers, required: bool = True,
        make_graph: Callable[[], Any] | None = None,
    ):  # fmt: skip
        self._step, self._timers, self._required = step, timers, required
        self._most = MOST_GRAPHS
        self._make_graph = make_graph or partial(CudaGraph, torch.cuda.graph_pool_handle(), torch.cuda.Stream())
        self._steps: dict[tuple, _RecordedStep] = {}
        self._seen: dict[tuple, list[MaskKind]] = {}  # shapes that came once, and their masks
        self.recorded = self.replayed = 0

    def __call__(self, plan) -> Any:
        """Do the step of a plan; its results are in memory of their own."""
        shape = tuple(shapes_of(plan))
        recorded = self._steps.get(shape)
        if recorded is None:
            if self.recorded >= self._most:
                return self._step(plan)
            if shape not in self._seen:
                with noted_masks() as masks:
                    result = self._step(plan)
                self._seen[shape] = masks
                return result
            try:
                recorded = _RecordedStep(self._step, plan, self._seen.pop(shape), self._make_graph())
            except (RuntimeError, ValueError) as error:
                if self._required:
                    raise
                self._most = 0
                warnings.warn(f"a step cannot be a CUDA graph: steps run kernel by kernel ({error})", stacklevel=2)
                return self._step(plan)
            self._steps[shape] = recorded
            self.recorded += 1
        self.replayed += 1
        with self._timers("compute"):
            return recorded(plan)

    def close(self) -> None:
        """Free the memory of all graphs; there are no more steps."""
        for step in self._steps.values():
            step.close()
        self._steps.clear()
        self._seen.clear()


class _RecordedStep:
    """The recorded step of one plan, which is replayed with other plans of the same shapes."""

    def __init__(self, step: Callable[[Any], Any], plan, masks: list[MaskKind], graph):
        # All plans share the event features: these are not copied.
        self._plan = map_tensors(plan, lambda name, tensor: tensor if name == "edge" else tensor.clone())
        self._graph = graph
        targets = zip(tensors_of(self._plan), tensors_of(plan), strict=True)
        self._is_copied = [target is not source for target, source in targets]
        with later_masks(masks) as later:
            # The step gets a plan of the same tensors: what a plan computes when it is used belongs to the graph.
            self._result = graph.record(lambda: step(map_tensors(self._plan, lambda name, tensor: tensor)))
        self._masks: list[LaterMask] = later.given
        self._check()

    def __call__(self, plan) -> Any:
        self._load(plan)
        for mask in self._masks:
            mask.fill(plan.step, plan.epoch)
        self._graph.replay()  # the next replay overwrites the results: these are copies
        return map_tensors(self._result, lambda name, tensor: tensor.clone())

    def close(self) -> None:
        """Free the graph's memory."""
        self._graph.close()

    def _load(self, plan) -> None:
        """Copy a plan's tensors to where the graph reads them, type by type in one launch."""
        pairs: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for target, source, is_copied in zip(tensors_of(self._plan), tensors_of(plan), self._is_copied, strict=True):
            if is_copied:
                targets, sources = pairs.setdefault(target.dtype, ([], []))
                targets.append(target)
                sources.append(source)
        for targets, sources in pairs.values():
            torch._foreach_copy_(targets, sources)

    def _check(self) -> None:
        """Raise ValueError for masks that depend on what the step computes, and for results that keep its autograd
        graph."""
        inputs = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(self._plan)}
        if any(tensor.grad_fn is not None for tensor in tensors_of(self._result)):
            raise ValueError("a task whose results can be differentiated: set train.cuda_graphs off")
        if any(mask.identity.untyped_storage().data_ptr() not in inputs for mask in self._masks):
            raise ValueError("a model whose dropout depends on what its step computes: set train.cuda_graphs off")


SMALLEST = 64
PER_OCTAVE = 4


def padded_length(length: int) -> int:
    """Round a length up to one of a few sizes; 0 stays 0."""
    octave = 1 << max(1, length - 1).bit_length() - 1
    quantum = max(SMALLEST, octave // PER_OCTAVE)
    return -(-length // quantum) * quantum
