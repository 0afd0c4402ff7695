"""A partitioned static graph: this rank's part of it, and what loaders share."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.choices import check_choice
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph import files
from hpcgnn.graph.book import check_same_set
from hpcgnn.graph.partition import WEIGHT, GraphPartition, open_graph_partition
from hpcgnn.graph.stage import stage_path
from hpcgnn.native import Random, Stream
from hpcgnn.static.config import (
    DIRECTIONS,
    IN,
    LINK,
    OUT,
    SHARDED,
    WEIGHTED,
    Direction,
    FeatureConfig,
    GraphModelConfig,
    StaticConfig,
    message_columns,
)
from hpcgnn.static.features import NodeRows, NodeTables
from hpcgnn.static.model.blocks import Block
from hpcgnn.static.model.models import GraphSizes, make_model
from hpcgnn.static.plan import block_on
from hpcgnn.static.sampling.draw import induced_block
from hpcgnn.static.sampling.edges import EdgeTables, check_columns, outward
from hpcgnn.static.sampling.neighbors import Exclusion, NeighborSampler
from hpcgnn.static.sampling.replica import Replica, make_replica
from hpcgnn.static.sampling.seeds import type_directory
from hpcgnn.static.sampling.times import with_times
from hpcgnn.task.labels import count_classes, labeled_type, node_labels

Nodes = np.ndarray | torch.Tensor


def open_partition(
    config: StaticConfig, path: str, world: World, channel: Channel, check: Callable[[GraphPartition], None], *,
    edges: bool = True, columns: bool = True,
) -> GraphPartition:  # fmt: skip
    """Collective. Open this rank's part of a run's graph, its edges in the direction that sampling follows. edges,
    columns: False leaves out the edges, or the nodes' columns; of the edges' columns only the ones that the run uses
    are read. check: raises ValueError for a configuration that does not fit the graph."""
    folder, out = stage_path(path, config.data.stage_to, world), config.sampling.direction == OUT
    with together(world, "open the partition set"):
        partition = open_graph_partition(
            folder, world.rank, world.size, config.data.check_hash, edges, columns, out, working=world.working,
            edge_columns=edge_columns_of(config),
        )  # fmt: skip
        partition = replace(partition, weighs=config.model.edge_weights)
        check(partition)
    check_same_set(folder, world)
    return outward(partition, channel) if out else partition


def edge_columns_of(config: StaticConfig) -> list[str]:
    """List the columns of the edges, ``row`` included, that a run uses."""
    sampling = config.sampling
    names = [*message_columns(config), *[WEIGHT] * config.model.edge_weights]
    names += [sampling.weight_column] * (sampling.strategy == WEIGHTED)
    names += filter(None, [sampling.time_column])
    for task in (config.task, *config.task.further.values()):
        if task.of_edges:
            names += ["split", "rel"] + ["label", *task.edge_columns] * (task.kind != LINK)
    return ["row", *names] if names else []


class StaticGraph:
    """Collective to create. This rank's part of a partition set (``partition``) and its nodes' input rows."""

    def __init__(
        self, path: str | os.PathLike, world: World, features: FeatureConfig | None = None,
        dtype: torch.dtype = torch.float32, check_hash: bool = True, direction: Direction = IN, *,
        channel: Channel | None = None, opened: GraphPartition | None = None, shares: bool = True,
        loads_features: bool = True,
    ):  # fmt: skip
        """features: where features lie, the feature cache, and the dtype that rows travel in; dtype: of the input rows.
        The cache is filled when the first loader is made, by the nodes of its first epoch. direction: "in" or "out",
        of the edges that sampling follows; of a graph opened "out", ``partition`` has all edges the other way. opened:
        a partition that is open already, its edges in this direction; channel: of exchanges; shares: the ranks of a
        machine read each other's input rows in memory that they share, where it has room; loads_features: False where
        sampling servers send the features.

        Raises DistributedError for a partition set that cannot be used.
        """
        self.world, self.dtype, self.direction = world, dtype, direction
        self.channel = channel or world.channel(by_machine=True)
        partition = opened
        if partition is None:
            with together(world, "open the partition set"):
                check_choice("direction", direction, DIRECTIONS)
                if features is not None and features.standardize:
                    raise ValueError("features.standardize is for run files: standardize the rows in your model")
                partition = open_graph_partition(
                    path, world.rank, world.size, check_hash, with_out=direction == OUT, working=world.working
                )
            check_same_set(path, world)
            if direction == OUT:
                partition = outward(partition, self.channel)
        self.partition = partition
        features = features or FeatureConfig()
        self.tables = NodeTables(partition, features, world, self.channel, dtype, shares, loads_features)
        self._replicas: list[tuple[Replica, weakref.ref | None]] = []  # with the loader that alone uses it
        self._shared: dict[tuple[str, str], Replica] = {}  # by mode, and the column that it draws by
        self._loaders: list[weakref.ref] = []
        self._others: dict[Hashable, StaticGraph] = {}  # by name; this one too, where there are any
        self.name: Hashable = None  # of this one among them
        self._closed = False
        self.servers: Any = None  # sampling servers, which draw for the loaders, see hpcgnn.static.servers.loop

    def over(self, partition: GraphPartition, name: Hashable) -> StaticGraph:
        """Collective. Return this graph with other edges between its nodes, whose input rows both have: for the same
        ``name`` the same graph. ``close`` of either frees what both share."""
        self._others.setdefault(None, self)
        if name not in self._others:
            other = copy.copy(self)
            other.partition, other.tables, other._shared = partition, self.tables.over(partition), {}
            other.name = name
            self._others[name] = other
        return self._others[name]

    def timed(self, column: str) -> StaticGraph:
        """Collective. Return this graph with the times of nodes and edges from a ``column``, for loaders; empty: this
        graph. Raises DistributedError for times that cannot be used."""
        name = ("times", column)
        if not column or name in self._others:
            return self._others[name] if column else self
        return self.over(with_times(self.partition, column, self.world, self.channel), name)

    @property
    def rows(self) -> tuple[NodeRows, ...]:
        """Tables of the nodes' input rows, row ids and degrees, by node type."""
        return self.tables.rows

    def replica(
        self, topology: str, mode: str, excluded: Exclusion | None = None, loader: Any = None, weight: str = WEIGHT
    ) -> Replica | None:  # fmt: skip
        """Collective. Make a copy of the edges on every machine; None where owners draw. Loaders of a ``mode``, and of
        a column ``weight`` that it draws by, share it. A ``loader`` whose steps leave out edges has a separate one,
        which is closed when the loader is gone."""
        if topology == SHARDED:
            return None
        if excluded is None and (mode, weight) in self._shared:
            return self._shared[mode, weight]
        self._close_replicas()
        replica = make_replica(topology, self.partition, mode, self.world, self.channel, excluded, weight)
        if replica is not None and excluded is None:
            self._shared[mode, weight] = replica
            self.partition = replica.lend(self.partition)  # it lives as long as the graph
        if replica is not None:
            self._replicas.append((replica, None if excluded is None else weakref.ref(loader)))
        return replica

    def _close_replicas(self) -> None:
        """Collective. Free the copies of loaders that are gone on all ranks."""
        # Garbage collection frees a loader at different times on different ranks, and closing is collective.
        is_unused = np.array([loader is not None and loader() is None for _, loader in self._replicas], np.int8)
        if len(is_unused) == 0:
            return
        for index in reversed(np.flatnonzero(self.world.reduce_array(is_unused, "min"))):
            self._replicas.pop(index)[0].close()

    def make_model(self, config: GraphModelConfig, outputs: int, seed: int = 0) -> nn.Module:
        """Make a model of this graph on the rank's device, in the dtype of the input rows. Weights are drawn from
        ``seed``, the same on all ranks. outputs: width of the output, such as the number of classes. Raises
        ValueError."""
        if config.edge_weights and not self.partition.weighs:
            raise ValueError(
                "model.edge_weights is for run files: a loader's batches have no weights of messages; load the column "
                "with edge_columns=['weight'], for a custom model"
            )
        torch.manual_seed(seed)
        relations = tuple((relation.src_type, relation.dst_type) for relation in self.partition.relations)
        names = tuple(files.split_relation(name) for name in self.relations)
        sizes = GraphSizes(self.widths, relations, outputs, types=tuple(self.types), names=names)
        return make_model(config, sizes).to(self.world.device, self.dtype)

    def num_classes(self, node_type: str = "") -> int:
        """Collective. Count the classes of a type's labels: one more than the largest, or the columns of labels in
        rows. node_type: by default the only type with labels. Raises DistributedError without labels."""
        with together(self.world, "count the classes"):
            kind = labeled_type(self.partition.columns, self.types, node_type, "node_type")
            label, _ = node_labels(self.partition.columns[kind], self.types[kind], 0)
        return count_classes(label, 0, self.world)

    def stop_at_close(self, loader: Any) -> None:
        """Let ``close`` stop a loader first, by its method ``stop``, if it is still there."""
        self._loaders[:] = [other for other in self._loaders if other() is not None]
        self._loaders.append(weakref.ref(loader))

    def edges(self, relation: str) -> np.ndarray:
        """Return the rows in the graph file [m] int64 of the relation's edges at this rank, by destination; of a graph
        opened "out" by source. Raises ValueError."""
        return self.partition.edges[self.partition.relation_of(relation)].row

    def stop(self) -> None:
        """Collective. End the iterations of loaders that are not at their end."""
        for loader in filter(None, (reference() for reference in self._loaders)):
            loader.stop()

    def close(self) -> None:
        """Collective. Stop the loaders, free the memory that the ranks of a machine share, and the channel; neither
        graph nor loaders may be used any more."""
        if self._closed:
            return
        self._closed = True
        self.stop()  # first: the threads of a loader may be in the middle of an exchange
        for loader in filter(None, (reference() for reference in self._loaders)):
            loader.release()
        graphs = tuple(self._others.values()) or (self,)
        if any(graph._shared for graph in graphs):  # their edges lie in replicas, whose memory goes with these
            for graph in graphs:
                graph.partition = replace(graph.partition.degrees_only(), flat_row=np.empty(0, np.int64))
        for replica, _ in self._replicas:
            replica.close()
        self._replicas.clear()
        self.tables.close()
        self.channel.close()
        self.world.free_channels()

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
        return tuple(0 if features is None else features.shape[1] for features in self.partition.features)

    def num_nodes(self, kind: int) -> int:
        """Count the nodes of a type, by its number, in the whole graph."""
        base = self.partition.book.type_base()
        return int(base[kind + 1] - base[kind])

    def nodes(self, node_type: str) -> np.ndarray:
        """Return the rows in the graph file [n] int64 of this rank's nodes of a type, in the order of its parts. Raises
        ValueError."""
        kind = self.partition.type_of(node_type)
        return self.partition.flat_row[self.partition.of_type(kind)] - self.partition.book.type_base()[kind]


