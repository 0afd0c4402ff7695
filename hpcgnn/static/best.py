"""Finds the best answers of a run on links of a static graph: of each source the destinations, or of each destination
the sources, that score highest among all nodes.

A query is the end that is given, an answer the end that is found. Q queries, k answers of each at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.graph.original_ids import OriginalIds
from hpcgnn.loop.answer_file import AnswerColumns, text
from hpcgnn.loop.launch import on_first_rank
from hpcgnn.loop.question_file import find_nodes, id_column
from hpcgnn.loop.session import Session
from hpcgnn.static.inference import infer
from hpcgnn.static.predict_ids import edge_types_of, original_ids, read_pairs
from hpcgnn.static.step import DESTINATION, SOURCE
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.task.ranking import Candidates

AT_ONCE = 1 << 14  # queries whose rows, and answers, all ranks hold at once
ENDS = {SOURCE: "src", DESTINATION: "dst"}


@dataclass(slots=True)
class Queries:
    """node [Q] global ids, edge_type [Q]; name [Q] and rel [Q] as they were written, rel None without edge types. Alike
    on all ranks."""

    node: np.ndarray
    edge_type: np.ndarray
    name: np.ndarray
    rel: np.ndarray | None = None


@torch.no_grad()
def best_answers(
    session: Session, count: int, path: str = "", end: int = DESTINATION, new_only: bool = False
) -> AnswerColumns:
    """Collective. Find the ``count`` nodes at an ``end`` that score highest for each query, with the scores of exact
    evaluation. Columns are the query (src or dst), rel where there are edge types, place from 1, the answer, and its
    score. path: CSV of the queries, and their edge types; empty: all nodes at the other end. new_only: without the
    answers that a query has an edge to, in any split; the run is open with eval.ranking filtered then. Of equal scores
    the node that the graph file has first comes first.

    Raises DistributedError for queries that the graph does not have.
    """
    partition, channel = session.partition, session.graph.channel
    queries, kind = _queries(session, path, 1 - end), _type_of(session, end)
    candidates = session.goal.candidates[end] if new_only else _all_nodes(session, kind, end)
    outputs, own = infer(session), partition.of_type(kind)
    row_id, pieces = partition.flat_row[own] - partition.book.type_base()[kind], []
    for begin in range(0, len(queries.node), AT_ONCE):
        session.world.working("best answers", begin)
        part = slice(begin, begin + AT_ONCE)
        ids, place = np.unique(queries.node[part], return_inverse=True)
        (rows,) = Route.plan(partition.book, ids, channel).to(outputs.device).pull(outputs)
        best = candidates.best(
            session.model.decoder, outputs[own], rows[torch.from_numpy(place)], queries.node[part],
            queries.edge_type[part], row_id, count, channel,
        )  # fmt: skip
        best["number"] += begin
        pieces.append(best[best["number"] % session.world.size == session.world.rank])
    return _columns(session, queries, np.concatenate(pieces), end)


def _type_of(session: Session, end: int) -> int:
    learned = session.goal.learned
    return (learned.src_type, learned.dst_type)[end]


def _all_nodes(session: Session, kind: int, end: int) -> Candidates:
    """Make candidates of which none is known."""
    ownership, nothing = session.partition.book.of_type(kind), np.empty(0, np.int64)
    unknown = KnownAnswers(ownership, session.world.rank, nothing, nothing, nothing)
    return Candidates(unknown, int(np.diff(ownership.starts).max(initial=1)), reverse=end == SOURCE)


def _queries(session: Session, path: str, end: int) -> Queries:
    """Collective. Read the queries of a file, or take all nodes at an end."""
    partition, world, kind, column = session.partition, session.world, _type_of(session, end), ENDS[end]
    (types, words), ids = edge_types_of(session), original_ids(partition, kind)
    if not path:
        with together(world, "find the queries"):
            if types > 1:
                raise ValueError(f"--top_k: the run has edge types: name a CSV with the columns {column} and rel")
        row = partition.flat_row[partition.of_type(kind)] - partition.book.type_base()[kind]
        pieces = world.allgather((row, partition.global_ids(kind), text(ids)))
        row, node, name = (np.concatenate(found) for found in zip(*pieces, strict=True))
        order = np.argsort(row)
        return Queries(node[order], np.zeros(len(node), np.int64), name[order])
    asked = on_first_rank(world, "read the queries", lambda: read_pairs(path, types, words, ends=(column,)))
    names, known = getattr(asked, column), OriginalIds(partition.book, partition.types[kind], ids, world)
    node = find_nodes(path, column, names, [partition.types[kind]] * len(names), lambda _: known, world)
    if asked.rel is None:
        return Queries(node, np.zeros(len(node), np.int64), id_column(names))
    return Queries(node, asked.rel, id_column(names), id_column(asked.rel_text or []))


def _columns(session: Session, queries: Queries, best: np.ndarray, end: int) -> AnswerColumns:
    """Collective. Name this rank's answers, entries of ``ranking.BEST``; a query may have fewer than it asks for."""
    _, first, size = np.unique(best["number"], return_index=True, return_counts=True)
    place = np.arange(len(best)) - np.repeat(first, size)
    sizes = session.world.reduce_array(np.bincount(best["number"], minlength=len(queries.node)))
    columns = {ENDS[1 - end]: queries.name[best["number"]]}
    if queries.rel is not None:
        columns["rel"] = queries.rel[best["number"]]
    columns |= {"place": place + 1, ENDS[end]: names_of(session, _type_of(session, end), best["node"])}
    return AnswerColumns(
        (np.cumsum(sizes) - sizes)[best["number"]] + place, int(sizes.sum()), columns | {"score": best["score"]}
    )


def names_of(session: Session, kind: int, node: np.ndarray) -> np.ndarray:
    """Collective. Fetch the original ids of nodes [n] of a type, global ids, from their owners."""
    ids, world = original_ids(session.partition, kind), session.world
    is_text = ids.dtype.kind == "S"
    width = int(world.reduce_array(np.array([ids.dtype.itemsize if is_text else 0]), "max")[0])
    if is_text:
        table = torch.from_numpy(ids.astype(f"S{width}").view(np.uint8).reshape(len(ids), width).copy())
    else:
        table = torch.from_numpy(ids.astype(np.int64))
    wanted, place = np.unique(node, return_inverse=True)
    (rows,) = Route.plan(session.partition.book.of_type(kind), wanted, session.graph.channel).pull(table)
    found = np.ascontiguousarray(rows.numpy())
    return text(found.reshape(-1).view(f"S{width}"))[place] if is_text else found[place]
