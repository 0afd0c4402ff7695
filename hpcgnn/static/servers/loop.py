"""Sampling servers beside a training loop of the user: ranks that draw neighbors for the loop's loaders.

Trainers and servers open the graph, each side for itself. On the first lane of the crew, a trainer announces a loader:
how it draws, the edges that its steps leave out, and the lanes that its plans use. On these lanes, a thread of the
server then answers requests as in a run, until the loader is gone. x edges and y seeds of a trainer, see HiddenEdges.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.crew import Crew, Lane, packed
from hpcgnn.comm.exchange import Channel, exchange_columns
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.graph.book import BlockOwnership, check_same_set
from hpcgnn.native import Stream
from hpcgnn.static.config import IN, Direction, FeatureConfig
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.loader import DrawOptions, make_draw
from hpcgnn.static.sampler_ranks import EpochExclusion, LaneSource, Leave, RemoteDraws, ServingRank
from hpcgnn.static.sampling.neighbors import Exclusion, HiddenEdges, edges_below
from hpcgnn.static.sampling.seeds import make_link_seeds, take_edges

Loop = Callable[[StaticGraph], Any]
Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # of hidden edges, by number of the relation


def beside_servers(
    loop: Loop, path: str | os.PathLike, world: World, features: FeatureConfig | None = None,
    dtype: torch.dtype = torch.float32, check_hash: bool = True, direction: Direction = IN,
) -> Any:  # fmt: skip
    """Collective. Call ``loop(graph)`` on the ranks that train, while the last ranks are sampling servers: as many as
    ``CommConfig.sampling_servers`` of the world. They draw the neighbors for all loaders that the loop makes; batches
    are those that the trainers alone would draw. Without servers, all ranks call the loop.

    loop: trains on ``graph.world``, the ranks without servers; the graph is closed when it returns. path, features,
    dtype, check_hash, direction: as for ``StaticGraph``. With ``CommConfig.server_features``, the servers hold the
    features.

    Returns the loop's result, None on servers. An error of all trainers, or their exit, is that of the servers, too.

    Raises DistributedError for a partition set that cannot be used, servers that leave no trainer, options that need
    features at the trainers, and where MPI allows no calls from several threads.
    """
    comm, options = world.config, (features, dtype, check_hash, direction)
    if not comm.sampling_servers:
        return _run(loop, StaticGraph(path, world, *options))
    with together(world, "make sampling servers"):
        _check(world, features or FeatureConfig())
    check_same_set(path, world)  # of both sides, which open it each for itself
    crew = Crew(world, 1)
    try:
        holds = crew.samples if comm.server_features else not crew.samples
        graph = StaticGraph(path, crew.world, *options, loads_features=holds)
    except DistributedError as error:
        crew.meet(error)
    crew.meet()
    if crew.samples:
        return LoopServer(graph, crew).serve()
    servers = graph.servers = LoopServers(crew, graph)
    try:
        result = _run(loop, graph)
    except (DistributedError, SystemExit) as error:
        graph.stop()
        servers.leave(error)
        raise
    servers.leave(None)
    return result


def _check(world: World, features: FeatureConfig) -> None:
    """Raises ValueError."""
    if not world.can_prefetch:
        raise ValueError("comm.sampling_servers: MPI allows no calls from several threads, which servers need: leave 0")
    used = [
        name for name, is_used in (
            ("cache_ratio", features.cache_ratio > 0), (f"storage {features.storage}", features.is_off_device)
        ) if is_used
    ]  # fmt: skip
    if world.config.server_features and used:
        raise ValueError(
            f"comm.server_features: the ranks that train hold no features: leave out {' and '.join(used)} of features, "
            "or comm.server_features"
        )


def _run(loop: Loop, graph: StaticGraph) -> Any:
    """Collective over the trainers. Call the loop, then close the graph."""
    result = loop(graph)
    graph.close()
    return result


@dataclass(frozen=True, slots=True)
class Announced:
    """A loader that a trainer announces to its server. graph: its name among the graphs with other edges; lanes:
    numbers of the lanes that its plans use, the last ``new`` of which are to be made. hidden: edges that steps leave
    out, with positions among all edges of the relation, and numbers of groups that no other trainer has; None: none are
    left out; then the pool's number of seeds, the seeds of a step, and the stream of the draws."""

    graph: Hashable
    options: DrawOptions
    lanes: tuple[int, ...]
    new: int
    hidden: dict[int, Columns] | None
    exclusion: tuple[int, int, Stream] | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The loop has ended: by a return, by an error of all trainers, or by their exit with a code."""

    error: str = ""
    user_error: bool = False
    exits: bool = False
    code: Any = None


class LoopServers:
    """A trainer's side of the sampling servers of a loop. Collective over the trainers."""

    def __init__(self, crew: Crew, graph: StaticGraph):
        self._crew, self._world, self._dtype = crew, crew.world, graph.dtype
        mapping, trainer = crew.mapping, crew.world.rank
        self._server = crew.rank_of(mapping.sampler_of(trainer))
        self._followers = [crew.rank_of(sampler) for sampler in mapping.followers(trainer)]
        self._free: list[int] = []
        self._open: list[tuple[weakref.ref, tuple[int, ...], RemoteDraws]] = []

    def open(
        self, loader: Any, graph: StaticGraph, options: DrawOptions, excluded: Exclusion | None
    ) -> RemoteDraws:  # fmt: skip
        """Collective. Announce a loader to the servers, and return what it plans with. Raises DistributedError."""
        self._close_unused()
        sampling = options.sampling
        count = sampling.in_flight if self._world.plans_ahead(sampling.prefetch, sampling.in_flight) else 1
        used = self._free[:count]
        new = count - len(used)
        lanes = (*used, *range(len(self._crew.lanes), len(self._crew.lanes) + new))
        hidden, exclusion = None, None
        if excluded is not None:
            hidden = self._hidden(graph, excluded)
            exclusion = excluded.total, excluded.batch_size, excluded.stream
        with together(self._world, "make a loader"):
            message = _packed(Announced(graph.name, options, lanes, new, hidden, exclusion))
            empty = hidden and {number: (np.empty(0, np.int64),) * 4 for number in hidden}
            followers = _packed(Announced(graph.name, options, lanes, new, empty, exclusion))
        self._send(message, followers)
        for _ in range(new):
            self._crew.add_lane()
        problems = [self._control.receive(rank).tobytes().decode() for rank in (self._server, *self._followers)]
        if any(problems):
            self._free += lanes[len(used) :]
            raise DistributedError(max(problems), user_error=True)
        self._free = self._free[len(used) :]
        draws = RemoteDraws(self._crew, [self._crew.lanes[number] for number in lanes], self._dtype)
        self._open.append((weakref.ref(loader), lanes, draws))
        return draws

    def close(self, loader: Any) -> None:
        """Collective. Free the lanes of a loader, whose iterations have ended."""
        for reference, lanes, draws in self._open:
            if reference() is loader:
                draws.leave(Leave())
                self._free += lanes
        self._open = [entry for entry in self._open if entry[0]() is not loader]

    def leave(self, error: DistributedError | SystemExit | None) -> None:
        """Collective. End the servers, with an error of all trainers, if there is one."""
        for _, _, draws in self._open:
            draws.leave(Leave())
        reason = Ended()
        if isinstance(error, SystemExit):
            reason = Ended(exits=True, code=error.code)
        elif error is not None:
            reason = Ended(str(error), error.user_error)
        self._send(*[_packed(reason)] * 2)
        self._control.flush()

    @property
    def _control(self) -> Lane:
        return self._crew.lanes[0]

    def _send(self, message: np.ndarray, to_followers: np.ndarray) -> None:
        self._control.send(message, self._server)
        for rank in self._followers:
            self._control.send(to_followers, rank)

    def _close_unused(self) -> None:
        """Collective. Free the lanes of loaders that are gone on all trainers."""
        # Garbage collection frees a loader at different times on different ranks, and closing is collective.
        is_unused = np.array([loader() is None for loader, *_ in self._open], np.int8)
        for index in reversed(np.flatnonzero(self._world.reduce_array(is_unused, "min")) if len(is_unused) else ()):
            _, lanes, draws = self._open.pop(index)
            draws.leave(Leave())
            self._free += lanes

    def _hidden(self, graph: StaticGraph, excluded: Exclusion) -> dict[int, Columns]:
        """Collective. Number the edges that steps leave out as all ranks do, by relation."""
        first = edges_below(graph.partition, graph.channel)[self._world.rank]
        edges, relation, hidden = excluded.edges, excluded.relation, {}
        edge_group, seed_group = (
            group * self._world.size + self._world.rank for group in (edges.edge_group, edges.group)
        )
        relation_of_seed = relation[edges.indptr[edges.group]]  # of its group, which has edges of one relation
        for number in excluded.relations:
            of_edge, of_seed = relation == number, relation_of_seed == number
            columns = edges.position[of_edge] + first[number], edge_group[of_edge]
            hidden[number] = (*columns, edges.place[of_seed], seed_group[of_seed])
        return hidden


