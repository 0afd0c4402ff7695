"""Gated units over graph convolutions of every snapshot.

Products with small matrices use memory that is kept from step to step. n nodes of this rank, k sequences, H hidden
columns; of a product, n rows, I and O columns in and out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from hpcgnn.native import empty_rows
from hpcgnn.native.products import multiply_into
from hpcgnn.nn.aggregation import glorot
from hpcgnn.snapshots.model.frame import Frame, SequenceModel, SequenceSizes, State
from hpcgnn.snapshots.model.spatial import Distinct, smooth_all
from hpcgnn.snapshots.model.stacks import GCNStack

_PIECE_BYTES = 1 << 19  # of hidden rows that are in a core's cache together


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, bias, rectify):
        out = multiply_into(empty_rows(rows, len(rows), weight.shape[1]), rows, weight, bias)
        ctx.save_for_backward(rows, weight, out.relu_() if rectify else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        rows, weight, out = ctx.saved_tensors
        if out is not None:
            gradient = _relu_backward(gradient, out)
        wants_rows, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grad_rows = multiply_into(empty_rows(rows, *rows.shape), gradient, weight.t()) if wants_rows else None
        grad_weight = multiply_into(torch.empty_like(weight), rows.t(), gradient) if wants_weight else None
        return grad_rows, grad_weight, gradient.sum(0) if wants_bias else None, None


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        out = torch.clamp(rows, min=0, out=empty_rows(rows, *rows.shape))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return _relu_backward(gradient, *ctx.saved_tensors)


def _relu_backward(gradient: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    memory = empty_rows(out, *out.shape)
    return torch.ops.aten.threshold_backward.grad_input(gradient, out, 0, grad_input=memory)


def affine(rows: torch.Tensor, weight: torch.Tensor, bias=None, rectify: bool = False) -> torch.Tensor:
    """Compute rows [..., I] @ weight [I, O] + bias [O], rectified if asked for: [..., O]."""
    flat = rows.reshape(-1, rows.shape[-1])
    return _Affine.apply(flat, weight, bias, rectify).view(*rows.shape[:-1], weight.shape[1])


def relu(rows: torch.Tensor) -> torch.Tensor:
    """Rectify rows [..., I]."""
    return _Relu.apply(rows.reshape(-1, rows.shape[-1])).view(rows.shape)


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, out_weight, out_bias):
        ctx.save_for_backward(rows, weight, out_weight)
        out = rows.new_empty(len(rows), len(out_weight))
        for begin, piece, hidden in _hidden_pieces(rows, weight):
            multiply_into(out[begin : begin + len(piece)], hidden, out_weight.t(), out_bias)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        rows, weight, out_weight = ctx.saved_tensors
        grad_rows = empty_rows(rows, *rows.shape) if ctx.needs_input_grad[0] else None
        grad_weight, grad_out = torch.zeros_like(weight), torch.zeros_like(out_weight)
        for begin, piece, hidden in _hidden_pieces(rows, weight):
            grad_piece = gradient[begin : begin + len(piece)]
            grad_out.addmm_(grad_piece.t(), hidden)
            # A product of one column with one row is a product of elements, and faster as one.
            behind = grad_piece * out_weight if len(out_weight) == 1 else grad_piece @ out_weight
            torch.ops.aten.threshold_backward.grad_input(behind, hidden, 0, grad_input=behind)
            grad_weight.addmm_(piece.t(), behind)
            if grad_rows is not None:
                multiply_into(grad_rows[begin : begin + len(piece)], behind, weight.t())
        return grad_rows, grad_weight, grad_out, gradient.sum(0)


def _hidden_pieces(rows: torch.Tensor, weight: torch.Tensor):
    """Cut rows [n, I] into pieces; yields the number of the first row, the piece [p, I], and relu(piece @ weight)
    [p, H], in memory that the next piece takes."""
    width = weight.shape[1]
    at_once = max(1, _PIECE_BYTES // (width * weight.element_size()))
    memory = weight.new_empty(min(at_once, len(rows)), width)
    for begin in range(0, len(rows), at_once):
        piece = rows[begin : begin + at_once]
        hidden = memory[: len(piece)]
        multiply_into(hidden, piece, weight)
        yield begin, piece, hidden.clamp_(min=0)


def perceptron(rows: torch.Tensor, weight: torch.Tensor, output: torch.nn.Linear) -> torch.Tensor:
    """Compute output(relu(rows [..., I] @ weight [I, H])) [..., O]; hidden rows are never in memory all together: the
    backward pass forms them again."""
    flat = rows.reshape(-1, rows.shape[-1])
    return _Perceptron.apply(flat, weight, output.weight, output.bias).view(*rows.shape[:-1], output.out_features)


class GatedStep(torch.autograd.Function):
    """A GRU's step, differentiable in all four; memory moves far less often than by its single operations. n rows."""

    @staticmethod
    def forward(ctx, gate_inputs, hidden, gates, candidate):
        """Do the step. gate_inputs [n, 3 H] (update | reset | candidate), hidden [n, H], gates [H, 2 H], candidate [H,
        H]; returns [n, H]."""
        width = hidden.shape[1]
        open_gates, shown, new, out = (empty_rows(hidden, len(hidden), parts * width) for parts in (2, 1, 1, 1))
        multiply_into(open_gates, hidden, gates, gate_inputs[:, : 2 * width]).sigmoid_()
        torch.mul(open_gates[:, width:], hidden, out=shown)
        multiply_into(new, shown, candidate, gate_inputs[:, 2 * width :]).tanh_()
        ctx.save_for_backward(hidden, open_gates, shown, new, gates, candidate)
        return torch.lerp(new, hidden, open_gates[:, :width], out=out)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        hidden, open_gates, shown, new, gates, candidate = ctx.saved_tensors
        width = hidden.shape[1]
        update, reset = open_gates[:, :width], open_gates[:, width:]
        grad_inputs, grad_hidden, work, grad_shown = (empty_rows(new, len(new), k * width) for k in (3, 1, 1, 1))
        to_gates, to_new = grad_inputs[:, : 2 * width], grad_inputs[:, 2 * width :]
        torch.mul(gradient, update, out=grad_hidden)
        torch.ops.aten.tanh_backward.grad_input(torch.sub(gradient, grad_hidden, out=work), new, grad_input=to_new)
        _sigmoid_backward(torch.sub(hidden, new, out=work).mul_(gradient), update, to_gates[:, :width])
        multiply_into(grad_shown, to_new, candidate.t())
        _sigmoid_backward(torch.mul(grad_shown, hidden, out=work), reset, to_gates[:, width:])
        grad_hidden.addcmul_(grad_shown, reset).addmm_(to_gates, gates.t())
        return grad_inputs, grad_hidden, hidden.t() @ to_gates, shown.t() @ to_new


