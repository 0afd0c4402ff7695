"""Predicts, exactly, all nodes of the type that a run on a static graph learned, or pairs of nodes as links.

Files name nodes by their original ids. n nodes of a rank, N of all ranks, m pairs of a rank, C classes, W width.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

import numpy as np
import torch

from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.graph.original_ids import OriginalIds
from hpcgnn.loop.answer_file import AnswerColumns, answer_with, text
from hpcgnn.loop.launch import on_first_rank
from hpcgnn.loop.question_file import find_nodes, id_column
from hpcgnn.loop.session import Session
from hpcgnn.static.best import best_answers
from hpcgnn.static.config import LINK, SHARDED, StaticConfig
from hpcgnn.static.inference import infer, last_rows
from hpcgnn.static.predict_ids import AskedEdges, edge_types_of, original_ids, read_pairs
from hpcgnn.static.schema import CLASSES
from hpcgnn.static.step import DESTINATION, SOURCE


def check(arguments: Namespace, config: StaticConfig) -> StaticConfig:
    """Return the configuration that ``hpcgnn.predict`` opens a run with. Raises ValueError for arguments of other
    kinds."""
    if arguments.snapshots != 1:
        raise ValueError("--snapshots is for runs on snapshots: leave it out")
    if arguments.nodes:
        raise ValueError("--nodes is for runs on temporal graphs; this one answers for all nodes: leave it out")
    if config.task.kind != LINK and arguments.pairs:
        raise ValueError("--pairs is for runs that learned links; this one predicts labels of all nodes: leave it out")
    asked = [bool(arguments.pairs), arguments.embeddings, arguments.top_k > 0]
    if config.task.kind == LINK and sum(asked) != 1:
        raise ValueError(
            "this run learned links: give one of --pairs, to score pairs of nodes, --top_k and --embeddings"
        )
    if arguments.top_k < 0 or (config.task.kind != LINK and arguments.top_k):
        raise ValueError("--top_k is a number above 0, of runs that learned links")
    if (arguments.sources or arguments.destinations or arguments.new_only) and not arguments.top_k:
        raise ValueError("--sources, --destinations and --new_only are for --top_k: leave them out")
    if arguments.sources and arguments.destinations:
        raise ValueError("give --sources, for their best destinations, or --destinations, for their best sources")
    if arguments.new_only:  # what is known is looked up as this ranking does
        config = replace(config, eval=replace(config.eval, ranking="filtered"))
    return replace(config, sampling=replace(config.sampling, topology=SHARDED))  # nothing is sampled


def answer(session: Session, arguments: Namespace) -> None:
    """Collective. Write classes and outputs, or embeddings, of all nodes of the learned type; or scores of pairs, or
    embeddings of all nodes that the learned relation is between."""
    config, world = session.config, session.world
    if arguments.pairs:
        types, words = edge_types_of(session)
        pairs = on_first_rank(world, "read the pairs", lambda: read_pairs(arguments.pairs, types, words))
        answer_with(arguments.out, score_pairs(session, pairs), "scores", world)
    elif arguments.top_k:
        path, end = arguments.destinations or arguments.sources, SOURCE if arguments.destinations else DESTINATION
        answers = best_answers(session, arguments.top_k, path, end, arguments.new_only)
        answer_with(arguments.out, answers, f"best {'destinations' if end == DESTINATION else 'sources'}", world)
    elif config.task.kind == LINK:
        answer_with(arguments.out, embed_ends(session), "nodes", world)
    else:
        what = "nodes, their class and " + ("rows before the output layer" if arguments.embeddings else "outputs")
        answer_with(arguments.out, predict_nodes(session, arguments.embeddings), what, world)


def predict_nodes(session: Session, embeddings: bool = False) -> AnswerColumns:
    """Collective. Predict, in a run on labels, the nodes of this rank. Columns are the original id (the row where the
    graph has none), the predicted class, and outputs [n, C], or, with ``embeddings``, the rows [n, W] before the output
    layer. Where labels were made from words, the class is a word, and class_id its number; where a node may have
    several labels, there is no class. Raises DistributedError for embeddings that the model does not have."""
    partition, kind = session.partition, session.goal.node_type
    nodes, base = partition.of_type(kind), partition.book.type_base()
    name, values = "output", infer(session)[nodes]
    classes = values.argmax(dim=1).cpu().numpy()
    if embeddings:
        name, values = "embedding", last_rows(session, hops=embedding_hops(session))[nodes]
    columns = {"node": text(original_ids(partition, kind))}
    if not session.goal.several:
        columns |= _class_columns(classes, session.schema.values[CLASSES])
    columns |= {name: values.cpu().numpy()}
    row = partition.flat_row[nodes] - base[kind]
    order = np.argsort(row)
    total = int(base[kind + 1] - base[kind])
    return AnswerColumns(row[order], total, {name: column[order] for name, column in columns.items()})


def _class_columns(classes: np.ndarray, words: list[str]) -> dict[str, np.ndarray]:
    """Make columns of predicted classes [n]; words: what they stand for, where the labels were made of words."""
    if not words:
        return {"class": classes}
    numbers = map(str, range(len(words), 1 + max(len(words), classes.max(initial=0))))
    return {"class": np.array([*words, *numbers])[classes], "class_id": classes}


def embedding_hops(session: Session) -> int:
    """Return after how many steps the rows of a model of labels are embeddings: before its output layer. Raises
    DistributedError, on all ranks, for a model that has none."""
    hops, model = getattr(session.model, "embedding_hops", None), session.config.model
    with together(session.world, "find the embeddings"):
        if hops is None:
            raise ValueError(
                f"--embeddings: model.class_path {model.class_path} does not say by embedding_hops after how many "
                "steps its rows are embeddings: add it, or leave --embeddings out"
            )
        if hops < 1:
            raise ValueError(
                f"--embeddings: model.kind {model.kind} of one layer has no rows between its input and its outputs: "
                "leave --embeddings out, or train with model.residual true or more model.layers"
            )
    return hops


def embed_ends(session: Session) -> AnswerColumns:
    """Collective. Embed, in a run on links, this rank's nodes of the relation's source and destination types, type by
    type. Columns are the original id (the row where the graph has none), the type where there are two, and the rows [n,
    W] that are scored."""
    partition, learned, outputs = session.partition, session.goal.learned, infer(session)
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


@torch.no_grad()
def score_pairs(session: Session, pairs: AskedEdges) -> AnswerColumns:
    """Collective. Compute the decoder's score of each pair, as exact evaluation does for edges (score [m])."""
    partition, world, learned, count = session.partition, session.world, session.goal.learned, len(pairs.src)

    def ids_of(kind: str) -> OriginalIds:
        return OriginalIds(partition.book, kind, original_ids(partition, partition.type_of(kind)), world)

    src, dst = (
        find_nodes(pairs.path, name, names, [partition.types[kind]] * count, ids_of, world)
        for name, names, kind in (("src", pairs.src, learned.src_type), ("dst", pairs.dst, learned.dst_type))
    )
    outputs, decoder, size = infer(session), session.model.decoder, session.config.eval.nodes_per_pass * world.size
    rel = np.zeros(count, np.int64) if pairs.rel is None else pairs.rel
    rows, scores = [], []
    for begin in range(0, max(1, count), size):
        world.working("score the pairs", begin)
        own = np.arange(begin + world.rank, min(begin + size, count), world.size)
        ids, place = np.unique(np.concatenate([src[own], dst[own]]), return_inverse=True)
        (pulled,) = Route.plan(partition.book, ids, session.graph.channel).to(outputs.device).pull(outputs)
        source, destination = pulled[torch.from_numpy(place)].chunk(2)
        scores.append(decoder(source, destination, torch.from_numpy(rel[own]).to(outputs.device)).cpu().numpy())
        rows.append(own)
    own = np.concatenate(rows)
    columns = {"src": id_column(pairs.src)[own], "dst": id_column(pairs.dst)[own]}
    if pairs.rel is not None:
        columns["rel"] = (rel if pairs.rel_text is None else id_column(pairs.rel_text))[own]
    return AnswerColumns(own, count, columns | {"score": np.concatenate(scores)})
