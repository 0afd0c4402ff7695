"""Predicts, exactly, all nodes of the type that a run on a static graph learned, or pairs of nodes as links.

Files name nodes by their original ids. n nodes of a rank, N of all ranks, m pairs of a rank, C classes, W width.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.graph.original_ids import OriginalIds
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.loop.answer_file import AnswerColumns, answer_with, text
from hpcgnn.loop.launch import on_first_rank
from hpcgnn.loop.question_file import find_nodes, id_column, read_rows
from hpcgnn.loop.session import Session
from hpcgnn.static.config import LINK, SHARDED, StaticConfig
from hpcgnn.static.inference import infer, last_rows
from hpcgnn.static.step import DESTINATION
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.task.ranking import Candidates

QUERIES_AT_ONCE = 1 << 14  # sources whose rows, and answers, all ranks hold at once


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
    if (arguments.sources or arguments.new_only) and not arguments.top_k:
        raise ValueError("--sources and --new_only are for --top_k: leave them out")
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
        answers = best_answers(session, arguments.top_k, arguments.sources, arguments.new_only)
        answer_with(arguments.out, answers, "best destinations", world)
    elif config.task.kind == LINK:
        answer_with(arguments.out, embed_ends(session), "nodes", world)
    else:
        what = "nodes, their class and " + ("rows before the output layer" if arguments.embeddings else "outputs")
        answer_with(arguments.out, predict_nodes(session, arguments.embeddings), what, world)


def predict_nodes(session: Session, embeddings: bool = False) -> AnswerColumns:
    """Collective. Predict, in a run on labels, the nodes of this rank: original id (the row where the graph has none),
    predicted class (not where a node may have several labels; as a word and as class_id, its number, where the labels
    were made of words), and outputs [n, C], or, with ``embeddings``, the rows [n, W] before the output layer. Raises
    DistributedError for embeddings that the model does not have."""
    partition, kind = session.partition, session.goal.node_type
    nodes, base = partition.of_type(kind), partition.book.type_base()
    name, values = "output", infer(session)[nodes]
    classes = values.argmax(dim=1).cpu().numpy()
    if embeddings:
        name, values = "embedding", last_rows(session, hops=embedding_hops(session))[nodes]
    columns = {"node": text(_ids(partition, kind))}
    if not session.goal.several:
        columns |= _class_columns(classes, partition.words.get(f"nodes/{partition.types[kind]}/label", []))
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
    """Collective. Embed, in a run on links, this rank's nodes of the types that the relation is between, type by type:
    original id (the row where the graph has none), type where there are two, and the rows [n, W] that are scored."""
    partition, learned, outputs = session.partition, session.goal.learned, infer(session)
    kinds, base = sorted({learned.src_type, learned.dst_type}), partition.book.type_base()
    rows, total = [], 0
    for kind in kinds:
        rows.append(partition.flat_row[partition.of_type(kind)] - base[kind] + total)
        total += int(base[kind + 1] - base[kind])
    columns = {"node": np.concatenate([text(_ids(partition, kind)) for kind in kinds])}
    if len(kinds) > 1:
        columns["type"] = np.repeat(np.array(partition.types)[kinds], list(map(len, rows)))
    columns["embedding"] = np.concatenate([outputs[partition.of_type(kind)].cpu().numpy() for kind in kinds])
    row = np.concatenate(rows)
    order = np.argsort(row)
    return AnswerColumns(row[order], total, {name: column[order] for name, column in columns.items()})


def _ids(partition: GraphPartition, kind: int) -> np.ndarray:
    """Return the original ids [n] of this rank's nodes of a type, or their rows where the graph has none."""
    row = partition.flat_row[partition.of_type(kind)] - partition.book.type_base()[kind]
    return partition.columns[kind].get("id", row)


@dataclass(slots=True)
class AskedEdges:
    """The rows of a pairs file: src, dst original ids as text, rel int64 their edge types, None without any, and
    rel_text, as the file has them."""

    path: str
    src: list[str]
    dst: list[str]
    rel: np.ndarray | None = None
    rel_text: list[str] | None = None


