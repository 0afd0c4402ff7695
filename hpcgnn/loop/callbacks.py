"""Calls objects of the user's own during training, which ``train.callbacks`` names. Checkpoints keep their state.

A state is stored as JSON and tensors, without pickle. In the JSON, a dictionary is ``{"dict": ...}``, and a tensor is
``{"tensor": its name}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.loop.same_model import check_source
from hpcgnn.nn.own_class import found_at, in_one_line

KEY = "train.callbacks"


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The run that calls a callback, to be read. config: all sections, such as ``config.train.lr``; model: the trained
    module; folder: of the run; world: all ranks."""

    config: Any
    model: torch.nn.Module
    folder: Path
    world: World


class Callback:
    """Base class of callbacks: its methods do nothing. A class may also have some of these methods without the base.

    An object is made without arguments on every rank, and every method is called on all ranks with equal arguments.
    Weights must stay equal on all ranks. An exception on any rank ends the run. A resumed run makes a new object, calls
    ``on_train_begin`` and then ``load_state_dict``; the other calls are those of a run that never stopped.
    """

    def on_train_begin(self, run: TrainingRun) -> None:
        """Begin: called before the first step, and before the first step of a resumed run."""

    def on_step_end(self, step: int, loss: float) -> None:
        """Follow a training step. step: its number in the run, from 0; loss: the mean over its global batch."""

    def on_epoch_end(self, epoch: int, metrics: dict[str, float]) -> bool | None:
        """Follow an epoch and its validation. True, on any rank, ends training, with ``train.eval_every`` after the
        next epoch that is validated; the test follows. epoch: its number, from 0. metrics: the loss and the metrics of
        the epoch's line in metrics.jsonl, such as ``val_accuracy``."""

    def on_train_end(self, metrics: dict[str, float]) -> None:
        """End: called after the test. metrics: of the best epoch, such as ``test_accuracy``; empty without a test."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: text, numbers, True, False, None, tensors, lists, and dictionaries with text
        as keys. Rank 0 writes it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned on rank 0. Tensors are on the CPU."""


METHODS = [name for name in vars(Callback) if not name.startswith("_")]


class Callbacks:
    """The callbacks of a run. Collective to create and to call. stopped: whether one of them has ended training."""

    def __init__(self, paths: list[str], world: World):
        """Raises DistributedError for a path that leads to no class, and a class that cannot be made."""
        self.paths, self.stopped, self._world = paths, False, world.job
        self._callbacks: dict[str, Any] = {}
        self._stored: tuple[Any, dict[str, torch.Tensor]] | None = None
        with together(self._world, f"make {KEY}"):
            for path in paths:
                if path in self._callbacks:
                    raise ValueError(f"{KEY} names {path!r} twice: give another class, derived from it")
                self._callbacks[path] = _make(path)
        for path in paths:
            check_source(path, KEY, world)

    @property
    def has_epoch_ends(self) -> bool:
        """Whether any callback follows the epochs."""
        return any(_method(callback, "on_epoch_end") for callback in self._callbacks.values())

    def call(self, name: str, *arguments: Any) -> dict[str, Any]:
        """Call a method of all callbacks that have it, in their order; returns the results by path. Raises
        DistributedError, on all ranks, for an exception on any."""
        methods = {path: method for path, callback in self._callbacks.items() if (method := _method(callback, name))}
        results: dict[str, Any] = {}
        if methods:
            with together(self._world, KEY):
                for path, method in methods.items():
                    with _named(path, name):
                        results[path] = method(*arguments)
        return results

    def begin(self, run: TrainingRun) -> None:
        """Begin the run, with the state of a checkpoint if there is one."""
        self.call("on_train_begin", run)
        if self._stored is None:
            return
        with together(self._world, KEY):
            states, tensors = self._stored
            for path, state in states.items():
                with _named(path, "load_state_dict"):
                    self._callbacks[path].load_state_dict(_decode(state, tensors))

    def end_epoch(self, epoch: int, metrics: dict[str, float]) -> str:
        """Call ``on_epoch_end`` with the metrics of rank 0; returns the paths of the callbacks that end training."""
        if not self.has_epoch_ends:
            return ""
        results = self.call("on_epoch_end", epoch, self._world.broadcast(metrics))
        with together(self._world, KEY):
            for path, result in results.items():
                if not (result is None or isinstance(result, (bool, np.bool_))):
                    kind = type(result).__name__
                    raise ValueError(f"{KEY} {path!r}: on_epoch_end returned {kind}: return True to end training")
        ending = [path for path, result in results.items() if self._world.any(bool(result))]
        self.stopped = self.stopped or bool(ending)
        return ", ".join(ending)

    def state(self) -> tuple[str, dict[str, torch.Tensor]]:
        """Return the state of all callbacks for a checkpoint, as JSON, and the tensors in it by name."""
        tensors: dict[str, torch.Tensor] = {}
        states = {}
        if not self._callbacks:
            return "", tensors
        with together(self._world, KEY):
            for path, callback in self._callbacks.items():
                if method := _method(callback, "state_dict"):
                    with _named(path, "state_dict"):
                        states[path] = _encode(method(), "its result", tensors)
        return json.dumps({"stopped": self.stopped, "states": states}), tensors

    def restore(self, text: str, tensors: dict[str, torch.Tensor]) -> None:
        """Take over what ``state`` returned; callbacks get it when the run begins."""
        if text:
            stored = json.loads(text)
            self.stopped, self._stored = stored["stopped"], (stored["states"], tensors)


