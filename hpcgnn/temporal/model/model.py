"""Temporal models, put together from parts: time encoding, message, memory updater, embedding, decoder.

A model of one's own is a class with the attributes and methods of ``TemporalModel``; ``model.class_path`` names it.
U unique nodes, N roots, b events, K neighbours a root, D memory width, M mail width, S mailbox slots, F edge feature
width, Z embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hpcgnn import native
from hpcgnn.native import Random
from hpcgnn.native.layers import KeyedDropout
from hpcgnn.nn.decoders import DECODERS, DecoderSizes, meeting, score_roles
from hpcgnn.nn.own_class import own_class
from hpcgnn.temporal.config import MemoryConfig, ModelConfig
from hpcgnn.temporal.memory import newest_mail
from hpcgnn.temporal.model.embedding import AttentionEmbedding, IdentityEmbedding, MixerEmbedding, TimeProjection
from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.model.updater import UPDATERS, MessageMLP, TransformerUpdater
from hpcgnn.temporal.plan import Query


@dataclass(frozen=True, slots=True)
class Sizes:
    """What data, sampler and task fix: widths of node and edge features, neighbours a root, windows, the root mean
    square of the times between consecutive events of a node, and how links are scored."""

    node_width: int = 0
    edge_width: int = 0
    slots: int = 1
    windows: int = 1
    time_scale: float = 1.0
    decoder: str = "mlp"
    temperature: float = 1.0


class TemporalModel(nn.Module):
    """Memory updater, embedding, link decoder. Tensors in, tensors out; knows nothing of ranks.

    state_width, mail_width, mailbox_slots: the node memory it wants (widths 0: none). num_hops: levels of neighbours
    that ``embed`` needs. needs_last: whether ``embed`` needs the time of each node's last mail. needs_nearby: whether
    ``decode`` compares neighbours.
    """

    updater: Any
    embedding: Any
    decoder: Any

    def __init__(self, model: ModelConfig, memory: MemoryConfig, sizes: Sizes):
        super().__init__()
        self.config, self.memory_config, self.sizes = model, memory, sizes
        self.has_memory = memory.updater != "none"
        self.state_width = model.memory_dim if self.has_memory else 0
        self.mailbox_slots = memory.mailbox_slots
        from_embedding = model.message_from == "embedding"
        other = model.embed_dim if from_embedding else model.memory_dim
        self.mail_width = model.memory_dim + other + sizes.edge_width if self.has_memory else 0
        self.num_hops, self.needs_last = model.num_hops, model.embedding == "time_projection"
        decoder = DECODERS[sizes.decoder]
        self.needs_nearby = decoder.compares_neighbors
        time = TimeEncoding(model.time_dim, model.learn_phase, model.time_encoding == "learnable", model.time_unit)
        self.message = MessageMLP(self.mail_width, model.message_dim) if model.message == "mlp" else None
        self.updater = self._updater(time) if self.has_memory else None
        feature_width = self.state_width or (model.memory_dim if sizes.node_width else 0)
        self.feature = nn.Linear(sizes.node_width, feature_width) if sizes.node_width else None
        self.embedding = self._embedding(model.embedding, feature_width, time)
        self.attention = self._embedding("attention", feature_width, time) if from_embedding else None
        self.decoder = decoder.make(DecoderSizes(model.embed_dim, 1, sizes.temperature, sizes.slots))

    def _updater(self, time: TimeEncoding) -> nn.Module:
        width = self.mail_width if self.message is None else self.config.message_dim
        if self.memory_config.updater == "transformer":
            return TransformerUpdater(width, self.state_width, time, self.config.heads)
        state_first = self.message is None and self.memory_config.simple
        return UPDATERS[self.memory_config.updater](width, self.state_width, time, state_first)

    def _embedding(self, kind: str, width: int, time: TimeEncoding) -> nn.Module:
        config, sizes = self.config, self.sizes
        if kind == "attention":
            return AttentionEmbedding(config, width, sizes.edge_width, time, sizes.windows)
        if kind == "mixer":
            return MixerEmbedding(config, width, sizes.edge_width, time, sizes.slots)
        if kind == "time_projection":
            return TimeProjection(config, width, sizes.time_scale)
        return IdentityEmbedding(config, width)

    def update(self, state, mail, updated, mailed, delivered, index=None) -> torch.Tensor:
        """Work pending mails into the memory; returns it, [r, D].

        state [n, D], mail [n, S, M], updated [n] time of the state, mailed [n, S] times of the mails, delivered [n]
        mails ever received (all int64); index [r]: the rows wanted, None: all of them. A mail begins with the state of
        its row, where it is the node's own last one (``memory_config.simple``).
        """
        if self.message is None and self.memory_config.updater != "transformer":
            return self.updater.update_rows(index, state, mail[:, 0], mailed[:, 0], updated, delivered)
        if index is not None:
            tables = (state, mail, updated, mailed, delivered)
            state, mail, updated, mailed, delivered = (native.gather_rows(table, index) for table in tables)
        if self.message is not None:
            mail = self.message(mail)
        if self.memory_config.updater != "transformer":
            return self.updater(state, mail[:, 0], mailed[:, 0] - updated, delivered > 0)
        count = delivered.clamp(max=self.mailbox_slots)
        age = newest_mail(mailed, delivered).unsqueeze(1) - mailed
        return self.updater(state, mail, age.clamp(min=0), count)  # the updater leaves out empty slots

    def base(self, memory: torch.Tensor, feature: torch.Tensor | None) -> torch.Tensor:
        """Form the rows of the unique nodes below the first layer, [U, .]: memory, plus node features brought to its
        width."""
        if self.feature is None:
            return memory
        projected = self.feature(feature)
        return memory + projected if self.has_memory else projected

    def embed(self, node, query: Query, last=None, dropout: KeyedDropout | None = None) -> torch.Tensor:
        """Compute the embeddings [N, Z] of the roots from ``base`` rows [U, .]; last [U] int64 for models that need
        it."""
        if self.needs_last:
            return self.embedding(node, query, dropout, last)
        return self.embedding(node, query, dropout)

    def mail_parts(self, node, query: Query, embedding) -> torch.Tensor:
        """Compute what the other endpoints put into the mails, [N, .]: embeddings of the roots (``message_from``)."""
        return embedding if self.attention is None else self.attention(node, query)

    def decode(self, rows, nearby=None) -> torch.Tensor:
        """Compute logits [R - 1, b] of the sources (role 0) with each other role; rows [R, b, Z] embeddings; nearby,
        for a decoder that wants it: global ids of the roots [R, b] and of their neighbours [R, b, K]."""
        if nearby is None:
            return score_roles(self.decoder, rows)
        node, slot = nearby
        others = len(rows) - 1
        source = node[:1].expand(others, -1), slot[:1].expand(others, -1, -1)
        return self.decode_pairs(rows[0], rows[1:], (*source, node[1:], slot[1:]))

    def decode_pairs(self, source, destination, nearby=None) -> torch.Tensor:
        """Compute logits [k, b] of pairs of source [b, Z] or [k, b, Z] and destination [k, b, Z]. nearby: global ids of
        the sources [k, b], their neighbours [k, b, K], the destinations, their neighbours."""
        if nearby is None:
            return self.decoder(source, destination)
        met = meeting(*(ids.flatten(0, 1) for ids in nearby))
        return self.decoder(source, destination, met.view(*destination.shape[:2], met.shape[1]))

    def dropout(self, random: Random, identity: torch.Tensor) -> KeyedDropout | None:
        """Make the keyed dropout of the roots in training; None without."""
        if not self.training or self.config.dropout == 0:
            return None
        return KeyedDropout(random, identity, self.config.dropout)


def resolve_model(class_path: str) -> type[nn.Module]:
    """Return the class of a dotted path; TemporalModel for an empty one. Raises ValueError."""
    return own_class(class_path) if class_path else TemporalModel
