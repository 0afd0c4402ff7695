"""Counts what the steps of a training epoch need of R ranks, on one process, without executing or exchanging anything.

The rules are those of planning and batching: an event belongs to the owner of its source and spills beyond ceil(B / R),
roots ask their owners, rows are fetched once per rank. Samples and negatives do not depend on the number of ranks, so a
step is sampled once and then divided between any numbers of ranks.

B events of a step, b roles (2 + negatives), N = B b roots, K slots, R ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcgnn import native
from hpcgnn.graph.book import Book
from hpcgnn.graph.directory import surplus_moves
from hpcgnn.loop.session import Session
from hpcgnn.native import Random, Stream
from hpcgnn.temporal.memory import hottest
from hpcgnn.temporal.neighbors import root_identity

# requests: roots; rows: unique nodes; features: unique event features; mails: nodes whose memory their owner writes.
KINDS = ("requests", "rows", "features", "mails")
# told: hot nodes whose memory is written, sent to every rank; states: memory of the nodes in their mails, sent to every
# rank.
HOT_KINDS = ("told", "states")


@dataclass(frozen=True, slots=True)
class SampledStep:
    """A sampled step. roots [N]; other, event [N, K] neighbours and their events, -1 pads; winner [N] whether a root's
    memory is written; unique [U] all nodes of the step, sorted; has_mail [U] whether mail is pending for them."""

    index: int
    num_events: int
    roots: np.ndarray
    other: np.ndarray
    event: np.ndarray
    winner: np.ndarray
    unique: np.ndarray
    has_mail: np.ndarray


def sample_steps(session: Session, steps: np.ndarray) -> Iterator[SampledStep]:
    """Sample training steps of epoch 0 with a session of one rank."""
    batches, config = session.batches["train"], session.config
    drawn: Any = session.loaders["train"].negatives(0)
    negatives, history = drawn.whole(), session.graph.splits.history
    for index in steps.tolist():
        rows = batches.at(index)
        events, negative = batches.events.take(rows), negatives.at(rows).dst
        roots = np.concatenate([events.src, events.dst, negative.T.ravel()])
        roles = 2 + negative.shape[1]
        times = np.tile(events.time, roles)
        identity = root_identity(events.row, np.arange(negative.shape[1]), session.partition.num_events)
        limit = native.NO_LIMIT if config.sampling.in_batch_neighbors else int(batches.first_row[index])
        place = _places(session, history.graph(), roots, times, identity, limit, index)
        valid = place >= 0
        other, event = _pick(history.other, place), _pick(history.event, place)
        winner = np.zeros(len(roots), bool)
        winner[: 2 * len(events)] = native.last_event(roots[: 2 * len(events)], np.tile(events.row, 2))
        unique = np.unique(np.concatenate([roots, other[valid]]))
        begin, end = history.indptr[unique], history.indptr[unique + 1]
        first_event = np.full(len(unique), np.iinfo(np.int64).max)
        first_event[end > begin] = history.event[begin[end > begin]]
        has_mail = first_event < batches.first_row[index]
        yield SampledStep(index, len(events), roots, other, event, winner, unique, has_mail)


def _pick(column: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Read a column at places [N, K]; -1 where a place is negative."""
    return np.where(place >= 0, column[np.maximum(place, 0)] if len(column) else -1, -1)


def _places(session: Session, graph, roots, times, identity, limit: int, step: int) -> np.ndarray:
    """Sample the history entries [N, K] of the roots' neighbours. On one rank a node's local row is its global id."""
    sampling = session.config.sampling
    if sampling.strategy == "recent":
        return native.sample_recent(graph, roots, times, sampling.fanout, limit)[0]
    random = Random(session.config.train.seed, Stream.SAMPLE, step, 0)
    return native.sample_uniform(graph, roots, times, identity, sampling.fanout, random, event_limit=limit)[0]


