"""Infers the outputs of a static graph's nodes exactly: layer by layer, every node once, with all its neighbors.

A layer's rows lie at the owners of their nodes; a chunk of nodes reads the rows of its neighbors. It reads them in
place where ranks of a machine share memory, which then holds the rows between two layers; else it pulls them. Input
rows that stay in files are pulled by the first layer's chunks, and never in memory all at once. n local nodes, all
types one behind the other; W width of a layer's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.route import Route
from hpcgnn.comm.shared import MachineColumns, MachineTable, share_columns
from hpcgnn.comm.world import DistributedError
from hpcgnn.graph.columns import NarrowTable, copy_between
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.loop.session import Session
from hpcgnn.static.config import StaticConfig, message_columns
from hpcgnn.static.features import FEATURE, NodeRows
from hpcgnn.static.model.blocks import Adjacency, Batch, Block
from hpcgnn.static.plan import block_on
from hpcgnn.static.sampling.draw import fanouts_by_hop
from hpcgnn.static.sampling.edges import EdgeColumns

IDENTITY, DEGREE, ROWS = "identity", "degree", "rows"
PARTS = ("num_hops", "first", "step", "last")  # of a model that computes all nodes layer by layer
_IN_MEMORY = (torch.Tensor, NarrowTable, type(None))  # tables of features that are read in any part at once
NO_LAYER = -1  # of models without layers, whose input rows lie in files


def go_on() -> None:
    """Do nothing between two chunks."""


@torch.no_grad()
def infer(session: Session, between: Callable[[], None] = go_on) -> torch.Tensor:
    """Collective. Compute the outputs [n, C] of all local nodes, in order of local row, corrected where the goal does;
    between: see ``last_rows``."""
    rows = last_rows(session, between)  # first: it refuses models without ``last``
    outputs = session.model.last(rows)
    return outputs if session.goal.correct is None else session.goal.correct(outputs)


@torch.no_grad()
def last_rows(session: Session, between: Callable[[], None] = go_on, hops: int | None = None) -> torch.Tensor:
    """Collective. Compute the rows [n, W] of all local nodes after the last layer, or after ``hops`` layers, in order
    of local row. ``between`` is called on all ranks after every chunk of a layer, or after the only pass where a step
    is the whole graph; what it raises ends the computation."""
    check_layers(session.model, session.config)
    model, partition = session.model, session.partition
    hops = model.num_hops if hops is None else hops
    if session.config.train.full_graph:
        outputs = session.task.rows(hops)
        between()
        return outputs
    model.eval()
    tables = SharedTables(session)
    columns = [torch.tensor(column) for column in (partition.flat_row, partition.in_degree())]
    identity, degree = (tables.put(name, column) for name, column in zip((IDENTITY, DEGREE), columns, strict=True))
    if all(isinstance(of_type.tables.get(FEATURE), _IN_MEMORY) for of_type in session.graph.rows):
        _compute_first(session, tables, identity, degree)
    for number in range(hops):
        rows = _layer(session, number, tables, number + 1 < hops, between)
    if hops == 0:
        rows = tables.taken(ROWS) if ROWS in tables.own else _layer(session, NO_LAYER, tables, False, between)
    tables.close()
    return rows


def check_layers(model: Any, config: StaticConfig) -> None:
    """Raise DistributedError, on all ranks alike, for a model, or for a configuration of it, of which no layer can be
    computed for all nodes."""
    if problem := why_not_by_layers(model, config):
        raise DistributedError(problem, user_error=True)


def why_not_by_layers(model: Any, config: StaticConfig) -> str:
    """Say why no layer of a model, or of a configuration of it, can be computed for all nodes; empty: it can."""
    if problem := missing_layers(model):
        return (
            "exact outputs are computed layer by layer, as are those of train.full_graph: model.class_path "
            f"{config.model.class_path} {problem}"
        )
    if not config.train.full_graph and model.num_hops > len(config.sampling.fanouts):
        return (
            f"model.class_path {config.model.class_path} has {model.num_hops} layers, but sampling.fanouts "
            f"{len(config.sampling.fanouts)} numbers: give one number a layer"
        )
    if config.sampling.time_column:
        return (
            "exact outputs are computed once for every node, and with sampling.time_column its neighbors depend on the "
            "time of the seed"
        )
    if skips_forward(type(model)):
        return (
            f"model.class_path {config.model.class_path} has a forward of its own, which exact outputs and "
            "train.full_graph would skip: they call first, step and last; do there what forward adds"
        )
    return ""


def missing_layers(model: Any) -> str:
    """Say what a model lacks to be computed layer by layer, as words after its name; empty: nothing."""
    lacking = [name for name in PARTS if not hasattr(model, name)]
    if lacking:
        return f"lacks {', '.join(lacking)} of hpcgnn.GraphModel"
    return getattr(model, "problem", "")


def skips_forward(model_class: type) -> bool:
    """Say whether ``forward`` was written for a class whose layers are all those of a base class."""
    written = {name: number for number, base in reversed([*enumerate(model_class.__mro__)]) for name in vars(base)}
    return written["forward"] < min(written.get(name, 0) for name in PARTS[1:])


class SharedTables:
    """Node columns [n, ...] that layer-wise inference reads, by name in ``own``: IDENTITY, DEGREE, and ROWS between two
    layers; edges: columns of edges. They lie in the machine's shared memory where its ranks read each other's features
    there. Collective."""

    def __init__(self, session: Session):
        self._session, self._shares = session, session.graph.tables.has_common_columns
        self.edges = EdgeColumns(session.partition, message_columns(session.config), session.dtype)
        self.own: dict[str, torch.Tensor] = {}
        self._near: dict[str, MachineTable] = {}
        self._columns: dict[str, MachineColumns] = {}

    def make(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, MachineColumns | None]:
        """Allocate a column for this rank's nodes; where it is shared, in memory of the machine, which is returned."""
        columns = share_columns(self._session.world, [(shape, dtype)]) if self._shares else None
        if columns is None:
            return torch.empty(shape, dtype=dtype, device=self._session.world.device), None
        return columns.own[0], columns

    def keep(self, name: str, column: torch.Tensor, columns: MachineColumns | None) -> None:
        """Let chunks read a filled column of ``make``, which replaces the one with its name."""
        self._near.pop(name, None)
        self.own[name] = column
        if name in self._columns:
            self._columns.pop(name).close()
        if columns is not None:
            self._columns[name], self._near[name] = columns, columns.tables[0]

    def put(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Copy values into a new column, which is returned."""
        column, columns = self.make(tuple(values.shape), values.dtype)
        self.keep(name, column.copy_(values), columns)
        return column

    def put_features(self) -> None:
        """Let chunks read the features of the only node type as the input rows of the first layer, where they lie."""
        near, own = self._session.graph.tables.near(0, FEATURE), self._session.graph.rows[0].tables[FEATURE]
        assert isinstance(own, torch.Tensor)
        self.own[ROWS] = own
        if near is not None:
            self._near[ROWS] = near

    def readable(self) -> NodeRows:
        """Publish the columns to the ranks of the machine, and return what plans and fetches rows of all of them."""
        for columns in self._columns.values():
            columns.publish()
        tables: dict[str, Any] = dict(self.own)
        shared = self._near if self._near.keys() == tables.keys() else None
        none = np.empty(0, np.int64)
        return NodeRows(self._session.partition.book, tables, none, self._session.graph.channel, shared=shared)

    def taken(self, name: str) -> torch.Tensor:
        """Return a column that outlives ``close``: a copy, where it lies in memory that is freed then."""
        return self.own[name].clone() if name in self._columns else self.own[name]

    def close(self) -> None:
        """Free the shared memory; no column may be used any more."""
        self.own, self._near = {}, {}
        while self._columns:
            self._columns.popitem()[1].close()


def _compute_first(session: Session, tables: SharedTables, identity: torch.Tensor, degree: torch.Tensor) -> None:
    """Collective. Compute the input rows of the first layer for all local nodes, a part of them at a time. Features
    that a model takes as they are stay where they lie: wide ones are read there, narrow ones by the layer's chunks."""
    partition, size = session.partition, session.config.eval.nodes_per_pass
    column, made = identity.new_empty(0), None
    for first in range(-size, max(1, partition.num_nodes), size):  # before the first part: no node
        begin, end = max(0, first), max(0, min(first + size, partition.num_nodes))
        inputs, counts = _own_inputs(session, begin, end)
        columns = identity[begin:end], degree[begin:end]
        rows: Any = session.model.first(_batch(Block((), counts, counts), *columns), inputs)
        # On all ranks or on none: what a model returns is for it to say.
        if rows is inputs[0] and not session.memory.tables:
            if isinstance(session.graph.rows[0].tables.get(FEATURE), torch.Tensor):
                tables.put_features()
            return
        if first < 0:
            column, made = tables.make((partition.num_nodes, rows.shape[1]), rows.dtype)
        column[begin:end] = rows
    tables.keep(ROWS, column, made)


def _own_inputs(session: Session, begin: int, end: int) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """Gather the input rows, and count them, by type: of the local nodes begin .. end - 1."""
    inputs, counts = [], []
    for kind, rows in enumerate(session.graph.rows):
        nodes, pieces = session.partition.of_type(kind), []
        first, last = (min(max(row, nodes.start), nodes.stop) - nodes.start for row in (begin, end))
        if FEATURE in rows.tables:
            pieces.append(copy_between(rows.tables[FEATURE], first, last))
        if kind in session.memory.tables:
            pieces.append(session.memory.tables[kind].weight[first:last])
        inputs.append(pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1))
        counts.append(last - first)
    return inputs, tuple(counts)


