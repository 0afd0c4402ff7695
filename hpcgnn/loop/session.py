"""What the loop asks of a session, whatever the kind of graph: ranks, channels, timers, plans, scores and their
metrics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.timers import Timers
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.graph.saved_rows import NodeRowStore, RowOwner
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.loop.step_graphs import StepTask
from hpcgnn.native.products import choose_products
from hpcgnn.task.collect import Collected
from hpcgnn.task.goal import Goal


class BaseSession(ABC):
    """Collective to create and to close. One per run; ``plans`` gives a split's plans, ``task`` executes them.

    Kinds of graphs fill in: partition, batches by split, model, memory (rows of nodes that the run keeps), task; roots:
    what batches are made of.
    """

    roots = "events"
    partition: RowOwner
    batches: dict[str, Any]
    model: torch.nn.Module
    memory: NodeRowStore
    task: Any
    goal: Goal

    def __init__(self, config, world: World, watchdog: Watchdog):
        self.config, self.world, self.watchdog = config, world, watchdog
        mark = torch.cuda.nvtx.range if world.device.type == "cuda" else nullcontext
        self.timers, self.plan_timers = Timers(mark), Timers(mark)
        self.data_channel = world.channel()
        self.prefetch = self._plans_ahead()
        self.plan_channel = world.channel(polite=self.prefetch > 0)
        self.dtype = torch.float64 if config.train.precision == "float64" else torch.float32
        with together(world, "choose how matrices are multiplied"):
            choose_products(config.train.matmul, world.device, self.dtype)

    def _plans_ahead(self) -> int:
        return self.world.plans_ahead(self.config.sampling.prefetch)

    @property
    def initial_run(self) -> str:
        """Folder of the run whose weights a new one starts with; empty: none."""
        return ""

    @property
    def plan_threads(self) -> int:
        """Threads of planning: all where it is done in the foreground."""
        return 1 if self.prefetch else self.world.threads

    @abstractmethod
    def plans(self, split: str, epoch: int, start: int = 0) -> Prefetcher:
        """Collective. The plans of a split's steps from ``start`` on."""

    def scores(self, split: str, stop: Callable[[], bool] = lambda: False):
        """Collective. The collected scores of a split; None when ``stop``, collective and asked after every step, says
        so."""
        collected = self.goal.collector()
        with self.plans(split, 0) as plans:
            for plan in plans:
                self.watchdog.at(split, plan.step)
                collected.add(plan, self.task.evaluate(plan) if plan.final else self.task.score(plan))
                if stop():
                    return None
        return collected

    @property
    def scored_by(self) -> World:
        """The ranks that score a split together."""
        return self.world

    def can_resume(self, epoch: int, step: int) -> bool:
        """Whether a run can go on exactly from before a step, with what a checkpoint holds."""
        return True

    def run_state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds besides weights, optimizer and ``memory``: equal on all ranks, as of the newest
        ``memory.saved``."""
        return {}

    def restore_state(self, tensors: dict[str, torch.Tensor]) -> None:  # noqa: B027
        """The inverse of ``run_state``, from all tensors of a checkpoint."""

    def close(self) -> None:
        """Collective. Give back what ranks have together; the session must not be used any more."""
        if isinstance(self.task, StepTask):
            self.task.close()
        for channel in self.channels():
            channel.close()

    @abstractmethod
    def start_epoch(self, epoch: int) -> None:
        """Collective. The training batches of an epoch."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Collective. What is about to run, line by line."""

    def channels(self) -> list[Channel]:
        """What exchanges go through (gradient sums do not)."""
        return [self.data_channel, self.plan_channel]

    def sent_bytes(self) -> int:
        """Bytes this rank has sent in exchanges so far."""
        return sum(channel.sent_bytes for channel in self.channels())


def split_metrics(session: BaseSession, split: str, collected: Collected) -> dict[str, float]:
    """Collective. The metrics of the goal; NaN for a split without roots."""
    if session.batches[split].num_steps == 0:
        return dict.fromkeys(session.goal.metric_names(), float("nan"))
    return collected.metrics(session.batches[split], session.scored_by)
