"""Goals of runs on snapshots: numbers and classes of nodes and edges in later snapshots, and their metrics.

n nodes of this rank, S snapshots, C output columns or classes, r labels of a target.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hpcgnn.choices import Part
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.partition import FEATURES
from hpcgnn.graph.splits import SPLITS, place_of_split
from hpcgnn.snapshots.graph import DEGREE, SnapshotPartition
from hpcgnn.snapshots.pairs import Reach, reach
from hpcgnn.snapshots.plan import known_values
from hpcgnn.task.goal import Collected, Goal, Measure, measure_classes
from hpcgnn.task.labels import (
    Head,
    LabelScores,
    class_weights,
    count_classes,
    is_known,
    read_classes,
    read_numbers,
    refuse_words,
)
from hpcgnn.task.losses import make_loss
from hpcgnn.task.metrics import class_metric_names, regression_metric_names, regression_metrics
from hpcgnn.task.moments import moments

DIFFERENCE = "task.difference_from"
REGRESSION, NODE, EDGE, EDGE_REGRESSION = "regression", "node", "edge", "edge_regression"
TIME, NODES, GRAPH = "time", "nodes", "graph"
KEPT = "kept"
NO_TARGETS = ("id", FEATURES, "split")  # columns of nodes that are none


@dataclass(frozen=True)
class AveragePart(Part):
    """Means of the last values of a node. of_lags: of the last ``inputs.lags`` ones, which must be above 0; else of the
    newest one."""

    of_lags: bool = False

    def count(self, lags: int) -> int:
        """Return the number of values that are averaged."""
        return lags if self.of_lags else 1


AVERAGES = {
    "newest": AveragePart(None, "newest known value of the node"),
    "moving_average": AveragePart(None, "mean of the last inputs.lags values of the node", of_lags=True),
}
DIFFERENCES = {"": Part(None, "the target itself"), **AVERAGES}


class SnapshotGoal(Goal):
    """A task on snapshots: plans the targets of a step, scores outputs and makes the loss. Collective to create;
    planning: the channel that ``want`` uses; channel: the channel that ``score`` uses.

    Kinds of tasks fill in: roots [S] int64: number of training predictions made from every snapshot, on all ranks;
    last: the last snapshot that predictions can be made from; restarts: state is reset at the start of every split;
    num_edge_types: of the links that a typed decoder scores, else 0.
    """

    roots: np.ndarray
    last: int
    restarts = False
    num_edge_types = 0

    def splits(self, data: Any, first: int, named: dict[str, tuple[int, int]], horizon: int) -> dict[str, range]:
        """Return the ranges of input snapshots by split, from ``first`` on: with the graph's own splits, ``horizon``
        before the targets; named: first and last snapshot of the graph's splits. Raises ValueError."""
        if data.split_by != GRAPH:
            return data.split(first, self.last)
        if not named:
            raise ValueError("data.split_by graph: this graph has no splits; use time")
        end = self.last + 1
        test = named["test"][0] - horizon if "test" in named else end
        val = named["val"][0] - horizon if "val" in named else test
        bounds = [first, *(min(max(first, begin), end) for begin in (val, test)), end]
        if bounds[1] <= first:
            raise ValueError(f"the splits of the graph, {named}, leave no snapshot from {first} on for training")
        return {name: range(*bounds[place : place + 2]) for place, name in enumerate(SPLITS)}

    @abstractmethod
    def want(self, split: str, epoch: int, number: int):
        """Collective. Plan the targets that are predicted from snapshot ``number``, as ``score`` needs them."""

    @abstractmethod
    def score(self, outputs: torch.Tensor, targets, chain: HaloChain):
        """Collective. Score the outputs [n, C] of one snapshot against its targets, which ``want`` planned."""

    @abstractmethod
    def loss(self, scores) -> torch.Tensor:
        """Sum the losses of this rank's predictions."""

    @abstractmethod
    def join(self, scores: list, training: bool):
        """Concatenate the scores of a step's targets; the list may be empty."""

    def count_roots(self, count: Callable[[int], int], partition: SnapshotPartition, world: World) -> np.ndarray:
        """Collective. Count the predictions made from every snapshot up to ``last`` on all ranks, [S]; count: on this
        rank."""
        own = [count(number) if number <= self.last else 0 for number in range(partition.num_snapshots)]
        return world.reduce_array(np.array(own, np.int64))

    def in_units(self, outputs: torch.Tensor, number: int) -> torch.Tensor:
        """Turn a model's outputs [n, C] at snapshot ``number`` into predictions, in the units of the source, which
        conversion may have scaled."""
        return outputs


