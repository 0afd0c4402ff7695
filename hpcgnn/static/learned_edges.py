"""Finds the edges that a run on a static graph learns: links, or labels of edges, and the edges that carry messages.

m in-edges of the learned relation at this rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.static.config import EDGE_REGRESSION, LINK, STORED, TRAINING, OneTaskConfig, StaticConfig, of_task
from hpcgnn.static.sampling.edges import BOTH, MESSAGES, type_edges
from hpcgnn.static.sampling.neighbors import Exclusion, HiddenEdges
from hpcgnn.static.sampling.seeds import NONE, LinkSeeds, Masks, make_link_seeds, split_relation, take_edges
from hpcgnn.static.sampling.times import check_seed_time
from hpcgnn.task.labels import edge_labels, is_known, refuse_words


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
    config: StaticConfig, partition: GraphPartition, world: World, channel: Channel, edge_types: int = 0,
    with_test: bool = True,
) -> EdgesToLearn:  # fmt: skip
    """Collective. Read the edges of the section ``task`` from the graph; edge_types: the least number of types. Seeds
    of a task on labels have the columns ``label`` and ``task.edge_columns``. with_test: makes ``test_messages``."""
    task, found = config.task, _read_edges(config, partition, world, channel, edge_types, with_test)
    relation, edge_types, seeds = found.relation, found.edge_types, found.seeds
    stays, left_out = (seeds.stays, seeds.edges) if task.hides_edges else ({}, {})
    messages = take_edges(partition, stays)
    later = None if seeds.with_val is None else take_edges(partition, seeds.with_val)
    if task.message_edges != STORED:
        with together(world, "type the edges"):
            typed = edge_types * (1 + (task.message_edges == BOTH))
            config.sampling.check_count(len(partition.relations) - 1 + typed, "task.message_edges")
        by_type = edge_types, task.message_edges, world, channel
        messages, left_out = type_edges(messages, relation, left_out, *by_type)
        later = later and type_edges(later, relation, {}, *by_type)[0]
    excluded = _exclusion(config, seeds, left_out)
    return replace(found, messages=messages, excluded=excluded, test_messages=later)


def find_edges_of_tasks(
    configs: dict[str, StaticConfig], partition: GraphPartition, world: World, channel: Channel,
    edge_types: dict[str, int],
) -> tuple[dict[str, EdgesToLearn], GraphPartition, GraphPartition | None]:  # fmt: skip
    """Collective. Read the edges of each task on edges, by name; returns also the graph that carries messages, and the
    one of the test, None: the same. Edges that any task holds out, and their reverses, carry messages for none."""
    found = {}
    for name, config in configs.items():
        if config.task.of_edges:
            with of_task(name):
                found[name] = _read_edges(config, partition, world, channel, edge_types.get(name, 0))
    hiding = [edges.seeds for name, edges in found.items() if configs[name].task.hides_edges]
    stays = _in_all([seeds.stays for seeds in hiding])
    messages, later = take_edges(partition, stays), [seeds.with_val for seeds in hiding if seeds.with_val is not None]
    test_messages = take_edges(partition, _in_all(later)) if later else None
    for name, edges in found.items():
        left_out = {}
        if configs[name].task.hides_edges:
            first = edges.seeds.stays
            left_out = {number: of.among(stays[number][first[number]]) for number, of in edges.seeds.edges.items()}
        excluded = _exclusion(configs[name], edges.seeds, left_out)
        found[name] = replace(edges, messages=messages, excluded=excluded, test_messages=test_messages)
    return found, messages, test_messages


def _in_all(masks: list[Masks]) -> Masks:
    """Mask the edges that all masks of their relation have."""
    found: Masks = {}
    for each in masks:
        for number, mask in each.items():
            found[number] = mask & found.get(number, True)
    return found


def _exclusion(config: StaticConfig, seeds: LinkSeeds, left_out: dict[int, HiddenEdges]) -> Exclusion | None:
    return Exclusion(left_out, seeds.pools["train"].total, config.train.batch_size) if left_out else None


def _read_edges(
    config: StaticConfig, partition: GraphPartition, world: World, channel: Channel, edge_types: int,
    with_test: bool = True,
) -> EdgesToLearn:  # fmt: skip
    """Collective. Read the edges of a task as ``find_edges_to_learn`` does; all edges carry messages."""
    task = config.task
    with together(world, "choose the relation"):
        relation = split_relation(partition, task.relation, "task.relation")
        name, columns = partition.relations[relation].name, partition.edges[relation].columns
        types = _edge_types(columns.get("rel"), name, task)
        check_seed_time([*columns, *partition.unread[relation]], config.sampling.time_column, f"relation {name}")
    edge_types = max(edge_types, *world.allgather(types))
    further, labeled = {}, np.ones(len(partition.edges[relation].src), bool)
    if task.kind != LINK:
        with together(world, "read the labels"):
            further = _label_columns(partition, relation, task)
        labeled = is_known(further["label"])
    reverse = task.reverse if config.sends_messages else task.reverse or NONE  # without messages none is ever seen
    with_val = with_test and config.eval.message_edges != TRAINING and task.hides_edges
    seeds = make_link_seeds(partition, relation, reverse, task.is_typed, world, channel, further, labeled, with_val)
    has_split = partition.edges[relation].columns["split"] >= 0
    num_unlabeled = int(world.total(int((has_split & ~labeled).sum())))
    return EdgesToLearn(relation, edge_types, seeds, partition, None, num_unlabeled, None)


def _label_columns(partition: GraphPartition, relation: int, task: OneTaskConfig) -> dict[str, np.ndarray]:
    """Read the columns [m, ...] that seeds of a task on labels have. Raises ValueError."""
    name, columns = partition.relations[relation].name, partition.edges[relation].columns
    if task.kind == EDGE_REGRESSION:
        refuse_words(partition.words.get(f"edges/{name}/label", []), f"the label of {name}")
    found = {"label": edge_labels(columns, name, task.kind == EDGE_REGRESSION, task.classes)}
    for column in task.edge_columns:
        if column not in columns:
            there = ", ".join(sorted({*columns, *partition.unread[relation]})) or "none"
            raise ValueError(f"task.edge_columns: relation {name} has no column {column}; it has {there}")
        encoding, values = partition.edge_encoding(relation, column), columns[column]
        values = values if encoding is None else encoding.decode(values)
        if values.dtype.kind not in "iufb" or not np.isfinite(values).all():
            raise ValueError(f"task.edge_columns: column {column} of {name} must hold finite numbers")
        found[column] = values
    return found


def _edge_types(rel: np.ndarray | None, name: str, task: OneTaskConfig) -> int:
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
