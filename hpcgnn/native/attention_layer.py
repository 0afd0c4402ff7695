"""A layer of temporal attention with all of its products as one native call forward and one backward, on the CPU.
`hpcgnn.temporal.model.readout` has the same in plain torch for other devices.

N roots, K slots, H heads, U unique nodes, D node width, F edge feature width, T time width, W = D + F + T, Z embedding
width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.attention import AttentionPlan
from hpcgnn.native.layers import KeyedDropout, address, flat_zeros, kernels_for


@dataclass(slots=True)
class AttentionCall:
    """Inputs of an attention layer, in addition to node rows and weights. root [N] int64: rows of the unique nodes,
    with its transpose (indptr [U + 1], order); edge [., F]; frequency [T] float64; scale: of the scores; eps: of the
    norm."""

    root: torch.Tensor
    root_transpose: tuple[torch.Tensor, torch.Tensor]
    edge: torch.Tensor
    plan: AttentionPlan
    frequency: torch.Tensor
    scale: float
    eps: float
    dropout: KeyedDropout | None = None


class AttentionPass:
    """Softmax attention of each root over its slots' [node | edge | cos(w dt + b)], merged with its own row, keyed
    dropout, relu, layer norm. The products of neighboring weights are formed first.

    node [U, D], phase [T] float64; weights: key and value [H, Z / H, W], query_weight [Z, D + T], query_bias [Z],
    merge_weight [Z, Z + D], merge_bias, norm_weight, norm_bias [Z]. width: Z.
    """

    def __init__(self, node, phase, weights, call: AttentionCall):
        self._node, self._phase, self._weights, self._call = node, phase, weights, call
        self.width, self._saved = weights[-1].shape[0], None
        self._layer = layer = kernels_for(node).AttentionLayer()
        self._describe_weights()
        plan, dropout, (roots, slots), edge_width = call.plan, call.dropout, call.plan.slot.shape, call.edge.shape[1]
        layer.roots, layer.slots, layer.unique = roots, slots, node.shape[0]
        layer.scale, layer.eps = call.scale, call.eps
        layer.root = address(call.root, torch.int64, roots)
        layer.slot = address(plan.slot, torch.int32, roots, slots)
        layer.count = address(plan.count, torch.int32, roots)
        layer.dt = address(plan.dt, torch.int64, roots, slots)
        layer.edge = address(call.edge, node.dtype, -1, edge_width)
        if edge_width:
            layer.edge_of = address(plan.edge_of, torch.int32, roots, slots)
        if dropout is not None:
            layer.identity = address(dropout.identity, torch.int64, roots)
            layer.dropout, layer.random = dropout.p, dropout.random.native()

    def _describe_weights(self) -> None:
        layer, dtype = self._layer, self._node.dtype
        key, value, query_weight, query_bias, merge_weight, merge_bias, norm_weight, norm_bias = self._weights
        width, edge_width, time_width = self._node.shape[1], self._call.edge.shape[1], self._phase.shape[0]
        heads, head_width, key_width = key.shape
        if key_width != width + edge_width + time_width:
            raise ValueError(f"keys are {key_width} wide, node, edge and time {width} + {edge_width} + {time_width}")
        out_width = heads * head_width
        layer.heads, layer.node_width, layer.out_width = heads, width, out_width
        layer.edge_width, layer.time_width = edge_width, time_width
        layer.node = address(self._node, dtype, -1, width)
        layer.frequency = address(self._call.frequency, torch.float64, time_width)
        layer.phase = address(self._phase, torch.float64, time_width)
        layer.key = address(key, dtype, heads, head_width, key_width)
        layer.value = address(value, dtype, heads, head_width, key_width)
        layer.query_weight = address(query_weight, dtype, out_width, width + time_width)
        layer.query_bias = address(query_bias, dtype, out_width)
        layer.merge_weight = address(merge_weight, dtype, out_width, out_width + width)
        layer.merge_bias = address(merge_bias, dtype, out_width)
        layer.norm_weight = address(norm_weight, dtype, out_width)
        layer.norm_bias = address(norm_bias, dtype, out_width)

    def forward(self) -> torch.Tensor:
        """Compute the rows of the roots, [N, Z]."""
        out = self._node.new_empty((self._call.root.shape[0], self.width))
        self._saved = self._layer.forward(out.data_ptr(), torch.get_num_threads())
        return out

    def backward(self, gradient: torch.Tensor, flat: torch.Tensor, with_phase: bool = False) -> torch.Tensor:
        """Return the gradient of node [U, D] for a gradient [N, Z] of forward's result. Adds the gradients of the
        weights (and of the phase), in their order, to ``flat``."""
        plan, transpose, node, long = self._call.plan, self._call.root_transpose, self._node, torch.int64
        grad_node, size = torch.empty_like(node), self._layer.gradient_size(with_phase)
        targets, roots = node.shape[0] + 1, self._call.root.shape[0]
        self._layer.backward(
            self._saved,
            address(plan.slot_indptr, long, targets),
            address(plan.slot_order, long, -1),
            address(transpose[0], long, targets),
            address(transpose[1], long, roots),
            address(gradient, node.dtype, roots, self.width),
            with_phase,
            grad_node.data_ptr(),
            address(flat, node.dtype, size),
            torch.get_num_threads(),
        )
        return grad_node


class _AttentionLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, node, phase, *weights_and_call):
        *weights, call = weights_and_call
        ctx.run = AttentionPass(node, phase.detach().double(), weights, call)
        ctx.save_for_backward(phase, *weights)
        return ctx.run.forward()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (phase, *weights), with_phase = ctx.saved_tensors, ctx.needs_input_grad[1]
        flat, gradients = flat_zeros(gradient, [w.shape for w in weights] + [phase.shape] * with_phase)
        grad_node = ctx.run.backward(gradient.contiguous(), flat, with_phase)
        return grad_node, gradients.pop() if with_phase else None, *gradients, None


def attention_layer(node, phase, weights, call: AttentionCall) -> torch.Tensor:
    """AttentionPass of node [U, D], phase [T] and the eight ``weights``, differentiable in all of them."""
    return _AttentionLayer.apply(node.contiguous(), phase, *weights, call)
