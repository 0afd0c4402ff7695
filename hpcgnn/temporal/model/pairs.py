"""The frame of readouts that embed both ends of a pair of nodes together, by attention over the histories of both.

A history is the node itself, and then its K neighbors, the oldest first. Its L places are K + 1, or more: filled up. N
roots, b events, k negatives of an event, n pairs, Z embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

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


class PairReadout(nn.Module):
    """Base of readouts of pairs. Subclasses set ``num_places`` L and ``widest``, the numbers of the widest rows of a
    pair, and define ``rows_of`` and ``embed_pairs``."""

    num_places: int
    widest: int

    def __init__(self, config: Any, node_width: int, time: TimeEncoding, sizes: Any):
        """config: the section ``model``; node_width: of the rows of nodes; sizes: TemporalSizes."""
        super().__init__()
        self.time = time
        self.widths = [width for width in (node_width, sizes.edge_width, config.time_dim) if width]

    def rows_of(self, features: list[torch.Tensor], level: Level) -> torch.Tensor:
        """Make the rows [N, ., .] of the roots' histories from features [N, K + 1, width], one for each of ``widths``:
        of nodes, of events, and encoded times. They do not depend on the other end of a pair."""
        raise NotImplementedError

    def embed_pairs(self, dropout, source, destination, source_place, destination_place, identity) -> torch.Tensor:
        """Embed the ends [2, n, Z] of pairs, from ``rows_of`` both, [n, ., .], and the places [n, L] of both histories:
        rows of nodes, -1 for none. dropout: KeyedDropout or None; identity [n]: its keys."""
        raise NotImplementedError

    def forward(self, node, query: Query, dropout: KeyedDropout | None = None, last=None) -> torch.Tensor:
        """Embed the ends of pairs, [2 (1 + k) b, Z]: of all sources, pair by pair, then of all destinations."""
        (level,) = query.levels
        place = torch.cat([level.root.unsqueeze(1), level.attention.slot.long()], dim=1)
        rows = self.rows_of(self._features(node, level, place >= 0), level)
        tables = [*query.pairs(rows), *query.pairs(filled(place, self.num_places, -1))]
        identity = query.pairs(query.identity)[1]
        tables = [*(table.expand(*identity.shape, *table.shape[2:]) for table in tables), identity]
        return in_blocks(partial(self.embed_pairs, dropout), tables, self.widest)

    def _features(self, node, level: Level, is_valid: torch.Tensor) -> list[torch.Tensor]:
        """Gather the features [N, K + 1, width] of all places: zeros where there is no node, or no event."""
        plan, features = level.attention, []
        if node.shape[1]:
            own = native.GatherRows.apply(node, level.root, *level.root_transpose)
            slots = plan.slot.reshape(-1).long()
            others = native.GatherRows.apply(node, slots, plan.slot_indptr, plan.slot_order)
            features.append(torch.cat([own.unsqueeze(1), others.unflatten(0, plan.slot.shape)], dim=1))
        if level.edge.shape[1]:
            rows = native.gather_rows(level.edge, plan.edge_of.reshape(-1).long()).unflatten(0, plan.slot.shape)
            features.append(functional.pad(rows, (0, 0, 1, 0)))
        dt = functional.pad(plan.dt, (1, 0))
        encoded = self.time(dt.reshape(-1)).unflatten(0, dt.shape)
        return [*features, encoded * is_valid.unsqueeze(2)]


def in_blocks(embed: Callable[..., torch.Tensor], tables: list[torch.Tensor], widest: int) -> torch.Tensor:
    """Embed the ends [2 (1 + k) b, Z] of pairs, block by block: ``embed`` takes rows [n, ...] of all tables [1 + k, b,
    ...] and returns [2, n, Z]. widest: the numbers of the widest rows of a pair. Where there are several blocks in
    training, each is computed again on the way back."""
    blocks = _blocks(tables, max(1, MOST_NUMBERS // widest))
    repeats = torch.is_grad_enabled() and sum(map(len, blocks)) > 1
    columns = [torch.cat([_embed(embed, block, repeats) for block in of_events], 1) for of_events in blocks]
    return torch.cat(columns, 2).flatten(0, 2)


def _blocks(tables: list[torch.Tensor], most: int) -> list[list[tuple[torch.Tensor, ...]]]:
    """Cut tables [1 + k, b, ...] of pairs into blocks of at most so many pairs: of some events, and then of some of
    their pairs."""
    num_events = tables[0].shape[1]
    of_events = zip(*(table.split(max(1, min(most, num_events)), 1) for table in tables), strict=True)
    return [
        list(zip(*(table.split(max(1, most // max(1, num_events))) for table in some), strict=True))
        for some in of_events
    ]


def _embed(embed: Callable[..., torch.Tensor], block: tuple[torch.Tensor, ...], repeats: bool) -> torch.Tensor:
    """Embed the ends [2, p, e, Z] of a block of p x e pairs; repeats: what the way back needs is computed again."""
    ends = [table.flatten(0, 1) for table in block]
    rows = checkpoint(embed, *ends, use_reentrant=False, preserve_rng_state=False) if repeats else embed(*ends)
    return rows.unflatten(1, block[0].shape[:2])


def filled(values: torch.Tensor, places: int, value: float) -> torch.Tensor:
    """Fill up the places of [N, K + 1, ...]: [N, places, ...]."""
    more = values.new_full((len(values), places - values.shape[1], *values.shape[2:]), value)
    return torch.cat([values, more], dim=1)


def take(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return table[index], and -1 where the index is negative."""
    found = table[index.clamp(min=0)]
    return found.masked_fill((index < 0).view(*index.shape, *[1] * (found.ndim - index.ndim)), -1)


def apply(layer: Any, rows: torch.Tensor) -> torch.Tensor:
    """Apply a linear layer to rows [..., i]: [..., o]."""
    return linear(rows.flatten(0, -2), layer.weight, layer.bias).unflatten(0, rows.shape[:-1])


def attend(heads: int, is_empty: torch.Tensor, query, key, value) -> torch.Tensor:
    """Attend with queries [n, q, W] to keys and values [n, p, W], by heads, except to empty ones [n, p];
    returns [n, q, W]."""
    query, key, value = (rows.unflatten(2, (heads, -1)).transpose(1, 2) for rows in (query, key, value))
    score = query @ key.transpose(2, 3) * key.shape[3] ** -0.5
    weight = torch.softmax(score.masked_fill(is_empty[:, None, None], float("-inf")), dim=3)
    return (weight @ value).transpose(1, 2).flatten(2)


def drop_at(dropout: KeyedDropout | None, identity: torch.Tensor, site: int) -> Drop:
    """Return dropout of rows [n, p, W], keyed by pair, place and column, and by its place in the model, counted from
    ``site``."""

    def drop(rows: torch.Tensor, place: int) -> torch.Tensor:
        if dropout is None:
            return rows
        random, columns = replace(dropout.random, relation=site + place), rows.shape[1] * rows.shape[2]
        return rows * native.dropout_mask(random, identity, columns, dropout.p, rows.dtype).view_as(rows)

    return drop
