"""Passes over a whole static graph: a rank's share of it as blocks, every layer for all nodes, ghosts by halo exchange.

n own nodes, g *ghosts*: nodes of other ranks with edges to own ones; s seeds; T node types; D width of a layer's rows.
An own node is *outer* if an in-neighbour is a ghost, else *inner*; inner nodes with edges to outer ones are the
*border*, the others *deep*. Stacked rows of the own nodes stand type by type, within a type deep, border, outer, each
in order of global id. So one block computes the inner nodes from own rows as they lie, while another one's ghosts are
on their way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.route import Route
from hpcgnn.comm.timers import Timers
from hpcgnn.graph.embeddings import EmbeddingStore
from hpcgnn.graph.partition import GraphPartition, InEdges
from hpcgnn.nn.step_key import StepKey
from hpcgnn.static.model.blocks import Adjacency, Batch, Block, IndexedRows
from hpcgnn.static.model.models import GraphModel
from hpcgnn.static.plan import block_on
from hpcgnn.static.step import Rows, joined, node_loss
from hpcgnn.task.labels import LabelScores

DEEP, BORDER, OUTER = range(3)


@dataclass(frozen=True, slots=True)
class Half:
    """The inner or the outer nodes as destinations of a block. By type, of its source nodes: source, their rows among
    [own nodes in the partition's order | ghosts]; identity and degree as in Batch. All int64."""

    block: Block
    source: tuple[torch.Tensor, ...]
    identity: tuple[torch.Tensor, ...]
    degree: tuple[torch.Tensor, ...]

    @property
    def num_nodes(self) -> int:
        """Destinations."""
        return sum(self.block.num_dst)


@dataclass(frozen=True, slots=True)
class FullGraph:
    """counts [T]: deep, border and outer nodes by type; num_ghosts [T]; place [n]: stacked row of every local row of
    the partition; route: brings rows of ghosts, type by type, from stacked rows of their owners; routes [T]: of one
    type's, from rows in the partition's order."""

    inner: Half
    outer: Half
    counts: tuple[tuple[int, int, int], ...]
    num_ghosts: tuple[int, ...]
    place: torch.Tensor
    route: Route
    routes: tuple[Route, ...]

    def outer_sources(self, rows: torch.Tensor, ghosts: torch.Tensor) -> torch.Tensor:
        """Stacked source rows of the outer block from those of own nodes [n, D] and ghosts [g, D]."""
        own, pieces = rows.split([count for counts in self.counts for count in counts]), []
        for kind, of_type in enumerate(ghosts.split(self.num_ghosts)):
            pieces += [own[3 * kind + OUTER], own[3 * kind + BORDER], of_type]
        return torch.cat(pieces)

    def join(self, inner: torch.Tensor, outer: torch.Tensor) -> torch.Tensor:
        """Stacked rows of all own nodes [n, D] from those of inner and outer ones."""
        halves = [rows.split(half.block.num_dst) for rows, half in ((inner, self.inner), (outer, self.outer))]
        return torch.cat([rows for of_type in zip(*halves, strict=True) for rows in of_type])


def build_full_graph(partition: GraphPartition, channel: Channel, device: torch.device) -> FullGraph:
    """Collective."""
    nodes = _find_nodes(partition)
    routes = [Route.plan(partition.book.of_type(kind), of.ghosts, channel) for kind, of in enumerate(nodes)]
    place = np.concatenate([of.place + start for of, start in zip(nodes, partition.type_start, strict=False)])
    columns = [
        _with_ghosts([partition.flat_row[mine], partition.in_degree()[mine]], route)
        for mine, route in zip(map(partition.of_type, range(len(nodes))), routes, strict=True)
    ]
    inner, outer = (_half(partition, nodes, columns, of_outer, device) for of_outer in (False, True))
    route = Route.plan(partition.book, np.concatenate([of.ghosts for of in nodes]), channel)
    requests, served = (torch.from_numpy(place[rows.numpy()]) for rows in (route.requests, route.served))
    return FullGraph(
        inner, outer, tuple(of.counts for of in nodes), tuple(len(of.ghosts) for of in nodes),
        torch.from_numpy(place).to(device), replace(route, requests=requests, served=served).to(device),
        tuple(route.to(device) for route in routes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Nodes:
    """n nodes of a type at this rank. first: global id of row 0; ghosts [g] global ids, increasing; order [n]: rows in
    stacked order, place [n] its inverse; counts: of deep, border and outer ones."""

    first: int
    ghosts: np.ndarray
    order: np.ndarray
    place: np.ndarray
    counts: tuple[int, int, int]

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Rows among [own | ghosts] of global ids that are either."""
        own = ids - self.first
        remote = (own < 0) | (own >= len(self.order))
        own[remote] = len(self.order) + np.searchsorted(self.ghosts, ids[remote])
        return own

    def sources(self, outer: bool) -> np.ndarray:
        """Rows among [own | ghosts] of the sources of a half's block, in its order."""
        if not outer:
            return self.order
        deep, border, _ = self.counts
        ghosts = len(self.order) + np.arange(len(self.ghosts))
        return np.concatenate([self.order[deep + border :], self.order[deep : deep + border], ghosts])


def _find_nodes(partition: GraphPartition) -> list[_Nodes]:
    """By type."""
    num_types, rank = len(partition.types), partition.rank
    starts = [partition.book.of_type(kind).starts for kind in range(num_types)]
    counts = np.diff(partition.type_start)
    ghosts: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in range(num_types)]
    outer, border = ([np.zeros(count, bool) for count in counts] for _ in range(2))
    remote = []
    for relation, edges in zip(partition.relations, partition.edges, strict=True):
        own = starts[relation.src_type]
        remote.append((edges.src < own[rank]) | (edges.src >= own[rank + 1]))
        ghosts[relation.src_type].append(np.unique(edges.src[remote[-1]]))
        outer[relation.dst_type][edges.dst[remote[-1]]] = True
    for relation, edges, is_remote in zip(partition.relations, partition.edges, remote, strict=True):
        met = edges.src[outer[relation.dst_type][edges.dst] & ~is_remote] - starts[relation.src_type][rank]
        border[relation.src_type][met] = True
    found = []
    for kind in range(num_types):
        group = np.where(outer[kind], OUTER, np.where(border[kind], BORDER, DEEP))
        order = np.argsort(group, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        ids = np.unique(np.concatenate(ghosts[kind]))
        sizes = tuple(np.bincount(group, minlength=3).tolist())
        found.append(_Nodes(int(starts[kind][rank]), ids, order, place, sizes))
    return found


def _with_ghosts(columns: list[np.ndarray], route: Route) -> list[torch.Tensor]:
    """Collective. Columns [n] of own nodes as [own | ghosts]."""
    own = [torch.from_numpy(np.ascontiguousarray(column)) for column in columns]
    return [torch.cat(pair) for pair in zip(own, route.pull(*own), strict=True)]


def _half(partition: GraphPartition, nodes: list[_Nodes], columns, outer: bool, device: torch.device) -> Half:
    """columns: by type, identity and degree of [own | ghosts]."""
    rows = [of.order[sum(of.counts[:OUTER]) :] if outer else of.order[: sum(of.counts[:OUTER])] for of in nodes]
    sources, position = [of.sources(outer) for of in nodes], []
    for of, known in zip(nodes, sources, strict=True):
        position.append(np.empty(len(of.order) + len(of.ghosts), np.int64))
        position[-1][known] = np.arange(len(known))
    relations = []
    for number, (relation, edges) in enumerate(zip(partition.relations, partition.edges, strict=True)):
        indptr, src = _take(edges, rows[relation.dst_type])
        place = position[relation.src_type][nodes[relation.src_type].rows_of(src)]
        lists = torch.from_numpy(indptr), torch.from_numpy(place)
        relations.append(Adjacency(number, relation.src_type, relation.dst_type, *lists))
    block = Block(tuple(relations), tuple(map(len, sources)), tuple(map(len, rows)), device)
    index = [torch.from_numpy(np.ascontiguousarray(known)) for known in sources]
    identity, degree = (
        tuple(of[column][known].to(device) for of, known in zip(columns, index, strict=True)) for column in range(2)
    )
    return Half(block_on(device, block), tuple(known.to(device) for known in index), identity, degree)


def _take(edges: InEdges, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """indptr and sources of the lists of some nodes, in their order."""
    count = np.diff(edges.indptr)[rows]
    indptr = np.concatenate([[0], np.cumsum(count)])
    place = np.arange(indptr[-1]) + np.repeat(edges.indptr[rows] - indptr[:-1], count)
    return indptr, edges.src[place]


class FullGraphPass:
    """One forward pass; all ranks make the same ones. features: by type, rows of [own nodes in the partition's order |
    ghosts], None without; learnt: by type, learnable rows of own nodes in the partition's order."""

    def __init__(
        self, model: GraphModel, graph: FullGraph, features: list[torch.Tensor | None],
        learnt: dict[int, torch.Tensor], key: StepKey, channel: Channel, chain: HaloChain,
    ):  # fmt: skip
        self.model, self.graph, self.channel, self.chain = model, graph, channel, chain
        self.features, self.learnt = features, learnt
        self.inner, self.outer = _batch(graph.inner, key), _batch(graph.outer, key)

    def rows(self) -> torch.Tensor:
        """Collective. Stacked rows [n, D] of the own nodes after the last layer."""
        rows = self._layer(0, InputHalo(self))
        for number in range(1, self.model.num_hops):
            rows = self._layer(number, RowHalo(self, rows))
        return rows

    def _layer(self, number: int, halo: InputHalo | RowHalo) -> torch.Tensor:
        """Collective. Inner nodes are computed while the ghosts of the outer ones are on their way."""
        graph, pieces = self.graph, []
        if graph.inner.num_nodes or not graph.outer.num_nodes:
            pieces.append(self.model.step(number, self.inner, graph.inner.block, halo.inner()))
        halo.wait()
        if graph.outer.num_nodes:
            pieces.append(self.model.step(number, self.outer, graph.outer.block, halo.outer()))
        return graph.join(*pieces) if len(pieces) == 2 else pieces[0]


class RowHalo:
    """Collective to create and to wait for. Source rows of a layer from the rows [n, D] of the one before."""

    def __init__(self, run: FullGraphPass, rows: torch.Tensor):
        self._graph, self._chain, self._rows = run.graph, run.chain, rows
        self._exchange = self._chain.start(run.graph.route.over(run.channel), rows)

    def wait(self) -> None:
        """The ghosts [g, D] are there."""
        self._ghosts = self._chain.finish(self._exchange)

    def inner(self) -> torch.Tensor:
        """Of the inner block."""
        return self._rows

    def outer(self) -> torch.Tensor:
        """Of the outer block, after ``wait``."""
        return self._graph.outer_sources(self._rows, self._ghosts)


class InputHalo:
    """Collective to create and to wait for. Source rows of the first layer, from inputs: features, which lie here for
    ghosts too, and learnable rows, which travel."""

    def __init__(self, run: FullGraphPass):
        self._run, chain, graph = run, run.chain, run.graph
        self._exchanges = {
            kind: chain.start(graph.routes[kind].over(run.channel), rows) for kind, rows in sorted(run.learnt.items())
        }

    def wait(self) -> None:
        """The ghosts' learnable rows are there."""
        finish = self._run.chain.finish
        self._ghosts = {kind: finish(exchange) for kind, exchange in self._exchanges.items()}

    def inner(self) -> Rows:
        """Of the inner block."""
        return self._first(self._run.inner, self._run.graph.inner, self._run.learnt)

    def outer(self) -> Rows:
        """Of the outer block, after ``wait``."""
        learnt = {kind: torch.cat([rows, self._ghosts[kind]]) for kind, rows in self._run.learnt.items()}
        return self._first(self._run.outer, self._run.graph.outer, learnt)

    def _first(self, batch: Batch, half: Half, learnt: dict[int, torch.Tensor]) -> Rows:
        inputs = []
        for kind, (table, source) in enumerate(zip(self._run.features, half.source, strict=True)):
            features = None if table is None else IndexedRows(table, source)
            inputs.append(joined(features, learnt[kind].index_select(0, source) if kind in learnt else None))
        return self._run.model.first(batch, inputs)


def _batch(half: Half, key: StepKey) -> Batch:
    """One block as a batch of its own."""
    return Batch((half.block,), half.identity, half.degree, key.seed, key.epoch, key.step, key.training)


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


class FullGraphTask:
    """``train`` and ``rows`` are collective. features: by type, rows of [own nodes in the partition's order | ghosts],
    None without. last_scores: of the newest training step."""

    def __init__(
        self, model: GraphModel, graph: FullGraph, features: list[torch.Tensor | None], embeddings: EmbeddingStore,
        seed: int, channel: Channel, timers: Timers, overlap: bool = True,
    ):  # fmt: skip
        self.model, self._graph, self.features, self._embeddings = model, graph, features, embeddings
        self._seed, self._channel, self.timers = seed, channel, timers
        self.last_scores: LabelScores | None = None
        self._overlap = overlap

    def train(self, plan: FullPlan) -> torch.Tensor:
        """Collective. Gradients of one step; returns this rank's part of the loss."""
        self.model.train()
        learnt = {kind: table.weight.detach().requires_grad_() for kind, table in self._embeddings.tables.items()}
        with self.timers("compute"):
            run = self._pass(learnt, StepKey(self._seed, plan.epoch, plan.step, True))
            outputs = self.model.last(run.rows())
            scores = LabelScores(outputs[plan.place], plan.label)
            loss = node_loss(scores) / max(1, plan.batch_size)
            run.chain.tie(loss).backward()
        for kind, rows in learnt.items():
            self._embeddings.tables[kind].move(torch.zeros_like(rows) if rows.grad is None else rows.grad)
        self.last_scores = scores.detach()
        return loss.detach()

    @torch.no_grad()
    def rows(self) -> torch.Tensor:
        """Collective. Rows of all local nodes [n, D] after the last layer, in the partition's order."""
        self.model.eval()
        learnt = {kind: table.weight for kind, table in self._embeddings.tables.items()}
        return self._pass(learnt, StepKey(self._seed)).rows()[self._graph.place]

    def _pass(self, learnt: dict[int, torch.Tensor], key: StepKey) -> FullGraphPass:
        chain = HaloChain(self.timers, self._overlap)
        return FullGraphPass(self.model, self._graph, self.features, learnt, key, self._channel, chain)
