"""Temporal attention between the products before and after it: fused on CUDA, else in plain torch. On the CPU
`hpcgnn.native.attention_layer` has the whole layer.

N roots, K slots, H heads, U unique nodes, D node width, F edge feature width, T time width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.autograd.function import once_differentiable

from hpcgnn.native.dispatch import check_index, checks_indices, compute_backend, on_cuda
from hpcgnn.native.encode import time_encode_reference


@dataclass(slots=True)
class AttentionPlan:
    """The structure of one attention call; tensors of one device.

    slot [N, K] int32: rows of the unique nodes (-1 pads); count [N] int32: number of valid slots, which come first; dt
    [N, K] int64. edge_of [N, K] int32: rows of the edge features; (slot_indptr [U + 1], slot_order): the transpose of
    slot.
    """

    slot: torch.Tensor
    count: torch.Tensor
    dt: torch.Tensor
    edge_of: torch.Tensor
    slot_indptr: torch.Tensor
    slot_order: torch.Tensor


class CudaAttention(torch.autograd.Function):
    """temporal_attention on CUDA, differentiable in query, node [U, D] and phase [T]. Keys are never stored; the same
    numbers in every run."""

    @staticmethod
    def forward(ctx, query, node, phase, edge, frequency, plan: AttentionPlan):
        if checks_indices():
            is_valid = torch.arange(plan.slot.shape[1], device=node.device) < plan.count.unsqueeze(1)
            check_index("temporal_attention", plan.slot[is_valid], len(node), least=0)
            if edge.shape[1]:
                check_index("temporal_attention, rows of edges", plan.edge_of[is_valid], len(edge), least=0)
        kernels, stream = compute_backend(query)
        query, node = query.detach().contiguous(), node.detach().contiguous()
        times = frequency.double(), phase.detach().double()
        arrays = (query, node, plan.slot, plan.count, edge, plan.edge_of, plan.dt, *times)
        aggregate, weight = torch.empty_like(query), query.new_empty((*query.shape[:2], plan.slot.shape[1]))
        kernels.attention_forward(*arrays, aggregate, weight, stream)
        ctx.arrays, ctx.weight, ctx.plan, ctx.phase_dtype = arrays, weight, plan, phase.dtype
        return aggregate

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        kernels, stream = compute_backend(gradient)
        query, node, *_ = ctx.arrays
        plan, with_phase = ctx.plan, ctx.needs_input_grad[2]
        grad_query, grad_node = torch.empty_like(query), torch.empty_like(node)
        groups = -(-len(query) // kernels.PHASE_ROOTS)
        grad_phase = query.new_empty((groups, len(ctx.arrays[-1]) if with_phase else 0), dtype=torch.float64)
        kernels.attention_backward(
            *ctx.arrays, ctx.weight, gradient.contiguous(), plan.slot_indptr, plan.slot_order,
            torch.empty_like(ctx.weight), grad_query, grad_node, grad_phase, stream,
        )  # fmt: skip
        return grad_query, grad_node, grad_phase.sum(0).to(ctx.phase_dtype) if with_phase else None, None, None, None


def temporal_attention(query, node, phase, edge, frequency, plan: AttentionPlan):
    """Softmax attention of each root over its slots' rows [node | edge | cos(w dt + b)], per head.

    query [N, H, D + F + T] is projected through the key weights and scaled; returns the weighted sums [N, H, D + F + T]
    (zero for a root without slots).
    """
    if on_cuda(query) and not frequency.requires_grad:
        return CudaAttention.apply(query, node, phase, edge, frequency, plan)
    return plain_attention(query, node, phase, edge, frequency, plan)


def plain_attention(query, node, phase, edge, frequency, plan: AttentionPlan):
    """temporal_attention in plain torch on any device: materializes the keys [N, K, D + F + T]."""
    times = time_encode_reference(plan.dt.reshape(-1), frequency, phase, query.dtype)
    return attend_to_keys(query, node, edge, times, plan)


def attend_to_keys(query, node, edge, times, plan: AttentionPlan):
    """temporal_attention over times [N K, T] that were encoded before, in any way."""
    slots = plan.slot.shape[1]
    valid = torch.arange(slots, device=query.device) < plan.count.unsqueeze(1)
    pieces = [node[plan.slot.clamp(min=0).long()]]
    if edge.shape[1]:
        edge = edge if len(edge) else edge.new_zeros(1, edge.shape[1])  # no root has a neighbor
        pieces.append(edge[plan.edge_of.clamp(min=0).long()])
    pieces.append(times.view(*plan.dt.shape, times.shape[1]))
    keys = torch.cat(pieces, dim=2).masked_fill(~valid.unsqueeze(2), 0.0)
    score = torch.einsum("nhw,nkw->nhk", query, keys).masked_fill(~valid.unsqueeze(1), float("-inf"))
    weight = torch.softmax(score, dim=2).masked_fill(~valid.unsqueeze(1), 0.0)  # roots without slots have NaN
    return torch.einsum("nhk,nkw->nhw", weight, keys)
