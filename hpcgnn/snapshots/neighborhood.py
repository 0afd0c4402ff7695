"""The neighbours of all nodes of a rank in one snapshot, and sums over them that reach other ranks.

n nodes of this rank (*own* rows), g *ghosts*: nodes of other ranks, or, by part, of other parts, that have edges to
them, whose rows a halo exchange brings while the own rows are added up. What depends on ghosts being remote must not
depend on the number of ranks. E or e edges of a snapshot, m requests for this rank's rows.

Boundary node sampling (Wan et al., BNS-GCN, 2022): a training step sees a random share of the ghosts. A ghost is taken
or left for all who would see it, by its row id: its owner and its users know without asking, and the choice is the same
on any number of ranks. Messages of those taken count as much more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.graph.spill import exchange_columns
from hpcgnn.native import EdgeLists, Random, Stream, segment_sum
from hpcgnn.snapshots.graph import SnapshotEdges, SnapshotPartition

CHEBYSHEV = "chebyshev"


class Halo(Protocol):
    """Brings the ghosts' rows; collective, started and finished in one order on all ranks."""

    def start(self, rows: torch.Tensor):
        """Begin to bring rows of the owners' tables [n, D]."""

    def finish(self, exchange) -> torch.Tensor:
        """The ghosts' rows [g, D] of an exchange that was started."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges by destination from one kind of source: lists over their rows, weight [E] or None: all 1; rows [k]: the
    destinations that the lists are of, None: all n."""

    lists: EdgeLists
    weight: torch.Tensor | None
    rows: torch.Tensor | None = None

    @property
    def destination(self) -> torch.Tensor:
        """[E] int64 own rows."""
        return self.lists.destination if self.rows is None else self.rows[self.lists.destination]


@dataclass(frozen=True, slots=True)
class Operator:
    """A sparse matrix over the nodes: factors of the own edges and of the ghosts' [E, 1], and of a node's own row
    [n, 1] or None."""

    own: torch.Tensor | None
    ghost: torch.Tensor | None
    loop: torch.Tensor | None


@dataclass(slots=True)
class Neighborhood:
    """own: edges from own rows; ghost: edges from ghosts; degree [n] and ghost_degree [g]: sums of the weights of the
    in-edges in the whole snapshot; looped [n] and ghost_looped [g]: bool, nodes that have an edge to themselves."""

    num_nodes: int
    own: Edges
    ghost: Edges
    degree: torch.Tensor
    ghost_degree: torch.Tensor
    looped: torch.Tensor
    ghost_looped: torch.Tensor
    _operators: dict[str, Operator] = field(default_factory=dict, repr=False)
    _merged: EdgeLists | None = field(default=None, repr=False)

    def operator(self, name: str) -> Operator:
        """The matrix of that name, formed when it is first asked for: a key of ``OPERATORS``."""
        if name not in self._operators:
            self._operators[name] = OPERATORS[name](self)
        return self._operators[name]

    @property
    def merged(self) -> EdgeLists:
        """All edges over [own rows | ghosts], of loops one at every node, the last of its list."""
        if self._merged is None:
            self._merged = _merge(self)
        return self._merged


def propagate(
    neighborhood: Neighborhood, halo: Halo | None, name: str, rows: torch.Tensor, exchange=None
) -> torch.Tensor:
    """Collective. operator @ rows of all ranks, for this rank's nodes [n, D]; exchange: of the same rows, where it was
    started before. Without a halo there are no ghosts."""
    operator = neighborhood.operator(name)
    if halo is not None and exchange is None:
        exchange = halo.start(rows)
    total = segment_sum(rows, neighborhood.own.lists, operator.own)
    if operator.loop is not None:
        total = total + operator.loop * rows
    if halo is None:
        return total
    return _add_ghosts(total, halo.finish(exchange), neighborhood.ghost, operator.ghost)


