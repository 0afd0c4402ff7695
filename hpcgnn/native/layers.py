"""Whole layers as one native call forward and one backward, on the CPU: temporal attention, recurrent update, link
decoder with its loss, and the write-back of node memory. hpcgnn/nn has the same in plain torch for other devices.

A layer is a pass: an object that goes forward once and backward at most once, and keeps what backward needs. Backward
adds the gradients of the weights to a flat tensor. For autograd, functions wrap the passes.

Shapes: N roots, K slots, H heads, U unique nodes, D node width, F edge feature width, T time width, W = D + F + T,
Z embedding width. Matrix products are the kernels' own, in float32 or float64; results do not depend on the number of
threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn.native import AttentionPlan, Random
from hpcgnn.native.build import _native
from hpcgnn.native.dispatch import on_host
from hpcgnn.native.products import are_rounded

_KERNELS = {torch.float32: _native.float32, torch.float64: _native.float64}


@dataclass(frozen=True, slots=True)
class KeyedDropout:
    """Dropout whose mask is that of native.dropout_mask(random, identity [N], ., p, .)."""

    random: Random
    identity: torch.Tensor
    p: float

    def __post_init__(self):
        if not 0 <= self.p < 1:
            raise ValueError(f"dropout probability must be in [0, 1), got {self.p}")


def is_supported(*tensors: torch.Tensor) -> bool:
    """Whether the layers here take these tensors: on the CPU, float32 or float64, all of one dtype."""
    return tensors[0].dtype in _KERNELS and all(on_host(t) and t.dtype == tensors[0].dtype for t in tensors)


def can_multiply(*tensors: torch.Tensor) -> bool:
    """Whether layers with products take these tensors: their products are never rounded."""
    return is_supported(*tensors) and not are_rounded()


def _kernels(tensor: torch.Tensor):
    if not is_supported(tensor):
        raise ValueError(f"layers are native on the CPU in float32 and float64, not for {tensor.dtype} {tensor.device}")
    return _KERNELS[tensor.dtype]


def _address(tensor: torch.Tensor, dtype: torch.dtype, *shape: int) -> int:
    """The address of a contiguous tensor of the given dtype and shape (-1: any size)."""
    if tensor.dtype != dtype or not tensor.is_cpu or not tensor.is_contiguous():
        raise ValueError(f"expected a contiguous CPU tensor of {dtype}, got {tensor.dtype} on {tensor.device}")
    if tensor.shape != shape:
        given = tensor.shape
        if len(given) != len(shape) or any(a != b and b >= 0 for a, b in zip(given, shape, strict=True)):
            raise ValueError(f"expected shape {shape}, got {tuple(given)}")
    return tensor.data_ptr()


def _zeros(like: torch.Tensor, shapes: list[torch.Size]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A flat tensor of zeros, and its consecutive pieces in these shapes."""
    sizes = [shape.numel() for shape in shapes]
    flat = like.new_zeros(sum(sizes))
    return flat, [piece.view(shape) for piece, shape in zip(flat.split(sizes), shapes, strict=True)]


# ----------------------------------------------------------------------------------------------------------------
# temporal attention


@dataclass(slots=True)
class AttentionCall:
    """What a layer of attention takes besides node rows and weights: root [N] int64 rows of the unique nodes with its
    transpose (indptr [U + 1], order), edge [., F], frequency [T] float64, scale of the scores, eps of the norm."""

    root: torch.Tensor
    root_transpose: tuple[torch.Tensor, torch.Tensor]
    edge: torch.Tensor
    plan: AttentionPlan
    frequency: torch.Tensor
    scale: float
    eps: float
    dropout: KeyedDropout | None = None


