"""Sampling servers: ranks that hold the graph's edges and draw neighbors for the ranks that train (trainers).

A message is bytes: a header of int64, then the arrays whose sizes it has. Where servers hold the features, too
(``comm.server_features``), the rows of the drawn nodes follow, in one message for each type. A trainer requests steps
ahead: the one it plans and at most ``comm.server_buffer`` more, so neither side holds more drawn steps.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.crew import Crew, Lane
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.graph.book import check_same_set
from hpcgnn.graph.directory import epoch_shuffle
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.loop.logs import RunLog
from hpcgnn.native.workspace import empty_rows
from hpcgnn.static.config import StaticConfig
from hpcgnn.static.features import FEATURE, NodeTables
from hpcgnn.static.graph import open_partition
from hpcgnn.static.learned_edges import find_edges_to_learn
from hpcgnn.static.model.blocks import Adjacency, Block, RelationEdges
from hpcgnn.static.sampling.draw import BlockSampler, Drawn, Groups, Steps
from hpcgnn.static.sampling.neighbors import Exclusion, check_drawn_by, sampler_of
from hpcgnn.static.sampling.replica import make_neighbors, make_replica

STEP, LEAVE = 0, 1
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # that rows travel in


@dataclass(frozen=True, slots=True)
class Request:
    """A request to draw a step for groups of root nodes. Servers without a trainer get it without groups, because
    drawing is collective over all servers."""

    epoch: int
    step: int
    training: bool
    groups: Groups

    def pack(self) -> np.ndarray:
        """Pack the bytes of a message."""
        sizes = [number for kind, ids in self.groups for number in (kind, len(ids))]
        header = [STEP, self.epoch, self.step, self.training, len(self.groups), *sizes]
        return _bytes(np.array(header, np.int64), *(ids for _, ids in self.groups))


@dataclass(frozen=True, slots=True)
class Leave:
    """No more steps: the trainers end with an exit code, or with an error and whether it is the user's."""

    code: int = 0
    error: str = ""
    user_error: bool = False

    def pack(self) -> np.ndarray:
        """Pack the bytes of a message."""
        header = np.array([LEAVE, self.code, self.user_error], np.int64)
        return np.concatenate([_bytes(header), np.frombuffer(self.error.encode(), np.uint8)])


def read_request(message: np.ndarray) -> Request | Leave:
    """Read what a trainer sent."""
    if message[:8].view(np.int64)[0] == LEAVE:
        _, code, user_error = message[:24].view(np.int64).tolist()
        return Leave(code, message[24:].tobytes().decode(), bool(user_error))
    values = message.view(np.int64)
    _, epoch, step, training, count = values[:5].tolist()
    kinds, sizes = values[5 : 5 + 2 * count].reshape(count, 2).T
    ids = np.split(values[5 + 2 * count :], np.cumsum(sizes)[:-1]) if count else []
    return Request(epoch, step, bool(training), list(zip(kinds.tolist(), ids, strict=True)))


def pack_drawn(drawn: Drawn) -> np.ndarray:
    """Pack the bytes of a message: places, offsets, sources of edges as int32 (they count within a batch), ids and
    positions of edges as int64, and of features their widths and dtype."""
    places: list[Any] = drawn.places
    input_ids = drawn.input_ids
    header = [len(places), len(input_ids), len(drawn.blocks), *map(len, places), *map(len, input_ids)]
    header += [len(drawn.features), *(number for rows in drawn.features for number in _form(rows))]
    arrays = [place.astype(np.int32) for place in places]
    for block in drawn.blocks:
        header += [len(block.relations), *block.num_src, *block.num_dst, isinstance(block.relations, RelationEdges)]
        if isinstance(block.relations, RelationEdges):
            edges = block.relations
            header += [*(number for kind in edges.kinds for number in kind), *edges.begin, len(edges.source)]
            header += [edges.edge is not None]
            arrays += _narrow(edges.destination, edges.indptr, edges.source)
            arrays += [] if edges.edge is None else [edges.edge.numpy()]
            continue
        for adjacency in block.relations:
            header += [adjacency.relation, adjacency.src_type, adjacency.dst_type, len(adjacency.source)]
            header += [adjacency.edge is not None]
            arrays += _narrow(adjacency.indptr, adjacency.source)
            arrays += [] if adjacency.edge is None else [adjacency.edge.numpy()]
    whole = np.array([len(header), *header], np.int64)
    return _bytes(whole, *input_ids, *arrays)


