"""The tasks on temporal graphs and their metrics: links between nodes, labels of events, classes of nodes, or labels of
nodes at times.

e events of this rank, C classes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.splits import NO_SPLIT, SPLITS
from hpcgnn.task.goal import Collected, Goal, Measure, measure_classes, measure_events, measure_links
from hpcgnn.task.labels import MISSING, MOST_CLASSES, NUMBERED, count_classes, is_known, refuse_words
from hpcgnn.task.losses import make_loss
from hpcgnn.task.metrics import (
    INDUCTIVE,
    NEW_ENDS,
    PAIRS,
    PER_BATCH,
    RANKS,
    WEIGHTS,
    class_metric_names,
    gain_metrics,
    mean_known,
    names_of,
    regression_metric_names,
    regression_metrics,
)
from hpcgnn.temporal.batches import Batches, event_times
from hpcgnn.temporal.config import TemporalConfig, TemporalTaskConfig
from hpcgnn.temporal.graph import EDGE_TYPE, Events, TemporalPartition
from hpcgnn.temporal.loader import TemporalGraph
from hpcgnn.temporal.node_classes import NodeClasses, read_node_classes
from hpcgnn.temporal.node_labels import read_node_labels, sha256_of_labels
from hpcgnn.temporal.properties import ForecastTask, TemporalPropertyTask
from hpcgnn.temporal.step import NodeClassTask, TemporalLabelTask, TemporalLinkTask, TemporalTask, make_head


class TemporalGoal(Goal):
    """A task on a temporal graph. num_outputs: logits of a root. draws_negatives: whether events are scored against
    drawn destinations; node_classes: where these are learned."""

    num_outputs = 1
    draws_negatives = True
    node_classes: NodeClasses | None = None

    def class_names(self, partition: TemporalPartition) -> list[str]:
        """List the words that the learned labels were made from."""
        return list(partition.classes)

    @abstractmethod
    def task(self, batches: Batches, *shared) -> TemporalTask:
        """Collective. Make what executes plans; batches: of training; shared: what TemporalTask takes."""

    def describe_events(self, batches: dict[str, Batches]) -> list[str]:
        """Collective. Describe what is learned of the events of every split, line by line, where it is more than
        links."""
        return []


class EventLinkGoal(TemporalGoal):
    """Predicts whether an event happens, against negatives."""

    def __init__(self, config: TemporalConfig, edge_types: tuple[str, ...] = ()):
        """edge_types: their names, none where all events are of one; metrics are also of the events of each."""
        self._eval, self.sum, self._types = config.eval, make_loss(config.task), edge_types

    def task(self, batches: Batches, *shared) -> TemporalLinkTask:
        """Make what scores events and negatives."""
        return TemporalLinkTask(self.sum, *shared)

    def collector(self) -> Collected:
        """Collect scores of events and negatives, or, among many negatives, ranks of events."""
        return Collected(self._measure, self._eval.ranking)

    def _measure(self, scores: dict[str, np.ndarray], batches: Batches, world: World) -> dict[str, float]:
        """Collective. Measure all events, the inductive ones, also by their new ends, and the events of each edge
        type."""

        def measure(chosen: np.ndarray | slice) -> dict[str, float]:
            return measure_links({name: values[chosen] for name, values in scores.items()}, world)

        metrics = measure_events(scores, batches, world)
        for number, name in enumerate(self._types):
            is_of_type = batches.events.columns[EDGE_TYPE] == number
            found = measure(is_of_type)
            metrics |= {f"{metric}/{name}": value for metric, value in found.items()}
        if self._eval.batch_means:
            found_in = [measure(batches.at(step)) for step in range(batches.num_steps)]
            for name in self._names:
                metrics[name + PER_BATCH] = mean_known(found[name] for found in found_in)
        return metrics

    @property
    def _names(self) -> tuple[str, ...]:
        return names_of(RANKS if self._eval.ranking else PAIRS)

    def metric_names(self) -> tuple[str, ...]:
        """Names of average precision and ROC AUC, or, among many negatives, of MRR and hits@10."""
        names = self._names
        of_types = tuple(f"{name}/{kind}" for kind in self._types for name in names)
        means = tuple(name + PER_BATCH for name in names) if self._eval.batch_means else ()
        of_new = tuple(prefix + name for prefix in (INDUCTIVE, *NEW_ENDS) for name in names)
        return names + of_new + of_types + means

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Measure average precision and ROC AUC of training."""
        return names_of(PAIRS), measure_links

    def describe(self) -> str:
        """Say what is learned, in a few words."""
        return "links"

    def protocol(self) -> dict[str, str]:
        """Name the kind of negatives, and the protocol that chose them, if any."""
        protocol, negatives = self._eval.protocol, self._eval.negative_kind
        return {"negatives": negatives, **({"protocol": protocol} if protocol else {})}