def _describe_attention(call: AttentionCall, node, phase, weights):
    """The kernel's description of a call; the tensors that it points to must outlive it."""
    key, value, query_weight, query_bias, merge_weight, merge_bias, norm_weight, norm_bias = weights
    plan, dropout, dtype, long, real = call.plan, call.dropout, node.dtype, torch.int64, torch.float64
    (roots, slots), (unique, width), (heads, head_width, key_width) = plan.slot.shape, node.shape, key.shape
    edge_width, time_width, out_width = call.edge.shape[1], phase.shape[0], heads * head_width
    if key_width != width + edge_width + time_width:
        raise ValueError(f"keys are {key_width} wide, node, edge and time {width} + {edge_width} + {time_width}")
    edge_of = _address(plan.edge_of, torch.int32, roots, slots) if edge_width else 0
    return _kernels(node).AttentionLayer(
        roots=roots, unique=unique, slots=slots, heads=heads, node_width=width, edge_width=edge_width,
        time_width=time_width, out_width=out_width,
        node=_address(node, dtype, unique, width), root=_address(call.root, long, roots),
        slot=_address(plan.slot, torch.int32, roots, slots), count=_address(plan.count, torch.int32, roots),
        edge_of=edge_of, dt=_address(plan.dt, long, roots, slots), edge=_address(call.edge, dtype, -1, edge_width),
        frequency=_address(call.frequency, real, time_width), phase=_address(phase, real, time_width),
        query_weight=_address(query_weight, dtype, out_width, width + time_width),
        query_bias=_address(query_bias, dtype, out_width),
        key=_address(key, dtype, heads, head_width, key_width),
        value=_address(value, dtype, heads, head_width, key_width),
        merge_weight=_address(merge_weight, dtype, out_width, out_width + width),
        merge_bias=_address(merge_bias, dtype, out_width), norm_weight=_address(norm_weight, dtype, out_width),
        norm_bias=_address(norm_bias, dtype, out_width), scale=call.scale, eps=call.eps,
        identity=_address(dropout.identity, long, roots) if dropout else 0, dropout=dropout.p if dropout else 0.0,
        random=dropout.random.native() if dropout else None,
    )  # fmt: skip


class AttentionPass:
    """Softmax attention of each root over its slots' [node | edge | cos(w dt + b)], merged with its own row, keyed
    dropout, relu, layer norm. The products of neighbouring weights are formed first.

    node [U, D], phase [T] float64; weights: key and value [H, Z / H, W], query_weight [Z, D + T], query_bias [Z],
    merge_weight [Z, Z + D], merge_bias, norm_weight, norm_bias [Z]. width: Z.
    """

    def __init__(self, node, phase, weights, call: AttentionCall):
        self._layer, self._call = _describe_attention(call, node, phase, weights), call
        self._node, self.width, self._kept = node, weights[-1].shape[0], (phase, weights)
        self._saved = None

    def forward(self) -> torch.Tensor:
        """[N, Z]."""
        out = self._node.new_empty((self._call.root.shape[0], self.width))
        self._saved = self._layer.forward(out.data_ptr(), torch.get_num_threads())
        return out

    def backward(self, gradient: torch.Tensor, flat: torch.Tensor, with_phase: bool = False) -> torch.Tensor:
        """gradient [N, Z] of what forward returned; returns that of node [U, D], and adds those of the weights (and of
        the phase), in their order, to ``flat``."""
        plan, transpose, node, long = self._call.plan, self._call.root_transpose, self._node, torch.int64
        grad_node, size = torch.empty_like(node), self._layer.gradient_size(with_phase)
        targets, roots = node.shape[0] + 1, self._call.root.shape[0]
        self._layer.backward(
            self._saved, _address(plan.slot_indptr, long, targets), _address(plan.slot_order, long, -1),
            _address(transpose[0], long, targets), _address(transpose[1], long, roots),
            _address(gradient, node.dtype, roots, self.width), with_phase, grad_node.data_ptr(),
            _address(flat, node.dtype, size), torch.get_num_threads(),
        )  # fmt: skip
        return grad_node


class AttentionLayer(torch.autograd.Function):
    """AttentionPass of node [U, D], phase [T] and the weights, differentiable in all of them."""

    @staticmethod
    def forward(ctx, node, phase, *weights_and_call):
        *weights, call = weights_and_call
        ctx.run = AttentionPass(node, phase.detach().double(), weights, call)
        ctx.save_for_backward(phase, *weights)
        return ctx.run.forward()

    @staticmethod
    def backward(ctx, gradient):
        (phase, *weights), with_phase = ctx.saved_tensors, ctx.needs_input_grad[1]
        shapes = [w.shape for w in weights] + [phase.shape] * with_phase
        flat, gradients = _zeros(gradient, shapes)
        grad_node = ctx.run.backward(gradient.contiguous(), flat, with_phase)
        return grad_node, gradients.pop() if with_phase else None, *gradients, None


def attention_layer(node, phase, weights, call: AttentionCall) -> torch.Tensor:
    """AttentionLayer with the eight ``weights`` in their order."""
    return AttentionLayer.apply(node.contiguous(), phase, *weights, call)


# ----------------------------------------------------------------------------------------------------------------
# recurrent update


@dataclass(slots=True)
class RecurrentCall:
    """What a recurrent update takes besides weights: tables state [n, D], mail [n, M], mailed and updated [n] int64 (no
    ``updated``: ``mailed`` holds the differences), delivered [n] int64 (0: no mail), and the rows to update, index [r]
    int64 (None: all). gates: 3 for a gated recurrent unit, 1 for a plain tanh cell. frequency [T] float64. state_first:
    every mail begins with its row's state, which saves a product."""

    gates: int
    state: torch.Tensor
    mail: torch.Tensor
    mailed: torch.Tensor
    updated: torch.Tensor | None
    delivered: torch.Tensor
    index: torch.Tensor | None
    frequency: torch.Tensor
    state_first: bool = False


