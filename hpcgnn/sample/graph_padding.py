"""Plans of static steps with padded shapes, as `hpcgnn.sample.padding` has them of temporal ones: for one rank, and
graphs of one node type and one relation.

Level k holds the nodes that are sources of block k and destinations of block k - 1. Padding of a level lies behind its
nodes; those of the level above, with their padding, are the first of it. Edges that are padding lead from the last
nodes of a level, which are padding, to the padding of the level above, so that no sum over neighbours sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from hpcgnn.comm.route import Route
from hpcgnn.loop.step_graphs import padded_length
from hpcgnn.nn.message_blocks import Adjacency, Block
from hpcgnn.sample.graph_plan import GraphPlan

EDGES_A_NODE = 32  # of padding: long lists would keep a kernel waiting


@dataclass(slots=True)
class Level:
    """place [n] int64 of the nodes among ``length`` ones."""

    place: torch.Tensor
    length: int

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Values [n, ...] at their places, the first one at all others."""
        return values[:1].repeat(self.length, *[1] * (values.dim() - 1)).index_copy(0, self.place, values)


def pad_graph_plan(plan: GraphPlan) -> GraphPlan:
    """The plan of a step on one rank with padded levels and edges; unchanged where it has no seeds."""
    batch, (fetch,) = plan.batch, plan.fetches
    if batch.blocks[-1].num_dst[0] == 0:
        return plan
    levels = _levels(batch.blocks)
    inputs = levels[0]
    blocks = tuple(_pad_block(block, *pair) for block, pair in zip(batch.blocks, pairwise(levels), strict=True))
    identity, degree = ((values if len(values) == 0 else inputs.spread(values),)
                        for (values,) in (batch.identity, batch.degree))  # fmt: skip
    route = Route.alone(fetch.route.channel, inputs.spread(fetch.route.requests))
    return replace(
        plan, batch=replace(batch, blocks=blocks, identity=identity, degree=degree),
        fetches=(replace(fetch, route=route, num_wanted=inputs.length),),
    )  # fmt: skip


def _levels(blocks: tuple[Block, ...]) -> list[Level]:
    """From the inputs to the seeds."""
    (seeds,), device = blocks[-1].num_dst, blocks[-1].device
    length = padded_length(seeds + _further_nodes(blocks[-1]))
    levels, known = [Level(torch.arange(seeds, device=device), length)], seeds
    for block, above in zip(reversed(blocks), [*reversed(blocks[:-1]), None], strict=True):
        (count,) = block.num_src
        fresh = levels[0].length + torch.arange(count - known, device=device)
        place = torch.cat([levels[0].place, fresh])
        further = 1 if above is None else _further_nodes(above)
        levels.insert(0, Level(place, padded_length(levels[0].length + count - known + further)))
        known = count
    return levels


def _further_nodes(block: Block) -> int:
    """Destinations that the padded edges of a block need, at least one."""
    count = _num_edges(block)
    return max(1, -(-(padded_length(count) - count) // EDGES_A_NODE))


def _num_edges(block: Block) -> int:
    return sum(len(relation.source) for relation in block.relations)


def _pad_block(block: Block, sources: Level, destinations: Level) -> Block:
    relations = tuple(_pad_edges(relation, sources, destinations) for relation in block.relations)
    return replace(block, relations=relations, num_src=(sources.length,), num_dst=(destinations.length,))


def _pad_edges(edges: Adjacency, sources: Level, destinations: Level) -> Adjacency:
    place, count, device = destinations.place, len(edges.source), edges.source.device
    degree = edges.indptr[1:] - edges.indptr[:-1]
    length = padded_length(count)
    is_padding = torch.ones(destinations.length, dtype=torch.bool, device=device).index_fill(0, place, False)
    share, rest = divmod(length - count, destinations.length - len(place))
    degrees = (share + (is_padding.cumsum(0) <= rest).long()).index_copy(0, place, degree)
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    moved = (indptr[place] - edges.indptr[:-1]).repeat_interleave(degree, output_size=count)
    first = destinations.length + len(sources.place) - len(place)  # behind all nodes
    source = first + torch.arange(length, device=device) % (sources.length - first)
    source[torch.arange(count, device=device) + moved] = sources.place[edges.source]
    return replace(edges, indptr=indptr, source=source)
