"""A run on snapshots: what its steps share, and what its model predicts for every node at the last snapshots.

n nodes of this rank, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.relay import Relay
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.graph.directory import epoch_shuffle
from hpcgnn.graph.embeddings import EmbeddingConfig, SparseEmbedding
from hpcgnn.graph.splits import SPLITS
from hpcgnn.graph.stage import stage_path
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.loop.session import BaseSession
from hpcgnn.snapshots import config as tasks
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.snapshots.goals import EdgeLabelGoal, NodeLabelGoal, RegressionGoal, SnapshotGoal
from hpcgnn.snapshots.graph import DEGREE, SnapshotPartition, open_snapshot_partition
from hpcgnn.snapshots.link_goal import SnapshotLinkGoal
from hpcgnn.snapshots.model import make_model
from hpcgnn.snapshots.model.frame import SequenceModel, SequenceSizes
from hpcgnn.snapshots.neighborhood import WEIGHT, Boundary, Builder
from hpcgnn.snapshots.plan import SnapshotBatches, SnapshotInputs, SnapshotPlan, SnapshotPlanner, make_batches
from hpcgnn.snapshots.step import SequenceRows, SnapshotTask

GOALS: dict[str, Callable[..., SnapshotGoal]] = {
    tasks.REGRESSION: RegressionGoal,
    tasks.NODE: NodeLabelGoal,
    tasks.LINK: SnapshotLinkGoal,
    tasks.EDGE: EdgeLabelGoal,
    tasks.EDGE_REGRESSION: EdgeLabelGoal,
}
STATE, BUFFER = "state.", "buffer."


class SnapshotSession(BaseSession):
    """Collective to create and to close. A run on a snapshot graph."""

    roots = "predictions"
    config: SnapshotConfig
    goal: SnapshotGoal
    model: SequenceModel
    partition: SnapshotPartition
    memory: SequenceRows
    task: SnapshotTask

    def __init__(self, config: SnapshotConfig, path: str, world: World, watchdog: Watchdog):
        super().__init__(config, world, watchdog)
        folder = stage_path(path, config.data.stage_to, world)
        with together(world, "open the partition set"):
            self.partition = open_snapshot_partition(folder, world.rank, world.size, config.data.check_hash)
            if config.task.target == DEGREE:
                self.partition.add_degrees()
            self.inputs = SnapshotInputs(config.inputs, self.partition, config.task.target, self.dtype, world.device)
        with together(world, "read the task"):
            goal = GOALS[config.task.kind](config, self.partition, world, self.plan_channel, self.data_channel)
        self.goal = goal
        self._input_rows: dict[int, torch.Tensor] = {}
        with together(world, "split the snapshots"):
            self.splits = goal.splits(config.data, self.inputs.first + max(0, config.sampling.history - 1))
        self._make_batches()
        self._build_model()
        sampling, boundary = config.sampling, None
        if sampling.boundary < 1:
            boundary = Boundary(sampling.boundary, config.train.seed, self.partition.flat_row)
        builder = Builder(
            self.partition, self.plan_channel, self.dtype, world.device, sampling.weighted, sampling.by_part
        )
        share = (world.group, world.num_groups)
        self._planner = SnapshotPlanner(
            sampling, builder, self._changes(), self.model.with_out, goal.want, share, boundary
        )
        self.task = SnapshotTask(
            self.model, goal, self.memory, self._inputs_at, torch.from_numpy(self.partition.flat_row).to(world.device),
            not config.sampling.history, config.train.seed, self.data_channel, self.timers,
            Relay(world) if world.num_groups > 1 else None, sampling.halo_staleness,
            config.comm.overlap,
        )  # fmt: skip

    def _make_batches(self) -> None:
        self.batches: dict[str, SnapshotBatches] = {}
        self.start_epoch(0)
        for name in SPLITS[1:]:
            self.batches[name] = make_batches(name, self.splits[name], self.config.train.batch_size, self.goal.roots)

    def start_epoch(self, epoch: int) -> None:
        train = self.config.train
        shuffle = epoch_shuffle(train.seed, epoch) if self.config.sampling.shuffle else None
        self.batches["train"] = make_batches(
            "train", self.splits["train"], train.batch_size, self.goal.roots, shuffle, train.drop_last,
            self.config.sampling.updates,
        )  # fmt: skip

    def _build_model(self) -> None:
        """Collective. The model, its state, and learnable inputs."""
        config, world = self.config, self.world
        width = self.inputs.width
        extra = config.inputs.embedding
        if extra < 0:
            extra = 0 if width else config.model.hidden
        torch.manual_seed(config.train.seed % (1 << 63))
        with together(world, "build the model"):
            if width + extra == 0:
                raise ValueError("inputs: nothing is known of the nodes; set inputs.degrees, lags or embedding")
            sizes = SequenceSizes(width + extra, self.goal.num_outputs, config.sampling.history)
            model = make_model(config.model, sizes)
            if model.weighs_edges and config.sampling.weighted and WEIGHT in self.partition.edge_columns:
                raise ValueError("model.kind gat and dysat weigh edges themselves: set sampling.weighted to false")
            whole: Any = self.goal.extend(model)
        self.model = whole.to(device=world.device, dtype=self.dtype)
        learnt = SparseEmbedding(
            self.partition.flat_row, extra, EmbeddingConfig(), config.train.lr, config.train.seed, self.dtype,
            world.device,
        ) if extra else None  # fmt: skip
        like = torch.empty(0, dtype=self.dtype, device=world.device)
        widths = {} if config.sampling.history else self.model.node_state
        self.memory = SequenceRows(self.partition.num_nodes, widths, learnt, like)

    def _changes(self) -> np.ndarray:
        """Collective. Whether a snapshot's edges differ, on any rank, from those of the one before, bool [S]."""
        return self.world.reduce_array(self.partition.changes().astype(np.int64)) > 0

    def _inputs_at(self, number: int) -> torch.Tensor:
        """Collective. Inputs [n, F] of a snapshot."""
        if number not in self._input_rows:
            self._input_rows[number] = self.inputs.at(number, self.data_channel)
        return self._input_rows[number]

    def plans(self, split: str, epoch: int, start: int = 0) -> Prefetcher[SnapshotPlan]:
        batches = self.batches[split]

        def make(step: int) -> SnapshotPlan:
            with self.plan_timers("plan"):
                return self._planner.plan(batches, epoch, step)

        return Prefetcher(make, start, batches.num_steps, self.prefetch)

    def scores(self, split: str, stop: Callable[[], bool] = lambda: False):
        if self.goal.restarts:
            self.memory.reset()
        return super().scores(split, stop)

    def forecast(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Collective. Snapshots and the model's outputs [n, C] there, from the first one after training to the graph's
        last; a state that is carried on must be that after training."""
        numbers = range(self.splits["train"].stop, self.partition.num_snapshots)
        batches = make_batches("forecast", numbers, self.config.train.batch_size, np.zeros(numbers.stop, np.int64))
        for step in range(batches.num_steps):
            self.watchdog.at("forecast", step)
            plan = self._planner.forecast(batches, step)
            yield from zip(plan.targets, self.task.outputs(plan), strict=True)

    @property
    def learns_inputs(self) -> bool:
        """Whether there are learnable inputs."""
        return self.memory.learnt is not None

    @property
    def scored_by(self) -> World:
        """All ranks: groups that split time score a part of the targets each."""
        return self.world.job

    def can_resume(self, epoch: int, step: int) -> bool:
        """Whether a run can go on exactly from before a step: with stale rows, only where they are brought anew."""
        period = self.config.sampling.halo_staleness + 1
        return period == 1 or (epoch % period == 0 and step == 0)

    def run_state(self) -> dict[str, torch.Tensor]:
        """What the newest ``memory.saved`` shares between ranks, and the model's running statistics, which move in
        training alone."""
        shared = {STATE + name: value for name, value in self.memory.saved_shared.items()}
        return shared | {BUFFER + name: value for name, value in self._buffers().items()}

    def restore_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """The inverse of ``run_state``."""
        found = {name.removeprefix(STATE): value for name, value in tensors.items() if name.startswith(STATE)}
        self.memory.put_shared(found)
        for name, value in self._buffers().items():
            value.copy_(tensors[BUFFER + name])

    def _buffers(self) -> dict[str, torch.Tensor]:
        """The model's, by name."""
        parameters = dict(self.model.named_parameters())
        return {name: value for name, value in self.model.state_dict().items() if name not in parameters}

    def describe(self) -> list[str]:
        """Collective. What is about to run, line by line."""
        world, partition, config = self.world, self.partition, self.config
        counts = world.reduce_array(partition.count_edges())
        splits = ", ".join(f"{name} {len(numbers)}" for name, numbers in self.splits.items())
        history = f"windows of {config.sampling.history}" if config.sampling.history else "state carried on"
        return [
            f"{world.size} ranks x {world.threads} threads on {world.device.type}, plans ahead: {self.prefetch}; "
            f"groups that split time: {world.num_groups}",
            f"{partition.book.num_nodes} nodes, {partition.num_snapshots} snapshots of {counts.min()} to "
            f"{counts.max()} edges in {partition.book.offsets.shape[1] - 1} parts",
            f"{self.goal.describe()}; snapshots: {splits}; {history}",
            f"{config.train.precision}; {self.batches['train'].num_steps} steps an epoch",
        ]
