"""Temporal models, put together from parts: time encoding, message, memory updater, readout, decoder.

A user's own model is a class with the attributes and methods of ``TemporalModel``; ``model.class_path`` names it.
U unique nodes, N roots, b events, K neighbors a root, D memory width, M mail width, S mailbox slots, F edge feature
width, Z embedding width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hpcgnn.native import Random
from hpcgnn.native.layers import KeyedDropout
from hpcgnn.nn.decoders import DECODERS, DecoderSizes, meeting, score_roles
from hpcgnn.nn.own_class import own_class
from hpcgnn.temporal.model.readout import READOUTS, TemporalSizes
from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.model.updater import MESSAGES, UPDATERS, UpdaterSizes, take_rows
from hpcgnn.temporal.plan import Query


class TemporalModel(nn.Module):
    """Memory updater, readout and link decoder, of tensors alone: ranks do not occur here.

    state_width, mail_width, mailbox_slots: sizes of its node memory (widths 0: none). num_hops: levels of neighbors
    that ``embed`` needs. needs_last: whether ``embed`` needs the time of each node's last mail. needs_nearby: whether
    ``decode`` compares neighbors. needs_clocks: whether it reads clocks of pairs. has_embedding: whether ``embed``
    returns more than rows of width 0. embeds_pairs: whether these rows are of the ends of pairs, for ``decode_pairs``.
    """

    updater: Any
    embedding: Any
    decoder: Any

    def __init__(self, model: Any, memory: Any, sizes: TemporalSizes):
        """model, memory: the sections of the run file."""
        super().__init__()
        self.config, self.memory_config, self.sizes = model, memory, sizes
        updater, readout, message = UPDATERS[memory.updater], READOUTS[model.readout], MESSAGES[model.message]
        self.has_memory = updater.make is not None
        self.state_width = memory.dim if self.has_memory else 0
        self.mailbox_slots = memory.mailbox_slots
        from_embedding = model.message_from == "embedding"
        other = model.hidden if from_embedding else memory.dim
        self.mail_width = memory.dim + other + sizes.edge_width if self.has_memory else 0
        self.num_hops, self.needs_last, self.embeds_pairs = model.num_hops, readout.reads_last, readout.of_pairs
        decoder = DECODERS[sizes.decoder]
        self.needs_nearby, self.needs_clocks = decoder.compares_neighbors, decoder.reads_clocks
        time = TimeEncoding(model.time_dim, model.learn_phase, model.time_encoding == "learnable", model.time_unit)
        # The order in which parts are made is that in which torch's generator draws their weights: do not change it.
        self.message = None if message.make is None else message.make(self.mail_width, model.message_dim)
        width = self.mail_width if self.message is None else model.message_dim
        state_first = self.message is None and memory.simple
        updater_sizes = UpdaterSizes(width, self.state_width, time, model.heads, state_first)
        self.updater = None if updater.make is None else updater.make(updater_sizes)
        feature_width = self.state_width or (memory.dim if sizes.node_width else 0)
        self.feature = nn.Linear(sizes.node_width, feature_width) if sizes.node_width else None
        self.embedding = readout.make(model, feature_width, time, sizes)
        attention = READOUTS["attention"]
        self.attention = attention.make(model, feature_width, time, sizes) if from_embedding else None
        self.has_embedding = feature_width > 0 or not readout.shows_memory
        embedding_width = model.hidden if self.has_embedding else 0
        self.decoder = decoder.make(
            DecoderSizes(embedding_width, 1, sizes.temperature, sizes.slots, clocks=sizes.clocks, hidden=model.hidden)
        )
        self.edge_type = nn.Embedding(sizes.edge_types, embedding_width) if sizes.edge_types else None
        if self.edge_type is not None:
            nn.init.zeros_(self.edge_type.weight)  # training starts from scores that are the same for all edge types

    def update(self, state, mail, updated, mailed, delivered, index=None) -> torch.Tensor:
        """Work pending mails into the memory; returns it, [r, D].

        state [n, D], mail [n, S, M]; updated [n]: time of the state; mailed [n, S]: times of the mails; delivered [n]:
        number of mails ever received (all int64). index [r]: the rows to update, None: all. A mail begins with the
        state of its row, where it is the node's own last one (``memory_config.simple``).
        """
        if self.message is None:
            return self.updater(state, mail, updated, mailed, delivered, index)
        state, mail, *columns = take_rows(index, state, mail, updated, mailed, delivered)
        return self.updater(state, self.message(mail), *columns)

    def base(self, memory: torch.Tensor, feature: torch.Tensor | None) -> torch.Tensor:
        """Form the rows of the unique nodes below the first layer, [U, .]: memory, plus node features brought to its
        width."""
        if self.feature is None:
            return memory
        projected = self.feature(feature)
        return memory + projected if self.has_memory else projected

    def embed(self, node, query: Query, last=None, dropout: KeyedDropout | None = None) -> torch.Tensor:
        """Compute the embeddings [N, Z] of the roots from ``base`` rows [U, .] or, where the model ``embeds_pairs``,
        of the ends of pairs, [2 (1 + k) b, Z]: first all sources. last [U] int64 for models that need it."""
        return self.embedding(node, query, dropout, last)

    def mail_parts(self, node, query: Query, embedding) -> torch.Tensor:
        """Compute what the other endpoints put into the mails, [N, .]: embeddings of the roots (``message_from``)."""
        return embedding if self.attention is None else self.attention(node, query)

    def decode(self, rows, nearby=None, edge_type=None, clocks=None) -> torch.Tensor:
        """Compute logits [R - 1, b] of the sources (role 0) with each other role. rows [R, b, Z]: embeddings; nearby:
        for a decoder that needs them, global ids of the roots [R, b] and of their neighbors [R, b, K]; edge_type [b]
        int64, where events have several; clocks [R - 1, b, F]: for a decoder that reads them."""
        if clocks is not None:
            return self.decode_pairs(rows[0], rows[1:], None, edge_type, clocks)
        if nearby is None and edge_type is None:
            return score_roles(self.decoder, rows)
        if nearby is None:
            return score_roles(self.decoder, torch.cat([self.of_type(rows[:1], edge_type), rows[1:]]))
        node, slot = nearby
        others = len(rows) - 1
        source = node[:1].expand(others, -1), slot[:1].expand(others, -1, -1)
        return self.decode_pairs(rows[0], rows[1:], (*source, node[1:], slot[1:]), edge_type)

    def of_type(self, source, edge_type=None) -> torch.Tensor:
        """Add to the rows [..., b, Z] of sources a learned row of the type [b] of their events, where there are
        several."""
        return source if edge_type is None or self.edge_type is None else source + self.edge_type(edge_type)

    def decode_pairs(self, source, destination, nearby=None, edge_type=None, clocks=None) -> torch.Tensor:
        """Compute logits [k, b] of pairs of source [b, Z] or [k, b, Z] and destination [k, b, Z]. nearby: global ids of
        the sources [k, b], their neighbors [k, b, K], the destinations, their neighbors; edge_type [b] int64, where
        events have several; clocks [k, b, F] for a decoder that reads them."""
        source = self.of_type(source, edge_type)
        if clocks is not None:
            return self.decoder(source, destination, clocks)
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