def next_term(name: str, product: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    """The term of an operator's series that follows: product, operator @ the last term, or of the polynomials of
    Chebyshev 2 product - before, the term before the last (None: the last is the first)."""
    return 2 * product - before if name == CHEBYSHEV and before is not None else product


def _add_ghosts(total: torch.Tensor, ghosts: torch.Tensor, edges: Edges, weight: torch.Tensor | None) -> torch.Tensor:
    if len(edges.lists) == 0:
        return total + 0 * ghosts.sum() if ghosts.requires_grad else total  # every rank takes part in the backward pass
    assert edges.rows is not None
    return total.index_add(0, edges.rows, segment_sum(ghosts, edges.lists, weight))


def _column(weight: torch.Tensor) -> torch.Tensor:
    return weight.unsqueeze(1)


def _inverse(values: torch.Tensor, power: float) -> torch.Tensor:
    """values ** power where they are above 0, else 0."""
    return torch.where(values > 0, values.clamp(min=torch.finfo(values.dtype).tiny) ** power, torch.zeros_like(values))


def _scaled(edges: Edges, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """target of the destination * weight * source of the source, for every edge [E, 1]."""
    factor = target[edges.destination] * source[edges.lists.source]
    return _column(factor if edges.weight is None else factor * edges.weight)


def _gcn(neighborhood: Neighborhood) -> Operator:
    """D^-1/2 A D^-1/2, A with a loop of weight 1 at every node that has none, D its in-degrees."""
    loop, ghost_loop = (~looped for looped in (neighborhood.looped, neighborhood.ghost_looped))
    scale = _inverse(neighborhood.degree + loop, -0.5)
    own, ghost = _symmetric(neighborhood, scale, _inverse(neighborhood.ghost_degree + ghost_loop, -0.5))
    return Operator(own, ghost, _column(loop * scale * scale))


def _chebyshev(neighborhood: Neighborhood) -> Operator:
    """-D^-1/2 A D^-1/2, D the in-degrees."""
    scale, ghosts = (_inverse(d, -0.5) for d in (neighborhood.degree, neighborhood.ghost_degree))
    own, ghost = _symmetric(neighborhood, scale, ghosts)
    return Operator(-own, -ghost, None)


def _symmetric(neighborhood: Neighborhood, scale: torch.Tensor, ghosts: torch.Tensor) -> list[torch.Tensor]:
    """Factors of own and ghosts' edges [E, 1], scaled by both ends."""
    pairs = (neighborhood.own, scale), (neighborhood.ghost, ghosts)
    return [_scaled(edges, scale, sources) for edges, sources in pairs]


def _mean(neighborhood: Neighborhood) -> Operator:
    """D^-1 A: weighted mean of the neighbours."""
    scale = _inverse(neighborhood.degree, -1.0)
    ones = [torch.ones_like(d) for d in (neighborhood.degree, neighborhood.ghost_degree)]
    return Operator(_scaled(neighborhood.own, scale, ones[0]), _scaled(neighborhood.ghost, scale, ones[1]), None)


def _sum(neighborhood: Neighborhood) -> Operator:
    """A."""
    own, ghost = (edges.weight for edges in (neighborhood.own, neighborhood.ghost))
    return Operator(None if own is None else _column(own), None if ghost is None else _column(ghost), None)


# gcn: Kipf and Welling, 2017; a node's own loop stays as it is. chebyshev: the scaled Laplacian 2 L / 2 - I of
# Defferrard et al., 2016, for the largest eigenvalue 2. walk: the random walk of Li et al. (DCRNN), 2018, along the
# direction of the neighbourhood's edges.
OPERATORS = {
    "gcn": _gcn,
    CHEBYSHEV: _chebyshev,
    "walk": _mean,
    "mean": _mean,
    "sum": _sum,
}


def _merge(neighborhood: Neighborhood) -> EdgeLists:
    n, ghost = neighborhood.num_nodes, neighborhood.ghost
    own, everyone = neighborhood.own, torch.arange(neighborhood.num_nodes, device=neighborhood.degree.device)
    others = own.destination != own.lists.source
    destination = torch.cat([own.destination[others], ghost.destination, everyone])
    source = torch.cat([own.lists.source[others], ghost.lists.source + n, everyone])
    order = torch.argsort(destination, stable=True)
    count = torch.bincount(destination, minlength=n)
    indptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return EdgeLists(indptr, source[order], n + len(neighborhood.ghost_degree))


WEIGHT = "weight"


@dataclass(frozen=True, slots=True)
class Block:
    """A neighbourhood and the route to its ghosts, None where there is but one rank and ghosts are of other ranks;
    ghost [g] global ids, ghost_row [g] flat row ids."""

    neighborhood: Neighborhood
    route: Route | None
    ghost: np.ndarray
    ghost_row: np.ndarray


@dataclass(frozen=True, slots=True)
class Builder:
    """Collective to build with. weighted: messages are multiplied by the edges' column weight, where there is one;
    by_part: ghosts are nodes of other parts."""

    partition: SnapshotPartition
    channel: Channel
    dtype: torch.dtype
    device: torch.device
    weighted: bool = True
    by_part: bool = False

    def build(self, number: int, reverse: bool = False) -> Block:
        """Collective. The in-neighbours of all nodes in a snapshot; reverse: out-neighbours."""
        columns = (WEIGHT,) if self.weighted and WEIGHT in self.partition.edge_columns else ()
        edges = self.partition.edges_at(number, columns)
        if reverse:
            edges = reversed_edges(edges, self.partition, self.channel)
        weight = torch.from_numpy(edges.columns[WEIGHT]).to(self.dtype) if columns else None
        degree = _sum_weights(edges.dst, weight, self.partition.num_nodes, self.dtype)
        looped = torch.zeros(self.partition.num_nodes, dtype=torch.bool)
        looped[torch.from_numpy(edges.dst[edges.src == edges.dst + self.partition.first_id])] = True
        remote = self._is_remote(edges)
        own, ghost = np.flatnonzero(~remote), np.flatnonzero(remote)
        ids, source = np.unique(edges.src[ghost], return_inverse=True)
        route, ghost_degree, ghost_looped, ghost_row = None, degree[:0], looped[:0], ids[:0]
        if self.channel.size > 1 or self.by_part:
            route = Route.plan(self.partition.book, ids, self.channel)
            known = degree, looped, torch.from_numpy(self.partition.flat_row)
            ghost_degree, ghost_looped, flat_row = route.pull(*known)
            ghost_row = flat_row.numpy()
            route = route.to(self.device)
        indptr = np.searchsorted(edges.dst[own], np.arange(self.partition.num_nodes + 1))
        lists = self._lists(indptr, edges.src[own] - self.partition.first_id, self.partition.num_nodes)
        rows, counts = np.unique(edges.dst[ghost], return_counts=True)
        reach = self._lists(np.concatenate([[0], np.cumsum(counts)]), source, len(ids))
        degrees = [found.to(self.device) for found in (degree, ghost_degree)]
        loops = [found.to(self.device) for found in (looped, ghost_looped)]
        return Block(
            Neighborhood(
                self.partition.num_nodes, Edges(lists, self._taken(weight, own)),
                Edges(reach, self._taken(weight, ghost), torch.from_numpy(rows).to(self.device)),
                degrees[0], degrees[1], loops[0], loops[1],
            ), route, ids, ghost_row,
        )  # fmt: skip

    def _is_remote(self, edges: SnapshotEdges) -> np.ndarray:
        """Whether the source of each edge is a ghost, bool [e]."""
        first, count = self.partition.first_id, self.partition.num_nodes
        if self.by_part:
            part_of = self.partition.book.part_of
            return part_of(edges.src) != part_of(edges.dst + first)
        return (edges.src < first) | (edges.src >= first + count)

    def _lists(self, indptr: np.ndarray, source: np.ndarray, num_sources: int) -> EdgeLists:
        begin, place = (torch.from_numpy(array.astype(np.int64)).to(self.device) for array in (indptr, source))
        return EdgeLists(begin, place, num_sources)

    def _taken(self, weight: torch.Tensor | None, place: np.ndarray) -> torch.Tensor | None:
        return None if weight is None else weight[torch.from_numpy(place)].to(self.device)


def reversed_edges(edges: SnapshotEdges, partition: SnapshotPartition, channel: Channel) -> SnapshotEdges:
    """Collective. The edges of a snapshot the other way, at the owners of what were their sources."""
    owner, _ = partition.book.locate(edges.src)
    sent = [edges.src, edges.dst + partition.first_id, edges.row, *edges.columns.values()]
    dst, src, row, *columns = exchange_columns(sent, owner, channel) if channel.size > 1 else sent
    order = np.lexsort((row, dst))
    found = {name: column[order] for name, column in zip(edges.columns, columns, strict=True)}
    return SnapshotEdges(src[order], dst[order] - partition.first_id, row[order], found)


def _sum_weights(dst: np.ndarray, weight: torch.Tensor | None, num_nodes: int, dtype: torch.dtype) -> torch.Tensor:
    """Sum of the weights of every node's edges [n]."""
    values = None if weight is None else weight.double().numpy()
    return torch.from_numpy(np.bincount(dst, values, num_nodes)).to(dtype)


RESOLUTION = 1 << 24


@dataclass(frozen=True, slots=True)
class Boundary:
    """share of the ghosts that is taken; flat_row [n] row ids of this rank's nodes."""

    share: float
    seed: int
    flat_row: np.ndarray

    def sample(self, block: Block, epoch: int, step: int, number: int) -> Block:
        """The block of a snapshot as one step sees it; collective calls are not needed."""
        random = Random(self.seed, Stream.BOUNDARY, (step << 16) + number, epoch)
        assert block.route is not None
        wanted = self._taken(random, block.ghost_row)
        requested = self._taken(random, self.flat_row[block.route.requests.cpu().numpy()])
        route = block.route.restrict(wanted, requested)
        return Block(self._reduce(block.neighborhood, wanted), route, block.ghost[wanted], block.ghost_row[wanted])

    def _taken(self, random: Random, rows: np.ndarray) -> np.ndarray:
        """Which of the nodes with row ids [k] are taken, bool."""
        return native.random_integers(random, rows, 1, RESOLUTION)[:, 0] < round(self.share * RESOLUTION)

    def _reduce(self, whole: Neighborhood, taken: np.ndarray) -> Neighborhood:
        """Edges from the ghosts taken alone, their weights divided by the share."""
        lists, weight = whole.ghost.lists, whole.ghost.weight
        mask = torch.from_numpy(taken).to(lists.source.device)
        kept = mask[lists.source]
        below = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
        place = (mask.cumsum(0) - 1)[lists.source[kept]]
        if weight is None:
            weight = torch.ones_like(whole.degree[:1]).expand(len(lists.source))
        reduced = EdgeLists(below[lists.indptr], place, int(mask.sum()))
        ghost = Edges(reduced, weight[kept] / self.share, whole.ghost.rows)
        degree, looped = whole.ghost_degree[mask], whole.ghost_looped[mask]
        return replace(whole, ghost=ghost, ghost_degree=degree, ghost_looped=looped, _operators={}, _merged=None)
