"""The sampler of temporal steps: from a batch's events and negatives to a plan, on the host or on the device.

b events that this rank handles, R roles, N = b R roots in the order sources, destinations, negative destinations,
negative sources; K slots; W windows; U unique nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.loop.prefetch import PlanStream, other_device
from hpcgnn.native import AttentionPlan, Random, Stream
from hpcgnn.native.dispatch import Uploads, upload
from hpcgnn.temporal.batches import Batches
from hpcgnn.temporal.config import TemporalSamplingConfig
from hpcgnn.temporal.graph import Events, History, TemporalPartition
from hpcgnn.temporal.model.clocks import Clocks
from hpcgnn.temporal.negatives import AnyNegatives, Negatives
from hpcgnn.temporal.neighbors import Answer, Array, Queries, neighbor_queries, root_identity
from hpcgnn.temporal.plan import PLANNED, Level, Query, StepPlan, pad_plan
from hpcgnn.temporal.sides import DeviceSide, HostSide, Needs, Placement, graph_bytes

# Plans made in a row wait in memory: bounded by their number, the neighbors in them, and the bytes of features.
MOST_PLANS_IN_A_ROW, NEIGHBORS_IN_A_ROW, BYTES_IN_A_ROW = 32, 1 << 20, 1 << 27


class TemporalSampler:
    """Plans steps over one history (``TemporalGraph.history``). Planning is collective; the plans' routes move rows
    over their own channel. config: of the graph's relations (``TemporalGraph.sampling``).

    uploads: what lies on the device, for a sampler that plans there; padded: plans are padded as `pad_plan` does.
    """

    def __init__(
        self, partition: TemporalPartition, history: History, config: TemporalSamplingConfig, needs: Needs, seed: int,
        placement: Placement, evaluation: bool = False, in_batch: bool = True, uploads: Uploads | None = None,
        padded: bool = False,
    ):  # fmt: skip
        self._config, self._needs, self._seed, self._place = config, needs, seed, placement
        self._partition = partition
        self._num_events, self.is_padded = partition.num_events, padded
        self._side: HostSide | DeviceSide
        if uploads is None:
            self._side = HostSide(partition, history, config, needs.mailing, placement)
        else:
            self._side = DeviceSide(partition, history, config, placement, uploads)
        self._in_batch = in_batch and config.in_batch_neighbors
        self._stream = Stream.EVAL_SAMPLE if evaluation else Stream.SAMPLE
        self._plans = PlanStream(placement.device)

    @property
    def moves_memory(self) -> bool:
        """Whether events of the plans change node memory."""
        return self._needs.mailing is not None

    @property
    def on_device(self) -> bool:
        """Whether plans are made on the device."""
        return isinstance(self._side, DeviceSide)

    def plans_in_a_row(self, batches: Batches, negatives: int) -> int:
        """Return how many plans, with ``negatives`` an event, are made at once where none are made in the background:
        equally many on all ranks, which plan together."""
        if self.on_device:
            return 1  # there are no caches to keep warm
        events = int(batches.sizes.max(initial=1))
        roots = events * (2 + negatives) * self._config.num_windows
        neighbors = roots * math.prod(map(self._config.fanout, range(max(1, self._needs.hops))))
        size = max(1, self._feature_bytes(events, roots))
        return max(1, min(MOST_PLANS_IN_A_ROW, NEIGHBORS_IN_A_ROW // neighbors, BYTES_IN_A_ROW // size))

    def _feature_bytes(self, events: int, roots: int) -> int:
        """Count the bytes that the features in the plan of a step take at most, on all ranks together."""
        partition, dtype = self._partition, self._place.dtype
        fanouts, ranks = [self._config.fanout(hop) for hop in range(self._needs.hops)], self._place.plan_channel.size
        queries = list(accumulate(fanouts, lambda count, fanout: count * (1 + fanout), initial=roots))
        nodes = min(queries[-1], ranks * partition.book.num_nodes)
        if partition.features is not None:
            drawn = (count * fanout for count, fanout in zip(queries[:-1], fanouts, strict=True))
            events += sum(min(count, ranks * self._num_events) for count in drawn)
        return dtype.itemsize * (nodes * partition.node_width + events * partition.edge_width)

    def plan(
        self, batches: Batches, negatives: AnyNegatives, epoch: int, step: int, write: bool = True,
        columns: slice = slice(None),
    ) -> StepPlan:  # fmt: skip
        """Collective. Plan a step. negatives: of all events of the split, of which ``columns`` are looked at; without
        ``write``, the plan only scores. The plan is made on a separate stream."""
        return self._plans.run(partial(self._plan, batches, negatives, epoch, step, write, columns))

    def _plan(self, batches, negatives, epoch: int, step: int, write: bool, columns: slice) -> StepPlan:
        side, needs = self._side, self._needs
        # Five kinds of exchanges in one order on all ranks, also on those without an event: negatives, clocks, then
        # neighbors hop by hop, the route, writes.
        events, candidates = side.events(batches, negatives, step, columns)
        planned = {name: values for name, values in events.columns.items() if name in PLANNED}
        planned |= {} if candidates.count is None else {"count": candidates.count}
        ids = [values for values in (candidates.dst, candidates.src) if values is not None]
        roots = side.lib.concatenate([events.src, events.dst, *(values.T.reshape(-1) for values in ids)])
        first, last, _ = columns.indices(negatives.per_event)
        ends = [first + end * negatives.per_event for end in range(len(ids))]
        numbers = side.lib.concatenate([begin + side.arange(last - first) for begin in ends])
        times = side.lib.tile(events.time, (2 + len(numbers),))
        identity = root_identity(events.row, numbers, self._num_events, side.lib)
        limit = native.NO_LIMIT if self._in_batch else int(batches.first_row[step])
        writing = write and needs.mailing is not None
        clocks = None if needs.clocks is None else self._clocks_of(needs.clocks, events, candidates, limit)
        queries, answers = self._descend(
            self._windows(Queries(roots, times, identity)), limit, writing, epoch, step
        )  # fmt: skip
        lowest = [queries[-1].nodes, answers[-1].other.reshape(-1)] if needs.hops else [roots]
        inverse, route, unique, node_feature = side.route(side.lib.concatenate(lowest))
        root = inverse[: len(roots)]
        query = Query(
            self._index(root), self._transpose(root, len(unique)), self._move(times), self._move(identity),
            self._levels(queries, answers, inverse, len(unique)) if needs.hops else (), self._config.num_windows,
            ids[0].shape[1], len(ids) > 1,
        )  # fmt: skip
        writes = side.writes(events, route, unique, root, answers[0]) if writing else (None, None, None, None)
        nearby = (self._move(roots), self._move(answers[0].other[: len(roots)])) if needs.slots else None
        plan = StepPlan(
            step, epoch, int(batches.sizes[step]), len(events),
            batches.events.row[batches.at(step)], route.to(self._place.device), query,
            nearby, side.event_feature(events),
            *writes, {name: self._move(values) for name, values in planned.items()}, write, node_feature, clocks,
        )  # fmt: skip
        return pad_plan(plan) if self.is_padded else plan

    def _clocks_of(self, clocks: Clocks, events: Events, negatives: Negatives, limit: int) -> torch.Tensor:
        """Collective. Compute the clocks [1 + k, b, F] of events and of their k negatives; plans on the host alone."""
        dst, src = np.concatenate([events.dst[None], negatives.dst.T]), events.src
        if negatives.src is not None:
            src = np.concatenate([src[None], negatives.src.T])
        numbers = clocks.at(src, dst, events.time, limit)
        return self._move(numbers).to(self._place.dtype).view(*dst.shape, clocks.width)

    def _windows(self, queries: Queries) -> Queries:
        """Repeat the roots once per window, the newest first; unchanged without windows."""
        if self._config.window_length == 0:
            return queries
        count, width = self._config.num_windows, self._config.window_length
        number = self._side.arange(count)[:, None]
        end = (queries.times - number * width).reshape(-1)
        identity = (queries.identity * count + number).reshape(-1) if count > 1 else queries.identity
        return Queries(self._side.lib.tile(queries.nodes, (count,)), end, identity, end - width)

    def _descend(
        self, queries: Queries, limit: int, writers: bool, epoch: int, step: int
    ) -> tuple[list[Queries], list[Answer]]:
        """Collective. Ask hop by hop; returns queries and answers, the roots' first. Below, each query asks again for
        its own row and its neighbors ask at the time of their event."""
        needs, by_hop = self._needs, [queries]
        answers: list[Answer] = []
        mails = needs.mailing is not None and needs.mailing.to_neighbors
        draws = bool(needs.hops or mails or needs.slots)
        for hop in range(max(1, needs.hops)):
            if hop > 0:
                by_hop.append(neighbor_queries(by_hop[-1], answers[-1], self._side.lib))
            random = Random(self._seed, self._stream, step, epoch, hop)
            fanouts = self._config.fanouts_at(hop) if draws else [0]
            answers.append(self._side.ask(by_hop[-1], limit, random, fanouts, writers and hop == 0))
        return by_hop, answers

    def _levels(
        self, queries: list[Queries], answers: list[Answer], inverse: Array, num_unique: int
    ) -> tuple[Level, ...]:
        """Make the levels, from the lowest to the roots'."""
        levels: list[Level] = []
        lib = self._side.lib
        for hop in reversed(range(len(queries))):
            answer, count, shape = answers[hop], len(queries[hop]), answers[hop].other.shape
            if not levels:
                root, slot, below = inverse[:count], inverse[count:].reshape(shape), num_unique
            else:  # rows of the level below: the queries themselves, then their neighbors
                valid = answer.other >= 0
                number = valid.reshape(-1).cumsum(0).reshape(shape)
                slot = lib.asarray(lib.where(valid, number - 1 + count, -1), dtype=lib.int32)
                root, below = lib.asarray(self._side.arange(count), dtype=lib.int32), len(queries[hop + 1])
            edge_of = lib.full_like(slot[:, :1], -1) if answer.edge_of is None else answer.edge_of
            slots, counts, dt, edges = map(self._move, (slot, answer.count, answer.dt, edge_of))
            attention = AttentionPlan(slots, counts, dt, edges, *self._transpose(slot.reshape(-1), below))
            edge = self._move(answer.edge).to(self._place.dtype)
            levels.append(Level(self._index(root), self._transpose(root, below), attention, edge))
        return tuple(levels)

    def _transpose(self, index: Array, targets: int) -> tuple[torch.Tensor, torch.Tensor]:
        # Not cut to the entries that point somewhere, for which the host would wait for the device.
        indptr, order = map(self._move, native.transpose_index(index, targets, padded=False))
        return indptr, order

    def _index(self, rows: Array) -> torch.Tensor:
        return self._move(self._side.lib.asarray(rows, dtype=self._side.lib.int64))

    def _move(self, values: Array) -> torch.Tensor:
        return values if isinstance(values, torch.Tensor) else upload(torch.from_numpy(values), self._place.device)


