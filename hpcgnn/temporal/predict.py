"""Answers questions about a time: scores or labels of pairs, embeddings or labels of nodes, after the end of the graph
or between its events.

Files name nodes by their original ids, and have the times of the graph's source. Plans have neither negatives nor
write-back. m rows of a file that this rank has, C classes, F width of events' features, Z embedding width.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import exchange_columns
from hpcgnn.comm.together import together
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.loop.answer_file import AnswerColumns, answer_with, class_columns, logistic, refuse_probabilities, text
from hpcgnn.loop.links import (
    TRAIN,
    LinkEnd,
    LinkEnds,
    answer_best,
    best_of_relations,
    check_queries,
    refuse_no_file,
)
from hpcgnn.loop.question_file import (
    Block,
    Named,
    Questions,
    finite_numbers,
    numbers_of,
    read_questions,
    read_times,
)
from hpcgnn.loop.session import Session
from hpcgnn.loop.source_times import DATES, TimeUnit
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.task.labels import MISSING
from hpcgnn.task.metrics import check_finite
from hpcgnn.task.ranking import BEST
from hpcgnn.temporal.batches import Batches, batches_of, event_times, last_times
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.graph import EDGE_TYPE, FEATURE, Events, TemporalPartition
from hpcgnn.temporal.loader import TemporalLoader
from hpcgnn.temporal.negatives import edge_types_of, no_negatives
from hpcgnn.temporal.plan import StepPlan
from hpcgnn.temporal.properties import answer_labels, first_rows_at
from hpcgnn.temporal.schema import CLASSES

Compute = Callable[[Session, Events, Callable[[StepPlan], torch.Tensor]], np.ndarray]


def read_nodes(session: Session, path: str) -> Questions:
    """Collective. Read this rank's share of a file with columns node, type (where the graph has several) and,
    optionally, time; without it nodes are looked at after the last event. Values are type and time [m].

    Raises DistributedError naming file and row for a missing column, an unknown node or type, or a bad time.
    """
    partition, after, types = session.partition, _last_time(session), session.partition.book.node_types
    numbers, several = {name: number for number, name in enumerate(types)}, len(types) > 1

    def refuse(kind: str) -> str:
        return f"type {kind!r} is none of this graph's: {', '.join(types)}"

    def parse(path: str, first: int, text: Block) -> dict[str, np.ndarray]:
        kinds = numbers_of(path, first, text["type"], numbers, refuse) if "type" in text else None
        return {
            "type": np.zeros(len(text["node"]), np.int64) if kinds is None else kinds,
            "time": _times_of(path, first, text, "node", after, partition),
        }

    named = {"node": Named(types, partial(partition.original_ids, world=session.world), "type")}
    further, optional, shown = (["type"], ["time"], ["type"]) if several else ([], ["type", "time"], [])
    return read_questions(path, named, session.world, further, optional, parse, shown)


def read_pairs(session: Session, path: str) -> Questions:
    """Collective. Read this rank's share of a file with columns src, dst, rel where there are edge types, feat_0,
    feat_1 and so on in runs on labels of events with features, and, optionally, time; without it pairs are looked at
    after the last event. Values are time [m], rel [m] int64 and feature [m, .] float32, without columns of edge types.

    Raises DistributedError naming file and row for a missing column, an unknown node or edge type, or a bad time or
    number.
    """
    partition, after = session.partition, _last_time(session)
    width = partition.edge_width - len(partition.edge_types) if session.config.task.has_labels else 0
    features = [f"feat_{place}" for place in range(width)]

    def parse(path: str, first: int, text: Block) -> dict[str, np.ndarray]:
        numbers = [finite_numbers(path, first, name, text[name]).astype(np.float32) for name in features]
        values = {"feature": np.column_stack(numbers)} if numbers else {}
        return {"time": _times_of(path, first, text, "src", after, partition), **values}

    return read_ends(session, path, ("src", "dst"), features, ["time"], parse)


def read_ends(
    session: Session, path: str, ends: Sequence[str], further: Sequence[str] = (), optional: Sequence[str] = (),
    parse: Callable[[str, int, Block], dict[str, np.ndarray]] = lambda *_: {},
) -> Questions:  # fmt: skip
    """Collective. Read this rank's share of a file with columns of nodes, of ``ends`` "src" and "dst", and rel where
    there are edge types, whose numbers become the value "rel" [m] int64. further, optional: other columns, which
    ``parse`` makes values of.

    Raises DistributedError naming file and row for a missing column, or an unknown node or edge type.
    """
    partition, world = session.partition, session.world
    types, typed = partition.edge_types, [EDGE_TYPE] if partition.edge_types else []
    number_of, node_types = partition.number_of_type, {end: partition.type_of_ends(end) for end in ends}

    def refuse(kind: str) -> str:
        return f"{EDGE_TYPE} {kind!r} is none of this graph's edge types: {', '.join(types)}"

    def parse_all(path: str, first: int, text: Block) -> dict[str, np.ndarray]:
        values, kind = {}, np.zeros(len(text[ends[0]]), np.int64)
        if typed:
            values[EDGE_TYPE] = kind = numbers_of(path, first, text[EDGE_TYPE], number_of, refuse)
        return parse(path, first, text) | values | {f"type of {end}": node_types[end][kind] for end in ends}

    ids_of = partial(partition.original_ids, world=world)
    named = {end: Named(partition.book.node_types, ids_of, f"type of {end}") for end in ends}
    return read_questions(path, named, world, [*typed, *further], optional, parse_all, typed)


def _times_of(
    path: str, first: int, text: Block, names: str, after: int, partition: TemporalPartition
) -> np.ndarray:  # fmt: skip
    """Read the times of a block, where it has them."""
    if "time" not in text:
        return np.full(len(text[names]), after + 1)
    return read_times(path, first, text["time"], after + 1, time_unit(partition))


def time_unit(partition: TemporalPartition) -> TimeUnit:
    """Return the form of a graph's times."""
    return TimeUnit(partition.time_scale, partition.zone)


