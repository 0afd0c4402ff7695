"""Where temporal plans are made: on the host, whose ranks ask each other, or on a device that holds the whole graph.

`TemporalSampler` plans with arrays of either side. A side is what differs: where events lie, how neighbors are asked
for, how rows are reached, who writes memory. Plans of both sides are equal bit for bit but for event features: where a
model reads the whole table, as on a device, ``edge_of`` points at its rows. N roots, K slots, U unique nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.board import Board, BoardRoute
from hpcgnn.comm.devices import DeviceRoom
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.native import Random
from hpcgnn.native.dispatch import Uploads, upload
from hpcgnn.temporal.batches import Batches
from hpcgnn.temporal.config import TemporalSamplingConfig
from hpcgnn.temporal.features import NodeFeatures
from hpcgnn.temporal.graph import FEATURE, Events, History, TemporalPartition
from hpcgnn.temporal.mail import Mailing, list_mails, plan_announcement, plan_delivery, plan_winners
from hpcgnn.temporal.memory import HotNodes
from hpcgnn.temporal.model.clocks import Clocks
from hpcgnn.temporal.negatives import AllOthers, AnyNegatives, Negatives, of_step
from hpcgnn.temporal.neighbors import Answer, Array, Histories, NeighborSource, Queries
from hpcgnn.temporal.plan import PLANNED, Announcement, Delivery, WritePlan, on_device

# Who writes memory: all nodes or the cold ones, and the hot ones; mails to both that are more than the winners' own.
Writes = tuple[WritePlan | Announcement | None, Announcement | None, Delivery | None, Delivery | None]


@dataclass(frozen=True, slots=True)
class Needs:
    """Needs of a model from a plan: hops of neighbors below the roots (0: none), the kind of mails (None: no memory),
    whether its decoder compares the roots' neighbors, and what computes the clocks of pairs that it reads (None: it
    reads none)."""

    hops: int
    mailing: Mailing | Any
    slots: bool
    clocks: Clocks | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where plans are made and used: the channel of planning, the one that moves rows, device and precision.

    own_channel: where every rank keeps the whole node memory, a channel of this rank alone, over which rows are read.
    hot: nodes whose rows every rank keeps behind its own rows. threads: of planning. board: on which the ranks of a
    machine read each other's rows. features: of nodes. room: the memory of the device, where the place of plans is
    chosen.
    """

    plan_channel: Channel
    move_channel: Channel
    device: torch.device
    dtype: torch.dtype
    own_channel: Channel | None = None
    hot: HotNodes | None = None
    threads: int = 1
    board: Board | None = None
    features: NodeFeatures | None = None
    room: DeviceRoom | Any = None