def _packed(message: Announced | Ended) -> np.ndarray:
    """Pack the bytes of a message. Raises ValueError for a class that servers could not find."""
    try:
        return packed(message)
    except Exception as error:  # of any kind: classes of the user's may say how they are packed
        raise ValueError(f"sampler: {error}: define the class in a module, where sampling servers find it") from error


class LoopServer(ServingRank):
    """A sampling server beside a loop. Collective over the servers."""

    def __init__(self, graph: StaticGraph, crew: Crew):
        super().__init__(crew, Watchdog(crew.world, 0))
        self._graph = graph
        self._tables = graph.tables if crew.job.config.server_features else None
        self._channels: dict[int, Channel] = {}  # by number of the lane
        self._threads: dict[int, threading.Thread] = {}
        self._kept: dict[int, Any] = {}  # by lane: while it is there, so is the replica of its loader

    def serve(self) -> None:
        """Collective over the servers. Draw until the loop ends. Raises the error, or the exit, that it ends with."""
        control = self._crew.lanes[0]
        while True:
            announced: Any = [control.receive_object(rank) for rank in self._sources]
            if isinstance(announced[0], Ended):
                break
            problem = ""
            try:
                self._begin(announced)
            except DistributedError as error:
                problem = str(error)
            for rank in self._sources:
                control.send(np.frombuffer(problem.encode(), np.uint8), rank)
        control.flush()
        for thread in self._threads.values():
            thread.join()
        self._graph.close()
        (reason, *_) = announced
        if reason.error:
            raise DistributedError(reason.error, reason.user_error)
        if reason.exits:
            sys.exit(reason.code)

    def _begin(self, announced: list[Announced]) -> None:
        """Collective over the servers. Make the draws of a loader, and serve its lanes."""
        new, world = announced[0], self._world
        for number in new.lanes[len(new.lanes) - new.new :]:
            self._crew.add_lane()
            self._channels[number] = world.channel(polite=True, by_machine=self._tables is not None)
        for number in new.lanes:  # a loader that used the lane before is gone
            if number in self._threads:
                self._threads.pop(number).join()
                self._kept.pop(number)
        graph, options = self._graph_of(new.graph), new.options
        excluded = self._excluded(graph, announced)
        owner, sampling = _Owner(), options.sampling
        replica = graph.replica(sampling.topology, sampling.strategy, excluded, owner, sampling.weight_column)
        excluded = excluded if replica is None else replica.excluded
        channels = [self._channels[number] for number in new.lanes]
        first = make_draw(graph, options, channels[0], max(1, world.threads // len(channels)), excluded, replica)
        epochs = None if excluded is None else EpochExclusion(excluded, options.seed)
        draws = [first, *map(first.over, channels[1:])]
        for number, of_lane, channel in zip(new.lanes, draws, channels, strict=True):
            source = LaneSource(of_lane, channel, epochs, self._tables)
            thread = threading.Thread(target=self._run, args=(self._crew.lanes[number], source), daemon=True)
            self._threads[number], self._kept[number] = thread, owner
            thread.start()

    def _run(self, lane: Lane, source: LaneSource) -> None:
        """Serve a lane in a thread; an error ends the job, as of the main thread."""
        try:
            self._serve_lane(lane, source)
        except Exception:
            sys.excepthook(*sys.exc_info())

    def _graph_of(self, name: Any) -> StaticGraph:
        """Collective over the servers. Return the graph, or the one without the edges of validation and test."""
        if name is None:
            return self._graph
        graph, (relation, reverse, _) = self._graph, name
        seeds = make_link_seeds(graph.partition, relation, reverse, True, graph.world, graph.channel)
        return graph.over(take_edges(graph.partition, seeds.stays), name)

    def _excluded(self, graph: StaticGraph, announced: list[Announced]) -> Exclusion | None:
        """Collective over the servers. Bring the edges that steps leave out to the servers that own them."""
        exclusion = announced[0].exclusion
        if exclusion is None:
            return None
        below, hidden = edges_below(graph.partition, graph.channel), {}
        of_trainers: Any = [of_trainer.hidden for of_trainer in announced]
        for number in sorted(of_trainers[0]):
            columns = [np.concatenate(pieces) for pieces in zip(*(of[number] for of in of_trainers), strict=True)]
            hidden[number] = _of_owners(BlockOwnership(below[:, number]), columns, graph.channel)
        return Exclusion(hidden, *exclusion)


class _Owner:
    """Stands for a loader that a replica belongs to."""


def _of_owners(ownership: BlockOwnership, columns: list[np.ndarray], channel: Channel) -> HiddenEdges:
    """Collective. Send the hidden edges of a relation, and their seeds, to the ranks that own the edges. All edges of a
    group have one owner: they lead to one node."""
    position, edge_group, place, seed_group = columns
    owner, row = ownership.locate(position)
    groups, first = np.unique(edge_group, return_index=True)
    owner_of_seed = owner[first[np.searchsorted(groups, seed_group)]] if len(groups) else seed_group
    row, edge_group = exchange_columns([row, edge_group], owner, channel)
    place, seed_group = exchange_columns([place, seed_group], owner_of_seed, channel)
    _, number = np.unique(np.concatenate([edge_group, seed_group]), return_inverse=True)
    return HiddenEdges.of(row, number[: len(edge_group)], place, number[len(edge_group) :])


__all__ = ["beside_servers"]