def queries_at(
    session: Session, row: np.ndarray, src: np.ndarray, dst: np.ndarray, time: np.ndarray,
    feature: np.ndarray | None = None, edge_type: np.ndarray | None = None,
) -> Events:  # fmt: skip
    """Make events of this rank's queries [m], numbered by ``row``. feature [m, F]: of the possible events, zeros where
    no feature is predicted from; edge_type [m]: their types, where the graph has several, None: the first one."""
    width, classifies = session.partition.edge_width, session.config.task.classifies
    feature = np.zeros((len(row), width), np.float32) if feature is None else feature
    columns = {"label": np.full(len(row), MISSING if classifies else np.nan)} | ({FEATURE: feature} if width else {})
    if session.partition.edge_types:
        columns[EDGE_TYPE] = np.zeros(len(row), np.int64) if edge_type is None else edge_type
    return Events(row.astype(np.int64), src, dst, time, columns)


def query_plan(session: Session, queries: Events, limit: int | None = None) -> StepPlan:
    """Collective. Plan a step that changes nothing. limit: row of the first event that a neighbor cannot be from,
    where the protocol shows no events of the same batch; None: all are shown."""
    size = int(session.world.total(len(queries)))
    end = np.array([session.partition.num_events if limit is None else limit])
    indptr = np.array([0, len(queries)])
    batches = Batches("queries", queries, indptr, np.array([size]), end, np.zeros(len(queries), np.int8))
    return session.loaders["test"].sampler.plan(batches, no_negatives(batches), 0, 0, write=False)


