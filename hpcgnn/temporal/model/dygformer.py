"""Embeddings of both ends of a pair of nodes, by a transformer over the recent histories of both (Yu et al., DyGFormer:
towards better dynamic graph learning, new architecture and unified library, 2023).

A history is the node itself, and then its K neighbors, the oldest first. Its L places are K + 1, filled up to whole
patches of P places. N roots, b events, k negatives of an event, n pairs, l = L / P patches of a history, C width of a
channel, W width of a patch (C for each channel), H heads, Z embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hpcgnn import native
from hpcgnn.native.layers import KeyedDropout
from hpcgnn.native.products import linear
from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.plan import Level, Query

MOST_NUMBERS = 1 << 25  # in the widest rows of the pairs that are computed at once
Drop = Callable[[torch.Tensor, int], torch.Tensor]


class TransformerBlock(nn.Module):
    """Multi-head attention among the patches of each pair, and a feed-forward layer; both are normalized before and
    added to their input. Dropout is applied to what is added."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, rows: torch.Tensor, is_empty: torch.Tensor, drop: Drop) -> torch.Tensor:
        """Compute rows [n, 2 l, W] of patches; those that are empty [n, 2 l] are attended to by none. drop: applies
        dropout to [n, 2 l, W], at its place 0 or 1 in the block."""
        rows = rows + drop(_apply(self.merge, self._attend(_apply(self.project, self.norms[0](rows)), is_empty)), 0)
        hidden = functional.gelu(_apply(self.widen, self.norms[1](rows)))
        return rows + drop(_apply(self.narrow, hidden), 1)

    def _attend(self, rows: torch.Tensor, is_empty: torch.Tensor) -> torch.Tensor:
        """Attend with query, key and value [n, 2 l, 3 W] of each patch; returns [n, 2 l, W]."""
        query, key, value = rows.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [n, H, 2 l, W / H]
        score = query @ key.transpose(2, 3) * key.shape[3] ** -0.5
        weight = torch.softmax(score.masked_fill(is_empty[:, None, None], float("-inf")), dim=3)
        return (weight @ value).transpose(1, 2).flatten(2)


