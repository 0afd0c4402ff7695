"""Infers the outputs of a static graph's nodes exactly: layer by layer, every node once, with all its neighbours.

A layer's rows lie at the owners of their nodes; a chunk of nodes pulls those of its neighbours. Input rows that stay in
files are pulled by the first layer's chunks, and never in memory all at once. n local nodes, all types one behind the
other; W width of a layer's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.route import Route
from hpcgnn.graph.columns import GatheredTable
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.loop.session import Session
from hpcgnn.static.config import WHOLE
from hpcgnn.static.features import FEATURE
from hpcgnn.static.model.blocks import Adjacency, Batch, Block
from hpcgnn.static.plan import block_on

NO_LAYER = -1  # of models without layers, whose input rows lie in files


def go_on() -> None:
    """Do nothing between two chunks."""


@torch.no_grad()
def infer(session: Session, between: Callable[[], None] = go_on) -> torch.Tensor:
    """Collective. Compute the outputs [n, C] of all local nodes, in order of local row; between: see ``last_rows``."""
    return session.model.last(last_rows(session, between))


@torch.no_grad()
def last_rows(session: Session, between: Callable[[], None] = go_on) -> torch.Tensor:
    """Collective. Compute the rows [n, W] of all local nodes after the last layer, in order of local row: what the
    output layer takes, or, in models without one, the outputs. ``between`` is called on all ranks after every chunk of
    a layer, or after the only pass where a step is the whole graph; what it raises ends the computation."""
    if session.config.sampling.mode == WHOLE:
        outputs = session.task.rows()
        between()
        return outputs
    model, partition = session.model, session.partition
    model.eval()
    counts = tuple(np.diff(partition.type_start).tolist())
    device = session.world.device
    identity, degree = (torch.from_numpy(table).to(device) for table in (partition.flat_row, partition.in_degree()))
    rows: Any = None
    if not any(isinstance(of_type.tables.get(FEATURE), GatheredTable) for of_type in session.graph.rows):
        rows = model.first(_batch(Block((), counts, counts), identity, degree), _inputs(session))
    for number in range(model.num_hops):
        rows = _layer(session, number, rows, identity, degree, between)
    return _layer(session, NO_LAYER, rows, identity, degree, between) if rows is None else rows


def _inputs(session: Session, ids: list[np.ndarray] | None = None) -> list[torch.Tensor]:
    """Gather the input rows by type: of all local nodes, or, collectively, of the nodes with global ``ids``."""
    inputs: list[torch.Tensor] = []
    for kind, rows in enumerate(session.graph.rows):
        learnt = session.memory.tables.get(kind)
        if ids is None:
            pieces: list[Any] = [rows.tables[FEATURE]] if FEATURE in rows.tables else []
            pieces += [] if learnt is None else [learnt.weight]
        else:
            ownership = session.partition.book.of_type(kind)
            route = Route.plan(ownership, ids[kind], session.graph.channel).to(session.world.device)
            pieces = [rows.pull_exact(route, FEATURE)] if FEATURE in rows.tables else []
            pieces += [] if learnt is None else route.pull(learnt.weight)
        inputs.append(pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1))
    return inputs


def _layer(session: Session, number: int, rows: torch.Tensor | Any, identity, degree, between) -> torch.Tensor:
    """Collective. Compute one layer's rows [n, W] of all local nodes: from the rows of the layer before, or, where
    these are None, from input rows; NO_LAYER: what layers would take."""
    partition, world, size = session.partition, session.world, session.config.eval.chunk
    chunks = -(-int(max(world.allgather(partition.num_nodes))) // size)
    out: Any = None
    relabel = [native.Relabel(int(count)) for count in np.diff(partition.book.type_base())]
    for chunk in range(chunks):
        session.watchdog.at(f"inference, layer {number}", chunk)
        first, last = (min(partition.num_nodes, (chunk + place) * size) for place in (0, 1))
        block, ids = _full_block(partition, first, last, relabel, with_edges=number != NO_LAYER)
        block = block_on(identity.device, block)
        route = Route.plan(partition.book, np.concatenate(ids), session.graph.channel).to(identity.device)
        keys, degrees, *pulled = route.pull(identity, degree, *([] if rows is None else [rows]))
        batch = _batch(block, keys, degrees)
        sources = session.model.first(batch, _inputs(session, ids)) if rows is None else pulled[0]
        outputs = sources if number == NO_LAYER else session.model.step(number, batch, block, sources)
        if out is None:
            out = outputs.new_empty((partition.num_nodes, outputs.shape[1]))
        out[first:last] = outputs
        between()
    return rows if out is None else out


def _full_block(
    partition: GraphPartition, first: int, last: int, relabel: list[native.Relabel], with_edges: bool = True
) -> tuple[Block, list[np.ndarray]]:  # fmt: skip
    """Make the block of local nodes first .. last - 1 with all their in-edges, or with none; returns the global ids of
    its source nodes by type, too."""
    base, bounds = partition.book.type_base(), []
    for kind in range(len(partition.types)):
        nodes = partition.of_type(kind)
        begin, end = (min(max(row, nodes.start), nodes.stop) - nodes.start for row in (first, last))
        bounds.append((begin, end))
        relabel[kind].begin()
        first_row = int(partition.book.of_type(kind).starts[partition.rank] - base[kind])
        relabel[kind].add(np.arange(first_row + begin, first_row + end))
    relations = []
    edges_by_relation = zip(partition.relations, partition.edges, strict=True) if with_edges else ()
    for number, (relation, edges) in enumerate(edges_by_relation):
        begin, end = bounds[relation.dst_type]
        indptr = edges.indptr[begin : end + 1] - edges.indptr[begin]
        source = edges.src[edges.indptr[begin] : edges.indptr[end]] - base[relation.src_type]
        place = torch.from_numpy(relabel[relation.src_type].add(source).astype(np.int64))
        relations.append(
            Adjacency(number, relation.src_type, relation.dst_type, torch.from_numpy(indptr), place)
        )  # fmt: skip
    ids = [of_type.unique + base[kind] for kind, of_type in enumerate(relabel)]
    num_dst = tuple(end - begin for begin, end in bounds)
    return Block(tuple(relations), tuple(map(len, ids)), num_dst), ids


def _batch(block: Block, identity: torch.Tensor, degree: torch.Tensor) -> Batch:
    """Make a batch of one block, for evaluation."""
    return Batch((block,), identity.split(block.num_src), degree.split(block.num_src), 0, 0, 0, False)
