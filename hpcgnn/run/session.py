"""Everything of a run that its steps share: the rank's graph, batches, negatives, samplers, model and node memory."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.config import RunConfig
from hpcgnn.native import Random, Stream
from hpcgnn.nn.temporal import Sizes, resolve_model
from hpcgnn.run.launch import together
from hpcgnn.sample.batches import make_batches
from hpcgnn.sample.delivery import Mailing
from hpcgnn.sample.negatives import Negatives, draw_negatives, negative_pool
from hpcgnn.sample.plan import StepPlan
from hpcgnn.sample.prefetch import Prefetcher
from hpcgnn.sample.splits import SPLITS, make_splits
from hpcgnn.sample.temporal import Needs, Placement, TemporalSampler
from hpcgnn.store.memory import NodeMemory
from hpcgnn.store.partition import open_partition
from hpcgnn.tasks.temporal_link import TemporalLinkTask
from hpcgnn.timers import Timers


class Session:
    """Collective to create and to close. One per run; ``plans`` gives a split's plans, ``task`` executes them."""

    def __init__(self, config: RunConfig, path: str, world: World, watchdog: Watchdog):
        self.config, self.world, self.watchdog = config, world, watchdog
        self.timers, self.plan_timers = Timers(), Timers()
        self.data_channel = world.channel()
        prefetch = config.sampling.prefetch > 0 and world.can_prefetch
        self.prefetch = config.sampling.prefetch if prefetch else 0
        self.plan_channel = world.channel(polite=prefetch)
        with together(world, "open the partition set"):
            self.partition = open_partition(path, world.rank, world.size, config.data.check_hash)
        found = world.total(len(self.partition.events))
        with together(world, "open the partition set"):
            if found != self.partition.num_events:
                raise ValueError(f"{path}: the parts hold {found} events, the book says {self.partition.num_events}")
        self._split()
        self.dtype = torch.float64 if config.train.precision == "float64" else torch.float32
        self._build_model()
        self._negatives: dict[str, Negatives] = {}

    def _split(self) -> None:
        config, partition, world, channel = self.config, self.partition, self.world, self.plan_channel
        with together(world, "split the events"):
            self.splits = make_splits(partition, config.data, config.train.seed, world, channel)
        size, by, drop = config.train.batch_size, config.sampling.batch_by, config.train.drop_last
        self.batches = {n: make_batches(n, partition, self.splits, size, by, world, channel, drop) for n in SPLITS}
        kind = config.sampling.negative_pool
        shown = self.batches["train"].events.dst
        self._train_pool = negative_pool(kind, shown, partition, world, channel)
        self._eval_pool = negative_pool(kind, partition.events.dst, partition, world, channel)

    def _build_model(self) -> None:
        config, partition, device = self.config, self.partition, self.world.device
        torch.manual_seed(config.train.seed % (1 << 63))
        sizes = Sizes(
            partition.node_width, partition.edge_width, config.sampling.fanout, config.sampling.windows,
            self._time_scale(),
        )  # fmt: skip
        with together(self.world, "build the model"):
            model = resolve_model(config.model.class_path)(config.model, config.memory, sizes)
        self.model = model.to(device=device, dtype=self.dtype)
        widths = (model.state_width, model.mail_width)
        self.memory = NodeMemory(partition.num_nodes, *widths, self.dtype, device, model.mailbox_slots)
        feature = partition.node_feature
        feature = None if feature is None else torch.from_numpy(feature).to(device=device, dtype=self.dtype)
        seed, at = config.train.seed, config.memory.update_at
        self.task = TemporalLinkTask(self.model, self.memory, feature, at, seed, self.timers)
        self._make_samplers()

    def _make_samplers(self) -> None:
        config, partition, model = self.config, self.partition, self.model
        kept = config.memory
        mailing = Mailing(kept.mailbox_slots, kept.deliver_to == "neighbors", kept.aggregator == "mean")
        needs = Needs(model.num_hops, mailing if model.has_memory else None, model.needs_nearby)
        place = Placement(self.plan_channel, self.data_channel, self.world.device, self.dtype)
        shared = (config.sampling, needs, config.train.seed, place)
        self._train_sampler = TemporalSampler(partition, self.splits.history, *shared)
        self.eval_sampler = TemporalSampler(partition, partition.history, *shared, evaluation=True)

    def _time_scale(self) -> float:
        """Collective. Mean time between two events of a node, in training."""
        history, end = self.splits.history, int(self.splits.bounds[1])
        shown = np.concatenate(([0], np.cumsum(history.event < end)))[history.indptr]
        count = np.diff(shown)
        first = history.indptr[:-1][count > 1]
        last = first + count[count > 1] - 1
        span = int((history.time[last] - history.time[first]).sum())
        return self.world.total(span) / max(1, self.world.total(int((count[count > 1] - 1).sum())))

    def plans(self, split: str, epoch: int, start: int = 0) -> Prefetcher[StepPlan]:
        """Collective. The plans of a split's steps from ``start`` on, made ahead in the background."""
        batches = self.batches[split]
        with self.timers("negatives"):
            negatives = self.negatives(split, epoch)
        sampler = self._train_sampler if split == "train" else self.eval_sampler

        def make(step: int) -> StepPlan:
            with self.plan_timers("plan"):
                return sampler.plan(batches, negatives, epoch, step)

        return Prefetcher(make, start, batches.num_steps, self.prefetch)

    def negatives(self, split: str, epoch: int) -> Negatives:
        """Collective. Negatives of this rank's events of a split: new ones every epoch in training, fixed ones
        elsewhere."""
        config = self.config
        rows = self.batches[split].events.row
        if split == "train":
            random = Random(config.train.seed, Stream.NEGATIVE, epoch=epoch)
            return Negatives(draw_negatives(self._train_pool, rows, config.sampling.negatives, random))
        if split not in self._negatives:
            random = Random(config.train.seed, Stream.EVAL_NEGATIVE)
            drawn = draw_negatives(self._eval_pool, rows, config.sampling.negatives, random)
            self._negatives[split] = Negatives(drawn)
        return self._negatives[split]

    def describe(self) -> list[str]:
        """What is about to run, line by line."""
        world, book, batches = self.world, self.partition.book, self.batches
        totals = {name: int(b.sizes.sum()) for name, b in batches.items()}
        return [
            f"{world.size} ranks x {world.threads} threads on {world.device.type}, plans ahead: {self.prefetch}",
            f"{book.num_nodes} nodes, {self.partition.num_events} events in {book.offsets.shape[1] - 1} parts; "
            + ", ".join(f"{name} {count}" for name, count in totals.items()),
            f"{sum(p.numel() for p in self.model.parameters())} parameters, {self.config.train.precision}; "
            f"{batches['train'].num_steps} steps an epoch",
        ]

    def sent_bytes(self) -> int:
        """Bytes this rank has sent in exchanges so far (gradient sums not counted)."""
        return self.data_channel.sent_bytes + self.plan_channel.sent_bytes


def split_scores(scores: list) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the steps' scores: positive [b], negative [b, k], float64."""
    positive = [s.positive.double().cpu().numpy() for s in scores]
    negative = [s.negative.T.double().cpu().numpy() for s in scores]
    return np.concatenate(positive), np.concatenate(negative)
