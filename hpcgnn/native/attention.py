"""Temporal attention in plain torch, and the structure that the native layers share with it.

N roots, K slots, H heads, U unique nodes, D node width, F edge feature width, T time width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn.native.encode import time_encode_reference


@dataclass(slots=True)
class AttentionPlan:
    """The structure of one attention call; tensors of one device.

    slot [N, K] int32 rows of the unique nodes (-1 pads), count [N] int32 valid slots (first), dt [N, K] int64, edge_of
    [N, K] int32 rows of the edge features, (slot_indptr [U + 1], slot_order) the transpose of slot.
    """

    slot: torch.Tensor
    count: torch.Tensor
    dt: torch.Tensor
    edge_of: torch.Tensor
    slot_indptr: torch.Tensor
    slot_order: torch.Tensor


def temporal_attention(query, node, phase, edge, frequency, plan: AttentionPlan):
    """Softmax attention of each root over its slots' rows [node | edge | cos(w dt + b)], per head, in plain torch on
    any device: materialises the keys [N, K, D + F + T].

    query [N, H, D + F + T] is projected through the key weights and scaled; returns the weighted sums [N, H, D + F + T]
    (zero for a root without slots).
    """
    slots = plan.slot.shape[1]
    valid = torch.arange(slots, device=query.device) < plan.count.unsqueeze(1)
    pieces = [node[plan.slot.clamp(min=0).long()]]
    if edge.shape[1]:
        pieces.append(edge[plan.edge_of.clamp(min=0).long()])
    pieces.append(
        time_encode_reference(plan.dt.reshape(-1), frequency, phase, query.dtype).view(*plan.dt.shape, len(phase))
    )
    keys = torch.cat(pieces, dim=2) * valid.unsqueeze(2)
    score = torch.einsum("nhw,nkw->nhk", query, keys).masked_fill(~valid.unsqueeze(1), float("-inf"))
    weight = torch.softmax(score, dim=2).nan_to_num(0.0)
    return torch.einsum("nhk,nkw->nhw", weight, keys)
