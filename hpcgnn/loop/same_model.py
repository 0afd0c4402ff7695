"""Keeps a model the same on all ranks. Compares its weights and buffers, copies rank 0's initial ones of a custom model
to all ranks, and refuses draws from generators that ranks do not share."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.same import same_everywhere
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph import files
from hpcgnn.loop import checkpoint
from hpcgnn.nn.own_class import KEYED

OF_DATA = "make it of what the constructor gets alone, and not in the order of a set"
OF_STEPS = (
    "no buffer and no weight may be made of the rows of a rank, of NumPy's or Python's random numbers, or of the order "
    "of a set"
)


def share_model(model: torch.nn.Module, world: World, class_path: str) -> None:
    """Collective. Check that a new model is the same on all ranks. One of the user's own (``class_path``) gets weights
    and buffers from rank 0, as its constructor may draw them from any generator; its names and shapes must be equal.
    Raises DistributedError."""
    if class_path:
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        kinds = {f"weight or buffer {name}": _kind(tensor) for name, tensor in tensors.items()}
        check_source(class_path, "model.class_path", world)
        kinds["order of weights and buffers"] = hashlib.sha256("\n".join(tensors).encode()).hexdigest()[:16]
        # Before the broadcasts, which pair the tensors of ranks by their order.
        same_everywhere(world, kinds, f"model.class_path {class_path}: {OF_DATA}")
        job = world.job
        for tensor in tensors.values() if job.size > 1 else ():
            first = job.broadcast(tensor.detach().cpu() if job.rank == 0 else None)
            tensor.detach().copy_(first)
    check_model(model, world, class_path)


def check_source(path: str, key: str, world: World) -> None:
    """Collective over the job. Compare the file that the user's class or function is in; there is none in a notebook.
    Raises DistributedError."""
    file = getattr(sys.modules.get(path.rpartition(".")[0]), "__file__", None)
    sources = {f"file of {key} {path}": files.file_hash(file)[:16]} if file else {}
    same_everywhere(world, sources, "copy the file anew, or name a folder on PYTHONPATH that all share")


def check_model(model: torch.nn.Module, world: World, class_path: str, callbacks: Sequence[str] = ()) -> None:
    """Collective. Compare weights and persistent buffers over all ranks of the job. callbacks: paths of classes that
    may have changed them. Raises DistributedError that names the first one that differs."""
    if world.job.size == 1:
        return
    weights = {f"weight {name}": value for name, value in model.named_parameters()}
    buffers = {f"buffer {name}": value for name, value in checkpoint.buffers_of(model).items()}
    digests = {name: f"{_kind(value)} of hash {_digest(value)}" for name, value in (weights | buffers).items()}
    paths = [*[f"model.class_path {class_path}"] * bool(class_path), *[f"train.callbacks {path}" for path in callbacks]]
    remedy = f"{' or '.join(paths)}: {OF_STEPS}" if paths else "a machine, or hpcgnn, does not work right"
    same_everywhere(world, digests, remedy, user_error=bool(paths))


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {[*tensor.shape]}"


def _digest(tensor: torch.Tensor) -> str:
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(content.data).hexdigest()[:16]


def generator_states() -> dict[str, Any]:
    """Read the states of the process's random generators, from which any code may draw, by name."""
    kind, words, *rest = np.random.get_state()  # noqa: NPY002 - what others may draw from
    states: dict[str, Any] = {
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "NumPy's generator": (kind, np.asarray(words).tobytes(), *rest),
        "Python's random": random.getstate(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["torch's generator of the GPU"] = torch.cuda.get_rng_state().numpy().tobytes()
    return states


def refuse_draws(before: dict[str, Any], world: World, name: str, stage: str) -> None:
    """Collective over the job. Raise DistributedError where on any rank a generator has moved since ``before``, as by
    torch.nn.functional.dropout in the model's forward. name: what the model is called in the configuration."""
    now = generator_states()
    moved = [generator for generator, state in now.items() if before.get(generator, state) != state]
    with together(world, stage):
        if moved:
            raise ValueError(
                f"{name} draws from {' and '.join(moved)} (functional.dropout, rand, ...): results would depend "
                f"on which rows are on a rank, and a resumed run would have other results; use {KEYED}"
            )
