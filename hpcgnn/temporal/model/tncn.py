"""TNCN: sums over the common neighbors of both nodes of a pair (Zhang et al., Efficient neural common neighbor for
temporal graph link prediction, 2024).

Walks follow sampled neighbors: one step from a root to a neighbor, and a second one to a neighbor that this one had
before. Their ends are rows of the unique nodes, -1 for none. U unique nodes, N roots, n pairs, K neighbors a root, P
ends of walks (int32), D width of the rows of nodes, Z embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpcgnn import native
from hpcgnn.native import EdgeLists
from hpcgnn.native.layers import KeyedDropout
from hpcgnn.temporal.model.pairs import apply, in_blocks, take
from hpcgnn.temporal.plan import Level, Query


class TncnReadout(nn.Module):
    """Embeds both ends of a pair by attention, and adds to the destination's embedding a linear map of the product of
    both embeddings and of sums. Two sums have the embedding of an end, as often as it is a neighbor of the other end.
    The others have the rows of common nodes, once for each two walks from both ends that meet there: a sum for all
    walks of the same numbers of steps. Each sum also has the number of its terms."""

    def __init__(self, attention: nn.Module, config: Any, node_width: int):
        """attention: an AttentionReadout; config: the section ``model``; node_width: D."""
        super().__init__()
        self.attention, self.layers, self.hops = attention, config.layers, config.common_hops
        width = config.hidden
        self.common = nn.Linear(width + 2 * (width + 1) + self.hops**2 * (node_width + 1), width)

    def forward(self, node, query: Query, dropout: KeyedDropout | None = None, last=None) -> torch.Tensor:
        """Embed the ends of pairs, [2 (1 + k) b, Z]: of all sources, pair by pair, then of all destinations."""
        walks = ends_of_walks(query.levels, self.hops)
        ends = [query.pairs(rows) for rows in (self._attend(node, query, dropout), query.root.int(), *walks)]
        shape = ends[0][1].shape[:2]
        tables = [rows.expand(*shape, *rows.shape[2:]) for pair in ends for rows in pair]
        widest = self.common.in_features + 2 * sum(rows.shape[1:].numel() for rows in walks)
        return in_blocks(partial(self.embed_pairs, with_one(node)), tables, widest)

    def _attend(self, node, query: Query, dropout: KeyedDropout | None) -> torch.Tensor:
        """Embed the roots [N, Z]. Levels below the layers of attention are of common neighbors alone: their queries
        keep the rows of their nodes."""
        below = len(query.levels) - self.layers
        for level in query.levels[:below]:
            node = native.GatherRows.apply(node, level.root, *level.root_transpose)
        return self.attention(node, replace(query, levels=query.levels[below:]), dropout)

    def embed_pairs(self, rows, source, destination, source_root, destination_root, *walks) -> torch.Tensor:
        """Embed the ends [2, n, Z] of pairs, from their embeddings [n, Z], roots [n] and ends of walks [n, K], [n, K,
        .], of sources and destinations in turn. rows [U, D + 1]: of the nodes and, in the last column, 1."""
        ones = apart(walks[::2], source_root, destination_root)
        others = apart(walks[1::2], destination_root, source_root)
        others_in_order = [ends.sort(dim=1).values for ends in others]
        pieces = [
            source * destination,
            with_one(source) * (others[0] == source_root.unsqueeze(1)).sum(1, keepdim=True),
            with_one(destination) * (ones[0] == destination_root.unsqueeze(1)).sum(1, keepdim=True),
            *(sum_of_common(rows, other, one) for other in others_in_order for one in ones),
        ]
        return torch.stack([source, destination + apply(self.common, torch.cat(pieces, 1))])


def with_one(rows: torch.Tensor) -> torch.Tensor:
    """Add a column of ones to rows, so that their sums have the number of their terms."""
    return functional.pad(rows, (0, 1), value=1.0)


def ends_of_walks(levels: Sequence[Level], hops: int) -> list[torch.Tensor]:
    """Return the ends [N, K] of walks of one step from the roots and, with two hops, [N, K, .] of two steps."""
    ends: list[torch.Tensor] = []
    nodes = None  # of the queries of the level below, as rows of the unique nodes; the lowest level has those itself
    for level in levels:
        slots = level.attention.slot
        ends.append(slots if nodes is None else take(nodes, slots))
        nodes = level.root.int() if nodes is None else nodes[level.root]
    return [ends[-1]] if hops == 1 else [ends[-1], take(ends[-2], levels[-1].attention.slot)]


def apart(walks: Sequence[torch.Tensor], root: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
    """Return the ends [n, P] of walks of one and of two steps from roots [n]. Walks of two steps that pass through
    the other end of the pair, or end at either, are left out: -1 in their places."""
    first, ends = walks[0], [walks[0]]
    for second in walks[1:]:
        is_detour = (first == other.unsqueeze(1)).unsqueeze(2)
        is_end = (second == root[:, None, None]) | (second == other[:, None, None])
        ends.append(second.masked_fill(is_detour | is_end, -1).flatten(1))
    return ends


def sum_of_common(rows: torch.Tensor, others: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Sum the rows [U, W] of nodes that are among the ends [n, P] of walks from one node and among the ends [n, .] of
    walks from another, which increase, once for each two walks that meet: [n, W]."""
    count = torch.searchsorted(others, ends, right=True) - torch.searchsorted(others, ends)
    is_common = (count > 0) & (ends >= 0)
    indptr = functional.pad(is_common.sum(1).cumsum(0), (1, 0))
    weight = count[is_common].to(rows.dtype).unsqueeze(1)
    return native.segment_sum(rows, EdgeLists(indptr, ends[is_common].long(), len(rows)), weight)
