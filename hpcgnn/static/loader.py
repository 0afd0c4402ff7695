"""Loads mini-batches of seeds with sampled neighbors: plans for a run, and batches of nodes for a user's own training
loop, without a run file.

``docs/library.md`` shows a whole loop. All of it is collective: every rank makes the same objects in the same order.
Nodes are named by their row in the graph file, within their type, whatever the partition. s seeds of this rank, U
nodes of a type in a batch.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.timers import Timers
from hpcgnn.comm.together import together
from hpcgnn.graph.directory import epoch_shuffle
from hpcgnn.graph.partition import WEIGHT
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.static import pyg
from hpcgnn.static.batches import NeighborBatch
from hpcgnn.static.config import AUTO, SHARDED, GraphSamplingConfig, StaticConfig, Strategy, Topology, message_columns
from hpcgnn.static.features import FEATURE
from hpcgnn.static.graph import Nodes, StaticGraph
from hpcgnn.static.model.blocks import rows_of
from hpcgnn.static.plan import DEGREE, NODE_COLUMNS, GraphPlan, GraphSampler, pad_graph_plan
from hpcgnn.static.sampler_ranks import RemoteDraws
from hpcgnn.static.sampling.contexts import ContextSampler
from hpcgnn.static.sampling.draw import BlockSampler, Draw, InducedSampler, Roots, choose_draw
from hpcgnn.static.sampling.edges import EdgeTables, check_columns
from hpcgnn.static.sampling.neighbors import Exclusion, NeighborSampler, check_drawn_by, check_sampler, sampler_of
from hpcgnn.static.sampling.replica import Replica, make_neighbors
from hpcgnn.static.sampling.seeds import Completion, SeedPool, make_pool, make_seed_batches, type_directory
from hpcgnn.static.sampling.times import TIME, TimedNeighbors, as_ticks, check_seed_time
from hpcgnn.task.labels import has_label, labeled_type, node_labels

PYG, HETERO = "pyg", "hetero"
FORMATS = ("", PYG, HETERO)
SUBGRAPHS = (DIRECTIONAL, INDUCED) = ("directional", "induced")


@dataclass(frozen=True, slots=True)
class Seeds:
    """Seeds of a loader. pool: all seeds; roots: the groups of nodes that a seed needs. excluded: the edges that a step
    leaves out; complete: makes the columns of a step, with others that the pool lacks, such as negatives."""

    pool: SeedPool
    roots: Roots
    excluded: Exclusion | None = None
    complete: Completion | None = None


class SeedLoader:
    """Collective to create. Plans the steps of a pool of seeds, ahead in the background.

    The seeds of a step and the sampled neighbors depend on the seed of the random numbers and the graph, not on the
    number of ranks. Every rank gets its share of every step, which may be empty. batches: of the current epoch;
    samplers: one for each plan in flight; prefetch: number of plans made ahead. remote: the sampling servers, if any;
    replica: the copy of all edges that neighbors are drawn from, if any.
    """

    def __init__(
        self, graph: StaticGraph, seeds: Seeds, sampling: GraphSamplingConfig, batch_size: int, seed: int, *,
        shuffle: bool = False, drop_last: bool = False, remote: RemoteDraws | None = None,
        neighbors: type[NeighborSampler] = NeighborSampler, induced: bool = False, with_edges: bool = False,
        with_positions: bool = False, disjoint: bool = False, timers: Timers | None = None,
        pads: Callable[[Draw], bool] | None = None, **options: Any,
    ):  # fmt: skip
        """batch_size: seeds of a step on all ranks; shuffle: training, with a new order every epoch; remote: sampling
        servers, which draw in place of this rank; neighbors: the class that draws neighbors; induced: blocks hold all
        edges among the sampled nodes; with_edges: blocks have the rows of their edges and ``sampling.edge_columns``;
        with_positions: blocks have the positions of their edges at the owners, which costs no exchange; disjoint: every
        seed has separate neighbors; pads: says of the draw whether plans of training are padded, as `pad_graph_plan`
        does; options: of GraphSampler."""
        world = graph.world
        self._graph, self._sampling, self._seed, self.shuffle = graph, sampling, seed, shuffle
        self.batch_size, self._pool, self._drop_last, self.remote = batch_size, seeds.pool, drop_last, remote
        self._timers = timers or Timers()
        self._epoch: int | None = None
        self.prefetch = world.plans_ahead(sampling.prefetch, sampling.in_flight)
        further = range(1, sampling.in_flight if self.prefetch else 1)
        polite = [self.prefetch > 0, *(True for _ in further)]
        self._channels = [world.channel(each, by_machine=True) for each in polite]
        self._excluded: Exclusion | None = None  # sampling servers leave out edges themselves
        self.replica: Replica | None = None
        self._draws: list[Any] = [] if remote is None else remote.draws
        in_contexts = disjoint or bool(sampling.time_column)
        if remote is None and in_contexts:
            self._excluded = seeds.excluded
            draw = self._make_context_draw(seeds.roots, disjoint, with_edges or with_positions, options)
            self._draws = [draw, *[None] * len(further)]
        elif remote is None:
            self.replica = graph.replica(
                sampling.topology, sampling.strategy, seeds.excluded, self, sampling.weight_column
            )
            self._excluded = seeds.excluded if self.replica is None else self.replica.excluded
            self._draws = [
                self._make_draw(neighbors, induced, with_edges or with_positions), *[None] * len(further)
            ]  # fmt: skip
        if with_edges:
            options["edges"] = EdgeTables(
                graph.partition, sampling.edge_columns, graph.dtype, world.device, graph.channel
            )
        self.is_padded = pads is not None and pads(self.draw)  # input rows with it, which the step gathers
        options["pad"] = pad_graph_plan if self.is_padded else None
        options["with_features"] = self.prefetch > 0 and world.device.type == "cpu" and not self.is_padded
        options["complete"] = seeds.complete and seeds.complete.over(self._channels[0])
        self.samplers = self._make_samplers(seeds.roots, options)
        self.start_epoch(0)
        if graph.tables.wants_copies and graph.tables.num_copies() == 0:
            input_ids = partial(self.samplers[0].input_ids, self.batches, 0)
            graph.tables.keep_copies(input_ids, self.batches.num_steps)
            self.samplers = self._make_samplers(seeds.roots, options)

    @property
    def draw(self) -> Draw:
        """The draw of the first sampler; the draws of further plans in flight are its twins."""
        return self._draws[0]

    def _make_draw(self, neighbors: type[NeighborSampler], induced: bool, with_edges: bool) -> Draw:
        """Collective."""
        threads = 1 if self.prefetch else self._graph.world.threads
        way = DrawOptions(self._sampling, self._seed, neighbors, induced, with_edges)
        return make_draw(self._graph, way, self._channels[0], threads, self._excluded, self.replica)

    def _make_context_draw(
        self, roots: Roots, disjoint: bool, with_edges: bool, options: dict[str, Any]
    ) -> ContextSampler:  # fmt: skip
        """Collective. Make the draw of seeds that have times, or separate neighbors."""
        graph, sampling = self._graph, self._sampling
        threads = 1 if self.prefetch else graph.world.threads
        neighbors = TimedNeighbors(
            graph.partition, sampling.strategy, self._channels[0], threads, with_edges, self._excluded,
            sampling.weight_column,
        )  # fmt: skip
        apart, with_degree = len(roots) == 4, DEGREE in options.get("node_columns", NODE_COLUMNS)
        return ContextSampler(neighbors, sampling, self._seed, disjoint, apart, with_degree)

    def _make_samplers(self, roots: Roots, options: dict[str, Any]) -> list[GraphSampler]:
        graph, (channel, *others) = self._graph, self._channels
        first = GraphSampler(
            graph.rows, self._draws[0], roots, self._seed, channel, graph.channel, graph.world.device, **options
        )
        return [first, *map(first.over, others, self._draws[1:])]

    def beside(self, pool: SeedPool, batch_size: int) -> SeedLoader:
        """Collective. Make a loader of seeds that are not shuffled, which plans with the samplers of this one."""
        other = copy.copy(self)
        other._pool, other.batch_size, other.shuffle, other._drop_last = pool, batch_size, False, False
        other.remote = other._excluded = other._epoch = None
        other.start_epoch(0)
        return other

    def __len__(self) -> int:
        """Count the steps of an epoch, the same on all ranks."""
        whole, rest = divmod(self._pool.total, self.batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def start_epoch(self, epoch: int) -> None:
        """Collective. Make the batches of an epoch, in an order of its own where seeds are shuffled."""
        if self.remote is not None:
            # A request of the new epoch would change the edges that servers leave out while they draw the last one.
            self.remote.settle()
        if self._epoch == epoch or (self._epoch is not None and not self.shuffle):
            return
        self._epoch, shuffle = epoch, epoch_shuffle(self._seed, epoch) if self.shuffle else None
        if self._excluded is not None:
            self._excluded.start_epoch(shuffle)
        shared = (self._graph.world, self._graph.channel, self._drop_last)
        self.batches = make_seed_batches(self._pool, self.batch_size, shuffle, *shared)

    def plans(self, epoch: int, start: int = 0, stop: int | None = None) -> Prefetcher[GraphPlan]:
        """Collective. Make the plans of the current batches from step ``start`` on, up to ``stop``, None: to the last,
        with the neighbors of an epoch."""
        batches, stride = self.batches, len(self.samplers)

        def maker(sampler: GraphSampler) -> Callable[[int], GraphPlan]:
            def make(step: int) -> GraphPlan:
                with self._timers("plan"):
                    return sampler.plan(batches, epoch, step, stride)

            return make

        stop = batches.num_steps if stop is None else stop
        return Prefetcher([maker(sampler) for sampler in self.samplers], start, stop, self.prefetch)

    def release(self) -> None:
        """Drop samplers and channels, whose communicators ``World.free_channels`` then frees. The loader must not be
        used any more."""
        self._channels, self._draws, self.samplers, self.replica = [], [], [], None

    def channels(self) -> list[Channel]:
        """List the channels that planning goes through, one for each plan in flight."""
        return self._channels


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """How a loader draws: the section ``sampling``, the seed of the random numbers, the class that draws the neighbors
    of a relation and hop, whether blocks hold all edges among the sampled nodes, and whether they have the positions of
    their edges."""

    sampling: GraphSamplingConfig
    seed: int
    neighbors: type[NeighborSampler]
    induced: bool
    with_edges: bool


def make_draw(
    graph: StaticGraph, options: DrawOptions, channel: Channel, threads: int, excluded: Exclusion | None,
    replica: Replica | None,
) -> BlockSampler:  # fmt: skip
    """Collective. Make the draw of a loader, from the replica, if there is one, or at the owners of the nodes."""
    sampling, seed, with_edges = options.sampling, options.seed, options.with_edges
    hops = make_neighbors(
        graph.partition, sampling.strategy, channel, threads, excluded=excluded, replica=replica,
        neighbors=options.neighbors, with_edges=with_edges, weight=sampling.weight_column,
    )  # fmt: skip
    if options.induced and replica is None:
        everything = NeighborSampler(graph.partition, "full", channel, threads, with_edges, excluded)
        return InducedSampler(hops, sampling, seed, everything)
    if options.induced and replica is not None:
        return InducedSampler(hops, sampling, seed, replica.everything(threads, with_edges))
    with together(graph.world, "choose where neighbors are drawn"):
        return choose_draw(hops, sampling, seed, graph.world)


def options_of(config: StaticConfig) -> dict[str, Any]:
    """Return the options of the loaders of a run that decide what blocks hold."""
    columns = message_columns(config)
    return {
        "sampling": replace(config.sampling, edge_columns=columns), "seed": config.train.seed,
        "neighbors": sampler_of(config.sampling.class_path),
        "with_edges": bool(columns) or config.model.edge_weights, "node_columns": config.model.node_columns,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """Options that loaders of mini-batches share.

    fanouts, relation_fanouts, strategy, time_column, weight_column, prefetch, in_flight, topology: as in the section
    ``sampling``.
    batch_size: seeds of a step on all ranks. shuffle: a new order every epoch; default: for "train". Shuffled batches
    are for training: the models of ``hpcgnn.static.model`` drop rows in them alone. drop_last: leave out a short last
    batch. as_data: "" for batches of tensors, "pyg" for PyTorch Geometric's Data, or HeteroData where there are several
    types or relations, "hetero" for HeteroData always. sampler: a custom class, whose ``draw`` draws the neighbors of
    one relation and hop. subgraph_type: "directional" for layered blocks of the sampled edges, "induced" for all edges
    among the sampled nodes in every layer. edge_columns: columns of the edges that come with them; with_edge_ids: their
    rows. node_columns: columns of all sampled nodes, such as "label", which a batch of PyTorch Geometric then has as
    ``y`` of all nodes; a request and a reply each step. by_hop: nodes and edges of PyTorch Geometric's Data are in
    order of the hop that drew them, as its ``trim_to_layer`` needs them. disjoint: every seed has separate neighbors
    and separate draws, and batches tell the seed of each node; else seeds share nodes, with time_column seeds of the
    same time.
    """

    fanouts: list[int]
    batch_size: int
    relation_fanouts: dict[str, list[int]] = field(default_factory=dict)
    strategy: Strategy = "uniform"
    time_column: str = ""
    disjoint: bool = False
    shuffle: bool | None = None
    drop_last: bool = False
    prefetch: int = -1
    in_flight: int = 1
    seed: int = 0
    as_data: str = ""
    topology: Topology = AUTO
    sampler: type[NeighborSampler] = NeighborSampler
    subgraph_type: str = DIRECTIONAL
    edge_columns: Sequence[str] = ()
    with_edge_ids: bool = False
    node_columns: Sequence[str] = ()
    weight_column: str = WEIGHT
    by_hop: bool = False

    @property
    def tells_edges(self) -> bool:
        """Whether batches tell the rows of their edges in the graph file."""
        return bool(self.edge_columns) or self.with_edge_ids

    def check(self, graph: StaticGraph) -> GraphSamplingConfig:
        """Make the section ``sampling`` of a run that samples so. Raises ValueError for what does not fit the graph."""
        sampling = GraphSamplingConfig(
            self.fanouts, self.relation_fanouts or {}, self.strategy, self.time_column, prefetch=self.prefetch,
            in_flight=self.in_flight, topology=self.topology, direction=graph.direction,
            edge_columns=list(self.edge_columns), plan_on="host", weight_column=self.weight_column,
        )  # fmt: skip
        if self.time_column or self.disjoint:
            self._check_contexts(graph)
        sampling.check_relations(list(graph.relations))
        check_sampler(self.sampler, "sampler")
        check_columns(graph.partition, self.edge_columns)
        if self.strategy == "weighted":
            check_drawn_by(graph.partition, self.weight_column)
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.as_data not in FORMATS:
            raise ValueError(f"as_data must be one of {', '.join(map(repr, FORMATS))}, got {self.as_data!r}")
        if self.subgraph_type not in SUBGRAPHS:
            raise ValueError(f"subgraph_type must be one of {', '.join(SUBGRAPHS)}, got {self.subgraph_type!r}")
        if self.by_hop and (not self.as_data or self.subgraph_type != DIRECTIONAL):
            raise ValueError(f"by_hop is for as_data 'pyg' or 'hetero' and subgraph_type {DIRECTIONAL}: leave it false")
        if self.as_data:
            pyg.check_installed()
            pyg.check_node_columns(self.node_columns)
        for name in self.node_columns:
            if all(name not in columns for columns in graph.partition.columns):
                there = ", ".join(sorted(set().union(*graph.partition.columns))) or "none"
                raise ValueError(f"node_columns: no node type has a column {name}; there are {there}")
        for kind, columns in zip(graph.types, graph.partition.columns, strict=True):
            for name in (
                name for name in self.node_columns if name in columns and columns[name].dtype.kind not in "biuf"
            ):
                raise ValueError(
                    f"node_columns: column {name} of node type {kind} has no numbers, but {columns[name].dtype}: leave "
                    "it out, and look it up in the graph file by n_id"
                )
        return sampling

    def _check_contexts(self, graph: StaticGraph) -> None:
        """Raise ValueError for options that do not go with separate neighbors of seeds or times."""
        option = "time_column" if self.time_column else "disjoint"
        if graph.servers is not None:
            raise ValueError(f"{option}: the owners of nodes draw: leave it out, or comm.sampling_servers 0")
        if self.topology not in (AUTO, SHARDED):
            raise ValueError(f"topology {self.topology}: with {option} the owners of nodes draw: use {SHARDED}")
        if self.subgraph_type != DIRECTIONAL:
            raise ValueError(f"subgraph_type {self.subgraph_type} has no {option}: use {DIRECTIONAL}")
        if self.sampler is not NeighborSampler:
            raise ValueError(f"sampler: a class of your own draws without {option}: leave one of them out")


class BatchLoader(SeedLoader):
    """Collective to create and to iterate. Mini-batches with the input rows of their nodes; every iteration is a new
    epoch, with its own order and its own neighbors. A new iteration ends one that is not at its end."""

    def __init__(
        self, graph: StaticGraph, seeds: Seeds, sampling: GraphSamplingConfig, options: LoaderOptions, shuffle: bool,
        make_batch: Callable[[GraphPlan, Any, Any, Any], Any],
    ):  # fmt: skip
        """make_batch: the batch of a plan, of input rows, and of rows in the graph file and columns by type."""
        remote = None
        if graph.servers is not None:
            induced, with_edges = options.subgraph_type == INDUCED, options.tells_edges or bool(options.as_data)
            way = DrawOptions(sampling, options.seed, options.sampler, induced, with_edges)
            remote = graph.servers.open(self, graph, way, seeds.excluded)
        super().__init__(
            graph, seeds, sampling, options.batch_size, options.seed, shuffle=shuffle, drop_last=options.drop_last,
            neighbors=options.sampler, induced=options.subgraph_type == INDUCED,
            with_edges=options.tells_edges, with_positions=bool(options.as_data), disjoint=options.disjoint,
            remote=remote,
        )  # fmt: skip
        self._make_batch, self._next = make_batch, 0
        self._columns = NodeColumns(graph, options.node_columns) if options.node_columns else None
        self.share = 0.0  # of the seeds of the newest batch, which this rank has
        self._running: weakref.ref[Generator] | None = None
        graph.stop_at_close(self)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next iteration is; later ones count on."""
        self._next = epoch

    def stop(self) -> None:
        """Collective. End an iteration that is not at its end."""
        running = self._running() if self._running else None
        if running is not None:
            running.close()

    def close(self) -> None:
        """Collective. Stop, and free what the loader shares with other ranks; it must not be used any more."""
        self.stop()
        if self._graph.servers is not None:
            self._graph.servers.close(self)
        self.release()
        self._graph.world.free_channels()

    def __iter__(self) -> Iterator[Any]:
        """Collective. Iterate over the batches of the next epoch."""
        self.stop()
        epoch, self._next = self._next, self._next + 1
        iterator = self._iterate(epoch)
        self._running = weakref.ref(iterator)
        return iterator

    def _iterate(self, epoch: int) -> Generator[Any, None, None]:
        self.start_epoch(epoch)
        with self.plans(epoch) as plans:
            for plan in plans:
                self.share = len(plan.columns["input_id"]) / plan.batch_size
                yield self._fetch(plan)

    def _fetch(self, plan: GraphPlan) -> Any:
        """Collective. Make a plan's batch, with its input rows."""
        base = self._graph.partition.book.type_base()
        x = []
        for rows, fetch, fetched in zip(self._graph.rows, plan.fetches, plan.features, strict=True):
            wanted = rows.wanted(fetch, FEATURE) if fetched is None else fetched
            x.append(None if wanted is None else rows_of(wanted))
        n_id = tuple(identity - int(first) for identity, first in zip(plan.batch.identity, base, strict=False))
        columns = self._columns.of(n_id) if self._columns else ({},) * len(n_id)
        return self._make_batch(plan, tuple(x), n_id, columns)


