"""Predicts, exactly, all nodes of the type that a run on a static graph learned, or pairs of nodes as edges.

Files name nodes by their original ids. n nodes of a rank, N of all ranks, m pairs of a rank, C classes, W width.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcgnn.comm.together import together
from hpcgnn.graph.original_ids import OriginalIds
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.loop import links
from hpcgnn.loop.answer_file import AnswerColumns, answer_with, class_columns, refuse_probabilities, text
from hpcgnn.loop.links import ALL, LinkEnd, LinkEnds, answer_best, answer_edge_types, check_queries
from hpcgnn.loop.question_file import Named, Questions, read_edges, read_questions, read_times
from hpcgnn.loop.session import Session
from hpcgnn.loop.source_times import DATES, TimeUnit
from hpcgnn.static import sampled
from hpcgnn.static.config import EDGE_CLASSES, GIVEN, LINK, NODE, REGRESSION, SHARDED, StaticConfig
from hpcgnn.static.given_negatives import original_ids
from hpcgnn.static.goals import pull_outputs
from hpcgnn.static.inference import check_layers, last_rows
from hpcgnn.static.model.edge_index import JoinedModel
from hpcgnn.static.model.models import GraphModel
from hpcgnn.static.sampling.times import NO_LIMIT, as_ticks, is_floating, zone_of_times
from hpcgnn.static.schema import CLASSES, NAMES, WIDTHS
from hpcgnn.static.step import DESTINATION, SOURCE, label_edges
from hpcgnn.static.tasks import one_task

if TYPE_CHECKING:  # pyarrow takes a second to load
    import pyarrow as pa


# Columns of answers about nodes, in words.
WRITTEN = {
    "class": "class", "output": "outputs", "probability": "probabilities", "embedding": "rows before the output layer",
}  # fmt: skip


def check(arguments: Namespace, config: StaticConfig) -> StaticConfig:
    """Return the configuration that ``hpcgnn.predict`` opens a run with. Raises ValueError for arguments of other
    kinds."""
    if arguments.snapshots != 1:
        raise ValueError("--snapshots is for runs on snapshots: leave it out")
    task = config.of_task(arguments.task).task
    kind = task.kind
    if arguments.nodes and task.of_edges:
        raise ValueError("--nodes is for runs that learned labels of nodes; this one learned edges: leave it out")
    if not task.of_edges and arguments.pairs:
        raise ValueError("--pairs is for runs that learned edges; this one predicts labels of all nodes: leave it out")
    asked = [bool(arguments.pairs), arguments.embeddings]
    ranks = arguments.top_k > 0 and not (task.is_typed and arguments.pairs)  # nodes, and no edge types of pairs
    if kind == LINK and sum([*asked, ranks]) != 1:
        raise ValueError(
            "this run learned links: give one of --pairs, to score pairs of nodes, --top_k and --embeddings"
        )
    if kind != LINK and task.of_edges and sum(asked) != 1:
        raise ValueError(
            "this run learned labels of edges: give --pairs, to label pairs of nodes, or --embeddings of the nodes"
        )
    if arguments.embeddings and config.model.by_query:
        raise ValueError(f"--embeddings: nodes have none with model.kind {config.model.kind}, but states of queries")
    of_classes = kind in (NODE, EDGE_CLASSES) and not arguments.embeddings
    check_queries(arguments, kind == LINK, of_classes)
    refuse_probabilities(arguments, of_classes, task.loss if kind == LINK and not arguments.embeddings else "")
    if timed := config.sampling.time_column:
        _check_timed(arguments, config, timed)
    if config.eval.ranking in GIVEN:
        config = replace(config, eval=replace(config.eval, ranking="", negatives_file="", exact=True))
    if arguments.new_only:  # what is known is looked up as this ranking does
        if arguments.known != ALL and arguments.destinations:
            raise ValueError(
                f"--known {arguments.known} is for the best destinations, which eval.ranking destinations ranks: leave "
                "--destinations out, or leave out edges of all splits"
            )
        of_all = arguments.known == ALL
        config = replace(config, eval=replace(config.eval, ranking="filtered" if of_all else "destinations"))
    return replace(config, sampling=replace(config.sampling, topology=SHARDED))  # nothing is sampled


def _check_timed(arguments: Namespace, config: StaticConfig, column: str) -> None:
    """Raise ValueError for answers that no sampled neighbors give."""
    problem = ""
    if arguments.new_only:
        problem = "--new_only finds known edges as eval.ranking filtered does"
    elif arguments.embeddings and not config.task.of_edges:
        problem = "--embeddings of a run on labels of nodes are computed once for every node"
    if problem:
        raise ValueError(f"{problem}, which a run with sampling.time_column {column} does not: leave it out")


def answer(session: Session, arguments: Namespace) -> None:
    """Collective. Write classes and outputs, or embeddings, of all nodes of the learned type; or scores or labels of
    pairs, or embeddings of all nodes that the learned relation is between."""
    session = one_task(session, arguments.task)
    config, classes = session.config, session.schema.values.get(CLASSES, [])
    best, probabilities = arguments.top_k, arguments.probabilities or arguments.top_k > 0
    if arguments.pairs and best and config.task.kind == LINK:
        pairs = read_pairs(session, arguments.pairs, (1, []))
        answers = score_pairs(session, pairs, times=arguments.times, every_type=True)
        answer_edge_types(answers, edge_types_of(session), arguments, session)
    elif arguments.pairs:
        pairs, what = read_pairs(session, arguments.pairs), "scores" if config.task.kind == LINK else "pairs"
        answers = score_pairs(session, pairs, probabilities, arguments.times)
        answer_with(arguments.out, answers, what, session, classes, best)
    elif arguments.top_k and config.task.kind == LINK:
        answer_best(partial(links_of, session), arguments, session)
    elif config.task.of_edges:
        answer_with(arguments.out, embed_ends(session), "nodes", session)
    else:
        answers = predict_nodes(session, arguments.embeddings, probabilities, arguments.nodes)
        kinds = [words for name, words in WRITTEN.items() if name in answers.columns]
        answer_with(arguments.out, answers, f"nodes, their {' and '.join(kinds)}", session, classes, best)


@torch.no_grad()
def predict_nodes(
    session: Session, embeddings: bool = False, probabilities: bool = False, path: str = ""
) -> AnswerColumns:  # fmt: skip
    """Collective. Predict, in a run on labels, all nodes of the learned type, or the ones that a file names in its
    column node. Columns are the original id (the row where the graph has none), the predicted class, and outputs [n,
    C], or ``probabilities``, or, with ``embeddings``, the rows [n, W] before the output layer or the head. Where labels
    were made from words, the class is a word, and class_id its number; where a node may have several labels, or a
    number, there is no class. Raises DistributedError for embeddings that the model does not have, and for unknown
    nodes."""
    partition, kind = session.partition, session.goal.node_type
    nodes, base, asked = partition.of_type(kind), partition.book.type_base(), None
    if path:
        asked = read_questions(path, {"node": _named(session, kind)}, session.world)
    tables = [sampled.outputs(session)]
    if embeddings:  # of several tasks: what the heads read
        is_shared = session.config.task.shares_model
        tables.append(tables[0] if is_shared else rows_before_output(session))
    if asked is None:
        tables = [rows[nodes] for rows in tables]
    else:
        tables = [pull_outputs(rows, [asked.node["node"]], session.graph)[0] for rows in tables]
    output = session.goal.head(tables[0]).cpu().numpy()
    if session.config.task.kind == REGRESSION:
        answers = {"output": output[:, 0]}
    else:
        answers = class_columns(output, session.schema.values[CLASSES], probabilities, session.goal.several)
    if embeddings:
        del answers["output"]
        answers["embedding"] = tables[1].cpu().numpy()
    if asked is not None:
        return AnswerColumns(asked.row, asked.total, {"node": asked.shown["node"], **answers})
    columns = {"node": text(original_ids(partition, kind)), **answers}
    row = partition.flat_row[nodes] - base[kind]
    order = np.argsort(row)
    total = int(base[kind + 1] - base[kind])
    return AnswerColumns(row[order], total, {name: column[order] for name, column in columns.items()})


def rows_before_output(session: Session) -> torch.Tensor:
    """Collective. Compute the rows [n, W] of all local nodes that the output layer of a model of labels reads. Raises
    DistributedError, on all ranks, for a model that has none."""
    check_layers(session.model, session.config)
    hops, model = getattr(session.model, "embedding_hops", None), session.config.model
    name = f"model.class_path {model.class_path}" if model.class_path else f"model.kind {model.kind}"
    with together(session.world, "find the embeddings"):
        if hops is None and model.class_path:
            raise ValueError(
                f"--embeddings: {name} does not say by embedding_hops after how many "
                "steps its rows are embeddings: add it, or leave --embeddings out"
            )
        if hops is None:
            raise ValueError(
                f"--embeddings: {name} has no output layer, so no rows before it: leave --embeddings "
                "out; the outputs of nodes are their rows"
            )
        if hops < 1:
            raise ValueError(
                f"--embeddings: {name} of one layer has no rows between its input and its outputs: "
                "leave --embeddings out, or train with model.residual true or more model.layers"
            )
    rows = last_rows(session, hops=hops)
    return session.model.embedded(rows) if isinstance(session.model, (GraphModel, JoinedModel)) else rows


def embed_ends(session: Session) -> AnswerColumns:
    """Collective. Embed, in a run on edges, this rank's nodes of the relation's source and destination types, type by
    type. Columns are the original id (the row where the graph has none), the type where there are two, and the rows [n,
    W] that links are scored, or edges labeled, by."""
    partition, learned, outputs = session.partition, session.goal.learned, sampled.outputs(session)
    kinds, base = sorted({learned.src_type, learned.dst_type}), partition.book.type_base()
    rows, total = [], 0
    for kind in kinds:
        rows.append(partition.flat_row[partition.of_type(kind)] - base[kind] + total)
        total += int(base[kind + 1] - base[kind])
    columns = {"node": np.concatenate([text(original_ids(partition, kind)) for kind in kinds])}
    if len(kinds) > 1:
        columns["type"] = np.repeat(np.array(partition.types)[kinds], list(map(len, rows)))
    columns["embedding"] = np.concatenate([outputs[partition.of_type(kind)].cpu().numpy() for kind in kinds])
    row = np.concatenate(rows)
    order = np.argsort(row)
    return AnswerColumns(row[order], total, {name: column[order] for name, column in columns.items()})


def links_of(session: Session, given: str = "src", known: str = "") -> LinkEnds:
    """Collective. Compute the embeddings of the ends of the learned relation. given: the end of queries, "src" or
    "dst"; known: edges to leave out, of all splits if the run is open with eval.ranking filtered, and of training with
    destinations; empty: none."""
    partition, learned, outputs = session.partition, session.goal.learned, sampled.outputs(session)

    def end(column: str, kind: int) -> LinkEnd:
        row_id = partition.flat_row[partition.of_type(kind)] - partition.book.type_base()[kind]
        return LinkEnd(column, kind, original_ids(partition, kind), row_id, outputs[partition.of_type(kind)])

    ends = [end("src", learned.src_type), end("dst", learned.dst_type)]
    query, answer = ends if given == "src" else ends[::-1]
    left_out = session.goal.candidates[DESTINATION if given == "src" else SOURCE].known if known else None
    return LinkEnds(
        partition.book, query, answer, session.goal.head, session.world, session.graph.channel,
        edge_types_of(session), left_out,
    )  # fmt: skip


def read_pairs(session: Session, path: str, edge_types: tuple[int, list[str]] | None = None) -> Questions:
    """Collective. Read this rank's share of a file of pairs: edge types for links, or the columns ``task.edge_columns``
    for labels of edges, of several numbers as name_0, name_1, ... edge_types: number and names of those that it tells,
    where it does not tell those of the run. Raises DistributedError naming file and row for a
    missing column, an unknown node, no edge type or no number."""
    learned = session.goal.learned
    ends = {"src": _named(session, learned.src_type), "dst": _named(session, learned.dst_type)}
    widths = session.schema.values.get(WIDTHS, {})
    names = [[name] if width == 1 else [f"{name}_{at}" for at in range(width)] for name, width in widths.items()]
    timed = session.config.sampling.time_column
    times = partial(_read_times, session.partition, timed) if timed else None
    further = list(chain.from_iterable(names))
    types = edge_types or edge_types_of(session)
    return read_edges(path, ends, session.world, *types, further=further, times=times)


def _read_times(partition: GraphPartition, column: str, path: str, first: int, text: pa.Array) -> np.ndarray:
    """Read times [b], in the unit of the graph's ``column``, as ticks; NO_LIMIT where there is none. Raises ValueError
    naming file and row."""
    real = is_floating(partition, column)

    def tick(time: Decimal) -> int:
        value = float(time) if real else int(time.to_integral_value(ROUND_FLOOR))
        return int(as_ticks(partition, column, np.array([value]))[0])

    most = sys.float_info.max if real else NO_LIMIT
    return read_times(path, first, text, NO_LIMIT, TimeUnit(zone=zone_of_times(partition, column)), tick, most)


def _shown(session: Session, pairs: Questions, form: str) -> dict[str, Any]:
    """Collective. Return the columns of a file of pairs, with times as dates, or as numbers, where the graph's times
    come from dates; not known (NaT, NaN) where there is none."""
    columns, column = dict(pairs.shown), session.config.sampling.time_column
    if "time" not in columns or not zone_of_times(session.partition, column):
        return columns
    times, missing = pairs.value["time"], pairs.value["time"] == NO_LIMIT
    if form == DATES:
        times = np.where(missing, np.iinfo(np.int64).min, times).view("M8[s]")
    elif session.world.any(bool(missing.any())):
        times = np.where(missing, np.nan, times)
    return columns | {"time": times}


def _named(session: Session, kind: int) -> Named:
    """Return the names of the nodes of a type in files."""
    partition = session.partition
    ids = partial(OriginalIds, partition.book, ids=original_ids(partition, kind), world=session.world)
    return Named([partition.types[kind]], ids)


def score_pairs(
    session: Session, pairs: Questions, probabilities: bool = False, times: str = DATES, every_type: bool = False
) -> AnswerColumns:  # fmt: skip
    """Collective. Compute for each pair the decoder's score [m] of a link, the class of an edge with its outputs [m,
    C], or its number, as exact evaluation does for edges; in a run with times as its evaluation does. times: form of
    the pairs' times, as for ``TimeUnit.shown``; every_type: of links, a score for each edge type [m, R]."""
    task, decoder, values = session.config.task, session.goal.head, session.schema.values

    def columns_of(
        source: torch.Tensor, destination: torch.Tensor, relation: torch.Tensor, numbers: torch.Tensor
    ) -> dict[str, np.ndarray]:
        if every_type:
            return links.score_edge_types(decoder, source, destination, session.goal.num_edge_types)
        if task.kind == LINK:
            return links.score_column(decoder(source, destination, relation).cpu().numpy(), probabilities)
        output = label_edges(decoder, (source, destination), [numbers]).cpu().numpy()
        if task.kind == EDGE_CLASSES:
            return class_columns(output, values[CLASSES], probabilities)
        return {"output": output[:, 0]}

    if timed := session.config.sampling.time_column:
        ends, count = sampled.pair_ends(session, pairs), len(pairs.row)
        further = pairs.value.get("rel", np.zeros(count, np.int64)), pairs.value.get("numbers", np.empty((count, 0)))
        with torch.no_grad():
            answers = columns_of(*ends, *(torch.from_numpy(column).to(ends[0].device) for column in further))
        shown, zone = _shown(session, pairs, times), zone_of_times(session.partition, timed)
        return AnswerColumns(pairs.row, pairs.total, shown | answers, zone=zone)
    return links.score_pairs(links_of(session), pairs, session.config.eval.nodes_per_pass, columns_of)


def edge_types_of(session: Session) -> tuple[int, list[str]]:
    """Return the number of edge types that the decoder distinguishes, and their names, where the graph has them."""
    names = list(session.schema.values[NAMES])
    return (session.goal.num_edge_types, names) if session.config.task.is_typed else (1, [])
