"""Sampler ranks: they hold the graph's edges and draw what trainer ranks ask for, until these leave."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hpcgnn.comm.crew import Crew, Lane
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.config import StaticConfig
from hpcgnn.graph.directory import epoch_shuffle
from hpcgnn.run.graph_link_goal import message_graph
from hpcgnn.run.logs import RunLog
from hpcgnn.sample.direction import outward
from hpcgnn.sample.draw import BlockSampler
from hpcgnn.sample.graph_config import OUT
from hpcgnn.sample.graph_neighbors import NeighborSampler, check_weights
from hpcgnn.sample.remote_draw import Leave, Request, Samplers, pack_drawn, read_request
from hpcgnn.sample.replica import make_neighbors, make_replica
from hpcgnn.store.graph_partition import GraphPartition, open_graph_partition
from hpcgnn.store.stage import stage_path
from hpcgnn.tasks.graph_config import LINK

Train = Callable[[World, Samplers | None], int]


def beside_samplers(config: Any, path: str, world: World, watchdog: Watchdog, log: RunLog, train: Train) -> int:
    """Collective. ``train`` with the world of the trainer ranks while the others sample; on all ranks, with None, where
    ``comm.sampler_ranks`` is 0. Returns its exit code on every rank."""
    if not config.comm.sampler_ranks:
        return train(world, None)
    ahead = world.plans_ahead(config.sampling.prefetch, config.sampling.in_flight)
    crew = Crew(world, config.sampling.in_flight if ahead else 1)
    if crew.samples:
        return SamplerRank(config, path, crew, watchdog, log).serve()
    samplers = Samplers(crew)
    try:
        code = train(crew.world, samplers)
    except DistributedError as error:
        samplers.fail(error)
        raise
    samplers.leave(code)
    return code


class SamplerRank:
    """Collective over the samplers to create and to serve. A lane is served by a thread of its own where there are
    several; all samplers draw the steps of a lane in one order, those that nobody asked too."""

    def __init__(self, config: StaticConfig, path: str, crew: Crew, watchdog: Watchdog, log: RunLog):
        self._config, self._crew, self._watchdog, self._world = config, crew, watchdog, crew.world
        number, mapping = self._world.rank, crew.mapping
        self._askers = mapping.askers(number)
        self._sources = self._askers or [mapping.source(number)]
        self._lock, self._busy, self._epoch = threading.Lock(), 0, -1
        try:
            self._draws = self._make_draws(path, log)
        except DistributedError as error:
            crew.meet(error)
        crew.meet()

    def _make_draws(self, path: str, log: RunLog) -> list[BlockSampler]:
        """Collective over the samplers. One for each lane, all of the same edges."""
        config, world, lanes = self._config, self._world, self._crew.lanes
        channels = [world.channel(polite=True) for _ in lanes]
        folder = stage_path(path, config.data.stage_to, world)
        with together(world, "open the partition set"):
            out = config.sampling.direction == OUT
            partition = open_graph_partition(
                folder, world.rank, world.size, config.data.check_hash, columns=False, with_out=out
            )
            config.sampling.check_relations([relation.name for relation in partition.relations])
            if config.sampling.mode == "weighted":
                check_weights(partition)
        if out:
            partition = outward(partition, channels[0])
        self._excluded = None
        if config.task.kind == LINK:
            partition, self._excluded = message_graph(config, partition, world, channels[0])
        threads = max(1, world.threads // len(lanes))
        neighbors = self._make_neighbors(partition, channels[0], threads)
        first = BlockSampler(neighbors, config.sampling, config.train.seed)
        edges = sum(len(found.src) for found in partition.edges)
        log(f"sampler rank {world.rank} of {world.size} on {world.host}: {partition.num_nodes} nodes, {edges} edges",
            everywhere=True)  # fmt: skip
        return [first, *map(first.over, channels[1:])]

    def _make_neighbors(self, partition: GraphPartition, channel: Channel, threads: int) -> NeighborSampler:
        """Collective over the samplers."""
        mode, topology = self._config.sampling.mode, self._config.sampling.topology
        self._replica = make_replica(topology, partition, mode, self._world, channel, self._excluded)
        if self._replica is not None:
            self._excluded = self._replica.excluded
        return make_neighbors(partition, mode, channel, threads, excluded=self._excluded, replica=self._replica)

    def serve(self) -> int:
        """Collective over the samplers. Draw until the trainers leave; returns their exit code, or raises the error
        that they leave with."""
        self._watchdog.idle()
        reason = self._serve_lanes()
        self._watchdog.at("leave")
        if self._replica is not None:
            self._replica.close()
        if reason.error:
            raise DistributedError(reason.error, reason.user_error)
        return reason.code

    def _serve_lanes(self) -> Leave:
        pairs = list(zip(self._crew.lanes, self._draws, strict=True))
        if len(pairs) == 1:
            return self._serve_lane(*pairs[0])
        ends: queue.SimpleQueue = queue.SimpleQueue()

        def run(lane: Lane, draws: BlockSampler) -> None:
            try:
                ends.put((self._serve_lane(lane, draws), None))
            except BaseException as error:
                ends.put((None, error))

        for pair in pairs:
            threading.Thread(target=run, args=pair, name="sampler", daemon=True).start()
        for _ in pairs:
            reason, error = ends.get()
            if error is not None:
                raise error
        return reason

    def _serve_lane(self, lane: Lane, draws: BlockSampler) -> Leave:
        while True:
            asked: list[Any] = [read_request(lane.receive(rank)) for rank in self._sources]
            if isinstance(asked[0], Leave):
                lane.flush()
                return asked[0]
            with self._at_work(asked[0]):
                self._draw(asked, lane, draws)

    def _draw(self, asked: list[Request], lane: Lane, draws: BlockSampler) -> None:
        """Collective over the samplers. A step for every trainer that asked, one after the other."""
        epoch, step, training = asked[0].epoch, asked[0].step, asked[0].training
        assert all((r.epoch, r.step, r.training) == (epoch, step, training) for r in asked)
        self._start_epoch(epoch, training)
        for number in range(self._crew.mapping.rounds):
            mine = number < len(self._askers)
            drawn = draws.draw_groups(asked[number].groups if mine else [], epoch, step, training)
            if mine:
                lane.send(pack_drawn(drawn), self._askers[number])

    def _start_epoch(self, epoch: int, training: bool) -> None:
        """No trainer asks for an epoch before all of the one before is drawn: each of its steps ends on all at once."""
        with self._lock:
            if training and self._excluded is not None and epoch != self._epoch:
                self._excluded.start_epoch(epoch_shuffle(self._config.train.seed, epoch))
                self._epoch = epoch

    @contextmanager
    def _at_work(self, request: Request) -> Iterator[None]:
        """Tell the watchdog, and name this sampler where its work fails."""
        with self._lock:
            self._busy += 1
            self._watchdog.at("draw", request.step)
        try:
            yield
        except Exception as error:
            place = f"sampler rank {self._world.rank} of {self._world.size}"
            raise RuntimeError(f"{place} failed at epoch {request.epoch}, step {request.step}") from error
        with self._lock:
            self._busy -= 1
            if self._busy == 0:
                self._watchdog.idle()