class NodeColumns:
    """Columns of nodes at their owners, for the nodes of a batch, whose owners are looked up. Collective."""

    def __init__(self, graph: StaticGraph, names: Sequence[str]):
        partition, self._graph = graph.partition, graph
        self._directories = [
            type_directory(partition, kind, graph.world, graph.channel) for kind in range(len(graph.types))
        ]
        self._tables: list[dict[str, torch.Tensor]] = []
        for columns in partition.columns:
            tables = {name: torch.from_numpy(columns[name]) for name in names if name in columns}
            self._tables.append({
                name: table.to(graph.dtype if table.is_floating_point() else torch.int64)
                for name, table in tables.items()
            })  # fmt: skip

    def of(self, n_id: tuple[torch.Tensor, ...]) -> tuple[dict[str, torch.Tensor], ...]:
        """Collective. Fetch the columns of nodes by type, from their rows in the graph file."""
        graph, fetched = self._graph, []
        for kind, (rows, directory, tables) in enumerate(zip(n_id, self._directories, self._tables, strict=True)):
            ids = directory.lookup(rows.cpu().numpy())
            route = Route.plan(graph.partition.book.of_type(kind), ids, graph.channel)
            pulled = route.pull(*tables.values()) if tables else []
            fetched.append({name: column.to(graph.world.device) for name, column in zip(tables, pulled, strict=True)})
        return tuple(fetched)


