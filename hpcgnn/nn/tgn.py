"""Temporal graph network (Rossi et al., Temporal graph networks for deep learning on dynamic graphs, 2020).

U unique nodes, N roots, K slots, H heads, D memory width, F edge feature width, T time width, Z embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from hpcgnn import native
from hpcgnn.native import AttentionPlan, Random
from hpcgnn.nn.linear import linear, padded


@dataclass
class ModelConfig:
    """The network.

    Attributes:
        memory_dim: width of a node's memory.
        time_dim: width of the time encoding.
        embed_dim: width of an embedding.
        heads: attention heads; must divide embed_dim.
        dropout: of the embeddings, keyed by root and column.
        learn_phase: whether the time encoding's phase is learnt (its frequencies are fixed).
    """

    memory_dim: int = 100
    time_dim: int = 100
    embed_dim: int = 100
    heads: int = 2
    dropout: float = 0.1
    learn_phase: bool = False

    def __post_init__(self):
        if min(self.memory_dim, self.time_dim, self.embed_dim, self.heads) < 1:
            raise ValueError("model.memory_dim, time_dim, embed_dim and heads must be at least 1")
        if self.embed_dim % self.heads:
            raise ValueError(f"model.heads ({self.heads}) must divide model.embed_dim ({self.embed_dim})")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must be in [0, 1), got {self.dropout}")


class TimeEncoding(nn.Module):
    """cos(w dt + b) with fixed w = 10^-linspace(0, 9, T) (Cong et al., Do we really need complicated model
    architectures for temporal networks?, 2023). Time differences are int64 in the source's unit."""

    def __init__(self, width: int, learn_phase: bool = False):
        super().__init__()
        self.register_buffer("frequency", 10.0 ** -torch.linspace(0, 9, width, dtype=torch.float64), persistent=False)
        self.phase = nn.Parameter(torch.zeros(width), requires_grad=learn_phase)

    def forward(self, dt: torch.Tensor) -> torch.Tensor:
        """dt [n] int64; returns [n, T]."""
        return native.time_encode(dt, self.frequency, self.phase, self.phase.dtype)

    def _apply(self, function, recurse=True):
        frequency = self.frequency  # phases are formed in float64, whatever the precision of the weights
        super()._apply(function, recurse)
        self.frequency = frequency.to(self.frequency.device)
        return self


class MemoryUpdater(nn.Module):
    """GRU (Cho et al., 2014) over (mail, encoded time since the last update)."""

    def __init__(self, mail_width: int, memory_width: int, time: TimeEncoding):
        super().__init__()
        self.time = time
        self.cell = nn.GRUCell(mail_width + len(time.phase), memory_width)

    def forward(self, state, mail, dt, has_mail) -> torch.Tensor:
        """state [r, D], mail [r, M], dt [r] int64, has_mail [r]; returns the updated state, or the old one without
        mail."""
        rows = torch.nonzero(has_mail).squeeze(1)
        count = rows.numel()
        if count == 0:
            return state
        index = functional.pad(rows, (0, padded(count) - count), value=-1)  # gathers rows of zeros
        new = self._step(*(native.gather_rows(column, index) for column in (state, mail, dt)))
        return state.index_copy(0, rows, new[:count])

    def _step(self, state, mail, dt) -> torch.Tensor:
        cell = self.cell
        given = linear(torch.cat([mail, self.time(dt)], dim=1), cell.weight_ih, cell.bias_ih)
        kept = linear(state, cell.weight_hh, cell.bias_hh)
        return native.gru_gates(given, kept, state)


