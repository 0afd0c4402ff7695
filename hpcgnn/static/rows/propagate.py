"""Propagates features of nodes over the whole graph before training, for models without messages (SIGN: Frasca et al.,
Scalable inception graph neural networks, 2020; SSGC: Zhu and Koniusz, Simple spectral graph convolution, 2021).

A hop sums the rows of the neighbors and of the node itself, each times 1 / sqrt((d_u + 1) (d_v + 1)); with
``model.edge_weights``, weights multiply them, as in GcnConv. The rows of remote nodes come by halo exchange. n own
nodes, F columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.graph.book import find_remote_nodes, is_remote
from hpcgnn.graph.columns import HeldColumn, load
from hpcgnn.graph.partition import WEIGHT, GraphPartition
from hpcgnn.static.config import FeatureConfig
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
    partition: GraphPartition, config: FeatureConfig, channel: Channel, dtype: torch.dtype
) -> tuple[GraphPartition, FeatureConfig]:  # fmt: skip
    """Collective. Return the partition with features of ``config.hops`` hops in place of its features: side by side
    [n, (hops + 1) F], nearest first, or their mean [n, F]; and the configuration of their tables, as they are
    normalized. Without hops both stay as they are."""
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
    step = Propagation(partition, channel, rows.dtype)
    for _ in range(hops):
        rows = step(rows)
        yield rows


class Propagation:
    """One hop over a graph of one node type and one relation. Collective to create, and to call on the rows [n, F] of
    the own nodes."""

    def __init__(self, partition: GraphPartition, channel: Channel, dtype: torch.dtype):
        book, rank, (edges,) = partition.book, partition.rank, partition.edges
        is_remote_source = is_remote(book, rank, 0, edges.src)
        (remote_nodes,), (source,) = find_remote_nodes(book, rank, [(0, edges.src, is_remote_source)])
        self._route = Route.plan(book.of_type(0), remote_nodes, channel)
        weight = edges.columns.get(WEIGHT) if partition.weighs else None
        weights = None if weight is None else torch.from_numpy(weight)
        lists, own = (torch.from_numpy(edges.indptr), torch.from_numpy(source)), len(edges.indptr) - 1
        self._block = Block((Adjacency(0, 0, 0, *lists, weight=weights),), (own + len(remote_nodes),), (own,))
        (self._degree,) = self._with_remote(torch.from_numpy(partition.in_degree()).to(dtype))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Collective. Propagate rows."""
        (reached,) = self._with_remote(rows)
        return normalized_sum(self._block, reached, self._degree, self_loop=True)

    def _with_remote(self, *own: torch.Tensor) -> list[torch.Tensor]:
        """Collective. Append the rows of the remote nodes."""
        return [torch.cat(pair) for pair in zip(own, self._route.pull(*own), strict=True)]
