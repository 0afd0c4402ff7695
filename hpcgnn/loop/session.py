"""A run without its loop, whatever the kind of graph: loaders make plans, a task executes them, a goal measures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.timers import Timers
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.graph.saved_rows import SavedRows
from hpcgnn.graph.splits import TRAIN_SPLIT
from hpcgnn.loop.own_metrics import own_functions, own_metrics
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.loop.same_model import generator_states, refuse_draws
from hpcgnn.loop.schema import Schema
from hpcgnn.loop.settings import TrainConfig
from hpcgnn.loop.step_graphs import StepGraphs
from hpcgnn.native.dispatch import check_indices
from hpcgnn.native.products import choose_products
from hpcgnn.nn.own_class import with_remedy
from hpcgnn.task.goal import Collected


class Loader(Protocol):
    """Makes the plans of one split's steps. batches: of the current epoch, with ``num_steps`` and ``sizes``, and equal
    in number on all ranks."""

    batches: Any

    def start_epoch(self, epoch: int) -> None:
        """Collective. Make the batches of an epoch; epochs may have different ones."""

    def plans(self, epoch: int, start: int = 0) -> Prefetcher:
        """Collective. The plans of an epoch's steps from ``start`` on."""

    def channels(self) -> list[Channel]:
        """Channels over which plans are made; loaders of a run may share them."""


class Task:
    """Executor of plans: ``train(plan)``, ``score(plan)`` and ``evaluate(plan)``, all collective. last_scores: of the
    newest training step."""

    last_scores: Any = None

    @property
    def has_graphs(self) -> bool:
        """Whether training steps are launched as graphs."""
        return False

    def can_resume(self, epoch: int, step: int) -> bool:
        """Whether a run can resume exactly before a step, from the contents of a checkpoint."""
        return True

    def run_state(self) -> dict[str, torch.Tensor]:
        """Tensors for the checkpoint in addition to weights, buffers, optimizer and ``memory``. Every rank returns the
        same; they belong to the step at which ``memory.saved`` was last called."""
        return {}

    def restore_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """The inverse of ``run_state``, from all tensors of a checkpoint."""

    def close(self) -> None:
        """End the task: no step follows."""


class StepTask(Task, ABC):
    """A task whose training steps may be launched as graphs."""

    def __init__(self):
        self._graphs: StepGraphs | None = None

    def use_graphs(self, graphs: Callable[[Callable[[Any], Any]], StepGraphs]) -> None:
        """Train with graphs, on one rank; ``graphs`` makes them of the function that does a step."""
        self._graphs = graphs(self._train)

    @property
    def has_graphs(self) -> bool:
        return self._graphs is not None

    def train(self, plan) -> torch.Tensor | float:
        """Collective. Do a step forward and backward (gradients accumulate in the parameters) and write what it leaves
        to the next ones; returns this rank's share of the loss."""
        self._set_mode(training=True)
        loss, self.last_scores = (self._graphs or self._train)(plan)
        return loss

    def close(self) -> None:
        """Free the memory of all graphs; there are no more steps."""
        if self._graphs is not None:
            self._graphs.close()
            self._graphs = None

    @abstractmethod
    def _set_mode(self, training: bool) -> None:
        """Set the mode of the model's parts."""

    @abstractmethod
    def _train(self, plan) -> tuple[torch.Tensor | float, Any]:
        """Collective. Do a step with its backward pass; returns its loss and its scores."""


def do_nothing() -> None:
    """Do nothing: there is nothing to check."""


def no_metrics(session: Session, split: str) -> dict[str, float]:
    """Return no metrics: the goal's are all."""
    return {}


