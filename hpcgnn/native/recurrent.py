"""The recurrent update of node memory as one native call forward and one backward, on the CPU.
`hpcgnn.temporal.model.updater` has the same in plain torch for other devices.

n rows of the tables, r rows to update, D state width, M mail width, T time width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.layers import address, flat_zeros, kernels_for


@dataclass(slots=True)
class RecurrentCall:
    """Inputs of a recurrent update, in addition to weights. Tables: state [n, D], mail [n, M], mailed and updated [n]
    int64 (without ``updated``, ``mailed`` holds the differences), delivered [n] int64 (0: no mail). index [r] int64:
    rows to update (None: all). gates: 3 for a gated recurrent unit, 1 for a plain tanh cell. frequency [T] float64.
    state_first: every mail begins with its row's state, which saves a product."""

    gates: int
    state: torch.Tensor
    mail: torch.Tensor
    mailed: torch.Tensor
    updated: torch.Tensor | None
    delivered: torch.Tensor
    index: torch.Tensor | None
    frequency: torch.Tensor
    state_first: bool = False


class RecurrentPass:
    """New states [r, D]: of rows with mail by a recurrent cell over [mail | cos(w dt + b)], of other rows unchanged.

    weights: weight_ih [gates D, M + T], weight_hh [gates D, D], bias_ih and bias_hh [gates D], ordered as in torch's
    cells; phase [T] float64.
    """

    def __init__(self, weights, phase, call: RecurrentCall):
        self._weights, self._phase, self._call, self._saved = weights, phase, call, None
        self._cell = cell = kernels_for(call.state).Recurrent()
        (total, width), mail_width, time_width = call.state.shape, call.mail.shape[1], phase.shape[0]
        dtype, long, real, gates = call.state.dtype, torch.int64, torch.float64, call.gates * width
        cell.rows = total if call.index is None else call.index.shape[0]
        cell.gates, cell.state_width, cell.mail_width, cell.time_width = call.gates, width, mail_width, time_width
        cell.state_first = call.state_first
        cell.state = address(call.state, dtype, total, width)
        cell.mail = address(call.mail, dtype, total, mail_width)
        cell.mailed = address(call.mailed, long, total)
        cell.delivered = address(call.delivered, long, total)
        if call.index is not None:
            cell.index = address(call.index, long, -1)
        if call.updated is not None:
            cell.updated = address(call.updated, long, total)
        cell.frequency = address(call.frequency, real, time_width)
        cell.phase = address(phase, real, time_width)
        weight_ih, weight_hh, bias_ih, bias_hh = weights
        cell.weight_ih = address(weight_ih, dtype, gates, mail_width + time_width)
        cell.weight_hh = address(weight_hh, dtype, gates, width)
        cell.bias_ih = address(bias_ih, dtype, gates)
        cell.bias_hh = address(bias_hh, dtype, gates)

    def forward(self) -> torch.Tensor:
        """Compute the new states [r, D]."""
        out = self._call.state.new_empty((self._cell.rows, self._call.state.shape[1]))
        self._saved = self._cell.forward(out.data_ptr(), torch.get_num_threads())
        return out

    def backward(self, gradient: torch.Tensor, flat: torch.Tensor, with_phase: bool = False) -> None:
        """Add the gradients of the weights (and of the phase) to ``flat``, for a gradient [r, D] of forward's
        result."""
        dtype, width = self._call.state.dtype, self._call.state.shape[1]
        grad_weights = address(flat, dtype, self._cell.gradient_size(with_phase))
        grad_out = address(gradient, dtype, -1, width)
        self._cell.backward(self._saved, grad_out, with_phase, grad_weights, torch.get_num_threads())


class _RecurrentUpdate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight_ih, weight_hh, bias_ih, bias_hh, phase, call):
        weights = (weight_ih, weight_hh, bias_ih, bias_hh)
        ctx.run = RecurrentPass(weights, phase.detach().double(), call)
        ctx.save_for_backward(*weights, phase)
        return ctx.run.forward()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (*weights, phase), with_phase = ctx.saved_tensors, ctx.needs_input_grad[4]
        flat, gradients = flat_zeros(gradient, [w.shape for w in weights] + [phase.shape] * with_phase)
        ctx.run.backward(gradient.contiguous(), flat, with_phase)
        return *gradients, *[None] * (not with_phase), None


def recurrent_update(weights, phase, call: RecurrentCall) -> torch.Tensor:
    """RecurrentPass of ``weights`` weight_ih, weight_hh, bias_ih, bias_hh and phase [T], differentiable in them, not in
    state and mail."""
    return _RecurrentUpdate.apply(*weights, phase, call)