def own_rows(own: np.ndarray, chosen: np.ndarray, num_rows: int, argument: str, name: str, hint: str) -> np.ndarray:
    """Choose rows of this rank, out of ``own``: the rows that a mask of all ``num_rows`` rows sets, or a list of own
    rows. Raises ValueError."""
    if chosen.ndim != 1 or (chosen.dtype.kind not in "biu" and len(chosen)):
        raise ValueError(
            f"{argument}: {name} are chosen by a mask or by integers, in one dimension, got {chosen.dtype} of shape "
            f"{chosen.shape}"
        )
    if chosen.dtype == bool:
        if len(chosen) != num_rows:
            raise ValueError(
                f"{argument}: a mask has an entry for each of all {num_rows} {name}, by row, got {len(chosen)}; {hint}"
                ", of which a list may be given"
            )
        return own[chosen[own]]
    rows = chosen.astype(np.int64)
    strange = rows[~np.isin(rows, own)]
    if len(strange):
        raise ValueError(f"{argument}: {name} {strange[0]} is not at this rank; {hint}")
    if len(np.unique(rows)) != len(rows):
        raise ValueError(f"{argument}: some {name} is named twice")
    return rows


def pool_of_chosen(
    name: str, rows: np.ndarray, chosen: str | Nodes, num_rows: int, columns: dict[str, np.ndarray], graph: StaticGraph
) -> SeedPool:  # fmt: skip
    """Collective. Make the pool of seeds with ``rows`` [s] out of num_rows. Seeds are in order of row for a split, or
    for masks on all ranks, and else in the order given, rank after rank. input_id [s]: for a mask the place in it, for
    a list the place in the concatenated lists of all ranks, for a split the place among its seeds."""
    if isinstance(chosen, str):
        pool = make_pool(name, rows, num_rows, columns, graph.world, graph.channel)
        return replace(pool, columns=columns | {"input_id": pool.place})
    keys, num_keys = rows, num_rows
    if graph.world.any(np.asarray(chosen).dtype != bool):
        counts = graph.world.allgather_array(np.array([len(rows)], np.int64)).ravel()
        keys, num_keys = counts[: graph.world.rank].sum() + np.arange(len(rows)), int(counts.sum())
    return make_pool(name, keys, num_keys, columns | {"input_id": keys}, graph.world, graph.channel)


