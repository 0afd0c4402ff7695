"""Answers of runs on links: scores of pairs, and the best answers, which are for each source the destinations, for each
destination the sources, that score highest among all nodes, or for each pair the edge types that do.

A query is the end that is given, an answer the end that is found. n nodes of a type at this rank, m pairs, Q queries, k
answers of each at most, R edge types, Z width of embeddings.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.choices import check_choice
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.book import Book
from hpcgnn.graph.directory import places_of
from hpcgnn.graph.original_ids import OriginalIds
from hpcgnn.loop.answer_file import AnswerColumns, answer_with, largest, logistic, text
from hpcgnn.loop.question_file import Named, Questions, read_edges
from hpcgnn.loop.session import Session
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.task.ranking import AddToScores, Candidates

ALL, TRAIN = "all", "train"  # known edges that answers leave out
AT_ONCE = 1 << 14  # queries whose rows, and answers, all ranks hold at once
# An answer. query: place of its query among this rank's; row: in the file of answers; place: among the query's, from 1.
PLACED = np.dtype([(name, np.int64) for name in ("query", "row", "place", "node")] + [("score", np.float64)])


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
    ranks, in place of a decoder that takes more than two embeddings. add: changes the decoder's scores of all nodes;
    score_of: makes scores of the file from scores."""

    book: Book
    query: LinkEnd
    answer: LinkEnd
    decoder: Any
    world: World
    channel: Channel
    edge_types: tuple[int, list[str]] = (1, [])
    known: KnownAnswers | None = None
    rank: Callable[[np.ndarray, int], np.ndarray] | None = None
    add: AddToScores | None = None
    score_of: Callable[[np.ndarray], np.ndarray] = np.asarray

    @property
    def is_of_one_type(self) -> bool:
        """Whether both ends have one node type: a query is then no answer to itself."""
        return self.query.kind == self.answer.kind

    def named(self, end: LinkEnd) -> Named:
        """Return the names of an end's nodes in files."""
        kind = self.book.node_types[end.kind]
        return Named([kind], lambda _: OriginalIds(self.book, kind, end.ids, self.world))


def check_queries(arguments: Namespace, of_links: bool, of_classes: bool) -> None:
    """Raise ValueError for arguments of ``hpcgnn.predict`` about queries that do not fit each other, or the run.
    of_links: the run learned links; of_classes: the answers are classes, the best of which ``--top_k`` chooses."""
    if arguments.top_k < 0:
        raise ValueError(f"--top_k must be above 0, got {arguments.top_k}")
    if arguments.top_k and not (of_links or of_classes):
        raise ValueError(
            "--top_k is for runs on links, and for classes, which this command does not write for this run: leave it "
            "out"
        )
    if of_classes and (arguments.sources or arguments.destinations or arguments.new_only):
        raise ValueError(
            "--sources, --destinations and --new_only are for --top_k of runs on links: here it chooses classes: leave "
            "them out"
        )
    if (arguments.sources or arguments.destinations or arguments.new_only) and not arguments.top_k:
        raise ValueError("--sources, --destinations and --new_only are for --top_k: leave them out")
    if of_links and arguments.pairs and (arguments.sources or arguments.destinations or arguments.new_only):
        raise ValueError(
            "--sources, --destinations and --new_only are for the best nodes, and --pairs with --top_k finds the best "
            "edge types: leave them out"
        )
    check_choice("--known", arguments.known, (ALL, TRAIN))
    if arguments.known != ALL and not arguments.new_only:
        raise ValueError(f"--known {arguments.known} is for --new_only: give it, too, or leave --known out")
    if arguments.sources and arguments.destinations:
        raise ValueError("give --sources, for their best destinations, or --destinations, for their best sources")


def score_column(score: np.ndarray, probabilities: bool) -> dict[str, np.ndarray]:
    """Name the decoder's scores [m]; with ``probabilities``, name their logistic function."""
    return {"probability": logistic(score)} if probabilities else {"score": score}


def score_edge_types(
    decoder: Any, source: torch.Tensor, destination: torch.Tensor, types: int
) -> dict[str, np.ndarray]:  # fmt: skip
    """Score pairs of embeddings [m, Z] as edges of each type: score [m, R]."""
    relations = (torch.full((len(source),), number, device=source.device) for number in range(types))
    return {"score": torch.stack([decoder(source, destination, each) for each in relations], 1).cpu().numpy()}


