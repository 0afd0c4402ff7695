"""The schema of snapshot graphs: needs of a model, and how another graph's units, labels and edge types are adapted."""

from __future__ import annotations

from dataclasses import replace

from hpcgnn.graph.names import renumber
from hpcgnn.loop.schema import Schema
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.snapshots.goals import EDGE, NODE, SnapshotGoal
from hpcgnn.snapshots.graph import TYPE, WEIGHT, SnapshotPartition

SCALES, OUTPUTS, CLASSES, EDGE_TYPES, EDGE_NAMES = "scales", "outputs", "classes", "edge_types", "edge_type_names"
EDGE_CLASSES, NUM_CLASSES = "edge_classes", "num_classes"


def make_schema(
    config: SnapshotConfig, partition: SnapshotPartition, goal: SnapshotGoal, needs: dict[str, str]
) -> Schema:
    """Record what a run on this graph trains a model with."""
    return Schema(needs, {
        OUTPUTS: goal.num_outputs, SCALES: partition.scales, CLASSES: partition.names.get(config.task.target, []),
        EDGE_TYPES: goal.num_edge_types, EDGE_NAMES: partition.edge_names.get(TYPE, []),
        EDGE_CLASSES: partition.edge_names.get(config.task.target, []), NUM_CLASSES: getattr(goal, "classes", 0),
    })  # fmt: skip


def needs_of(config: SnapshotConfig, partition: SnapshotPartition, width: int) -> dict[str, str]:
    """Describe the columns that a model reads; width: of the nodes' known inputs."""
    needs = {"inputs of nodes": f"{width} numbers a node"}
    if config.model.edge_weights:
        needs["column weight of edges"] = "numbers" if WEIGHT in partition.edge_columns else "none"
    return needs


def adapt(config: SnapshotConfig, partition: SnapshotPartition, trained: Schema) -> SnapshotConfig:
    """Scale the series of a graph, and number its labels and edge types, as the graph of a trained model does; returns
    the configuration with the number of classes of the model. Changes the partition. Raises ValueError for names that
    the model was trained without."""
    values, target = trained.values, config.task.target
    for name, scale in values[SCALES].items():
        if name in partition.series and partition.scales.get(name, 1.0) != scale:
            partition.series[name] = partition.series[name] * (partition.scales.get(name, 1.0) / scale)
            partition.scales[name] = scale
    partition.renumber_edges(TYPE, values[EDGE_NAMES])
    partition.least_edge_types = values[EDGE_TYPES]
    if config.task.kind == EDGE:
        partition.renumber_edges(target, values[EDGE_CLASSES])
    for columns in (partition.columns, partition.series) if config.task.kind == NODE else ():
        if target in columns:
            names = partition.names.get(target, [])
            columns[target] = renumber(columns[target], names, values[CLASSES], f"column {target} of nodes:")
    if config.task.kind not in (NODE, EDGE):
        return config
    return replace(config, task=replace(config.task, classes=values[NUM_CLASSES]))
