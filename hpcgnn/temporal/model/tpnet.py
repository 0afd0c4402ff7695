"""TPNet: an MLP-mixer over the recent neighbors of both nodes of a pair, with numbers of their walks to both nodes (Lu
et al., Improving temporal link prediction via temporal walk matrix projection, 2024).

U unique nodes, N roots, n pairs, K neighbors a root, D width of the rows of nodes, E width of the rows of memory, F
numbers of a pair (see ``Walks``), Z embedding width.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpcgnn import native
from hpcgnn.native.layers import KeyedDropout
from hpcgnn.temporal.model.pairs import Drop, apply, drop_at, in_blocks
from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.model.walks import Walks
from hpcgnn.temporal.plan import Level, Query


class MixerBlock(nn.Module):
    """A network of two layers over the places of each column, and one over the columns of each place; both are
    normalized before and added to their input (Tolstikhin et al., MLP-Mixer: an all-MLP architecture for vision, 2021).
    """

    def __init__(self, places: int, width: int):
        super().__init__()
        few = max(1, places // 2)
        self.norms = nn.ModuleList([nn.LayerNorm(places), nn.LayerNorm(width)])
        self.wide = nn.ModuleList([nn.Linear(places, few), nn.Linear(width, 4 * width)])
        self.narrow = nn.ModuleList([nn.Linear(few, places), nn.Linear(4 * width, width)])

    def forward(self, rows: torch.Tensor, drop: Drop) -> torch.Tensor:
        """Mix rows [n, K, Z]. drop: applies dropout to [n, ., .], at its places 0 to 3 in the block."""
        rows = rows + self._mix(0, rows.transpose(1, 2), drop).transpose(1, 2)
        return rows + self._mix(1, rows, drop)

    def _mix(self, which: int, rows: torch.Tensor, drop: Drop) -> torch.Tensor:
        hidden = drop(functional.gelu(apply(self.wide[which], self.norms[which](rows))), 2 * which)
        return drop(apply(self.narrow[which], hidden), 2 * which + 1)


class TpnetReadout(nn.Module):
    """Embeds the two ends of each pair. A neighbor w of an end has features of node and event, encoded time, and what a
    network makes of the numbers of the pairs of w with the source, and with the destination."""

    def __init__(self, config: Any, node_width: int, time: TimeEncoding, sizes: Any):
        """config: the section ``model``; node_width: D; sizes: TemporalSizes, with walks."""
        super().__init__()
        walks: Walks = sizes.walks
        self.time, self.walks, width, numbers = time, walks, config.hidden, walks.num_numbers
        self.wide, self.narrow = nn.Linear(numbers, 4 * numbers), nn.Linear(4 * numbers, numbers)
        self.known = nn.Linear(node_width + sizes.edge_width + config.time_dim, 2 * width)
        self.relative = nn.Linear(2 * numbers, 2 * width, bias=False)
        self.token = nn.Linear(2 * width, width)
        self.blocks = nn.ModuleList(MixerBlock(sizes.slots, width) for _ in range(config.layers))
        self.widest = 2 * sizes.slots * max(4 * width, 8 * numbers, walks.count * walks.width)

    def forward(self, node, query: Query, dropout: KeyedDropout | None = None, last=None) -> torch.Tensor:
        """Embed the ends of pairs, [2 (1 + k) b, Z]: of all sources, pair by pair, then of all destinations. node [U,
        D + E]: rows of nodes, and projections of walks as of times last [U]."""
        (level,) = query.levels
        width = self.walks.count * self.walks.width
        node, memory = (rows.contiguous() for rows in node.split([node.shape[1] - width, width], dim=1))
        tokens = apply(self.known, self._features(node, level))
        # Places without a neighbor come first, so that the newest neighbor always has the last place.
        slot, count = level.attention.slot.long(), level.attention.count
        order = (torch.arange(slot.shape[1], device=slot.device) + count.unsqueeze(1)) % slot.shape[1]
        tokens, slot = tokens.take_along_dim(order.unsqueeze(2), 1), slot.take_along_dim(order, 1)
        both = [ends for rows in (tokens, slot, query.root) for ends in query.pairs(rows)]
        further = [query.pairs(rows)[1] for rows in (query.time, query.identity)]
        tables = [rows.expand(*further[0].shape, *rows.shape[2:]) for rows in (*both, *further)]
        return in_blocks(partial(self.embed_pairs, dropout, memory.detach(), last), tables, self.widest)

    def _features(self, node, level: Level) -> torch.Tensor:
        """Gather the features [N, K, .] of neighbors: of nodes, of events, and encoded times."""
        plan = level.attention
        pieces = [self.time(plan.dt.reshape(-1))]
        if level.edge.shape[1]:
            pieces.insert(0, native.gather_rows(level.edge, plan.edge_of.reshape(-1).long()))
        if node.shape[1]:
            slots = plan.slot.reshape(-1).long()
            pieces.insert(0, native.GatherRows.apply(node, slots, plan.slot_indptr, plan.slot_order))
        return torch.cat(pieces, dim=1).unflatten(0, plan.dt.shape)

    def embed_pairs(
        self, dropout, memory, last, source_token, token, source_slot, slot, source, destination, time, identity
    ) -> torch.Tensor:  # fmt: skip
        """Embed the ends [2, n, Z] of pairs. Of sources and destinations: their neighbors' tokens [n, K, 2 Z] without
        numbers of walks, rows of the neighbors [n, K] and of the ends [n] in memory. time [n]; identity [n]: keys of
        dropout."""
        slots, ends = torch.cat([source_slot, slot], 1), torch.stack([source, destination], 1)
        numbers = self.walks.among(memory, last, slots, ends, time)
        relative = apply(self.narrow, torch.relu(apply(self.wide, numbers))).flatten(2)
        hidden = torch.relu(torch.cat([source_token, token], 1) + apply(self.relative, relative))
        tokens = apply(self.token, hidden) * (slots >= 0).unsqueeze(2)
        out = []
        for end, rows in enumerate(tokens.chunk(2, 1)):
            for number, block in enumerate(self.blocks):
                rows = block(rows, drop_at(dropout, identity, 1 + 4 * (2 * number + end)))
            out.append(rows.mean(1))
        return torch.stack(out)
