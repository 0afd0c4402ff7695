"""Answers questions about the end of a graph: scores or labels of pairs, embeddings or labels of nodes, at given times.

Files name nodes by their original ids, and have the times of the graph's source. Plans have neither negatives nor
write-back. n rows of a file, m of them of this rank, C classes, F width of events' features, Z embedding width.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import exchange_columns
from hpcgnn.comm.world import World
from hpcgnn.graph import files
from hpcgnn.loop.answer_file import AnswerColumns, answer_with, class_columns, refuse_probabilities
from hpcgnn.loop.launch import on_first_rank
from hpcgnn.loop.links import LinkEnd, LinkEnds, answer_best, check_queries
from hpcgnn.loop.question_file import find_nodes, id_column, read_numbers, read_rows
from hpcgnn.loop.session import Session
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.task.labels import MISSING
from hpcgnn.task.metrics import check_finite
from hpcgnn.task.ranking import BEST
from hpcgnn.temporal.batches import Batches, event_times
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.graph import FEATURE, Events
from hpcgnn.temporal.negatives import no_negatives
from hpcgnn.temporal.plan import StepPlan
from hpcgnn.temporal.schema import CLASSES

TOLERANCE = Decimal("1e-6")  # of a unit of the graph's time, as where graphs are converted


def source_times(times: Any, scale: float) -> Any:
    """Return times of the graph as its source has them: integers where both have one unit, float64 otherwise."""
    return times if scale == 1 else times / scale


def read_times(path: str, rows: list[dict[str, str]], after: int, scale: float = 1) -> np.ndarray:
    """Read column ``time`` of the graph's source as times [n] int64 of the graph, which are ``scale`` times as large;
    ``after`` + 1 where it is empty or missing.

    Raises ValueError naming file and row for a bad time, one that is no whole number in the graph, or one not after
    ``after``.
    """
    return np.array(
        [_time(path, number, row.get("time"), after, scale) for number, row in enumerate(rows, 1)], np.int64
    )


def _time(path: str, number: int, text: str | None, after: int, scale: float) -> int:
    if text is None or not text.strip():
        return after + 1
    needed = "an integer" if scale == 1 else f"a number that times the graph's time_scale, {scale:g}, is an integer"
    refused = ValueError(f"{path}: row {number}: time {text!r} is not {needed}")
    try:
        time = Decimal(text) * Decimal(repr(scale))
    except ArithmeticError as error:
        raise refused from error
    if not time.is_finite():
        raise refused
    if abs(time) > np.iinfo(np.int64).max:
        raise ValueError(f"{path}: row {number}: time {text.strip()} does not fit 64 bits")
    stored = int(time.to_integral_value())
    if abs(time - stored) > TOLERANCE:
        raise refused
    if stored <= after:
        raise ValueError(
            f"{path}: row {number}: time {text.strip()} is not after the graph's last event "
            f"({source_times(after, scale)}): predictions are only possible after it; leave the column empty for the "
            "end of the graph"
        )
    return stored


def query_plan(
    session: Session, rows: np.ndarray, src: np.ndarray, dst: np.ndarray, time: np.ndarray, size: int,
    feature: np.ndarray | None = None,
) -> StepPlan:  # fmt: skip
    """Collective. Plan a step that changes nothing: this rank's pairs [m] of ``size``, numbered by ``rows``. feature
    [m, F]: of the possible events, zeros where no feature is predicted from."""
    width, classifies = session.partition.edge_width, session.config.task.classifies
    feature = np.zeros((len(rows), width), np.float32) if feature is None else feature
    columns = {"label": np.full(len(rows), MISSING if classifies else np.nan)} | ({FEATURE: feature} if width else {})
    events = Events(rows.astype(np.int64), src, dst, time, columns)
    end = np.array([session.partition.num_events])
    batches = Batches("queries", events, np.array([0, len(rows)]), np.array([size]), end, np.zeros(len(rows), bool))
    return session.loaders["test"].sampler.plan(batches, no_negatives(batches), 0, 0, write=False)


@dataclass(slots=True)
class Nodes:
    """The rows of a nodes file: original ids as text, types, time [n] int64 in the graph's unit. several: whether the
    graph has several node types."""

    path: str
    node: list[str]
    type: list[str]
    time: np.ndarray
    several: bool

    def __len__(self) -> int:
        return len(self.node)


def read_nodes(path: str, types: tuple[str, ...], after: int, scale: float = 1) -> Nodes:
    """Read a CSV with columns node, type (where the graph has several) and, optionally, time; without it nodes are
    looked at at time ``after`` + 1.

    Raises ValueError naming file and row for a missing column, an unknown type, or a time that ``read_times`` refuses.
    """
    several = len(types) > 1
    rows = read_rows(path, ("node", "type") if several else ("node",))
    kinds = [row["type"].strip() if "type" in row else types[0] for row in rows]
    for number, kind in enumerate(kinds, 1):
        if kind not in types:
            raise ValueError(f"{path}: row {number}: type {kind!r} is none of this graph's: {', '.join(types)}")
    return Nodes(path, [row["node"].strip() for row in rows], kinds, read_times(path, rows, after, scale), several)


@dataclass(slots=True)
class AskedEvents:
    """The rows of a pairs file: src, dst original ids as text, time [n] int64 in the graph's unit, feature [n, F]
    float32 where labels are predicted from it."""

    path: str
    src: list[str]
    dst: list[str]
    time: np.ndarray
    feature: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.src)


def read_pairs(path: str, after: int, scale: float = 1, width: int = 0) -> AskedEvents:
    """Read a CSV with columns src, dst, feat_0 to feat_<width - 1> and, optionally, time; without it pairs are looked
    at at time ``after`` + 1.

    Raises ValueError naming file and row for a missing column, a bad number, or a time that ``read_times`` refuses.
    """
    features = tuple(f"feat_{place}" for place in range(width))
    rows = read_rows(path, ("src", "dst", *features))
    src, dst = ([row[column].strip() for row in rows] for column in ("src", "dst"))
    numbers = [read_numbers(path, rows, name).astype(np.float32) for name in features]
    return AskedEvents(
        path, src, dst, read_times(path, rows, after, scale), np.column_stack(numbers) if numbers else None
    )


def _compute(
    session: Session, time: np.ndarray, src: np.ndarray, dst: np.ndarray, feature: np.ndarray | None,
    answers_of: Callable[[StepPlan], torch.Tensor],
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Collective. Plan queries [n] in batches of ``train.batch_size``; returns the rows [m] that this rank handles, and
    ``answers_of`` their plans, [m, ...]. Memory stays as it is."""
    world, size = session.world, session.config.train.batch_size
    rows, values = [], []
    for begin in range(0, max(1, len(time)), size):
        world.working("answer", begin)
        end = min(begin + size, len(time))
        own = np.arange(begin + world.rank, end, world.size)
        features = None if feature is None else feature[own]
        plan = query_plan(session, own, src[own], dst[own], time[own], end - begin, features)
        rows.append(own)
        values.append(answers_of(plan).cpu().numpy())
    return np.concatenate(rows), np.concatenate(values)


