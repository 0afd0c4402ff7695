"""Everything of a run that its steps share: the rank's graph, batches, negatives, samplers, model and node memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.loop.session import BaseSession
from hpcgnn.loop.step_graphs import StepGraphs
from hpcgnn.native import Random, Stream
from hpcgnn.temporal.batches import Batches, make_batches
from hpcgnn.temporal.config import RunConfig
from hpcgnn.temporal.eval_negatives import NegativeSource, eval_negatives
from hpcgnn.temporal.goals import TemporalGoal, make_goal
from hpcgnn.temporal.graph import TemporalPartition
from hpcgnn.temporal.mail import Mailing
from hpcgnn.temporal.memory import Layout, NodeMemory, hottest
from hpcgnn.temporal.model.model import Sizes, TemporalModel, resolve_model
from hpcgnn.temporal.negatives import AllOthers, Negatives, no_negatives, random_negatives, split_pool
from hpcgnn.temporal.plan import StepPlan
from hpcgnn.temporal.sampler import Needs, Placement, TemporalSampler, choose_sampler
from hpcgnn.temporal.splits import open_splits
from hpcgnn.temporal.step import TemporalTask


class Session(BaseSession):
    """Collective to create and to close. A run on a temporal graph.

    ``world``: the ranks that hold the graph and its node memory between them; with ``train.epoch_parallel`` a group of
    the job's, whose epochs of a round are ``epochs``.
    """

    config: RunConfig
    partition: TemporalPartition
    goal: TemporalGoal
    model: TemporalModel
    memory: NodeMemory
    task: TemporalTask

    def __init__(self, config: RunConfig, path: str, world: World, watchdog: Watchdog):
        super().__init__(config, world, watchdog)
        self.epochs = range(world.group, config.train.epoch_parallel, world.num_groups)
        self.partition, self.splits = open_splits(path, config.data, config.train.seed, world, self.plan_channel)
        self.goal = make_goal(config, self.partition, world)
        self._make_split_batches()
        self._build_model()
        self._negatives: dict[str, Negatives | AllOthers] = {}

    def _make_split_batches(self) -> None:
        """Collective. Batches of the splits and the pools that their negatives are drawn from."""
        config, size = self.config, self.config.train.batch_size
        sizes = {"train": size} | dict.fromkeys(("val", "test"), config.eval.batch_size or size)
        self.batches = {name: self._make_batches(name, sizes[name]) for name in SPLITS}
        shared = (self.partition, self.world, self.plan_channel)
        self._train_pool, self._eval_pool = (
            split_pool(config.sampling.negative_pool, self.batches[name], *shared) for name in ("train", "test")
        )

    def _make_batches(self, split: str, size: int, first: int = 0) -> Batches:
        drop_last = self.config.train.drop_last and split == "train"
        shared = (self.partition, self.splits, size, self.config.sampling.batch_by, self.world, self.plan_channel)
        return make_batches(split, *shared, drop_last, first or size)

    def _build_model(self) -> None:
        config, partition, device = self.config, self.partition, self.world.device
        torch.manual_seed(config.train.seed % (1 << 63))
        sizes = Sizes(
            partition.node_width, partition.edge_width, config.sampling.fanout, config.sampling.windows,
            self._time_scale(),
        )  # fmt: skip
        with together(self.world, "build the model"):
            model: Any = resolve_model(config.model.class_path)(config.model, config.memory, sizes)
            if config.memory.staleness and not model.has_memory:
                raise ValueError(f"{type(model).__name__} has no node memory: leave memory.staleness 0")
        model = self.goal.extend(model)
        self.model = model.to(device=device, dtype=self.dtype)
        self.memory, feature = self._make_memory()
        self.task = self._make_task(feature)
        self._make_samplers()

    def _make_memory(self) -> tuple[NodeMemory, torch.Tensor | None]:
        """Collective. Node memory and node features: of this rank's nodes, of these and copies of the hot ones, or of
        all nodes by global id."""
        model, partition, device = self.model, self.partition, self.world.device
        feature = None if partition.node_feature is None else torch.from_numpy(partition.node_feature)
        if feature is not None:
            feature = feature.to(device=device, dtype=self.dtype)
        layout = self._layout()
        num_rows = partition.num_nodes if layout is None else layout.num_rows
        memory = NodeMemory(
            num_rows, model.state_width, model.mail_width, self.dtype, device, model.mailbox_slots, layout
        )
        if feature is not None and layout is not None:
            feature = layout.spread(feature, self.data_channel)
        return memory, feature

    def _layout(self) -> Layout | None:
        """Collective. Decides whether memory is ``replicated`` or copied for ``hot`` nodes, and where its rows then
        lie."""
        model, book, kept = self.model, self.partition.book, self.config.memory
        ids, device = book.local_to_global(self.world.rank), self.world.device
        mib = book.num_nodes * (model.state_width + model.mail_width) * self.dtype.itemsize / (1 << 20)
        self.replicated, self.hot = model.has_memory and kept.replicates(mib), None
        if self.replicated:
            return Layout(book.num_nodes, torch.from_numpy(ids).to(device), 0)
        if model.has_memory and kept.hot_nodes and self.world.size > 1:
            self.hot = hottest(kept.hot_nodes, self.splits.degree(), self.partition, self.data_channel)
        return None if self.hot is None else self.hot.layout(ids, device)

    def _make_task(self, node_feature: torch.Tensor | None) -> TemporalTask:
        """Collective."""
        config = self.config
        return self.goal.task(
            self.batches["train"], self.model, self.memory, node_feature, config.memory.update_at, config.train.seed,
            self.timers, self.data_channel, config.task.freeze, config.memory.staleness,
        )  # fmt: skip

    def _make_samplers(self) -> None:
        config, partition, model = self.config, self.partition, self.model
        needs = Needs(model.num_hops, self._mailing() if model.has_memory else None, model.needs_nearby)
        alone = self.world.own_channel() if self.replicated else None
        channels = self.plan_channel, self.data_channel
        place = Placement(*channels, self.world.device, self.dtype, alone, self.hot, self.plan_threads)
        shared = (config.sampling, needs, config.train.seed, place)
        sampler = choose_sampler(partition, *shared)
        graphs = {}
        if config.train.cuda_graphs:
            with together(self.world, "prepare CUDA graphs"):
                graphs = self._use_graphs(sampler)
        self._train_sampler = sampler(partition, self.splits.history, *shared, **graphs)
        self.eval_sampler = sampler(
            partition, partition.history, *shared, evaluation=True, in_batch=config.eval.in_batch_neighbors
        )

    def _use_graphs(self, sampler: Callable) -> dict[str, bool]:
        """Options of the sampler of training steps that are launched as graphs. Raises ValueError where they cannot
        be."""
        if sampler is TemporalSampler:
            raise ValueError("train.cuda_graphs: plans are made on the host (see sampling.planner); set it false")
        if self.config.model.class_path:
            raise ValueError("train.cuda_graphs: a model of one's own may do what no graph can hold; set it false")
        if self.config.memory.staleness:
            raise ValueError("train.cuda_graphs: writes wait from step to step; set memory.staleness 0")
        self.task.use_graphs(lambda step: StepGraphs(step, self.timers))
        return {"padded": True}

    def _mailing(self) -> Mailing:
        kept, from_memory = self.config.memory, self.model.config.message_from == "memory"
        return Mailing(kept.mailbox_slots, kept.deliver_to == "neighbors", kept.aggregator == "mean", from_memory)

    def _time_scale(self) -> float:
        """Collective. Root mean square of the times between consecutive events of a node, in training."""
        history, end = self.splits.history, int(self.splits.bounds[1])
        follows = history.event[1:] < end
        first = history.indptr[(history.indptr > 0) & (history.indptr < len(history.event))]
        follows[first - 1] = False
        gaps = np.diff(history.time)[follows].astype(np.float64)
        squares = self.world.total(float(np.square(gaps).sum()))
        return math.sqrt(squares / max(1, self.world.total(len(gaps))))

    def plans(self, split: str, epoch: int, start: int = 0, scored: bool = True) -> Prefetcher[StepPlan]:
        """Collective. The plans of a split's steps from ``start`` on, made ahead in the background; several a step with
        many negatives, or with several epochs at once (from ``epoch`` on), of which the last one writes. Without
        negatives where nothing is ``scored``."""
        batches = self.batches[split]
        with self.timers("negatives"):
            nothing = [(no_negatives(len(batches.events)), epoch, slice(None))]
            pieces = self._pieces(split, epoch) if scored else nothing
        sampler = self._train_sampler if split == "train" else self.eval_sampler

        def make(number: int) -> StepPlan:
            step, piece = divmod(number, len(pieces))
            negatives, epoch, columns = pieces[piece]
            with self.plan_timers("plan"):
                return sampler.plan(batches, negatives, epoch, step, piece == len(pieces) - 1, columns)

        in_a_row = sampler.plans_in_a_row(batches, pieces[0][0].per_event)
        return Prefetcher(make, start * len(pieces), batches.num_steps * len(pieces), self.prefetch, in_a_row)

    def _pieces(self, split: str, epoch: int) -> list[tuple[Negatives | AllOthers, int, slice]]:
        """Collective. Of each plan of a step its negatives, its epoch, and which of the negatives it looks at."""
        if split == "train":
            epochs = [epoch + place for place in self.epochs]
            return [(self.negatives(split, number), number, slice(None)) for number in epochs]
        negatives, chunk = self.negatives(split, epoch), max(1, self.config.eval.chunk)
        firsts = range(0, max(1, negatives.per_event), chunk)
        return [(negatives, epoch, slice(first, first + chunk)) for first in firsts]

    def negatives(self, split: str, epoch: int) -> Negatives | AllOthers:
        """Collective. Negatives of this rank's events of a split: new ones every epoch in training, fixed ones
        elsewhere, none where labels are learnt."""
        config = self.config
        if not self.goal.draws_negatives:
            return no_negatives(len(self.batches[split].events))
        if split == "train":
            count = config.sampling.negatives
            return random_negatives(self.batches[split], self._train_pool, count, config.train.seed, epoch)
        if split not in self._negatives:
            source = NegativeSource(
                self.partition, self.splits, self._eval_pool, self.world, self.plan_channel, config.train.seed
            )
            kind, count, path = config.eval.negatives, config.sampling.negatives, config.eval.negatives_file
            self._negatives[split] = eval_negatives(kind, self.batches[split], count, source, path)
        return self._negatives[split]

    def start_epoch(self, epoch: int) -> None:
        """Collective. The training batches of an epoch: others in every epoch with ``sampling.chunks`` above 1."""
        chunks, size = self.config.sampling.chunks, self.config.train.batch_size
        if chunks == 1:
            return
        random = Random(self.config.train.seed, Stream.CHUNK, epoch=epoch)
        cut = 1 + int(native.random_integers(random, np.zeros(1, np.int64), 1, chunks)[0, 0])
        self.batches["train"] = self._make_batches("train", size, max(1, size * cut // chunks))

    def describe(self) -> list[str]:
        """Collective. What is about to run, line by line."""
        world, book, batches = self.world, self.partition.book, self.batches
        totals = {name: int(b.sizes.sum()) for name, b in batches.items()}
        return [
            f"{world.job.size} ranks x {world.threads} threads on {world.device.type}, plans ahead: {self.prefetch}",
            f"{book.num_nodes} nodes, {self.partition.num_events} events in {book.offsets.shape[1] - 1} parts; "
            + ", ".join(f"{name} {count}" for name, count in totals.items()),
            f"{self.config.train.precision}; {batches['train'].num_steps} steps an epoch",
            *self._describe_epochs(),
            *([f"node memory of {len(self.hot.ids)} hot nodes copied to every rank"] if self.hot else []),
            *self.goal.describe_events(batches),
        ]

    def _describe_epochs(self) -> list[str]:
        world, count = self.world, self.config.train.epoch_parallel
        if count == 1:
            return []
        return [
            f"{count} epochs at once, {len(self.epochs)} by each of {world.num_groups} groups of {world.size} ranks"
        ]

    @property
    def initial_run(self) -> str:
        """``task.init``."""
        return self.config.task.init
