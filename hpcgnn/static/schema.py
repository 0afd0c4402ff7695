"""The schema of static graphs: needs of a model, and the adaptation of another graph's labels and edge types."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hpcgnn.graph.names import renumber
from hpcgnn.graph.partition import WEIGHT, GraphPartition
from hpcgnn.loop.schema import Schema
from hpcgnn.static.config import LINK, REGRESSION, GraphTaskConfig, OneTaskConfig, StaticConfig, message_columns
from hpcgnn.static.goals import LabeledEdgesGoal, LinkGoal, NodeGoal, StaticGoal
from hpcgnn.static.sampling.seeds import NO_SPLIT, TRAIN
from hpcgnn.task.labels import MISSING

CLASSES, EDGE_TYPES, NODE_TYPE, RELATION, OUTPUTS = "classes", "edge_types", "node_type", "relation", "outputs"
NAMES, WIDTHS, MORE = "edge_type_names", "edge_column_widths", "more"
Task = TypeVar("Task", bound=OneTaskConfig)


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
    values = {name: values_of(config.of_task(name), partition, each) for name, each in goal.by_task.items()}
    main = values.pop("")
    return Schema(needs, main | ({MORE: values} if values else {}))


def values_of(config: StaticConfig, partition: GraphPartition, goal: StaticGoal) -> dict[str, Any]:
    """Record what a task counts in the graph, and the names there."""
    if isinstance(goal, NodeGoal):
        name = partition.types[goal.node_type]
        classes = partition.words.get(f"nodes/{name}/label", [])
        return {NODE_TYPE: name, OUTPUTS: goal.classes or 1, "several": goal.several, CLASSES: classes}
    assert isinstance(goal, LinkGoal | LabeledEdgesGoal)
    name = goal.learned.name
    names, values = partition.words.get(f"edges/{name}/rel", []), {}
    if isinstance(goal, LabeledEdgesGoal):
        words = partition.words.get(f"edges/{name}/label", [])
        widths = dict(zip(config.task.edge_columns, goal.widths, strict=True))
        values = {OUTPUTS: goal.classes, CLASSES: words, WIDTHS: widths}
    return {RELATION: name, EDGE_TYPES: goal.num_edge_types, NAMES: names} | values


def values_by_task(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the values of a schema by task, the main one's with an empty name."""
    return {"": values, **values.get(MORE, {})}


def adapt(config: StaticConfig, partition: GraphPartition, trained: Schema) -> StaticConfig:
    """Number the labels and the edge types of a graph as the graph of a trained model does, and add the columns that a
    graph to predict on may lack: labels, none of which is known then, and splits: no node has one, and all edges carry
    messages. Returns the configuration with the number of classes of the model.

    Changes the columns of the partition. Raises ValueError for a graph that the model does not fit.
    """
    trained.refuse(Schema(needs_of(config, partition)))
    adapter, values = _Adapter(partition), values_by_task(trained.values)
    task = adapter.adapt(config.task, values[""])
    if isinstance(task, GraphTaskConfig):
        task.more = {name: adapter.adapt(further, values[name]) for name, further in task.more.items()}
    return replace(config, task=task)


class _Adapter:
    """Adapts the columns of a graph, each once, to the tasks of a trained model."""

    def __init__(self, partition: GraphPartition):
        self._partition, self._words = partition, dict(partition.words)

    def adapt(self, task: Task, values: dict[str, Any]) -> Task:
        """Adapt the columns of a task; returns the section with the number of classes of the model."""
        numbers = task.kind.endswith(REGRESSION)
        unknown, classes = (np.nan, 0) if numbers else (MISSING, values.get(OUTPUTS, 0))
        if not task.of_edges:
            self._adapt_labels(values, unknown)
            return replace(task, classes=classes, node_type=values[NODE_TYPE])
        self._adapt_edges(values)
        if task.kind != LINK:
            self._adapt_edge_labels(values, unknown)
        return replace(task, classes=classes, relation=values[RELATION])

    def _renumber(self, column: np.ndarray, place: str, trained: list[str], what: str) -> np.ndarray:
        """Number a column, whose place in part files is given, by the names of training."""
        return renumber(column, self._words.pop(place, []), trained, what)  # popped: not a second time

    def _adapt_labels(self, values: dict[str, Any], missing: float) -> None:
        partition, name = self._partition, values[NODE_TYPE]
        columns, kind = partition.columns[partition.type_of(name)], partition.type_of(name)
        count = len(partition.flat_row[partition.of_type(kind)])
        if "label" not in columns:
            shape = (count, values[OUTPUTS]) if values["several"] else (count,)
            columns["label"] = np.full(shape, missing)
        place = f"nodes/{name}/label"
        columns["label"] = self._renumber(columns["label"], place, values[CLASSES], f"label of {name}:")
        columns.setdefault("split", np.full(count, NO_SPLIT, np.int8))

    def _adapt_edges(self, values: dict[str, Any]) -> None:
        name = values[RELATION]
        number = self._partition.relation_of(name)
        columns, count = self._partition.edges[number].columns, len(self._partition.edges[number].src)
        columns.setdefault("split", np.full(count, TRAIN, np.int8))
        if "rel" not in columns:
            return
        columns["rel"] = self._renumber(columns["rel"], f"edges/{name}/rel", values[NAMES], f"edge type of {name}:")
        if (most := int(columns["rel"].max(initial=0))) >= values[EDGE_TYPES]:
            raise ValueError(
                f"column rel of {name} has edge type {most}, the model was trained with {values[EDGE_TYPES]}"
            )

    def _adapt_edge_labels(self, values: dict[str, Any], missing: float) -> None:
        name = values[RELATION]
        edges = self._partition.edges[self._partition.relation_of(name)]
        columns, place = edges.columns, f"edges/{name}/label"
        label = columns.get("label", np.full(len(edges.src), missing))
        columns["label"] = self._renumber(label, place, values[CLASSES], f"label of {name}:")
        for column, width in values[WIDTHS].items():
            values_there = columns.get(column, np.empty((0, 0)))
            if math.prod(values_there.shape[1:]) != width:
                raise ValueError(
                    f"task.edge_columns: {column} of {name} must have {width} numbers an edge, as in training"
                )