def _inputs(session: Session, ids: list[np.ndarray]) -> list[torch.Tensor]:
    """Collective. Gather the input rows by type, of the nodes with global ``ids``. Narrow features of ranks of this
    machine are read where they lie, as no dtype of messages rounds them."""
    inputs: list[torch.Tensor] = []
    device, channel = session.world.device, session.graph.channel
    for kind, rows in enumerate(session.graph.rows):
        learned, table, pieces = session.memory.tables.get(kind), rows.tables.get(FEATURE), []
        route: Any = None
        if learned is not None or not isinstance(table, NarrowTable):
            route = Route.plan(session.partition.book.of_type(kind), ids[kind], channel).to(device)
        if isinstance(table, NarrowTable):
            pieces.append(rows.fetch(rows.plan(ids[kind], channel).to(device, channel), FEATURE))
        elif table is not None:
            pieces.append(rows.pull_exact(route, FEATURE))
        pieces += [] if learned is None else route.pull(learned.weight)
        inputs.append(pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1))
    return inputs


def _layer(session: Session, number: int, tables: SharedTables, goes_on: bool, between) -> torch.Tensor:
    """Collective. Compute one layer's rows [n, W] of all local nodes: from the rows in the tables, or, where there are
    none, from input rows; NO_LAYER: what layers would take. goes_on: a layer follows, and finds them in the tables."""
    partition, world, channel = session.partition, session.world, session.graph.channel
    size, source, followed = session.config.eval.nodes_per_pass, tables.readable(), _followed(session, number)
    chunks = -(-int(max(world.allgather(partition.num_nodes))) // size)
    out: Any = tables.own.get(ROWS)
    made: MachineColumns | None = None
    relabel = [native.Relabel(int(count)) for count in np.diff(partition.book.type_base())]
    for chunk in range(chunks):
        session.watchdog.at(f"inference, layer {number}", chunk)
        first, last = (min(partition.num_nodes, (chunk + place) * size) for place in (0, 1))
        block, ids = full_block(partition, first, last, relabel, followed, tables.edges)
        block = block_on(world.device, block)
        fetch = source.plan(np.concatenate(ids), channel).to(world.device, channel)
        columns = dict(zip(tables.own, source.fetch_exact(fetch, tuple(tables.own)), strict=True))
        batch = _batch(block, columns[IDENTITY], columns[DEGREE])
        sources = columns[ROWS] if ROWS in columns else session.model.first(batch, _inputs(session, ids))
        outputs = sources if number == NO_LAYER else session.model.step(number, batch, block, sources)
        if chunk == 0:
            shape = partition.num_nodes, outputs.shape[1]
            out, made = tables.make(shape, outputs.dtype) if goes_on else (outputs.new_empty(shape), None)
        out[first:last] = outputs
        _pause(between, tables, made)
    if goes_on and chunks:
        tables.keep(ROWS, out, made)
    return out


def _pause(between: Callable[[], None], tables: SharedTables, made: MachineColumns | None) -> None:
    """Collective. Call ``between``; if it ends the computation, free the shared memory."""
    try:
        between()
    except BaseException:
        tables.close()
        if made is not None:
            made.close()
        raise


def _followed(session: Session, number: int) -> list[int]:
    """List the relations that a layer follows: those that sampling for it would not leave out."""
    if number == NO_LAYER:
        return []
    by_hop = fanouts_by_hop(session.config.sampling, session.partition.relations, False)
    hop = session.model.num_hops - 1 - number  # the last layer's are the seeds' neighbors
    return [relation for relation, fanout in enumerate(by_hop[hop]) if fanout != 0]


def full_block(
    partition: GraphPartition, first: int, last: int, relabel: list[native.Relabel], followed: list[int],
    columns: EdgeColumns,
) -> tuple[Block, list[np.ndarray]]:  # fmt: skip
    """Make the block of local nodes first .. last - 1 with all their in-edges of the relations ``followed``. Also
    returns the global ids of its source nodes by type."""
    base, bounds = partition.book.type_base(), []
    for kind in range(len(partition.types)):
        nodes = partition.of_type(kind)
        begin, end = (min(max(row, nodes.start), nodes.stop) - nodes.start for row in (first, last))
        bounds.append((begin, end))
        relabel[kind].begin()
        first_row = int(partition.book.of_type(kind).starts[partition.rank] - base[kind])
        relabel[kind].add(np.arange(first_row + begin, first_row + end))
    relations = []
    for number in followed:
        relation, edges = partition.relations[number], partition.edges[number]
        begin, end = bounds[relation.dst_type]
        indptr, places = edges.between(begin, end)
        source = edges.src[places] - base[relation.src_type]
        place = torch.from_numpy(relabel[relation.src_type].add(source).astype(np.int64))
        adjacency = Adjacency(number, relation.src_type, relation.dst_type, torch.from_numpy(indptr), place)
        relations.append(columns.take(adjacency, places))
    ids = [of_type.unique + base[kind] for kind, of_type in enumerate(relabel)]
    num_dst = tuple(end - begin for begin, end in bounds)
    return Block(tuple(relations), tuple(map(len, ids)), num_dst), ids


def _batch(block: Block, identity: torch.Tensor, degree: torch.Tensor) -> Batch:
    """Make a batch of one block, for evaluation."""
    return Batch((block,), identity.split(block.num_src), degree.split(block.num_src), 0, 0, 0, False)