__all__ = ["NeighborBatch", "NeighborLoader", "StaticGraph"]


class NeighborLoader(BatchLoader):
    """Collective to create and to iterate. Mini-batches of nodes with sampled neighbors.

    The seeds of a step and the sampled neighbors depend on the random seed and the graph, not on the number of ranks.
    Every rank gets its share of every step, which may be empty. Every iteration is a new epoch, with its own order and
    its own neighbors; it ends an earlier, unfinished iteration.
    """

    def __init__(
        self, graph: StaticGraph, input_nodes: str | tuple[str, str | Nodes], fanouts: list[int], batch_size: int, *,
        input_time: Nodes | None = None, **options: Any,
    ):  # fmt: skip
        """input_nodes: a split ("train", "val", "test") of the only type with labels, or (node type, split), or (node
        type, mask): of all nodes of the type in the graph file, by row, or (node type, rows): of this rank's nodes,
        among ``graph.nodes(type)``. Without shuffling a list of rows keeps its order, rank after rank; all else is in
        order of row. input_time [k]: with time_column, times of the seeds, which are rows then, in place of their
        column. options: ``LoaderOptions``.

        Raises DistributedError.
        """
        chosen = LoaderOptions(fanouts, batch_size, **options)
        with together(graph.world, "make a loader"):
            sampling = chosen.check(graph)
            self.seed_type, rows, split = _input_nodes(graph, input_nodes)
            given = {} if input_time is None else given_times(graph, chosen, input_time, input_nodes, "input_time")
            if not given:
                of_type, name = graph.partition.columns[self.seed_type], graph.types[self.seed_type]
                check_seed_time(of_type, chosen.time_column, f"node type {name}", "; or give input_time")
        graph = graph.timed(chosen.time_column)
        columns = _seed_columns(graph, self.seed_type, rows, bool(split)) | given
        shuffle = split == "train" if chosen.shuffle is None else chosen.shuffle
        nodes = input_nodes if isinstance(input_nodes, str) else input_nodes[1]
        name = "train" if shuffle else "nodes"
        pool = pool_of_chosen(name, rows, nodes, graph.num_nodes(self.seed_type), columns, graph)
        convert = partial(pyg.to_data, graph=graph, options=chosen) if chosen.as_data else None
        make_batch = partial(_node_batch, convert, self.seed_type, chosen.disjoint)
        super().__init__(graph, Seeds(pool, ((self.seed_type, "id"),)), sampling, chosen, shuffle, make_batch)


