"""For a training loop of one's own on a static graph: a partition set and mini-batches of sampled neighbours, without a
run file.

``docs/library.md`` shows a whole loop. All of it is collective: every rank makes the same objects in the same order.
Nodes are named by their row in the graph file, within their type, whatever the partition. s seeds of this rank, U
nodes of a type in a batch.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn import pyg
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.nn.message_blocks import Batch
from hpcgnn.sample.graph_config import AUTO, SHARDED, GraphSamplingConfig
from hpcgnn.sample.graph_neighbors import NeighborSampler
from hpcgnn.sample.graph_plan import GraphPlan, GraphSampler
from hpcgnn.sample.node_tables import NodeTables
from hpcgnn.sample.prefetch import Prefetcher
from hpcgnn.sample.replica import Replica, make_replica
from hpcgnn.sample.seeds import SeedBatches, SeedPool, epoch_shuffle, make_pool, make_seed_batches
from hpcgnn.sample.splits import SPLITS
from hpcgnn.store.features import FEATURE, FeatureConfig
from hpcgnn.store.graph_partition import open_graph_partition
from hpcgnn.tasks.labels import has_label, labelled_type, node_labels

FORMATS = ("", "pyg")
Nodes = np.ndarray | torch.Tensor


class StaticGraph:
    """Collective to create. This rank's part of a partition set (``partition``) and its nodes' input rows."""

    def __init__(
        self, path: str | os.PathLike, world: World, features: FeatureConfig | None = None,
        dtype: torch.dtype = torch.float32, check_hash: bool = True,
    ):  # fmt: skip
        """features: copies of remote rows, the dtype that rows travel in; dtype: of the input rows. Copies are chosen
        when the first loader is made, by what its first epoch wants.

        Raises DistributedError for a partition set that cannot be used.
        """
        self.world, self.channel = world, world.channel()
        with together(world, "open the partition set"):
            self.partition = open_graph_partition(path, world.rank, world.size, check_hash)
        self.tables = NodeTables(self.partition, features or FeatureConfig(), world, self.channel, dtype)
        self._replicas: dict[str, Replica | None] = {}

    def replica(self, topology: str, mode: str) -> Replica | None:
        """Collective. The copy of the edges that loaders of a ``mode`` share, None where owners are asked."""
        if topology == SHARDED:
            return None
        if self._replicas.get(mode) is None:
            self._replicas[mode] = make_replica(topology, self.partition, mode, self.world, self.channel)
        return self._replicas[mode]

    def close(self) -> None:
        """Collective. Free the memory that the ranks of a node share; loaders must not be used any more."""
        for replica in filter(None, self._replicas.values()):
            replica.close()
        self._replicas.clear()

    @property
    def types(self) -> tuple[str, ...]:
        """Names of the node types, in the order of a batch's tuples."""
        return self.partition.types

    @property
    def relations(self) -> tuple[str, ...]:
        """Names of the relations (src.rel.dst), as numbered in a batch's blocks."""
        return tuple(relation.name for relation in self.partition.relations)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the input rows by type, the same on all ranks; 0: no features."""
        tables = [rows.tables for rows in self.tables.rows]
        return tuple(found[FEATURE].shape[1] if FEATURE in found else 0 for found in tables)

    def nodes(self, node_type: str) -> np.ndarray:
        """Rows in the graph file [n] int64 of this rank's nodes of a type. Raises ValueError."""
        kind = self.partition.type_of(node_type)
        return self.partition.flat_row[self.partition.of_type(kind)] - self.partition.book.type_base()[kind]


@dataclass(frozen=True, slots=True)
class NeighborBatch:
    """A mini-batch of this rank. batch: blocks and all else that the models of ``hpcgnn.nn`` take; x: by node type,
    input rows [U, F] of the innermost block's source nodes, None without features; n_id: by type, rows in the graph
    file [U] of these nodes; seeds [s], likewise: the first nodes of type ``seed_type``; y [s] labels, None without;
    input_id [s]: places of the seeds among the input nodes of all ranks in order of row; batch_size: seeds of all
    ranks in this step.
    """

    batch: Batch
    x: tuple[torch.Tensor | None, ...]
    n_id: tuple[torch.Tensor, ...]
    seed_type: int
    seeds: torch.Tensor
    y: torch.Tensor | None
    input_id: torch.Tensor
    batch_size: int


