"""Loads mini-batches of nodes with sampled neighbours, for a training loop of one's own, without a run file.

``docs/library.md`` shows a whole loop. All of it is collective: every rank makes the same objects in the same order.
Nodes are named by their row in the graph file, within their type, whatever the partition. s seeds of this rank, U
nodes of a type in a batch.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.graph.directory import epoch_shuffle
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.static import pyg
from hpcgnn.static.batches import NeighborBatch
from hpcgnn.static.config import AUTO, WHOLE, GraphSamplingConfig, Mode, Topology
from hpcgnn.static.draw import BlockSampler
from hpcgnn.static.edges import EdgeTables, check_columns
from hpcgnn.static.graph import Nodes, StaticGraph
from hpcgnn.static.negatives import LinkNegatives
from hpcgnn.static.neighbors import Exclusion, NeighborSampler, check_weights
from hpcgnn.static.plan import GraphPlan, GraphSampler
from hpcgnn.static.replica import Replica, make_neighbors
from hpcgnn.static.rows import FEATURE
from hpcgnn.static.seeds import SeedBatches, SeedPool, make_pool, make_seed_batches
from hpcgnn.task.labels import has_label, labelled_type, node_labels

FORMATS = ("", "pyg")
SUBGRAPHS = (DIRECTIONAL, INDUCED) = ("directional", "induced")


class PlannedLoader(ABC):
    """Collective to create and to iterate. Mini-batches planned ahead in the background; every iteration is a new
    epoch, with its own order and its own neighbours.

    Which seeds are in a step and what is sampled for them depends on the seed and the graph, not on the number of
    ranks; every rank gets its share of every step, which may be empty. A new iteration ends one that is not at its end.

    Kinds of loaders fill in ``_read``, ``_prepare`` (which sets _pool and _roots, and where they differ _partition,
    _tables, _excluded, _completion) and ``_finish``.
    """

    _pool: SeedPool
    _roots: tuple[tuple[int, str], ...]
    _excluded: Exclusion | None = None
    _completion: LinkNegatives | None = None

    def __init__(
        self, graph: StaticGraph, fanouts: list[int], batch_size: int, *,
        relation_fanouts: dict[str, list[int]] | None = None, mode: Mode = "uniform", shuffle: bool | None = None,
        drop_last: bool = False, prefetch: int = -1, in_flight: int = 1, seed: int = 0, as_data: str = "",
        topology: Topology = AUTO, sampler: type[NeighborSampler] = NeighborSampler, subgraph_type: str = DIRECTIONAL,
        edge_columns: Sequence[str] = (), with_edge_ids: bool = False,
    ):  # fmt: skip
        """fanouts, relation_fanouts, mode, prefetch, in_flight, topology: as in the run file's section ``sampling``.
        batch_size: seeds of a step on all ranks. shuffle: a new order every epoch; default: for "train". Shuffled
        batches are for training: the models of ``hpcgnn.nn`` drop rows in them alone. drop_last: leave out a short last
        batch. as_data: "" for batches of tensors, "pyg" for PyTorch Geometric's Data, or HeteroData where there are
        several types or relations. sampler: a class of one's own, whose ``sample`` draws the neighbours of one relation
        and hop. subgraph_type: "directional" for layered blocks of what was sampled, "induced" for all edges among the
        sampled nodes in every layer. edge_columns: columns of the edges that come with them; with_edge_ids: their rows.

        Raises DistributedError.
        """
        world, self._graph, self._drop_last, self._seed, self._epoch = graph.world, graph, drop_last, seed, 0
        self.batch_size, self._as_data = batch_size, as_data
        with together(world, "make a loader"):
            self._config = GraphSamplingConfig(
                fanouts, relation_fanouts or {}, mode, prefetch=prefetch, in_flight=in_flight, topology=topology,
                direction=graph.direction, edge_columns=list(edge_columns),
            )  # fmt: skip
            self._config.check_relations(list(graph.relations))
            check_columns(graph.partition, edge_columns)
            if mode == WHOLE:
                raise ValueError(
                    "mode whole is for run files, a loader gives mini-batches: use mode full for all neighbours"
                )
            if mode == "weighted":
                check_weights(graph.partition)
            _check(batch_size, as_data, subgraph_type)
            split = self._read()
        self.shuffle = split == "train" if shuffle is None else shuffle
        self._induced, self._neighbors = subgraph_type == INDUCED, sampler
        self._prefetch = world.plans_ahead(prefetch, in_flight)
        self._partition, self._tables = graph.partition, graph.tables
        self._prepare()
        self._edges = None
        if edge_columns or with_edge_ids:
            self._edges = EdgeTables(self._partition, edge_columns, graph.dtype, world.device, graph.channel)
        self._build()
        self._running: weakref.ref[Generator] | None = None
        graph.stop_at_close(self)

    def _build(self) -> None:
        """Collective. A sampler for each plan in flight, and copies of what the first epoch wants most."""
        replica = self._make_replica()
        sampler = self._make_sampler(replica)
        if self._tables.wants_copies and self._tables.num_copies() == 0:
            self._tables.keep_copies(sampler, self._batches(0))
            sampler = self._make_sampler(replica)
        others = range(1, self._config.in_flight if self._prefetch else 1)
        self._samplers = [sampler, *(sampler.over(self._graph.world.channel(polite=True)) for _ in others)]

    @abstractmethod
    def _read(self) -> str:
        """What can be checked without the other ranks. Returns the split of the seeds, empty: none. Raises
        ValueError."""

    @abstractmethod
    def _prepare(self) -> None:
        """Collective."""

    @abstractmethod
    def _finish(self, plan: GraphPlan, x: tuple[torch.Tensor | None, ...], n_id: tuple[torch.Tensor, ...]) -> Any:
        """The batch of a plan, with input rows and rows in the graph file by type."""

    def _make_replica(self) -> Replica | None:
        """Collective."""
        return self._graph.replica(self._config.topology, self._config.mode)

    def _make_sampler(self, replica: Replica | None) -> GraphSampler:
        """Collective."""
        graph, world = self._graph, self._graph.world
        channel = world.channel(polite=self._prefetch > 0)
        draw = self._make_draw(channel, 1 if self._prefetch else world.threads, replica)
        return GraphSampler(
            self._tables.rows, draw, self._roots, self._seed, channel, graph.channel, world.device, edges=self._edges,
            complete=self._completion and self._completion.over(channel),
        )  # fmt: skip

    def _make_draw(self, channel: Channel, threads: int, replica: Replica | None) -> BlockSampler:
        """Collective."""
        config, told = self._config, self._edges is not None
        neighbors = make_neighbors(
            self._partition, config.mode, channel, threads, excluded=self._excluded, replica=replica,
            neighbors=self._neighbors, with_edges=told,
        )  # fmt: skip
        if not self._induced:
            return BlockSampler(neighbors, config, self._seed)
        if replica is None:
            everything = NeighborSampler(self._partition, "full", channel, threads, told, self._excluded)
        else:
            everything = replica.everything(threads, told)
        return BlockSampler(neighbors, config, self._seed, everything)

    def _batches(self, epoch: int) -> SeedBatches:
        """Collective."""
        shuffle = epoch_shuffle(self._seed, epoch) if self.shuffle else None
        if self._excluded is not None:
            self._excluded.start_epoch(shuffle)
        graph = self._graph
        return make_seed_batches(self._pool, self.batch_size, shuffle, graph.world, graph.channel, self._drop_last)

    def __len__(self) -> int:
        """Steps of an epoch, the same on all ranks."""
        whole, rest = divmod(self._pool.total, self.batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def set_epoch(self, epoch: int) -> None:
        """The number of the epoch that the next iteration is; later ones count on."""
        self._epoch = epoch

    def stop(self) -> None:
        """Collective. End an iteration that is not at its end."""
        running = self._running() if self._running else None
        if running is not None:
            running.close()

    def __iter__(self) -> Iterator[Any]:
        """Collective. The batches of the next epoch."""
        self.stop()
        epoch, self._epoch = self._epoch, self._epoch + 1
        iterator = self._iterate(epoch)
        self._running = weakref.ref(iterator)
        return iterator

    def _iterate(self, epoch: int) -> Generator[Any, None, None]:
        batches = self._batches(epoch)

        stride = len(self._samplers)

        def maker(sampler: GraphSampler) -> Callable[[int], GraphPlan]:
            return lambda step: sampler.plan(batches, epoch, step, stride)

        with Prefetcher(list(map(maker, self._samplers)), 0, batches.num_steps, self._prefetch) as plans:
            for plan in plans:
                yield self._fetch(plan)

    def _fetch(self, plan: GraphPlan) -> Any:
        """Collective. A plan's batch, with its input rows."""
        rows, base = self._tables.rows, self._partition.book.type_base()
        x = tuple(
            found.fetch(fetch, FEATURE) if FEATURE in found.tables else None
            for found, fetch in zip(rows, plan.fetches, strict=True)
        )
        n_id = tuple(identity - int(first) for identity, first in zip(plan.batch.identity, base, strict=False))
        return self._finish(plan, x, n_id)


