"""Answers of runs on links: scores of pairs, and the best answers, which are for each source the destinations, or for
each destination the sources, that score highest among all nodes.

A query is the end that is given, an answer the end that is found. n nodes of a type at this rank, m pairs, Q queries, k
answers of each at most, Z width of embeddings.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.book import Book
from hpcgnn.graph.original_ids import OriginalIds
from hpcgnn.loop.answer_file import AnswerColumns, answer_with, text
from hpcgnn.loop.launch import on_first_rank
from hpcgnn.loop.question_file import AskedEdges, find_nodes, id_column, read_edges
from hpcgnn.loop.session import Session
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.task.ranking import Candidates

AT_ONCE = 1 << 14  # queries whose rows, and answers, all ranks hold at once


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """One end of the links of a run. column: "src" or "dst"; kind: number of its node type; ids [n]: original ids of
    this rank's nodes; row_id [n] int64: their rows in the graph file; embedding [n, Z]. is_candidate [n] bool: marks
    the possible answers, None: all."""

    column: str
    kind: int
    ids: np.ndarray
    row_id: np.ndarray
    embedding: torch.Tensor
    is_candidate: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class LinkEnds:
    """The nodes that links are between, and their decoder. query, answer: the ends that are given and found, or source
    and destination; edge_types: number of edge types and their names, 1 without types. known: the edges to leave out of
    the answers, None for none. rank: finds the best answers of queries [Q], entries of ``ranking.BEST``, alike on all
    ranks, in place of a decoder that takes more than two embeddings. score_of: changes the decoder's scores into the
    scores of the file."""

    book: Book
    query: LinkEnd
    answer: LinkEnd
    decoder: Any
    world: World
    channel: Channel
    edge_types: tuple[int, list[str]] = (1, [])
    known: KnownAnswers | None = None
    rank: Callable[[np.ndarray, int], np.ndarray] | None = None
    score_of: Callable[[np.ndarray], np.ndarray] = np.asarray

    def find(self, path: str, end: LinkEnd, names: list[str]) -> np.ndarray:
        """Collective. Find the global ids [n] of an end's nodes that a file names. Raises DistributedError."""
        kind = self.book.node_types[end.kind]
        ids = OriginalIds(self.book, kind, end.ids, self.world)
        return find_nodes(path, end.column, names, [kind] * len(names), lambda _: ids, self.world)


@dataclass(slots=True)
class LinkQueries:
    """The queries, alike on all ranks. node [Q] global ids, edge_type [Q]; name [Q] and rel [Q] as written in the file,
    rel None without edge types."""

    node: np.ndarray
    edge_type: np.ndarray
    name: np.ndarray
    rel: np.ndarray | None = None


def check_queries(arguments: Namespace) -> None:
    """Raise ValueError for arguments of ``hpcgnn.predict`` about queries that do not fit each other."""
    if arguments.top_k < 0:
        raise ValueError(f"--top_k must be above 0, got {arguments.top_k}")
    if (arguments.sources or arguments.destinations or arguments.new_only) and not arguments.top_k:
        raise ValueError("--sources, --destinations and --new_only are for --top_k: leave them out")
    if arguments.sources and arguments.destinations:
        raise ValueError("give --sources, for their best destinations, or --destinations, for their best sources")


def answer_best(links_of: Callable[[str, bool], LinkEnds], arguments: Namespace, session: Session) -> None:
    """Collective. Write the best answers that the arguments of ``hpcgnn.predict`` ask for. links_of: collective, makes
    the links for the column of the given end, and whether known edges are left out."""
    given = "dst" if arguments.destinations else "src"
    found = links_of(given, arguments.new_only)
    answers = best_answers(found, arguments.top_k, arguments.destinations or arguments.sources)
    answer_with(arguments.out, answers, "best sources" if given == "dst" else "best destinations", session)


@torch.no_grad()
def best_answers(links: LinkEnds, count: int, path: str = "") -> AnswerColumns:
    """Collective. Find the ``count`` answers that score highest for each query. Columns are the query (src or dst), rel
    where there are edge types, place from 1, the answer, and its score. path: CSV of the queries, and their edge types;
    empty: all nodes at the query's end. Of equal scores the node that the graph file has first comes first.

    Raises DistributedError for queries that the graph does not have, and for scores that are not finite.
    """
    query, answer, world, channel = links.query, links.answer, links.world, links.channel
    queries, candidates, pieces = _queries(links, path), _candidates(links), []
    for begin in range(0, len(queries.node), AT_ONCE):
        world.working("best answers", begin)
        part = slice(begin, begin + AT_ONCE)
        if links.rank is not None:
            best = links.rank(queries.node[part], count)
        else:
            rows = _pull(links, query, queries.node[part])
            best = candidates.best(
                links.decoder, answer.embedding, rows, queries.node[part],
                queries.edge_type[part], answer.row_id, count, world, channel, answer.is_candidate,
            )  # fmt: skip
        best["number"] += begin
        pieces.append(best[best["number"] % world.size == world.rank])
    return _columns(links, queries, np.concatenate(pieces))