def _narrow(*tensors: torch.Tensor) -> list[np.ndarray]:
    """Return offsets and places, which count within a batch, as int32."""
    assert all(len(tensor) < 1 << 31 for tensor in tensors)
    return [tensor.numpy().astype(np.int32) for tensor in tensors]


def read_drawn(message: np.ndarray) -> Drawn:
    """Read what ``pack_drawn`` packed; of features there is room for the rows, which follow."""
    length = int(message[:8].view(np.int64)[0])
    header = iter(message[8 : 8 + 8 * length].view(np.int64).tolist())
    at = 8 + 8 * length

    def take(count: int, dtype: type) -> np.ndarray:
        nonlocal at
        begin, at = at, at + count * np.dtype(dtype).itemsize
        return message[begin:at].view(dtype).astype(np.int64)

    num_places, num_types, num_blocks = (next(header) for _ in range(3))
    place_sizes, sizes = ([next(header) for _ in range(count)] for count in (num_places, num_types))
    input_ids = [take(size, np.int64) for size in sizes]
    forms = [(next(header), next(header)) for _ in range(next(header))]
    features = tuple(_empty_rows(size, *form) for size, form in zip(sizes, forms, strict=False))
    places = [take(size, np.int32) for size in place_sizes]
    blocks = []
    for _ in range(num_blocks):
        num_relations = next(header)
        num_src, num_dst = (tuple(next(header) for _ in range(num_types)) for _ in range(2))
        if next(header):
            kinds = tuple((next(header), next(header), next(header)) for _ in range(num_relations))
            begin, num_edges = tuple(next(header) for _ in range(num_relations + 1)), next(header)
            has_positions = next(header)
            tensors = [torch.from_numpy(take(size, np.int32)) for size in (begin[-1], begin[-1] + 1, num_edges)]
            tensors += [torch.from_numpy(take(num_edges, np.int64))] if has_positions else []
            blocks.append(Block(RelationEdges(kinds, begin, num_dst, *tensors), num_src, num_dst))
            continue
        relations = []
        for _ in range(num_relations):
            relation, src_type, dst_type, edges, has_positions = (next(header) for _ in range(5))
            indptr, source = (torch.from_numpy(take(count, np.int32)) for count in (num_dst[dst_type] + 1, edges))
            position = torch.from_numpy(take(edges, np.int64)) if has_positions else None
            relations.append(Adjacency(relation, src_type, dst_type, indptr, source, position))
        blocks.append(Block(tuple(relations), num_src, num_dst))
    return Drawn(places, tuple(blocks), input_ids, features)


def _form(rows: torch.Tensor | None) -> tuple[int, int]:
    """Return width and number of the dtype of rows that follow; -1 where none do."""
    return (-1, 0) if rows is None else (rows.shape[1], DTYPES.index(rows.dtype))


def _empty_rows(count: int, width: int, dtype: int) -> torch.Tensor | None:
    """Make room for rows of a form, in memory that earlier steps have given back."""
    return None if width < 0 else empty_rows(torch.empty(0, dtype=DTYPES[dtype]), count, width)


def _bytes_of(rows: torch.Tensor) -> np.ndarray:
    """View the bytes of rows [n, F]."""
    return rows.view(torch.uint8).flatten().numpy()


def _bytes(*arrays: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ascontiguousarray(array).view(np.uint8) for array in arrays])