def score_pairs(session: Session, pairs: AskedEvents, probabilities: bool = False) -> AnswerColumns:
    """Collective. Compute for every pair the probability of an event (score, float64), from the session's current
    memory. In runs on labels of events, compute the label: class and output [C], or a number as output."""
    partition, world, goal = session.partition, session.world, session.goal
    source_type, _, destination_type = files.split_relation(partition.relation)
    ids_of = partial(partition.original_ids, world=world)
    src, dst = (
        find_nodes(pairs.path, name, names, [kind] * len(pairs), ids_of, world)
        for name, names, kind in (("src", pairs.src, source_type), ("dst", pairs.dst, destination_type))
    )

    def answers_of(plan: StepPlan) -> torch.Tensor:
        scores: Any = session.task.score(plan)
        return torch.sigmoid(scores.positive.double()) if goal.draws_negatives else scores.output

    own, answers = _compute(session, pairs.time, src, dst, pairs.feature, answers_of)
    columns = {"src": id_column(pairs.src)[own], "dst": id_column(pairs.dst)[own]}
    columns["time"] = source_times(pairs.time[own], partition.time_scale)
    columns |= {"score": answers} if goal.draws_negatives else _label_columns(session, answers, probabilities)
    return AnswerColumns(own, len(pairs), columns)


