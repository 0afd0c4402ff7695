"""A partitioned sequence of snapshots and planned steps on them, for runs and for users' own training loops.

``docs/library.md`` shows a whole loop. All of it is collective: every rank makes the same objects in the same order. S
snapshots.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.group import DistributedError
from hpcgnn.comm.timers import Timers
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.book import check_same_set
from hpcgnn.graph.directory import epoch_shuffle
from hpcgnn.graph.splits import SPLITS
from hpcgnn.graph.stage import stage_path
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.snapshots.config import SnapshotModelConfig, SnapshotSamplingConfig
from hpcgnn.snapshots.graph import WEIGHT, open_snapshot_partition
from hpcgnn.snapshots.model import make_model
from hpcgnn.snapshots.model.frame import SequenceModel, SequenceSizes
from hpcgnn.snapshots.neighborhood import STEP_NUMBERS, Boundary, Builder
from hpcgnn.snapshots.plan import SnapshotBatches, SnapshotPlan, SnapshotPlanner, make_batches


class SnapshotSequence:
    """This rank's part of a partition set (``partition``), and a channel over it. Collective to create."""

    def __init__(
        self, path: str | os.PathLike, world: World, check_hash: bool = True, degrees: bool = False, stage_to: str = "",
        edge_columns: Collection[str] | None = None,
    ):  # fmt: skip
        """degrees: whether the nodes have a column ``degree`` of every snapshot: the log of 1 + their in-degree;
        stage_to: folder of the machine's own disk that the parts are copied to first, empty: they are read where they
        are;
        edge_columns: columns of the edges that are read, None: all.

        Raises DistributedError for a partition set that cannot be used.
        """
        path = stage_path(path, stage_to, world)
        self.world, self.channel = world, world.channel()
        with together(world, "open the partition set"):
            self.partition = open_snapshot_partition(
                path, world.rank, world.size, check_hash, world.working, edge_columns
            )
            if degrees:
                self.partition.add_degrees()
        check_same_set(path, world)

    def make_model(
        self, config: SnapshotModelConfig, inputs: int, outputs: int, dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> SequenceModel:
        """Make a model that carries its state from snapshot to snapshot, on the rank's device. Weights are drawn from
        ``seed``, the same on all ranks. inputs, outputs: columns of a node's inputs and outputs. Raises ValueError."""
        torch.manual_seed(seed)
        return make_model(config, SequenceSizes(inputs, outputs)).to(self.world.device, dtype)

    def close(self) -> None:
        """Collective. Free the channel; neither graph nor loaders may be used any more."""
        self.channel.close()


class SnapshotLoader:
    """Plans the steps of one split ahead, in the background: the snapshots that they follow, and the exchanges that
    bring rows of neighbors from other ranks. Collective to create and to iterate.

    snapshots: the ones that predictions are made from; batches: the steps of the current epoch; planner: makes plans.
    """

    def __init__(
        self, graph: SnapshotSequence, split: str, snapshots: range, batch_size: int,
        want: Callable[[str, int, int], Any], roots: np.ndarray | None = None, *,
        sampling: SnapshotSamplingConfig | None = None, edge_weights: bool = True, with_out: bool = False,
        edge_types: int = 0, drop_last: bool = False, seed: int = 0, dtype: torch.dtype = torch.float32,
        channel: Channel | None = None, timers: Timers | None = None,
    ):  # fmt: skip
        """split: "train" for steps that may be shuffled, sampled and repeated as ``sampling`` says; batch_size:
        snapshots of a step, 0: all; want(split, epoch, number): plans the targets that are predicted from a snapshot,
        collective; roots [S]: number of predictions made from every snapshot on all ranks, by default one a node;
        edge_weights: messages are multiplied by the edges' column weight, where there is one; with_out: whether the
        model sees out-neighbors too; edge_types: number of edge types that the model sees, 0: none, 1: all edges are
        alike; channel: of planning. Raises DistributedError."""
        world, partition = graph.world, graph.partition
        self._split, self.snapshots, self._size = split, snapshots, batch_size
        self._roots = np.full(partition.num_snapshots, partition.book.num_nodes) if roots is None else roots
        self._sampling, self._drop_last, self._seed = sampling or SnapshotSamplingConfig(), drop_last, seed
        self.prefetch = world.plans_ahead(self._sampling.prefetch)
        self._channel = channel or world.channel(polite=self.prefetch > 0)
        self._timers = timers or Timers()
        share = self._sampling.halo_ratio
        boundary = Boundary(share, seed, partition.flat_row) if share < 1 else None
        weighted = edge_weights and WEIGHT in partition.edge_columns
        below = weighted and bool((partition.edge_column(WEIGHT) < 0).any())
        signed = world.reduce_array(np.array([below], np.int64), "max")[0] > 0
        builder = Builder(
            partition, self._channel, dtype, world.device, weighted, self._sampling.by_part, bool(signed), edge_types
        )
        changed = world.reduce_array(partition.changes().astype(np.int64)) > 0
        groups = (world.group, world.num_groups)
        self.planner = SnapshotPlanner(self._sampling, builder, changed, with_out, want, groups, boundary)
        self.start_epoch(0)
        if boundary is not None and split == SPLITS[0]:
            self.check_keys("sampling.halo_ratio", 1)

    def check_keys(self, key: str, off: int) -> None:
        """Raise DistributedError for more steps or snapshots than the random numbers of ``key`` tell apart; with its
        value ``off`` nothing is drawn."""
        steps, last = self.batches.num_steps, self.snapshots.stop
        if max(steps, last) > STEP_NUMBERS:
            raise DistributedError(
                f"{key} is drawn by step and snapshot, {STEP_NUMBERS} of each at most: an epoch has {steps} steps, of "
                f"the first {last} snapshots; set {key} {off}, take fewer snapshots or raise train.batch_size",
                user_error=True,
            )

    def beside(self, split: str, snapshots: range, batch_size: int) -> SnapshotLoader:
        """Make a loader of another split, which shares neighborhoods and routes with this one."""
        other = copy.copy(self)
        other._split, other.snapshots, other._size = split, snapshots, batch_size
        other.start_epoch(0)
        return other

    def __len__(self) -> int:
        """Count the steps of an epoch, the same on all ranks."""
        return self.batches.num_steps

    def start_epoch(self, epoch: int) -> None:
        """Make the steps of an epoch: of training in an order of their own with ``sampling.shuffle``."""
        sampling, training = self._sampling, self._split == "train"
        shuffle = epoch_shuffle(self._seed, epoch) if training and sampling.shuffle else None
        self.batches: SnapshotBatches = make_batches(
            self._split, self.snapshots, self._size, self._roots, shuffle, training and self._drop_last,
            sampling.updates_per_batch if training else 1,
        )  # fmt: skip

    def plans(self, epoch: int = 0, start: int = 0) -> Prefetcher[SnapshotPlan]:
        """Collective. Make the plans of an epoch's steps from ``start`` on, to be used as a context manager: ``with
        loader.plans(epoch) as plans``."""
        batches = self.batches

        def make(step: int) -> SnapshotPlan:
            with self._timers("plan"):
                return self.planner.plan(batches, epoch, step)

        return Prefetcher(make, start, batches.num_steps, self.prefetch)

    def channels(self) -> list[Channel]:
        """List the channels that planning goes through."""
        return [self._channel]
