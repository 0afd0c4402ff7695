"""A run on a static graph, sampled or whole: the graph, what is learnt of it, the model, learnable rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.graph.directory import epoch_shuffle
from hpcgnn.graph.embeddings import EmbeddingConfig, EmbeddingStore, SparseEmbedding
from hpcgnn.graph.partition import GraphPartition, open_graph_partition
from hpcgnn.graph.splits import SPLITS
from hpcgnn.graph.stage import stage_path
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.loop.session import BaseSession
from hpcgnn.loop.step_graphs import StepGraphs
from hpcgnn.static.config import LINK, NODE, OUT, RELATIONAL_KINDS, WHOLE, StaticConfig
from hpcgnn.static.draw import BlockSampler, choose_draw
from hpcgnn.static.edges import EdgeTables, check_columns, outward
from hpcgnn.static.features import NodeTables
from hpcgnn.static.goals import LinkGoal, NodeGoal, StaticGoal
from hpcgnn.static.inference import infer, last_rows
from hpcgnn.static.model.models import GraphModel, GraphSizes, make_model
from hpcgnn.static.neighbors import check_weights
from hpcgnn.static.plan import GraphPlan, GraphSampler, pad_graph_plan
from hpcgnn.static.replica import Replica, make_neighbors, make_replica
from hpcgnn.static.rows import FEATURE, NodeRows
from hpcgnn.static.sampler_ranks import Samplers
from hpcgnn.static.seeds import SeedBatches, SeedPool, make_seed_batches
from hpcgnn.static.whole import FullGraphTask, FullPlan, build_full_graph
from hpcgnn.task.collect import Collected

GOALS: dict[str, Callable[..., StaticGoal]] = {NODE: NodeGoal, LINK: LinkGoal}


class StaticSession(BaseSession):
    """Collective to create and to close. Kinds of runs call ``_open`` and ``_build_model``, and fill in ``partition``
    and ``tables``."""

    roots = "seeds"
    config: StaticConfig
    goal: StaticGoal
    model: GraphModel
    partition: GraphPartition
    tables: NodeTables
    memory: EmbeddingStore

    def _open(self, path: str, needs_edges: bool) -> None:
        """Collective. Read the partition set, and what is learnt of it."""
        config, world = self.config, self.world
        folder = stage_path(path, config.data.stage_to, world)
        with together(world, "open the partition set"):
            out = config.sampling.direction == OUT
            partition = open_graph_partition(
                folder, world.rank, world.size, config.data.check_hash, needs_edges, with_out=out
            )
            self.learnt = _learnt_types(partition, config.embedding.types)
            _check_basis_rows(config.model.basis_rows, partition)
            self._check(partition)
        if out:
            partition = outward(partition, self.plan_channel)
        self.goal = GOALS[config.task.kind](config, partition, world, self.plan_channel)

    def _check(self, partition: GraphPartition) -> None:
        """Raises ValueError for what does not go together with the graph."""

    @property
    def rows(self) -> tuple[NodeRows, ...]:
        """What steps fetch of nodes, by type."""
        return self.tables.rows

    def _build_model(self) -> None:
        """Collective. The model, and learnable rows of the types that need them."""
        config, partition, seed = self.config, self.partition, self.config.train.seed
        torch.manual_seed(seed % (1 << 63))
        with together(self.world, "build the model"):
            tables = {
                kind: SparseEmbedding(
                    partition.flat_row[partition.of_type(kind)], config.model.row_width, self._embedding_config(),
                    config.train.lr, seed, self.dtype, self.world.device,
                )
                for kind in self.learnt
            }  # fmt: skip
            relations = tuple((relation.src_type, relation.dst_type) for relation in partition.relations)
            widths = tuple(self._input_width(kind) for kind in range(len(partition.types)))
            model: Any = self.goal.extend(
                make_model(config.model, GraphSizes(widths, relations, self.goal.num_outputs))
            )
        self.model = model.to(device=self.world.device, dtype=self.dtype)
        self.memory = EmbeddingStore(tables, partition.type_start)

    def _embedding_config(self) -> EmbeddingConfig:
        """The section ``embedding``; rows of bases start as matrices [all nodes, hidden] do (Glorot and Bengio)."""
        embedding, model = self.config.embedding, self.config.model
        if not model.basis_rows or embedding.scale:
            return embedding
        return replace(embedding, scale=math.sqrt(6 / (self.partition.book.num_nodes + model.hidden)))

    def _input_width(self, kind: int) -> int:
        """Of a type's input rows: features, then learnable rows."""
        rows = self.rows[kind]
        width = rows.tables[FEATURE].shape[1] if FEATURE in rows.tables else 0
        return width + self.config.model.row_width * (kind in self.learnt)

    @abstractmethod
    def last_rows(self) -> torch.Tensor:
        """Collective. Rows of all local nodes [n, W] after the last layer, with all their neighbours, in order of local
        row: what the output layer takes, or, in models without one, the outputs."""

    def _describe_graph(self) -> list[str]:
        """Collective. The graph, and what is learnt of it."""
        partition, book, config = self.partition, self.partition.book, self.config
        seeds = ", ".join(f"{name} {pool.total}" for name, pool in self.goal.pools.items())
        edges = sum(relation.num_edges for relation in partition.relations)
        learnt = int(self.world.total(sum(table.weight.numel() for table in self.memory.tables.values())))
        return [
            f"{book.num_nodes} nodes of {len(partition.types)} types, {edges} edges of {len(partition.relations)} "
            f"relations in {book.offsets.shape[1] - 1} parts",
            f"{self.goal.describe()}: {seeds}",
            f"{config.train.precision}; {self.batches['train'].num_steps} steps an epoch",
            *([f"{learnt} learnable numbers of nodes, at their owners"] if learnt else []),
        ]


