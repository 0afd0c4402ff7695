"""Gated units whose input part comes ready made. H hidden columns."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.native import empty_rows
from hpcgnn.native.products import multiply_into
from hpcgnn.nn.linear import glorot


class GatedStep(torch.autograd.Function):
    """A GRU's step, differentiable in all four; memory moves far less often than by its single operations. n rows."""

    @staticmethod
    def forward(ctx, given, hidden, gates, candidate):
        """given [n, 3 H] (update | reset | candidate), hidden [n, H], gates [H, 2 H], candidate [H, H]; returns [n,
        H]."""
        width = hidden.shape[1]
        open_gates, shown, new, out = (empty_rows(hidden, len(hidden), some * width) for some in (2, 1, 1, 1))
        multiply_into(open_gates, hidden, gates, given[:, : 2 * width]).sigmoid_()
        torch.mul(open_gates[:, width:], hidden, out=shown)
        multiply_into(new, shown, candidate, given[:, 2 * width :]).tanh_()
        ctx.save_for_backward(hidden, open_gates, shown, new, gates, candidate)
        return torch.lerp(new, hidden, open_gates[:, :width], out=out)

    @staticmethod
    def backward(ctx, gradient):
        hidden, open_gates, shown, new, gates, candidate = ctx.saved_tensors
        width = hidden.shape[1]
        update, reset = open_gates[:, :width], open_gates[:, width:]
        grad_given, grad_hidden, work, grad_shown = (empty_rows(new, len(new), some * width) for some in (3, 1, 1, 1))
        to_gates, to_new = grad_given[:, : 2 * width], grad_given[:, 2 * width :]
        torch.mul(gradient, update, out=grad_hidden)
        _tanh_backward(torch.sub(gradient, grad_hidden, out=work), new, to_new)
        _sigmoid_backward(torch.sub(hidden, new, out=work).mul_(gradient), update, to_gates[:, :width])
        multiply_into(grad_shown, to_new, candidate.t())
        _sigmoid_backward(torch.mul(grad_shown, hidden, out=work), reset, to_gates[:, width:])
        grad_hidden.addcmul_(grad_shown, reset).addmm_(to_gates, gates.t())
        return grad_given, grad_hidden, hidden.t() @ to_gates, shown.t() @ to_new


def _tanh_backward(gradient, value, out):
    torch.ops.aten.tanh_backward.grad_input(gradient, value, grad_input=out)


def _sigmoid_backward(gradient, value, out):
    torch.ops.aten.sigmoid_backward.grad_input(gradient, value, grad_input=out)


class GatedCell(nn.Module):
    """A GRU (Cho et al., 2014): h' = z h + (1 - z) tanh(g_c + (r h) V_c), z and r = sigmoid(g + h V)."""

    def __init__(self, hidden: int):
        super().__init__()
        self.gates, self.candidate = glorot(hidden, 2 * hidden), glorot(hidden, hidden)

    def forward(self, given: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """given [..., 3 H] (update | reset | candidate), hidden [..., H]."""
        width = hidden.shape[-1]
        rows = given.reshape(-1, 3 * width), hidden.reshape(-1, width)
        return GatedStep.apply(*rows, self.gates, self.candidate).view(hidden.shape)

    def reference(self, given: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The same, operation by operation."""
        width = hidden.shape[-1]
        update, reset = torch.sigmoid(given[..., : 2 * width] + hidden @ self.gates).chunk(2, dim=-1)
        candidate = torch.tanh(given[..., 2 * width :] + (reset * hidden) @ self.candidate)
        return torch.lerp(candidate, hidden, update)


class MemoryCell(nn.Module):
    """An LSTM (Hochreiter and Schmidhuber, 1997): c' = f c + i tanh(g_c), h' = o tanh(c'), i, f and o = sigmoid(g), g
    the given part + h V."""

    def __init__(self, hidden: int):
        super().__init__()
        self.weight = glorot(hidden, 4 * hidden)

    def forward(
        self, given: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """given [..., 4 H] (input | forget | output | candidate), hidden and memory [..., H]; returns both anew."""
        width = hidden.shape[-1]
        gates = given + hidden @ self.weight
        take, keep, show = torch.sigmoid(gates[..., : 3 * width]).chunk(3, dim=-1)
        memory = keep * memory + take * torch.tanh(gates[..., 3 * width :])
        return show * torch.tanh(memory), memory
