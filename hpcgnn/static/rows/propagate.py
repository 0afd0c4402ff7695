"""Propagates features of nodes over the whole graph before training, for models without messages (SIGN: Frasca et al.,
Scalable inception graph neural networks, 2020; SSGC: Zhu and Koniusz, Simple spectral graph convolution, 2021).

A hop sums the rows of the neighbors and of the node itself, each times 1 / sqrt((d_u + 1) (d_v + 1)); with
``model.edge_weights``, weights multiply them, as in GcnConv. The rows of remote nodes come by halo exchange. n own
nodes, F columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.graph.book import find_remote_nodes, is_remote
from hpcgnn.graph.columns import HeldColumn, load
from hpcgnn.graph.partition import WEIGHT, GraphPartition, InEdges
from hpcgnn.static.model.blocks import Adjacency, Block
from hpcgnn.static.model.convolutions import normalized_sum


def check_propagation(partition: GraphPartition) -> None:
    """Raise ValueError for graphs on which features are not propagated."""
    if (len(partition.types), len(partition.relations)) != (1, 1):
        raise ValueError(
            f"features.hops is for graphs of one node type and one relation, this one has {len(partition.types)} and "
            f"{len(partition.relations)}: set features.hops 0"
        )
    if partition.features[0] is None:
        raise ValueError("features.hops: the graph has no features (column feat of the nodes): set features.hops 0")


def with_propagated(
    partition: GraphPartition, config: Any, channel: Channel, dtype: torch.dtype
) -> tuple[GraphPartition, Any]:  # fmt: skip
    """Collective. Return the partition with features of ``config.hops`` hops in place of its features: side by side
    [n, (hops + 1) F], nearest first, or their mean [n, F]; and the configuration of their tables, as they are
    normalized. Without hops both stay as they are. config: the section ``features``."""
    if not config.hops:
        return partition, config
    (column,) = partition.features
    assert column is not None
    rows = load(column, dtype, config.normalize, torch.device("cpu"))
    hops = propagated(partition, rows, config.hops, channel)
    if config.hop_rows == "mean":
        total = sum(hops, torch.zeros_like(rows))
        result = torch.lerp(total / config.hops, rows, config.own_ratio)
    else:
        result = torch.cat([rows, *hops], dim=1)
    return replace(partition, features=(HeldColumn(result.numpy()),)), replace(config, normalize=False)


def propagated(partition: GraphPartition, rows: torch.Tensor, hops: int, channel: Channel) -> Iterator[torch.Tensor]:
    """Collective. Propagate rows [n, F] of the own nodes; yields the rows after each hop."""
    step = Propagation(partition, channel, rows.dtype, [0], self_loop=True)
    for _ in range(hops):
        rows = step(rows)
        yield rows


class Propagation:
    """One hop along some relations, over the nodes of all types at once. The degree of a node is the number of its
    in-edges of these relations, or the sum of their weights. Collective to create, and to call on the rows [n, F] of
    the own nodes."""

    def __init__(
        self, partition: GraphPartition, channel: Channel, dtype: torch.dtype, relations: Sequence[int], self_loop: bool
    ):
        """relations: their numbers; self_loop: a node is its own neighbor."""
        book, rank, self._self_loop = partition.book, partition.rank, self_loop
        chosen = [(partition.relations[number], partition.edges[number]) for number in relations]
        sources = [
            (kind.src_type, edges.src, is_remote(book, rank, kind.src_type, edges.src)) for kind, edges in chosen
        ]
        remote_nodes, rows = find_remote_nodes(book, rank, sources)
        self._route = Route.plan(book, np.concatenate(remote_nodes), channel)
        # Rows are [own nodes | remote nodes], both type by type.
        own, start = partition.num_nodes, partition.type_start
        first_remote = own + np.cumsum([0, *map(len, remote_nodes)])[:-1] - np.diff(start)
        source = np.concatenate(
            [
                row + np.where(remote, first_remote[kind], start[kind])
                for row, (kind, _, remote) in zip(rows, sources, strict=True)
            ]
        )
        destination = np.concatenate([edges.dst + start[kind.dst_type] for kind, edges in chosen])
        order, num_rows = np.argsort(destination, kind="stable"), own + len(self._route.requests)
        weight = _weights(partition, [edges for _, edges in chosen])
        indptr = np.concatenate([[0], np.cumsum(np.bincount(destination, minlength=own))])
        lists, weights = (torch.from_numpy(indptr), torch.from_numpy(source[order])), torch.from_numpy(weight[order])
        adjacency = Adjacency(0, 0, 0, *lists, weight=weights if partition.weighs else None)
        self._block = Block((adjacency,), (num_rows,), (own,))
        degree = torch.from_numpy(np.bincount(destination, weight, own)).to(dtype)
        self._degree = torch.cat([degree, *self._route.pull(degree)])

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Collective. Propagate rows."""
        reached = torch.cat([rows, *self._route.pull(rows)])
        return normalized_sum(self._block, reached, self._degree, self._self_loop)


def _weights(partition: GraphPartition, relations: Sequence[InEdges]) -> np.ndarray:
    """Join the weights [E] float64 of the edges of some relations: 1, or, where ``partition.weighs``, their column."""
    ones = [np.ones(len(edges.src)) for edges in relations]
    if not partition.weighs:
        return np.concatenate(ones)
    pairs = zip(relations, ones, strict=True)
    return np.concatenate([edges.columns.get(WEIGHT, one).astype(np.float64) for edges, one in pairs])
