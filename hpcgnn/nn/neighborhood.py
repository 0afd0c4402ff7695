"""The neighbours of all nodes of a rank in one snapshot, and sums over them that reach other ranks.

n nodes of this rank (*own* rows), g nodes of others that have edges to them (*ghosts*, rows brought by a halo
exchange), E edges. An exchange is under way while the own rows are added up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from hpcgnn.native import EdgeLists, segment_sum

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