@dataclass
class Session:
    """A run without its loop, whatever the kind of graph: loaders by split, a model, and the goal that it is trained
    for. The wings' ``open_session`` makes it, collectively.

    graph: object that the wing opened, with ``partition``, ``channel`` and ``close``; loaders: a ``Loader`` by split;
    goal: a ``Goal``; memory: rows of nodes that the run keeps, a ``NodeRowStore``. task: a ``Task`` that executes
    plans; describe_run: collective, describes the run to start, line by line; scored_by: the ranks that score a split
    together. roots: name of the elements of batches. exact: collective, scores a split as a whole (None: plan by plan),
    and returns None if ``stop`` returns True. forgets: whether every split is scored from new memory. renew:
    collective, rebuilds memory by the current weights, after training and before a split is scored, and returns False
    if ``stop`` returns True; None: memory stays as training left it. check_training: collective, checks data before
    training that only evaluation will read, and raises DistributedError. more_metrics: collective, returns further
    metrics of a split, by name. schema: the model's needs of a graph; path: the partition set. rebuild: collective,
    forms memory up to the end of training from nothing, by the current weights, for a model of another graph; None:
    there is no memory. provenance: where answers come from, which rank 0 writes with them.
    """

    config: Any
    world: World
    watchdog: Watchdog
    timers: Timers
    plan_timers: Timers
    dtype: torch.dtype
    graph: Any
    loaders: dict[str, Any]
    model: Any
    goal: Any
    memory: Any
    task: Any
    describe_run: Callable[[Session], list[str]]
    scored_by: World
    roots: str = "events"
    exact: Callable[[Session, str, Callable[[], bool]], Collected | None] | None = None
    forgets: bool = False
    renew: Callable[[Session, Callable[[], bool]], bool] | None = None
    check_training: Callable[[], None] = do_nothing
    more_metrics: Callable[[Session, str], dict[str, float]] = no_metrics
    schema: Schema = field(default_factory=Schema)
    path: str = ""
    rebuild: Callable[[Session], Any] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def partition(self) -> Any:
        """This rank's share of the graph."""
        return self.graph.partition

    @property
    def model_key(self) -> str:
        """Name of the model in the configuration, for messages."""
        class_path = self.config.model.class_path
        return f"model.class_path {class_path}" if class_path else f"model {self.config.model_name}"

    @property
    def batches(self) -> dict[str, Any]:
        """The current batches of every split."""
        return {split: loader.batches for split, loader in self.loaders.items()}

    @property
    def keeps_memory(self) -> bool:
        """Whether validation continues from the memory that training has left."""
        return self.rebuild is not None and self.renew is None

    def put_back(self, saved: list[SavedRows]) -> None:
        """Collective. Set memory to what it was when it was ``saved``, without waiting writes."""
        self.memory.reset()
        self.memory.put(saved[0])
        self.memory.share(self.graph.channel)

    def start_epoch(self, epoch: int) -> None:
        """Collective. Make the training batches of an epoch."""
        self.loaders["train"].start_epoch(epoch)

    def plans(self, split: str, epoch: int, start: int = 0) -> Prefetcher:
        """Collective. The plans of a split's steps from ``start`` on."""
        loader: Loader = self.loaders[split]
        return loader.plans(epoch, start)

    def scores(self, split: str, stop: Callable[[], bool] = lambda: False) -> Collected | Any:
        """Collective. The collected scores of a split; None when ``stop``, collective and called after every step,
        returns True. Raises DistributedError where the model draws from a generator that ranks do not share."""
        before = generator_states()
        with with_remedy(self.config.model.class_path):
            collected = self._scores(split, stop)
        refuse_draws(before, self.world, self.model_key, f"scores of {split}")
        return collected

    def _scores(self, split: str, stop: Callable[[], bool]) -> Collected | Any:
        if self.exact is not None:
            return self.exact(self, split, stop)
        if self.forgets or split == TRAIN_SPLIT:
            self.memory.reset()
        collected = self.goal.collector()
        with self.plans(split, 0) as plans:
            for plan in plans:
                self.watchdog.at(split, plan.step)
                collected.add(plan, self.task.evaluate(plan) if plan.final else self.task.score(plan))
                if stop():
                    return None
        return collected

    def describe(self) -> list[str]:
        """Collective. Description of the run to start, line by line."""
        return self.describe_run(self)

    def channels(self) -> list[Channel]:
        """Channels of all exchanges, except for the sums of gradients."""
        planning = [channel for loader in self.loaders.values() for channel in loader.channels()]
        return [self.graph.channel, *dict.fromkeys(planning)]

    def sent_bytes(self) -> int:
        """Bytes this rank has sent in exchanges so far."""
        return int(sum(channel.sent().sum() for channel in self.channels()))

    def close(self) -> None:
        """Collective. Free channels, shared memory and graphs; the session must not be used any more."""
        self.task.close()
        for channel in self.channels()[1:]:  # the graph's own is the last
            channel.close()
        self.graph.close()


def prepare(config: TrainConfig, world: World) -> tuple[Timers, Timers, torch.dtype]:
    """Collective. Choose the kind of matrix products of ``train.matmul``, and whether indices are checked
    (``train.debug``); returns the timers of a run's steps and of their planning, and the dtype of its numbers."""
    check_indices(config.debug)
    mark = torch.cuda.nvtx.range if world.device.type == "cuda" else nullcontext
    with together(world, "choose how matrices are multiplied"):
        choose_products(config.matmul, world.device, config.dtype)
    return Timers(mark), Timers(mark), config.dtype


def scored_splits(session: Session) -> dict[str, str]:
    """Name the splits that are scored, each with the beginning of its metrics' names. The training split is the last
    one: a model's scores of it begin with new memory."""
    return {"val": "val", "test": "test"} | ({TRAIN_SPLIT: "train"} if TRAIN_SPLIT in session.loaders else {})


def split_metrics(session: Session, split: str, collected: Collected) -> dict[str, float]:
    """Collective. Compute the goal's metrics of a split, NaN for one without roots, and the session's further ones."""
    if session.batches[split].num_steps == 0:
        names = [*session.goal.metric_names(), *own_functions(session.config.train.metrics)]
        metrics = dict.fromkeys(names, float("nan"))
    else:
        metrics = collected.metrics(session.batches[split], session.scored_by)
        metrics |= own_metrics(session.config.train.metrics, collected.columns(), session.scored_by)
    return metrics | session.more_metrics(session, split)
