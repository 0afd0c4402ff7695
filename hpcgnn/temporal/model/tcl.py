"""TCL: transformers over the histories of a pair's nodes, which then attend to each other (Wang et al., TCL:
transformer-based dynamic graph modeling via contrastive learning, 2021), with DyGLib's layers (Yu et al., 2023).

Histories are as in ``PairReadout``. N roots, n pairs, L = K + 1 places, Z embedding width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hpcgnn.temporal.model.pairs import Drop, PairReadout, apply, attend, drop_at
from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.plan import Level


class CrossBlock(nn.Module):
    """Multi-head attention of rows to their own or to another history, and a feed-forward layer; both are added to
    their input and normalized after. Dropout is applied to what is added."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.merge = (nn.Linear(width, width) for _ in range(4))
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, rows, history, is_empty: torch.Tensor, drop: Drop) -> torch.Tensor:
        """Compute rows [n, q, Z] that attend to a history [n, L, Z], except to its empty places [n, L]. drop: applies
        dropout to [n, q, Z], at its place 0 or 1 in the block."""
        projected = apply(self.query, rows), apply(self.key, history), apply(self.value, history)
        read = attend(self.heads, is_empty, *projected)
        rows = self.norms[0](rows + drop(apply(self.merge, read), 0))
        return self.norms[1](rows + drop(apply(self.narrow, torch.relu(apply(self.widen, rows))), 1))


class TclReadout(PairReadout):
    """Embeds the two ends of each pair. A place is the sum of the projected features of node and event, of the encoded
    time, and of a learned row of its depth: 0 for the node itself, 1 for its newest neighbor, and so on."""

    def __init__(self, config: Any, node_width: int, time: TimeEncoding, sizes: Any):
        super().__init__(config, node_width, time, sizes)
        width, self.num_places = config.hidden, sizes.slots + 1
        self.features = nn.ModuleList(nn.Linear(each, width) for each in self.widths)
        self.depth = nn.Embedding(self.num_places, width)
        self.blocks = nn.ModuleList(CrossBlock(width, config.heads) for _ in range(config.layers))
        self.out = nn.Linear(width, width)
        self.widest = 2 * self.num_places * 4 * width

    def rows_of(self, features: list[torch.Tensor], level: Level) -> torch.Tensor:
        """Add up what is known of the places: [N, L, Z]."""
        count = level.attention.count.long().unsqueeze(1)
        depth = (count + 1 - torch.arange(self.num_places, device=count.device)).clamp(min=0)
        depth[:, 0] = 0
        rows: Any = sum(apply(*each) for each in zip(self.features, features, strict=True))
        return rows + self.depth(depth)

    def embed_pairs(self, dropout, source, destination, source_place, destination_place, identity) -> torch.Tensor:
        """Embed the ends [2, n, Z] of pairs: what the nodes themselves read in each other's histories."""
        is_empty, ends = [source_place < 0, destination_place < 0], [source, destination]
        for number, block in enumerate(self.blocks):
            drops = [drop_at(dropout, identity, 1 + 4 * number + 2 * end) for end in (0, 1)]
            ends = [block(rows, rows, *each) for rows, *each in zip(ends, is_empty, drops, strict=True)]
        drops = [drop_at(dropout, identity, 1 + 4 * len(self.blocks) + 2 * end) for end in (0, 1)]
        others = zip(ends, ends[::-1], is_empty[::-1], drops, strict=True)
        # Cross-attention of the layers below the last one is read by nobody.
        return apply(self.out, torch.stack([self.blocks[-1](own[:, :1], *each)[:, 0] for own, *each in others]))
