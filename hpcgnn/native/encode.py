"""Encoded time differences. T time width."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.build import _native
from hpcgnn.native.dispatch import on_host


class TimeEncode(torch.autograd.Function):
    """cos(dt * frequency + phase), phases reduced in float64; differentiable in ``phase`` only."""

    @staticmethod
    def forward(ctx, dt, frequency, phase, dtype):
        """dt [n] int64; frequency, phase [T]; returns [n, T] of ``dtype``."""
        cosine = torch.empty((dt.shape[0], frequency.shape[0]), dtype=dtype)
        sine = torch.empty((dt.shape[0] if ctx.needs_input_grad[2] else 0, frequency.shape[0]), dtype=dtype)
        if dt.shape[0]:
            _native.time_encode(dt, frequency.double(), phase.detach().double(), cosine, sine, torch.get_num_threads())
        ctx.save_for_backward(sine)
        ctx.phase_dtype = phase.dtype
        return cosine

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (sine,) = ctx.saved_tensors
        return None, None, -(gradient * sine).sum(0).to(ctx.phase_dtype), None


def time_encode_reference(dt, frequency, phase, dtype):
    """TimeEncode in plain torch, for any device."""
    angle = dt.to(torch.float64).unsqueeze(1) * frequency.double() + phase.double()
    return torch.cos(angle).to(dtype)


def time_encode(dt, frequency, phase, dtype):
    """cos(dt * frequency + phase) [n, T]; the native kernel on the CPU, plain torch elsewhere and for frequencies that
    are learned."""
    if on_host(dt) and not frequency.requires_grad:
        return TimeEncode.apply(dt, frequency, phase, dtype)
    return time_encode_reference(dt, frequency, phase, dtype)
