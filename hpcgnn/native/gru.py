"""The elementwise part of a gated recurrent unit."""

from __future__ import annotations

import torch

from hpcgnn.native.build import _native
from hpcgnn.native.dispatch import on_host


class GruGates(torch.autograd.Function):
    """The elementwise part of a GRU, fused; differentiable in the two products, not in the old state."""

    @staticmethod
    def forward(ctx, given, kept, state):
        """given, kept [n, 3 D] products with input and state (reset | update | candidate), state [n, D]; returns [n,
        D]."""
        given, kept = given.contiguous(), kept.contiguous()
        out, gates = torch.empty_like(state), torch.empty_like(given)
        _native.gru_forward(given, kept, state, out, gates, torch.get_num_threads())
        ctx.save_for_backward(kept, state, gates)
        return out

    @staticmethod
    def backward(ctx, gradient):
        kept, state, gates = ctx.saved_tensors
        grad_given, grad_kept = torch.empty_like(gates), torch.empty_like(gates)
        _native.gru_backward(gradient.contiguous(), kept, state, gates, grad_given, grad_kept, torch.get_num_threads())
        return grad_given, grad_kept, None


def gru_gates_reference(given, kept, state):
    """GruGates in plain torch, for any device."""
    width = state.shape[1]
    reset, update = torch.sigmoid(given[:, : 2 * width] + kept[:, : 2 * width]).chunk(2, dim=1)
    candidate = torch.tanh(torch.addcmul(given[:, 2 * width :], reset, kept[:, 2 * width :]))
    return torch.lerp(candidate, state, update)


def gru_gates(given, kept, state):
    """New state [n, D]; the native kernel on the CPU, plain torch elsewhere."""
    if on_host(given) and not state.requires_grad:
        return GruGates.apply(given, kept, state)
    return gru_gates_reference(given, kept, state)