def choose_sampler(
    partition: TemporalPartition, config: TemporalSamplingConfig, needs: Needs, place: Placement
) -> Callable[..., TemporalSampler]:  # fmt: skip
    """Choose the maker of samplers that plan on the device or on the host (``sampling.plan_on``). On the host it is
    TemporalSampler itself; samplers on the device share the graph there. Raises ValueError where the device cannot make
    plans."""
    if config.plan_on == "host":
        return TemporalSampler
    hindrance = other_device(place.device)
    if not hindrance and place.plan_channel.size > 1:
        hindrance = f"{place.plan_channel.size} ranks hold the graph, a device can plan for one"
    if not hindrance and needs.clocks is not None:
        hindrance = "the decoder reads clocks of pairs, which the host computes"
    if not hindrance and needs.mailing is not None and not needs.mailing.simple:
        hindrance = "mails go to neighbors, or are more than the newest one"
    if hindrance and config.plan_on == "device":
        raise ValueError(f"sampling.plan_on device: {hindrance}; leave it auto")
    size = graph_bytes(partition, place.dtype.itemsize, max(1, len(config.relation_fanouts)))
    if hindrance or (config.plan_on == "auto" and not place.room.takes(size)):
        return TemporalSampler
    place.room.note("histories of events", size, "sampling.plan_on host")
    return partial(TemporalSampler, uploads=Uploads(place.device))
