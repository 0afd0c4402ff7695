"""Computes whole static graphs: a rank's share as blocks, every layer for all nodes, remote nodes by halo exchange.

n own nodes, g *remote nodes*: nodes of other ranks with edges to own ones; s seeds; T node types; D width of a layer's
rows. An own node is *outer* if an in-neighbor is a remote node, else *inner*; inner nodes with edges to outer ones are
the *border*, the others *deep*. Stacked rows of the own nodes stand type by type, within a type deep, border, outer,
each in order of global id. So one block computes the inner nodes from own rows as they lie, while another one's remote
nodes are on their way.

Snapshots split the edges by their sources instead (own rows, then remote nodes, added up): a sum over halves of the
nodes takes 1.09 to 1.23 times as long there. Models of static graphs need all sources of a node in one block."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import Everyone, HaloChain
from hpcgnn.comm.route import Route
from hpcgnn.comm.timers import Timers
from hpcgnn.graph.book import find_remote_nodes, is_remote
from hpcgnn.graph.embeddings import EmbeddingStore
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.loop.session import Task
from hpcgnn.native.random import StepKey
from hpcgnn.nn.batch_norm import norms_of
from hpcgnn.static.model.blocks import Adjacency, Batch, Block, IndexedRows
from hpcgnn.static.model.models import GraphModel
from hpcgnn.static.plan import GraphPlan, block_on
from hpcgnn.static.sampling.edges import EdgeColumns
from hpcgnn.static.step import GraphLinkTask, GraphQueryTask, Rows, joined
from hpcgnn.task.labels import LabelScores
from hpcgnn.task.links import LinkScores
from hpcgnn.task.losses import Loss

DEEP, BORDER, OUTER = range(3)


@dataclass(frozen=True, slots=True)
class Half:
    """One of the two blocks of full-graph training: its destinations are the inner nodes, or the outer ones. source: by
    type, the row of every source node in [own nodes in the partition's order | remote nodes]. identity, degree: by
    type, of the source nodes, as in a Batch. All int64."""

    block: Block
    source: tuple[torch.Tensor, ...]
    identity: tuple[torch.Tensor, ...]
    degree: tuple[torch.Tensor, ...]

    @property
    def num_nodes(self) -> int:
        """Number of destinations."""
        return sum(self.block.num_dst)

    def batch(self, key: StepKey) -> Batch:
        """Make a batch of the block alone."""
        return Batch((self.block,), self.identity, self.degree, key.seed, key.epoch, key.step, key.training)


@dataclass(frozen=True, slots=True)
class FullGraph:
    """A rank's share of the graph. Its own nodes have two orders: the partition's, and the stacked one. counts [T]:
    deep, border and outer nodes by type; num_remote [T]; place [n]: the stacked row of every row in the partition's
    order. route: brings rows of all remote nodes, type by type, from their owners' stacked rows. routes [T]: brings
    rows of the remote nodes of one type, from their owners' rows in the partition's order."""

    inner: Half
    outer: Half
    counts: tuple[tuple[int, int, int], ...]
    num_remote: tuple[int, ...]
    place: torch.Tensor
    route: Route
    routes: tuple[Route, ...]

    def outer_sources(self, rows: torch.Tensor, remote_nodes: torch.Tensor) -> torch.Tensor:
        """Stack the source rows of the outer block from rows of own nodes [n, D] and remote nodes [g, D]."""
        own, pieces = rows.split([count for counts in self.counts for count in counts]), []
        for kind, remote_of_type in enumerate(remote_nodes.split(self.num_remote)):
            pieces += [own[3 * kind + OUTER], own[3 * kind + BORDER], remote_of_type]
        return torch.cat(pieces)

    def join(self, inner: torch.Tensor, outer: torch.Tensor) -> torch.Tensor:
        """Stack the rows of all own nodes [n, D] from rows of the inner and of the outer ones."""
        halves = inner.split(self.inner.block.num_dst), outer.split(self.outer.block.num_dst)
        return torch.cat([rows for rows_of_type in zip(*halves, strict=True) for rows in rows_of_type])


def build_full_graph(
    partition: GraphPartition, channel: Channel, device: torch.device, edge_columns: Sequence[str],
    dtype: torch.dtype,
) -> FullGraph:  # fmt: skip
    """Collective. Plan the passes of a rank over its share of the graph. edge_columns: of the edges, for the blocks;
    dtype: of floating ones."""
    book, rank, relations = partition.book, partition.rank, partition.relations
    remote = [
        is_remote(book, rank, relation.src_type, edges.src)
        for relation, edges in zip(relations, partition.edges, strict=True)
    ]
    sources = [
        (relation.src_type, edges.src, is_remote_source)
        for relation, edges, is_remote_source in zip(relations, partition.edges, remote, strict=True)
    ]
    remote_nodes, source_rows = find_remote_nodes(book, rank, sources)
    orders = _order_nodes(partition, remote, source_rows)
    routes = [Route.plan(book.of_type(kind), ids, channel) for kind, ids in enumerate(remote_nodes)]
    degrees, columns = partition.in_degree(), []
    for kind, route in enumerate(routes):
        nodes = partition.of_type(kind)
        own = [torch.from_numpy(np.ascontiguousarray(column[nodes])) for column in (partition.flat_row, degrees)]
        columns.append([torch.cat(pair) for pair in zip(own, route.pull(*own), strict=True)])
    tables = EdgeColumns(partition, edge_columns, dtype)
    halves = (_make_half(partition, orders, source_rows, columns, half, device, tables) for half in (False, True))
    inner, outer = halves
    place = np.concatenate(
        [np.argsort(order.rows) + start for order, start in zip(orders, partition.type_start, strict=False)]
    )
    route = Route.plan(book, np.concatenate(remote_nodes), channel)
    requests, served = (torch.from_numpy(place[rows.numpy()]) for rows in (route.requests, route.served))
    return FullGraph(
        inner, outer, tuple(order.counts for order in orders), tuple(map(len, remote_nodes)),
        torch.from_numpy(place).to(device), replace(route, requests=requests, served=served).to(device),
        tuple(route.to(device) for route in routes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Order:
    """The n own nodes of a type in stacked order: rows [n] in the partition's order; counts: deep, border and outer
    ones."""

    rows: np.ndarray
    counts: tuple[int, int, int]


def _order_nodes(partition: GraphPartition, remote: list[np.ndarray], source_rows: list[np.ndarray]) -> list[_Order]:
    """Find the stacked order of the own nodes, by type; remote, source_rows [E]: by relation, whether an edge's source
    is a remote node, and its row."""
    counts = np.diff(partition.type_start)
    outer, border = ([np.zeros(count, bool) for count in counts] for _ in range(2))
    relations = list(zip(partition.relations, partition.edges, remote, source_rows, strict=True))
    for relation, edges, is_remote_source, _ in relations:
        outer[relation.dst_type][edges.dst[is_remote_source]] = True
    for relation, edges, is_remote_source, source_row in relations:
        border[relation.src_type][source_row[outer[relation.dst_type][edges.dst] & ~is_remote_source]] = True
    orders = []
    for is_outer, is_border in zip(outer, border, strict=True):
        group = np.where(is_outer, OUTER, np.where(is_border, BORDER, DEEP))
        deep, borders, outers = np.bincount(group, minlength=3).tolist()
        orders.append(_Order(np.argsort(group, kind="stable"), (deep, borders, outers)))
    return orders


def _make_half(
    partition: GraphPartition, orders: list[_Order], source_rows: list[np.ndarray],
    columns: list[list[torch.Tensor]], outer: bool, device: torch.device, tables: EdgeColumns,
) -> Half:  # fmt: skip
    """Make one half of the graph; columns: by type, identity and degree of [own nodes | remote nodes]."""
    rows, sources, positions = [], [], []
    for order, (flat_row, _) in zip(orders, columns, strict=True):
        num_inner, num_deep, num_own = sum(order.counts[:OUTER]), order.counts[DEEP], len(order.rows)
        inner_rows, outer_rows = np.split(order.rows, [num_inner])
        rows.append(outer_rows if outer else inner_rows)
        remote_rows = np.arange(num_own, len(flat_row))
        reached = [outer_rows, inner_rows[num_deep:], remote_rows] if outer else [order.rows]
        sources.append(np.concatenate(reached))
        positions.append(np.empty(len(flat_row), np.int64))
        positions[-1][sources[-1]] = np.arange(len(sources[-1]))
    adjacencies = []
    for number, (relation, edges) in enumerate(zip(partition.relations, partition.edges, strict=True)):
        row = rows[relation.dst_type]
        starts = edges.indptr
        count = np.diff(starts)[row]
        indptr = np.concatenate([[0], np.cumsum(count)])
        places = np.arange(indptr[-1]) + np.repeat(starts[row] - indptr[:-1], count)
        source = positions[relation.src_type][source_rows[number][places]]
        lists = torch.from_numpy(indptr), torch.from_numpy(source)
        adjacency = Adjacency(number, relation.src_type, relation.dst_type, *lists)
        adjacencies.append(tables.take(adjacency, torch.from_numpy(places)))
    block = Block(tuple(adjacencies), tuple(map(len, sources)), tuple(map(len, rows)), device)
    index = [torch.from_numpy(np.ascontiguousarray(source)) for source in sources]
    identities, degrees = [
        tuple(of_type[column][source].to(device) for of_type, source in zip(columns, index, strict=True))
        for column in range(2)
    ]
    return Half(block_on(device, block), tuple(source.to(device) for source in index), identities, degrees)


@dataclass(frozen=True, slots=True)
class FullPlan:
    """A step, the only one of its epoch. batch_size: seeds of all ranks; place [s]: stacked rows of this rank's; label
    [s, ...]."""

    step: int
    epoch: int
    batch_size: int
    place: torch.Tensor
    label: torch.Tensor
    final: bool = True


class FullGraphPass:
    """Computes the layers of all nodes; all methods are collective. features: by type, rows of [own nodes in the
    partition's order | remote nodes], None without; embeddings: the learnable ones of own nodes."""

    def __init__(
        self, model: GraphModel, graph: FullGraph, features: list[torch.Tensor | None], embeddings: EmbeddingStore,
        seed: int, channel: Channel, timers: Timers, overlap: bool = True,
    ):  # fmt: skip
        self.model, self.graph, self.features, self._embeddings = model, graph, features, embeddings
        self._seed, self._channel, self._timers, self._overlap = seed, channel, timers, overlap
        self._norms = norms_of(model)

    def over(self, graph: FullGraph) -> FullGraphPass:
        """Return a twin that computes another graph of the same nodes."""
        twin = copy.copy(self)
        twin.graph = graph
        return twin

    def chain(self) -> HaloChain:
        """Begin the exchanges of a step."""
        return HaloChain(self._timers, self._overlap)

    def forward(self, plan: Any) -> tuple[torch.Tensor, HaloChain, dict[int, torch.Tensor]]:
        """Collective. Compute the stacked outputs [n, C] of the own nodes for a step. Returns the chain to tie the loss
        with, and the learnable embeddings by type, which then have gradients."""
        self.model.train()
        chain, key = self.chain(), StepKey(self._seed, plan.epoch, plan.step, True)
        learned = {
            kind: table.weight.detach().requires_grad_() for kind, table in self._embeddings.tables.items()
        }  # fmt: skip
        return self.model.last(self.run(learned, key, chain, self.model.num_hops)), chain, learned

    def move(self, learned: dict[int, torch.Tensor]) -> None:
        """Move the learnable embeddings by the gradients that ``forward`` and the backward pass left, and the running
        statistics of batch normalization by what ``forward`` found."""
        for norm in self._norms:
            norm.settle()
        for kind, rows in learned.items():
            self._embeddings.tables[kind].move(torch.zeros_like(rows) if rows.grad is None else rows.grad)

    @torch.no_grad()
    def rows(self, hops: int) -> torch.Tensor:
        """Collective. Compute the rows of all local nodes [n, D] after ``hops`` layers, in the partition's order."""
        self.model.eval()
        learned = {kind: table.weight for kind, table in self._embeddings.tables.items()}
        rows = self.run(learned, StepKey(self._seed), self.chain(), hops)
        return rows[self.graph.place]

    def run(self, learned: dict[int, torch.Tensor], key: StepKey, chain: HaloChain, hops: int) -> torch.Tensor:
        """Collective. Compute the stacked rows [n, D] of the own nodes after so many layers, at least one. learned: by
        type, learnable embeddings of own nodes in the partition's order.

        Inner nodes are computed while the outer ones' remote nodes travel: in the first layer their embeddings alone,
        for their features lie here."""
        graph, channel, step = self.graph, self._channel, self.model.step
        inner, outer = graph.inner.batch(key), graph.outer.batch(key)
        rows = torch.empty(0)
        for number in range(hops):
            if number == 0:  # sorted: every rank starts the exchanges of the types in one order
                traveling = {kind: (graph.routes[kind], learned[kind]) for kind in sorted(learned)}
            else:
                traveling = {0: (graph.route, rows[:, : getattr(self.model, "sent_columns", None)].contiguous())}
            # Started before the inner nodes are computed, finished after them: the remote nodes travel meanwhile.
            exchanges = {kind: chain.start(route.over(channel), own) for kind, (route, own) in traveling.items()}
            pieces = []
            if graph.inner.num_nodes or not graph.outer.num_nodes:
                sources = rows if number else self._inputs(inner, graph.inner, learned)
                pieces.append(step(number, inner, graph.inner.block, sources))
            remote_nodes = {kind: chain.finish(exchange) for kind, exchange in exchanges.items()}
            if graph.outer.num_nodes and number == 0:
                everyone = {kind: torch.cat([learned[kind], remote_nodes[kind]]) for kind in learned}
                pieces.append(step(number, outer, graph.outer.block, self._inputs(outer, graph.outer, everyone)))
            elif graph.outer.num_nodes:
                remote = functional.pad(remote_nodes[0], (0, rows.shape[1] - remote_nodes[0].shape[1]))
                pieces.append(step(number, outer, graph.outer.block, graph.outer_sources(rows, remote)))
            rows = graph.join(*pieces) if len(pieces) == 2 else pieces[0]
            if isinstance(self.model, GraphModel) and self.model.mixes(number):
                rows = self._mix(number, inner, rows, chain)
        return rows

    def _mix(self, number: int, inner: Batch, rows: torch.Tensor, chain: HaloChain) -> torch.Tensor:
        """Collective. Complete the stacked rows of the own nodes that a layer made by the summaries of all ranks. All
        own nodes are sources of the inner batch, in this order."""
        counts = [sum(of_type) for of_type in self.graph.counts]
        own = self.model.summary(number, rows, counts)
        everyone = chain.finish(chain.start(Everyone(self._channel, len(own), own.device), own))
        return self.model.mixed(number, inner, rows, counts, everyone.view(-1, *own.shape))

    def _inputs(self, batch: Batch, half: Half, learned: dict[int, torch.Tensor]) -> Rows:
        """Form the source rows of a half's first layer; learned: by type, embeddings of own nodes, and of remote nodes
        where the half has any."""
        inputs = []
        for kind, (table, source) in enumerate(zip(self.features, half.source, strict=True)):
            features = None if table is None else IndexedRows(table, source)
            inputs.append(joined(features, learned[kind].index_select(0, source) if kind in learned else None))
        return self.model.first(batch, inputs)


class FullGraphTask(Task):
    """Steps over the whole graph, whose seeds are nodes; ``train`` and ``rows`` are collective. loss: a sum over seeds;
    head: of the model's outputs."""

    def __init__(self, whole: FullGraphPass, loss: Loss, head: Callable[[torch.Tensor], torch.Tensor], timers: Timers):
        self.whole, self._sum, self._head, self.timers = whole, loss, head, timers

    def train(self, plan: FullPlan) -> torch.Tensor:
        """Collective. Compute the gradients of one step; returns this rank's part of the loss."""
        with self.timers("compute"):
            outputs, chain, learned = self.whole.forward(plan)
            scores = LabelScores(self._head(outputs[plan.place]), plan.label)
            loss = self._sum(scores.output, scores.label) / max(1, plan.batch_size)
            chain.tie(loss).backward()
        self.whole.move(learned)
        self.last_scores = scores.detach()
        return loss.detach()

    def rows(self, hops: int) -> torch.Tensor:
        """Collective. Compute the rows of all local nodes [n, D] after ``hops`` layers, in the partition's order."""
        return self.whole.rows(hops)


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of a step as leaves of autograd, by type. wanted: of the nodes that a rank needs for its seeds;
    own: of its own nodes, in the partition's order; learned: learnable embeddings of these."""

    wanted: list[torch.Tensor]
    own: list[torch.Tensor]
    learned: dict[int, torch.Tensor]


def learn_links(whole: FullGraphPass, plan: GraphPlan, timers: Timers, learn: Callable[[Outputs], Any]) -> Any:
    """Collective. Do a step whose plan has no blocks, but routes to the nodes whose outputs a rank needs for its seeds.
    Returns what ``learn`` returns, which computes the loss and its gradients by the outputs."""
    with timers("compute"):
        outputs, chain, learned = whole.forward(plan)
        rows = outputs[whole.graph.place]
    # The graph of the backward pass is cut at the rows that travel: a rank without seeds takes part, too.
    own = [of_type.requires_grad_() for of_type in rows.detach().split([sum(each) for each in whole.graph.counts])]
    with timers("exchange"):
        pairs = zip(plan.fetches, own, strict=True)
        wanted = [fetch.route.pull(of_type.detach())[0].requires_grad_() for fetch, of_type in pairs]
    with timers("compute"):
        found = learn(Outputs(wanted, own, learned))
    totals = [_gradient(of_type) for of_type in own]
    with timers("exchange"):
        for fetch, seen, total in zip(plan.fetches, wanted, totals, strict=True):
            total[fetch.route.served] += fetch.route.push_sum(_gradient(seen).contiguous())
    with timers("compute"):
        chain.tie((rows * torch.cat(totals)).sum()).backward()
    whole.move(learned)
    return found


def _gradient(rows: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(rows) if rows.grad is None else rows.grad


class FullGraphLinkTask(GraphLinkTask):
    """Steps over the whole graph, whose seeds are a mini-batch of links, which carry messages themselves; ``train`` and
    ``rows`` are collective."""

    def __init__(self, whole: FullGraphPass, *scoring):
        """scoring: what GraphLinkTask takes."""
        super().__init__(*scoring)
        self.whole = whole

    def _train(self, plan: GraphPlan) -> tuple[torch.Tensor, LinkScores | None]:
        loss, scores = learn_links(self.whole, plan, self.timers, lambda outputs: self._learn(plan, outputs.wanted))
        return loss.detach(), None if scores is None else scores.detach()

    def rows(self, hops: int) -> torch.Tensor:
        """Collective. Compute the rows of all local nodes [n, D] after ``hops`` layers, in the partition's order."""
        return self.whole.rows(hops)


class FullGraphQueryTask(GraphQueryTask):
    """Steps over the whole graph, whose seeds are a mini-batch of queries against all nodes of a type; ``train`` and
    ``rows`` are collective."""

    def __init__(self, whole: FullGraphPass, *scoring):
        """scoring: what GraphQueryTask takes."""
        super().__init__(*scoring)
        self.whole = whole

    def _train(self, plan: GraphPlan) -> tuple[torch.Tensor, None]:
        asked, answering = self._options.types

        def learn(outputs: Outputs) -> torch.Tensor:
            rows, candidate = outputs.wanted[asked], outputs.own[answering]
            return self._learn(plan, rows, candidate, outputs.learned.get(answering))

        return learn_links(self.whole, plan, self.timers, learn), None

    def rows(self, hops: int) -> torch.Tensor:
        """Collective. Compute the rows of all local nodes [n, D] after ``hops`` layers, in the partition's order."""
        return self.whole.rows(hops)