def _describe_recurrent(call: RecurrentCall, phase, weight_ih, weight_hh, bias_ih, bias_hh):
    (total, width), mail_width, time_width = call.state.shape, call.mail.shape[1], phase.shape[0]
    index, dtype, long, gates = call.index, call.state.dtype, torch.int64, call.gates * call.state.shape[1]
    rows = total if index is None else index.shape[0]
    return _kernels(call.state).Recurrent(
        rows=rows, gates=call.gates, state_width=width, mail_width=mail_width, time_width=time_width,
        state_first=call.state_first, index=0 if index is None else _address(index, long, rows),
        state=_address(call.state, dtype, total, width),
        mail=_address(call.mail, dtype, total, mail_width), mailed=_address(call.mailed, long, total),
        updated=0 if call.updated is None else _address(call.updated, long, total),
        delivered=_address(call.delivered, long, total),
        frequency=_address(call.frequency, torch.float64, time_width), phase=_address(phase, torch.float64, time_width),
        weight_ih=_address(weight_ih, dtype, gates, mail_width + time_width),
        weight_hh=_address(weight_hh, dtype, gates, width), bias_ih=_address(bias_ih, dtype, gates),
        bias_hh=_address(bias_hh, dtype, gates),
    )  # fmt: skip


class RecurrentPass:
    """New states [r, D]: those of rows with mail by a recurrent cell over [mail | cos(w dt + b)], others as they are.

    weights: weight_ih [gates D, M + T], weight_hh [gates D, D], bias_ih and bias_hh [gates D], ordered as in torch's
    cells; phase [T] float64.
    """

    def __init__(self, weights, phase, call: RecurrentCall):
        self._cell, self._call, self._kept = _describe_recurrent(call, phase, *weights), call, (weights, phase)
        self._saved = None

    def forward(self) -> torch.Tensor:
        """[r, D]."""
        call = self._call
        rows = call.state.shape[0] if call.index is None else call.index.shape[0]
        out = call.state.new_empty((rows, call.state.shape[1]))
        self._saved = self._cell.forward(out.data_ptr(), torch.get_num_threads())
        return out

    def backward(self, gradient: torch.Tensor, flat: torch.Tensor, with_phase: bool = False) -> None:
        """gradient [r, D] of what forward returned; adds those of the weights (and of the phase) to ``flat``."""
        dtype, width = self._call.state.dtype, self._call.state.shape[1]
        addresses = _address(gradient, dtype, -1, width), _address(flat, dtype, self._cell.gradient_size(with_phase))
        self._cell.backward(self._saved, addresses[0], with_phase, addresses[1], torch.get_num_threads())


class RecurrentUpdate(torch.autograd.Function):
    """RecurrentPass, differentiable in weights and phase [T], not in state and mail."""

    @staticmethod
    def forward(ctx, weight_ih, weight_hh, bias_ih, bias_hh, phase, call):
        weights = (weight_ih, weight_hh, bias_ih, bias_hh)
        ctx.run = RecurrentPass(weights, phase.detach().double(), call)
        ctx.save_for_backward(*weights, phase)
        return ctx.run.forward()

    @staticmethod
    def backward(ctx, gradient):
        (*weights, phase), with_phase = ctx.saved_tensors, ctx.needs_input_grad[4]
        flat, gradients = _zeros(gradient, [w.shape for w in weights] + [phase.shape] * with_phase)
        ctx.run.backward(gradient.contiguous(), flat, with_phase)
        return *gradients, *[None] * (not with_phase), None


def recurrent_update(weights, phase, call: RecurrentCall) -> torch.Tensor:
    """RecurrentUpdate with ``weights`` weight_ih, weight_hh, bias_ih, bias_hh."""
    return RecurrentUpdate.apply(*weights, phase, call)


# ----------------------------------------------------------------------------------------------------------------
# link decoder


