"""Plans of temporal steps made on the device, for one rank: graph, events and event features lie there, and nothing of
a step comes from the host but which step it is.

The plans are those of `TemporalSampler`, bit for bit, but for event features: ``edge_of`` points at rows of the whole
table, which is on the device anyway. b events, R roles, N = b R roots, K slots, U unique nodes, as there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from hpcgnn import native, native_cuda
from hpcgnn.comm.route import Route
from hpcgnn.native import AttentionPlan, Random, Stream
from hpcgnn.native.dispatch import Uploads
from hpcgnn.nn.blocks import Level, Query
from hpcgnn.sample.batches import Batches
from hpcgnn.sample.config import SamplingConfig
from hpcgnn.sample.negatives import AllOthers, Negatives
from hpcgnn.sample.neighbors import ROOT_KINDS
from hpcgnn.sample.padding import pad_plan
from hpcgnn.sample.plan import StepPlan, WritePlan
from hpcgnn.sample.plan_stream import PlanStream
from hpcgnn.sample.resident_graph import ResidentEvents, ResidentGraph
from hpcgnn.sample.temporal import Needs, Placement
from hpcgnn.store.partition import History, TemporalPartition


@dataclass(slots=True)
class DeviceQueries:
    """As `hpcgnn.sample.neighbors.Queries`, on the device."""

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
        """As `TemporalSampler`'s; there are no caches to keep warm."""
        return 1

    def plan(
        self, batches: Batches, negatives: Negatives | AllOthers, epoch: int, step: int, write: bool = True,
        columns: slice = slice(None),
    ) -> StepPlan:  # fmt: skip
        """As `TemporalSampler.plan`, on a stream of its own."""
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
        """As `root_identity`."""
        negatives = (numbers[:, None] * self._num_events + row) * ROOT_KINDS + 2
        return torch.cat([row * ROOT_KINDS, row * ROOT_KINDS + 1, negatives.reshape(-1)])

    def _windows(self, queries: DeviceQueries) -> DeviceQueries:
        """As `TemporalSampler`'s."""
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
        transpose = native_cuda.transpose_index(slot.view(-1), below)
        plan = AttentionPlan(slot, answer.count, answer.dt, edge_of, *transpose)
        return Level(root.long(), self._transpose(root, below), plan, self._graph.features)

    @staticmethod
    def _transpose(index: torch.Tensor, targets: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of an index without padding."""
        return native_cuda.transpose_index(index, targets)

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
