"""The neighbors of all nodes of a rank in one snapshot, and sums over them that reach other ranks.

n nodes of this rank (*own* rows), g *remote nodes*: nodes of other ranks (or, by part, of other parts) with edges to
them. A halo exchange brings the rows of remote nodes while the own rows are added up. Results that depend on which
nodes are remote must not depend on the number of ranks. E edges from own rows or from remote nodes, e edges of a
snapshot, D columns.

Boundary node sampling (Wan et al., BNS-GCN, 2022): a training step sees a random share of the remote nodes. A remote
node is taken or left for all ranks that would see it, by its row id. So its owner and its users make the same choice
without communication, on any number of ranks. Messages of the taken remote nodes are divided by the share.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel, exchange_columns
from hpcgnn.comm.group import DistributedError
from hpcgnn.comm.halo import RankHalo
from hpcgnn.comm.route import Route
from hpcgnn.graph.book import find_remote_nodes, is_remote
from hpcgnn.native import EdgeLists, Random, Stream, segment_sum
from hpcgnn.nn.aggregation import edge_factors, with_loops
from hpcgnn.snapshots.graph import TYPE, WEIGHT, SnapshotEdges, SnapshotPartition

# Names of operators. gcn: Kipf and Welling, 2017; a node's own loop stays as it is. chebyshev: the scaled Laplacian
# 2 L / 2 - I of Defferrard et al., 2016, for the largest eigenvalue 2. walk: the random walk of Li et al. (DCRNN),
# 2018, along the direction of the neighborhood's edges; of in-edges it is the neighbors' weighted mean.
GCN, CHEBYSHEV, WALK, MEAN, SUM = "gcn", "chebyshev", "walk", "mean", "sum"
RESOLUTION = 1 << 24  # of the share of remote nodes that a step sees
SNAPSHOT_BITS = 16  # of the step in a random key: the number of the snapshot; above it is the step
STEP_NUMBERS = 1 << SNAPSHOT_BITS  # as many steps of an epoch, and snapshots, are told apart


@dataclass(slots=True)
class Edges:
    """Edges by destination from one kind of source: lists over their rows, weight [E] or None: all 1; rows [k]: the
    destinations that the lists are of, None: all n."""

    lists: EdgeLists
    weight: torch.Tensor | None
    rows: torch.Tensor | None = None
    _looped: EdgeLists | None = field(default=None, repr=False)

    @property
    def looped(self) -> EdgeLists:
        """The lists of edges from own rows, each with a loop behind it."""
        if self._looped is None:
            self._looped = with_loops(self.lists)
        return self._looped

    @property
    def destination(self) -> torch.Tensor:
        """Destination of every edge, an own row [E] int64."""
        return self.lists.destination if self.rows is None else self.rows[self.lists.destination]


@dataclass(frozen=True, slots=True)
class Operator:
    """A sparse matrix over the nodes: the lists of edges from own rows, and factors [E, 1] of these and of the remote
    nodes' edges, None: all 1."""

    lists: EdgeLists
    own: torch.Tensor | None
    remote: torch.Tensor | None