class RemoteDraw:
    """Requests draws from this trainer's sampling server, over a lane that no other thread uses at the same time."""

    on_device = False

    def __init__(self, crew: Crew, lane: Lane, ahead: int, dtype: torch.dtype):
        """ahead: steps requested besides the one that is received; dtype: of the features that servers send."""
        self._lane, self._ahead, self._dtype, trainer = lane, ahead, dtype, crew.job.rank
        self._sampler = crew.rank_of(crew.mapping.sampler_of(trainer))
        self._followers = [crew.rank_of(sampler) for sampler in crew.mapping.followers(trainer)]
        self._pending: deque[tuple[str, int, int]] = deque()

    @property
    def num_pending(self) -> int:
        """Number of steps that were requested and not yet received."""
        return len(self._pending)

    def draw(self, steps: Steps, step: int, stride: int = 1) -> Drawn:
        """Collective over the trainers. Receive the draw of a step, and request the next ones ahead."""
        name = steps.batches.name
        while self._pending and self._pending[0] != (name, steps.epoch, step):
            self._take()
        if not self._pending:
            self._ask(steps, step)
        else:
            steps.groups(step)
        while self.num_pending <= self._ahead and (after := self._pending[-1][2] + stride) < steps.batches.num_steps:
            self._ask(steps, after)
        return self._take()

    def settle(self) -> None:
        """Receive and drop the draws of plans that were given up, so that the lane is empty."""
        while self._pending:
            self._take()

    def leave(self, reason: Leave) -> None:
        """Collective over the trainers. Send the servers the reason why the trainers leave."""
        self.settle()
        self._send(reason, reason)
        self._lane.flush()

    def _ask(self, steps: Steps, step: int) -> None:
        training, epoch = steps.training, steps.epoch
        self._send(Request(epoch, step, training, steps.groups(step)), Request(epoch, step, training, []))
        self._pending.append((steps.batches.name, epoch, step))

    def _take(self) -> Drawn:
        self._pending.popleft()
        drawn = read_drawn(self._lane.receive(self._sampler))
        for rows in drawn.features:
            if rows is not None:
                self._lane.receive_into(_bytes_of(rows), self._sampler)
        return replace(drawn, features=tuple(rows if rows is None else rows.to(self._dtype) for rows in drawn.features))

    def _send(self, request: Request | Leave, to_followers: Request | Leave) -> None:
        self._lane.send(request.pack(), self._sampler)
        for rank in self._followers:
            self._lane.send(to_followers.pack(), rank)


class RemoteDraws:
    """What a loader plans with where sampling servers draw. draws: one for each plan in flight; dtype: of the features
    that servers send."""

    def __init__(self, crew: Crew, lanes: Sequence[Lane], dtype: torch.dtype):
        ahead = crew.job.config.server_buffer // len(lanes)
        self.draws = [RemoteDraw(crew, lane, ahead, dtype) for lane in lanes]

    def settle(self) -> None:
        """Receive and drop all draws that are pending."""
        for draw in self.draws:
            draw.settle()

    def leave(self, reason: Leave) -> None:
        """Collective over the trainers. Send the servers the reason why no more draws are requested."""
        for draw in self.draws:
            draw.leave(reason)


class Samplers(RemoteDraws):
    """A trainer's side of the sampling servers of a run."""

    def __init__(self, crew: Crew, dtype: torch.dtype):
        super().__init__(crew, crew.lanes, dtype)
        self._crew = crew

    def describe(self) -> str:
        """Name the ranks that train and the sampling servers."""
        mapping = self._crew.mapping
        ranks = ", ".join(str(self._crew.rank_of(sampler)) for sampler in range(mapping.num_samplers))
        hold = ", which hold the features" if self._crew.job.config.server_features else ""
        return f"{mapping.num_trainers} ranks train, sampling servers: rank {ranks}{hold}"

    def meet(self) -> None:
        """Collective over the job. Wait until servers and trainers are ready. Raises DistributedError if the servers
        failed."""
        self._crew.meet()

    def fail(self, error: DistributedError) -> None:
        """Collective over the trainers. End the servers with the error that the trainers leave with."""
        if not self._crew.met:
            self._crew.meet(error)
        elif self._crew.open:
            self.leave(Leave(0, str(error), error.user_error))


Train = Callable[[World, Samplers | None], int]