def _node_batch(
    convert: Callable[[NeighborBatch], Any] | None, seed_type: int, disjoint: bool, plan: GraphPlan, x, n_id, of_nodes
) -> Any:
    """Make a batch of nodes; convert: to what another library has; disjoint: it tells the seeds of its nodes."""
    columns, seeds = plan.columns, n_id[seed_type][plan.roots[0]]
    batch = NeighborBatch(
        plan.batch,
        x,
        n_id,
        seed_type,
        seeds,
        columns.get("label"),
        columns["input_id"],
        plan.batch_size,
        of_nodes,
        plan.seed_number if disjoint else (),
    )
    return batch if convert is None else convert(batch)


def _input_nodes(graph: StaticGraph, input_nodes) -> tuple[int, np.ndarray, str]:
    """Return the type of the input nodes, this rank's rows of it, and the split that they are; empty: none. Raises
    ValueError."""
    name, chosen = ("", input_nodes) if isinstance(input_nodes, str) else input_nodes
    if isinstance(chosen, str):
        if chosen not in SPLITS:
            raise ValueError(f"input_nodes: a split is one of {', '.join(SPLITS)}, got {chosen!r}")
        kind = labeled_type(graph.partition.columns, graph.types, name, "input_nodes")
        label, split = node_labels(graph.partition.columns[kind], graph.types[kind], 0)
        mask = (split == SPLITS.index(chosen)) & has_label(label)
        return kind, graph.nodes(graph.types[kind])[mask], chosen
    kind, hint = graph.partition.type_of(name), f"graph.nodes({name!r}) lists the rows of a rank's nodes"
    rows = own_rows(graph.nodes(name), np.asarray(chosen), graph.num_nodes(kind), "input_nodes", name, hint)
    return kind, rows, ""


