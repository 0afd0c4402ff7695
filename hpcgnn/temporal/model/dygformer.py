"""DyGFormer: a transformer over the patches of both histories of a pair (Yu et al., Towards better dynamic graph
learning: new architecture and unified library, 2023).

Histories are as in ``PairReadout``, with L places, filled up to whole patches of P places. N roots, n pairs, l =
L / P patches of a history, C width of a channel, W width of a patch (C for each channel), Z embedding width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpcgnn.temporal.model.pairs import Drop, PairReadout, apply, attend, drop_at, filled
from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.plan import Level


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
        """Compute rows [n, 2 l, W] of patches; none attends to empty ones [n, 2 l]. drop: applies
        dropout to [n, 2 l, W], at its place 0 or 1 in the block."""
        projected = apply(self.project, self.norms[0](rows)).chunk(3, 2)
        rows = rows + drop(apply(self.merge, attend(self.heads, is_empty, *projected)), 0)
        hidden = functional.gelu(apply(self.widen, self.norms[1](rows)))
        return rows + drop(apply(self.narrow, hidden), 1)


class DygformerReadout(PairReadout):
    """Embeds the two ends of each pair. Channels of a place are features of node and event, encoded time, and how often
    its node occurs in each of both histories; patches of each are projected to one width. A channel without features
    is left out."""

    def __init__(self, config: Any, node_width: int, time: TimeEncoding, sizes: Any):
        super().__init__(config, node_width, time, sizes)
        channel, patch = config.channel_dim, config.patch_size
        num_patches = -(-(sizes.slots + 1) // patch)
        self.cut, self.num_places = (num_patches, patch), num_patches * patch
        self.channels = nn.ModuleList(nn.Linear(patch * width, channel) for width in self.widths)
        self.count = nn.Sequential(nn.Linear(1, channel), nn.ReLU(), nn.Linear(channel, channel))
        self.occurrence = nn.Linear(patch * channel, channel)
        width = channel * (len(self.widths) + 1)
        self.blocks = nn.ModuleList(TransformerBlock(width, config.heads) for _ in range(config.layers))
        self.out = nn.Linear(width, config.hidden)
        self.widest = 2 * num_patches * 4 * width

    def rows_of(self, features: list[torch.Tensor], level: Level) -> torch.Tensor:
        """Project the patches of the channels that do not depend on the other end: [N, l, W - C]."""
        patches = (filled(rows, self.num_places, 0).unflatten(1, self.cut).flatten(2) for rows in features)
        return torch.cat([apply(*each) for each in zip(self.channels, patches, strict=True)], dim=2)

    def embed_pairs(self, dropout, source, destination, source_place, destination_place, identity) -> torch.Tensor:
        """Embed the ends [2, n, Z] of pairs, from the projected patches and the places of both histories."""
        places, others = (source_place, destination_place), (destination_place, source_place)
        is_empty = [(place < 0).unflatten(1, self.cut).all(2) for place in places]
        ends = zip((source, destination), places, others, strict=True)
        rows = torch.cat([torch.cat([known, self._occur(*both)], dim=2) for known, *both in ends], dim=1)
        for number, block in enumerate(self.blocks):
            rows = block(rows, torch.cat(is_empty, 1), drop_at(dropout, identity, 1 + 2 * number))
        halves = zip(rows.chunk(2, 1), is_empty, strict=True)
        means = [half.masked_fill(no.unsqueeze(2), 0).sum(1) / (~no).sum(1, keepdim=True) for half, no in halves]
        return apply(self.out, torch.stack(means))

    def _occur(self, place: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Project the patches [n, l, C] of the encoded numbers of times that the node of each place [n, L] occurs in
        its own and in the other history."""
        numbers = torch.arange(place.shape[1] + 1, device=place.device, dtype=self.out.weight.dtype)
        encoded = self.count(numbers.unsqueeze(1))  # of 0 to L times
        times = [(place.unsqueeze(2) == history.unsqueeze(1)).sum(2) for history in (place, other)]
        rows = sum(functional.embedding(number, encoded) for number in times) * (place >= 0).unsqueeze(2)
        return apply(self.occurrence, rows.unflatten(1, self.cut).flatten(2))
