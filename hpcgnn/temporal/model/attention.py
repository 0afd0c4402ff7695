"""Temporal attention. U rows below, N queries, K slots, H heads, D width of the rows, F edge features, T time width, Z
out."""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn import native
from hpcgnn.native import AttentionPlan
from hpcgnn.native.attention_layer import AttentionCall, attention_layer
from hpcgnn.native.layers import KeyedDropout, can_multiply
from hpcgnn.nn.linear import linear
from hpcgnn.nn.time_encoding import TimeEncoding


class TemporalAttentionLayer(nn.Module):
    """Multi-head attention of a root over its neighbours' [node | edge | time], merged with the root's own row.

    The products of neighbouring weights are formed first (they are small), so that a root's row meets one matrix before
    the attention and one after it: query and key weights become [H W, D], value and merge weights [Z, H W].
    """

    def __init__(self, node_width: int, edge_width: int, out_width: int, heads: int, time: TimeEncoding):
        super().__init__()
        self.time, self.heads, self.node_width = time, heads, node_width
        head_width, time_width = out_width // heads, len(time.phase)
        key_width = node_width + edge_width + time_width
        self.scale = head_width**-0.5
        self.query = nn.Linear(node_width + time_width, out_width)
        self.key = nn.Parameter(torch.empty(heads, head_width, key_width))
        self.value = nn.Parameter(torch.empty(heads, head_width, key_width))
        self.merge = nn.Linear(out_width + node_width, out_width)
        self.norm = nn.LayerNorm(out_width)
        for weight in (self.key, self.value):
            nn.init.uniform_(weight, -(key_width**-0.5), key_width**-0.5)

    def embed(
        self, node, root, root_transpose, edge, plan: AttentionPlan, dropout: KeyedDropout | None = None
    ) -> torch.Tensor:
        """Embed roots. node [U, D], root [N] int64 rows of it with their transpose, edge [., F]. Returns [N, Z]; in one
        native call on the CPU."""
        if self.time.learnable or not can_multiply(node, edge, self.norm.weight):
            own = native.GatherRows.apply(node, root, *root_transpose)
            return self(node, own, edge, plan, dropout_mask(dropout, self.norm.weight.dtype, self.merge.out_features))
        call = AttentionCall(root, root_transpose, edge, plan, self.time.frequency, self.scale, self.norm.eps, dropout)
        return attention_layer(node, self.time.phase, self.weights(), call)

    def weights(self) -> list[torch.Tensor]:
        """List the weights in the order in which `attention_layer` takes them."""
        query, merge, norm = self.query, self.merge, self.norm
        return [self.key, self.value, query.weight, query.bias, merge.weight, merge.bias, norm.weight, norm.bias]

    def forward(self, node, own, edge, plan: AttentionPlan, dropout=None) -> torch.Tensor:
        """Attend in plain torch operations. node [U, D], own [N, D] the roots' rows, edge [., F]; dropout
        [N, Z] multipliers or None. Returns [N, Z].

        A key bias would cancel in the softmax and a value bias is the merge's own, so there are none.
        """
        weight, bias = self._query()
        projected = linear(own, weight, bias).view(len(own), self.heads, self.key.shape[2])
        weighted = native.temporal_attention(projected, node, self.time.phase, edge, self.time.frequency, plan)
        width = self.merge.out_features
        merge_read, merge_own = self.merge.weight[:, :width], self.merge.weight[:, width:]
        values = torch.einsum("zhd,hdw->zhw", merge_read.view(width, self.heads, -1), self.value).flatten(1)
        merged = linear(weighted.flatten(1), values) + linear(own, merge_own, self.merge.bias)
        return self.norm(torch.relu(merged if dropout is None else merged * dropout))

    def _query(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Form queries through the key weights, scaled: weight [H W, D], bias [H W]; the root's own time difference is
        0."""
        weight, bias = self.query.weight, self.query.bias
        now = bias + weight[:, self.node_width :] @ self.time.phase.cos()
        key = self.key.transpose(1, 2) * self.scale  # [H, W, Z / H]
        composed = key @ weight[:, : self.node_width].reshape(self.heads, key.shape[2], self.node_width)
        shift = key @ now.view(self.heads, key.shape[2], 1)
        return composed.flatten(0, 1), shift.flatten()


def dropout_mask(dropout: KeyedDropout | None, dtype: torch.dtype, columns: int) -> torch.Tensor | None:
    """Draw multipliers [N, columns] of the roots' rows; None without dropout."""
    if dropout is None:
        return None
    return native.dropout_mask(dropout.random, dropout.identity, columns, dropout.p, dtype)