def read_pairs(
    path: str, edge_types: int = 1, words: list[str] | Any = (), ends: tuple[str, ...] = ("src", "dst")
) -> AskedEdges:
    """Read a CSV with columns src, dst (some of them, ``ends``) and, where there are several edge types, rel: by word,
    where the types were made of ``words``, or, where no word is spelled so, by number. Raises ValueError naming file
    and row for a missing column, or for what is no edge type."""
    rows = read_rows(path, (*ends, "rel") if edge_types > 1 else ends)
    src, dst = ([row[column].strip() for row in rows] if column in ends else [] for column in ("src", "dst"))
    if edge_types == 1:
        return AskedEdges(path, src, dst)
    numbers = {str(number): number for number in range(edge_types)}
    numbers |= {word: number for number, word in enumerate(words)}
    rel = [row["rel"].strip() for row in rows]
    for number, kind in enumerate(rel, 1):
        if kind not in numbers:
            by_word = f", or by name, such as {words[0]}" if words else ""
            raise ValueError(
                f"{path}: row {number}: rel {kind!r} is no edge type: the graph numbers them from 0 to {edge_types - 1}"
                f"{by_word}"
            )
    return AskedEdges(path, src, dst, np.array([numbers[kind] for kind in rel], np.int64), rel)


@torch.no_grad()
def score_pairs(session: Session, pairs: AskedEdges) -> AnswerColumns:
    """Collective. Compute what the decoder says of each pair, as exact evaluation does for edges (score [m])."""
    partition, world, learned, count = session.partition, session.world, session.goal.learned, len(pairs.src)

    def ids_of(kind: str) -> OriginalIds:
        return OriginalIds(partition.book, kind, _ids(partition, partition.type_of(kind)), world)

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


def edge_types_of(session: Session) -> tuple[int, list[str]]:
    """Return the number of edge types that the decoder tells apart, and their names, where the graph has them."""
    goal = session.goal
    names = list(session.partition.words.get(f"edges/{goal.learned.name}/rel", []))
    return (goal.num_edge_types, names) if session.config.task.is_typed else (1, [])


@torch.no_grad()
def best_answers(session: Session, count: int, sources: str = "", new_only: bool = False) -> AnswerColumns:
    """Collective. Find the ``count`` destinations of all nodes that score highest for each source, as exact evaluation
    scores them: src, rel where there are edge types, place from 1, dst and score. sources: CSV of the sources, and
    their edge types; empty: all nodes, with the only edge type. new_only: without the destinations that a source has an
    edge to, in any split; the run is open with eval.ranking filtered then. Of equal scores the destination that the
    graph file has first comes first.

    Raises DistributedError for sources that the graph does not have.
    """
    partition, world, learned = session.partition, session.world, session.goal.learned
    query, edge_type, names, rel_text = _sources(session, sources)
    kind, book, nothing = learned.dst_type, partition.book, np.empty(0, np.int64)
    candidates = session.goal.candidates.get(DESTINATION) if new_only else None
    if candidates is None:
        unknown = KnownAnswers(book.of_type(kind), world.rank, nothing, nothing, nothing)
        candidates = Candidates(unknown, int(np.diff(book.of_type(kind).starts).max(initial=1)), reverse=False)
    outputs, decoder = infer(session), session.model.decoder
    own = partition.of_type(kind)
    row_id = partition.flat_row[own] - book.type_base()[kind]
    columns: list[dict[str, np.ndarray]] = []
    for begin in range(0, len(query), QUERIES_AT_ONCE):
        world.working("best destinations", begin)
        part = slice(begin, begin + QUERIES_AT_ONCE)
        ids, place = np.unique(query[part], return_inverse=True)
        (rows,) = Route.plan(book, ids, session.graph.channel).to(outputs.device).pull(outputs)
        rows = rows[torch.from_numpy(place)]
        best = candidates.best(
            decoder, outputs[own], rows, query[part], edge_type[part], row_id, count, session.graph.channel
        )
        mine = best[best["number"] % world.size == world.rank]
        columns.append({"number": mine["number"] + begin, "score": mine["score"], "node": mine["node"],
                        "place": _places(mine["number"])})  # fmt: skip
    return _best_columns(session, columns, names, rel_text, count)


