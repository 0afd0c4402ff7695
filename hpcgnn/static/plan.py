"""Plans of static steps: from a batch's seeds to layered blocks and the routes to their input rows.

Where steps are CUDA graphs, plans are padded (one rank, one node type and relation). Level k holds the nodes that are
sources of block k and destinations of block k - 1. Padding of a level lies behind its nodes; those of the level above,
with their padding, are the first of it. Edges that are padding lead from the last nodes of a level, which are padding,
to the padding of the level above, so that no sum over neighbours sees them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.loop.prefetch import PlanStream
from hpcgnn.loop.step_graphs import padded_length
from hpcgnn.native.dispatch import upload
from hpcgnn.static.draw import Completion, Draw, Roots, Steps
from hpcgnn.static.edges import EdgeTables
from hpcgnn.static.model.blocks import Adjacency, Batch, Block
from hpcgnn.static.rows import Fetch, NodeRows
from hpcgnn.static.seeds import SeedBatches

NODE_COLUMNS = ("identity", "degree")  # of a Batch


@dataclass(slots=True)
class GraphPlan:
    """One step. batch_size: seeds of all ranks; roots: positions of the seeds' nodes among the last block's destination
    nodes of their type, a tensor for each of the sampler's ``roots``, [s] or as wide as its column; position [s] of the
    seeds in the epoch; columns [s, ...] of the seeds; fetches: by node type, where the input rows come from."""

    step: int
    epoch: int
    batch_size: int
    roots: tuple[torch.Tensor, ...]
    position: np.ndarray
    columns: dict[str, torch.Tensor]
    batch: Batch
    fetches: tuple[Fetch, ...]
    final: bool = True


class GraphSampler:
    """Plans steps. Planning is collective over the plan channel; the fetches move rows over ``move_channel``. For one
    thread at a time; see ``over``."""

    def __init__(
        self, rows: tuple[NodeRows, ...], draw: Draw, roots: Roots, seed: int, channel: Channel,
        move_channel: Channel, device: torch.device, *, complete: Completion | None = None,
        node_columns: Collection[str] = NODE_COLUMNS, edges: EdgeTables | None = None,
        pad: Callable[[GraphPlan], GraphPlan] | None = None,
    ):  # fmt: skip
        """draw: makes the blocks; roots: groups of nodes that a step needs, as (node type, column with their global
        ids); complete: gives a step all columns, where the batches have not all of them; node_columns: what is fetched
        of a batch's nodes, its other columns are empty; edges: what blocks tell of their edges; pad: what is done with
        plans of training."""
        self._rows, self._roots, self._seed = rows, roots, seed
        self._draw: Any = draw
        self._channel, self._move_channel, self._device = channel, move_channel, device
        self._complete, self._node_columns, self._edges = complete, node_columns, edges
        self._stream, self._pad = PlanStream(device), pad
        self._steps: Steps | None = None

    def over(self, channel: Channel, draw: Draw | None = None) -> GraphSampler:
        """A twin for another thread, which plans over a channel of its own; draw: by default a twin of the draw, which
        shares the edges."""
        twin = copy.copy(self)
        twin._channel, twin._draw, twin._steps = channel, draw or self._draw.over(channel), None
        twin._complete = self._complete and self._complete.over(channel)
        return twin

    def plan(self, batches: SeedBatches, epoch: int, step: int, stride: int = 1) -> GraphPlan:
        """Collective. The plan of one step; the next one asked for is likely ``step + stride``."""
        make = functools.partial(self._plan, batches, epoch, step, stride)
        return self._stream.run(make)

    def _plan(self, batches: SeedBatches, epoch: int, step: int, stride: int) -> GraphPlan:
        mine, training = batches.at(step), batches.name == "train"
        steps = self._of(batches, epoch)
        drawn = self._draw.draw(steps, step, stride)
        columns = steps.take(step)
        shapes = [columns.pop(name).shape for _, name in self._roots]
        roots = tuple(self._move(place.reshape(shape)) for place, shape in zip(drawn.places, shapes, strict=True))
        plans = [rows.plan(ids, self._channel) for rows, ids in zip(self._rows, drawn.wanted, strict=True)]
        known = {name: self._fetch(plans, name) for name in NODE_COLUMNS}
        blocks = drawn.blocks if self._edges is None else self._edges.attach(drawn.blocks, self._channel)
        blocks = tuple(block_on(self._device, block) for block in blocks)
        batch = Batch(
            blocks, tuple(known["identity"]), tuple(known["degree"]), self._seed, epoch, step, training
        )  # fmt: skip
        plan = GraphPlan(
            step, epoch, int(batches.sizes[step]), roots, batches.position[mine],
            {name: self._move(column) for name, column in columns.items()}, batch,
            tuple(plan.over(self._move_channel).to(self._device) for plan in plans),
        )  # fmt: skip
        return self._pad(plan) if self._pad and training else plan

    def _fetch(self, plans: list[Fetch], name: str) -> list[torch.Tensor]:
        """Collective. A column of the planned nodes, by type; empty where it is not asked for."""
        if name not in self._node_columns:
            return [torch.empty(0, dtype=torch.int64, device=self._device) for _ in plans]
        return [upload(rows.fetch(plan, name), self._device) for rows, plan in zip(self._rows, plans, strict=True)]

    def wanted(self, batches: SeedBatches, epoch: int, step: int) -> list[np.ndarray]:
        """Collective. Global ids of the nodes whose rows a step wants, by type; nothing is fetched."""
        steps = self._of(batches, epoch)
        wanted = self._draw.draw(steps, step).wanted
        steps.take(step)
        return wanted

    def _of(self, batches: SeedBatches, epoch: int) -> Steps:
        """The steps of one pass over a split, with what is known of those that were asked for ahead."""
        if self._steps is None or self._steps.batches is not batches or self._steps.epoch != epoch:
            self._steps = Steps(batches, self._roots, epoch, self._complete)
        return self._steps

    def _move(self, array: np.ndarray | torch.Tensor) -> torch.Tensor:
        if isinstance(array, torch.Tensor):
            return array
        return upload(torch.from_numpy(np.ascontiguousarray(array)), self._device)


def block_on(device: torch.device, block: Block) -> Block:
    """The block with its tensors on a device."""
    if device.type == "cpu":
        return block

    def moved(adjacency: Adjacency) -> Adjacency:
        indptr, source = upload(adjacency.indptr, device), upload(adjacency.source, device)
        return replace(adjacency, indptr=indptr, source=source)

    return replace(block, relations=tuple(map(moved, block.relations)), device=device)


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
