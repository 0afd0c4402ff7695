"""Neighbours from their owners: one request and one reply for all queries of a hop.

N queries (node, time), K slots, M requests served.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.native import Random, Stream
from hpcgnn.temporal.config import SamplingConfig
from hpcgnn.temporal.graph import History, TemporalPartition

REQUEST = np.dtype([("local", "i4"), ("time", "i8"), ("identity", "i8")])
WINDOWED = np.dtype([*REQUEST.descr, ("since", "i8")])
ROOT_KINDS = 3  # of roots: source, destination, negative


@dataclass(slots=True)
class Queries:
    """nodes [N] global ids, times [N], identity [N] keys of the random numbers, since [N] oldest time that may be seen
    or None; all int64."""

    nodes: np.ndarray
    times: np.ndarray
    identity: np.ndarray
    since: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.nodes)


def root_identity(rows: np.ndarray, numbers: np.ndarray, num_events: int) -> np.ndarray:
    """Identity of the roots of events with row ids ``rows`` [b] out of ``num_events``, role by role: [(2 + n) b].

    numbers [n] of the negative roots among all that an event has: a root's random numbers do not depend on which others
    are looked at with it.
    """
    endpoints = rows * ROOT_KINDS + np.array([[0], [1]])
    negatives = (numbers[:, None] * num_events + rows) * ROOT_KINDS + 2
    return np.concatenate([endpoints, negatives]).ravel()


@dataclass(slots=True)
class Answer:
    """count [N] int32, other [N, K] int64 global ids (-1 pads), dt [N, K] int64, edge_of [N, K] int32 rows of edge [.,
    F] or None without event features; winner [N]: the endpoint whose event writes its node's memory. As owner: local
    rows, handling rank and time of the winners."""

    count: np.ndarray
    other: np.ndarray
    dt: np.ndarray
    edge_of: np.ndarray | None
    edge: np.ndarray
    winner: np.ndarray
    won_local: np.ndarray
    won_by: np.ndarray
    won_time: np.ndarray


class NeighborSource:
    """Answers queries over one history, with so many threads. Collective over ``channel``."""

    def __init__(
        self, partition: TemporalPartition, history: History, config: SamplingConfig, channel: Channel, threads: int
    ):  # fmt: skip
        self._partition, self._history, self._config, self._channel = partition, history, config, channel
        self._threads = threads
        self._parts = partition.book.part_of(partition.book.local_to_global(channel.rank))

    def ask(self, queries: Queries, limit: int, random: Random, fanout: int, writers: bool = False) -> Answer:
        """Collective. ``fanout`` neighbours (0: none) of events with row ids below ``limit``. With ``writers`` the
        identities are ``root_identity``'s, and the owners also say which endpoints write memory."""
        order, local, want = self._by_owner(queries.nodes)
        request = np.empty(len(queries), REQUEST if queries.since is None else WINDOWED)
        request["local"], request["time"], request["identity"] = local, queries.times[order], queries.identity[order]
        if queries.since is not None:
            request["since"] = queries.since[order]
        serve = self._channel.counts(want)
        received = self._channel.array(request, want, serve)
        reply, requester, feature_rows = self._serve(received, serve, writers, limit, random, fanout)
        ordered = self._channel.array(reply, serve, want)
        edge = self._pull_features(feature_rows, ordered, serve, want)
        won = reply["winner"].astype(bool)
        column = lambda name: _scattered(ordered[name], order)  # noqa: E731
        return Answer(
            column("count"), column("other"), column("dt"), None if feature_rows is None else column("edge"), edge,
            column("winner").astype(bool), received["local"][won], requester[won], received["time"][won],
        )  # fmt: skip

    def _by_owner(self, nodes: np.ndarray) -> tuple[np.ndarray | slice, np.ndarray, np.ndarray]:
        """Order of the nodes by owner, their owners' local rows in that order, and counts [ranks]."""
        book = self._partition.book
        if self._channel.size == 1:
            return slice(None), book.locate(nodes)[1], np.array([len(nodes)], np.int64)
        return native.locate_by_owner(nodes, book.blocks, book.size)

    def _serve(self, request: np.ndarray, serve: np.ndarray, writers: bool, limit: int, random: Random, fanout: int):
        """Sample for the requests [M]; returns the reply records, the requesters, and the feature rows each of them
        needs."""
        history = self._history
        local, times = request["local"].astype(np.int64), np.ascontiguousarray(request["time"])
        identity = np.ascontiguousarray(request["identity"])
        reply = np.empty(len(request), reply_dtype(fanout, history.feature is not None and fanout > 0))
        reply["count"], reply["winner"] = 0, 0
        if writers:
            endpoint = np.flatnonzero(identity % ROOT_KINDS < 2)
            reply["winner"][endpoint] = native.last_event(local[endpoint], identity[endpoint] // ROOT_KINDS)
        requester = np.repeat(np.arange(len(serve)), serve)
        if fanout == 0:
            return reply, requester, None
        since = np.ascontiguousarray(request["since"]) if "since" in (request.dtype.names or ()) else None
        place, count = self._sample(local, times, identity, since, fanout, limit, random)
        if self._config.boundary_half_life:
            self._decay(place, count, local, times, identity, random)
        other, dt, feature = native.temporal_reply(history.other, history.time, history.feature, place, times)
        reply["count"], reply["other"], reply["dt"] = count, other, dt
        if feature is None:
            return reply, requester, None
        reply["edge"], feature_rows = _unique_by_requester(feature, serve)
        return reply, requester, feature_rows

    def _sample(self, local, times, identity, since, fanout: int, limit: int, random: Random):
        graph = self._history.graph()
        if self._config.strategy == "recent":
            return native.sample_recent(graph, local, times, fanout, limit, since, self._threads)
        return native.sample_uniform(
            graph, local, times, identity, fanout, random, event_limit=limit, since=since, threads=self._threads
        )

    def _decay(self, place, count, local, times, identity, random: Random) -> None:
        """Thin the neighbours that lie in another part than their node, by age, in place (Wang et al., StarryGL)."""
        history, book = self._history, self._partition.book
        other, age, _ = native.temporal_reply(history.other, history.time, None, place, times)
        remote = book.part_of(other) != self._parts[local][:, None]
        stream = Stream.DECAY if random.stream == Stream.SAMPLE else Stream.EVAL_DECAY
        key = replace(random, stream=stream)
        native.decay_keep(place, count, remote, age, self._config.boundary_half_life, key, identity)

    def _pull_features(self, feature_rows, reply: np.ndarray, serve, want) -> np.ndarray:
        """Collective when the graph has event features: unique feature rows [., F]; shifts reply["edge"] to point at
        them."""
        width = self._partition.edge_width
        if feature_rows is None:
            return np.empty((0, width), np.float32)
        assert self._partition.features is not None
        send = np.array([len(rows) for rows in feature_rows], np.int64)
        receive = self._channel.counts(send)
        rows = self._channel.array(self._partition.features[np.concatenate(feature_rows)], send, receive)
        shift = np.repeat(np.cumsum(receive) - receive, want).astype(np.int32)
        reply["edge"] = np.where(reply["edge"] >= 0, reply["edge"] + shift[:, None], -1)
        return rows


def reply_dtype(fanout: int, with_features: bool) -> np.dtype:
    fields = [("count", "i4"), ("winner", "u1"), ("other", "i8", (fanout,)), ("dt", "i8", (fanout,))]
    return np.dtype(fields + ([("edge", "i4", (fanout,))] if with_features else []))


def _scattered(values: np.ndarray, order: np.ndarray | slice) -> np.ndarray:
    """The rows put back to where ``order`` took them from, contiguous."""
    out = np.empty(values.shape, values.dtype)
    out[order] = values
    return out


def _unique_by_requester(feature: np.ndarray, serve: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Per requester (consecutive rows, ``serve`` [R] of them) the unique feature rows it needs, and each entry's place
    among them (-1 pads)."""
    place, rows, begin = np.empty(feature.shape, np.int32), [], 0
    for end in np.cumsum(serve).tolist():
        unique, inverse = native.unique_relabel(np.ascontiguousarray(feature[begin:end]).ravel())
        place[begin:end] = inverse.reshape(end - begin, feature.shape[1])
        rows.append(unique)
        begin = end
    return place, rows