def _seed_columns(graph: StaticGraph, kind: int, rows: np.ndarray, of_split: bool) -> dict[str, np.ndarray]:
    """Return the global ids of the rows, and labels where the type has them; of a split the labels are classes."""
    partition = graph.partition
    own = graph.nodes(partition.types[kind])
    order = np.argsort(own)
    place = order[np.searchsorted(own, rows, sorter=order)]
    columns = {"id": partition.global_ids(kind)[place]}
    if "label" in partition.columns[kind]:
        label = partition.columns[kind]["label"][place]
        are_classes = label.dtype.kind in "iub" or (of_split and label.ndim == 1)
        columns["label"] = label.astype(np.int64) if are_classes else label
    if TIME in partition.columns[kind]:
        columns[TIME] = partition.columns[kind][TIME][place]
    return columns


def given_times(
    graph: StaticGraph, options: LoaderOptions, times: Nodes, seeds: Any, argument: str
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return the column TIME of seeds that the user gives together with their times. Raises ValueError."""
    rows = None if isinstance(seeds, str) or isinstance(seeds[1], str) else np.asarray(seeds[1])
    if not options.time_column:
        raise ValueError(f"{argument} needs time_column: the times of neighbors, which it is compared with")
    if rows is None or rows.dtype == bool:
        raise ValueError(f"{argument} is for seeds that are given as rows, one time each: give rows, or leave it out")
    values = np.asarray(times)
    if values.shape != rows.shape[-1:] or values.dtype.kind not in "iuf":
        raise ValueError(
            f"{argument} must hold {rows.shape[-1]} numbers, one a seed, got {values.dtype} of shape {values.shape}"
        )
    strange = np.flatnonzero(~np.isfinite(values))
    if len(strange):
        raise ValueError(f"{argument}: the time at position {strange[0]} is {values[strange[0]]}: give finite numbers")
    return {TIME: as_ticks(graph.partition, options.time_column, values)}
