"""Predictions for every node at the last snapshots, with the graph's original ids.

n nodes of this rank, C outputs, W columns of the rows that an output layer reads.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.comm.together import together
from hpcgnn.graph.original_ids import OriginalIds
from hpcgnn.loop import links
from hpcgnn.loop.answer_file import AnswerColumns, answer_with, class_columns, refuse_probabilities, text
from hpcgnn.loop.links import ALL, LinkEnd, LinkEnds, answer_best, answer_edge_types, check_queries
from hpcgnn.loop.question_file import Named, Questions, read_edges
from hpcgnn.loop.session import Session
from hpcgnn.loop.source_times import DATES, NUMBERS, date_texts
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.snapshots.goals import EDGE, NODE, REGRESSION
from hpcgnn.snapshots.graph import TYPE
from hpcgnn.snapshots.link_goal import scorer_of
from hpcgnn.snapshots.neighborhood import reversed_edges
from hpcgnn.snapshots.pairs import answers_of
from hpcgnn.snapshots.schema import CLASSES, EDGE_CLASSES, EDGE_NAMES
from hpcgnn.snapshots.session import follow
from hpcgnn.task.config import LINK

OF_NODES = (REGRESSION, NODE)  # tasks whose outputs are of nodes
NODE_TYPE = "type"  # column of the nodes that holds their types
PAIRS = 1 << 14  # that a rank answers at once


def check(arguments: Namespace, config: SnapshotConfig) -> SnapshotConfig:
    """Return the configuration that ``hpcgnn.predict`` opens a run with. Raises ValueError for arguments of other
    kinds."""
    if arguments.nodes:
        raise ValueError("--nodes is not for snapshot graphs, whose runs predict for all nodes: leave it out")
    kind, of_nodes = config.task.kind, config.task.kind in OF_NODES
    if of_nodes and arguments.pairs:
        raise ValueError(f"--pairs is for runs on links or edges; this one has task.kind {kind}: leave it out")
    of_types = bool(arguments.pairs) and config.task.is_typed  # edge types of pairs are ranked, and no nodes
    ranks_links = arguments.top_k > 0 and kind == LINK and not of_types
    if not of_nodes and sum([bool(arguments.pairs), arguments.embeddings, ranks_links]) != 1:
        raise ValueError(f"this run has task.kind {kind}: give one of --pairs, --top_k and --embeddings")
    if arguments.snapshots != 1 and not (of_nodes or arguments.embeddings):
        raise ValueError("--snapshots: --pairs and --top_k are about the time after the last snapshot: leave it out")
    of_classes = (kind == NODE and not arguments.embeddings) or (kind == EDGE and bool(arguments.pairs))
    check_queries(arguments, kind == LINK, of_classes)
    if arguments.known != ALL:
        raise ValueError(
            "--known: splits are of snapshots, and --new_only leaves out edges of the last one: leave it out"
        )
    scored = config.task.loss if kind == LINK and not arguments.embeddings else ""
    refuse_probabilities(arguments, of_classes, scored)
    return config


def answer(session: Session, arguments: Namespace) -> None:
    """Collective. Write the predictions for all nodes, or their embeddings, at the last snapshots; or, of links and
    edges, for pairs or the best answers, ``task.horizon`` snapshots after the last one."""
    out, kind = arguments.out, session.config.task.kind
    if arguments.top_k and kind == LINK and arguments.pairs:
        answers = score_pairs(session, read_pairs(session, arguments.pairs, (1, [])), every_type=True)
        answer_edge_types(answers, edge_types_of(session), arguments, session)
        return
    if arguments.top_k and kind == LINK:
        answer_best(partial(links_of, session), arguments, session)
        return
    best, probabilities = arguments.top_k, arguments.probabilities or arguments.top_k > 0
    if arguments.pairs:
        pairs = read_pairs(session, arguments.pairs)
        classes = session.schema.values[EDGE_CLASSES]
        answer_with(out, score_pairs(session, pairs, probabilities), "pairs", session, classes, best)
        return
    nodes = forecast_nodes(session, arguments.snapshots, probabilities, arguments.embeddings, arguments.times)
    answer_with(out, nodes, "nodes", session, session.schema.values[CLASSES], best)


def links_of(session: Session, given: str = "src", known: str = "") -> LinkEnds:
    """Collective. Compute the outputs of all nodes at the last snapshot, as ends of links. given: the end of queries,
    "src" or "dst"; known: edges to leave out, of the last snapshot; empty: none."""
    partition, world, channel = session.partition, session.world, session.graph.channel
    *_, (number, last) = forecast(session)
    decoder, outputs = scorer_of(getattr(session.model, "decoder", None), last)
    ids = original_ids(partition)
    ends = [LinkEnd(column, 0, ids, partition.flat_row, outputs) for column in ("src", "dst")]
    query, answer = ends if given == "src" else ends[::-1]
    left_out = None
    if known:
        edges = partition.edges_at(number, (TYPE,) if session.goal.num_edge_types else ())
        edges = edges if given == "src" else reversed_edges(edges, partition, channel)
        left_out = answers_of(edges, partition)
    edge_types, add = edge_types_of(session), session.goal.adder(number) if session.config.task.kind == LINK else None
    return LinkEnds(partition.book, query, answer, decoder, world, channel, edge_types, left_out, add=add)


def edge_types_of(session: Session) -> tuple[int, list[str]]:
    """Return the number of edge types that the decoder distinguishes, and their names, where the graph has them."""
    return max(1, session.goal.num_edge_types), list(session.schema.values[EDGE_NAMES])


def read_pairs(session: Session, path: str, edge_types: tuple[int, list[str]] | None = None) -> Questions:
    """Collective. Read this rank's share of a file of pairs. edge_types: number and names of those that it tells, where
    it does not tell those of the run. Raises DistributedError naming file and row for a missing
    column, an unknown node or no edge type."""
    partition = session.partition
    ids = partial(OriginalIds, partition.book, ids=original_ids(partition), world=session.world)
    named = Named(partition.book.node_types[:1], ids)
    return read_edges(path, {"src": named, "dst": named}, session.world, *(edge_types or edge_types_of(session)))


def original_ids(partition: Any) -> np.ndarray:
    """Return the original ids [n] of this rank's nodes, or their rows where the graph has none."""
    return partition.columns.get("id", partition.flat_row)


