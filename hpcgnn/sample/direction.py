"""A graph with its edges the other way: what sampling along out-edges draws from.

m in-edges of a relation at this rank, o out-edges.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.graph.spill import exchange_columns
from hpcgnn.store.book import BlockOwnership
from hpcgnn.store.graph_partition import GraphPartition, InEdges, Relation


def outward(partition: GraphPartition, channel: Channel) -> GraphPartition:
    """Collective. The graph with every relation reversed, its lists those of out-edges: in-edges of the result are
    out-edges of the graph, with the columns of their edges. The partition must have been opened with out-edges."""
    edges = [
        replace(out, columns=_columns_of(out.row, mine, relation.num_edges, channel))
        for relation, mine, out in zip(partition.relations, partition.edges, partition.out, strict=True)
    ]
    relations = [Relation(r.name, r.dst_type, r.src_type, r.num_edges) for r in partition.relations]
    return replace(partition, relations=tuple(relations), edges=tuple(edges), out=())


def _columns_of(rows: np.ndarray, edges: InEdges, num_edges: int, channel: Channel) -> dict[str, np.ndarray]:
    """Collective. Columns of the edges with row ids ``rows`` [o], unique, by way of ranks that hold them by row id."""
    if not edges.columns:
        return {}
    blocks = BlockOwnership.even(num_edges, channel.size)
    owner, _ = blocks.locate(edges.row)
    row, *columns = exchange_columns([edges.row, *edges.columns.values()], owner, channel)
    order, route = np.argsort(row), Route.plan(blocks, rows, channel)
    return {
        name: _pull(route, column[order]) for name, column in zip(edges.columns, columns, strict=True)
    }  # fmt: skip


def _pull(route: Route, column: np.ndarray) -> np.ndarray:
    """Collective. Wanted rows of a column of any dtype."""
    width = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    raw = np.ascontiguousarray(column).reshape(-1).view(np.uint8).reshape(len(column), width)
    (found,) = route.pull(torch.from_numpy(raw))
    return found.numpy().reshape(-1).view(column.dtype).reshape(-1, *column.shape[1:])
