"""What runs on snapshots learn, and how results are measured: numbers, classes and links of later snapshots.

n nodes of this rank, S snapshots, C output columns or classes, r labels of a target, Z embedding width.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.splits import SPLITS
from hpcgnn.snapshots.config import (
    ALL,
    BOTH,
    DRAWN,
    EDGE,
    FILTERED,
    KEPT,
    NODES,
    SnapshotConfig,
    SnapshotDataConfig,
    SnapshotTaskConfig,
)
from hpcgnn.snapshots.graph import SnapshotPartition
from hpcgnn.snapshots.pairs import (
    ALL_PAIRS,
    ANSWERS,
    TYPE,
    PairPlanner,
    Pairs,
    Reach,
    TargetEdges,
    reach,
    score_pairs,
)
from hpcgnn.snapshots.ranking import ALL_NAMES, AnswerRanks, RankedPairs, rank_all_pairs, rank_answers
from hpcgnn.task import metrics
from hpcgnn.task.collect import Collected, Measure, SplitMeasure, measure_links
from hpcgnn.task.goal import Goal
from hpcgnn.task.labels import Head, LabelScores, class_weights, count_classes, is_known, read_classes, read_numbers
from hpcgnn.task.links import TYPED, LinkScores, make_decoder, make_loss
from hpcgnn.task.metrics import (
    REGRESSION_NAMES,
    UNIT_NAMES,
    check_finite,
    count_levels,
    ranking_metrics,
    ranks_of,
    regression_metrics,
)
from hpcgnn.task.ranking import FILTERED_NAMES, filtered_metrics


class SnapshotGoal(Goal):
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
        rows = outputs if len(wanted.row) == len(outputs) else outputs[wanted.row]
        return LabelScores(rows, wanted.value)

    def loss(self, scores: LabelScores) -> torch.Tensor:
        measure = functional.l1_loss if self._mae else functional.mse_loss
        return measure(scores.output, scores.label, reduction="sum")

    def join(self, scores: list[LabelScores], training: bool) -> LabelScores:
        none = torch.empty((0, self.num_outputs), dtype=self._dtype, device=self._world.device)
        return LabelScores(
            torch.cat([none, *(s.output for s in scores)]), torch.cat([none, *(s.label for s in scores)])
        )

    def collector(self) -> Collected:
        return Collected(lambda scores, batches, world: self._measure(scores, world))

    def metric_names(self) -> tuple[str, ...]:
        """Mean squared and absolute errors, also of the source's numbers where the graph tells their scale."""
        return REGRESSION_NAMES if self._scale == 1 else UNIT_NAMES

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """All metrics."""
        return self.metric_names(), self._measure

    def in_units(self, outputs: torch.Tensor) -> torch.Tensor:
        return self._scale * outputs

    def _measure(self, scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
        """Collective."""
        return regression_metrics(scores["output"], scores["label"], world, self._scale)

    def describe(self) -> str:
        return f"{self.num_outputs} numbers of every node, {self._first} snapshots later"


class LabelGoal(SnapshotGoal):
    """What classes and numbers have in common. Kinds fill in classes: C, or 0: they are numbers; weights [C] of the
    classes or None."""

    classes: int
    weights: torch.Tensor | None = None
    absolute = False

    def loss(self, scores: LabelScores) -> torch.Tensor:
        if self.classes:
            return functional.cross_entropy(scores.output, scores.label, self.weights, reduction="sum")
        error = scores.output[:, 0] - scores.label.to(scores.output.dtype)
        return error.abs().sum() if self.absolute else error.square().sum()

    def join(self, scores: list[LabelScores], training: bool) -> LabelScores:
        if not scores:
            none = torch.empty((0, max(1, self.classes)))
            return LabelScores(none, torch.empty(0, dtype=torch.int64 if self.classes else none.dtype))
        return LabelScores(torch.cat([s.output for s in scores]), torch.cat([s.label for s in scores]))

    def collector(self) -> Collected:
        return Collected(lambda scores, batches, world: self._measure(scores, world))

    def metric_names(self) -> tuple[str, ...]:
        """Accuracy and macro_f1, of two classes auc and ap too; of numbers errors."""
        if not self.classes:
            return metrics.REGRESSION_NAMES
        return (*metrics.MULTICLASS_NAMES, *(metrics.BINARY_NAMES if self.classes == 2 else ()))

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """All metrics."""
        return self.metric_names(), self._measure

    def _measure(self, scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
        """Collective."""
        output, label = scores["output"], scores["label"]
        if self.classes:
            return metrics.node_metrics(output, label, world)
        return metrics.regression_metrics(output[:, 0], label, world)

    def _set_classes(self, label: np.ndarray, config: SnapshotConfig, world: World) -> None:
        """Collective. From all labels of this rank."""
        self.classes = count_classes(label.ravel(), config.task.classes, world)
        with together(world, "read task.class_weights"):
            dtype = torch.float64 if config.train.precision == "float64" else torch.float32
            self.weights = class_weights(config.task.class_weights, self.classes, dtype, world.device)


class NodeLabelGoal(LabelGoal):
    """Classes of nodes, which may differ by snapshot; every snapshot has its own, or the nodes' column ``split``."""

    def __init__(
        self, config: SnapshotConfig, partition: SnapshotPartition, world: World, planning: Channel, channel: Channel
    ):  # fmt: skip
        self._horizon, self._device = config.sampling.horizon, world.device
        with together(world, "read the labels"):
            self._label = _node_labels(partition, config.task)
            self._split = _node_split(partition) if config.task.split == NODES else None
        self._set_classes(self._label, config, world)
        self.num_outputs, self.restarts = self.classes, self._split is not None
        self.last = partition.num_snapshots - 1 - self._horizon
        mine = [self._rows(SPLITS[0], n).size if n <= self.last else 0 for n in range(partition.num_snapshots)]
        self.roots = world.reduce_array(np.array(mine, np.int64))

    def splits(self, data: SnapshotDataConfig, first: int) -> dict[str, range]:
        """The snapshots of every split; all of them where nodes are split."""
        if self._split is None:
            return super().splits(data, first)
        return {name: range(first, self.last + 1) for name in SPLITS}

    def _rows(self, split: str, number: int) -> np.ndarray:
        """Local rows [r] with a label that the split may see."""
        known = self._at(number) >= 0
        return np.flatnonzero(known if self._split is None else known & (self._split == SPLITS.index(split)))

    def _at(self, number: int) -> np.ndarray:
        """Labels [n] that are predicted from a snapshot."""
        return self._label if self._label.ndim == 1 else self._label[:, number + self._horizon]

    def want(self, split: str, epoch: int, number: int) -> Targets:
        rows = self._rows(split, number)
        return Targets(*(torch.from_numpy(values).to(self._device) for values in (rows, self._at(number)[rows])))

    def score(self, outputs: torch.Tensor, wanted: Targets, chain: HaloChain) -> LabelScores:
        return LabelScores(outputs[wanted.row], wanted.value)

    def describe(self) -> str:
        return f"{self.classes} classes of nodes, {self._horizon} snapshots later"


@dataclass(frozen=True, slots=True)
class EdgeTargets:
    """value [r] of edges; source, destination [r]: places of their ends in what ``reach`` brings."""

    reach: Reach
    source: torch.Tensor
    destination: torch.Tensor
    value: torch.Tensor


class EdgeLabelGoal(LabelGoal):
    """Classes or numbers of the edges ``sampling.horizon`` snapshots later, from the outputs at both ends."""

    def __init__(
        self, config: SnapshotConfig, partition: SnapshotPartition, world: World, planning: Channel, channel: Channel
    ):  # fmt: skip
        self._horizon, self._world, self._partition = config.sampling.horizon, world, partition
        self._planning, self._channel = planning, channel
        self._column, self._read = config.task.target, read_classes if config.task.kind == EDGE else read_numbers
        self._most, self.absolute, self.classes = config.task.classes, config.task.loss == "mae", 0
        with together(world, "read the labels"):
            label = self._read(partition.edge_column(self._column), f"edge column {self._column}", self._most)
        if config.task.kind == EDGE:
            self._set_classes(label, config, world)
        self.num_outputs, self.last = config.model.hidden, partition.num_snapshots - 1 - self._horizon
        mine = [len(self._edges(n)[2]) if n <= self.last else 0 for n in range(partition.num_snapshots)]
        self.roots = world.reduce_array(np.array(mine, np.int64))

    def extend(self, model: nn.Module) -> nn.Module:
        """The model with the head that labels edges."""
        self._head = model.head = Head(2 * self.num_outputs, self.num_outputs, self.classes or 1)
        return model

    def _edges(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sources, destinations (global ids) and labels [r] of the edges whose label is known."""
        edges = self._partition.edges_at(number + self._horizon, (self._column,))
        label = self._read(edges.columns[self._column], self._column, self._most)
        known = is_known(label)
        return edges.src[known], self._partition.global_ids[edges.dst[known]], label[known]

    def want(self, split: str, epoch: int, number: int) -> EdgeTargets:
        source, destination, label = self._edges(number)
        device = self._world.device
        found, ends = reach([source, destination], self._partition.book, self._planning, device)
        return EdgeTargets(found, ends[0], ends[1], torch.from_numpy(label).to(device))

    def score(self, outputs: torch.Tensor, wanted: EdgeTargets, chain: HaloChain) -> LabelScores:
        rows = wanted.reach.bring(outputs, chain, self._channel)
        ends = [functional.embedding(place, rows) for place in (wanted.source, wanted.destination)]
        return LabelScores(self._head(torch.cat(ends, dim=1)), wanted.value)

    def describe(self) -> str:
        what = f"{self.classes} classes" if self.classes else "a number"
        return f"{what} of every edge (column {self._column}), {self._horizon} snapshots later"


def _node_labels(partition: SnapshotPartition, task: SnapshotTaskConfig) -> np.ndarray:
    """[n, S], or [n] where all snapshots have the same. Raises ValueError."""
    found = {**partition.columns, **partition.series}
    if task.target not in found:
        raise ValueError(
            f"task.target {task.target}: no such column of nodes; the graph has {', '.join(found) or 'none'}"
        )
    label = read_classes(found[task.target], f"column {task.target} of nodes", task.classes)
    if label.ndim > 1 + (task.target in partition.series):
        raise ValueError(f"column {task.target} of nodes must be one class each, got {label.shape[1:]}")
    return label


def _node_split(partition: SnapshotPartition) -> np.ndarray:
    """[n]: 0 train, 1 val, 2 test. Raises ValueError."""
    if "split" not in partition.columns:
        raise ValueError("task.split nodes needs a column split of the nodes: write the graph with one, or use time")
    return partition.columns["split"].astype(np.int64)


TRAIN_NAMES = ("ap", "auc", "mrr")
DRAWN_NAMES = ("ap", "auc", "mrr", "snapshot_ap", "snapshot_auc")


class SnapshotLinkGoal(SnapshotGoal):
    """Whether two nodes have an edge ``sampling.horizon`` snapshots later. An edge is handled by the owner of its
    destination."""

    def __init__(
        self, config: SnapshotConfig, partition: SnapshotPartition, world: World, planning: Channel, channel: Channel
    ):  # fmt: skip
        task, horizon = config.task, config.sampling.horizon
        self._task, self._horizon, self._world, self._channel = task, horizon, world, channel
        self.num_outputs = config.model.hidden
        self._loss = make_loss(task.loss, task.margin, positive_weight=task.positive_weight)
        self.last = partition.num_snapshots - 1 - horizon
        self._types = _count_types(partition, world) if task.decoder in TYPED else 0
        edges = TargetEdges(partition, horizon, task.undirected, task.new_links, self._types, planning)
        counts = task.negatives, {DRAWN: task.eval_negatives, ALL: ALL_PAIRS, FILTERED: ANSWERS}[task.eval_pairs]
        seed, both_ends = config.train.seed, task.negative_ends == BOTH
        self._pairs = PairPlanner(partition, edges, counts, both_ends, task.strict, seed, world, planning)
        mine = [len(edges.at(number).row) if number <= self.last else 0 for number in range(partition.num_snapshots)]
        self.roots = world.reduce_array(np.array(mine, np.int64))

    def extend(self, model: nn.Module) -> nn.Module:
        """The model with the decoder that scores links."""
        self._decoder = model.decoder = make_decoder(
            self._task.decoder, self.num_outputs, self._types, self._task.temperature
        )
        return model

    def want(self, split: str, epoch: int, number: int) -> Pairs:
        return self._pairs(split, epoch, number)

    def score(self, outputs: torch.Tensor, wanted: Pairs, chain: HaloChain):
        if wanted.answers is not None:
            return rank_answers(self._decoder, outputs, wanted.answers, self._channel, self._world)
        if wanted.negative is None:
            return rank_all_pairs(self._decoder, outputs, wanted, self._channel, self._world)
        assert wanted.reach is not None
        return score_pairs(self._decoder, wanted.reach.bring(outputs, chain, self._channel), wanted)

    def loss(self, scores: LinkScores) -> torch.Tensor:
        return scores.loss(self._loss)

    def join(self, scores: list, training: bool):
        if scores:
            return type(scores[0]).join(scores)
        if self._task.eval_pairs == ALL and not training:
            return RankedPairs(np.empty((0, len(ALL_NAMES))))
        if self._task.eval_pairs == FILTERED and not training:
            return AnswerRanks(np.empty(0))
        negatives = self._task.negatives if training else self._task.eval_negatives
        none = torch.empty(0, dtype=torch.int64)
        return LinkScores(torch.empty(0), torch.empty((negatives, 0)), number=none)

    def collector(self) -> Collected:
        return Collected(MEASURES[self._task.eval_pairs])

    def metric_names(self) -> tuple[str, ...]:
        return {DRAWN: DRAWN_NAMES, ALL: ALL_NAMES, FILTERED: FILTERED_NAMES}[self._task.eval_pairs]

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """ap, auc and mrr."""
        return TRAIN_NAMES, _measure_training

    def describe(self) -> str:
        task = self._task
        kind = ("new " if task.new_links else "") + ("undirected " if task.undirected else "") + "links"
        drawn = f"{task.eval_negatives} negatives each"
        against = {DRAWN: drawn, ALL: "all pairs", FILTERED: "all nodes at both ends"}[task.eval_pairs]
        return (
            f"{kind} {self._horizon} snapshots later, {'strict, ' if task.strict else ''}{task.negatives} negatives "
            f"each, in evaluation {against}"
        )


def measure_drawn(scores: dict[str, np.ndarray], batches: Any, world: World) -> dict[str, float]:
    """Collective. Average precision and ROC AUC over all pairs, the mean reciprocal rank of edges among their
    negatives, and means over snapshots of the first two, each of the snapshot's own pairs."""
    positive, negative, number = (scores[name] for name in ("positive", "negative", "number"))
    check_finite(np.isfinite(positive).all() and np.isfinite(negative).all(), world)
    levels = count_levels(positive, negative, world)
    values = [levels.average_precision(), levels.auc()]
    values.append(ranking_metrics(ranks_of(positive, negative), np.zeros(len(positive), bool), world)["mrr"])
    counted = []
    for target in sorted(t for targets in batches.targets for t in targets):
        here = number == target
        levels = count_levels(positive[here], negative[here], world)
        counted.append((levels.average_precision(), levels.auc()))
    values += [mean_known(column) for column in zip(*counted, strict=True)]
    return dict(zip(DRAWN_NAMES, values, strict=True))


def measure_all_pairs(scores: dict[str, np.ndarray], batches: object, world: World) -> dict[str, float]:
    """Collective. Means over snapshots with edges, of what ranking made of each; all ranks of a group know the same."""
    values = np.column_stack([scores[name] for name in ALL_NAMES])
    check_finite(not np.isinf(values).any(), world)
    if world.size > 1:
        values = world.broadcast(world.gather_rows(values))
    return {name: mean_known(column) for name, column in zip(ALL_NAMES, values.T, strict=True)}


MEASURES: dict[str, SplitMeasure] = {DRAWN: measure_drawn, ALL: measure_all_pairs, FILTERED: filtered_metrics}


def _count_types(partition: SnapshotPartition, world: World) -> int:
    """Collective. Of the edges' column type. Raises ValueError where it holds none, on all ranks."""
    with together(world, "read the types of edges"):
        types = partition.edge_column(TYPE)
        if types.dtype.kind not in "iu" or types.min(initial=0) < 0:
            raise ValueError(f"column {TYPE} of edges must hold types, integers from 0 on")
    return 1 + max(world.allgather(int(types.max(initial=0))))


def _measure_training(scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
    """Collective. Of positive [n] and negative [n, k] scores."""
    ranks = ranks_of(scores["positive"], scores["negative"])
    return measure_links(scores, world) | ranking_metrics(ranks, np.zeros(len(ranks), bool), world)


def mean_known(values) -> float:
    """Mean of those that are no NaN; NaN of none."""
    known = [float(value) for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
