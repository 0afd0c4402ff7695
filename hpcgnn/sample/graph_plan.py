"""The sampler of static steps: from a batch's seeds to layered blocks and the routes to their input rows."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.native.dispatch import upload
from hpcgnn.nn.message_blocks import Adjacency, Batch, Block
from hpcgnn.sample.draw import Completion, Draw, Roots, Steps
from hpcgnn.sample.edge_tables import EdgeTables
from hpcgnn.sample.plan_stream import PlanStream
from hpcgnn.sample.seeds import SeedBatches
from hpcgnn.store.features import Fetch, NodeRows

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