def beside_samplers(config: Any, path: str, world: World, watchdog: Watchdog, log: RunLog, train: Train) -> int:
    """Collective. Call ``train`` with the world of the trainers while the other ranks are sampling servers; on all
    ranks, with None, where ``comm.sampling_servers`` is 0. Returns its exit code on every rank."""
    if not config.comm.sampling_servers:
        return train(world, None)
    check_same_set(path, world)  # of both sides, which open it each for itself
    ahead = world.plans_ahead(config.sampling.prefetch, config.sampling.in_flight)
    crew = Crew(world, config.sampling.in_flight if ahead else 1)
    if crew.samples:
        return SamplerRank(config, path, crew, watchdog, log).serve()
    samplers = Samplers(crew, config.train.dtype)
    try:
        code = train(crew.world, samplers)
    except DistributedError as error:
        samplers.fail(error)
        raise
    samplers.leave(Leave(code))
    return code


class EpochExclusion:
    """The edges that steps leave out, for all lanes of a server, in the order of the seeds of an epoch. seed: of the
    order."""

    def __init__(self, excluded: Exclusion, seed: int):
        self._excluded, self._seed, self._epoch, self._lock = excluded, seed, -1, threading.Lock()

    def start(self, epoch: int) -> None:
        """Begin an epoch of training, unless it has begun."""
        with self._lock:
            # Safe beside the threads of other lanes: no trainer requests an epoch before all of the last one is drawn.
            if epoch != self._epoch:
                self._excluded.start_epoch(epoch_shuffle(self._seed, epoch))
                self._epoch = epoch


@dataclass(frozen=True, slots=True)
class LaneSource:
    """What a server draws a lane's steps with. channel: between the servers; excluded: edges that steps of training
    leave out, if any; tables: the features that are sent, if any."""

    draws: BlockSampler
    channel: Channel
    excluded: EpochExclusion | None
    tables: NodeTables | None


class ServingRank:
    """A sampling server. Collective over the servers. All servers draw the steps of a lane in one order, because
    drawing is collective."""

    def __init__(self, crew: Crew, watchdog: Watchdog):
        self._crew, self._watchdog, self._world = crew, watchdog, crew.world
        number, mapping = self._world.rank, crew.mapping
        self._askers = mapping.askers(number)
        self._sources = self._askers or [mapping.source(number)]
        self._lock, self._busy = threading.Lock(), 0

    def _serve_lane(self, lane: Lane, source: LaneSource) -> Leave:
        while True:
            requests: list[Any] = [read_request(lane.receive(rank)) for rank in self._sources]
            if isinstance(requests[0], Leave):
                lane.flush()
                return requests[0]
            with self._at_work(requests[0]):
                self._draw(requests, lane, source)

    def _draw(self, requests: list[Request], lane: Lane, source: LaneSource) -> None:
        """Collective over the servers. Draw a step for each of this server's trainers, one after the other."""
        epoch, step, training = requests[0].epoch, requests[0].step, requests[0].training
        assert all((r.epoch, r.step, r.training) == (epoch, step, training) for r in requests)
        if training and source.excluded is not None:
            source.excluded.start(epoch)
        for number in range(self._crew.mapping.rounds):
            has_asker = number < len(self._askers)  # without one it still draws, to serve hops of other servers
            drawn = source.draws.draw_groups(requests[number].groups if has_asker else [], epoch, step, training)
            drawn = replace(drawn, features=_fetch(drawn, source))
            if has_asker:
                self._answer(drawn, lane, self._askers[number])

    def _answer(self, drawn: Drawn, lane: Lane, trainer: int) -> None:
        lane.send(pack_drawn(drawn), trainer)
        for rows in drawn.features:
            if rows is not None:
                lane.send_sized(_bytes_of(rows), trainer)

    @contextmanager
    def _at_work(self, request: Request) -> Iterator[None]:
        """Report to the watchdog, and name this server in an error of its work."""
        with self._lock:
            self._busy += 1
            self._watchdog.at("draw", request.step)
        try:
            yield
        except Exception as error:
            place = f"sampling server {self._world.rank} of {self._world.size}"
            raise RuntimeError(f"{place} failed at epoch {request.epoch}, step {request.step}") from error
        with self._lock:
            self._busy -= 1
            if self._busy == 0:
                self._watchdog.idle()


