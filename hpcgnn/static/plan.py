"""Plans static steps: from a batch's seeds to layered blocks and the routes to their input rows.

Where steps are CUDA graphs, plans are padded (one rank, one node type and relation). Level k holds the nodes that are
sources of block k and destinations of block k - 1. Padding of a level lies behind its nodes; the nodes of the level
above, with their padding, are its first nodes. Edges that are padding lead from the last nodes of a level, which are
padding, to the padding of the level above, so that no sum over neighbors sees them.
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

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.loop.prefetch import PlanStream
from hpcgnn.loop.step_graphs import padded_length
from hpcgnn.native.dispatch import upload
from hpcgnn.static.features import FEATURE, Fetch, NodeRows
from hpcgnn.static.model.blocks import Adjacency, Batch, Block, IndexedRows, RelationEdges
from hpcgnn.static.sampling.draw import Draw, Roots, Steps
from hpcgnn.static.sampling.edges import EdgeTables
from hpcgnn.static.sampling.seeds import Completion, SeedBatches

NODE_COLUMNS = (IDENTITY, DEGREE) = ("identity", "degree")  # of a Batch


@dataclass(slots=True)
class GraphPlan:
    """The plan of a step. batch_size: number of seeds of all ranks. roots: positions of the seeds' nodes among the last
    block's destination nodes of their type, a tensor for each of the sampler's ``roots``, [s] or as wide as its column.
    position [s]: of the seeds in the epoch; columns [s, ...]: of the seeds, by name; fetches: of the input rows, by
    node type. features: the input rows [U, F] where they came with the plan, None for types whose rows the step
    fetches. seed_number: as in ``Drawn``."""

    step: int
    epoch: int
    batch_size: int
    roots: tuple[torch.Tensor, ...]
    position: np.ndarray
    columns: dict[str, torch.Tensor]
    batch: Batch
    fetches: tuple[Fetch, ...]
    features: tuple[torch.Tensor | IndexedRows | None, ...]
    seed_number: tuple[torch.Tensor, ...] = ()
    final: bool = True


class GraphSampler:
    """Plans the steps of a run or loader, for one thread at a time (see ``over``). Planning is collective over
    ``channel``; the fetches move rows over ``move_channel``."""

    def __init__(
        self, rows: tuple[NodeRows, ...], draw: Draw, roots: Roots, seed: int, channel: Channel,
        move_channel: Channel, device: torch.device, *, complete: Completion | None = None,
        node_columns: Collection[str] = NODE_COLUMNS, edges: EdgeTables | None = None,
        pad: Callable[[GraphPlan], GraphPlan] | None = None, with_features: bool = False,
    ):  # fmt: skip
        """draw: makes the blocks; roots: groups of nodes that a step needs, as (node type, column with their global
        ids); complete: draws the negatives of a step; node_columns: of NODE_COLUMNS the ones that a batch gets, the
        others are empty; edges: attaches columns to the blocks' edges; pad: pads the plans of training; with_features:
        plans bring the features of the input rows."""
        self._rows, self._roots, self._seed = rows, roots, seed
        self._draw: Any = draw
        self._channel, self._move_channel, self._device = channel, move_channel, device
        self._complete, self._node_columns, self._edges = complete, node_columns, edges
        self._stream, self._pad, self._with_features = PlanStream(device), pad, with_features
        self._steps: Steps | None = None

    def over(self, channel: Channel, draw: Draw | None = None) -> GraphSampler:
        """Return a twin for another thread, which plans over ``channel``; draw: by default a twin of the draw, which
        shares the edges."""
        twin = copy.copy(self)
        twin._channel, twin._draw, twin._steps = channel, draw or self._draw.over(channel), None
        twin._complete = self._complete and self._complete.over(channel)
        return twin

    def plan(self, batches: SeedBatches, epoch: int, step: int, stride: int = 1) -> GraphPlan:
        """Collective. Plan one step; the next step planned is likely ``step + stride``."""
        make = functools.partial(self._plan, batches, epoch, step, stride)
        return self._stream.run(make)

    def _plan(self, batches: SeedBatches, epoch: int, step: int, stride: int) -> GraphPlan:
        training, steps = batches.name == "train", self._steps_of(batches, epoch)
        drawn = self._draw.draw(steps, step, stride)  # makes the step's columns, collectively; take() is local
        columns = steps.take(step)
        shapes = [columns.pop(name).shape for _, name in self._roots]
        roots = tuple(self._move(place.reshape(shape)) for place, shape in zip(drawn.places, shapes, strict=True))
        fetches = []
        for rows, ids in zip(self._rows, drawn.input_ids, strict=True):
            plan_rows = rows.plan_repeated if drawn.seed_number else rows.plan
            fetches.append(plan_rows(ids, self._channel))
        empty, of_nodes = torch.empty(0, dtype=torch.int64, device=self._device), {}
        for name in NODE_COLUMNS:  # not over node_columns: a set, whose order may differ between ranks
            of_nodes[name] = (empty,) * len(fetches)
            if name == DEGREE and drawn.degree:
                of_nodes[name] = tuple(map(self._move, drawn.degree))
            elif name in self._node_columns:
                tables = (rows.fetch(fetch, name) for rows, fetch in zip(self._rows, fetches, strict=True))
                of_nodes[name] = tuple(upload(table, self._device) for table in tables)
        features: tuple[Any, ...] = (None,) * len(fetches)
        if drawn.features:
            features = tuple(None if of_type is None else upload(of_type, self._device) for of_type in drawn.features)
        elif self._with_features:
            features = tuple(rows.wanted(fetch, FEATURE) for rows, fetch in zip(self._rows, fetches, strict=True))
        blocks = drawn.blocks if self._edges is None else self._edges.attach(drawn.blocks, self._channel)
        blocks = tuple(block_on(self._device, block) for block in blocks)
        batch = Batch(blocks, of_nodes["identity"], of_nodes["degree"], self._seed, epoch, step, training)
        plan = GraphPlan(
            step, epoch, int(batches.sizes[step]), roots, batches.position[batches.at(step)],
            {name: self._move(column) for name, column in columns.items()}, batch,
            tuple(fetch.to(self._device, self._move_channel) for fetch in fetches), features,
            tuple(map(self._move, drawn.seed_number)),
        )  # fmt: skip
        return self._pad(plan) if self._pad and training else plan

    def input_ids(self, batches: SeedBatches, epoch: int, step: int) -> list[np.ndarray]:
        """Collective. Draw a step and list the global ids of the nodes whose rows it needs, by type; nothing is
        fetched."""
        steps = self._steps_of(batches, epoch)
        drawn = self._draw.draw(steps, step)
        steps.take(step)
        ids = [kind.cpu().numpy() if isinstance(kind, torch.Tensor) else kind for kind in drawn.input_ids]
        return [native.unique_relabel(kind)[0] for kind in ids] if drawn.seed_number else ids

    def _steps_of(self, batches: SeedBatches, epoch: int) -> Steps:
        """Return the steps of a pass over a split, with the columns of those that were drawn ahead."""
        if self._steps is None or self._steps.batches is not batches or self._steps.epoch != epoch:
            self._steps = Steps(batches, self._roots, epoch, self._complete)
        return self._steps

    def _move(self, array: np.ndarray | torch.Tensor) -> torch.Tensor:
        if isinstance(array, torch.Tensor):
            return array
        return upload(torch.from_numpy(np.ascontiguousarray(array)), self._device)


def block_on(device: torch.device, block: Block) -> Block:
    """Return the block with its tensors on a device."""
    if device.type == "cpu":
        return block
    if isinstance(block.relations, RelationEdges):
        return replace(block, relations=block.relations.on(device), device=device)
    relations = tuple(
        replace(
            adjacency, indptr=upload(adjacency.indptr, device), source=upload(adjacency.source, device),
            weight=None if adjacency.weight is None else upload(adjacency.weight, device),
            columns={name: upload(column, device) for name, column in (adjacency.columns or {}).items()} or None,
        )
        for adjacency in block.relations
    )  # fmt: skip
    return replace(block, relations=relations, device=device)


EDGES_A_NODE = 32  # of padding: long lists would keep a kernel waiting


@dataclass(slots=True)
class PaddedLevel:
    """The nodes of a level among ``length`` places, the others of which are padding: place [n] int64 of each node."""

    place: torch.Tensor
    length: int

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Put values [n, ...] at their places, and the first one at all others."""
        return values[:1].repeat(self.length, *[1] * (values.dim() - 1)).index_copy(0, self.place, values)


