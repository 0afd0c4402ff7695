"""The sampler of temporal steps: from a batch's events and negatives to a plan, on the host or on the device.

On the device (one rank) graph, events and event features lie there, and nothing of a step comes from the host but which
step it is. Its plans are the host's, bit for bit, but for event features: ``edge_of`` points at rows of the whole
table, which is on the device anyway. b events that this rank handles, R roles, N = b R roots in the order sources,
destinations, negative destinations, negative sources; K slots; W windows; U unique nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.graph import files
from hpcgnn.loop.placement import leaves_room, other_device
from hpcgnn.loop.prefetch import PlanStream
from hpcgnn.native import AttentionPlan, Random, Stream
from hpcgnn.native.dispatch import Uploads, upload
from hpcgnn.temporal.batches import Batches
from hpcgnn.temporal.config import SamplingConfig
from hpcgnn.temporal.graph import Events, History, TemporalPartition
from hpcgnn.temporal.mail import Mailing, plan_announcement, plan_delivery, plan_winners
from hpcgnn.temporal.memory import HotNodes
from hpcgnn.temporal.negatives import AllOthers, Negatives
from hpcgnn.temporal.neighbors import ROOT_KINDS, Answer, NeighborSource, Queries, root_identity
from hpcgnn.temporal.plan import Announcement, Level, Query, StepPlan, WritePlan, on_device, pad_plan

# Plans made in a row wait in memory: bounded by their number and by the neighbours in them.
MOST_PLANS_IN_A_ROW, NEIGHBORS_IN_A_ROW = 32, 1 << 20


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model needs of a plan: hops of neighbours below the roots (0: none), how mails travel (None: no memory),
    and whether its decoder compares the roots' neighbours."""

    hops: int
    mailing: Mailing | Any
    slots: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """Where plans are made and used: the channel of planning, the one that moves rows, device and precision.

    own_channel: where every rank keeps the whole node memory, a channel of this rank alone, over which rows are read.
    hot: nodes whose rows every rank keeps behind its own. threads: of planning.
    """

    plan_channel: Channel
    move_channel: Channel
    device: torch.device
    dtype: torch.dtype
    own_channel: Channel | None = None
    hot: HotNodes | None = None
    threads: int = 1


