"""Finds the edges that a run on a static graph learns: links, or labels of edges, and the edges that carry messages.

m in-edges of the learned relation at this rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.static.config import ALL, EDGE_REGRESSION, LINK, TRAINING, GraphTaskConfig, StaticConfig
from hpcgnn.static.sampling.edges import BOTH, MESSAGES, STORED, type_edges
from hpcgnn.static.sampling.neighbors import Exclusion
from hpcgnn.static.sampling.seeds import NONE, LinkSeeds, make_link_seeds, split_relation
from hpcgnn.task.labels import edge_labels, is_known


@dataclass(frozen=True, slots=True)
class EdgesToLearn:
    """The relation to learn and how many types its edges have, its seeds, the graph that carries messages, and what
    steps of training leave out of it. num_unlabeled: number of edges with a split and without a label, in the whole
    graph. test_messages: the graph that carries messages in the test, None: the same."""

    relation: int
    edge_types: int
    seeds: LinkSeeds
    messages: GraphPartition
    excluded: Exclusion | None
    num_unlabeled: int
    test_messages: GraphPartition | None


def find_edges_to_learn(
    config: StaticConfig, partition: GraphPartition, world: World, channel: Channel, edge_types: int = 0
) -> EdgesToLearn:
    """Collective. Read the edges of the section ``task`` from the graph; edge_types: the least number of types. Seeds
    of a task on labels have the columns ``label`` and ``task.edge_columns``."""
    task = config.task
    with together(world, "choose the relation"):
        relation = split_relation(partition, task.relation, "task.relation")
        types = _edge_types(partition.edges[relation].columns.get("rel"), partition.relations[relation].name, task)
    edge_types = max(edge_types, *world.allgather(types))
    further, labeled = {}, np.ones(len(partition.edges[relation].src), bool)
    if task.kind != LINK:
        with together(world, "read the labels"):
            further = _label_columns(partition, relation, task)
        labeled = is_known(further["label"])
    reverse = task.reverse if config.sampling.fanouts else task.reverse or NONE  # without messages none is ever seen
    with_val = config.eval.message_edges != TRAINING
    seeds = make_link_seeds(partition, relation, reverse, task.is_typed, world, channel, further, labeled, with_val)
    later = seeds.with_val
    messages, left_out = (partition, {}) if task.message_splits == ALL else (seeds.partition, seeds.edges)
    if task.message_edges != STORED:
        with together(world, "type the edges"):
            typed = edge_types * (1 + (task.message_edges == BOTH))
            config.sampling.check_count(len(partition.relations) - 1 + typed, "task.message_edges")
        by_type = edge_types, task.message_edges, world, channel
        messages, left_out = type_edges(messages, relation, left_out, *by_type)
        later = later and type_edges(later, relation, {}, *by_type)[0]
    excluded = Exclusion(left_out, seeds.pools["train"].total, config.train.batch_size) if left_out else None
    has_split = partition.edges[relation].columns["split"] >= 0
    num_unlabeled = int(world.total(int((has_split & ~labeled).sum())))
    return EdgesToLearn(relation, edge_types, seeds, messages, excluded, num_unlabeled, later)


def _label_columns(partition: GraphPartition, relation: int, task: GraphTaskConfig) -> dict[str, np.ndarray]:
    """Read the columns [m, ...] that seeds of a task on labels have. Raises ValueError."""
    name, columns = partition.relations[relation].name, partition.edges[relation].columns
    found = {"label": edge_labels(columns, name, task.kind == EDGE_REGRESSION, task.classes)}
    for column in task.edge_columns:
        if column not in columns:
            there = ", ".join(sorted({*columns, *partition.unread[relation]})) or "none"
            raise ValueError(f"task.edge_columns: relation {name} has no column {column}; it has {there}")
        if columns[column].dtype.kind not in "iufb" or not np.isfinite(columns[column]).all():
            raise ValueError(f"task.edge_columns: column {column} of {name} must hold finite numbers")
        found[column] = columns[column]
    return found


def _edge_types(rel: np.ndarray | None, name: str, task: GraphTaskConfig) -> int:
    """Count the edge types that this rank knows of. Raises ValueError."""
    if rel is None:
        for key, value, typed in (
            ("decoder", task.decoder, task.is_typed),
            ("messages", task.message_edges, task.message_edges in MESSAGES[1:]),
        ):
            if typed:
                raise ValueError(f"task.{key} {value} needs edge types: relation {name} has no column rel")
        return 1
    if rel.dtype.kind not in "iu" or np.any(rel < 0):
        raise ValueError(f"column rel of relation {name} must hold edge types, integers from 0 on")
    return int(rel.max(initial=0)) + 1
