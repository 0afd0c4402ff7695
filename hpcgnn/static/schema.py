"""The schema of static graphs: needs of a model, and the adaptation of another graph's labels and edge types."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hpcgnn.graph.names import renumber
from hpcgnn.graph.partition import WEIGHT, GraphPartition
from hpcgnn.loop.schema import Schema
from hpcgnn.static.config import LINK, REGRESSION, StaticConfig, message_columns
from hpcgnn.static.goals import LabeledEdgesGoal, LinkGoal, NodeGoal, StaticGoal
from hpcgnn.static.sampling.seeds import NO_SPLIT, TRAIN
from hpcgnn.task.labels import MISSING

CLASSES, EDGE_TYPES, NODE_TYPE, RELATION, OUTPUTS = "classes", "edge_types", "node_type", "relation", "outputs"
NAMES, WIDTHS = "edge_type_names", "edge_column_widths"


def needs_of(config: StaticConfig, partition: GraphPartition) -> dict[str, str]:
    """Describe the node types, relations and columns that a model reads."""
    needs = {
        "node types": ", ".join(partition.types),
        "relations": ", ".join(relation.name for relation in partition.relations),
    }
    for name, features in zip(partition.types, partition.features, strict=True):
        needs[f"features of {name}"] = "none" if features is None else f"{features.shape[1]} numbers a node"
    for relation, edges in zip(partition.relations, partition.edges, strict=True):
        for column in (*message_columns(config), *[WEIGHT] * config.model.edge_weights):
            values = edges.columns.get(column)
            needs[f"column {column} of {relation.name}"] = "none" if values is None else f"shape {[*values.shape[1:]]}"
    return needs


def make_schema(config: StaticConfig, partition: GraphPartition, goal: StaticGoal, needs: dict[str, str]) -> Schema:
    """Record what a run on this graph trains a model with."""
    if isinstance(goal, NodeGoal):
        name = partition.types[goal.node_type]
        classes = partition.words.get(f"nodes/{name}/label", [])
        return Schema(needs, {NODE_TYPE: name, OUTPUTS: goal.num_outputs, "several": goal.several, CLASSES: classes})
    assert isinstance(goal, LinkGoal | LabeledEdgesGoal)
    name = goal.learned.name
    names, values = partition.words.get(f"edges/{name}/rel", []), {}
    if isinstance(goal, LabeledEdgesGoal):
        words = partition.words.get(f"edges/{name}/label", [])
        widths = dict(zip(config.task.edge_columns, goal.widths, strict=True))
        values = {OUTPUTS: goal.classes, CLASSES: words, WIDTHS: widths}
    return Schema(needs, {RELATION: name, EDGE_TYPES: goal.num_edge_types, NAMES: names} | values)


def adapt(config: StaticConfig, partition: GraphPartition, trained: Schema) -> StaticConfig:
    """Number the labels and the edge types of a graph as the graph of a trained model does, and add the columns that a
    graph to predict on may lack: labels, none of which is known then, and splits: no node has one, and all edges carry
    messages. Returns the configuration with the number of classes of the model.

    Changes the columns of the partition. Raises ValueError for a graph that the model does not fit.
    """
    trained.refuse(Schema(needs_of(config, partition)))
    numbers, values = config.task.kind.endswith(REGRESSION), trained.values
    unknown, classes = (np.nan, 0) if numbers else (MISSING, values.get(OUTPUTS, 0))
    if not config.task.of_edges:
        _adapt_labels(partition, trained, unknown)
        return replace(config, task=replace(config.task, classes=classes, node_type=values[NODE_TYPE]))
    _adapt_edges(partition, trained)
    if config.task.kind != LINK:
        _adapt_edge_labels(partition, trained, unknown)
    return replace(config, task=replace(config.task, classes=classes, relation=values[RELATION]))


def _adapt_labels(partition: GraphPartition, trained: Schema, missing: float) -> None:
    values = trained.values
    columns, name = partition.columns[partition.type_of(values[NODE_TYPE])], values[NODE_TYPE]
    count = len(partition.flat_row[partition.of_type(partition.type_of(name))])
    if "label" not in columns:
        shape = (count, values[OUTPUTS]) if values["several"] else (count,)
        columns["label"] = np.full(shape, missing)
    names = partition.words.get(f"nodes/{name}/label", [])
    columns["label"] = renumber(columns["label"], names, values[CLASSES], f"label of {name}:")
    columns.setdefault("split", np.full(count, NO_SPLIT, np.int8))


def _adapt_edges(partition: GraphPartition, trained: Schema) -> None:
    values = trained.values
    number = partition.relation_of(values[RELATION])
    columns, count = partition.edges[number].columns, len(partition.edges[number].src)
    columns.setdefault("split", np.full(count, TRAIN, np.int8))
    if "rel" not in columns:
        return
    names = partition.words.get(f"edges/{values[RELATION]}/rel", [])
    columns["rel"] = renumber(columns["rel"], names, values[NAMES], f"edge type of {values[RELATION]}:")
    if (most := int(columns["rel"].max(initial=0))) >= values[EDGE_TYPES]:
        raise ValueError(
            f"column rel of {values[RELATION]} has edge type {most}, the model was trained with {values[EDGE_TYPES]}"
        )


def _adapt_edge_labels(partition: GraphPartition, trained: Schema, missing: float) -> None:
    name, values = trained.values[RELATION], trained.values
    edges = partition.edges[partition.relation_of(name)]
    columns, names = edges.columns, partition.words.get(f"edges/{name}/label", [])
    label = columns.get("label", np.full(len(edges.src), missing))
    columns["label"] = renumber(label, names, values[CLASSES], f"label of {name}:")
    for column, width in values[WIDTHS].items():
        values_there = columns.get(column, np.empty((0, 0)))
        if math.prod(values_there.shape[1:]) != width:
            raise ValueError(f"task.edge_columns: {column} of {name} must have {width} numbers an edge, as in training")