class EventLabelGoal(TemporalGoal):
    """Collective to create. Predicts the label of every event: a class of its source, a class of the event, or a
    number."""

    draws_negatives = False

    def __init__(self, config: TemporalConfig, partition: TemporalPartition, world: World):
        """Checks the labels, and makes them what steps take. Raises DistributedError for labels that cannot be used."""
        self._config, self._edge_width, self._world = config, partition.edge_width, world
        task = config.task
        label = self._read(partition)
        if task.classifies:
            self.num_outputs = count_classes(label, task.classes, world)
        with together(world, "read the labels"):
            if task.class_weights and len(task.class_weights) != self.num_outputs:
                count = len(task.class_weights)
                raise ValueError(f"task.class_weights has {count} numbers, the labels have {self.num_outputs} classes")

    def _read(self, partition: TemporalPartition) -> np.ndarray:
        """Collective. Read the labels of this rank [e]."""
        events = partition.events
        with together(self._world, "read the labels"):
            if not self._config.task.classifies:
                refuse_words(self.class_names(partition), f"the label of {partition.relation}")
            events.columns["label"] = read_labels(events, self._config.task, partition.relation)
        return events.columns["label"]

    def _training_labels(self, batches: Batches) -> np.ndarray:
        """Return the labels of training [.] at this rank."""
        return batches.events.columns["label"]

    def extend(self, model: torch.nn.Module) -> torch.nn.Module:
        """Put a head in the place of the model's decoder."""
        model.decoder = make_head(self._config.task.kind, self._config.model, self._edge_width, self.num_outputs)
        return model

    def task(self, batches: Batches, *shared) -> TemporalLabelTask:
        """Collective. Make what scores labels. With ``task.balance_classes`` class c has the weight n / (C n_c), 1
        where it does not occur."""
        task, (model, *_) = self._config.task, shared
        factors: Any = task.class_weights
        if task.balance_classes:
            classes, label = self.num_outputs, self._training_labels(batches)
            counts = self._world.reduce_array(np.bincount(label[label >= 0], minlength=classes).astype(np.int64))
            factors = np.where(counts > 0, counts.sum() / (classes * np.maximum(counts, 1)), 1.0)
        parameter = next(model.parameters())
        weights = torch.tensor(factors, dtype=parameter.dtype, device=parameter.device) if len(factors) else None
        self.sum = make_loss(task, weights)
        return self._make_task(*shared)

    def _make_task(self, *shared) -> TemporalLabelTask:
        return TemporalLabelTask(self._config.task.kind, self.sum, *shared)

    def collector(self) -> Collected:
        """Collect outputs and labels of the events."""
        return Collected(lambda scores, batches, world: self._measure(scores, world))

    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics of classes, or of the errors of numbers."""
        if self._config.task.classifies:
            return class_metric_names(self.num_outputs)
        return regression_metric_names()

    def monitored(self) -> str:
        """Of two classes, one of which may be rare, the area under the ROC curve."""
        return "auc" if self.num_outputs == 2 else super().monitored()

    def _measure(self, scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
        """Collective. Measure the events that have a label."""
        known = {name: values[is_known(scores["label"])] for name, values in scores.items()}
        if self._config.task.classifies:
            return measure_classes(known, world)
        return regression_metrics(known["output"][:, 0], known["label"], world)

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Measure training as a split is measured."""
        return self.metric_names(), self._measure

    def describe(self) -> str:
        """Say what is learned, in a few words."""
        return f"{self.num_outputs} classes" if self._config.task.classifies else "numbers"

    def describe_events(self, batches: dict[str, Batches]) -> list[str]:
        """Collective. Count the labeled events of every split, in one line."""
        counts = [
            f"{name} {self._world.total(int(is_known(split.events.columns['label']).sum()))}"
            for name, split in batches.items()
        ]
        return [f"task {self._config.task.kind}, {self.describe()}; labeled events: {', '.join(counts)}"]