def score_pairs(
    session: Session, pairs: Questions, probabilities: bool = False, every_type: bool = False
) -> AnswerColumns:  # fmt: skip
    """Collective. Answer each pair at the snapshot of the prediction: a score of a link, or, with ``every_type``, of
    each edge type [m, R], the class of an edge with its outputs, or its number."""
    model, classes, ends = session.model, session.schema.values[EDGE_CLASSES], links_of(session)
    if ends.add is not None:
        pairs.value["numbers"] = _added_to(ends, session, pairs, every_type)

    def columns_of(
        source: torch.Tensor, destination: torch.Tensor, relation: torch.Tensor, numbers: torch.Tensor
    ) -> dict[str, np.ndarray]:
        if every_type:
            found = links.score_edge_types(ends.decoder, source, destination, session.goal.num_edge_types)["score"]
            return {"score": found if ends.add is None else found + numbers.cpu().numpy()}
        if session.config.task.kind == LINK:
            score = ends.decoder(source, destination, relation).cpu().numpy()
            added = 0.0 if ends.add is None else numbers[:, 0].cpu().numpy()
            return links.score_column(score + added, probabilities)
        output = model.head(torch.cat([source, destination], dim=1)).cpu().numpy()
        if session.config.task.kind == EDGE:
            return class_columns(output, classes, probabilities)
        return {"output": output[:, 0]}

    return links.score_pairs(ends, pairs, PAIRS, columns_of)


def _added_to(ends: Any, session: Session, pairs: Questions, every_type: bool) -> np.ndarray:
    """Collective. Compute what is added to the decoder's scores of pairs: [m, 1] or, for every edge type, [m, R]."""
    source, destination = (pairs.node[name] for name in ("src", "dst"))
    own, add = pairs.value.get("rel", np.zeros(len(source), np.int64)), ends.add
    types = range(session.goal.num_edge_types) if every_type else [None]
    columns = [own if number is None else np.full(len(source), number) for number in types]
    return np.stack([add.to_pairs(source, kind, destination, ends.channel) for kind in columns], axis=1)


def forecast(session: Session) -> Iterator[tuple[int, torch.Tensor]]:
    """Collective. Yield snapshots and the model's outputs [n, C] there, from the first one after training to the
    graph's last; a state that is carried on must be that after training. Where splits begin without state, from the
    first one of training."""
    if session.forgets:
        session.memory.reset()
    yield from follow(session, range(_first(session), session.partition.num_snapshots))


