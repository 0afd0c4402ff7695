"""Induced subgraphs: all edges of the graph among some nodes.

U nodes of a type, D of a relation's destination type, E edges.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.native import Random, Stream
from hpcgnn.nn.message_blocks import Adjacency, Block
from hpcgnn.sample.draw import BlockSampler, Drawn, Groups
from hpcgnn.sample.graph_config import FULL, GraphSamplingConfig
from hpcgnn.sample.graph_neighbors import NeighborSampler, Sampled


class InducedSampler(BlockSampler):
    """As BlockSampler, but every block holds all edges among the nodes that the hops have sampled. everything: asks for
    all neighbours."""

    def __init__(
        self, neighbors: NeighborSampler, config: GraphSamplingConfig, seed: int, everything: NeighborSampler
    ):  # fmt: skip
        super().__init__(neighbors, config, seed)
        self._everything = everything

    def over(self, channel: Channel) -> InducedSampler:
        """As in BlockSampler."""
        twin: Any = super().over(channel)
        twin._everything = self._everything.over(channel)
        return twin

    def draw_groups(self, groups: Groups, epoch: int, step: int, training: bool) -> Drawn:
        """As in BlockSampler, which finds the nodes."""
        drawn = super().draw_groups(groups, epoch, step, training)
        stream = Stream.NEIGHBOR if training else Stream.EVAL_NEIGHBOR
        wanted: Any = drawn.wanted  # drawn on the host
        block = induced_block(self._everything, wanted, Random(self._seed, stream, step, epoch))
        return replace(drawn, blocks=(block,) * len(drawn.blocks))


def induced_block(neighbors: NeighborSampler, nodes: list[np.ndarray], random: Random) -> Block:
    """Collective. All edges among nodes, unique global ids [U] by type, as a block with as many destinations as
    sources; neighbors: of mode "full"; random: tells the step, whose seeds are left out."""
    relations = neighbors.partition.relations
    found = neighbors.ask(nodes, [FULL] * len(relations), random)
    order = [np.argsort(ids) for ids in nodes]
    adjacency = []
    for number, (kind, sampled) in enumerate(zip(relations, found, strict=True)):
        columns = _among(sampled, nodes[kind.src_type], order[kind.src_type])
        tensors: list[Any] = [None if column is None else torch.from_numpy(column) for column in columns]
        adjacency.append(Adjacency(number, kind.src_type, kind.dst_type, *tensors))
    sizes = tuple(map(len, nodes))
    return Block(tuple(adjacency), sizes, sizes)


def _among(sampled: Sampled, nodes: np.ndarray, order: np.ndarray):
    """indptr [D + 1], source [E] positions and edge [E] or None, of the edges whose source is one of nodes [U]."""
    known = nodes[order]
    place = np.searchsorted(known, sampled.source)
    kept = place < len(known)
    kept[kept] = known[place[kept]] == sampled.source[kept]
    below = np.concatenate(([0], np.cumsum(kept)))
    return below[sampled.indptr], order[place[kept]], None if sampled.edge is None else sampled.edge[kept]
