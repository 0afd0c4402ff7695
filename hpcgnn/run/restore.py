"""Weights and node memory of a checkpoint, put into a session."""

from __future__ import annotations

from pathlib import Path

import torch

from hpcgnn.comm.together import together
from hpcgnn.run import checkpoint
from hpcgnn.run.base import BaseSession
from hpcgnn.run.checkpoint import State

HEAD = "decoder."


def load(session: BaseSession, path: Path) -> State:
    """Collective. Weights and node memory of a checkpoint into a session; returns the whole state."""
    with together(session.world, "read checkpoint"):
        state, names = checkpoint.load_state(path, session.partition.graph)
        _set_weights(session.model, checkpoint.model_weights(state.tensors), path)
    checkpoint.load_memory(path, names, session.memory, session.partition, session.world, session.plan_channel)
    session.restore_state(state.tensors)
    return state


def _set_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Copy in place: parameters are views into the flat buffer."""
    parameters = dict(model.named_parameters())
    wanted, found = ({(n, *p.shape) for n, p in given.items()} for given in (parameters, weights))
    if wanted != found:
        raise ValueError(
            f"{path}: the weights do not fit the configured model ({_first(found - wanted)} where it has "
            f"{_first(wanted - found)}): use the model section of that run and the hpcgnn that wrote it, or train anew"
        )
    for name, parameter in parameters.items():
        parameter.data.copy_(weights[name])


def _first(weights: set[tuple]) -> str:
    """The first weight in words."""
    name, *shape = min(weights, default=("nothing",))
    return f"{name} {shape}" if shape else name


def initialize(session: BaseSession, folder: Path) -> str:
    """Collective. The best weights of a finished run into everything but the head; returns what was done, in words.

    Raises DistributedError when nothing fits, or when ``task.freeze`` would leave parts that do not fit untrained.
    """
    with together(session.world, "read task.init"):
        best = checkpoint.find_best(folder / "checkpoints")
        if best is None:
            raise ValueError(f"task.init {folder}: no best checkpoint there: name the folder of a finished run")
        new = _copy_weights(session.model, checkpoint.load_weights(best), best, session.config.task.freeze)
    return f"weights from {best}; new: {', '.join(new)}"


def _copy_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], path: Path, complete: bool) -> list[str]:
    """Copy what fits by name and shape; returns the names of what does not, the head's left to itself."""
    parameters = dict(model.named_parameters())
    body = [name for name in parameters if not name.startswith(HEAD)]
    fitting = [name for name in body if name in weights and weights[name].shape == parameters[name].shape]
    left = [name for name in body if name not in fitting]
    if not fitting:
        raise ValueError(f"{path}: none of its weights fits the configured model: use the model section of that run")
    if complete and left:
        raise ValueError(
            f"{path}: {', '.join(left)} do not fit, and task.freeze would leave them untrained: use the model, memory "
            "and sampling sections of that run, or freeze false"
        )
    for name in fitting:
        parameters[name].data.copy_(weights[name])
    return [*left, HEAD.rstrip(".")]