class NeighborLoader:
    """Collective to create and to iterate. Mini-batches of nodes with sampled in-neighbours, planned ahead in the
    background; every iteration is a new epoch, with its own order and its own neighbours.

    Which seeds are in a step and what is sampled for them depends on the seed and the graph, not on the number of
    ranks; every rank gets its share of every step, which may be empty. A new iteration ends one that is not at its end.
    """

    def __init__(
        self, graph: StaticGraph, input_nodes: str | tuple[str, str | Nodes], fanouts: list[int], batch_size: int, *,
        relation_fanouts: dict[str, list[int]] | None = None, mode: str = "uniform", shuffle: bool | None = None,
        drop_last: bool = False, prefetch: int = -1, seed: int = 0, as_data: str = "", topology: str = AUTO,
        sampler: type[NeighborSampler] = NeighborSampler,
    ):  # fmt: skip
        """input_nodes: a split ("train", "val", "test") of the only type with labels, or (node type, split), or (node
        type, nodes of this rank): a mask over ``graph.nodes(type)``, or rows among these. fanouts, relation_fanouts,
        mode, prefetch, topology: as in the run file's section ``sampling``. batch_size: seeds of a step on all ranks.
        shuffle: a new order every epoch; default: for "train". Shuffled batches are for training: the models of
        ``hpcgnn.nn`` drop rows in them alone. drop_last: leave out a short last batch. as_data: "" for NeighborBatch,
        "pyg" for PyTorch Geometric's Data, or HeteroData where there are several types or relations. sampler: a class
        of one's own, whose ``sample`` draws the neighbours of one relation and hop.

        Raises DistributedError.
        """
        self._graph, self._drop_last, self._seed, self._epoch = graph, drop_last, seed, 0
        world, self._as_data = graph.world, as_data
        with together(world, "make a loader"):
            config = GraphSamplingConfig(fanouts, relation_fanouts or {}, mode, prefetch=prefetch, topology=topology)
            config.check_relations(list(graph.relations))
            if batch_size < 1:
                raise ValueError(f"batch_size must be at least 1, got {batch_size}")
            if as_data not in FORMATS:
                raise ValueError(f"as_data must be '' or 'pyg', got {as_data!r}")
            if as_data == "pyg":
                pyg.check_installed()
            kind, rows, split = _input_nodes(graph, input_nodes)
            columns = _seed_columns(graph, kind, rows, split)
        self.seed_type, self.batch_size = kind, batch_size
        self.shuffle = split == "train" if shuffle is None else shuffle
        self._pool = self._make_pool(rows, columns)
        self._prefetch = world.plans_ahead(prefetch)
        self._sampler = self._make_sampler(config, sampler)
        if graph.tables.wants_copies and graph.tables.num_copies() == 0:
            graph.tables.keep_copies(self._sampler, self._batches(0))
            self._sampler = self._make_sampler(config, sampler)
        self._running: weakref.ref[Generator] | None = None

    def _make_pool(self, rows: np.ndarray, columns: dict[str, np.ndarray]) -> SeedPool:
        """Collective."""
        graph, name = self._graph, "train" if self.shuffle else "nodes"
        pool = make_pool(name, rows, graph.partition.book.num_nodes, columns, graph.world, graph.channel)
        return replace(pool, columns=pool.columns | {"input_id": pool.place})

    def _make_sampler(self, config: GraphSamplingConfig, neighbors: type[NeighborSampler]) -> GraphSampler:
        """Collective."""
        graph, world = self._graph, self._graph.world
        return GraphSampler(
            graph.partition, graph.tables.rows, config, self._seed, ((self.seed_type, "id"),),
            world.channel(polite=self._prefetch > 0), graph.channel, world.device,
            1 if self._prefetch else world.threads, neighbors=neighbors,
            replica=graph.replica(config.topology, config.mode),
        )  # fmt: skip

    def _batches(self, epoch: int) -> SeedBatches:
        """Collective."""
        shuffle = epoch_shuffle(self._seed, epoch) if self.shuffle else None
        graph = self._graph
        return make_seed_batches(self._pool, self.batch_size, shuffle, graph.world, graph.channel, self._drop_last)

    def __len__(self) -> int:
        """Steps of an epoch, the same on all ranks."""
        whole, rest = divmod(self._pool.total, self.batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def set_epoch(self, epoch: int) -> None:
        """The number of the epoch that the next iteration is; later ones count on."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """Collective. The batches of the next epoch."""
        running = self._running() if self._running else None
        if running is not None:
            running.close()
        epoch, self._epoch = self._epoch, self._epoch + 1
        iterator = self._iterate(epoch)
        self._running = weakref.ref(iterator)
        return iterator

    def _iterate(self, epoch: int) -> Generator[Any, None, None]:
        batches = self._batches(epoch)

        def make(step: int) -> GraphPlan:
            return self._sampler.plan(batches, epoch, step)

        with Prefetcher(make, 0, batches.num_steps, self._prefetch) as plans:
            for plan in plans:
                batch = self._fetch(plan)
                yield pyg.to_data(batch, self._graph.types, self._graph.relations) if self._as_data else batch

    def _fetch(self, plan: GraphPlan) -> NeighborBatch:
        """Collective. A plan's batch, with its input rows."""
        rows, base = self._graph.tables.rows, self._graph.partition.book.type_base()
        x = tuple(
            found.fetch(fetch, FEATURE) if FEATURE in found.tables else None
            for found, fetch in zip(rows, plan.fetches, strict=True)
        )
        n_id = tuple(identity - int(first) for identity, first in zip(plan.batch.identity, base, strict=False))
        seeds = n_id[self.seed_type][plan.roots[0]]
        label = plan.columns.get("label")
        return NeighborBatch(
            plan.batch, x, n_id, self.seed_type, seeds, label, plan.columns["input_id"], plan.batch_size
        )


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
    return graph.partition.type_of(name), _own_rows(graph, name, np.asarray(chosen)), ""


def _own_rows(graph: StaticGraph, name: str, chosen: np.ndarray) -> np.ndarray:
    """The rows of this rank that a mask or a list of rows names. Raises ValueError."""
    mine = graph.nodes(name)
    if chosen.dtype == bool:
        if chosen.shape != mine.shape:
            raise ValueError(f"input_nodes: a mask of {name} has {len(mine)} entries at this rank, got {chosen.shape}")
        return mine[chosen]
    rows = chosen.astype(np.int64)
    strange = rows[~np.isin(rows, mine)]
    if len(strange):
        raise ValueError(f"input_nodes: {name} {strange[0]} is not at this rank; graph.nodes({name!r}) lists its nodes")
    if len(np.unique(rows)) != len(rows):
        raise ValueError(f"input_nodes: some {name} is named twice")
    return rows


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
