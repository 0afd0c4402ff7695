"""Everything of a run that passes over a whole static graph in every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.config import StaticConfig
from hpcgnn.graph.splits import SPLITS
from hpcgnn.run.graph_goal import NodeGoal
from hpcgnn.run.scoring import Scored
from hpcgnn.run.static_session import StaticSession
from hpcgnn.sample.full_graph import build_full_graph
from hpcgnn.sample.node_tables import NodeTables
from hpcgnn.sample.prefetch import Prefetcher
from hpcgnn.sample.seeds import SeedBatches, SeedPool
from hpcgnn.store.features import FEATURE
from hpcgnn.tasks.full_graph_task import FullGraphTask, FullPlan

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
                    f"lacks {', '.join(lacking)} (see hpcgnn.nn.graph_models.GraphModel)"
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
        """As for all sessions: every epoch has the same seeds."""

    def plans(self, split: str, epoch: int, start: int = 0) -> Prefetcher[FullPlan]:
        """As for all sessions."""
        return Prefetcher(lambda _: self._plans[split](epoch), start, self.batches[split].num_steps, 0)

    def last_rows(self) -> torch.Tensor:
        """As for all sessions on static graphs."""
        return self.task.rows()

    @torch.no_grad()
    def scores(self, split: str, stop: Callable[[], bool] = lambda: False) -> Scored | None:
        """As for all sessions."""
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
