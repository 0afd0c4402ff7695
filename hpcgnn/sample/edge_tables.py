"""Row ids and columns of sampled edges, from the owners of their lists.

E edges of a block's relation; the position of an edge counts all edges of its relation, rank after rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.native.dispatch import upload
from hpcgnn.nn.message_blocks import Adjacency, Block
from hpcgnn.sample.graph_neighbors import edges_below
from hpcgnn.store.book import BlockOwnership
from hpcgnn.store.graph_partition import GraphPartition, InEdges


class EdgeTables:
    """Collective to create and to use. What steps fetch of edges, by relation."""

    def __init__(
        self, partition: GraphPartition, columns: Sequence[str], dtype: torch.dtype, device: torch.device,
        channel: Channel,
    ):  # fmt: skip
        """columns: names; a relation without one goes without it; dtype: of those of floating point."""
        self._owners = [BlockOwnership(starts) for starts in edges_below(partition, channel).T]
        self._tables = [_tables(edges, columns, dtype) for edges in partition.edges]
        self._device = device

    def attach(self, blocks: tuple[Block, ...], channel: Channel) -> tuple[Block, ...]:
        """Collective. The blocks with row ids and columns of their edges in place of positions; one request and one
        reply a relation."""
        numbers = sorted({adjacency.relation for block in blocks for adjacency in block.relations})
        found = {number: self._fetch(number, blocks, channel) for number in numbers}
        return tuple(
            replace(block, relations=tuple(found[adjacency.relation].pop(0) for adjacency in block.relations))
            for block in blocks
        )

    def _fetch(self, relation: int, blocks: tuple[Block, ...], channel: Channel) -> list[Adjacency]:
        """Collective. A relation's part of every block."""
        mine: list[Any] = [part for block in blocks for part in block.relations if part.relation == relation]
        positions = torch.cat([adjacency.edge for adjacency in mine]).cpu().numpy()
        unique, inverse = np.unique(positions, return_inverse=True)
        route = Route.plan(self._owners[relation], unique, channel)
        names, tables = zip(*self._tables[relation].items(), strict=True)
        rows = [upload(table[torch.from_numpy(inverse)], self._device) for table in route.pull(*tables)]
        pieces = zip(*(row.split([len(adjacency.edge) for adjacency in mine]) for row in rows), strict=True)
        return [
            replace(adjacency, edge=piece[0], columns=dict(zip(names[1:], piece[1:], strict=True)))
            for adjacency, piece in zip(mine, pieces, strict=True)
        ]


def check_columns(partition: GraphPartition, columns: Sequence[str]) -> None:
    """Raises ValueError for a column that no relation has."""
    known = {name for edges in partition.edges for name in edges.columns}
    for name in columns:
        if name not in known:
            raise ValueError(f"no relation has a column {name}; there are {', '.join(sorted(known)) or 'none'}")


def _tables(edges: InEdges, columns: Sequence[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Row ids, then the columns."""
    found = {"row": torch.from_numpy(edges.row)}
    for name in columns:
        if name in edges.columns:
            column = edges.columns[name]
            floating = column.dtype.kind == "f"
            found[name] = torch.from_numpy(column).to(dtype) if floating else torch.from_numpy(column.astype(np.int64))
    return found