def _sigmoid_backward(gradient, value, out):
    torch.ops.aten.sigmoid_backward.grad_input(gradient, value, grad_input=out)


class GatedCell(nn.Module):
    """A GRU (Cho et al., 2014): h' = z h + (1 - z) tanh(g_c + (r h) V_c), z and r = sigmoid(g + h V)."""

    def __init__(self, hidden: int):
        super().__init__()
        self.gates, self.candidate = glorot(hidden, 2 * hidden), glorot(hidden, hidden)

    def forward(self, gate_inputs: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return the new hidden rows; gate_inputs [..., 3 H] (update | reset | candidate), hidden [..., H]."""
        width = hidden.shape[-1]
        rows = gate_inputs.reshape(-1, 3 * width), hidden.reshape(-1, width)
        return GatedStep.apply(*rows, self.gates, self.candidate).view(hidden.shape)


class MemoryCell(nn.Module):
    """An LSTM (Hochreiter and Schmidhuber, 1997): c' = f c + i tanh(g_c), h' = o tanh(c'), i, f and o = sigmoid(g), g
    the gates' inputs + h V."""

    def __init__(self, hidden: int):
        super().__init__()
        self.weight = glorot(hidden, 4 * hidden)

    def forward(
        self, gate_inputs: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return new hidden rows and memory [..., H]; gate_inputs [..., 4 H] (input | forget | output | candidate)."""
        width = hidden.shape[-1]
        gates = gate_inputs + hidden @ self.weight
        take, keep, show = torch.sigmoid(gates[..., : 3 * width]).chunk(3, dim=-1)
        memory = keep * memory + take * torch.tanh(gates[..., 3 * width :])
        return show * torch.tanh(memory), memory


class TGCN(SequenceModel):
    """T-GCN (Zhao et al., A temporal graph convolutional network for traffic prediction, 2019): a gated unit over graph
    convolutions of the inputs. The convolution's matrix and the gates' matrix for it, one behind the other, are one."""

    def __init__(self, config: Any, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.node_state = {"hidden": config.hidden}
        self.below = GCNStack(config, sizes.inputs) if config.layers > 1 else None
        width = config.hidden if self.below else sizes.inputs
        self.weight, self.bias = glorot(width, 3 * config.hidden), nn.Parameter(torch.zeros(3 * config.hidden))
        self.cell, self.output = GatedCell(config.hidden), nn.Linear(config.hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        hidden = self.hidden(frames, state)
        return [self.output(relu(rows)) for rows in self.asked(hidden)], {"hidden": hidden[-1]}

    def hidden(self, frames: list[Frame], state: State) -> list[torch.Tensor]:
        """Collective. Return the hidden rows [n, k, H] after every frame."""
        every, hidden = Distinct(frames), [state["hidden"]]
        rows = smooth_all(every.frames, "gcn") if self.below is None else self.below(every.frames)
        for gate_inputs in every.spread([affine(frame_rows, self.weight, self.bias) for frame_rows in rows]):
            hidden.append(self.cell(gate_inputs, hidden[-1]))
        return hidden[1:]


class A3TGCN(TGCN):
    """A3T-GCN (Zhu et al., Attention temporal graph convolutional network for traffic forecasting, 2020). A T-GCN whose
    hidden rows of a window are weighed by a learned score of each, for every node."""

    def __init__(self, config: Any, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.score = nn.Sequential(nn.Linear(config.hidden, config.hidden), nn.Linear(config.hidden, 1))

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        hidden = torch.stack(self.hidden(frames, state))
        context = (torch.softmax(self.score(hidden), dim=0) * hidden).sum(0)
        return [self.output(relu(context))], {"hidden": hidden[-1]}


class MPNNLSTM(SequenceModel):
    """MPNN-LSTM (Panagopoulos et al., Transfer graph neural networks for pandemic forecasting, 2021). Two LSTM layers
    follow the concatenated rows of all graph convolutions; the output layer reads both LSTM layers and the inputs.
    Batch normalization follows each activation, as in the authors' program."""

    def __init__(self, config: Any, sizes: SequenceSizes):
        super().__init__(config, sizes)
        hidden = config.hidden
        self.node_state = {name: hidden for name in ("hidden0", "cell0", "hidden1", "cell1")}
        self.stack = GCNStack(config, sizes.inputs, norm_last=True)
        self.weight = nn.ParameterList([glorot(config.layers * hidden, 4 * hidden), glorot(hidden, 4 * hidden)])
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(4 * hidden)) for _ in range(2))
        self.cells = nn.ModuleList(MemoryCell(hidden) for _ in range(2))
        self.output = nn.Linear(2 * hidden + sizes.inputs, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        every, hidden = Distinct(frames), []
        layers = self.stack.layers(every.frames)
        ahead = every.spread([torch.cat(rows, dim=2) for rows in zip(*layers, strict=True)])
        state = dict(state)
        for rows in ahead:
            for number, (weight, bias, cell) in enumerate(zip(self.weight, self.bias, self.cells, strict=True)):
                names = f"hidden{number}", f"cell{number}"
                rows, memory = cell(affine(rows, weight, bias), *[state[name] for name in names])
                state.update(zip(names, (rows, memory), strict=True))
            hidden.append((state["hidden0"], rows))
        pairs = zip(self.asked(frames), self.asked(hidden), strict=True)
        return [self.output(torch.cat([*layers, frame.inputs], dim=2)) for frame, layers in pairs], state