def _first(session: Session) -> int:
    """The first snapshot that can be predicted from."""
    snapshots = session.loaders["train"].snapshots
    return snapshots.start if session.forgets else snapshots.stop


def forecast_nodes(
    session: Session, last: int, probabilities: bool = False, embeddings: bool = False, times: str = DATES
) -> AnswerColumns:  # fmt: skip
    """Collective. Return the model's outputs for every node at each of the ``last`` snapshots, as the columns of
    ``_named``, or, with ``embeddings``, the rows [n, W] that its output layer reads, as columns ``embedding_number``.
    Snapshots are named by their dates, or, with ``times`` "numbers" or without dates, by their numbers. Further columns
    are the node's original id (its row where the graph has none), and its type where the graph has several.

    Raises DistributedError for more snapshots than follow the training snapshots, or, where splits are of nodes, than
    there are from the first training snapshot on; and for a custom model without an output layer that is known.
    """
    partition = session.partition
    most = partition.num_snapshots - _first(session)
    with together(session.world, "predict"):
        if most < 1:
            raise ValueError("no snapshot follows the training snapshots: train with data.test_snapshots above 0")
        if not 1 <= last <= most:
            which = "from the first of training on" if session.forgets else "after those of training"
            raise ValueError(f"--snapshots must be 1 to {most}, the snapshots {which}; got {last}")
    columns = {"node": text(original_ids(partition))}
    if NODE_TYPE in partition.names and NODE_TYPE in partition.columns:
        columns[NODE_TYPE] = np.array(partition.names[NODE_TYPE])[partition.columns[NODE_TYPE]]
    name, ends_before = partial(_name, session, times), embeddings and session.config.task.kind in OF_NODES
    with _without_output_layer(session) if ends_before else nullcontext():
        for number, rows in forecast(session):
            if number < partition.num_snapshots - last:
                continue
            if embeddings:
                columns[f"embedding_{name(number)}"] = scorer_of(None, rows)[1].cpu().numpy()
            else:
                outputs = session.goal.in_units(rows, number).cpu().numpy()
                columns |= _named(session, number, outputs, probabilities, name)
    order = np.argsort(partition.flat_row)
    columns = {name: column[order] for name, column in columns.items()}
    return AnswerColumns(partition.flat_row[order], partition.book.num_nodes, columns)


def _name(session: Session, times: str, number: int) -> str:
    """Name a snapshot, which may be after the last one, by its date or its number."""
    clock = session.partition.clock
    if not clock or times == NUMBERS:
        return str(number)
    date = np.array([clock["first"] + number * clock["step"]], np.int64).view("M8[s]")
    return str(date_texts(date, clock["zone"])[0])


@contextmanager
def _without_output_layer(session: Session) -> Iterator[None]:
    """Let the model of a run on labels of nodes end before its output layer. Raises DistributedError, on all ranks, for
    a custom model without one."""
    model, class_path = session.model, session.config.model.class_path
    with together(session.world, "find the embeddings"):
        if not isinstance(getattr(model, "output", None), nn.Module):
            raise ValueError(
                f"--embeddings: model.class_path {class_path} has no module output, its last layer, which reads the "
                "embeddings: name this layer output, or leave --embeddings out"
            )
    layer, model.output = model.output, nn.Identity()
    try:
        yield
    finally:
        model.output = layer


def _named(
    session: Session, number: int, outputs: np.ndarray, probabilities: bool, name: Callable[[int], str] = str
) -> dict[str, np.ndarray]:
    """Name the outputs [n, C] at a snapshot after the snapshot t that they are for: of numbers ``snapshot_t``, of
    several steps ``snapshot_t_from_number``, numbers as in the source; of classes ``class_t``, by name where the graph
    has them, and outputs ``snapshot_t`` [n, C]. name: of a snapshot."""
    task, target = session.config.task, number + session.config.task.horizon
    if task.kind == NODE:
        columns = class_columns(outputs, session.schema.values[CLASSES], probabilities)
        names = {"class": "class", "class_id": "class_id", "output": "snapshot", "probability": "probability"}
        return {f"{names[column]}_{name(target)}": values for column, values in columns.items()}
    steps = np.split(outputs, task.forecast_steps, axis=1)
    of = f"_from_{name(number)}" if task.forecast_steps > 1 else ""
    single = steps[0].shape[1] == 1
    return {f"snapshot_{name(target + step)}{of}": rows[:, 0] if single else rows for step, rows in enumerate(steps)}
