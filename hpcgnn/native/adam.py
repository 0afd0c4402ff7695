"""The optimizer's step over flat tensors on the CPU."""

from __future__ import annotations

import torch

from hpcgnn.native.layers import address, kernels_for


def adam_step(
    parameter, gradient, mean, square, step: int, lr: float, betas: tuple[float, float], eps: float,
    weight_decay: float, decoupled: bool,
) -> None:  # fmt: skip
    """One step of Adam or (``decoupled``) AdamW over flat tensors [n], in place; step counts from 1."""
    arrays = [address(t, parameter.dtype, parameter.shape[0]) for t in (gradient, parameter, mean, square)]
    kernels_for(parameter).adam_step(
        step, lr, *betas, eps, weight_decay, decoupled, parameter.shape[0], *arrays, torch.get_num_threads()
    )