@dataclass(slots=True)
class Neighborhood:
    """The in-neighbors of a rank's nodes. own: edges from own rows; remote: edges from remote nodes; degree [n] and
    remote_degree [g]: sums of the weights of the in-edges in the whole snapshot. looped [n] and remote_looped [g]:
    bool, nodes that have an edge to themselves. route: brings the remote nodes' rows, None on a single rank, unless
    remote nodes are by part. remote_row [g]: flat row ids; signed: some weight is below 0, on any rank; types: the
    types of all in-edges of each node, None: not read."""

    num_nodes: int
    own: Edges
    remote: Edges
    degree: torch.Tensor
    remote_degree: torch.Tensor
    looped: torch.Tensor
    remote_looped: torch.Tensor
    route: Route | None
    remote_row: np.ndarray
    signed: bool = False
    types: EdgeLists | Any = None
    _ends_by_type: EdgeLists | None = field(default=None, repr=False)
    _operators: dict[str, Operator] = field(default_factory=dict, repr=False)
    _merged: EdgeLists | None = field(default=None, repr=False)

    def operator(self, name: str) -> Operator:
        """Return the matrix of that name, which is formed once. Raises DistributedError, on all ranks alike, for one
        that is divided by sums of weights of which some are below 0."""
        if name not in self._operators:
            if self.signed and name != SUM:
                raise DistributedError(
                    f"operator {name} divides by sums of the edges' column weight, which must be from 0 on: take the "
                    f"operator {SUM}, or set model.edge_weights false",
                    user_error=True,
                )
            self._operators[name] = make_operator(name, self)
        return self._operators[name]

    def ends_by_type(self, out: Neighborhood) -> EdgeLists:
        """List, for each edge type, the nodes of this rank that are an end of such an edge, each once; ``out``: the
        out-neighbors of the same snapshot."""
        if self._ends_by_type is None:
            sides = (self.types, out.types)
            key = torch.cat([lists.source * self.num_nodes + lists.destination for lists in sides]).unique()
            bounds = torch.arange(self.types.num_sources + 1, device=key.device) * self.num_nodes
            indptr = torch.searchsorted(key, bounds)
            self._ends_by_type = EdgeLists(indptr, key % max(1, self.num_nodes), self.num_nodes)
        return self._ends_by_type

    @property
    def merged(self) -> EdgeLists:
        """All edges over [own rows | remote nodes], of loops one at every node, the last of its list."""
        if self._merged is None:
            own, remote = self.own, self.remote
            others = own.destination != own.lists.source
            destination = torch.cat([own.destination[others], remote.destination])
            source = torch.cat([own.lists.source[others], remote.lists.source + self.num_nodes])
            count = torch.bincount(destination, minlength=self.num_nodes)
            indptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
            source = source[torch.argsort(destination, stable=True)]
            self._merged = with_loops(EdgeLists(indptr, source, self.num_nodes + len(self.remote_degree)))
        return self._merged


def propagate(
    neighborhood: Neighborhood, halo: RankHalo | None, name: str, rows: torch.Tensor, exchange=None
) -> torch.Tensor:
    """Collective. Compute operator @ rows of all ranks, for this rank's nodes [n, D]; exchange: of the same rows, where
    it was started before. Without a halo there are no remote nodes."""
    operator, edges = neighborhood.operator(name), neighborhood.remote
    if halo is not None and exchange is None:
        exchange = halo.start(rows)
    # Own rows are added up while the remote nodes' rows are under way.
    total = segment_sum(rows, operator.lists, operator.own)
    if halo is None:
        return total
    remote_nodes = halo.finish(exchange)
    if len(edges.lists) == 0:
        return (
            total + 0 * remote_nodes.sum() if remote_nodes.requires_grad else total
        )  # every rank takes part in the backward pass
    assert edges.rows is not None
    return total.index_add(0, edges.rows, segment_sum(remote_nodes, edges.lists, operator.remote))