def _fetch(drawn: Drawn, source: LaneSource) -> tuple[torch.Tensor | None, ...]:
    """Collective over the servers. Fetch the features of the nodes of a draw, by type, in the dtype that they travel
    in; empty where trainers have them."""
    if source.tables is None:
        return ()
    input_ids: list[Any] = list(drawn.input_ids)
    features: list[Any] = []
    for rows, ids in zip(source.tables.rows, input_ids, strict=True):
        features.append(None)
        if FEATURE in rows.tables:
            fetched = rows.fetch(rows.plan(ids, source.channel), FEATURE)
            features[-1] = fetched if rows.wire is None else fetched.to(rows.wire)
    return tuple(features)


class SamplerRank(ServingRank):
    """A sampling server of a run. Collective over the servers to create and to serve. Where there are several lanes, a
    separate thread serves each."""

    def __init__(self, config: StaticConfig, path: str, crew: Crew, watchdog: Watchdog, log: RunLog):
        super().__init__(crew, watchdog)
        self._config = config
        try:
            self._draws = self._make_draws(path, log)
        except DistributedError as error:
            crew.meet(error)
        crew.meet()

    def _make_draws(self, path: str, log: RunLog) -> list[LaneSource]:
        """Collective over the servers. Make a draw for each lane, all of the same edges, and read the features if
        servers hold them."""
        config, world, lanes = self._config, self._world, self._crew.lanes
        features = config.comm.server_features
        channels = [world.channel(polite=True, by_machine=features) for _ in lanes]
        partition = open_partition(config, path, world, channels[0], self._check, columns=features)
        left_out = None
        if config.task.of_edges:
            # Without the edges of the test: trainers score it by exact inference, from edges of their own.
            learned = find_edges_to_learn(config, partition, world, channels[0], with_test=False)
            partition, left_out = learned.messages, learned.excluded
        self._tables = None
        if features:
            self._tables = NodeTables(partition, config.features, world, channels[0], config.train.dtype)
        threads = max(1, world.threads // len(lanes))
        mode, weight = config.sampling.strategy, config.sampling.weight_column
        self._replica = make_replica(
            config.sampling.topology, partition, mode, world, channels[0], left_out, weight
        )  # fmt: skip
        if self._replica is not None:
            left_out = self._replica.excluded
        neighbors = make_neighbors(
            partition, mode, channels[0], threads, excluded=left_out, replica=self._replica, weight=weight,
            neighbors=sampler_of(config.sampling.class_path),
        )  # fmt: skip
        first = BlockSampler(neighbors, config.sampling, config.train.seed)
        num_edges = sum(len(edges.src) for edges in partition.edges)
        size = f"{partition.num_nodes} nodes, {num_edges} edges"
        log(f"sampling server {world.rank} of {world.size} on {world.host}: {size}", everywhere=True)
        excluded = None if left_out is None else EpochExclusion(left_out, config.train.seed)
        draws = zip([first, *map(first.over, channels[1:])], channels, strict=True)
        return [LaneSource(*pair, excluded, self._tables) for pair in draws]

    def _check(self, partition: GraphPartition) -> None:
        """Raises ValueError for samples that cannot be drawn from the graph."""
        sampling = self._config.sampling
        sampler_of(sampling.class_path)
        sampling.check_relations([relation.name for relation in partition.relations])
        if sampling.strategy == "weighted":
            check_drawn_by(partition, sampling.weight_column)

    def serve(self) -> int:
        """Collective over the servers. Draw until the trainers leave; returns their exit code, or raises the error
        that they leave with."""
        self._watchdog.idle()
        reason = self._serve_lanes()
        self._watchdog.at("leave")
        for shared in (self._replica, self._tables):
            if shared is not None:
                shared.close()
        if reason.error:
            raise DistributedError(reason.error, reason.user_error)
        return reason.code

    def _serve_lanes(self) -> Leave:
        pairs = list(zip(self._crew.lanes, self._draws, strict=True))
        if len(pairs) == 1:
            return self._serve_lane(*pairs[0])
        ends: queue.SimpleQueue = queue.SimpleQueue()

        def run(lane: Lane, source: LaneSource) -> None:
            try:
                ends.put((self._serve_lane(lane, source), None))
            except BaseException as error:
                ends.put((None, error))

        for pair in pairs:
            threading.Thread(target=run, args=pair, name="sampler", daemon=True).start()
        for _ in pairs:
            reason, error = ends.get()
            if error is not None:
                raise error
        return reason