class HostSide:
    """Plans on the host, in NumPy: neighbors, rows and writes of nodes are asked from their owners."""

    lib: Any = np

    def __init__(
        self, partition: TemporalPartition, history: History, config: TemporalSamplingConfig, mailing: Mailing,
        place: Placement,
    ):  # fmt: skip
        self._book, self._mailing, self._place, self._channel = partition.book, mailing, place, place.plan_channel
        self._source = NeighborSource(partition, history, config, place.plan_channel, place.threads)
        rows = partition.num_nodes if place.hot is None else place.hot.num_rows
        self._scratch = np.full(rows, -1, np.int64)

    def ask(self, queries: Queries, limit: int, random: Random, fanouts: list[int], writers: bool) -> Answer:
        """Collective. Request neighbors from the owners (`NeighborSource.ask`)."""
        return self._source.ask(queries, limit, random, fanouts, writers)

    def arange(self, count: int) -> Array:
        """Return 0 to count - 1, int64."""
        return np.arange(count)

    def events(self, batches: Batches, negatives: AnyNegatives, step: int, columns: slice) -> tuple[Events, Negatives]:
        """Return this rank's events of a step, and some columns of their negatives."""
        return batches.events.take(batches.at(step)), of_step(negatives, batches, step, columns, self._channel)

    def route(self, ids: Array) -> tuple[Array, Route, Array, torch.Tensor | None]:
        """Collective. Plan the route to rows of ids. Returns inverse [n] int32 into the unique ids (-1 for padding),
        the route to their rows, the unique ids [U], and their features [U, .]. Unique ids are sorted by owner, so that
        the route's rows need no reordering."""
        inverse, unique, owner, local = self._locate(ids)
        place = self._place
        route = Route.plan_located(owner, local, place.own_channel or self._channel)
        feature = None
        if place.features is not None:
            feature = upload(place.features.fetch(owner, local, route), place.device)
        if place.board is not None:
            route = BoardRoute.upon(place.board, route)
        return inverse, route.over(place.own_channel or place.move_channel), unique, feature

    def _locate(self, ids: Array) -> tuple[Array, Array, Array, Array]:
        """Make inverse [n] of ids, the unique ids [U], and their owners and rows there."""
        book, place = self._book, self._place
        if place.own_channel is not None:  # the row of a node is its global id
            unique, inverse = native.unique_relabel(ids)
            return inverse, unique, np.zeros_like(unique), unique
        if self._channel.size == 1:
            unique, inverse = native.unique_relabel(ids)
            owner, local = book.locate(unique)
        else:
            unique, inverse, local, counts = native.unique_by_owner(ids, book.blocks, book.size)
            owner = np.repeat(np.arange(book.size), counts)
        if place.hot is not None:
            unique, inverse, owner, local = place.hot.at_home(self._channel.rank, unique, inverse, owner, local)
        return inverse, unique, owner, local

    def writes(self, events: Events, route: Route, unique: Array, root: Array, answer: Answer) -> Writes:
        """Collective. Plan who writes which memory after the step; root [N] rows of the roots among the unique ids."""
        write, hot = self._winners(route, root, unique, events, answer)
        delivery, of_hot = (None, None) if self._mailing.simple else self._deliveries(events, root, answer)
        device = self._place.device
        return on_device(write, device), on_device(hot, device), on_device(delivery, device), on_device(of_hot, device)

    def _deliveries(self, events: Events, root: np.ndarray, answer: Answer) -> tuple[Delivery, Delivery | None]:
        """Collective. Plan the mails of a step, and apart from them the mails to hot nodes, if there are any."""
        mails, place, mailing = list_mails(self._mailing, events, answer.other), self._place, self._mailing
        if place.own_channel is not None:
            return plan_delivery(mailing, events, mails, None, mails.target, root, self._channel), None
        of_hot = None
        if place.hot is not None:
            number = place.hot.find(mails.target)
            is_hot = number >= 0
            of_hot = plan_delivery(mailing, events, mails.take(is_hot), None, number[is_hot], root, self._channel)
            of_hot.rows += place.hot.first  # where copies begin, which differs between ranks
            mails = mails.take(~is_hot)
        located = self._book.locate(mails.target)
        return plan_delivery(mailing, events, mails, *located, root, self._channel), of_hot

    def _winners(
        self, route: Route, root: np.ndarray, unique: np.ndarray, events: Events, answer: Answer
    ) -> tuple[WritePlan | Announcement, Announcement | None]:
        """Collective. Find the winners, and apart from them those that are hot."""
        assert answer.winners is not None
        winner, hot = np.flatnonzero(answer.winners.mask), self._place.hot
        # Where mails are delivered, they hold the other endpoint themselves.
        shared = (root, events, self._mailing.from_memory and self._mailing.simple, self._channel)
        if self._place.own_channel is not None:
            return plan_announcement(winner, unique[root[winner]], 0, *shared), None
        announcement = None
        if hot is not None:
            number = hot.find(unique[root[winner]])
            is_hot = number >= 0
            announcement = plan_announcement(winner[is_hot], number[is_hot], hot.first, *shared)
            winner = winner[~is_hot]
        write = plan_winners(route, winner, root, len(events), len(unique), answer.winners, self._scratch)
        return write, announcement

    def event_feature(self, events: Events) -> torch.Tensor:
        """Bring features [b, F] of events to the device."""
        place = self._place
        if FEATURE not in events.columns:
            return torch.empty((len(events), 0), dtype=place.dtype, device=place.device)
        feature = torch.from_numpy(np.ascontiguousarray(events.columns[FEATURE]))
        return upload(feature, place.device).to(place.dtype)