@torch.no_grad()
def score_pairs(
    links: LinkEnds, pairs: AskedEdges, at_once: int, columns_of: Callable[[Any, Any, Any], dict[str, np.ndarray]]
) -> AnswerColumns:  # fmt: skip
    """Collective. Answer each pair of a file from the embeddings of its ends, ``at_once`` pairs per rank in a step.
    Columns are src and dst, rel where there are edge types, and the columns of ``columns_of``, which takes source and
    destination embeddings [m, Z] and the edge type [m].

    Raises DistributedError for nodes that the graph does not have.
    """
    world, count = links.world, len(pairs.src)
    ends = {end.column: end for end in (links.query, links.answer)}
    nodes = {name: links.find(pairs.path, end, getattr(pairs, name)) for name, end in ends.items()}
    rel = np.zeros(count, np.int64) if pairs.rel is None else pairs.rel
    rows, answers, size = [], [], at_once * world.size
    for begin in range(0, max(1, count), size):
        world.working("score the pairs", begin)
        own = np.arange(begin + world.rank, min(begin + size, count), world.size)
        source, destination = (_pull(links, ends[name], nodes[name][own]) for name in ("src", "dst"))
        answers.append(columns_of(source, destination, torch.from_numpy(rel[own]).to(source.device)))
        rows.append(own)
    own = np.concatenate(rows)
    columns = {"src": id_column(pairs.src)[own], "dst": id_column(pairs.dst)[own]}
    if pairs.rel is not None:
        columns["rel"] = (rel if pairs.rel_text is None else id_column(pairs.rel_text))[own]
    columns |= {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}
    return AnswerColumns(own, count, columns)


def _pull(links: LinkEnds, end: LinkEnd, nodes: np.ndarray) -> torch.Tensor:
    """Collective. Bring the embeddings [m, Z] of nodes [m] of an end, global ids."""
    ids, place = np.unique(nodes, return_inverse=True)
    route = Route.plan(links.book.of_type(end.kind), ids, links.channel).to(end.embedding.device)
    (rows,) = route.pull(end.embedding)
    return rows[torch.from_numpy(place)]


def _candidates(links: LinkEnds) -> Candidates:
    """Make the candidates at the answer's end, which leave out known edges."""
    ownership, known = links.book.of_type(links.answer.kind), links.known
    if known is None:
        nothing = np.empty(0, np.int64)
        known = KnownAnswers(ownership, links.world.rank, nothing, nothing, nothing)
    return Candidates(known, int(np.diff(ownership.starts).max(initial=1)), reverse=links.query.column == "dst")


def _queries(links: LinkEnds, path: str) -> LinkQueries:
    """Collective. Read the queries of a file, or take all nodes at the query's end."""
    world, end, (types, words) = links.world, links.query, links.edge_types
    if not path:
        with together(world, "find the queries"):
            if types > 1:
                raise ValueError(f"--top_k: the run has edge types: name a CSV with the columns {end.column} and rel")
        first = int(links.book.of_type(end.kind).starts[world.rank])
        pieces = world.allgather((end.row_id, first + np.arange(len(end.ids)), text(end.ids)))
        row, node, name = (np.concatenate(found) for found in zip(*pieces, strict=True))
        order = np.argsort(row)
        return LinkQueries(node[order], np.zeros(len(node), np.int64), name[order])

    def read() -> AskedEdges:
        return read_edges(path, types, words, ends=(end.column,))

    asked = on_first_rank(world, "read the queries", read)
    names = getattr(asked, end.column)
    node = links.find(path, end, names)
    if asked.rel is None:
        return LinkQueries(node, np.zeros(len(node), np.int64), id_column(names))
    return LinkQueries(node, asked.rel, id_column(names), id_column(asked.rel_text or []))


def _columns(links: LinkEnds, queries: LinkQueries, best: np.ndarray) -> AnswerColumns:
    """Collective. Name this rank's answers, entries of ``ranking.BEST``; a query may have fewer than it asks for."""
    _, first, size = np.unique(best["number"], return_index=True, return_counts=True)
    place = np.arange(len(best)) - np.repeat(first, size)
    sizes = links.world.reduce_array(np.bincount(best["number"], minlength=len(queries.node)))
    columns = {links.query.column: queries.name[best["number"]]}
    if queries.rel is not None:
        columns["rel"] = queries.rel[best["number"]]
    columns |= {"place": place + 1, links.answer.column: names_of(links, links.answer, best["node"])}
    columns["score"] = links.score_of(best["score"])
    return AnswerColumns((np.cumsum(sizes) - sizes)[best["number"]] + place, int(sizes.sum()), columns)


def names_of(links: LinkEnds, end: LinkEnd, node: np.ndarray) -> np.ndarray:
    """Collective. Fetch the original ids of nodes [m] of an end, global ids, from their owners."""
    ids, is_text = end.ids, end.ids.dtype.kind == "S"
    width = int(links.world.reduce_array(np.array([ids.dtype.itemsize if is_text else 0]), "max")[0])
    if is_text:
        table = torch.from_numpy(ids.astype(f"S{width}").view(np.uint8).reshape(len(ids), width).copy())
    else:
        table = torch.from_numpy(ids.astype(np.int64))
    wanted, place = np.unique(node, return_inverse=True)
    (rows,) = Route.plan(links.book.of_type(end.kind), wanted, links.channel).pull(table)
    found = np.ascontiguousarray(rows.numpy())
    return text(found.reshape(-1).view(f"S{width}"))[place] if is_text else found[place]
