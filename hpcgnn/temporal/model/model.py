"""Temporal models, put together from parts: time encoding, message, memory updater, readout, decoder.

A user's own model is a class with the attributes and methods of ``TemporalModel``; ``model.class_path`` names it.
U unique nodes, N roots, b events, K neighbors a root, D memory width, M mail width, S mailbox slots, F edge feature
width, Z embedding width.
"""

from __future__ import annotations

from dataclasses import replace
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
from hpcgnn.temporal.model.walks import Walks
from hpcgnn.temporal.plan import Query


class TemporalModel(nn.Module):
    """Memory updater, readout and link decoder, of tensors alone: ranks do not occur here.

    state_width, mail_width, mailbox_slots: sizes of its node memory (widths 0: none). num_hops: levels of neighbors
    that ``embed`` needs. needs_last: whether ``embed`` needs the time of each node's last mail. needs_nearby: whether
    ``decode`` compares neighbors. needs_clocks: whether it reads clocks of pairs. has_embedding: whether ``embed``
    returns more than rows of width 0. embeds_pairs: whether these rows are of the ends of pairs, for ``decode_pairs``.
    walks: the projections of walks that its node memory is, or None; needs_walks: whether ``decode`` reads the numbers
    of pairs that are made of them.
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
        steps, scales = memory.walk_steps, tuple(memory.walk_scales)
        self.walks = Walks(memory.dim, steps, scales) if updater.has_walks else None
        shown_width = memory.dim if self.has_memory and self.walks is None else 0
        self.state_width = shown_width if self.walks is None else self.walks.count * memory.dim
        self.mailbox_slots = memory.mailbox_slots
        from_embedding = model.message_from == "embedding"
        other = model.hidden if from_embedding else memory.dim
        self.mail_width = memory.dim + other + sizes.edge_width if shown_width else 0
        self.num_hops, self.embeds_pairs, self.embeds_walks = model.num_hops, readout.of_pairs, readout.reads_walks
        self.needs_last = readout.reads_last or self.walks is not None
        decoder = DECODERS[sizes.decoder]
        self.needs_nearby, self.needs_clocks = decoder.compares_neighbors, decoder.reads_clocks
        self.needs_walks = decoder.reads_walks
        time = TimeEncoding(model.time_dim, model.learn_phase, model.time_encoding == "learnable", model.time_unit)
        # The order in which parts are made is that in which torch's generator draws their weights: do not change it.
        self.message = None if message.make is None else message.make(self.mail_width, model.message_dim)
        width = self.mail_width if self.message is None else model.message_dim
        state_first = self.message is None and memory.simple
        updater_sizes = UpdaterSizes(width, self.state_width, time, model.heads, state_first)
        self.updater = None if updater.make is None else updater.make(updater_sizes)
        feature_width = shown_width or (memory.dim if sizes.node_width else 0)
        self.feature = nn.Linear(sizes.node_width, feature_width) if sizes.node_width else None
        self.embedding = readout.make(model, feature_width, time, replace(sizes, walks=self.walks))
        attention = READOUTS["attention"]
        self.attention = attention.make(model, feature_width, time, sizes) if from_embedding else None
        self.has_embedding = feature_width > 0 or not readout.shows_memory
        embedding_width = model.hidden if self.has_embedding else 0
        numbers = sizes.clocks if self.needs_clocks else 0
        numbers += self.walks.num_numbers if self.needs_walks and self.walks is not None else 0
        self.decoder = decoder.make(
            DecoderSizes(embedding_width, 1, sizes.temperature, sizes.slots, clocks=numbers, hidden=model.hidden)
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
        width. Projections of walks follow the features, for a readout that reads them."""
        if self.walks is not None:
            walks = memory if self.embeds_walks else memory[:, :0]
            return walks if self.feature is None else torch.cat([self.feature(feature), walks], dim=1)
        if self.feature is None:
            return memory
        projected = self.feature(feature)
        return memory + projected if self.has_memory else projected

    def embed(self, node, query: Query, last=None, dropout: KeyedDropout | None = None) -> torch.Tensor:
        """Compute the embeddings [N, Z] of the roots from ``base`` rows [U, .] or, where the model ``embeds_pairs``,
        of the ends of pairs, [2 (1 + k) b, Z]: first all sources. last [U] int64 for models that need it."""
        return self.embedding(node, query, dropout, last)

    def numbers(self, memory, query: Query, last) -> torch.Tensor:
        """Compute the numbers [1 + k, b, F] of the pairs of events and of their negatives, without gradients, for a
        model that ``needs_walks``, from the rows of memory [U, D] as of times last [U]."""
        assert self.walks is not None
        with torch.no_grad():
            return self.walks.numbers(memory.detach(), last, query)

    def mail_parts(self, node, query: Query, embedding) -> torch.Tensor:
        """Compute what the other endpoints put into the mails, [N, .]: embeddings of the roots (``message_from``)."""
        return embedding if self.attention is None else self.attention(node, query)

    def decode(self, rows, nearby=None, edge_type=None, clocks=None) -> torch.Tensor:
        """Compute logits [R - 1, b] of the sources (role 0) with each other role. rows [R, b, Z]: embeddings; nearby:
        for a decoder that needs them, global ids of the roots [R, b] and of their neighbors [R, b, K]; edge_type [b]
        int64, where events have several; clocks [R - 1, b, F]: numbers of the pairs for a decoder that reads them."""
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
        events have several; clocks [k, b, F]: numbers of the pairs for a decoder that reads them."""
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