def _check(batch_size: int, as_data: str, subgraph_type: str) -> None:
    """Raises ValueError."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if as_data not in FORMATS:
        raise ValueError(f"as_data must be '' or 'pyg', got {as_data!r}")
    if subgraph_type not in SUBGRAPHS:
        raise ValueError(f"subgraph_type must be one of {', '.join(SUBGRAPHS)}, got {subgraph_type!r}")
    if as_data == "pyg":
        pyg.check_installed()


def own_rows(mine: np.ndarray, chosen: np.ndarray, given: str, name: str, known: str) -> np.ndarray:
    """The rows of this rank, out of ``mine``, that a mask or a list of rows names. Raises ValueError."""
    if chosen.dtype == bool:
        if chosen.shape != mine.shape:
            raise ValueError(f"{given}: a mask of {name} has {len(mine)} entries at this rank, got {chosen.shape}")
        return mine[chosen]
    rows = chosen.astype(np.int64)
    strange = rows[~np.isin(rows, mine)]
    if len(strange):
        raise ValueError(f"{given}: {name} {strange[0]} is not at this rank; {known}")
    if len(np.unique(rows)) != len(rows):
        raise ValueError(f"{given}: some {name} is named twice")
    return rows


__all__ = ["NeighborBatch", "NeighborLoader", "StaticGraph"]


class NeighborLoader(PlannedLoader):
    """Collective to create and to iterate. Mini-batches of nodes with sampled neighbours; as PlannedLoader says."""

    def __init__(
        self, graph: StaticGraph, input_nodes: str | tuple[str, str | Nodes], fanouts: list[int], batch_size: int,
        **options: Any,
    ):  # fmt: skip
        """input_nodes: a split ("train", "val", "test") of the only type with labels, or (node type, split), or (node
        type, nodes of this rank): a mask over ``graph.nodes(type)``, or rows among these. The rest as in PlannedLoader.

        Raises DistributedError.
        """
        self._input = input_nodes
        super().__init__(graph, fanouts, batch_size, **options)

    def _read(self) -> str:
        self.seed_type, self._rows, split = _input_nodes(self._graph, self._input)
        self._columns = _seed_columns(self._graph, self.seed_type, self._rows, split)
        return split

    def _prepare(self) -> None:
        graph, name = self._graph, "train" if self.shuffle else "nodes"
        num_nodes = graph.partition.book.num_nodes
        pool = make_pool(name, self._rows, num_nodes, self._columns, graph.world, graph.channel)
        self._pool = replace(pool, columns=pool.columns | {"input_id": pool.place})
        self._roots = ((self.seed_type, "id"),)

    def _finish(self, plan: GraphPlan, x, n_id) -> Any:
        columns, seeds = plan.columns, n_id[self.seed_type][plan.roots[0]]
        batch = NeighborBatch(
            plan.batch, x, n_id, self.seed_type, seeds, columns.get("label"), columns["input_id"], plan.batch_size
        )
        return pyg.to_data(batch, self._graph) if self._as_data else batch


def _input_nodes(graph: StaticGraph, given) -> tuple[int, np.ndarray, str]:
    """The type of the input nodes, this rank's rows of it, and the split that they are; empty: none. Raises
    ValueError."""
    name, chosen = ("", given) if isinstance(given, str) else given
    if isinstance(chosen, str):
        if chosen not in SPLITS:
            raise ValueError(f"input_nodes: a split is one of {', '.join(SPLITS)}, got {chosen!r}")
        kind = labelled_type(graph.partition, name, "input_nodes")
        label, split = node_labels(graph.partition.columns[kind], graph.types[kind], 0)
        mask = (split == SPLITS.index(chosen)) & has_label(label)
        return kind, graph.nodes(graph.types[kind])[mask], chosen
    kind, known = graph.partition.type_of(name), f"graph.nodes({name!r}) lists its nodes"
    return kind, own_rows(graph.nodes(name), np.asarray(chosen), "input_nodes", name, known), ""


def _seed_columns(graph: StaticGraph, kind: int, rows: np.ndarray, split: str) -> dict[str, np.ndarray]:
    """Global ids of the rows, and labels where the type has them."""
    partition = graph.partition
    mine = graph.nodes(partition.types[kind])
    order = np.argsort(mine)
    place = order[np.searchsorted(mine, rows, sorter=order)]
    columns = {"id": partition.global_ids(kind)[place]}
    if "label" in partition.columns[kind]:
        label = partition.columns[kind]["label"][place]
        columns["label"] = label.astype(np.int64) if label.dtype.kind in "iub" else label
    return columns