def _label_columns(session: Session, output: np.ndarray, probabilities: bool = False) -> dict[str, np.ndarray]:
    """Make columns of a head's outputs, [m, C] logits or [m, 1] numbers."""
    if not session.config.task.classifies:
        return {"output": output[:, 0]}
    return class_columns(output, session.schema.values[CLASSES], probabilities)


def links_of(session: Session, given: str = "src", new_only: bool = False) -> LinkEnds:
    """Collective. Compute the embeddings of the ends of links one unit of time after the last event; or, for a decoder
    that also compares the neighbors of a pair, prepare to score each pair. given: the end of queries, "src" or "dst";
    new_only: with the pairs of all events as known. Answers are nodes that have been at their end of an event; with
    ``task.negative_pool`` "all" they are all nodes."""
    partition, world, decoder = session.partition, session.world, session.model.decoder
    source, _, destination = files.split_relation(partition.relation)
    types, time = partition.book.node_types, _last_time(session) + 1
    by_pair, pool = not hasattr(decoder, "all_pairs"), session.config.task.negative_pool == "destinations"

    names = dict.fromkeys((source, destination))  # one where both ends are of a type
    embeddings = {name: torch.empty(0) if by_pair else _embed_type(session, types.index(name), time) for name in names}

    def end(column: str, name: str) -> LinkEnd:
        kind, embedding = types.index(name), embeddings[name]
        candidates = _ends_of_events(session, kind, column) if pool else None
        return LinkEnd(column, kind, partition.node_ids[name], _rows_of(session, kind), embedding, candidates)

    ends = [end("src", source), end("dst", destination)]
    query, answer = ends if given == "src" else ends[::-1]
    known = _pairs_that_met(session, query, answer) if new_only else None
    return LinkEnds(
        partition.book, query, answer, decoder, world, session.graph.channel, known=known,
        rank=partial(_rank_pairs, session, query, answer, known, time) if by_pair else None,
        score_of=lambda score: 1 / (1 + np.exp(-score)),
    )  # fmt: skip


def _ends_of_events(session: Session, kind: int, column: str) -> np.ndarray:
    """Collective. Return which of this rank's nodes of a type are the source, or the destination, of an event [n]."""
    partition, world = session.partition, session.world
    ownership = partition.book.of_type(kind)
    nodes = np.unique(partition.events.src if column == "src" else partition.events.dst)
    (nodes,) = exchange_columns([nodes], ownership.locate(nodes)[0], session.graph.channel)
    first, last = ownership.starts[world.rank : world.rank + 2]
    found = np.zeros(last - first, bool)
    found[nodes - first] = True
    return found


def _rows_of(session: Session, kind: int) -> np.ndarray:
    """Return the rows in the graph file of this rank's nodes of a type."""
    partition, rank = session.partition, session.world.rank
    count = np.diff(partition.book.of_type(kind).starts)[rank]
    begin = int(partition.book.type_start(rank)[kind])
    return partition.flat_row[begin : begin + count] - partition.book.type_base()[kind]


PAIRS = 1 << 20  # scored at once, for decoders that take each pair