class LinkDecoderPass:
    """Logits [R - 1, b] of pairs: out . relu(source e_0 + bias + destination e_j) + out_bias.

    embedding [R, b, Z]: role 0 holds the sources, the others destinations. weights: source [O, Z], bias [O],
    destination [O, Z], out [1, O], out_bias [1].
    """

    def __init__(self, embedding, weights):
        source, bias, destination, out, out_bias = weights
        (roles, pairs, width), hidden, dtype = embedding.shape, bias.shape[0], embedding.dtype
        if roles < 2:
            raise ValueError(f"embeddings of sources and destinations are needed, got {roles} roles")
        self._embedding, self._kept, self._saved = embedding, weights, None
        self._decoder = _kernels(embedding).LinkDecoder(
            roles=roles, pairs=pairs, width=width, hidden=hidden,
            embedding=_address(embedding, dtype, roles, pairs, width), source=_address(source, dtype, hidden, width),
            bias=_address(bias, dtype, hidden), destination=_address(destination, dtype, hidden, width),
            out=_address(out, dtype, 1, hidden), out_bias=_address(out_bias, dtype, 1),
        )  # fmt: skip

    def forward(self) -> torch.Tensor:
        """[R - 1, b]."""
        roles, pairs, _ = self._embedding.shape
        logits = self._embedding.new_empty((roles - 1, pairs))
        self._saved = self._decoder.forward(logits.data_ptr(), torch.get_num_threads())
        return logits

    def backward(self, gradient: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        """gradient [R - 1, b] of the logits; returns that of the embedding, and adds those of the weights to
        ``flat``."""
        embedding = self._embedding
        grad_embedding, dtype = torch.empty_like(embedding), embedding.dtype
        self._decoder.backward(
            self._saved, _address(gradient, dtype, embedding.shape[0] - 1, embedding.shape[1]),
            grad_embedding.data_ptr(), _address(flat, dtype, self._decoder.gradient_size()), torch.get_num_threads(),
        )  # fmt: skip
        return grad_embedding


class LinkDecoder(torch.autograd.Function):
    """LinkDecoderPass, differentiable in embedding and weights."""

    @staticmethod
    def forward(ctx, embedding, *weights):
        ctx.run = LinkDecoderPass(embedding, weights)
        ctx.save_for_backward(*weights)
        return ctx.run.forward()

    @staticmethod
    def backward(ctx, gradient):
        flat, gradients = _zeros(gradient, [w.shape for w in ctx.saved_tensors])
        return ctx.run.backward(gradient.contiguous(), flat), *gradients


def link_decoder(embedding, source, bias, destination, out, out_bias) -> torch.Tensor:
    """LinkDecoder, of embeddings laid out in any way."""
    return LinkDecoder.apply(embedding.contiguous(), source, bias, destination, out, out_bias)


def link_loss(logits: torch.Tensor, batch_size: int) -> tuple[float, torch.Tensor]:
    """Loss of logits [1 + k, b], events first, then negatives, and its gradient [1 + k, b]: the sum over events of
    -log p(event) - mean over negatives of log(1 - p), divided by ``batch_size``."""
    gradient = torch.empty_like(logits)
    addresses = _address(logits, logits.dtype, -1, -1), gradient.data_ptr()
    return _kernels(logits).link_loss(addresses[0], *logits.shape, batch_size, addresses[1]), gradient


# ----------------------------------------------------------------------------------------------------------------
# node memory


def replace_memory(table: tuple[torch.Tensor, ...], rows, place, state, given, time) -> None:
    """Replace state and only mail of unique rows [m] int64 of a table, in place: state [n, D], mail [n, 1, M], updated
    [n], mailed [n, 1], delivered [n]. New states are state [., D] at place [m] int64 (None: [m, D] as they come), new
    mails, of times [m], the new state and given [m, M - D]. The state's time becomes that of the mail it consumed; for
    a node without mail, that of its first mail."""
    states, mails, updated, mailed, delivered = table
    (total, width), mail_width, count, long = states.shape, mails.shape[2], rows.shape[0], torch.int64
    dtype = states.dtype
    _kernels(states).replace_memory(
        width, mail_width, _address(states, dtype, total, width), _address(mails, dtype, total, 1, mail_width),
        _address(updated, long, total), _address(mailed, long, total, 1), _address(delivered, long, total), count,
        _address(rows, long, count), 0 if place is None else _address(place, long, count),
        _address(state, dtype, count if place is None else -1, width),
        _address(given, dtype, count, mail_width - width), _address(time, long, count), torch.get_num_threads(),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------
# optimizer


def adam_step(
    parameter, gradient, mean, square, step: int, lr: float, betas: tuple[float, float], eps: float,
    weight_decay: float, decoupled: bool,
) -> None:  # fmt: skip
    """One step of Adam or (``decoupled``) AdamW over flat tensors [n], in place; step counts from 1."""
    arrays = [_address(t, parameter.dtype, parameter.shape[0]) for t in (gradient, parameter, mean, square)]
    _kernels(parameter).adam_step(
        step, lr, *betas, eps, weight_decay, decoupled, parameter.shape[0], *arrays, torch.get_num_threads()
    )