def pad_graph_plan(plan: GraphPlan) -> GraphPlan:
    """Pad the levels and edges of a step's plan on one rank, where every step has seeds."""
    batch, (fetch,) = plan.batch, plan.fetches
    levels, blocks = _levels(batch.blocks), []
    for block, (sources, destinations) in zip(batch.blocks, pairwise(levels), strict=True):
        relations = tuple(_pad_edges(relation, sources, destinations) for relation in block.relations)
        blocks.append(replace(block, relations=relations, num_src=(sources.length,), num_dst=(destinations.length,)))
    inputs = levels[0]
    identity, degree = ((values if len(values) == 0 else inputs.spread(values),)
                        for (values,) in (batch.identity, batch.degree))  # fmt: skip
    return replace(
        plan, batch=replace(batch, blocks=tuple(blocks), identity=identity, degree=degree),
        fetches=(replace(fetch, index=inputs.spread(fetch.index), num_wanted=inputs.length),),
    )  # fmt: skip


def _levels(blocks: tuple[Block, ...]) -> list[PaddedLevel]:
    """Choose the places of the nodes in every level, from the inputs to the seeds."""
    (seeds,), device = blocks[-1].num_dst, blocks[-1].device
    length = padded_length(seeds + _further_nodes(blocks[-1]))
    levels, num_above = [PaddedLevel(torch.arange(seeds, device=device), length)], seeds
    for block, inner in zip(reversed(blocks), [*reversed(blocks[:-1]), None], strict=True):
        (count,) = block.num_src
        fresh = levels[0].length + torch.arange(count - num_above, device=device)
        place = torch.cat([levels[0].place, fresh])
        further = 1 if inner is None else _further_nodes(inner)
        levels.insert(0, PaddedLevel(place, padded_length(levels[0].length + count - num_above + further)))
        num_above = count
    return levels