@dataclass(slots=True)
class Tally:
    """Counts of one kind of row, summed over steps. total: all rows, own ones too; asked, served [R]: rows that cross,
    by asking and by serving rank; peak: sum over steps of the largest of both; pairs: of ranks that exchange."""

    asked: np.ndarray
    served: np.ndarray
    total: int = 0
    peak: int = 0
    pairs: int = 0

    def add(self, asker: np.ndarray, server: np.ndarray) -> None:
        """Add the rows [n] of a step, by the ranks that ask and that serve."""
        size = len(self.asked)
        matrix = np.bincount(asker * size + server, minlength=size * size).reshape(size, size)
        self.total += len(asker)
        np.fill_diagonal(matrix, 0)
        asked, served = matrix.sum(axis=1), matrix.sum(axis=0)
        self.asked += asked
        self.served += served
        self.peak += int(max(asked.max(), served.max()))
        self.pairs += int(np.count_nonzero(matrix))

    @property
    def remote(self) -> int:
        """Number of rows that cross."""
        return int(self.asked.sum())


@dataclass(slots=True)
class Load:
    """Counts of rows that ranks compute with, summed over steps: of all ranks, and of the busiest rank of each step."""

    total: int = 0
    peak: int = 0

    def add(self, rank: np.ndarray, size: int) -> None:
        """Add the rows [n] of a step, by rank."""
        self.total += len(rank)
        self.peak += int(np.bincount(rank, minlength=size).max())