def answer_edge_types(
    answers: AnswerColumns, edge_types: tuple[int, list[str]], arguments: Namespace, session: Session
) -> None:  # fmt: skip
    """Collective. Write the edge types that score highest for each pair, one a row, the best first; of equal scores the
    lower number comes first. answers: columns that name the pairs, and score [m, R]; edge_types: number and names."""
    types, words = edge_types
    question = {name: column for name, column in answers.columns.items() if name != "score"}
    best = answers.placed(question, min(arguments.top_k, types))
    number, score = largest(answers.columns["score"], arguments.top_k)
    best.columns["rel"] = np.array([*words, *map(str, range(len(words), types))])[number] if words else number
    best.columns.update(score_column(score, arguments.probabilities))
    answer_with(arguments.out, best, "best edge types", session)


def answer_best(links_of: Callable[[str, str], LinkEnds], arguments: Namespace, session: Session) -> None:
    """Collective. Write the best answers that the arguments of ``hpcgnn.predict`` ask for. links_of: collective, makes
    the links for the column of the given end, and which known edges are left out: ALL, TRAIN or, empty, none."""
    given = "dst" if arguments.destinations else "src"
    found = links_of(given, arguments.known if arguments.new_only else "")
    answers = best_answers(found, arguments.top_k, arguments.destinations or arguments.sources, arguments.probabilities)
    answer_with(arguments.out, answers, "best sources" if given == "dst" else "best destinations", session)


@torch.no_grad()
def best_answers(links: LinkEnds, count: int, path: str = "", probabilities: bool = False) -> AnswerColumns:
    """Collective. Find the ``count`` answers that score highest for each query. Columns are the query (src or dst), rel
    where there are edge types, place from 1, the answer, and its score. A query is no answer to itself. path: CSV of
    the queries, and their edge types; empty: all nodes at the query's end. Of equal scores the node that the graph file
    has first comes first. probabilities: write these in place of scores.

    Raises DistributedError for queries that the graph does not have, and for scores that are not finite.
    """
    queries = _queries(links, path)
    best, total = _best(links, queries, count)
    columns = {name: column.take(best["query"]) for name, column in queries.shown.items()}
    columns |= _answer_columns(links, best, probabilities)
    return AnswerColumns(best["row"], total, columns)


@torch.no_grad()
def best_of_relations(
    links_of: Callable[[int], LinkEnds], queries: Questions, count: int, probabilities: bool, num_relations: int
) -> AnswerColumns:  # fmt: skip
    """Collective. Find the best answers of queries that are each about one relation, the value "rel", whose ends have
    separate node types. Columns are as in ``best_answers``, in order of the queries. links_of: collective, makes
    the links of a relation.

    Raises DistributedError for scores that are not finite.
    """
    pieces, own = [], queries.value["rel"]
    # All ranks take the relations in one order: each is collective.
    for number in range(num_relations):
        chosen = np.flatnonzero(own == number)
        links = links_of(number)
        row, total = places_of(queries.row[chosen], max(1, queries.total), links.world, links.channel)
        nodes = {name: node[chosen] for name, node in queries.node.items()}
        best, _ = _best(links, Questions(queries.path, row, total, nodes, {}, {}), count)
        pieces.append({"query": chosen[best["query"]], **_answer_columns(links, best, probabilities)})
    columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    order = np.lexsort((columns["place"], columns["query"]))
    columns = {name: column[order] for name, column in columns.items()}
    query = columns.pop("query")
    key = queries.row[query] * count + columns["place"] - 1
    row, total = places_of(key, max(1, queries.total * count), links.world, links.channel)
    return AnswerColumns(row, total, {name: column.take(query) for name, column in queries.shown.items()} | columns)


def _best(links: LinkEnds, queries: Questions, count: int) -> tuple[np.ndarray, int]:
    """Collective. Find the best answers of all ranks' queries: entries of ``PLACED`` about this rank's, and the number
    of all."""
    query, answer, world, channel = links.query, links.answer, links.world, links.channel
    candidates, pieces, total = _candidates(links), [np.empty(0, PLACED)], 0
    for begin in range(0, queries.total, AT_ONCE):
        world.working("best answers", begin)
        own = slice(*np.searchsorted(queries.row, (begin, begin + AT_ONCE)))
        node, edge_type = _alike(queries, own, query.column, world)
        if links.rank is not None:
            best = links.rank(node, count)
        else:
            rows = _pull(links, query, node)
            best = candidates.best(
                links.decoder, answer.embedding, rows, node, edge_type, answer.row_id, count, world, channel,
                answer.is_candidate, links.is_of_one_type,
            )  # fmt: skip
        holds = np.full(len(node), -1)
        holds[queries.row[own] - begin] = np.arange(own.start, own.stop)
        pieces.append(_placed(best, holds, total))
        total += len(best)
    return np.concatenate(pieces), total


