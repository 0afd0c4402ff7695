"""Everything of a run on a static graph that its steps share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.config import StaticConfig
from hpcgnn.graph.directory import epoch_shuffle
from hpcgnn.graph.splits import SPLITS
from hpcgnn.nn.graph_config import RELATIONAL_KINDS
from hpcgnn.run.graph_inference import infer, last_rows
from hpcgnn.run.scoring import Scored
from hpcgnn.run.static_session import StaticSession
from hpcgnn.sample.draw import BlockSampler
from hpcgnn.sample.edge_tables import EdgeTables, check_columns
from hpcgnn.sample.graph_neighbors import check_weights
from hpcgnn.sample.graph_padding import pad_graph_plan
from hpcgnn.sample.graph_plan import GraphPlan, GraphSampler
from hpcgnn.sample.node_tables import NodeTables
from hpcgnn.sample.planner import choose_draw
from hpcgnn.sample.prefetch import Prefetcher
from hpcgnn.sample.remote_draw import Samplers
from hpcgnn.sample.replica import Replica, make_neighbors, make_replica
from hpcgnn.sample.resident_draw import ResidentDraw
from hpcgnn.sample.seeds import SeedBatches, make_seed_batches
from hpcgnn.store.graph_partition import GraphPartition
from hpcgnn.tasks.graph_config import LINK
from hpcgnn.tasks.step_graphs import StepGraphs


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
        if not isinstance(draw, ResidentDraw):
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

    def _make_draw(self, channel: Channel) -> BlockSampler | ResidentDraw:
        """Collective."""
        sampling = self.config.sampling
        neighbors = make_neighbors(
            self.partition, sampling.mode, channel, self.plan_threads, excluded=self.excluded, replica=self.replica,
            with_edges=self.edges is not None,
        )  # fmt: skip
        with together(self.world, "choose where neighbours are drawn"):
            return choose_draw(neighbors, sampling, self.config.train.seed, self.world.device)

    def last_rows(self) -> torch.Tensor:
        """As for all sessions on static graphs."""
        return last_rows(self)

    def scores(self, split: str, stop: Callable[[], bool] = lambda: False) -> Scored | None:
        """As for all sessions, or exact."""
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
        """As for all sessions."""
        return [*super().channels(), *self._lanes[1:]]

    def close(self) -> None:
        """As for all sessions: the copy of the edges, too, if there is one."""
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
