"""For a training loop of one's own: a partitioned temporal graph and its planned steps, without a run file.

``docs/library.md`` shows a whole loop. All of it is collective: every rank makes the same objects in the same order.
"""

from __future__ import annotations

import os

import torch

from hpcgnn.comm.world import World
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.temporal.batches import make_batches
from hpcgnn.temporal.config import DataConfig, SamplingConfig
from hpcgnn.temporal.mail import Mailing
from hpcgnn.temporal.negatives import random_negatives, split_pool
from hpcgnn.temporal.plan import StepPlan
from hpcgnn.temporal.sampler import Needs, Placement, TemporalSampler
from hpcgnn.temporal.splits import open_splits


class TemporalGraph:
    """Collective to create. This rank's part of a partition set (``partition``) and the splits of its events."""

    def __init__(self, path: str | os.PathLike, world: World, data: DataConfig | None = None, seed: int = 0):
        """Raises DistributedError for a partition set or splits that cannot be used."""
        self.world, self.seed, self.channel = world, seed, world.channel()
        self.partition, self.splits = open_splits(path, data or DataConfig(), seed, world, self.channel)


class TemporalLoader:
    """Collective to create and to iterate. The steps of one split in time order, planned ahead in the background.

    As everywhere, batches, neighbours and negatives depend on the seed and the graph, not on the number of ranks.
    """

    def __init__(
        self, graph: TemporalGraph, split: str, batch_size: int, *, sampling: SamplingConfig | None = None,
        hops: int = 1, mailing: Mailing | None = None, nearby: bool = False, drop_last: bool = False,
        dtype: torch.dtype = torch.float32,
    ):  # fmt: skip
        """split: "train", "val" or "test"; batch_size: events of a global batch; sampling: neighbours, negatives,
        plans made ahead; hops: levels of neighbours; mailing: which mails the node memory wants, None without memory;
        nearby: whether plans list the neighbours' ids; drop_last: leave out a short last batch of training.

        Raises ValueError.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        world, partition, self._graph = graph.world, graph.partition, graph
        self._sampling = sampling or SamplingConfig()
        self._prefetch = world.plans_ahead(self._sampling.prefetch)
        channel = world.channel(polite=self._prefetch > 0)
        self.batches = make_batches(
            split, partition, graph.splits, batch_size, self._sampling.batch_by, world, graph.channel, drop_last
        )
        training = split == "train"
        self._pool = split_pool(self._sampling.negative_pool, self.batches, partition, world, channel)
        self._sampler = TemporalSampler(
            partition, graph.splits.history if training else partition.history, self._sampling,
            Needs(hops, mailing, nearby), graph.seed, Placement(channel, graph.channel, world.device, dtype),
            evaluation=not training,
        )  # fmt: skip

    def __len__(self) -> int:
        """Steps of an epoch, the same on all ranks."""
        return self.batches.num_steps

    def plans(self, epoch: int = 0) -> Prefetcher[StepPlan]:
        """Collective. The plans of an epoch, to be used as a context manager: ``with loader.plans(epoch) as plans``.

        Training draws new negatives in every epoch, validation and test the same.
        """
        negatives = random_negatives(self.batches, self._pool, self._sampling.negatives, self._graph.seed, epoch)

        def make(step: int) -> StepPlan:
            return self._sampler.plan(self.batches, negatives, epoch, step)

        in_a_row = self._sampler.plans_in_a_row(self.batches, self._sampling.negatives)
        return Prefetcher(make, 0, len(self), self._prefetch, in_a_row)