def _sources(session: Session, path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Collective. Return the sources (global ids) and edge types that answers are wanted for, on all ranks alike, and
    their names and edge types as text."""
    partition, world, learned = session.partition, session.world, session.goal.learned
    types, words = edge_types_of(session)
    ids = _ids(partition, learned.src_type)
    if not path:
        with together(world, "find the sources"):
            if types > 1:
                raise ValueError("--top_k needs --sources, a CSV with the columns src and rel: this run has edge types")
        rows = partition.flat_row[partition.of_type(learned.src_type)] - partition.book.type_base()[learned.src_type]
        pieces = world.allgather((rows, partition.global_ids(learned.src_type), text(ids)))
        row, query, names = (np.concatenate(column) for column in zip(*pieces, strict=True))
        order = np.argsort(row)
        return query[order], np.zeros(len(query), np.int64), names[order], None
    asked = on_first_rank(world, "read the sources", lambda: read_pairs(path, types, words, ends=("src",)))
    known = OriginalIds(partition.book, partition.types[learned.src_type], ids, world)
    kinds = [partition.types[learned.src_type]] * len(asked.src)
    query = find_nodes(path, "src", asked.src, kinds, lambda _: known, world)
    edge_type = np.zeros(len(query), np.int64) if asked.rel is None else asked.rel
    return query, edge_type, id_column(asked.src), None if asked.rel_text is None else id_column(asked.rel_text)


def _places(number: np.ndarray) -> np.ndarray:
    """Number the entries of each query from 1; number [m], increasing."""
    _, first, size = np.unique(number, return_index=True, return_counts=True)
    return np.arange(len(number)) - np.repeat(first, size) + 1


def _best_columns(session: Session, pieces: list[dict], names: np.ndarray, rel_text, count: int) -> AnswerColumns:
    """Collective. Name the destinations, and put the answers of a rank into columns; a source may have fewer answers
    than ``count``."""
    world, kind = session.world, session.goal.learned.dst_type
    found = {name: np.concatenate([piece[name] for piece in pieces] or [np.empty(0, np.int64)])
             for name in ("number", "score", "node", "place")}  # fmt: skip
    sizes = world.reduce_array(np.bincount(found["number"], minlength=len(names)))
    row = (np.cumsum(sizes) - sizes)[found["number"]] + found["place"] - 1
    columns = {"src": names[found["number"]]}
    if rel_text is not None:
        columns["rel"] = rel_text[found["number"]]
    ids = names_of_nodes(session, kind, found["node"])
    return AnswerColumns(
        row, int(sizes.sum()), columns | {"place": found["place"], "dst": ids, "score": found["score"]}
    )


def names_of_nodes(session: Session, kind: int, node: np.ndarray) -> np.ndarray:
    """Collective. Fetch the original ids of nodes [n] of a type, global ids, from their owners."""
    ids = _ids(session.partition, kind)
    is_text = ids.dtype.kind == "S"
    width = session.world.reduce_array(np.array([ids.dtype.itemsize if is_text else 0]), "max")[0]
    if is_text:
        table = torch.from_numpy(ids.astype(f"S{width}").view(np.uint8).reshape(len(ids), width).copy())
    else:
        table = torch.from_numpy(ids.astype(np.int64))
    wanted, place = np.unique(node, return_inverse=True)
    (rows,) = Route.plan(session.partition.book.of_type(kind), wanted, session.graph.channel).pull(table)
    found = np.ascontiguousarray(rows.numpy())
    return text(found.reshape(-1).view(f"S{width}"))[place] if is_text else found[place]