class DeviceSide:
    """Plans on a device, in torch, of one rank and mails that are the winners' own. The device holds the graph, events
    and event features; local rows are global ids. Nothing of a step comes from the host but which step it is."""

    lib: Any = torch

    def __init__(
        self, partition: TemporalPartition, history: History, config: TemporalSamplingConfig, place: Placement,
        put: Uploads,
    ):  # fmt: skip
        self._device, self._channel = place.device, place.move_channel
        self._histories = Histories(partition, history, config, 0, put=put)
        features = np.empty((0, 0), np.float32) if partition.features is None else partition.features.wide()
        self._features = put(features, place.dtype)
        of_nodes = partition.wide_node_feature()
        self._node_features = None if of_nodes is None else put(of_nodes, place.dtype)
        self._events: dict[str, tuple[Batches, Events]] = {}
        self._negatives: tuple[Negatives, Negatives] | None = None

    def ask(self, queries: Queries, limit: int, random: Random, fanouts: list[int], writers: bool) -> Answer:
        """Draw neighbors of events with row ids below ``limit``, by fanouts of each relation or of all together (0:
        none)."""
        nodes = queries.nodes
        if sum(fanouts) == 0:
            none = nodes.new_empty((len(nodes), 0))
            return Answer(nodes.new_zeros(len(nodes), dtype=torch.int32), none, none, None, self._features)
        count, other, dt, event = self._histories.draw(
            nodes, queries.times, queries.identity, queries.since, fanouts, limit, random
        )
        return Answer(count, other, dt, None if event is None else event.int(), self._features)

    def arange(self, count: int) -> Array:
        """Return 0 to count - 1, int64."""
        return torch.arange(count, device=self._device)

    def events(self, batches: Batches, negatives: AnyNegatives, step: int, columns: slice) -> tuple[Events, Negatives]:
        """Return this rank's events of a step, and some columns of their negatives. Both are slices of tables that are
        brought to the device once, events for a split, negatives for a stretch of steps."""
        if batches.name not in self._events or self._events[batches.name][0] is not batches:
            events, put = batches.events, self._put
            planned = {name: put(values) for name, values in events.columns.items() if name in PLANNED}
            resident = Events(put(events.row), put(events.src), put(events.dst), put(events.time), planned)
            self._events[batches.name] = batches, resident
        rows = batches.at(step)
        own = self._events[batches.name][1].take(rows)
        if isinstance(negatives, AllOthers):
            made = negatives.at(rows, columns, self._channel)
            return own, Negatives(self._put(made.dst), count=self._put(negatives.counts(rows)))
        drawn, first = negatives.stretch(step, self._channel)
        if self._negatives is None or self._negatives[0] is not drawn:
            src, count = (None if values is None else self._put(values) for values in (drawn.src, drawn.count))
            self._negatives = drawn, Negatives(self._put(drawn.dst), src, count)
        return own, self._negatives[1].at(slice(rows.start - first, rows.stop - first), columns)

    def _put(self, values: np.ndarray) -> Any:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def route(self, ids: Array) -> tuple[Array, Route, Array, torch.Tensor | None]:
        """Make inverse [n] int32 into the unique ids (-1 for padding), the route to their rows, the unique ids [U] and
        their features."""
        unique, inverse = native.unique_relabel(ids)
        nodes = self._node_features
        feature = None if nodes is None else native.gather_rows(nodes, unique)
        return inverse, Route.alone(self._channel, unique), unique, feature

    def writes(self, events: Events, route: Route, unique: Array, root: Array, answer: Answer) -> Writes:
        """Find the winners: of every node among the endpoints that of its last event, in order of the unique nodes."""
        count, row, time = len(events), *map(torch.as_tensor, (events.row, events.time))
        ends = root[: 2 * count].long()
        winner = native.last_event(ends, row.repeat(2)).nonzero().squeeze(1)
        winner = winner[torch.argsort(ends[winner])]
        node, other = ends[winner], (winner + count) % max(1, 2 * count)
        event, rows = winner % max(1, count), unique[node]
        alone = Route.alone(self._channel, rows)
        return WritePlan(alone, node, ends[other], event, other, rows, node, time[event]), None, None, None

    def event_feature(self, events: Events) -> torch.Tensor:
        """Return features [b, F] of events, of which one rank has all, in order of their row ids."""
        if self._features.shape[1] == 0:
            return self._features.new_empty((len(events), 0))
        return native.gather_rows(self._features, torch.as_tensor(events.row))


def graph_bytes(partition: TemporalPartition, itemsize: int, num_lists: int = 1) -> int:
    """Count the bytes that the graphs of training and of evaluation take at most on a device, with different
    histories. num_lists: of events of a node."""
    history = partition.history
    size = num_lists * history.indptr.nbytes + sum(c.nbytes for c in (history.other, history.time, history.event))
    features = partition.num_events * partition.edge_width + partition.num_nodes * partition.node_width
    return features * itemsize + 2 * size
