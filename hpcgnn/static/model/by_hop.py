"""Joins the blocks of a batch to one graph, in order of the hops that reached its nodes.

The seeds are its first nodes. The nodes that a hop draws for the nodes of the hop before are rows of the graph that no
other hop has: a node that several hops reach is there once for each of them. So the edges into a node are the draw of
one hop alone, and a module of as many layers as hops computes rows of seeds that do not depend on the other seeds of
the batch. A self-loop stays one, at the row of its destination.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hpcgnn.static.model.blocks import Adjacency, Block


@dataclass(frozen=True, slots=True)
class HopEdges:
    """The edges of one relation that one hop drew. relation: the adjacency of its block; place [E] int64: the edges'
    places in it; index [2, E] int64: source and destination among the joined graph's nodes of their types."""

    relation: Adjacency
    place: torch.Tensor
    index: torch.Tensor


@dataclass(frozen=True, slots=True)
class JoinedHops:
    """nodes: by type and hop, the seeds first, places [N] int64 among the batch's nodes; edges: by hop, by the number
    of the relation."""

    nodes: list[list[torch.Tensor]]
    edges: list[dict[int, HopEdges]]

    def node_places(self, kind: int) -> torch.Tensor:
        """Return the places of all nodes of a type among the batch's nodes."""
        return torch.cat(self.nodes[kind])

    def of_relation(self, number: int) -> list[HopEdges]:
        """List the edges of a relation by hop, of the hops that follow it."""
        return [of_hop[number] for of_hop in self.edges if number in of_hop]


def join_hops(blocks: tuple[Block, ...], device: torch.device) -> JoinedHops:
    """Join the blocks, of which the last one's destinations are the seeds."""
    nodes = [[torch.arange(count, device=device)] for count in blocks[-1].num_dst]
    edges = []
    for block in reversed(blocks):
        first = [sum(map(len, of_type[:-1])) for of_type in nodes]
        drawn: list[Any] = [
            (relation, *_edges_of(relation, nodes[relation.dst_type][-1])) for relation in block.relations
        ]
        reached = []
        for kind, of_type in enumerate(nodes):
            sources = [source[~is_loop] for of, _, source, _, is_loop in drawn if of.src_type == kind]
            reached.append(torch.unique(torch.cat([of_type[0][:0], *sources])))
        of_hop = {}
        for relation, place, source, destination, is_loop in drawn:
            kind, target = relation.src_type, destination + first[relation.dst_type]
            origin = torch.searchsorted(reached[kind], source) + first[kind] + len(nodes[kind][-1])
            index = torch.stack([torch.where(is_loop, target, origin), target])
            of_hop[relation.relation] = HopEdges(relation, place, index)
        edges.append(of_hop)
        for of_type, new in zip(nodes, reached, strict=True):
            of_type.append(new)
    return JoinedHops(nodes, edges)


def _edges_of(relation: Adjacency, nodes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Find the edges into some destinations [n], in order: their places in the adjacency, their sources, the places of
    their destinations among the nodes, and whether source and destination are one node [E]."""
    begin = relation.indptr[nodes]
    degree = relation.indptr[nodes + 1] - begin
    destination = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), degree)
    before = degree.cumsum(0) - degree
    place = torch.arange(len(destination), device=nodes.device) + (begin - before)[destination]
    source = relation.source[place]
    is_loop = source == nodes[destination] if relation.src_type == relation.dst_type else source < 0
    return place, source, destination, is_loop