class TemporalAttentionLayer(nn.Module):
    """Multi-head attention of a root over its neighbours' [node | edge | time], merged with the root's own row.

    The products of neighbouring weights are formed first (they are small), so that a root's row meets one matrix before
    the fused kernel and one after it: query and key weights become [H W, D], value and merge weights [Z, H W].
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

    def forward(self, node, own, edge, plan: AttentionPlan, dropout=None) -> torch.Tensor:
        """node [U, D], own [N, D] the roots' rows, edge [., F]; dropout [N, Z] multipliers or None. Returns [N, Z].

        A key bias would cancel in the softmax and a value bias is the merge's own, so there are none.
        """
        projected = self._project(own).view(len(own), self.heads, self.key.shape[2])
        weighted = native.temporal_attention(projected, node, self.time.phase, edge, self.time.frequency, plan)
        merged = linear(weighted.flatten(1), self._out_weight()) + linear(
            own, self.merge.weight[:, -self.node_width :], self.merge.bias
        )
        return self.norm(torch.relu(merged if dropout is None else merged * dropout))

    def _project(self, own) -> torch.Tensor:
        """Queries through the key weights, scaled, [N, H W]; the root's own time difference is 0."""
        weight, bias = self.query.weight, self.query.bias
        now = bias + weight[:, self.node_width :] @ self.time.phase.cos()
        key = self.key.transpose(1, 2) * self.scale  # [H, W, Z / H]
        composed = key @ weight[:, : self.node_width].view(self.heads, -1, self.node_width)
        shift = key @ now.view(self.heads, -1, 1)
        return linear(own, composed.flatten(0, 1), shift.flatten())

    def _out_weight(self) -> torch.Tensor:
        merge = self.merge.weight[:, : -self.node_width].view(self.merge.out_features, self.heads, -1)
        return torch.einsum("zhd,hdw->zhw", merge, self.value).flatten(1)


class LinkDecoder(nn.Module):
    """Score of a pair from its embeddings."""

    def __init__(self, width: int):
        super().__init__()
        self.source, self.destination = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 1)

    def forward(self, source, destination) -> torch.Tensor:
        """source [n, Z]; destination [n, Z] or [k, n, Z]; returns logits [n] or [k, n]."""
        given = linear(source, self.source.weight, self.source.bias)
        asked = linear(destination.flatten(0, -2), self.destination.weight)
        asked = asked.view(*destination.shape[:-1], self.destination.out_features)
        return functional.linear(torch.relu(given + asked), self.out.weight, self.out.bias).squeeze(-1)


class TGN(nn.Module):
    """Memory updater, one layer of temporal attention, link decoder. Pure torch: tensors in, tensors out."""

    def __init__(self, config: ModelConfig, node_width: int = 0, edge_width: int = 0):
        super().__init__()
        self.config = config
        self.state_width = config.memory_dim
        self.mail_width = 2 * config.memory_dim + edge_width
        time = TimeEncoding(config.time_dim, config.learn_phase)
        self.updater = MemoryUpdater(self.mail_width, config.memory_dim, time)
        self.attention = TemporalAttentionLayer(config.memory_dim, edge_width, config.embed_dim, config.heads, time)
        self.feature = nn.Linear(node_width, config.memory_dim) if node_width else None
        self.decoder = LinkDecoder(config.embed_dim)

    def update(self, state, mail, dt, has_mail) -> torch.Tensor:
        """Memory with the pending mail worked in, [r, D]."""
        return self.updater(state, mail, dt, has_mail)

    def embed(
        self, memory, node_feature, root, root_transpose, edge, plan: AttentionPlan, dropout=None
    ) -> torch.Tensor:
        """Embeddings [N, Z] of the roots. memory [U, D]; node_feature [U, .] or None; root [N] rows of the unique
        nodes."""
        node = memory if self.feature is None else memory + self.feature(node_feature)
        own = native.GatherRows.apply(node, root, *root_transpose)
        return self.attention(node, own, edge, plan, dropout)

    def dropout(self, random: Random, identity: torch.Tensor) -> torch.Tensor | None:
        """Keyed multipliers [N, Z] for training."""
        if not self.training or self.config.dropout == 0:
            return None
        return native.dropout_mask(
            random, identity, self.config.embed_dim, self.config.dropout, self.decoder.out.weight.dtype
        )
