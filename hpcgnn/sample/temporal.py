"""The sampler of temporal steps: from a batch's events and negatives to a plan.

b events that this rank handles, R roles, N = b R roots in the order sources, destinations, negative destinations,
negative sources; K slots; W windows; U unique nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.native import AttentionPlan, Random, Stream
from hpcgnn.native.dispatch import upload
from hpcgnn.nn.blocks import Level, Query
from hpcgnn.sample.batches import Batches
from hpcgnn.sample.config import SamplingConfig
from hpcgnn.sample.delivery import Mailing, plan_announcement, plan_delivery, plan_winners
from hpcgnn.sample.negatives import AllOthers, Negatives
from hpcgnn.sample.neighbors import Answer, NeighborSource, Queries, root_identity
from hpcgnn.sample.plan import Announcement, StepPlan, WritePlan, on_device
from hpcgnn.sample.plan_stream import PlanStream
from hpcgnn.store import files
from hpcgnn.store.hot import HotNodes
from hpcgnn.store.partition import Events, History, TemporalPartition

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