class NodeClassGoal(EventLabelGoal):
    """Collective to create. Predicts the class of every labeled node of one type at its time."""

    node_classes: NodeClasses

    def _read(self, partition: TemporalPartition) -> np.ndarray:
        after = int(event_times(partition, np.array([partition.num_events - 1]), self._world)[0]) + 1
        with together(self._world, "read the labels"):
            self.node_classes = read_node_classes(partition, self._config.task, self._world.rank, after)
        return self.node_classes.label

    def class_names(self, partition: TemporalPartition) -> list[str]:
        """List the words that the labels of nodes were made from."""
        return list(self.node_classes.classes)

    def _training_labels(self, batches: Batches) -> np.ndarray:
        return self.node_classes.label[self.node_classes.of_split(0)]

    def _make_task(self, *shared) -> NodeClassTask:
        return NodeClassTask(self._config.task, self.sum, self.num_outputs, *shared)

    def describe_events(self, batches: dict[str, Batches]) -> list[str]:
        """Collective. Count the labeled nodes of every split, and the other nodes of the type, in one line."""
        labels, total = self.node_classes, self._world.total
        counts = [total(len(labels.of_split(split))) for split in range(len(SPLITS))]
        shown = ", ".join(f"{name} {count}" for name, count in zip(SPLITS, counts, strict=True))
        return [
            f"task {self._config.task.kind}, {self.describe()} of {labels.node_type}; labeled nodes: {shown}; "
            f"{labels.num_rows - sum(counts)} without label or split"
        ]


class CollectedGains(Collected):
    """Collects the gains of labels; plans of events have none."""

    def take(self, columns: dict[str, np.ndarray], final: bool = True) -> None:
        """Add the gains of a plan."""
        self._steps.append(columns)