def _make(path: str) -> Any:
    """Make the callback of a class. Raises ValueError."""
    callback_class = found_at(path, KEY, "Class")
    if not isinstance(callback_class, type):
        raise ValueError(f"{KEY} {path!r} is no class")
    with _named(path, "__init__"):
        callback = callback_class()
    names = [name for name in dir(callback) if name.startswith("on_") and name not in METHODS]
    if names:
        raise ValueError(f"{KEY} {path!r}: {names[0]} is never called; methods are {', '.join(METHODS)}")
    has_state = [bool(_method(callback, name)) for name in ("state_dict", "load_state_dict")]
    if has_state[0] != has_state[1]:
        raise ValueError(f"{KEY} {path!r}: state_dict and load_state_dict belong together: write both, or none")
    if not any(_method(callback, name) for name in METHODS):
        raise ValueError(f"{KEY} {path!r} has none of the methods {', '.join(METHODS)}")
    return callback


def _method(callback: Any, name: str) -> Any:
    """Return a method of a callback, None where it has none or that of the base class, which does nothing."""
    method = getattr(callback, name, None)
    return None if getattr(method, "__func__", None) is getattr(Callback, name) else method


@contextmanager
def _named(path: str, method: str) -> Iterator[None]:
    """Turn any exception of a callback in the block into a ValueError of one line that names class and method."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{KEY} {path!r}: {method}: {in_one_line(error)}") from error


def _encode(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Write a state as JSON has it, and add its tensors to ``tensors``. Raises TypeError for what cannot be stored."""
    if value is None or type(value) in (str, bool, int) or isinstance(value, float):
        return value
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_complex():
        name = str(len(tensors))
        tensors[name] = value.detach().contiguous()
        return {"tensor": name}
    if type(value) is list:
        return [_encode(entry, f"{place}[{number}]", tensors) for number, entry in enumerate(value)]
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _encode(entry, f"{place}[{key!r}]", tensors) for key, entry in value.items()}}
    raise TypeError(
        f"{place} is {type(value).__name__}: a checkpoint stores text, numbers, dense real tensors, lists, and "
        "dictionaries with text as keys"
    )


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Read what ``_encode`` wrote."""
    if isinstance(value, list):
        return [_decode(entry, tensors) for entry in value]
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _decode(entry, tensors) for key, entry in value["dict"].items()}
    return value