def _rank_pairs(
    session: Session, query: LinkEnd, answer: LinkEnd, known: KnownAnswers | None, time: int, queries: np.ndarray,
    count: int,
) -> np.ndarray:  # fmt: skip
    """Collective. Score queries [Q], global ids, with all nodes of the answers' type, pair by pair; returns the
    ``count`` best of each as entries of ``ranking.BEST``, alike on all ranks."""
    world, first = session.world, int(session.partition.book.of_type(answer.kind).starts[session.world.rank])
    chosen = slice(None) if answer.is_candidate is None else answer.is_candidate
    pieces = world.allgather((answer.row_id[chosen], (first + np.arange(len(answer.row_id)))[chosen]))
    row_id, node = (np.concatenate(found) for found in zip(*pieces, strict=True))
    order = np.argsort(row_id)
    row_id, node = row_id[order], node[order]
    found, size = [], max(1, PAIRS // max(1, len(node)))
    for begin in range(0, len(queries), size):
        part = queries[begin : begin + size]
        ends = [np.repeat(part, len(node)), np.tile(node, len(part))]
        src, dst = ends if query.column == "src" else ends[::-1]
        own, values = _compute(session, np.full(len(src), time), src, dst, None, partial(_logits, session))
        filled = np.zeros(len(src))
        filled[own] = values
        score = world.reduce_array(filled).reshape(len(part), len(node))
        check_finite(bool(np.isfinite(score).all()), world)
        for at, place in _known_places(known, part, node, world):
            score[at, place] = -np.inf
        best = np.argsort(-score, axis=1, kind="stable")[:, :count]
        entries = np.empty(best.shape, BEST)
        entries["number"], entries["score"] = begin + np.arange(len(part))[:, None], np.take_along_axis(score, best, 1)
        entries["row_id"], entries["node"] = row_id[best], node[best]
        found.append(entries[entries["score"] > -np.inf])
    return np.concatenate(found) if found else np.empty(0, BEST)


def _logits(session: Session, plan: StepPlan) -> torch.Tensor:
    return session.task.score(plan).positive.double()


def _known_places(known: KnownAnswers | None, queries: np.ndarray, node: np.ndarray, world: World) -> list:
    """Collective. Find the known answers of queries, of all ranks, as pairs of places in ``queries`` and ``node``."""
    if known is None:
        return []
    at, place = known.of(queries, np.zeros(len(queries), np.int64))
    pieces, order = world.allgather((at, known.first + place)), np.argsort(node)
    return [(at, order[np.searchsorted(node, ids, sorter=order)]) for at, ids in pieces]  # all of them are candidates


def _embed_type(session: Session, kind: int, time: int) -> torch.Tensor:
    """Collective. Embed this rank's nodes of a type at a time, [n, Z]."""
    world, size = session.world, session.config.train.batch_size
    ids = np.arange(*session.partition.book.of_type(kind).starts[world.rank : world.rank + 2])
    share, rows = max(1, size // world.size), []
    for at in range(0, max(1, max(world.allgather(len(ids)))), share):
        world.working("embed the nodes", at)
        own = ids[at : at + share]
        total = int(world.total(len(own)))
        plan = query_plan(session, np.arange(len(own)), own, own, np.full(len(own), time), total)
        rows.append(session.task.embed(plan)[0])
    return torch.cat(rows)


def _pairs_that_met(session: Session, query: LinkEnd, answer: LinkEnd) -> KnownAnswers:
    """Collective. Index the pairs of all events at the owners of the answers."""
    partition, world = session.partition, session.world
    ownership, events = partition.book.of_type(answer.kind), partition.events
    pairs = [events.src, events.dst] if query.column == "src" else [events.dst, events.src]
    pairs = exchange_columns(pairs, ownership.locate(pairs[1])[0], session.graph.channel)
    unique = np.unique(np.column_stack(pairs), axis=0)
    return KnownAnswers(ownership, world.rank, unique[:, 0], np.zeros(len(unique), np.int64), unique[:, 1])


def _last_time(session: Session) -> int:
    """Collective. Return the time of the last event."""
    partition = session.partition
    return int(event_times(partition, np.array([partition.num_events - 1]), session.world)[0])


def answer_nodes(session: Session, nodes: Nodes, embeddings: bool, probabilities: bool = False) -> AnswerColumns:
    """Collective. Compute for every node its embedding [Z], or its label (class and output [C]), from the session's
    current memory."""
    partition, world = session.partition, session.world
    ids_of = partial(partition.original_ids, world=world)
    ids = find_nodes(nodes.path, "node", nodes.node, nodes.type, ids_of, world)

    def answers_of(plan: StepPlan) -> torch.Tensor:
        return session.task.embed(plan)[0] if embeddings else session.task.score(plan).output

    own, answers = _compute(session, nodes.time, ids, ids, None, answers_of)  # sources of events with themselves
    columns = {"node": id_column(nodes.node)[own]}
    columns |= {"type": np.array(nodes.type, str)[own]} if nodes.several else {}
    columns["time"] = source_times(nodes.time[own], partition.time_scale)
    columns |= {"embedding": answers} if embeddings else _label_columns(session, answers, probabilities)
    return AnswerColumns(own, len(nodes), columns)


def replay(session: Session) -> None:
    """Collective. Move node memory through validation and test, to the end of the graph."""
    for split in ("val", "test"):
        with session.loaders[split].plans(0, scored=False) as plans:
            for plan in plans:
                session.watchdog.at(split, plan.step)
                session.task.evaluate(plan)


def check(arguments: Namespace, config: TemporalConfig) -> TemporalConfig:
    """Return the configuration that ``hpcgnn.predict`` opens a run with. Raises ValueError for arguments of other
    kinds."""
    if arguments.snapshots != 1:
        raise ValueError("--snapshots is for runs on snapshots: leave it out")
    if sum([bool(arguments.pairs), bool(arguments.nodes), arguments.top_k > 0]) != 1:
        raise ValueError("give one of --pairs, --nodes and --top_k")
    if arguments.top_k and config.task.kind != "link":
        raise ValueError(f"--top_k is for runs on links; this one has task.kind {config.task.kind}: leave it out")
    check_queries(arguments)
    of_classes = config.task.kind == ("edge" if arguments.pairs else "node") and not arguments.embeddings
    refuse_probabilities(arguments, of_classes)
    if arguments.embeddings and arguments.pairs:
        raise ValueError("--embeddings are of nodes: give --nodes, not --pairs")
    if arguments.pairs and config.task.kind == "node":
        raise ValueError("this run learned labels of nodes (task.kind node), not of pairs: give --nodes")
    # Queries are no events of the graph, and a device has nothing but those.
    return replace(config, sampling=replace(config.sampling, plan_on="host"))


def answer(session: Session, arguments: Namespace) -> None:
    """Collective. Write scores or labels of pairs, or embeddings or labels of nodes, of a file, after the end of the
    graph."""
    world, partition, task = session.world, session.partition, session.config.task
    if arguments.top_k:
        replay(session)
        answer_best(partial(links_of, session), arguments, session)
        return
    last = _last_time(session)
    scale, types = partition.time_scale, partition.book.node_types
    if arguments.pairs:
        width = partition.edge_width if task.has_labels else 0
        pairs = on_first_rank(world, "read the pairs", lambda: read_pairs(arguments.pairs, last, scale, width))
        replay(session)
        what = "labels" if task.has_labels else "scores"
        answer_with(arguments.out, score_pairs(session, pairs, arguments.probabilities), what, session)
        return
    embeddings = arguments.embeddings or task.kind != "node"
    nodes = on_first_rank(world, "read the nodes", lambda: read_nodes(arguments.nodes, types, last, scale))
    replay(session)
    what = "embeddings" if embeddings else "labels"
    answer_with(arguments.out, answer_nodes(session, nodes, embeddings, arguments.probabilities), what, session)
