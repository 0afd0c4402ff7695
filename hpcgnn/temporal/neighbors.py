"""Neighbors of nodes at times, drawn from the histories that a rank or a device holds, or requested from owners. A hop
has one request and one reply for all its queries.

Arrays of queries and answers are NumPy arrays on the host and tensors on a device. ``lib`` is the library that made
them, numpy or torch; only names that both have are used. N queries (node, time), K slots, M requests served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import narrow_rows
from hpcgnn.native import Random, Stream
from hpcgnn.temporal.config import TemporalSamplingConfig
from hpcgnn.temporal.graph import History, TemporalPartition

REQUEST = np.dtype([("local", "u4"), ("time", "i8"), ("identity", "i8")])
WINDOWED = np.dtype([*REQUEST.descr, ("since", "i8")])
Array = Any  # of NumPy on the host, a tensor on a device
ROOT_KINDS = 3  # of roots: source, destination, negative
MOST_IDENTITIES = ((1 << 63) - 1) // ROOT_KINDS  # of the negative roots


@dataclass(slots=True)
class Queries:
    """nodes [N] global ids, times [N], identity [N] keys of the random numbers, since [N] oldest time that may be seen
    or None; all int64."""

    nodes: Array
    times: Array
    identity: Array
    since: Array | None = None

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(slots=True)
class Winners:
    """Endpoints whose event writes their node's memory: mask [N] of the queries; local rows, asking rank and time of
    those among the queries that this rank answered as owner."""

    mask: np.ndarray
    local: np.ndarray
    rank: np.ndarray
    time: np.ndarray


@dataclass(slots=True)
class Answer:
    """Neighbors of N queries. count [N] int32; other [N, K] int64: global ids (-1 pads); dt [N, K] int64. edge_of [N,
    K] int32: rows of edge [., F], or None without event features; winners: None where they were not requested."""

    count: Array
    other: Array
    dt: Array
    edge_of: Array | None
    edge: Array
    winners: Winners | None = None


def root_identity(rows: Array, numbers: Array, num_events: int, lib: Any = np) -> Array:
    """Return the identities [(2 + n) b] of the roots of events with row ids ``rows`` [b] out of ``num_events``, role
    by role.

    numbers [n] of the negative roots among all that an event has: a root's random numbers do not depend on which others
    are looked at with it.
    """
    # Of very many events, numbers come again: identities stay within 64 bits, and keep their role.
    negatives = (numbers[:, None] * num_events + rows) % MOST_IDENTITIES * ROOT_KINDS + 2
    return lib.concatenate([rows * ROOT_KINDS, rows * ROOT_KINDS + 1, negatives.reshape(-1)])


def neighbor_queries(queries: Queries, answer: Answer, lib: Any) -> Queries:
    """Make the queries of the next hop: the same nodes at the same times, then each neighbor at the time of its
    event."""
    root, slot = lib.where(answer.other >= 0)
    nodes = lib.concatenate([queries.nodes, answer.other[root, slot]])
    times = lib.concatenate([queries.times, queries.times[root] - answer.dt[root, slot]])
    own = queries.identity * (answer.other.shape[1] + 1)
    since = None if queries.since is None else lib.concatenate([queries.since, queries.since[root]])
    return Queries(nodes, times, lib.concatenate([own, own[root] + slot + 1]), since)


class Histories:
    """Draws from one history of a rank's nodes, on the host, or on the device that ``put`` brings it to. Where T
    relations have separate fanouts, it is the history of n * T nodes that ``History.by_type`` makes."""

    def __init__(
        self, partition: TemporalPartition, history: History, config: TemporalSamplingConfig, rank: int,
        threads: int = 1, put: Callable[[np.ndarray], Any] = np.asarray,
    ):  # fmt: skip
        self._config, self._threads, self._book = config, threads, partition.book
        self._graph = tuple(map(put, history.graph()))
        self._lib: Any = np if isinstance(self._graph[0], np.ndarray) else torch
        self._other = put(history.other)
        self._event = None if partition.features is None else self._graph[2]
        if config.remote_half_life:
            self._part = put(self._book.part_of(self._book.local_to_global(rank)))

    def draw(self, local, times, identity, since, fanouts: list[int], limit: int, random: Random):
        """Draw neighbors of local rows [N] at times [N], of events with row ids below ``limit``. fanouts: of each
        relation, or of all together. Returns count [N] int32 and other, dt and event [N, K] int64 (-1, 0 and -1 pad;
        event None where events have no features)."""
        drawn = [
            self._draw(local * len(fanouts) + number, times, identity, since, fanout, limit, random, number)
            for number, fanout in enumerate(fanouts) if fanout
        ]  # fmt: skip
        place, count = drawn[0] if len(fanouts) == 1 else self._merge(drawn)
        if self._config.remote_half_life:
            self._decay(place, count, local, times, identity, random)
        return count, *native.temporal_reply(self._other, self._graph[1], self._event, place, times)

    def _draw(self, rows, times, identity, since, fanout: int, limit: int, random: Random, relation: int):
        """Draw places [N, fanout] in the history from its rows [N], -1 pads, and their count [N]."""
        if self._config.strategy == "recent":
            return native.sample_recent(self._graph, rows, times, fanout, limit, since, self._threads)
        return native.sample_uniform(
            self._graph, rows, times, identity, fanout, replace(random, relation=relation), event_limit=limit,
            since=since, threads=self._threads,
        )  # fmt: skip

    def _merge(self, drawn: list[tuple[Array, Array]]) -> tuple[Array, Array]:
        """Merge the places that each relation has drawn, in order of event, padding last."""
        lib = self._lib
        place = lib.concatenate([places for places, _ in drawn], 1)
        count = sum(counts for _, counts in drawn)
        event = lib.where(place >= 0, self._graph[2][place], native.NO_LIMIT)
        order = lib.argsort(event)  # events of a node differ, and padding is all alike
        row = lib.ones_like(order).cumsum(0) - 1
        return place[row, order], count

    def _decay(self, place, count, local, times, identity, random: Random) -> None:
        """Thin the neighbors that lie in another part than their node, by age, in place (Wang et al., StarryGL)."""
        other, age, _ = native.temporal_reply(self._other, self._graph[1], None, place, times)
        # With one rank local rows are global ids, and a device has no book to look them up in.
        parts = self._part[other.clip(0)] if self._book.size == 1 else self._book.part_of(other)
        stream = Stream.DECAY if random.stream == Stream.SAMPLE else Stream.EVAL_DECAY
        native.decay_keep(
            place, count, parts != self._part[local][:, None], age, self._config.remote_half_life,
            replace(random, stream=stream), identity,
        )  # fmt: skip


class NeighborSource:
    """Asks the owners of nodes for neighbors in one history, and answers as an owner. Collective over ``channel``."""

    def __init__(
        self,
        partition: TemporalPartition,
        history: History,
        config: TemporalSamplingConfig,
        channel: Channel,
        threads: int,
    ):
        self._partition, self._features, self._channel = partition, partition.features, channel
        self._histories = Histories(partition, history, config, channel.rank, threads)

    def ask(self, queries: Queries, limit: int, random: Random, fanouts: list[int], writers: bool = False) -> Answer:
        """Collective. Ask for neighbors of events with row ids below ``limit``, by fanouts of each relation or of all
        together (0: none). With ``writers`` the identities are ``root_identity``'s, and the owners also say which
        endpoints write memory."""
        book = self._partition.book
        order: np.ndarray | slice = slice(None)
        if self._channel.size == 1:
            local, want = book.locate(queries.nodes)[1], np.array([len(queries)], np.int64)
        else:
            order, local, want = native.locate_by_owner(queries.nodes, book.blocks, book.size)
        request = np.empty(len(queries), REQUEST if queries.since is None else WINDOWED)
        request["local"], request["time"] = narrow_rows(local), queries.times[order]
        request["identity"] = queries.identity[order]
        if queries.since is not None:
            request["since"] = queries.since[order]
        serve = self._channel.counts(want)
        received = self._channel.array(request, want, serve)
        reply = self._serve(received, writers, limit, random, fanouts)
        ordered = self._channel.array(reply, serve, want)
        names = ("count", "other", "dt", *(("event",) if "event" in (reply.dtype.names or ()) else ()))
        count, other, dt, *event = (_scattered(ordered[name], order) for name in names)
        edge, edge_of = self._find_features(queries.nodes, other, *event)
        winners = None
        if writers:
            won, requester = reply["winner"].view(bool), np.repeat(np.arange(len(serve)), serve)
            mask = _scattered(ordered["winner"], order).view(bool)
            winners = Winners(mask, received["local"][won], requester[won], received["time"][won])
        return Answer(count, other, dt, edge_of, edge, winners)

    def _serve(
        self, request: np.ndarray, writers: bool, limit: int, random: Random, fanouts: list[int]
    ) -> np.ndarray:  # fmt: skip
        """Make reply records for the requests [M]. Columns are copied, as kernels take none that is not aligned."""
        local, times = request["local"].astype(np.int64), request["time"].copy()
        identity = request["identity"].copy()
        reply = np.empty(len(request), reply_dtype(sum(fanouts), self._partition))
        reply["count"], reply["winner"] = 0, 0
        if writers:
            endpoint = np.flatnonzero(identity % ROOT_KINDS < 2)
            reply["winner"][endpoint] = native.last_event(local[endpoint], identity[endpoint] // ROOT_KINDS)
        if sum(fanouts) == 0:
            return reply
        since = request["since"].copy() if "since" in (request.dtype.names or ()) else None
        drawn = self._histories.draw(local, times, identity, since, fanouts, limit, random)
        reply["count"], reply["other"], reply["dt"], event = drawn
        if event is not None:
            reply["event"] = event
        return reply

    def _find_features(
        self, nodes: np.ndarray, other: np.ndarray, event: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Collective where the features of some events lie on other machines. Return rows [., F] of features, and the
        row [N, K] int32 of every event (-1 pads; None without features)."""
        if event is None:
            return np.empty((0, self._partition.edge_width), np.float32), None
        stored, place = self._features.fetch(event.astype(np.int64, copy=False), nodes, other, self._channel)
        rows = self._features.widen(stored)
        return rows.numpy(), place


def reply_dtype(fanout: int, partition: TemporalPartition) -> np.dtype:
    """Return the type of the records that answer requests, with the events where they have features."""
    fields = [("count", "i4"), ("winner", "u1"), ("other", "i8", (fanout,)), ("dt", "i8", (fanout,))]
    if fanout and partition.features is not None:
        fields.append(("event", "i4" if partition.num_events <= np.iinfo(np.int32).max else "i8", (fanout,)))
    return np.dtype(fields)


def _scattered(values: np.ndarray, order: np.ndarray | slice) -> np.ndarray:
    """Put the rows back to where ``order`` took them from, contiguous."""
    out = np.empty(values.shape, values.dtype)
    out[order] = values
    return out