def induced_subgraph(graph: StaticGraph, nodes: dict[str, Nodes], edge_columns: Sequence[str] = ()) -> Block:
    """Collective. Find all edges of the graph among given nodes: by type, their rows in the graph file. Returns a block
    whose sources and destinations are these nodes, in their order. Edges come with their rows and columns.

    Raises DistributedError for a row that is no node, or given twice.
    """
    world, channel, partition = graph.world, graph.channel, graph.partition
    with together(world, "choose nodes"):
        check_columns(partition, edge_columns)
        rows_by_type = _rows_by_type(partition, nodes)
    ids = [type_directory(partition, kind, world, channel).lookup(rows) for kind, rows in enumerate(rows_by_type)]
    everything = NeighborSampler(partition, "full", channel, world.threads, with_edges=True)
    block = induced_block(everything, ids, Random(0, Stream.EVAL_NEIGHBOR))
    tables = EdgeTables(partition, edge_columns, graph.dtype, world.device, channel)
    return block_on(world.device, tables.attach((block,), channel)[0])


def _rows_by_type(partition: GraphPartition, nodes: dict[str, Nodes]) -> list[np.ndarray]:
    """Raises ValueError."""
    rows_by_type = [np.empty(0, np.int64)] * len(partition.types)
    counts = np.diff(partition.book.type_base())
    for name, chosen in nodes.items():
        kind, rows = partition.type_of(name), np.asarray(chosen).astype(np.int64)
        wrong = rows[(rows < 0) | (rows >= counts[kind])]
        if len(wrong):
            raise ValueError(f"{name} {wrong[0]} is not a node of the graph, which has {counts[kind]} of them")
        if len(np.unique(rows)) != len(rows):
            raise ValueError(f"some {name} is named twice")
        rows_by_type[kind] = rows
    return rows_by_type
