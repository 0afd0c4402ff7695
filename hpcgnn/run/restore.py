"""Weights and node memory of a checkpoint, put into a session."""

from __future__ import annotations

from pathlib import Path

import torch

from hpcgnn.run import checkpoint
from hpcgnn.run.checkpoint import State
from hpcgnn.run.launch import together
from hpcgnn.run.session import Session


def load(session: Session, path: Path) -> State:
    """Collective. Weights and node memory of a checkpoint into a session; returns the whole state."""
    with together(session.world, "read checkpoint"):
        state, names = checkpoint.load_state(path, session.partition.graph)
        weights = {name[6:]: value for name, value in state.tensors.items() if name.startswith("model.")}
        _set_weights(session.model, weights, path)
    checkpoint.load_memory(path, names, session.memory, session.partition, session.world, session.plan_channel)
    return state


def _set_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Copy in place: parameters are views into the flat buffer."""
    parameters = dict(model.named_parameters())
    if {n: p.shape for n, p in parameters.items()} != {n: w.shape for n, w in weights.items()}:
        raise ValueError(f"{path}: the weights do not fit the configured model")
    for name, parameter in parameters.items():
        parameter.data.copy_(weights[name])