class NodePropertyGoal(TemporalGoal):
    """Collective to create. Predicts weights of classes of nodes at times. labels: of this rank's nodes."""

    draws_negatives = False

    def __init__(self, config: TemporalConfig, graph: TemporalGraph):
        """Reads the labels. Raises DistributedError for a file that cannot be used."""
        self._config, task = config, config.task
        with together(graph.world, "read the labels of nodes"):
            if graph.world.rank == 0 and task.labels_sha256 not in ("", sha256_of_labels(task.labels_file)):
                raise ValueError(
                    f"task.labels_file: {task.labels_file} is not what it was when the run began (another sha256): put "
                    "the old file back"
                )
        self.labels = read_node_labels(task.labels_file, graph.partition, graph.splits, graph.world, graph.channel)
        self.num_outputs = self.labels.num_classes

    def extend(self, model: torch.nn.Module) -> torch.nn.Module:
        """Put a head in the place of the model's decoder."""
        model.decoder = make_head("node", self._config.model, 0, self.num_outputs)
        return model

    def task(self, batches: Batches, *shared) -> TemporalPropertyTask:
        """Make what scores labels."""
        self.sum = make_loss(self._config.task)
        return TemporalPropertyTask(self.sum, *shared)

    def forecast_task(self, *shared) -> ForecastTask:
        """Make what scores labels by earlier ones alone. shared: model, memory and timers."""
        self.sum = make_loss(self._config.task)
        return ForecastTask(self.sum, *shared)

    def collector(self) -> Collected:
        """Collect the gains of the labels."""
        return CollectedGains(lambda scores, batches, world: self._measure(scores, world))

    def _measure(self, scores: dict[str, np.ndarray], world: World) -> dict[str, float]:
        """Collective. Average the gains of each time, and then these."""
        gain, time = (scores.get(name, np.empty(0, kind)) for name, kind in (("gain", float), ("time", int)))
        counts = world.reduce_array(np.bincount(time, minlength=len(self.labels.times)).astype(np.int64))
        return gain_metrics(gain, time, counts, world)

    def metric_names(self) -> tuple[str, ...]:
        """Name of the normalized gain."""
        return names_of(WEIGHTS)

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Measure training as a split is measured."""
        return self.metric_names(), self._measure

    def describe(self) -> str:
        """Say what is learned, in a few words."""
        return f"weights of {self.num_outputs} classes"

    def describe_events(self, batches: dict[str, Batches]) -> list[str]:
        """Count the labels and the label times of every split, in one line."""
        labels = self.labels
        named = [(name, labels.split == place) for place, name in enumerate(SPLITS)]
        named.append(("not used, as no event follows", labels.split == NO_SPLIT))
        counts = [f"{name} {labels.counts[at].sum()} at {at.sum()} times" for name, at in named]
        return [f"task {self._config.task.kind}, {self.describe()}; labels: {', '.join(counts)}"]


def make_goal(config: TemporalConfig, graph: TemporalGraph) -> TemporalGoal:
    """Collective. Make the goal that ``task.kind`` names. Raises DistributedError for labels that cannot be used."""
    partition = graph.partition
    if config.task.of_nodes:
        return NodeClassGoal(config, partition, graph.world)
    if not config.task.has_labels and not config.task.has_properties:
        return EventLinkGoal(config, partition.edge_types)
    if config.task.has_properties:
        return NodePropertyGoal(config, graph)
    return EventLabelGoal(config, partition, graph.world)


def read_labels(events: Events, config: TemporalTaskConfig, relation: str) -> np.ndarray:
    """Read the label column [e]: classes int64 with -1 where missing, or numbers float64 with NaN where missing.

    Raises ValueError when there is none, or when it holds what cannot be used.
    """
    if "label" not in events.columns:
        raise ValueError(
            f"task.kind {config.kind} learns the label of events, but {relation} has no column label: convert the "
            "source again with one, or use task.kind link"
        )
    label = events.columns["label"]
    if label.ndim != 1 or label.dtype.kind not in "iufb":
        raise ValueError(f"the label of {relation} must be one number an event, got {label.dtype} {label.shape[1:]}")
    if config.classifies:
        return _checked_classes(label, events, config)
    infinite = np.flatnonzero(np.isinf(label))
    if len(infinite):
        raise ValueError(f"event {events.row[infinite[0]]}: label {label[infinite[0]]} is not finite")
    return label.astype(np.float64)


def _checked_classes(label: np.ndarray, events: Events, config: TemporalTaskConfig) -> np.ndarray:
    present = label >= 0  # not so for NaN
    wrong = present & (label >= (config.classes or MOST_CLASSES))
    if label.dtype.kind == "f":
        wrong |= present & (label != np.floor(label))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        range_ = f"below task.classes = {config.classes}" if config.classes else f"below {MOST_CLASSES} ({NUMBERED})"
        raise ValueError(
            f"event {events.row[at]}: label {label[at]} is no class; classes are integers from 0 on, {range_}, and a "
            "negative label is a missing one; numbers are for task.kind edge_regression"
        )
    return np.where(present, np.where(present, label, 0).astype(np.int64), MISSING)