@dataclass(frozen=True, slots=True)
class Targets:
    """Labels: value [r], and row [r], the rows that they belong to; rows without a label are absent. Of numbers, row
    counts through the flattened outputs [n * C]. number: the snapshot that they are predicted from."""

    row: torch.Tensor
    value: torch.Tensor
    number: int


class LabelGoal(SnapshotGoal):
    """Base of the goals that predict classes or numbers. Kinds fill in classes: C, or 0: labels are numbers; scale:
    by which the source's numbers were divided."""

    classes = 0
    scale = 1.0

    def loss(self, scores: LabelScores) -> torch.Tensor:
        return self.sum(scores.output, scores.label)

    def join(self, scores: list[LabelScores], training: bool) -> LabelScores:
        scores = scores or [self.no_scores()]
        return LabelScores(torch.cat([s.output for s in scores]), torch.cat([s.label for s in scores]))

    def no_scores(self) -> LabelScores:
        """Make the scores of no target."""
        none = torch.empty((0, max(1, self.classes)))
        return LabelScores(none, torch.empty(0, dtype=torch.int64 if self.classes else none.dtype))

    def collector(self) -> Collected:
        return Collected(lambda scores, batches, world: self._measure(scores, world))

    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics of classes, or of the errors of numbers."""
        return class_metric_names(self.classes) if self.classes else regression_metric_names(self.scale)

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Measure training as a split is measured."""
        return self.metric_names(), self._measure

    def _measure(self, scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
        """Collective. Measure classes, or the errors of numbers, also in the source's units."""
        if self.classes:
            return measure_classes(scores, world)
        return regression_metrics(scores["output"].reshape(scores["label"].shape), scores["label"], world, self.scale)

    def _set_classes(self, label: np.ndarray, config: Any, world: World) -> None:
        """Collective. Count the classes, and weigh them, from all labels of this rank."""
        self.classes = count_classes(label.ravel(), config.task.classes, world)
        with together(world, "read task.class_weights"):
            weights = class_weights(config.task.class_weights, self.classes, config.train.dtype, world.device)
        self.sum = make_loss(config.task, weights)


class RegressionGoal(LabelGoal):
    """Predicts numbers of nodes in later snapshots; NaN are left out."""

    def __init__(self, config: Any, partition: SnapshotPartition, world: World, planning: Channel, channel: Channel):
        """Raises ValueError, on all ranks alike, for a graph without the column."""
        task, self._first = config.task, config.task.horizon
        _check_target(task.target, partition.series, "every snapshot")
        refuse_words(partition.names.get(task.target, []), f"column {task.target} of nodes")
        series = partition.series[task.target]
        width = int(np.prod(series.shape[2:], dtype=np.int64))
        self._series, self._steps = series.reshape(*series.shape[:2], width), task.forecast_steps
        self._of_known = partial(known_values, partition, task.target, config.inputs.unknown)
        self._differs = task.difference_from
        if self._differs:
            self.know(DIFFERENCE)
            self._base = partial(self.recent, count=AVERAGES[self._differs].count(config.inputs.lags))
        _check_unseen(partition, task.target, self._first)
        if never_change(self._series, world):
            raise ValueError(f"task.target {task.target}{UNCHANGED}: {SEEN}")
        self.sum, self._world = make_loss(task), world
        self._keeps, self._targets = config.sampling.routes == KEPT, dict[int, Targets]()
        self.scale = partition.scales.get(task.target, 1.0)
        self.last = partition.num_snapshots - 1 - self._first - (task.forecast_steps - 1)
        self.num_outputs = task.forecast_steps * self._series.shape[2]
        self._dtype = config.train.dtype
        self.roots = self.count_roots(lambda number: len(self._values(number)[0]), partition, world)

    def _values(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions [r] in the flattened outputs [n * C] whose values are known, and these values [r]."""
        begin = number + self._first
        values = self._series[:, begin : begin + self._steps].reshape(-1)
        places = np.flatnonzero(np.isfinite(values))
        return places, values[places]

    def want(self, split: str, epoch: int, number: int) -> Targets:
        if number in self._targets:
            return self._targets[number]
        places, values = (torch.from_numpy(array).to(self._world.device) for array in self._values(number))
        targets = Targets(places, values.to(self._dtype), number)
        if self._keeps:
            self._targets[number] = targets
        return targets

    def extend(self, model: nn.Module) -> nn.Module:
        """Return the model, whose ``standard_target`` turns its outputs into numbers of the target."""
        self._model = model
        return model

    def know(self, reader: str) -> None:
        """Read the values that ``recent`` averages. reader: the key that needs them. Raises ValueError for values that
        are missing, where ``inputs.unknown`` refuses them."""
        self._known = self._of_known(reader).reshape(self._series.shape)

    def recent(self, number: int, count: int = 1) -> torch.Tensor:
        """Compute the mean of the last ``count`` known values up to snapshot ``number``, for every step of the forecast
        [n, C]; of one, the newest value."""
        mean = self._known[:, number + 1 - count : number + 1].mean(axis=1, dtype=np.float64)
        return torch.from_numpy(np.tile(mean, self._steps)).to(self._world.device, self._dtype)

    def moments(self, snapshots: range) -> tuple[torch.Tensor, torch.Tensor]:
        """Collective. Compute the mean and the deviation [C] of all known numbers that a model's outputs stand for, of
        predictions from ``snapshots``."""

        def read() -> Iterator[np.ndarray]:
            for number in snapshots:
                values = self._series[:, number + self._first :][:, : self._steps].reshape(-1, self.num_outputs)
                yield values - self._base(number).cpu().numpy() if self._differs else values

        return moments(read, self.num_outputs, self._world)

    def forecast(self, outputs: torch.Tensor, number: int) -> torch.Tensor:
        """Turn a model's outputs [n, C] at snapshot ``number`` into values of the target."""
        standard: Any = self._model.standard_target
        outputs = outputs if standard is None else standard.undone(outputs)
        return self._base(number) + outputs if self._differs else outputs

    def score(self, outputs: torch.Tensor, targets: Targets, chain: HaloChain) -> LabelScores:
        return self.compare(self.forecast(outputs, targets.number), targets)

    def compare(self, values: torch.Tensor, targets: Targets) -> LabelScores:
        """Set values [n, C] of the target beside the known ones."""
        values = values.reshape(-1)
        return LabelScores(values if len(targets.row) == len(values) else values[targets.row], targets.value)

    def no_scores(self) -> LabelScores:
        none = torch.empty(0, dtype=self._dtype, device=self._world.device)
        return LabelScores(none, none)

    def in_units(self, outputs: torch.Tensor, number: int) -> torch.Tensor:
        return self.scale * self.forecast(outputs, number)

    def describe(self) -> str:
        learned = f", learned as differences to the {AVERAGES[self._differs].says}" if self._differs else ""
        return f"{self.num_outputs} numbers of every node, {self._first} snapshots later{learned}"


class NodeLabelGoal(LabelGoal):
    """Predicts classes of nodes, which may change from snapshot to snapshot. Either time is split, or the nodes are, by
    their column ``split``."""

    def __init__(self, config: Any, partition: SnapshotPartition, world: World, planning: Channel, channel: Channel):
        self._horizon, self._device = config.task.horizon, world.device
        with together(world, "read the labels"):
            self._label = _node_labels(partition, config.task)
        is_fixed = never_change(_unknown_as_nan(self._label), world)
        with together(world, "split the nodes"):
            self._split = _node_split(partition, config, is_fixed)  # [n]: 0 train, 1 val, 2 test
        self._set_classes(self._label, config, world)
        self.num_outputs, self.restarts = self.classes, self._split is not None
        self.last = partition.num_snapshots - 1 - self._horizon
        self.roots = self.count_roots(lambda number: self._rows(SPLITS[0], number).size, partition, world)

    def splits(self, data, first: int, named, horizon: int) -> dict[str, range]:
        """Return the ranges of input snapshots by split, all snapshots for each where nodes are split. Raises
        ValueError for shares of snapshots then."""
        if self._split is None:
            return super().splits(data, first, named, horizon)
        data.refuse_shares("the nodes' column split divides the nodes, and every split sees all snapshots")
        return {name: range(first, self.last + 1) for name in SPLITS}

    def _rows(self, split: str, number: int) -> np.ndarray:
        """Return the local rows [r] with a label that belong to the split."""
        labeled, place = self._at(number) >= 0, place_of_split(split)
        return np.flatnonzero(labeled if self._split is None else labeled & (self._split == place))

    def _at(self, number: int) -> np.ndarray:
        """Return the labels [n] that are predicted from snapshot ``number``."""
        return self._label if self._label.ndim == 1 else self._label[:, number + self._horizon]

    def want(self, split: str, epoch: int, number: int) -> Targets:
        rows = self._rows(split, number)
        row, value = (torch.from_numpy(values).to(self._device) for values in (rows, self._at(number)[rows]))
        return Targets(row, value, number)

    def score(self, outputs: torch.Tensor, targets: Targets, chain: HaloChain) -> LabelScores:
        return LabelScores(outputs[targets.row], targets.value)

    def describe(self) -> str:
        split = "" if self._split is None else ", split by the nodes' column split"
        return f"{self.classes} classes of nodes, {self._horizon} snapshots later{split}"


@dataclass(frozen=True, slots=True)
class EdgeTargets:
    """Labels of edges: value [r]; source, destination [r]: positions of their ends in the rows that ``reach``
    brings."""

    reach: Reach
    source: torch.Tensor
    destination: torch.Tensor
    value: torch.Tensor


class EdgeLabelGoal(LabelGoal):
    """Predicts classes or numbers of the edges ``task.horizon`` snapshots later, from the outputs at both ends."""

    def __init__(self, config: Any, partition: SnapshotPartition, world: World, planning: Channel, channel: Channel):
        self._horizon, self._world, self._partition = config.task.horizon, world, partition
        self._planning, self._channel = planning, channel
        self._column, self._read = config.task.target, read_classes if config.task.kind == EDGE else read_numbers
        self._most, self.sum = config.task.classes, make_loss(config.task)
        with together(world, "read the labels"):
            _check_target(self._column, partition.edge_columns, "edges", partition.unread)
            if config.task.kind == EDGE_REGRESSION:
                refuse_words(partition.edge_names.get(self._column, []), f"edge column {self._column}")
            label = self._read(partition.edge_column(self._column), f"edge column {self._column}", self._most)
        self._label, self._repeated = label, 0.0
        if config.task.kind == EDGE:
            self._set_classes(label, config, world)
        self.num_outputs, self.last = config.model.hidden, partition.num_snapshots - 1 - self._horizon
        self.roots = self.count_roots(lambda number: len(self._edges(number)[2]), partition, world)

    def extend(self, model: nn.Module) -> nn.Module:
        """Add the head that labels edges to the model."""
        self._head = model.head = Head(2 * self.num_outputs, self.num_outputs, self.classes or 1)
        return model

    def splits(self, data: Any, first: int, named: dict[str, tuple[int, int]], horizon: int) -> dict[str, range]:
        """Collective. Return the ranges of input snapshots by split. Raises ValueError where every edge of validation
        and test was in training with the same label."""
        found = super().splits(data, first, named, horizon)
        train = range(found["train"].start + horizon, found["train"].stop + horizon)
        later = range(found["val"].start + horizon, found["test"].stop + horizon)
        counts = self._partition.count_repeated(self._label, is_known(self._label), train, later)
        repeated, total = self._world.reduce_array(counts)
        if repeated == total > 0:
            raise ValueError(f"task.target {self._column}: every later edge is one of training with its label: {SEEN}")
        self._repeated = repeated / max(1, total)
        return found

    def _edges(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the edges with a label: sources, destinations (global ids) and labels [r]."""
        edges = self._partition.edges_at(number + self._horizon, (self._column,))
        label = self._read(edges.columns[self._column], self._column, self._most)
        labeled = is_known(label)
        return edges.src[labeled], self._partition.global_ids[edges.dst[labeled]], label[labeled]

    def want(self, split: str, epoch: int, number: int) -> EdgeTargets:
        source, destination, label = self._edges(number)
        device = self._world.device
        to_ends, ends = reach([source, destination], self._partition.book, self._planning, device)
        return EdgeTargets(to_ends, ends[0], ends[1], torch.from_numpy(label).to(device))

    def score(self, outputs: torch.Tensor, targets: EdgeTargets, chain: HaloChain) -> LabelScores:
        rows = targets.reach.bring(outputs, chain, self._channel)
        ends = [functional.embedding(place, rows) for place in (targets.source, targets.destination)]
        return LabelScores(self._head(torch.cat(ends, dim=1)), targets.value)

    def describe(self) -> str:
        what = f"{self.classes} classes" if self.classes else "a number"
        repeated = (
            f"; {self._repeated:.0%} of the later edges are in training with the same label" if self._repeated else ""
        )
        return f"{what} of every edge (column {self._column}), {self._horizon} snapshots later{repeated}"


UNCHANGED = " is the same in all snapshots"
SEEN = "a later test would repeat the training labels; use a column that changes with time"


def never_change(values: np.ndarray, world: World) -> bool:
    """Collective. Return whether no node's value [n, S, ...] (NaN: not known; [n]: one for all snapshots) changes from
    snapshot to snapshot."""
    if values.ndim == 1:
        return True
    changes = (np.fmin.reduce(values, axis=1) < np.fmax.reduce(values, axis=1)).any()
    repeated = (np.isfinite(values).sum(axis=1) > 1).any()
    found = world.reduce_array(np.array([changes, repeated], np.int64), "max")
    return bool(found[1] > found[0])


def _check_target(target: str, columns: Collection[str], of: str, unread: Collection[str] = ()) -> None:
    """Raise ValueError where the target is none of the ``columns``, with those that it may be; unread: further columns,
    which stay in the file until they are the target."""
    if target in columns:
        return
    there = [*columns, *unread]
    labels = [name for name in there if name not in NO_TARGETS]
    remedy = f": set task.target {labels[0] if len(labels) == 1 else 'to one of these'}" if labels else ""
    names = ", ".join(there) or "none"
    raise ValueError(f"task.target {target}: no such column of {of}; the graph has {names}{remedy}")


def _unknown_as_nan(label: np.ndarray) -> np.ndarray:
    return np.where(label >= 0, label, np.nan).astype(np.float32) if label.ndim > 1 else label


def _check_unseen(partition: SnapshotPartition, target: str, horizon: int) -> None:
    """Raise ValueError for a target that can be counted from the edges of the input snapshot."""
    if target == DEGREE and partition.counts_degrees and not horizon:
        raise ValueError("task.horizon 0: task.target degree counts the edges that messages pass along; set it above 0")


def _node_split(partition: SnapshotPartition, config: Any, is_fixed: bool) -> np.ndarray | None:
    """Read the nodes' splits [n], None where time is split; is_fixed: no node's class changes. Raises ValueError."""
    task, by = config.task, config.data.split_by
    if by in (TIME, GRAPH) and is_fixed:
        raise ValueError(
            f"data.split_by {by}: task.target {task.target}{UNCHANGED}, so a later test would repeat the training "
            "labels; set data.split_by nodes"
        )
    if by in (TIME, GRAPH) or (by != NODES and not is_fixed):
        return None
    why = "" if by == NODES else f" (task.target {task.target}{UNCHANGED})"
    if "split" not in partition.columns:
        raise ValueError(
            f"data.split_by nodes needs a column split of the nodes{why}: hpcgnn split GRAPH OUT --nodes "
            "node writes one; partition OUT again"
        )
    if config.inputs.lags:
        raise ValueError(f"inputs.lags would show the labels of all nodes: leave it 0 with data.split_by nodes{why}")
    return partition.columns["split"].astype(np.int64)


def _node_labels(partition: SnapshotPartition, task: Any) -> np.ndarray:
    """Read the nodes' labels [n, S], or [n] where all snapshots have the same. Raises ValueError."""
    columns = {**partition.columns, **partition.series}
    _check_target(task.target, columns, "nodes")
    label = read_classes(columns[task.target], f"column {task.target} of nodes", task.classes)
    if label.ndim > 1 + (task.target in partition.series):
        raise ValueError(f"column {task.target} of nodes must be one class each, got {label.shape[1:]}")
    return label