class TemporalSampler:
    """Plans steps over one history. Planning is collective; the plans' routes move rows over their own channel."""

    def __init__(
        self, partition: TemporalPartition, history: History, config: SamplingConfig, needs: Needs, seed: int,
        placement: Placement, evaluation: bool = False, in_batch: bool = True,
    ):  # fmt: skip
        self._partition, self._config, self._needs, self._seed = partition, config, needs, seed
        self._place, self._channel = placement, placement.plan_channel
        self._source = NeighborSource(partition, history, config, placement.plan_channel, placement.threads)
        self._in_batch = in_batch and config.in_batch_neighbors
        self._stream = Stream.EVAL_SAMPLE if evaluation else Stream.SAMPLE
        rows = partition.num_nodes if placement.hot is None else placement.hot.num_rows
        self._scratch = np.full(rows, -1, np.int64)
        self._plans = PlanStream(placement.device)

    def plan(
        self, batches: Batches, negatives: Negatives | AllOthers, epoch: int, step: int, write: bool = True,
        columns: slice = slice(None),
    ) -> StepPlan:  # fmt: skip
        """Collective. negatives of all events of the split, of which ``columns`` are looked at; without ``write`` a
        plan that only scores. It is brought to the device on a stream of its own."""
        return self._plans.run(lambda: self._plan(batches, negatives, epoch, step, write, columns))

    def _plan(self, batches, negatives, epoch: int, step: int, write: bool, columns: slice) -> StepPlan:
        mine = batches.at(step)
        events, negative = batches.events.take(mine), negatives.at(mine)
        negative = Negatives(negative.dst[:, columns], None if negative.src is None else negative.src[:, columns])
        pieces = [ids.T.ravel() for ids in (negative.dst, negative.src) if ids is not None]
        roots = np.concatenate([events.src, events.dst, *pieces])
        numbers = np.arange(negatives.per_event * len(pieces)).reshape(len(pieces), -1)[:, columns].ravel()
        identity = root_identity(events.row, numbers, self._partition.num_events)
        queries = self._windows(Queries(roots, np.tile(events.time, 2 + len(numbers)), identity))
        limit = native.NO_LIMIT if self._in_batch else int(batches.first_row[step])
        asked, answers = self._descend(queries, limit, write and self._needs.mailing is not None, epoch, step)
        return self._assemble(batches, events, negative, roots, identity, asked, answers, epoch, step, write)

    def plans_in_a_row(self, batches: Batches, negatives: int) -> int:
        """How many plans with so many negatives an event are made at once where none are made in the background."""
        roots = int(batches.sizes.max(initial=1)) * (2 + negatives) * self._config.windows
        neighbors = roots * self._config.fanout ** max(1, self._needs.hops)
        return min(MOST_PLANS_IN_A_ROW, max(1, NEIGHBORS_IN_A_ROW // neighbors))

    def _windows(self, queries: Queries) -> Queries:
        """The roots once per window, the newest first; unchanged without windows."""
        if self._config.window == 0:
            return queries
        count, width = self._config.windows, self._config.window
        back = np.repeat(np.arange(count) * width, len(queries))
        end = np.tile(queries.times, count) - back
        identity = np.tile(queries.identity, count) * count + np.repeat(np.arange(count), len(queries))
        return Queries(np.tile(queries.nodes, count), end, identity if count > 1 else queries.identity, end - width)

    def _descend(self, queries: Queries, limit: int, writers: bool, epoch: int, step: int):
        """Collective. Queries and answers hop by hop, the roots' first. Below, each query asks again for its own row
        and its neighbours ask at the time of their event."""
        needs, fanout, asked, answers = self._needs, self._config.fanout, [], []
        mails = needs.mailing is not None and needs.mailing.to_neighbors
        for hop in range(max(1, needs.hops)):
            wanted = fanout if needs.hops or mails or needs.slots else 0
            random = Random(self._seed, self._stream, step, epoch, hop)
            answer = self._source.ask(queries, limit, random, wanted, writers and hop == 0)
            asked.append(queries)
            answers.append(answer)
            if hop + 1 < needs.hops:
                queries = _below(queries, answer)
        return asked, answers

    def _assemble(
        self, batches, events: Events, negative: Negatives, roots, identity, asked, answers, epoch, step, write
    ) -> StepPlan:
        hops, place, top = self._needs.hops, self._place, answers[0]
        lowest = [asked[-1].nodes, answers[-1].other.ravel()] if hops else [roots]
        inverse, route, unique = self._route(np.concatenate(lowest))
        num_unique = route.num_wanted
        root = np.ascontiguousarray(inverse[: len(roots)])
        query = Query(
            self._move(root.astype(np.int64)), self._transpose(root, num_unique),
            self._move(np.tile(events.time, len(roots) // max(1, len(events)))), self._move(identity),
            self._levels(asked, answers, inverse, num_unique) if hops else (), self._config.windows,
        )  # fmt: skip
        writing = write and self._needs.mailing is not None
        winners, hot = self._winners(route, root, unique, events, top) if writing else (None, None)
        delivery = None
        if writing and not self._needs.mailing.simple:
            delivery = plan_delivery(self._needs.mailing, events, top, root, self._partition.book, self._channel)
        return StepPlan(
            step, epoch, int(batches.sizes[step]), len(events), negative.per_event, negative.src is not None,
            events.row, route.to(place.device), query,
            (self._move(roots), self._move(top.other)) if self._needs.slots else None,
            self._event_feature(events), on_device(winners, place.device), on_device(hot, place.device),
            on_device(delivery, place.device), self._columns(events), write,
        )  # fmt: skip

    def _route(self, ids: np.ndarray) -> tuple[np.ndarray, Route, np.ndarray]:
        """Collective. Inverse [n] int32 into the unique ids (-1 for padding), the route to their rows, and the unique
        ids [U] themselves, sorted by owner, so that the route's rows need no reordering."""
        book, place = self._partition.book, self._place
        if place.own_channel is not None:  # the row of a node is its global id
            unique, inverse = native.unique_relabel(ids)
            return inverse, Route.plan_located(np.zeros_like(unique), unique, place.own_channel), unique
        if self._channel.size == 1:
            unique, inverse = native.unique_relabel(ids)
            owner, local = book.locate(unique)
        else:
            unique, inverse, local, counts = native.unique_by_owner(ids, book.blocks, book.size)
            owner = np.repeat(np.arange(book.size), counts)
        if place.hot is not None:
            unique, inverse, owner, local = place.hot.at_home(self._channel.rank, unique, inverse, owner, local)
        return inverse, Route.plan_located(owner, local, self._channel).over(place.move_channel), unique

    def _winners(
        self, route: Route, root, unique, events: Events, top: Answer
    ) -> tuple[WritePlan | Announcement, Announcement | None]:
        """Collective. The winners, and apart from them those that are hot."""
        winner, hot = np.flatnonzero(top.winner), self._place.hot
        shared = (root, events, self._needs.mailing.from_memory, self._channel)
        if self._place.own_channel is not None:
            return plan_announcement(winner, unique[root[winner]], 0, *shared), None
        told = None
        if hot is not None:
            number = hot.find(unique[root[winner]])
            is_hot = number >= 0
            told = plan_announcement(winner[is_hot], number[is_hot], hot.first, *shared)
            winner = winner[~is_hot]
        return plan_winners(route, winner, root, len(events), len(unique), top, self._scratch), told

    def _levels(self, asked: list[Queries], answers: list[Answer], inverse: np.ndarray, num_unique: int):
        """From the lowest level to the roots'."""
        levels: list[Level] = []
        for queries, answer in zip(asked[::-1], answers[::-1], strict=True):
            count, shape = len(queries), answer.other.shape
            if not levels:
                root, slot, below = inverse[:count], inverse[count:].reshape(shape), num_unique
            else:  # rows of the level below: the queries themselves, then their neighbours
                valid = answer.other >= 0
                slot = np.where(valid, np.cumsum(valid).reshape(shape) - 1 + count, -1).astype(np.int32)
                root, below = np.arange(count, dtype=np.int32), count + int(valid.sum())
            levels.append(self._level(answer, np.ascontiguousarray(root), np.ascontiguousarray(slot), below))
        return tuple(levels)

    def _level(self, answer: Answer, root: np.ndarray, slot: np.ndarray, below: int) -> Level:
        edge_of = np.full((len(root), 1), -1, np.int32) if answer.edge_of is None else answer.edge_of
        slots, count, dt, edges = map(self._move, (slot, answer.count, answer.dt, edge_of))
        plan = AttentionPlan(slots, count, dt, edges, *self._transpose(slot.ravel(), below))
        edge = self._move(answer.edge).to(self._place.dtype)
        return Level(self._move(root.astype(np.int64)), self._transpose(root, below), plan, edge)

    def _transpose(self, index: np.ndarray, targets: int) -> tuple[torch.Tensor, torch.Tensor]:
        indptr, order = map(self._move, native.transpose_index(np.ascontiguousarray(index), targets))
        return indptr, order

    def _event_feature(self, events: Events) -> torch.Tensor:
        if "feat" not in events.columns:
            return torch.empty((len(events), 0), dtype=self._place.dtype, device=self._place.device)
        feature = files.as_matrix(events.columns["feat"])
        return self._move(np.ascontiguousarray(feature)).to(self._place.dtype)

    def _columns(self, events: Events) -> dict[str, torch.Tensor]:
        return {name: self._move(values) for name, values in events.columns.items() if name == "label"}

    def _move(self, values: np.ndarray) -> torch.Tensor:
        return upload(torch.from_numpy(values), self._place.device)


def _below(queries: Queries, answer: Answer) -> Queries:
    """Queries of the next hop: the same nodes at the same times, then each neighbour at the time of its event."""
    root, slot = np.nonzero(answer.other >= 0)
    fanout = answer.other.shape[1]
    nodes = np.concatenate([queries.nodes, answer.other[root, slot]])
    times = np.concatenate([queries.times, queries.times[root] - answer.dt[root, slot]])
    own = queries.identity * (fanout + 1)
    since = None if queries.since is None else np.concatenate([queries.since, queries.since[root]])
    return Queries(nodes, times, np.concatenate([own, own[root] + slot + 1]), since)


class ResidentGraph:
    """One rank's history, event features and parts of the nodes on a device; local rows are global ids."""

    def __init__(
        self, partition: TemporalPartition, history: History, dtype: torch.dtype, with_parts: bool, upload: Uploads
    ):  # fmt: skip
        self.history = tuple(map(upload, (history.indptr, history.time, history.event)))
        self.other = upload(history.other)
        self.feature = None if history.feature is None else upload(history.feature)
        features = partition.features
        self.features = upload(np.empty((0, 0), np.float32) if features is None else features, dtype)
        self.part = upload(partition.book.part_of(np.arange(partition.num_nodes))) if with_parts else None


class ResidentEvents:
    """The events of one split on the device: row, src, dst, time [e] int64, further columns."""

    def __init__(self, events: Events, device: torch.device):
        put = lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(device)  # noqa: E731
        self.row, self.src, self.dst, self.time = map(put, (events.row, events.src, events.dst, events.time))
        self.columns = {name: put(values) for name, values in events.columns.items() if name == "label"}


def graph_bytes(partition: TemporalPartition, itemsize: int) -> int:
    """Bytes that the graphs of training and of evaluation take at most, with different histories."""
    history = partition.history
    columns = (history.indptr, history.other, history.time, history.event, history.feature)
    features = 0 if partition.features is None else partition.features.size * itemsize
    return features + 2 * sum(column.nbytes for column in columns if column is not None)


@dataclass(slots=True)
class DeviceQueries:
    """Queries for neighbours (`hpcgnn.temporal.neighbors.Queries`) on the device."""

    nodes: torch.Tensor
    times: torch.Tensor
    identity: torch.Tensor
    since: torch.Tensor | None


@dataclass(slots=True)
class DeviceAnswer:
    """count [N] int32; other, dt [N, K] int64; edge_of [N, K] int32 rows of the event features, or None."""

    count: torch.Tensor
    other: torch.Tensor
    dt: torch.Tensor
    edge_of: torch.Tensor | None


class ResidentSampler:
    """Plans steps over one history, as `TemporalSampler` does, for one rank and mails that are the winners' own.
    ``padded``: as `pad_plan` does."""

    def __init__(
        self, partition: TemporalPartition, history: History, config: SamplingConfig, needs: Needs, seed: int,
        placement: Placement, evaluation: bool = False, in_batch: bool = True, upload: Uploads | None = None,
        padded: bool = False,
    ):  # fmt: skip
        self._num_events, self._config, self._needs, self._seed = partition.num_events, config, needs, seed
        self._place = placement
        upload = upload or Uploads(placement.device)
        self._graph = ResidentGraph(partition, history, placement.dtype, config.boundary_half_life > 0, upload)
        self._in_batch = in_batch and config.in_batch_neighbors
        self._stream = Stream.EVAL_SAMPLE if evaluation else Stream.SAMPLE
        self._kept: dict[str, tuple[Batches, ResidentEvents]] = {}
        self._negatives: tuple[Negatives | AllOthers, list[torch.Tensor]] | None = None
        self._plans, self._padded = PlanStream(placement.device), padded

    def plans_in_a_row(self, batches: Batches, negatives: int) -> int:
        """1: there are no caches to keep warm by several plans in a row."""
        return 1

    def plan(
        self, batches: Batches, negatives: Negatives | AllOthers, epoch: int, step: int, write: bool = True,
        columns: slice = slice(None),
    ) -> StepPlan:  # fmt: skip
        """The plan of a step, made on a stream of its own."""
        make = lambda: self._plan(batches, negatives, epoch, step, write, columns)  # noqa: E731
        return self._plans.run((lambda: pad_plan(make())) if self._padded else make)

    def _plan(self, batches, negatives, epoch: int, step: int, write: bool, columns: slice) -> StepPlan:
        mine, events = batches.at(step), self._events(batches)
        pieces = [ids[:, columns] for ids in self._drawn(negatives, mine)]
        row, src, dst, time = (column[mine] for column in (events.row, events.src, events.dst, events.time))
        roots = torch.cat([src, dst, *(ids.T.reshape(-1) for ids in pieces)])
        numbers = torch.arange(negatives.per_event * len(pieces), device=row.device)
        numbers = numbers.view(len(pieces), -1)[:, columns].reshape(-1)
        identity, times = self._identity(row, numbers), time.repeat(2 + len(numbers))
        limit = native.NO_LIMIT if self._in_batch else int(batches.first_row[step])
        asked, answers = self._descend(self._windows(DeviceQueries(roots, times, identity, None)), limit, epoch, step)
        hops = self._needs.hops
        ids = torch.cat([asked[-1].nodes, answers[-1].other.reshape(-1)]) if hops else roots
        unique, inverse = native.unique_relabel(ids)
        root = inverse[: len(roots)].contiguous()
        levels = self._levels(asked, answers, inverse, len(unique)) if hops else ()
        query = Query(
            root.long(), self._transpose(root, len(unique)), times, identity, levels, self._config.windows
        )  # fmt: skip
        route, writing = self._route(unique), write and self._needs.mailing is not None
        return StepPlan(
            step, epoch, int(batches.sizes[step]), len(row), pieces[0].shape[1], len(pieces) > 1,
            batches.events.row[mine], route, query, (roots, answers[0].other) if self._needs.slots else None,
            self._event_feature(row), self._winners(route, root, row, time) if writing else None, None, None,
            {name: values[mine] for name, values in events.columns.items()}, write,
        )  # fmt: skip

    def _events(self, batches: Batches) -> ResidentEvents:
        """The split's events, brought to the device once."""
        kept = self._kept.get(batches.name)
        if kept is None or kept[0] is not batches:
            kept = self._kept[batches.name] = batches, ResidentEvents(batches.events, self._place.device)
        return kept[1]

    def _drawn(self, negatives: Negatives | AllOthers, mine: slice) -> list[torch.Tensor]:
        """Negative destinations [b, k] and, where they have them, sources; an epoch's are brought once."""
        put = lambda ids: torch.from_numpy(ids).to(self._place.device)  # noqa: E731
        if isinstance(negatives, AllOthers):
            return [put(negatives.at(mine).dst)]
        if self._negatives is None or self._negatives[0] is not negatives:
            self._negatives = negatives, [put(ids) for ids in (negatives.dst, negatives.src) if ids is not None]
        return [ids[mine] for ids in self._negatives[1]]

    def _identity(self, row: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Identities of the roots, on the device."""
        negatives = (numbers[:, None] * self._num_events + row) * ROOT_KINDS + 2
        return torch.cat([row * ROOT_KINDS, row * ROOT_KINDS + 1, negatives.reshape(-1)])

    def _windows(self, queries: DeviceQueries) -> DeviceQueries:
        """Queries of every time window, one window behind the other."""
        if self._config.window == 0:
            return queries
        count, width, length = self._config.windows, self._config.window, len(queries.nodes)
        number = torch.arange(count, device=queries.nodes.device).repeat_interleave(length)
        end = queries.times.repeat(count) - number * width
        identity = queries.identity.repeat(count) * count + number if count > 1 else queries.identity
        return DeviceQueries(queries.nodes.repeat(count), end, identity, end - width)

    def _descend(self, queries: DeviceQueries, limit: int, epoch: int, step: int):
        """Queries and answers hop by hop, the roots' first."""
        needs, asked, answers = self._needs, [], []
        for hop in range(max(1, needs.hops)):
            wanted = self._config.fanout if needs.hops or needs.slots else 0
            answer = self._ask(queries, limit, Random(self._seed, self._stream, step, epoch, hop), wanted)
            asked.append(queries)
            answers.append(answer)
            if hop + 1 < needs.hops:
                queries = _below_on_device(queries, answer)
        return asked, answers

    def _ask(self, queries: DeviceQueries, limit: int, random: Random, fanout: int) -> DeviceAnswer:
        graph, nodes, times = self._graph, queries.nodes, queries.times
        if fanout == 0:
            empty = nodes.new_empty((len(nodes), 0))
            return DeviceAnswer(nodes.new_zeros(len(nodes), dtype=torch.int32), empty, empty, None)
        if self._config.strategy == "recent":
            place, count = native.sample_recent(graph.history, nodes, times, fanout, limit, queries.since)
        else:
            place, count = native.sample_uniform(
                graph.history, nodes, times, queries.identity, fanout, random, event_limit=limit, since=queries.since
            )
        if self._config.boundary_half_life:
            self._decay(place, count, queries, random)
        other, dt, feature = native.temporal_reply(graph.other, graph.history[1], graph.feature, place, times)
        return DeviceAnswer(count, other, dt, None if feature is None else feature.int())

    def _decay(self, place: torch.Tensor, count: torch.Tensor, queries: DeviceQueries, random: Random) -> None:
        """Thin the neighbours that lie in another part than their node, in place."""
        graph = self._graph
        other, age, _ = native.temporal_reply(graph.other, graph.history[1], None, place, queries.times)
        assert graph.part is not None
        remote = graph.part[other.clamp(min=0)] != graph.part[queries.nodes][:, None]
        key = replace(random, stream=Stream.DECAY if random.stream == Stream.SAMPLE else Stream.EVAL_DECAY)
        native.decay_keep(place, count, remote, age, self._config.boundary_half_life, key, queries.identity)

    def _route(self, rows: torch.Tensor) -> Route:
        """To rows of this rank's own tables."""
        return Route.alone(self._place.move_channel, rows)

    def _winners(self, route: Route, root: torch.Tensor, row: torch.Tensor, time: torch.Tensor) -> WritePlan:
        """Of every node among the endpoints, that of its last event; in order of the unique nodes."""
        events, ends = len(row), root[: 2 * len(row)].long()
        winner = native.last_event(ends, row.repeat(2)).nonzero().squeeze(1)
        node = ends[winner]
        winner = winner[torch.argsort(node)]
        node, other = ends[winner], (winner + events) % max(1, 2 * events)
        event = winner % max(1, events)
        rows = route.requests[node]
        return WritePlan(self._route(rows), node, ends[other], event, other, rows, node, time[event])

    def _levels(self, asked: list[DeviceQueries], answers: list[DeviceAnswer], inverse: torch.Tensor, unique: int):
        """From the lowest level to the roots'."""
        levels: list[Level] = []
        for hop in reversed(range(len(asked))):
            answer, count = answers[hop], len(asked[hop].nodes)
            shape = answer.other.shape
            if not levels:
                root, slot, below = inverse[:count], inverse[count:].view(shape), unique
            else:  # rows of the level below: the queries themselves, then their neighbours
                valid = answer.other >= 0
                number = valid.view(-1).cumsum(0).view(shape)
                slot = torch.where(valid, number - 1 + count, -1).int()
                root, below = torch.arange(count, dtype=torch.int32, device=slot.device), len(asked[hop + 1].nodes)
            levels.append(self._level(answer, root.contiguous(), slot.contiguous(), below))
        return tuple(levels)

    def _level(self, answer: DeviceAnswer, root: torch.Tensor, slot: torch.Tensor, below: int) -> Level:
        edge_of = slot.new_full((len(root), 1), -1) if answer.edge_of is None else answer.edge_of
        transpose = native.transpose_index(slot.view(-1), below, padded=False)
        plan = AttentionPlan(slot, answer.count, answer.dt, edge_of, *transpose)
        return Level(root.long(), self._transpose(root, below), plan, self._graph.features)

    @staticmethod
    def _transpose(index: torch.Tensor, targets: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of an index without padding."""
        return native.transpose_index(index, targets, padded=False)

    def _event_feature(self, row: torch.Tensor) -> torch.Tensor:
        """Rows of the events, of which one rank has all, in order."""
        if self._graph.features.shape[1] == 0:
            return self._graph.features.new_empty((len(row), 0))
        return native.gather_rows(self._graph.features, row)


def _below_on_device(queries: DeviceQueries, answer: DeviceAnswer) -> DeviceQueries:
    """Queries of the next hop: the same nodes at the same times, then each neighbour at the time of its event."""
    root, slot = (answer.other >= 0).nonzero(as_tuple=True)
    nodes = torch.cat([queries.nodes, answer.other[root, slot]])
    times = torch.cat([queries.times, queries.times[root] - answer.dt[root, slot]])
    own = queries.identity * (answer.other.shape[1] + 1)
    since = None if queries.since is None else torch.cat([queries.since, queries.since[root]])
    return DeviceQueries(nodes, times, torch.cat([own, own[root] + slot + 1]), since)


def choose_sampler(
    partition: TemporalPartition, config: SamplingConfig, needs: Needs, seed: int, place: Placement
) -> Callable[..., TemporalSampler | ResidentSampler]:  # fmt: skip
    """Makes samplers of the kind that ``sampling.planner`` asks for; those on the device share what lies there. Raises
    ValueError where the device cannot make plans."""
    if config.planner == "host":
        return TemporalSampler
    hindrance = _hindrance(needs, place)
    if hindrance and config.planner == "device":
        raise ValueError(f"sampling.planner device: {hindrance}; leave it auto")
    size = graph_bytes(partition, place.dtype.itemsize)
    if hindrance or (config.planner == "auto" and not leaves_room(size, place.device)):
        return TemporalSampler
    return partial(ResidentSampler, upload=Uploads(place.device))


def _hindrance(needs: Needs, place: Placement) -> str:
    """Why plans cannot be made on the device; empty where they can."""
    if other_device(place.device):
        return other_device(place.device)
    if place.plan_channel.size > 1:
        return f"{place.plan_channel.size} ranks hold the graph, a device can plan for one"
    if needs.mailing is not None and not needs.mailing.simple:
        return "mails go to neighbours, or are more than the newest one"
    return ""