def _check_basis_rows(wanted: bool, partition: GraphPartition) -> None:
    """Raises ValueError for rows of bases where a type has features."""
    named = [name for name, features in zip(partition.types, partition.features, strict=True) if features is not None]
    if wanted and named:
        raise ValueError(f"model.basis_rows is for graphs without features, but {', '.join(named)} has some")


def _learnt_types(partition: GraphPartition, names: list[str]) -> tuple[int, ...]:
    """Node types with learnable rows: those named, by default those without features. Raises ValueError."""
    bare = [kind for kind, features in enumerate(partition.features) if features is None]
    return tuple(sorted(set(bare) | {partition.type_of(name) for name in names}))


PARTS = ("num_hops", "first", "step", "last")  # of a model


class FullGraphSession(StaticSession):
    """Collective to create. Seeds are scored where they lie, all of a split in one step."""

    goal: NodeGoal

    def __init__(self, config: StaticConfig, path: str, world: World, watchdog: Watchdog):
        super().__init__(config, world, watchdog)
        self._open(path, needs_edges=True)
        self.graph = build_full_graph(self.goal.partition, self.plan_channel, world.device)
        self.partition = self.goal.partition = self.goal.partition.degrees_only()
        self.batches = {name: _all_at_once(self.goal.pools[name]) for name in SPLITS}
        self.tables = NodeTables(self.partition, config.features, world, self.data_channel, self.dtype)
        self._build_model()
        with together(world, "build the model"):
            lacking = [name for name in PARTS if not hasattr(self.model, name)]
            if lacking:
                raise ValueError(
                    f"sampling.mode whole takes a model layer by layer: model.class_path {config.model.class_path} "
                    f"lacks {', '.join(lacking)} (see hpcgnn.static.model.models.GraphModel)"
                )
        self._plans = {name: self._plan(name) for name in SPLITS}
        self.task = FullGraphTask(
            self.model, self.graph, self._features(), self.memory, config.train.seed, self.data_channel, self.timers,
            config.comm.overlap,
        )  # fmt: skip

    def _plans_ahead(self) -> int:
        return 0

    def _features(self) -> list[torch.Tensor | None]:
        """Collective. By type, features of [own nodes | ghosts]; the tables become views of them."""
        found: list[Any] = []
        for rows, route in zip(self.rows, self.graph.routes, strict=True):
            found.append(None)
            if FEATURE in rows.tables:
                own: Any = rows.tables[FEATURE]
                found[-1] = torch.cat([own, rows.pull_exact(route, FEATURE)])
                rows.tables[FEATURE] = found[-1][: len(own)]
        return found

    def _plan(self, split: str) -> Callable[[int], FullPlan]:
        """What makes the plan of a split's only step in an epoch."""
        batches, device, kind = self.batches[split], self.world.device, self.goal.node_type
        first = int(self.partition.book.of_type(kind).starts[self.world.rank])
        row = torch.from_numpy(batches.columns["id"] - first + int(self.partition.type_start[kind])).to(device)
        label = torch.from_numpy(batches.columns["label"]).to(device)
        place, size = self.graph.place[row], int(batches.sizes.sum())
        return lambda epoch: FullPlan(0, epoch, size, place, label)

    def start_epoch(self, epoch: int) -> None:
        """Nothing to do: every epoch has the same seeds."""

    def plans(self, split: str, epoch: int, start: int = 0) -> Prefetcher[FullPlan]:
        return Prefetcher(lambda _: self._plans[split](epoch), start, self.batches[split].num_steps, 0)

    def last_rows(self) -> torch.Tensor:
        return self.task.rows()

    @torch.no_grad()
    def scores(self, split: str, stop: Callable[[], bool] = lambda: False) -> Collected | None:
        self.watchdog.at(split, 0)
        outputs = self.model.last(self.last_rows())
        return None if stop() else self.goal.exact_scores(outputs, self.batches[split], self.model, self.data_channel)

    def describe(self) -> list[str]:
        """Collective. What is about to run, line by line."""
        world, graph = self.world, self.graph
        outer, ghosts = (int(world.total(count)) for count in (graph.outer.num_nodes, sum(graph.num_ghosts)))
        return [
            f"{world.size} ranks x {world.threads} threads on {world.device.type}, whole graph in every step",
            *self._describe_graph(),
            f"{outer} nodes have neighbours of other ranks, {ghosts} ghosts on all ranks together",
        ]


