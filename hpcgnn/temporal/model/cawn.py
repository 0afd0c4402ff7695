"""CAWN: causal anonymous walks of both nodes of a pair (Wang et al., Inductive representation learning in temporal
networks via causal anonymous walks, 2021).

A walk goes from a root back in time: S steps (``model.layers``) along sampled events, each before the one that led to
it. Its P = S + 1 places are the root and the nodes that it reaches; it ends early, with -1 in the places that are left,
where a node has no earlier event. N roots, M walks a root, n pairs, F edge features, C width of a walk's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from hpcgnn import native
from hpcgnn.native import EdgeLists
from hpcgnn.native.layers import KeyedDropout
from hpcgnn.temporal.model.pairs import apply, attend, drop_at, in_blocks, take
from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.plan import Level, Query


@dataclass(slots=True)
class CausalWalks:
    """Walks of the roots. place [N, M, P]: rows of the unique nodes, -1 for none, and in all places where there is no
    walk; dt [N, M, P] int64: time differences to the place before, 0 at the root; edge [N, M, P, F]: features of the
    events that lead to the places, zeros at the root."""

    place: torch.Tensor
    dt: torch.Tensor
    edge: torch.Tensor


class CawnReadout(nn.Module):
    """Embeds the two ends of each pair. A node of a walk has no name: it is how often walks of each end are at it after
    each number of steps. An LSTM reads a walk from its root on; walks of both ends attend to each other, and the
    embedding of an end is the mean over its own."""

    def __init__(self, config: Any, node_width: int, time: TimeEncoding, sizes: Any):
        """config: the section ``model``; node_width: of the rows of nodes; sizes: TemporalSizes."""
        super().__init__()
        width, self.num_places, self.heads = config.hidden, config.layers + 1, config.heads
        self.time = time
        self.position = nn.Sequential(nn.Linear(self.num_places, width), nn.ReLU(), nn.Linear(width, width))
        self.known = nn.Linear(node_width + sizes.edge_width + config.time_dim, 4 * width)
        self.counted = nn.Linear(width, 4 * width, bias=False)
        self.hidden = nn.Linear(width, 4 * width, bias=False)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, node, query: Query, dropout: KeyedDropout | None = None, last=None) -> torch.Tensor:
        """Embed the ends of pairs, [2 (1 + k) b, Z]: of all sources, pair by pair, then of all destinations."""
        walks = causal_walks(query.levels)
        own, kind = self._count(shares(walks.place, walks.place))
        rows = apply(self.known, self._features(node, walks)) + gather(own, kind)
        identity = query.pairs(query.identity)[1]
        tables = [*query.pairs(rows), *query.pairs(walks.place)]
        tables = [*(table.expand(*identity.shape, *table.shape[2:]) for table in tables), identity]
        num_walks = walks.place.shape[1]
        widest = 2 * num_walks * self.num_places * max(rows.shape[3], num_walks)
        return in_blocks(partial(self.embed_pairs, dropout), tables, widest)

    def embed_pairs(self, dropout, source, destination, source_place, destination_place, identity) -> torch.Tensor:
        """Embed the ends [2, n, C] of pairs, from what is known of the gates, [n, M, P, 4 C], and the places [n, M, P]
        of the walks of both ends. dropout: KeyedDropout or None; identity [n]: its keys."""
        places = source_place, destination_place
        ends = zip((source, destination), places, places[::-1], strict=True)
        states = torch.cat([self._read(known, place, shares(place, other)) for known, place, other in ends], dim=1)
        is_none = [place[:, :, 0] < 0 for place in places]
        states = drop_at(dropout, identity, 1)(states, 0)
        read = attend(self.heads, torch.cat(is_none, 1), *apply(self.project, states).chunk(3, 2))
        halves = zip(read.chunk(2, 1), is_none, strict=True)
        means = [half.masked_fill(no.unsqueeze(2), 0).sum(1) / (~no).sum(1, keepdim=True) for half, no in halves]
        return apply(self.out, torch.stack(means))

    def _features(self, node, walks: CausalWalks) -> torch.Tensor:
        """Join what is known of places without the other end, [N, M, P, .]: rows of nodes and events, and times."""
        is_place = walks.place >= 0
        encoded = self.time(walks.dt.reshape(-1)).unflatten(0, walks.dt.shape)
        pieces = [walks.edge, encoded]
        if node.shape[1]:
            pieces.insert(0, gather(node, walks.place) * is_place.unsqueeze(3))
        return torch.cat(pieces, dim=3)

    def _count(self, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Bring shares [n, M, P, P] of walks into the gates: [s, 4 C], of no walk at all first and then of the places
        with others, and which of these rows each place has [n, M, P]. Walks of a pair share few nodes."""
        is_shared = (share > 0).any(dim=3)
        kind = is_shared.flatten().cumsum(0).view(is_shared.shape) * is_shared
        share = torch.cat([share.new_zeros((1, share.shape[3])), share[is_shared]]).to(self.counted.weight.dtype)
        first, relu, second = self.position
        return apply(self.counted, apply(second, relu(apply(first, share)))), kind

    def _read(self, known: torch.Tensor, place: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """Read walks by an LSTM, from the root on: its state [n, M, C] at the last place [n, M, P] of each. known: what
        the places add to the input, forget, cell and output gates, [n, M, P, 4 C], besides shares [n, M, P, P] of the
        other end's walks."""
        state = cell = known.new_zeros((*known.shape[:2], self.hidden.in_features))
        counted, kind = self._count(share)
        for step, gate in enumerate(known.unbind(2)):
            of_other = gather(counted, kind[:, :, step])
            into, keep, new, show = (gate + of_other + apply(self.hidden, state)).chunk(4, 2)
            fresh = torch.sigmoid(keep) * cell + torch.sigmoid(into) * torch.tanh(new)
            is_place = (place[:, :, step] >= 0).unsqueeze(2)
            state = torch.where(is_place, torch.sigmoid(show) * torch.tanh(fresh), state)
            cell = torch.where(is_place, fresh, cell)
        return state


def gather(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return table[index], [..., W], or any row where the index is negative; the same gradients in every run."""
    rows = index.clamp(min=0).long().flatten()
    each = EdgeLists(torch.arange(len(rows) + 1, device=rows.device), rows, len(table))
    return native.segment_sum(table, each).view(*index.shape, table.shape[1])


def causal_walks(levels: Sequence[Level]) -> CausalWalks:
    """Follow the sampled neighbors of the roots through all levels, the roots' level last. A root without any has one
    walk, which stays there; others have as many as their neighbors have neighbors."""
    nodes: list[Any] = [None]  # of the rows below each level; the lowest one has the unique nodes
    for level in levels:
        nodes.append(level.root.int() if nodes[-1] is None else nodes[-1][level.root])
    place, edge = nodes.pop().view(-1, 1, 1), levels[-1].edge
    dt, edge = levels[-1].attention.dt.new_zeros(place.shape), edge.new_zeros((*place.shape, edge.shape[1]))
    query, is_walk = torch.arange(len(place), device=place.device).view(-1, 1), place[:, :, 0] >= 0
    for level, below in zip(levels[::-1], nodes[::-1], strict=True):
        plan, more = level.attention, level.attention.slot.shape[1]
        slot = take(plan.slot, query)
        is_walk = torch.cat([is_walk.unsqueeze(2), slot[:, :, 1:] >= 0], dim=2).flatten(1)
        reached = slot if below is None else take(below, slot)
        event = take(plan.edge_of, query).expand_as(slot).flatten(1)  # of one column without features
        place = _step(place, reached.flatten(1), more)
        dt = _step(dt, take(plan.dt, query).masked_fill(slot < 0, 0).flatten(1), more)
        features = native.gather_rows(level.edge, event.reshape(-1).long())
        edge = _step(edge, features.view(*event.shape, edge.shape[3]), more)
        query = slot.flatten(1)
    return CausalWalks(place.masked_fill(~is_walk.unsqueeze(2), -1), dt, edge)


def _step(walks: torch.Tensor, reached: torch.Tensor, more: int) -> torch.Tensor:
    """Continue each of the walks [N, m, p, ...] by ``more`` ways [N, m more, ...]: [N, m more, p + 1, ...]."""
    return torch.cat([walks.repeat_interleave(more, 1), reached.unsqueeze(2)], dim=2)


def shares(place: torch.Tensor, walks: torch.Tensor) -> torch.Tensor:
    """Return the shares [n, M, P, P] of the other walks [n, M', P] that are, after 0 to S steps, at the node of each
    place [n, M, P]; 0 for none."""
    found, flat = [], place.flatten(1).unsqueeze(2)
    for at in walks.unbind(2):
        found.append((flat == at.unsqueeze(1)).sum(2))
    number = (walks[:, :, 0] >= 0).sum(1).view(-1, 1, 1)
    share = torch.stack(found, dim=2).masked_fill(flat < 0, 0).double() / number
    return share.unflatten(1, place.shape[1:])