def _compute(
    session: Session, queries: Events, answers_of: Callable[[StepPlan], torch.Tensor], limit: int | None = None
) -> np.ndarray:  # fmt: skip
    """Collective. Plan this rank's queries [m] in batches of ``train.batch_size`` over all ranks; returns
    ``answers_of`` their plans, [m, ...]. Memory stays as it is."""
    world, values = session.world, []
    share = max(1, session.config.train.batch_size // world.size)
    most = int(world.reduce_array(np.array([len(queries)]), "max")[0])
    for begin in range(0, max(1, most), share):
        world.working("answer", begin)
        own = queries.take(np.arange(begin, max(begin, min(begin + share, len(queries)))))
        values.append(answers_of(query_plan(session, own, limit)).cpu().numpy())
    return np.concatenate(values)


def _event_loaders(session: Session) -> list[TemporalLoader]:
    """List the loaders of the events behind those that node memory is made from: of all events, where it is made
    anew."""
    if session.forgets:
        return [session.loaders["test"].walk]
    return [session.loaders["val"], session.loaders["test"]]


def _walk(session: Session, queries: Events, answers_of: Callable[[StepPlan], torch.Tensor]) -> np.ndarray:
    """Collective. Move node memory through the events, as evaluation does, and answer each query [m] at its place:
    before the batch that has the first event of its time or later. Memory begins where training left it; only for
    queries before the last training event, the training events are replayed from the start, as always where all events
    are for training. Returns ``answers_of`` the queries, [m, ...]."""
    world, loaders = session.world, _event_loaders(session)
    if not session.forgets:
        loaders.insert(0, loaders[0].of_split("train", session.config.train.batch_size))
    assert not any(loader.prefetch for loader in loaders)  # plans of queries use the channel of plans made ahead
    last = np.concatenate([last_times(loader.batches, world) for loader in loaders])
    place = np.searchsorted(last, queries.time)
    order = np.argsort(place, kind="stable")
    counts = np.bincount(place, minlength=len(last) + 1)
    indptr, is_asked = np.append(0, np.cumsum(counts)), world.reduce_array(counts, "max") > 0
    values, first = [], 0
    for loader in loaders:
        steps = loader.batches.num_steps
        trains = loader is loaders[0]
        if trains and not session.forgets and not is_asked[:steps].any():
            first += steps
            continue
        keeps = trains and not session.forgets
        trained = [tensor.clone() for tensor in session.memory.table.tensors()] if keeps else []
        if trains:
            session.memory.reset()
        with loader.plans(0, scored=False) as plans:
            for plan in plans:
                session.watchdog.at(loader.batches.name, plan.step)
                number = first + plan.step
                if is_asked[number]:
                    here = queries.take(order[indptr[number] : indptr[number + 1]])
                    values.append(_compute(session, here, answers_of, int(loader.batches.first_row[plan.step])))
                session.task.evaluate(plan)
        session.memory.settle()
        for tensor, before in zip(session.memory.table.tensors(), trained, strict=False):
            tensor.copy_(before)
        first += steps
    values.append(_compute(session, queries.take(order[indptr[first] :]), answers_of))
    answers = np.concatenate(values)
    answers[order] = answers.copy()
    return answers


def _walk_to_times(session: Session, queries: Events, answers_of: Callable[[StepPlan], torch.Tensor]) -> np.ndarray:
    """Collective. Move node memory through the events, in batches that end at label times, as evaluation does, and
    answer each query [m] before the batch that has the first event of its time or later: at a label time, from all
    events before. Memory begins where training left it; only for queries before that, events are replayed from the
    start. Returns ``answers_of`` the queries, [m, ...]."""
    partition, world, loaders = session.partition, session.world, session.loaders
    times = np.unique(np.concatenate(world.allgather(np.unique(queries.time))))
    cuts = first_rows_at(times, partition, world)
    cut_of, trained_end = cuts[np.searchsorted(times, queries.time)], int(loaders["train"].edges[-1])
    later = np.concatenate([loaders["val"].edges, loaders["test"].edges, [trained_end]])
    size = session.config.train.batch_size
    later = np.concatenate([later, np.arange(later.max(), partition.num_events, size), [partition.num_events]])
    is_early = cut_of < trained_end
    trained = [tensor.clone() for tensor in session.memory.table.tensors()]
    values: list[np.ndarray] = []
    order: list[np.ndarray] = []
    for edges, chosen in ((loaders["train"].edges, is_early), (later[later >= trained_end], ~is_early)):
        is_replayed = edges is loaders["train"].edges
        if is_replayed and not world.any(bool(chosen.any())):
            continue
        if is_replayed:
            session.memory.reset()
        answered, places = _answer_between(session, queries, cut_of, chosen, np.unique(edges), answers_of)
        values, order = values + answered, order + places
        if is_replayed:
            for tensor, before in zip(session.memory.table.tensors(), trained, strict=True):
                tensor.copy_(before)
    answers = np.concatenate(values)
    answers[np.concatenate(order)] = answers.copy()
    return answers


def _answer_between(
    session: Session, queries: Events, cut_of: np.ndarray, chosen: np.ndarray, edges: np.ndarray,
    answers_of: Callable[[StepPlan], torch.Tensor],
) -> tuple[list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """Collective. Move node memory through the events between ``edges``, and answer the ``chosen`` queries [m] before
    the batch that has their event ``cut_of`` [m]. Returns pieces of answers, and the places of their queries."""
    world, sampler, values, order = session.world, session.loaders["test"].sampler, [], []
    events = batches_of("events before queries", session.partition, edges, world, session.graph.channel)
    place = np.searchsorted(edges, cut_of, side="right") - 1
    for step, row in enumerate(edges):
        here = np.flatnonzero(chosen & (place == step))
        is_last = step == events.num_steps
        if is_last or world.any(len(here) > 0):  # the last always, so that there are answers of some shape
            values.append(_compute(session, queries.take(here), answers_of, int(row)))
            order.append(here)
        if not is_last:
            session.watchdog.at("replay the events", step)
            session.task.evaluate(sampler.plan(events, no_negatives(events), 0, step))
    session.memory.settle()
    return values, order


def score_pairs(
    session: Session, pairs: Questions, probabilities: bool = False, compute: Compute = _compute, times: str = DATES
) -> AnswerColumns:
    """Collective. Compute for every pair the probability of an event (score, float64). In runs on labels of events,
    compute the label: class and output [C], or a number as output. compute: from the session's current memory, or, with
    ``_walk``, from memory at the time of each pair. times: their form, as for ``TimeUnit.shown``."""
    goal = session.goal

    def answers_of(plan: StepPlan) -> torch.Tensor:
        scores: Any = session.task.score(plan)
        return torch.sigmoid(scores.positive.double()) if goal.draws_negatives else scores.output

    time, feature, types = pairs.value["time"], pairs.value.get("feature"), session.partition.edge_types
    if types and not goal.draws_negatives:  # the columns of edge types follow the features, as in events of the graph
        of_types = np.eye(len(types), dtype=np.float32)[pairs.value[EDGE_TYPE]]
        feature = of_types if feature is None else np.concatenate([feature, of_types], axis=1)
    ends = pairs.node["src"], pairs.node["dst"]
    queries = queries_at(session, pairs.row, *ends, time, feature, pairs.value.get(EDGE_TYPE))
    answers = compute(session, queries, answers_of)
    unit = time_unit(session.partition)
    columns = pairs.shown | {"time": unit.shown(time, times)}
    name = "probability" if probabilities else "score"  # of links, alike
    columns |= {name: answers} if goal.draws_negatives else _label_columns(session, answers, probabilities)
    return AnswerColumns(pairs.row, pairs.total, columns, zone=unit.zone)


def answer_nodes(
    session: Session, nodes: Questions, embeddings: bool, probabilities: bool = False, compute: Compute = _compute,
    times: str = DATES,
) -> AnswerColumns:  # fmt: skip
    """Collective. Compute for every node its embedding [Z], or its label (class and output [C]). compute: from the
    session's current memory, or, with ``_walk``, from memory at the time of each row. times: their form, as for
    ``TimeUnit.shown``."""

    def answers_of(plan: StepPlan) -> torch.Tensor:
        return session.task.embed(plan)[0] if embeddings else session.task.score(plan).output

    ids, time = nodes.node["node"], nodes.value["time"]
    answers = compute(session, queries_at(session, nodes.row, ids, ids, time), answers_of)  # sources, with themselves
    unit = time_unit(session.partition)
    columns = nodes.shown | {"time": unit.shown(time, times)}
    columns |= {"embedding": answers} if embeddings else _label_columns(session, answers, probabilities)
    return AnswerColumns(nodes.row, nodes.total, columns, zone=unit.zone)


def embed_all(session: Session, times: str = DATES) -> AnswerColumns:
    """Collective. Embed all nodes one unit of time after the last event, from the session's current memory. Columns are
    the original id, the type where there are several, the time, and the embedding [n, Z]."""
    partition, time, types = session.partition, _last_time(session) + 1, session.partition.book.node_types
    embedding = torch.cat([_embed_type(session, kind, time) for kind in range(len(types))]).cpu().numpy()
    columns: dict[str, Any] = {"node": np.concatenate([text(partition.node_ids[name]) for name in types])}
    if len(types) > 1:
        columns["type"] = np.repeat(types, [len(partition.node_ids[name]) for name in types])
    unit = time_unit(partition)
    columns["time"] = unit.shown(np.full(len(embedding), time), times)
    columns["embedding"] = embedding
    order = np.argsort(partition.flat_row)
    columns = {name: column[order] for name, column in columns.items()}
    return AnswerColumns(partition.flat_row[order], partition.book.num_nodes, columns, zone=unit.zone)


def _label_columns(session: Session, output: np.ndarray, probabilities: bool = False) -> dict[str, np.ndarray]:
    """Make columns of a head's outputs, [m, C] logits or [m, 1] numbers. Weights of classes add up to 1."""
    if session.config.model.forecaster:
        total = output.sum(axis=1, keepdims=True, dtype=np.float64)  # averages of labels, 0 without an earlier one
        return {"weight": np.where(total > 0, output / np.where(total > 0, total, 1), 1 / output.shape[1])}
    if session.config.task.has_properties:
        return {"weight": torch.softmax(torch.from_numpy(output).double(), dim=1).numpy()}
    if not session.config.task.classifies:
        return {"output": output[:, 0]}
    return class_columns(output, session.schema.values[CLASSES], probabilities)


def links_of(session: Session, given: str = "src", known: str = "") -> LinkEnds:
    """Collective. Make the links of a graph without edge types, as ``links_by_type`` describes them."""
    return links_by_type(session, given, known)(0)


def links_by_type(session: Session, given: str, known: str) -> Callable[[int], LinkEnds]:
    """Return what makes the links of an edge type, 0 where there is one: collective, with the embeddings of the ends
    one unit of time after the last event, or, for a model that compares or embeds the nodes of a pair, with what
    scores each pair. given: the end of queries, "src" or "dst"; known: pairs to leave out, of all events of the type or
    of its training events; empty: none. Answers are nodes that have been at their end of an event; with
    ``task.negative_pool`` "all" they are all nodes."""
    partition, world, decoder = session.partition, session.world, session.model.decoder
    types, time = partition.book.node_types, _last_time(session) + 1
    by_pair = getattr(session.model, "embeds_pairs", False) or not hasattr(decoder, "all_pairs")
    pool = session.config.task.negative_pool == "destinations"
    kinds = {column: partition.type_of_ends(column).tolist() for column in ("src", "dst")}
    embed = cache(lambda kind: torch.empty(0) if by_pair else _embed_type(session, kind, time))

    def end(column: str, edge_type: int) -> LinkEnd:
        kind = kinds[column][edge_type]
        embedding, name = embed(kind), types[kind]
        if column == "src" and partition.edge_types and not by_pair:
            embedding = session.model.of_type(embedding, torch.full((len(embedding),), edge_type, device=world.device))
        candidates = _ends_of_events(session, kinds[column], kind, column) if pool else None
        return LinkEnd(column, kind, partition.node_ids[name], _rows_of(session, kind), embedding, candidates)

    def make(edge_type: int) -> LinkEnds:
        ends = [end("src", edge_type), end("dst", edge_type)]
        query, answer = ends if given == "src" else ends[::-1]
        left_out = _pairs_that_met(session, query, answer, known, edge_type) if known else None
        return LinkEnds(
            partition.book, query, answer, decoder, world, session.graph.channel, known=left_out,
            rank=partial(_rank_pairs, session, query, answer, left_out, time, edge_type) if by_pair else None,
            score_of=logistic,
        )  # fmt: skip

    return make


def _ends_of_events(session: Session, kinds: list[int], kind: int, column: str) -> np.ndarray:
    """Collective. Return which of this rank's nodes of a type are the source, or the destination, of an event [n].
    kinds: the node type of that end, by edge type."""
    partition, world = session.partition, session.world
    ownership, events = partition.book.of_type(kind), partition.events
    is_of_type = np.array(kinds)[edge_types_of(events)] == kind
    nodes = np.unique((events.src if column == "src" else events.dst)[is_of_type])
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
    session: Session, query: LinkEnd, answer: LinkEnd, known: KnownAnswers | None, time: int, edge_type: int,
    queries: np.ndarray, count: int,
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
        own = np.arange(world.rank, len(src), world.size)
        times, kinds = (np.full(len(own), value) for value in (time, edge_type))
        queries_of_own = queries_at(session, own, src[own], dst[own], times, edge_type=kinds)
        filled = np.zeros(len(src))
        filled[own] = _compute(session, queries_of_own, partial(_logits, session))
        score = world.reduce_array(filled).reshape(len(part), len(node))
        check_finite(bool(np.isfinite(score).all()), world)
        for at, place in _known_places(known, part, node, world):
            score[at, place] = -np.inf
        score[part[:, None] == node] = -np.inf  # of one node type: no node is an answer to itself
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
        queries = queries_at(session, np.arange(len(own)), own, own, np.full(len(own), time))
        rows.append(session.task.embed(query_plan(session, queries))[0])
    return torch.cat(rows)


def _pairs_that_met(session: Session, query: LinkEnd, answer: LinkEnd, known: str, edge_type: int) -> KnownAnswers:
    """Collective. Index the pairs of all events of a type, or of its training events, at the owners of the answers."""
    partition, world = session.partition, session.world
    ownership, events = partition.book.of_type(answer.kind), partition.events
    events = events.take(edge_types_of(events) == edge_type)
    if known == TRAIN:
        events = events.take(events.row < session.graph.splits.bounds[1])
    pairs = [events.src, events.dst] if query.column == "src" else [events.dst, events.src]
    pairs = exchange_columns(pairs, ownership.locate(pairs[1])[0], session.graph.channel)
    unique = np.unique(np.column_stack(pairs), axis=0)
    return KnownAnswers(ownership, world.rank, unique[:, 0], np.zeros(len(unique), np.int64), unique[:, 1])


def _last_time(session: Session) -> int:
    """Collective. Return the time of the last event."""
    partition = session.partition
    return int(event_times(partition, np.array([partition.num_events - 1]), session.world)[0])


def replay(session: Session) -> None:
    """Collective. Move node memory to the end of the graph: through validation and test, or through all events."""
    if session.forgets:
        session.memory.reset()
    for loader in _event_loaders(session):
        with loader.plans(0, scored=False) as plans:
            for plan in plans:
                session.watchdog.at(loader.batches.name, plan.step)
                session.task.evaluate(plan)


def check(arguments: Namespace, config: TemporalConfig) -> TemporalConfig:
    """Return the configuration that ``hpcgnn.predict`` opens a run with. Raises ValueError for arguments of other
    kinds."""
    if arguments.snapshots != 1:
        raise ValueError("--snapshots is for runs on snapshots: leave it out")
    of_links = config.task.kind == "link"
    asked = [bool(arguments.pairs), bool(arguments.nodes), of_links and arguments.top_k > 0]
    if sum(asked) != 1 and not (arguments.embeddings and not any(asked)):
        raise ValueError("give one of --pairs, --nodes and --top_k, or --embeddings, of all nodes")
    of_classes = config.task.kind == "edge" if arguments.pairs else config.task.predicts_nodes
    of_classes = of_classes and not arguments.embeddings
    check_queries(arguments, of_links and not arguments.embeddings, of_classes)
    scored = config.task.loss if of_links and not (arguments.nodes or arguments.embeddings) else ""
    refuse_probabilities(arguments, of_classes, scored)
    if arguments.embeddings and arguments.pairs:
        raise ValueError("--embeddings are of nodes: give --nodes, not --pairs")
    if config.model.forecaster and arguments.embeddings:
        raise ValueError(f"model.forecaster {config.model.forecaster} has no embeddings: leave --embeddings out")
    if config.task.has_properties and not arguments.nodes:
        raise ValueError("this run learned labels of nodes at times (task.kind node_property): give --nodes")
    if arguments.pairs and config.task.predicts_nodes:
        raise ValueError(f"this run learned labels of nodes (task.kind {config.task.kind}), not of pairs: give --nodes")
    # Queries are no events of the graph, and a device has nothing but those; their plans use the channel that a thread
    # would plan ahead over.
    return replace(config, sampling=replace(config.sampling, plan_on="host", prefetch=0))


def answer(session: Session, arguments: Namespace) -> None:
    """Collective. Write scores or labels of pairs, or embeddings or labels of nodes, of a file, at their times; or the
    best answers, or the embeddings of all nodes, after the end of the graph."""
    task, classes, out = session.config.task, session.schema.values[CLASSES], arguments.out
    best, probabilities = arguments.top_k, arguments.probabilities or arguments.top_k > 0
    learned = task.predicts_nodes or task.has_properties
    embeddings = arguments.embeddings or not (arguments.pairs or learned or best)
    embeds_pairs = getattr(session.model, "embeds_pairs", False)  # a custom model has no such attributes
    if embeddings and (embeds_pairs or not getattr(session.model, "has_embedding", True)):
        read = task.decoder.replace("_", " and ")  # the names of what it reads
        what = "embeds pairs of nodes" if embeds_pairs else f"scores pairs by {read} alone"
        remedy = "--pairs, or --top_k" if session.goal.draws_negatives else "--pairs"
        message = f"this model {what} and has no embeddings of nodes: give {remedy}"
        raise DistributedError(message, user_error=True)
    if arguments.pairs:
        pairs = read_pairs(session, arguments.pairs)
        what = "labels" if task.has_labels else "scores"
        answers = score_pairs(session, pairs, probabilities, _walk, arguments.times)
        answer_with(out, answers, what, session, classes, best)
    elif arguments.nodes:
        nodes = read_nodes(session, arguments.nodes)
        walk = _walk_to_times if task.has_properties else _walk
        walk = answer_labels if session.config.model.forecaster else walk
        answers = answer_nodes(session, nodes, embeddings, probabilities, walk, arguments.times)
        answer_with(out, answers, "embeddings" if embeddings else "labels", session, classes, best)
    else:
        replay(session)
        if arguments.embeddings:
            answer_with(out, embed_all(session, arguments.times), "embeddings", session)
        else:
            _answer_best(session, arguments)


def _answer_best(session: Session, arguments: Namespace) -> None:
    """Collective. Write the best answers that ``hpcgnn.predict`` is asked for: of all nodes or of a file's, or, where
    there are edge types, of the pairs of a node and an edge type in a file."""
    types = session.partition.edge_types
    if not types:
        answer_best(partial(links_of, session), arguments, session)
        return
    given, path = ("dst", arguments.destinations) if arguments.destinations else ("src", arguments.sources)
    with together(session.world, "find the queries"):
        refuse_no_file(path, given)
    made = links_by_type(session, given, arguments.known if arguments.new_only else "")
    queries = read_ends(session, path, (given,))
    answers = best_of_relations(made, queries, arguments.top_k, arguments.probabilities, len(types))
    answer_with(arguments.out, answers, f"best {'sources' if given == 'dst' else 'destinations'}", session)