def next_term(name: str, product: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    """Compute the next term of an operator's series: ``product``, which is operator @ the last term; for Chebyshev
    polynomials 2 product - before. before: the term before the last (None: the last is the first)."""
    return 2 * product - before if name == CHEBYSHEV and before is not None else product


def make_operator(name: str, neighborhood: Neighborhood) -> Operator:
    """Form the operator of a neighborhood, from its matrix of weights A and its in-degrees D. sum: A; mean and walk:
    D^-1 A; chebyshev: -D^-1/2 A D^-1/2. gcn: D^-1/2 A D^-1/2, with a loop of weight 1 at every node that has none."""
    own, remote, lists, loop = neighborhood.own, neighborhood.remote, neighborhood.own.lists, None
    degree, remote_degree = neighborhood.degree, neighborhood.remote_degree
    if name == SUM:
        return Operator(lists, *(None if e.weight is None else e.weight.unsqueeze(1) for e in (own, remote)))
    if name == GCN:
        degree, remote_degree = degree + ~neighborhood.looped, remote_degree + ~neighborhood.remote_looped
    own_source: torch.Tensor | None = None
    remote_source: torch.Tensor | None = None
    if name in (MEAN, WALK):
        target = _inverse(degree, -1.0)
    else:
        target = own_source = _inverse(degree, -0.5)
        remote_source = _inverse(remote_degree, -0.5)
    if name == GCN:
        lists, loop = own.looped, ~neighborhood.looped * target * target
    if name == CHEBYSHEV:
        target = -target
    remote_target = target if remote.rows is None else target[remote.rows]
    own_factors = edge_factors(lists, target, own_source, own.weight, loop)
    return Operator(lists, own_factors, edge_factors(remote.lists, remote_target, remote_source, remote.weight))


def _inverse(values: torch.Tensor, power: float) -> torch.Tensor:
    """Compute values ** power where they are above 0, else 0."""
    return torch.where(values > 0, values.clamp(min=torch.finfo(values.dtype).tiny) ** power, torch.zeros_like(values))


def _lists_on(device: torch.device, indptr: np.ndarray, source: np.ndarray, num_sources: int) -> EdgeLists:
    arrays = [torch.from_numpy(values.astype(np.int64)).to(device) for values in (indptr, source)]
    return EdgeLists(arrays[0], arrays[1], num_sources)


@dataclass(frozen=True, slots=True)
class Builder:
    """Collective to build with. weighted: messages are multiplied by the edges' column weight, where there is one;
    by_part: remote nodes are nodes of other parts; signed: some weight is below 0, on any rank; edge_types: number of
    edge types, 0: neighborhoods have no types, 1: all edges have type 0."""

    partition: SnapshotPartition
    channel: Channel
    dtype: torch.dtype
    device: torch.device
    weighted: bool = True
    by_part: bool = False
    signed: bool = False
    edge_types: int = 0

    def build(self, number: int, reverse: bool = False) -> Neighborhood:
        """Collective. Build the in-neighbors of all nodes in a snapshot; reverse: out-neighbors."""
        partition, device = self.partition, self.device
        is_weighted = self.weighted and WEIGHT in partition.edge_columns
        edges = partition.edges_at(number, (WEIGHT,) * is_weighted + (TYPE,) * (self.edge_types > 1))
        if reverse:
            edges = reversed_edges(edges, partition, self.channel)
        weight = torch.from_numpy(edges.columns[WEIGHT]).to(self.dtype) if is_weighted else None
        summed = None if weight is None else weight.double().numpy()
        degree = torch.from_numpy(np.bincount(edges.dst, summed, partition.num_nodes)).to(self.dtype)
        looped = torch.zeros(partition.num_nodes, dtype=torch.bool)
        looped[torch.from_numpy(edges.dst[edges.src == edges.dst + partition.first_id])] = True
        remote = self._are_from_remote_nodes(edges)
        (ids,), (source,) = find_remote_nodes(partition.book, partition.rank, [(0, edges.src, remote)])
        route, remote_degree, remote_looped, remote_row = None, degree[:0], looped[:0], ids[:0]
        if self.channel.size > 1 or self.by_part:
            route = Route.plan(partition.book, ids, self.channel)
            remote_degree, remote_looped, flat_row = route.pull(degree, looped, torch.from_numpy(partition.flat_row))
            remote_row = flat_row.numpy()
            route = route.to(device)
        own, remote = np.flatnonzero(~remote), np.flatnonzero(remote)
        own_indptr = np.searchsorted(edges.dst[own], np.arange(partition.num_nodes + 1))
        rows, counts = np.unique(edges.dst[remote], return_counts=True)
        remote_indptr = np.concatenate([[0], np.cumsum(counts)])
        own_lists = _lists_on(device, own_indptr, source[own], partition.num_nodes)
        remote_lists = _lists_on(device, remote_indptr, source[remote] - partition.num_nodes, len(ids))
        weights = [None if weight is None else weight[torch.from_numpy(place)].to(device) for place in (own, remote)]
        return Neighborhood(
            partition.num_nodes, Edges(own_lists, weights[0]),
            Edges(remote_lists, weights[1], torch.from_numpy(rows).to(device)),
            degree.to(device), remote_degree.to(device), looped.to(device), remote_looped.to(device), route, remote_row,
            self.signed, self._types(edges) if self.edge_types else None,
        )  # fmt: skip

    def _types(self, edges: SnapshotEdges) -> EdgeLists:
        """List the types of the edges of each node."""
        indptr = np.searchsorted(edges.dst, np.arange(self.partition.num_nodes + 1))
        types = edges.columns.get(TYPE, np.zeros_like(edges.dst))
        return _lists_on(self.device, indptr, types, self.edge_types)

    def _are_from_remote_nodes(self, edges: SnapshotEdges) -> np.ndarray:
        """Return whether the source of each edge is a remote node, bool [e]."""
        book, first_id = self.partition.book, self.partition.first_id
        if self.by_part:
            return book.part_of(edges.src) != book.part_of(edges.dst + first_id)
        return is_remote(book, self.partition.rank, 0, edges.src)


def reversed_edges(edges: SnapshotEdges, partition: SnapshotPartition, channel: Channel) -> SnapshotEdges:
    """Collective. Turn the edges of a snapshot the other way, at the owners of what were their sources."""
    owner, _ = partition.book.locate(edges.src)
    sent = [edges.src, edges.dst + partition.first_id, edges.row, *edges.columns.values()]
    dst, src, row, *columns = exchange_columns(sent, owner, channel) if channel.size > 1 else sent
    order = np.lexsort((row, dst))
    ordered = {name: column[order] for name, column in zip(edges.columns, columns, strict=True)}
    return SnapshotEdges(src[order], dst[order] - partition.first_id, row[order], ordered)


@dataclass(frozen=True, slots=True)
class Boundary:
    """Boundary node sampling. share of the remote nodes that is taken; flat_row [n] row ids of this rank's nodes."""

    share: float
    seed: int
    flat_row: np.ndarray

    def sample(self, whole: Neighborhood, epoch: int, step: int, number: int) -> Neighborhood:
        """Sample the neighborhood in a snapshot as one step sees it: edges from the remote nodes taken alone, their
        weights divided by the share. No collective calls."""
        random = Random(self.seed, Stream.BOUNDARY, (step << SNAPSHOT_BITS) + number, epoch)
        assert whole.route is not None
        # The owner draws for the same row ids as the ranks that see its nodes as remote: both know the rows to send.
        is_taken = self._take(random, whole.remote_row)
        requested = self._take(random, self.flat_row[whole.route.requests.cpu().numpy()])
        lists, weight = whole.remote.lists, whole.remote.weight
        mask = torch.from_numpy(is_taken).to(lists.source.device)
        taken = mask[lists.source]
        below = torch.cat([taken.new_zeros(1, dtype=torch.int64), taken.cumsum(0)])
        place = (mask.cumsum(0) - 1)[lists.source[taken]]
        if weight is None:
            weight = torch.ones_like(whole.degree[:1]).expand(len(lists.source))
        reduced = EdgeLists(below[lists.indptr], place, int(mask.sum()))
        return replace(
            whole, remote=Edges(reduced, weight[taken] / self.share, whole.remote.rows),
            remote_degree=whole.remote_degree[mask], remote_looped=whole.remote_looped[mask],
            route=whole.route.restrict(is_taken, requested), remote_row=whole.remote_row[is_taken],
            _operators={}, _merged=None,
        )  # fmt: skip

    def _take(self, random: Random, rows: np.ndarray) -> np.ndarray:
        """Choose, bool [k], which of the nodes with row ids [k] are taken."""
        return native.random_integers(random, rows, 1, RESOLUTION)[:, 0] < round(self.share * RESOLUTION)
