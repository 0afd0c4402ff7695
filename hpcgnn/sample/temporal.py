"""The plan of a temporal step: everything that depends on the graph and the seed, and nothing that depends on weights.

b events that this rank handles, k negatives an event, N = b (2 + k) roots in the order sources, destinations,
negatives; K slots; U unique nodes among roots and slots; M requests that this rank serves as an owner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.native import AttentionPlan, Random, Stream
from hpcgnn.sample.batches import Batches
from hpcgnn.sample.negatives import POOLS
from hpcgnn.store import files
from hpcgnn.store.partition import History, TemporalPartition

STRATEGIES = ("recent", "uniform")
BATCH_BY = ("events", "time")
REQUEST = np.dtype([("local", "i4"), ("time", "i8"), ("identity", "i8")])


@dataclass
class SamplingConfig:
    """Neighbours, negatives, batches.

    Attributes:
        fanout: neighbours a root.
        strategy: "recent" or "uniform" (without replacement).
        negatives: negative destinations an event.
        negative_pool: "destinations" (nodes that occur as one) or "all" nodes.
        in_batch_neighbors: whether earlier events of the same batch are visible as neighbours.
        batch_by: "events", or "time" to keep equal times in one batch.
        prefetch: plans made ahead in the background; 0: none.
    """

    fanout: int = 10
    strategy: str = "recent"
    negatives: int = 1
    negative_pool: str = "destinations"
    in_batch_neighbors: bool = True
    batch_by: str = "events"
    prefetch: int = 3

    def __post_init__(self):
        if self.fanout < 1 or self.negatives < 1 or self.prefetch < 0:
            raise ValueError("sampling.fanout and sampling.negatives must be at least 1, sampling.prefetch at least 0")
        choices = {"strategy": STRATEGIES, "negative_pool": POOLS, "batch_by": BATCH_BY}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"sampling.{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")


@dataclass(slots=True)
class WritePlan:
    """Who writes which memory after the step: the last event of each node in the global batch.

    route carries the winners' rows to their owners. As user, a winner: node, other [w] rows of the unique nodes, event
    [w] place among this rank's events. As owner: rows [m] local, place [m] in the served rows, time [m] of the event.
    """

    route: Route
    node: torch.Tensor
    other: torch.Tensor
    event: torch.Tensor
    rows: torch.Tensor
    place: torch.Tensor
    time: torch.Tensor


@dataclass(slots=True)
class StepPlan:
    """One step. root [N] rows of the unique nodes, with its transpose; identity [N] keys of the roots' random
    numbers."""

    step: int
    epoch: int
    batch_size: int
    num_events: int
    num_negatives: int
    event_row: np.ndarray
    identity: torch.Tensor
    route: Route
    root: torch.Tensor
    root_transpose: tuple[torch.Tensor, torch.Tensor]
    attention: AttentionPlan
    edge: torch.Tensor
    event_feature: torch.Tensor
    write: WritePlan


class TemporalSampler:
    """Plans steps over one history. Planning is collective over ``channel``; the plans' routes move rows over
    ``move_channel``."""

    def __init__(
        self, partition: TemporalPartition, history: History, config: SamplingConfig, seed: int, channel: Channel,
        move_channel: Channel, device: torch.device, dtype: torch.dtype, evaluation: bool = False,
    ):  # fmt: skip
        self._partition, self._history, self._config = partition, history, config
        self._seed, self._channel, self._move_channel = seed, channel, move_channel
        self._device, self._dtype = device, dtype
        self._stream = Stream.EVAL_SAMPLE if evaluation else Stream.SAMPLE
        self._winner_of = np.full(partition.num_nodes, -1, np.int64)

    def plan(self, batches: Batches, negatives: np.ndarray, epoch: int, step: int) -> StepPlan:
        """Collective. negatives [events of the split, k] global ids."""
        mine = batches.at(step)
        events, negative = batches.events.take(mine), negatives[mine]
        roots = np.concatenate([events.src, events.dst, negative.T.ravel()])
        roles = 2 + negative.shape[1]
        times = np.tile(events.time, roles)
        identity = (events.row[None, :] * roles + np.arange(roles)[:, None]).ravel()
        limit = native.NO_LIMIT if self._config.in_batch_neighbors else int(batches.first_row[step])
        answer = self._ask(roots, times, identity, roles, limit, Random(self._seed, self._stream, step, epoch))
        return self._assemble(batches, events, roots, times, identity, answer, roles, epoch, step)

    def _ask(self, roots, times, identity, roles: int, limit: int, random: Random) -> _Answer:
        """Collective. The owners sample their nodes' neighbours and say which endpoints write memory."""
        owner, local = self._partition.book.locate(roots)
        order = np.argsort(owner, kind="stable") if self._channel.size > 1 else slice(None)
        request = np.empty(len(roots), REQUEST)
        request["local"], request["time"], request["identity"] = local[order], times[order], identity[order]
        want = np.bincount(owner, minlength=self._channel.size).astype(np.int64)
        serve = self._channel.counts(want)
        received = self._channel.array(request, want, serve)
        reply, requester, feature_rows = self._serve(received, serve, roles, limit, random)
        ordered = self._channel.array(reply, serve, want)
        edge = self._pull_features(feature_rows, ordered, serve, want)
        answer = np.empty_like(ordered)
        answer[order] = ordered
        won = reply["winner"].astype(bool)
        return _Answer(answer, edge, received["local"][won], requester[won], received["time"][won])

    def _serve(self, request: np.ndarray, serve: np.ndarray, roles: int, limit: int, random: Random):
        """Sample for the requests [M]; returns the reply records, the requesters, and the feature rows each of them
        needs."""
        history, fanout = self._history, self._config.fanout
        local, times = request["local"].astype(np.int64), np.ascontiguousarray(request["time"])
        identity = np.ascontiguousarray(request["identity"])
        if self._config.strategy == "recent":
            place, count = native.sample_recent(history.graph(), local, times, fanout, limit)
        else:
            place, count = native.sample_uniform(
                history.graph(), local, times, identity, fanout, random, event_limit=limit
            )
        reply = np.empty(len(request), _reply_dtype(fanout, history.feature is not None))
        valid = place >= 0
        place = np.where(valid, place, 0) if len(history.other) else np.zeros_like(place)
        pick = lambda column: column[place] if len(column) else np.zeros_like(place)  # noqa: E731
        reply["count"] = count
        reply["other"] = np.where(valid, pick(history.other), -1)
        reply["dt"] = np.where(valid, times[:, None] - pick(history.time), 0)
        endpoint = np.flatnonzero(identity % roles < 2)
        reply["winner"] = 0
        reply["winner"][endpoint] = native.last_event(local[endpoint], identity[endpoint] // roles)
        requester = np.repeat(np.arange(len(serve)), serve)
        if history.feature is None:
            return reply, requester, None
        feature = np.where(valid, pick(history.feature), -1)
        reply["edge"], feature_rows = _unique_by_requester(feature, serve)
        return reply, requester, feature_rows

    def _pull_features(self, feature_rows, reply: np.ndarray, serve, want) -> np.ndarray:
        """Collective when the graph has event features: unique feature rows [., F]; shifts reply["edge"] to point at
        them."""
        width = self._partition.edge_width
        if feature_rows is None:
            return np.empty((0, width), np.float32)
        send = np.array([len(rows) for rows in feature_rows], np.int64)
        receive = self._channel.counts(send)
        rows = self._channel.array(self._partition.features[np.concatenate(feature_rows)], send, receive)
        shift = np.repeat(np.cumsum(receive) - receive, want).astype(np.int32)
        reply["edge"] = np.where(reply["edge"] >= 0, reply["edge"] + shift[:, None], -1)
        return rows

    def _assemble(self, batches, events, roots, times, identity, answer: _Answer, roles, epoch, step) -> StepPlan:
        reply, num_roots = answer.reply, len(roots)
        unique, inverse = native.unique_relabel(np.concatenate([roots, reply["other"].ravel()]))
        owner, local = self._partition.book.locate(unique)
        if self._channel.size > 1:  # by owner, so that the route's rows need no reordering
            order = np.argsort(owner, kind="stable")
            rank_of = np.empty(len(order) + 1, np.int32)
            rank_of[order], rank_of[-1] = np.arange(len(order)), -1
            owner, local, inverse = owner[order], local[order], rank_of[inverse]
        route = Route.plan_located(owner, local, self._channel).over(self._move_channel)
        root, slot = inverse[:num_roots], np.ascontiguousarray(inverse[num_roots:])
        shape = reply["other"].shape
        edge_of = reply["edge"] if "edge" in reply.dtype.names else np.full((num_roots, 1), -1, np.int32)
        attention = AttentionPlan(
            self._move(slot.reshape(shape)), self._move(np.ascontiguousarray(reply["count"])),
            self._move(np.ascontiguousarray(reply["dt"])), self._move(np.ascontiguousarray(edge_of)),
            *map(self._move, native.transpose_index(slot, len(unique))),
        )  # fmt: skip
        return StepPlan(
            step, epoch, int(batches.sizes[step]), len(events), roles - 2, events.row,
            self._move(identity), route.to(self._device), self._move(root.astype(np.int64)),
            tuple(map(self._move, native.transpose_index(np.ascontiguousarray(root), len(unique)))), attention,
            self._move(answer.edge).to(self._dtype), self._event_feature(events),
            self._write_plan(route, root, len(events), len(unique), answer),
        )  # fmt: skip

    def _event_feature(self, events) -> torch.Tensor:
        if "feat" not in events.columns:
            return torch.empty((len(events), 0), dtype=self._dtype, device=self._device)
        feature = files.as_matrix(events.columns["feat"])
        return self._move(np.ascontiguousarray(feature)).to(self._dtype)

    def _write_plan(
        self, route: Route, root: np.ndarray, num_events: int, num_unique: int, answer: _Answer
    ) -> WritePlan:
        winner = np.flatnonzero(answer.reply["winner"])
        winner = winner[np.argsort(root[winner], kind="stable")]
        wanted = np.zeros(num_unique, bool)
        wanted[root[winner]] = True
        requests = route.requests.numpy()
        self._winner_of[answer.won_local] = np.arange(len(answer.won_local))
        number = self._winner_of[requests]
        requested = number >= 0
        requested[requested] = answer.won_by[number[requested]] == route.requesters()[requested]
        self._winner_of[answer.won_local] = -1
        other = (winner + num_events) % max(1, 2 * num_events)
        return WritePlan(
            route.restrict(wanted, requested).to(self._device), self._move(root[winner].astype(np.int64)),
            self._move(root[other].astype(np.int64)), self._move(winner % max(1, num_events)),
            self._move(requests[requested]), self._move(route.position.numpy()[requested]),
            self._move(answer.won_time[number[requested]]),
        )  # fmt: skip

    def _move(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)


@dataclass(slots=True)
class _Answer:
    """reply [N] in order of the roots; edge [., F] feature rows; as owner: winners' local rows, who handles them, their
    time."""

    reply: np.ndarray
    edge: np.ndarray
    won_local: np.ndarray
    won_by: np.ndarray
    won_time: np.ndarray


def _reply_dtype(fanout: int, with_features: bool) -> np.dtype:
    fields = [("count", "i4"), ("winner", "u1"), ("other", "i8", (fanout,)), ("dt", "i8", (fanout,))]
    return np.dtype(fields + ([("edge", "i4", (fanout,))] if with_features else []))


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