@dataclass(slots=True)
class RowCounts:
    """Counts of what ``steps`` steps need of ``size`` ranks. updated: rows with mail that the memory updater reads."""

    size: int
    steps: int = 0
    events: int = 0
    kinds: dict[str, Tally] = field(default_factory=dict)
    roots: Load = field(default_factory=Load)
    updated: Load = field(default_factory=Load)

    def __post_init__(self):
        zeros = np.zeros(self.size, np.int64)
        self.kinds = {kind: Tally(zeros.copy(), zeros.copy()) for kind in (*KINDS, *HOT_KINDS)}

    def add(
        self, step: SampledStep, handler: np.ndarray, owner: Callable[..., np.ndarray], hot: np.ndarray,
        at_owner: bool,
    ) -> None:  # fmt: skip
        """Add a step whose events are handled by the ranks ``handler`` [B]; nodes are at the ranks ``owner(ids)`` and,
        where ``hot`` [nodes], at every rank."""
        self.steps, self.events = self.steps + 1, self.events + step.num_events
        asker = np.tile(handler, len(step.roots) // max(1, step.num_events))
        server = owner(step.roots)
        slot_asker, slot_server = (np.repeat(r, step.other.shape[1]) for r in (asker, server))
        other, event = step.other.ravel(), step.event.ravel()
        valid = np.flatnonzero(other >= 0)
        self.kinds["requests"].add(asker, server)
        rows = _unique_pairs(np.append(asker, slot_asker[valid]), np.append(step.roots, other[valid]))
        row_hot = hot[rows[1]]
        self.kinds["rows"].add(rows[0], np.where(row_hot, rows[0], owner(rows[1])))
        cold = step.winner & ~hot[step.roots]
        self.kinds["mails"].add(asker[cold], server[cold])
        self._tell(step, asker, np.flatnonzero(step.winner & hot[step.roots]))
        self._add_features(slot_asker[valid], slot_server[valid], owner(other[valid]), event[valid])
        self.roots.add(asker, self.size)
        by_user = step.has_mail[np.searchsorted(step.unique, rows[1])] & (row_hot | (not at_owner))
        by_owner = step.unique[step.has_mail & ~hot[step.unique] & at_owner]
        self.updated.add(np.concatenate([rows[0][by_user], owner(by_owner)]), self.size)

    def _add_features(self, asker: np.ndarray, one: np.ndarray, other: np.ndarray, event: np.ndarray) -> None:
        """Add the features of events [n] of nodes at ranks ``one`` and ``other``, as EventFeatures serves them."""
        server = np.where(event & 1, np.maximum(one, other), np.minimum(one, other))
        server = np.where((one == asker) | (other == asker), asker, server)
        pairs, _ = _unique_pairs(asker * self.size + server, event)
        self.kinds["features"].add(pairs // self.size, pairs % self.size)

    def _tell(self, step: SampledStep, asker: np.ndarray, winner: np.ndarray) -> None:
        """Add what is sent to all ranks: winners [w] (places among the roots), and the states of both ends of their
        events."""
        sent = np.append(winner, (winner + step.num_events) % max(1, 2 * step.num_events))
        states, _ = _unique_pairs(asker[sent], step.roots[sent])
        for kind, rank in (("told", asker[winner]), ("states", states)):
            self.kinds[kind].add(np.repeat(rank, self.size), np.tile(np.arange(self.size), len(rank)))


def _unique_pairs(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the unique (first, second) pairs of non-negative integers."""
    keys, span = np.unique(_keys(first, second)), int(second.max(initial=0)) + 1
    return keys // span, keys % span


def _keys(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Make one integer of every pair."""
    return first * (int(second.max(initial=0)) + 1) + second


def handlers(session: Session, book: Book) -> np.ndarray:
    """Return the rank that handles each training event, [events in order of step and row]: the owner of its source, or
    the rank that the event spills to."""
    batches, size = session.batches["train"], book.size
    events = len(batches.events)
    step = np.repeat(np.arange(batches.num_steps), np.diff(batches.indptr))
    rank = book.locate(batches.events.src)[0]
    group = step * size + rank
    counts = np.bincount(group, minlength=batches.num_steps * size)
    order = np.argsort(group, kind="stable")
    place = np.empty(events, np.int64)
    place[order] = np.arange(events) - (np.cumsum(counts) - counts)[group[order]]
    surplus = order[place[order] >= -(-batches.sizes // size)[step[order]]]  # in order of step, rank and place
    rank[surplus] = np.repeat(*surplus_moves(counts.reshape(-1, size), batches.sizes)[:, 2:].T)
    return rank


def count(session: Session, sizes: list[int], steps: np.ndarray) -> tuple[dict[int, RowCounts], RowCounts]:
    """Count for every number of ranks in ``sizes`` (at most the number of parts), with a session of one rank.

    The second result is the limit of many ranks: every event on a rank of its own, which owns nothing.
    """
    batches, book = session.batches["train"], session.partition.book
    at_owner, hot = session.config.memory.update_at == "owner", _is_hot(session)
    books = {size: Book(book.offsets, size, book.node_types) for size in sizes}
    handled = {size: handlers(session, books[size]) for size in sizes}
    counts, limit = {size: RowCounts(size) for size in sizes}, RowCounts(1)
    for step in sample_steps(session, steps):
        rows = batches.at(step.index)
        for size in sizes:
            counts[size].add(step, handled[size][rows], lambda ids, b=books[size]: b.locate(ids)[0], hot, at_owner)
        _add_apart(limit, step, at_owner)
    return counts, limit


def _is_hot(session: Session) -> np.ndarray:
    """Say of every node whether more than one rank would keep copies of its memory."""
    share, partition = session.config.memory.hot_nodes, session.partition
    hot = hottest(share, session.graph.splits.degree(), partition, session.world, session.graph.channel)
    flags = np.zeros(partition.book.num_nodes, bool)
    if hot is not None:
        flags[hot.ids] = True
    return flags


def _add_apart(limit: RowCounts, step: SampledStep, at_owner: bool) -> None:
    """Add the totals of a step when no two events share a rank and no two nodes an owner."""
    limit.steps, limit.events = limit.steps + 1, limit.events + step.num_events
    event = np.tile(np.arange(step.num_events), len(step.roots) // max(1, step.num_events))
    valid = np.flatnonzero(step.other.ravel() >= 0)
    root_of = valid // step.other.shape[1]
    _, rows = _unique_pairs(np.append(event, event[root_of]), np.append(step.roots, step.other.ravel()[valid]))
    pair = np.unique(_keys(event[root_of], step.roots[root_of]), return_inverse=True)[1].reshape(-1)
    features, _ = _unique_pairs(pair, step.event.ravel()[valid])
    totals = {"requests": len(step.roots), "rows": len(rows), "features": len(features), "mails": step.winner.sum()}
    for kind, total in totals.items():
        limit.kinds[kind].total += int(total)
    limit.roots.total += len(step.roots)
    with_mail = step.has_mail if at_owner else step.has_mail[np.searchsorted(step.unique, rows)]
    limit.updated.total += int(with_mail.sum())
