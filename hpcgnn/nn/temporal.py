"""Temporal models: a memory updater, an embedding, a decoder. The default parts make the temporal graph network
(Rossi et al., Temporal graph networks for deep learning on dynamic graphs, 2020).

U unique nodes, N roots, D memory width, F edge feature width, Z embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from hpcgnn import native
from hpcgnn.native import AttentionPlan, Random
from hpcgnn.nn.attention import TemporalAttentionLayer
from hpcgnn.nn.decoder import LinkDecoder
from hpcgnn.nn.time_encoding import TimeEncoding
from hpcgnn.nn.updater import MemoryUpdater


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


class TemporalModel(nn.Module):
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