def _all_at_once(pool: SeedPool) -> SeedBatches:
    """All seeds of a split as one step, at their owners, in order of place; none: no step."""
    order = np.argsort(pool.place)
    columns = {name: column[order] for name, column in pool.columns.items()}
    sizes = np.array([pool.total] if pool.total else [], np.int64)
    return SeedBatches(pool.name, columns, pool.place[order], np.array([0, len(order)])[: len(sizes) + 1], sizes)


class GraphSession(StaticSession):
    """Collective to create and to close. A run on a static graph by sampled mini-batches; with ``samplers`` this rank
    and its peers keep edges only where they score by exact inference."""

    def __init__(
        self, config: StaticConfig, path: str, world: World, watchdog: Watchdog, samplers: Samplers | None = None
    ):
        super().__init__(config, world, watchdog)
        self._remote = samplers
        in_flight = config.sampling.in_flight if self.prefetch else 1
        self._lanes = [self.plan_channel, *(world.channel(polite=True) for _ in range(1, in_flight))]
        keeps_edges = samplers is None or config.eval.exact or bool(config.eval.ranking)
        self._open(path, keeps_edges or config.task.kind == LINK)
        if not keeps_edges:
            self.goal.partition = self.goal.partition.degrees_only()
        self.partition = self.goal.partition
        self.replica: Replica | None = None
        self.excluded = None if samplers is not None else self.goal.excluded  # samplers leave it out themselves
        if samplers is None:
            self._share_edges()
        columns, self.edges = config.sampling.edge_columns, None
        if columns:
            self.edges = EdgeTables(self.partition, columns, self.dtype, world.device, self.plan_channel)
        self._make_batches()
        self.tables = NodeTables(self.partition, config.features, world, self.data_channel, self.dtype)
        if samplers is not None:
            samplers.meet()
        self.samplers = self._make_samplers()
        if self.tables.wants_copies:
            self.tables.keep_copies(self.sampler, self.batches["train"], self.learnt)
            self.samplers = self._make_samplers()
        self._build_model()
        self.task = self.goal.task(self.model, self.rows, self.memory, self.timers)
        if config.train.cuda_graphs:
            self.task.use_graphs(lambda step: StepGraphs(step, self.timers))

    def _check(self, partition: GraphPartition) -> None:
        sampling = self.config.sampling
        sampling.check_relations([relation.name for relation in partition.relations])
        check_columns(partition, sampling.edge_columns)
        if self._remote is None and sampling.mode == "weighted":
            check_weights(partition)

    def _share_edges(self) -> None:
        """Collective. One copy of all edges for the ranks of a node, where the configuration says so."""
        sampling = self.config.sampling
        self.replica = make_replica(
            sampling.topology, self.partition, sampling.mode, self.world, self.plan_channel, self.excluded
        )
        if self.replica is not None:
            self.excluded = self.replica.excluded

    def _plans_ahead(self) -> int:
        return self.world.plans_ahead(self.config.sampling.prefetch, self.config.sampling.in_flight)

    def _make_batches(self) -> None:
        """Collective."""
        self.batches: dict[str, SeedBatches] = {}
        self.start_epoch(0)
        for name in SPLITS[1:]:
            size = self.config.eval.batch_size or self.config.train.batch_size
            pool = self.goal.pools[name]
            self.batches[name] = make_seed_batches(pool, size, None, self.world, self.plan_channel)

    def start_epoch(self, epoch: int) -> None:
        """Collective. The seeds of training in an order of their own."""
        if self._remote is not None:
            self._remote.settle()  # no rank asks for an epoch while samplers draw another
        train = self.config.train
        shuffle = epoch_shuffle(train.seed, epoch)
        shared = (self.world, self.plan_channel, train.drop_last)
        self.batches["train"] = make_seed_batches(self.goal.pools["train"], train.batch_size, shuffle, *shared)
        if self.excluded is not None:
            self.excluded.start_epoch(shuffle)

    @property
    def sampler(self) -> GraphSampler:
        """The first one."""
        return self.samplers[0]

    def _make_samplers(self) -> list[GraphSampler]:
        """Collective. One for each plan in flight."""
        config, (channel, *others) = self.config, self._lanes
        draws: list[Any] = (
            [self._make_draw(channel), *[None] * len(others)] if self._remote is None else self._remote.draws
        )
        if config.train.cuda_graphs:
            with together(self.world, "prepare CUDA graphs"):
                self._check_graphs(draws[0])
        first = GraphSampler(
            self.rows, draws[0], self.goal.roots, config.train.seed, channel, self.data_channel, self.world.device,
            complete=self.goal.complete, node_columns=config.model.node_columns, edges=self.edges,
            pad=pad_graph_plan if config.train.cuda_graphs else None,
        )  # fmt: skip
        return [first, *map(first.over, others, draws[1:])]

    def _check_graphs(self, draw) -> None:
        """Raises ValueError where steps cannot be CUDA graphs."""
        partition, reason = self.partition, ""
        if not draw.on_device:
            reason = "neighbours are drawn on the host (see sampling.planner)"
        elif len(partition.types) > 1 or len(partition.relations) > 1:
            reason = "the graph has several types"
        elif self.config.model.kind in RELATIONAL_KINDS:
            reason = f"model.kind {self.config.model.kind} looks for the relations of every step"
        elif self.config.model.class_path:
            reason = "a model of one's own may do what no graph can hold"
        elif self.learnt:
            reason = "rows of nodes are learnt"
        elif self.config.features.storage != "memory":
            reason = "features.storage is not memory"
        if reason:
            raise ValueError(f"train.cuda_graphs: {reason}; set it false")

    def _make_draw(self, channel: Channel) -> BlockSampler:
        """Collective."""
        sampling = self.config.sampling
        neighbors = make_neighbors(
            self.partition, sampling.mode, channel, self.plan_threads, excluded=self.excluded, replica=self.replica,
            with_edges=self.edges is not None,
        )  # fmt: skip
        with together(self.world, "choose where neighbours are drawn"):
            return choose_draw(neighbors, sampling, self.config.train.seed, self.world.device)

    def last_rows(self) -> torch.Tensor:
        return last_rows(self)

    def scores(self, split: str, stop: Callable[[], bool] = lambda: False) -> Collected | None:
        """Collective. The collected scores of a split, sampled or by exact inference."""
        if not (self.config.eval.exact or self.config.eval.ranking):
            return super().scores(split, stop)
        return self.goal.exact_scores(infer(self), self.batches[split], self.model, self.data_channel)

    def plans(self, split: str, epoch: int, start: int = 0) -> Prefetcher[GraphPlan]:
        """Collective. The plans of a split's steps from ``start`` on."""
        batches, stride = self.batches[split], len(self.samplers)

        def maker(sampler: GraphSampler) -> Callable[[int], GraphPlan]:
            def make(step: int) -> GraphPlan:
                with self.plan_timers("plan"):
                    return sampler.plan(batches, epoch, step, stride)

            return make

        return Prefetcher([maker(sampler) for sampler in self.samplers], start, batches.num_steps, self.prefetch)

    def channels(self) -> list[Channel]:
        return [*super().channels(), *self._lanes[1:]]

    def close(self) -> None:
        """Collective. Give back what ranks have together, the copy of the edges too."""
        super().close()
        if self.replica is not None:
            self.replica.close()

    def describe(self) -> list[str]:
        """Collective. What is about to run, line by line."""
        world = self.world
        return [
            f"{world.size} ranks x {world.threads} threads on {world.device.type}, plans ahead: {self.prefetch}, "
            f"in flight: {len(self.samplers)}",
            *([self._remote.describe()] if self._remote else []),
            *self._describe_graph(),
            *self._describe_topology(),
            *self._describe_copies(),
            self._describe_rows(),
        ]

    def _describe_topology(self) -> list[str]:
        if self.world.size == 1:
            return []
        if self.replica is None:
            return ["topology sharded: owners are asked for neighbours"]
        return [f"topology replicated: {self.replica.num_bytes} bytes on every node"]

    def _describe_rows(self) -> str:
        """Collective."""
        held = max(self.world.allgather(self.tables.held_bytes())) / (1 << 20)
        places = {
            "memory": "",
            "pinned": ", features in pinned memory of the host",
            "file": ", features in the part files",
        }
        where = places[self.config.features.storage]
        return f"rows of nodes and copies: {held:.1f} MiB at most on a rank{where}"

    def _describe_copies(self) -> list[str]:
        """Collective."""
        if not self.tables.wants_copies:
            return []
        copies, predicted = self.tables.num_copies(), self.tables.predicted_hits
        return [f"copies of {copies} remote rows on all ranks together, predicted hit rate {predicted:.3f}"]


def open_session(
    config: StaticConfig, path: str, world: World, watchdog: Watchdog, samplers: Samplers | None = None
) -> StaticSession:
    """Collective. The session of a run: over the whole graph in every step, or over mini-batches, where ``samplers``
    may be ranks that draw them."""
    if config.sampling.mode == WHOLE:
        return FullGraphSession(config, path, world, watchdog)
    return GraphSession(config, path, world, watchdog, samplers)
