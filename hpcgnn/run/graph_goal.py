"""What runs on a static graph learn: the seeds, what becomes of them, how results are measured."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.config import StaticConfig
from hpcgnn.graph.splits import SPLITS
from hpcgnn.run.goal import BaseGoal
from hpcgnn.run.scoring import LabelCollected, Scored
from hpcgnn.run.train_scores import Measure, measure_nodes
from hpcgnn.sample.draw import Completion
from hpcgnn.sample.exclusion import Exclusion
from hpcgnn.sample.seeds import SeedBatches, SeedPool, make_pool
from hpcgnn.store.graph_partition import GraphPartition
from hpcgnn.task.labels import LabelScores
from hpcgnn.tasks.graph_node import GraphNodeTask
from hpcgnn.tasks.graph_task import GraphTask
from hpcgnn.tasks.labels import count_classes, has_label, labelled_type, node_labels
from hpcgnn.tasks.metrics import BINARY_NAMES, MULTICLASS_NAMES, MULTILABEL_NAMES, node_metrics


class Goal(BaseGoal):
    """Collective to create. Kinds of tasks fill in: partition, the graph that carries messages; pools, the seeds of
    every split; roots, the nodes that a seed needs, as (node type, column); excluded, the edges that a step leaves out,
    if any; complete, what gives a step all columns of ``roots``, where the batches do not."""

    partition: GraphPartition
    pools: dict[str, SeedPool]
    roots: tuple[tuple[int, str], ...]
    excluded: Exclusion | None = None
    complete: Completion | None = None

    @abstractmethod
    def task(self, *shared) -> GraphTask:
        """Executes plans; shared: as GraphTask takes it."""

    @abstractmethod
    def exact_scores(self, outputs: torch.Tensor, batches: SeedBatches, model, channel: Channel) -> Scored:
        """Collective. Scores of a split from the model's outputs [n, C] of all local nodes."""


class NodeGoal(Goal):
    """Labels of the nodes of one type; several: a node may have any number of them."""

    def __init__(self, config: StaticConfig, partition: GraphPartition, world: World, channel: Channel):
        with together(world, "read the labels"):
            self.node_type = kind = labelled_type(partition, config.task.node_type, "task.node_type")
            label, split = node_labels(partition.columns[kind], partition.types[kind], config.task.classes)
        self.partition, self.roots = partition, ((kind, "id"),)
        self.several = label.ndim == 2
        self.num_outputs = count_classes(label, config.task.classes, world)
        ids, flat = partition.global_ids(kind), partition.flat_row[partition.of_type(kind)]
        self.pools = {}
        for number, name in enumerate(SPLITS):
            chosen = np.flatnonzero((split == number) & has_label(label))
            seeds = {"id": ids[chosen], "label": label[chosen]}
            self.pools[name] = make_pool(name, flat[chosen], partition.book.num_nodes, seeds, world, channel)

    def task(self, *shared) -> GraphNodeTask:
        """As in Goal."""
        return GraphNodeTask(self.node_type, *shared)

    def exact_scores(self, outputs: torch.Tensor, batches: SeedBatches, model, channel: Channel) -> LabelCollected:
        """As in Goal; seeds are scored at their owners."""
        pool, partition = self.pools[batches.name], self.partition
        first = int(partition.book.of_type(self.node_type).starts[partition.rank])
        place = torch.from_numpy(pool.columns["id"] - first).to(outputs.device)
        label = torch.from_numpy(pool.columns["label"]).to(outputs.device)
        collected = self.collector()
        collected.add(None, LabelScores(outputs[partition.of_type(self.node_type)][place], label))
        return collected

    def collector(self) -> LabelCollected:
        """Outputs and labels."""
        return LabelCollected(measure=node_metrics)

    def metric_names(self) -> tuple[str, ...]:
        """Accuracy and macro_f1; of two classes auc and ap too; of several labels a node the F1s."""
        if self.several:
            return MULTILABEL_NAMES
        return (*MULTICLASS_NAMES, *(BINARY_NAMES if self.num_outputs == 2 else ()))

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """All metrics."""
        return self.metric_names(), measure_nodes

    def describe(self) -> str:
        """As in Goal."""
        kinds = "classes, several a node" if self.several else "classes"
        return f"{self.partition.types[self.node_type]} labels, {self.num_outputs} {kinds}"
