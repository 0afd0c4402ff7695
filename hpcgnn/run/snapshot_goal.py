"""What runs on snapshots learn, and how results are measured.

n nodes of this rank, S snapshots, C output columns.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.world import World
from hpcgnn.config import SnapshotConfig
from hpcgnn.run.goal import BaseGoal
from hpcgnn.run.scoring import LabelCollected
from hpcgnn.run.train_scores import Measure
from hpcgnn.sample.snapshot_config import KEPT
from hpcgnn.store.snapshot_data import SnapshotDataConfig
from hpcgnn.store.snapshot_partition import SnapshotPartition
from hpcgnn.task.labels import LabelScores
from hpcgnn.tasks.metrics import REGRESSION_NAMES, UNIT_NAMES, regression_metrics


class SnapshotGoal(BaseGoal):
    """Collective to create; planning: the channel of ``want``, channel: that of ``score``.

    Kinds of tasks fill in: roots [S] int64: what is predicted in training from every snapshot on all ranks; last: the
    last snapshot that predictions can be made from; restarts: every split begins without state.
    A goal is also the ``Objective`` of the steps."""

    roots: np.ndarray
    last: int
    restarts = False

    def splits(self, data: SnapshotDataConfig, first: int) -> dict[str, range]:
        """The snapshots from ``first`` on that predictions are made from, by split. Raises ValueError."""
        return data.split(first, self.last)

    @abstractmethod
    def want(self, split: str, epoch: int, number: int):
        """Collective. What a step needs of one target."""

    @abstractmethod
    def score(self, outputs: torch.Tensor, wanted, chain: HaloChain):
        """Collective. Scores from the outputs [n, C] at one target."""

    @abstractmethod
    def loss(self, scores) -> torch.Tensor:
        """The sum over this rank's predictions."""

    @abstractmethod
    def join(self, scores: list, training: bool):
        """Scores of several targets, or of none, as those of one step."""

    def in_units(self, outputs: torch.Tensor) -> torch.Tensor:
        """Outputs [n, C] as the source's numbers, where they are numbers that were scaled."""
        return outputs


@dataclass(frozen=True, slots=True)
class Targets:
    """value [r, C] of the nodes row [r] that have any."""

    row: torch.Tensor
    value: torch.Tensor


class RegressionGoal(SnapshotGoal):
    """Numbers of nodes in later snapshots; where one of a node's is NaN, the node is left out."""

    def __init__(
        self, config: SnapshotConfig, partition: SnapshotPartition, world: World, planning: Channel, channel: Channel
    ):  # fmt: skip
        """Raises ValueError, on all ranks alike, for a graph without the column."""
        task, self._first = config.task, config.sampling.horizon
        if task.target not in partition.series:
            known = ", ".join(partition.series) or "none"
            raise ValueError(f"task.target {task.target}: no such column of every snapshot; the graph has {known}")
        series = partition.series[task.target]
        width = int(np.prod(series.shape[2:], dtype=np.int64))
        self._series, self._steps = series.reshape(*series.shape[:2], width), task.steps
        self._mae, self._world = task.loss == "mae", world
        self._kept: dict[int, Targets] | None = {} if config.sampling.routes == KEPT else None
        self._scale = partition.scales.get(task.target, 1.0)
        self.last = partition.num_snapshots - 1 - self._first - (task.steps - 1)
        self.num_outputs = task.steps * self._series.shape[2]
        self._dtype = torch.float64 if config.train.precision == "float64" else torch.float32
        mine = [len(self._values(number)[0]) if number <= self.last else 0 for number in range(partition.num_snapshots)]
        self.roots = world.reduce_array(np.array(mine, np.int64)) * self.num_outputs

    def _values(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows [r] and their values [r, C]."""
        begin = number + self._first
        values = self._series[:, begin : begin + self._steps].reshape(len(self._series), self.num_outputs)
        rows = np.flatnonzero(np.isfinite(values).all(axis=1))
        return rows, values[rows]

    def want(self, split: str, epoch: int, number: int) -> Targets:
        """As in SnapshotGoal."""
        if self._kept is None:
            return self._targets(number)
        if number not in self._kept:
            self._kept[number] = self._targets(number)
        return self._kept[number]

    def _targets(self, number: int) -> Targets:
        rows, values = self._values(number)
        device = self._world.device
        return Targets(torch.from_numpy(rows).to(device), torch.from_numpy(values).to(device, self._dtype))

    def score(self, outputs: torch.Tensor, wanted: Targets, chain: HaloChain) -> LabelScores:
        """As in SnapshotGoal."""
        rows = outputs if len(wanted.row) == len(outputs) else outputs[wanted.row]
        return LabelScores(rows, wanted.value)

    def loss(self, scores: LabelScores) -> torch.Tensor:
        """As in SnapshotGoal."""
        measure = functional.l1_loss if self._mae else functional.mse_loss
        return measure(scores.output, scores.label, reduction="sum")

    def join(self, scores: list[LabelScores], training: bool) -> LabelScores:
        """As in SnapshotGoal."""
        none = torch.empty((0, self.num_outputs), dtype=self._dtype, device=self._world.device)
        return LabelScores(
            torch.cat([none, *(s.output for s in scores)]), torch.cat([none, *(s.label for s in scores)])
        )

    def collector(self) -> LabelCollected:
        """As in SnapshotGoal."""
        return LabelCollected(measure=self._measure)

    def metric_names(self) -> tuple[str, ...]:
        """Mean squared and absolute errors, also of the source's numbers where the graph tells their scale."""
        return REGRESSION_NAMES if self._scale == 1 else UNIT_NAMES

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """The same."""
        return self.metric_names(), lambda scores, world: self._measure(scores["output"], scores["label"], world)

    def in_units(self, outputs: torch.Tensor) -> torch.Tensor:
        """As in SnapshotGoal."""
        return self._scale * outputs

    def _measure(self, output: np.ndarray, label: np.ndarray, world: World) -> dict[str, float]:
        """Collective."""
        return regression_metrics(output, label, world, self._scale)

    def describe(self) -> str:
        """As in SnapshotGoal."""
        return f"{self.num_outputs} numbers of every node, {self._first} snapshots later"
