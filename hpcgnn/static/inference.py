"""Exact inference on static graphs, layer by layer: every node once a layer, with all its neighbours.

A layer's rows lie at the owners of their nodes; a chunk of nodes pulls those of its neighbours. Input rows that stay in
files are pulled by the first layer's chunks, and never in memory all at once. n local nodes, all types one behind the
other; W width of a layer's rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.route import Route
from hpcgnn.graph.columns import GatheredTable
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.loop.session import Session
from hpcgnn.static.config import WHOLE
from hpcgnn.static.model.blocks import Adjacency, Batch, Block
from hpcgnn.static.plan import block_on
from hpcgnn.static.rows import FEATURE


@torch.no_grad()
def infer(session: Session) -> torch.Tensor:
    """Collective. Outputs of all local nodes [n, C], in order of local row."""
    return session.model.last(last_rows(session))


@torch.no_grad()
def last_rows(session: Session) -> torch.Tensor:
    """Collective. Rows of all local nodes [n, W] after the last layer, in order of local row: what the output layer
    takes, or, in models without one, the outputs."""
    if session.config.sampling.mode == WHOLE:
        return session.task.rows()
    model, partition = session.model, session.partition
    model.eval()
    counts = tuple(np.diff(partition.type_start).tolist())
    known = [torch.from_numpy(table).to(session.world.device) for table in (partition.flat_row, partition.in_degree())]
    stored = any(isinstance(found.tables.get(FEATURE), GatheredTable) for found in session.graph.rows)
    rows: Any = None if stored else model.first(_batch(Block((), counts, counts), *known), _inputs(session))
    for number in range(model.num_hops):
        rows = _layer(session, number, rows, *known)
    return rows


def _inputs(session: Session, ids: list[np.ndarray] | None = None) -> list[torch.Tensor]:
    """Input rows by type: of all local nodes, or, collectively, of the nodes with global ``ids``."""
    found: list[torch.Tensor] = []
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
        found.append(pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1))
    return found


def _layer(session: Session, number: int, rows: torch.Tensor | Any, identity, degree) -> torch.Tensor:
    """Collective. One layer's rows of all local nodes, from those of the layer before, or, None, from their inputs."""
    partition, world, size = session.partition, session.world, session.config.eval.chunk
    chunks = -(-int(max(world.allgather(partition.num_nodes))) // size)
    out: Any = None
    relabel = [native.Relabel(int(count)) for count in np.diff(partition.book.type_base())]
    for chunk in range(chunks):
        session.watchdog.at(f"inference, layer {number}", chunk)
        first, last = (min(partition.num_nodes, (chunk + place) * size) for place in (0, 1))
        block, ids = _full_block(partition, first, last, relabel)
        block = block_on(identity.device, block)
        route = Route.plan(partition.book, np.concatenate(ids), session.graph.channel).to(identity.device)
        keys, degrees, *pulled = route.pull(identity, degree, *([] if rows is None else [rows]))
        batch = _batch(block, keys, degrees)
        given = session.model.first(batch, _inputs(session, ids)) if rows is None else pulled[0]
        new = session.model.step(number, batch, block, given)
        if out is None:
            out = new.new_empty((partition.num_nodes, new.shape[1]))
        out[first:last] = new
    return rows if out is None else out


def _full_block(partition: GraphPartition, first: int, last: int, relabel) -> tuple[Block, list[np.ndarray]]:
    """The block of local nodes first .. last - 1 with all their in-edges, and its source nodes' global ids by type."""
    base, bounds = partition.book.type_base(), []
    for kind in range(len(partition.types)):
        span = partition.of_type(kind)
        begin, end = (min(max(place, span.start), span.stop) - span.start for place in (first, last))
        bounds.append((begin, end))
        relabel[kind].begin()
        relabel[kind].add(partition.global_ids(kind)[begin:end] - base[kind])
    relations = []
    for number, (relation, edges) in enumerate(zip(partition.relations, partition.edges, strict=True)):
        begin, end = bounds[relation.dst_type]
        indptr = edges.indptr[begin : end + 1] - edges.indptr[begin]
        source = edges.src[edges.indptr[begin] : edges.indptr[end]] - base[relation.src_type]
        place = torch.from_numpy(relabel[relation.src_type].add(source).astype(np.int64))
        relations.append(
            Adjacency(number, relation.src_type, relation.dst_type, torch.from_numpy(indptr), place)
        )  # fmt: skip
    ids = [known.unique + base[kind] for kind, known in enumerate(relabel)]
    num_dst = tuple(end - begin for begin, end in bounds)
    return Block(tuple(relations), tuple(len(found) for found in ids), num_dst), ids


def _batch(block: Block, identity: torch.Tensor, degree: torch.Tensor) -> Batch:
    """One block as a batch of its own."""
    return Batch((block,), identity.split(block.num_src), degree.split(block.num_src), 0, 0, 0, False)