def _alike(queries: Questions, own: slice, column: str, world: World) -> tuple[np.ndarray, np.ndarray]:
    """Collective. Bring the nodes and edge types of all ranks' queries in a range of rows, in order of row."""
    edge_type = queries.value.get("rel", np.zeros(len(queries.row), np.int64))
    pieces = world.allgather((queries.row[own], queries.node[column][own], edge_type[own]))
    row, node, edge_type = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    order = np.argsort(row)
    return node[order], edge_type[order]


def _placed(best: np.ndarray, holds: np.ndarray, first: int) -> np.ndarray:
    """Choose the entries of ``ranking.BEST`` about queries that this rank holds, as entries of ``PLACED``. holds: place
    of each query among this rank's, or -1; first: row of the first entry in the file of answers."""
    _, begin, size = np.unique(best["number"], return_index=True, return_counts=True)
    own = holds[best["number"]] >= 0
    placed = np.empty(np.count_nonzero(own), PLACED)
    placed["query"], placed["row"] = holds[best["number"]][own], first + np.flatnonzero(own)
    placed["place"] = (1 + np.arange(len(best)) - np.repeat(begin, size))[own]
    placed["node"], placed["score"] = best["node"][own], best["score"][own]
    return placed


@torch.no_grad()
def score_pairs(
    links: LinkEnds, pairs: Questions, at_once: int, columns_of: Callable[[Any, Any, Any, Any], dict[str, np.ndarray]]
) -> AnswerColumns:  # fmt: skip
    """Collective. Answer each pair of a file from the embeddings of its ends, ``at_once`` pairs per rank in a step.
    Columns are src and dst, rel where there are edge types, and the columns of ``columns_of``, which takes source and
    destination embeddings [m, Z], the edge type [m] and the pairs' numbers [m, F] float64."""
    world, answers, count = links.world, [], len(pairs.row)
    ends = {end.column: end for end in (links.query, links.answer)}
    rel = pairs.value.get("rel", np.zeros(count, np.int64))
    numbers = pairs.value.get("numbers", np.empty((count, 0)))
    most = int(world.reduce_array(np.array([count]), "max")[0])
    for begin in range(0, max(1, most), at_once):
        world.working("score the pairs", begin)
        own = slice(begin, begin + at_once)
        source, destination = (_pull(links, ends[name], pairs.node[name][own]) for name in ("src", "dst"))
        of_pairs = (torch.from_numpy(values[own]).to(source.device) for values in (rel, numbers))
        answers.append(columns_of(source, destination, *of_pairs))
    columns = dict(pairs.shown)
    columns |= {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}
    return AnswerColumns(pairs.row, pairs.total, columns)


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
    most = int(np.diff(ownership.starts).max(initial=1))
    return Candidates(known, most, reverse=links.query.column == "dst", add=links.add)


def refuse_no_file(path: str, column: str) -> None:
    """Raise ValueError where no file has the queries of a run with edge types, nodes in ``column`` and their types."""
    if not path:
        raise ValueError(f"--top_k: the run has edge types: name a file with the columns {column} and rel")


def _queries(links: LinkEnds, path: str) -> Questions:
    """Collective. Read this rank's queries from a file, or take its nodes at the query's end."""
    world, end, (types, words) = links.world, links.query, links.edge_types
    if path:
        return read_edges(path, {end.column: links.named(end)}, world, types, words)
    with together(world, "find the queries"):
        if types > 1:
            refuse_no_file(path, end.column)
    order, first = np.argsort(end.row_id), int(links.book.of_type(end.kind).starts[world.rank])
    total = int(links.book.of_type(end.kind).starts[-1] - links.book.of_type(end.kind).starts[0])
    names: dict[str, Any] = {end.column: text(end.ids)[order]}
    return Questions("", end.row_id[order], total, {end.column: first + order}, {}, names)


def _answer_columns(links: LinkEnds, best: np.ndarray, probabilities: bool) -> dict[str, Any]:
    """Collective. Name this rank's answers, entries of ``PLACED``, as columns of a file."""
    columns = {"place": best["place"], links.answer.column: names_of(links, links.answer, best["node"])}
    scores = score_column(best["score"], True) if probabilities else {"score": links.score_of(best["score"])}
    return columns | scores


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