def _further_nodes(block: Block) -> int:
    """Count the destinations that the padded edges of a block need, at least one."""
    num_edges = sum(len(relation.source) for relation in block.relations)
    return max(1, -(-(padded_length(num_edges) - num_edges) // EDGES_A_NODE))


def _pad_edges(edges: Adjacency, sources: PaddedLevel, destinations: PaddedLevel) -> Adjacency:
    """Move a relation's edges to the places of their nodes, and pad them; edges that are padding join padding alone."""
    place, count, device = destinations.place, len(edges.source), edges.source.device
    degree = edges.indptr[1:] - edges.indptr[:-1]
    length = padded_length(count)
    is_padding = torch.ones(destinations.length, dtype=torch.bool, device=device).index_fill(0, place, False)
    share, rest = divmod(length - count, destinations.length - len(place))
    degrees = (share + (is_padding.cumsum(0) <= rest).long()).index_copy(0, place, degree)
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    moved = (indptr[place] - edges.indptr[:-1]).repeat_interleave(degree, output_size=count)
    first = destinations.length + len(sources.place) - len(place)  # place behind all source nodes
    source = first + torch.arange(length, device=device) % (sources.length - first)
    source[torch.arange(count, device=device) + moved] = sources.place[edges.source]
    return replace(edges, indptr=indptr, source=source)
