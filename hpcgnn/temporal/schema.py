"""The schema of temporal graphs: needs of a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcgnn.graph.names import renumber
from hpcgnn.loop.schema import Schema
from hpcgnn.task.labels import MISSING
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.graph import LABEL, SPLIT, TemporalPartition

TIME_SCALE, OUTPUTS, CLASSES, EDGE_TYPES = "time_scale", "outputs", "classes", "edge_types"
CLOCK_SCALES = "clock_scales"


def needs_of(partition: TemporalPartition) -> dict[str, str]:
    """Describe the relation and the columns that a model reads."""

    def numbers(width: int, of: str) -> str:
        return f"{width} numbers {of}" if width else "none"

    types = {"edge types": ", ".join(partition.edge_types)} if partition.edge_types else {}
    return {
        "node types": ", ".join(partition.book.node_types), "relation": partition.relation, **types,
        "features of events": numbers(partition.edge_width, "an event"),
        "features of nodes": numbers(partition.node_width, "a node"),
        "times of the graph in a unit of its source": f"{partition.time_scale:g}",
    }  # fmt: skip


def adapt(config: TemporalConfig, partition: TemporalPartition, trained: Schema) -> TemporalConfig:
    """Add labels, none of which is known, to a graph without any, and return the configuration with the number of
    classes of a trained model. Raises ValueError for a graph that the model does not fit."""
    trained.refuse(Schema(needs_of(partition)))
    if not config.task.has_labels:
        return config
    if config.task.of_nodes:
        return _adapt_nodes(config, partition, trained)
    unknown = MISSING if config.task.classifies else np.nan
    columns = partition.events.columns
    columns.setdefault(LABEL, np.full(len(partition.events), unknown))
    if config.task.classifies and partition.classes:
        names, known = list(partition.classes), trained.values[CLASSES]
        columns[LABEL] = renumber(columns[LABEL], names, known, f"label of {partition.relation}:")
    return (
        replace(config, task=replace(config.task, classes=trained.values[OUTPUTS]))
        if config.task.classifies
        else config
    )


def _adapt_nodes(config: TemporalConfig, partition: TemporalPartition, trained: Schema) -> TemporalConfig:
    """Number the labels of nodes by the classes of a trained model; the only type of a graph without labels gets some,
    none of which is known. Raises ValueError for a class that the model does not have."""
    types, columns = partition.book.node_types, partition.node_columns
    name = config.task.node_type or (types[0] if len(types) == 1 else "")
    if name in types:
        count = len(partition.node_ids[name])
        for column in (LABEL, SPLIT):
            columns[types.index(name)].setdefault(column, np.full(count, MISSING))
    for kind, of_type in enumerate(columns):
        if LABEL in of_type and partition.node_classes[kind]:
            names, known = list(partition.node_classes[kind]), trained.values[CLASSES]
            of_type[LABEL] = renumber(of_type[LABEL], names, known, f"label of {types[kind]}:")
    return replace(config, task=replace(config.task, classes=trained.values[OUTPUTS]))