class DygformerReadout(nn.Module):
    """Embeds the two ends of each pair. Channels of a place are features of node and event, encoded time, and how often
    its node occurs in each of both histories; patches of each are projected to one width."""

    def __init__(self, config: Any, node_width: int, time: TimeEncoding, sizes: Any):
        """config: the section ``model``; node_width: of the rows of nodes; sizes: TemporalSizes. A channel without
        features is left out."""
        super().__init__()
        channel, patch = config.channel_dim, config.patch_size
        self.time, self.patch, self.num_patches = time, patch, -(-(sizes.slots + 1) // patch)
        widths = [width for width in (node_width, sizes.edge_width, config.time_dim) if width]
        self.channels = nn.ModuleList(nn.Linear(patch * width, channel) for width in widths)
        self.count = nn.Sequential(nn.Linear(1, channel), nn.ReLU(), nn.Linear(channel, channel))
        self.occurrence = nn.Linear(patch * channel, channel)
        width = channel * (len(widths) + 1)
        self.blocks = nn.ModuleList(TransformerBlock(width, config.heads) for _ in range(config.layers))
        self.out = nn.Linear(width, config.hidden)

    def forward(self, node, query: Query, dropout: KeyedDropout | None = None, last=None) -> torch.Tensor:
        """Embed the ends of pairs, [2 (1 + k) b, Z]: of all sources, pair by pair, then of all destinations. Pairs are
        computed in blocks; where there are several in training, each is computed again on the way back."""
        (level,) = query.levels
        place = self._filled(torch.cat([level.root.unsqueeze(1), level.attention.slot.long()], dim=1), -1)
        tables = [*query.pairs(self._project(node, level, place >= 0)), *query.pairs(place)]
        identity = query.pairs(query.identity)[1]
        blocks = self._blocks([*(table.expand(*identity.shape, *table.shape[2:]) for table in tables), identity])
        repeats = torch.is_grad_enabled() and sum(map(len, blocks)) > 1
        columns = [torch.cat([self._embed(block, dropout, repeats) for block in of_events], 1) for of_events in blocks]
        return torch.cat(columns, 2).flatten(0, 2)

    def _blocks(self, tables: list[torch.Tensor]) -> list[list[tuple[torch.Tensor, ...]]]:
        """Cut tables [1 + k, b, ...] of pairs into blocks: of some events, and then of some of their pairs."""
        widest = 2 * self.num_patches * 4 * self.out.in_features
        most, num_events = max(1, MOST_NUMBERS // widest), tables[0].shape[1]
        of_events = zip(*(table.split(max(1, min(most, num_events)), 1) for table in tables), strict=True)
        return [
            list(zip(*(table.split(max(1, most // max(1, num_events))) for table in some), strict=True))
            for some in of_events
        ]

    def _embed(self, block: tuple[torch.Tensor, ...], dropout: KeyedDropout | None, repeats: bool) -> torch.Tensor:
        """Embed the ends [2, p, e, Z] of a block of p x e pairs; repeats: what the way back needs is computed again."""
        embed, ends = partial(self._embed_pairs, dropout), [table.flatten(0, 1) for table in block]
        rows = checkpoint(embed, *ends, use_reentrant=False, preserve_rng_state=False) if repeats else embed(*ends)
        return rows.unflatten(1, block[0].shape[:2])

    def _filled(self, values: torch.Tensor, value: float) -> torch.Tensor:
        """Fill the places of [N, K + 1, ...] up to whole patches: [N, L, ...]."""
        more = self.num_patches * self.patch - values.shape[1]
        return torch.cat([values, values.new_full((len(values), more, *values.shape[2:]), value)], dim=1)

    def _project(self, node, level: Level, is_valid: torch.Tensor) -> torch.Tensor:
        """Project the patches of the channels that do not depend on the other end, [N, l, W - C]. is_valid [N, L]:
        whether a place has a node."""
        plan, layers = level.attention, cast(list[nn.Linear], list(self.channels))
        pieces = []
        if node.shape[1]:
            own = native.GatherRows.apply(node, level.root, *level.root_transpose)
            slots = plan.slot.reshape(-1).long()
            others = native.GatherRows.apply(node, slots, plan.slot_indptr, plan.slot_order)
            pieces.append(torch.cat([own.unsqueeze(1), others.unflatten(0, plan.slot.shape)], dim=1))
        if level.edge.shape[1]:
            rows = native.gather_rows(level.edge, plan.edge_of.reshape(-1).long()).unflatten(0, plan.slot.shape)
            pieces.append(functional.pad(rows, (0, 0, 1, 0)))
        dt = functional.pad(plan.dt, (1, 0))
        encoded = self.time(dt.reshape(-1)).unflatten(0, dt.shape)
        pieces.append(encoded * is_valid[:, : dt.shape[1], None])
        patches = (self._filled(rows, 0).unflatten(1, (self.num_patches, self.patch)).flatten(2) for rows in pieces)
        return torch.cat([_apply(*each) for each in zip(layers, patches, strict=True)], dim=2)

    def _embed_pairs(self, dropout, source, destination, source_place, destination_place, identity) -> torch.Tensor:
        """Embed the ends [2, n, Z] of pairs, from the projected patches [n, l, W - C] and the places [n, L] of both
        histories: rows of nodes, -1 for none. identity [n]: keys of the dropout."""
        places, others = (source_place, destination_place), (destination_place, source_place)
        is_empty = [(place < 0).unflatten(1, (self.num_patches, self.patch)).all(2) for place in places]
        ends = zip((source, destination), places, others, strict=True)
        rows = torch.cat([torch.cat([known, self._occur(*both)], dim=2) for known, *both in ends], dim=1)
        for number, block in enumerate(self.blocks):
            rows = block(rows, torch.cat(is_empty, 1), _drop_at(dropout, identity, 1 + 2 * number))
        halves = zip(rows.chunk(2, 1), is_empty, strict=True)
        means = [half.masked_fill(no.unsqueeze(2), 0).sum(1) / (~no).sum(1, keepdim=True) for half, no in halves]
        return _apply(self.out, torch.stack(means))

    def _occur(self, place: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Project the patches [n, l, C] of the encoded numbers of times that the node of each place [n, L] occurs in
        its own and in the other history."""
        count, (out, dtype) = self.count, (self.occurrence, self.occurrence.weight.dtype)
        numbers = torch.arange(place.shape[1] + 1, device=place.device, dtype=dtype).unsqueeze(1)
        encoded = count(numbers)  # of 0 to L times
        times = [(place.unsqueeze(2) == history.unsqueeze(1)).sum(2) for history in (place, other)]
        rows = sum(functional.embedding(number, encoded) for number in times) * (place >= 0).unsqueeze(2)
        return _apply(out, rows.unflatten(1, (self.num_patches, self.patch)).flatten(2))


def _apply(layer: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """Apply a linear layer to rows [..., i]: [..., o]."""
    return linear(rows.flatten(0, -2), layer.weight, layer.bias).unflatten(0, rows.shape[:-1])


def _drop_at(dropout: KeyedDropout | None, identity: torch.Tensor, site: int) -> Drop:
    """Return dropout of rows [n, 2 l, W], keyed by pair, place and column, and by its place in the model, counted from
    ``site``."""

    def drop(rows: torch.Tensor, place: int) -> torch.Tensor:
        if dropout is None:
            return rows
        random, columns = replace(dropout.random, relation=site + place), rows.shape[1] * rows.shape[2]
        return rows * native.dropout_mask(random, identity, columns, dropout.p, rows.dtype).view_as(rows)

    return drop
