"""The elementwise part of a gated recurrent unit."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.build import _native
from hpcgnn.native.dispatch import on_host


class GruGates(torch.autograd.Function):
    """The elementwise part of a GRU, fused; differentiable in the two products, not in the old state."""

    @staticmethod
    def forward(ctx, from_input, from_state, state):
        """from_input, from_state: products of input and state with their weights [n, 3 D] (reset | update | candidate);
        state [n, D]; returns [n, D]."""
        from_input, from_state = from_input.contiguous(), from_state.contiguous()
        out, gates = torch.empty_like(state), torch.empty_like(from_input)
        _native.gru_forward(from_input, from_state, state, out, gates, torch.get_num_threads())
        ctx.save_for_backward(from_state, state, gates)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        from_state, state, gates = ctx.saved_tensors
        grad_from_input, grad_from_state = torch.empty_like(gates), torch.empty_like(gates)
        _native.gru_backward(
            gradient.contiguous(), from_state, state, gates, grad_from_input, grad_from_state, torch.get_num_threads()
        )
        return grad_from_input, grad_from_state, None


def gru_gates_reference(from_input, from_state, state):
    """GruGates in plain torch, for any device."""
    width = state.shape[1]
    reset, update = torch.sigmoid(from_input[:, : 2 * width] + from_state[:, : 2 * width]).chunk(2, dim=1)
    candidate = torch.tanh(torch.addcmul(from_input[:, 2 * width :], reset, from_state[:, 2 * width :]))
    return torch.lerp(candidate, state, update)


def gru_gates(from_input, from_state, state):
    """New state [n, D]; the native kernel on the CPU, plain torch elsewhere."""
    if on_host(from_input) and not state.requires_grad:
        return GruGates.apply(from_input, from_state, state)
    return gru_gates_reference(from_input, from_state, state)
