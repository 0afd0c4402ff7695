"""Draws the neighbors of a step: from its roots to layered blocks. Reads edges only, no features.

Drawn hop by hop, in NumPy on the host or in torch on a device that holds the edges (one rank), or induced: all edges
among some nodes. s seeds of a rank, U nodes so far of a type, D destination nodes of a type, E edges of a relation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.graph.partition import Relation
from hpcgnn.loop.prefetch import other_device
from hpcgnn.native import Random, Stream
from hpcgnn.static.config import FULL, GraphSamplingConfig
from hpcgnn.static.model.blocks import Adjacency, Block, RelationEdges
from hpcgnn.static.sampling.neighbors import NeighborSampler, Sampled
from hpcgnn.static.sampling.seeds import Completion, SeedBatches

Columns = dict[str, np.ndarray]
Groups = list[tuple[int, np.ndarray]]  # of root nodes: their type, global ids
Kinds = tuple[tuple[int, int, int], ...]  # of relations: their numbers, source and destination types
Roots = tuple[tuple[int, str], ...]  # groups of nodes that a seed needs: their type, column of the batches


@dataclass(frozen=True, slots=True)
class Drawn:
    """The blocks of a step. places: by group, positions [s] int64 of its nodes among the last block's destination nodes
    of their type. blocks: the innermost first; input_ids: by type, global ids of the innermost source nodes. All on the
    host, or all on the device. features: by type, these nodes' rows [U, F] or None, from sampling servers; else
    empty. The others are of draws in contexts alone (see contexts.py), whose input_ids may repeat a node: by type, the
    number of each node's seed, or time, at this rank [U], and its in-degree there [U]."""

    places: list[np.ndarray] | list[torch.Tensor]
    blocks: tuple[Block, ...]
    input_ids: list[np.ndarray] | list[torch.Tensor]
    features: tuple[torch.Tensor | None, ...] = ()
    seed_number: tuple[np.ndarray, ...] = ()
    degree: tuple[np.ndarray, ...] = ()


class Steps:
    """The columns of a split's steps in one epoch, made once each, in the order in which steps are drawn. This order
    must be the same on all ranks, because negatives are drawn collectively."""

    def __init__(self, batches: SeedBatches, roots: Roots, epoch: int, complete: Completion | None):
        self.batches, self.epoch, self._roots, self._complete = batches, epoch, roots, complete
        self._made: dict[int, Columns] = {}

    @property
    def training(self) -> bool:
        """Whether it is a pass of training."""
        return self.batches.name == "train"

    def groups(self, step: int) -> Groups:
        """Collective. Return the root nodes of this rank's seeds of a step."""
        if step not in self._made and self._complete is not None:
            self._made[step] = self._complete(self.batches, self.epoch, step)
        elif step not in self._made:
            seeds = self.batches.at(step)
            self._made[step] = {name: column[seeds] for name, column in self.batches.columns.items()}
        return [(kind, self._made[step][name].ravel()) for kind, name in self._roots]

    def take(self, step: int) -> Columns:
        """Return the columns of a step whose groups were made, and drop the columns of earlier steps."""
        columns = self._made.pop(step)
        self._made = {later: made for later, made in self._made.items() if later > step}
        return columns


class Draw(Protocol):
    """A source of a step's blocks: this rank draws them, or a sampling server does."""

    @property
    def on_device(self) -> bool:
        """Whether draws are tensors of a device."""

    def draw(self, steps: Steps, step: int, stride: int = 1) -> Drawn:
        """Collective. Draw the blocks for this rank's seeds of a step; the next step drawn is likely ``step +
        stride``."""


class UniqueNodes:
    """Numbers unique rows of one type in order of first occurrence, over several calls, on a device; `native.Relabel`
    does so on the host."""

    def __init__(self, device: torch.device):
        self.unique = torch.empty(0, dtype=torch.int64, device=device)

    def begin(self) -> None:
        """Forget all rows."""
        self.unique = self.unique[:0]

    def add(self, rows: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Add rows [k] int64; returns the position [k] int32 of each among the unique rows."""
        if isinstance(rows, np.ndarray):
            rows = torch.from_numpy(rows).to(self.unique.device)
        count = len(self.unique)
        self.unique, inverse = native.unique_relabel(torch.cat([self.unique, rows]))
        return inverse[count:]


class BlockSampler:
    """Draws blocks on this rank, hop by hop, from the owners of the frontier or on the device that holds the edges. For
    one thread at a time: another one needs a twin, see ``over``."""

    def __init__(self, neighbors: NeighborSampler, config: GraphSamplingConfig, seed: int):
        self._neighbors, self._config, self._seed = neighbors, config, seed
        self._relations, self._base = neighbors.partition.relations, neighbors.partition.book.type_base().tolist()
        self._lib: Any = np if neighbors.device is None else torch
        self._hops = {training: hops_of(config, self._relations, training) for training in (False, True)}
        self._relabel = self._make_relabel()

    def _make_relabel(self) -> list[Any]:
        """Make the numberings of a step's unique nodes, by type."""
        if self._neighbors.device is not None:
            return [UniqueNodes(self._neighbors.device) for _ in self._base[1:]]
        return [native.Relabel(last - first) for first, last in pairwise(self._base)]

    @property
    def on_device(self) -> bool:
        """Whether draws are tensors of a device."""
        return self._neighbors.device is not None

    def over(self, channel: Channel) -> BlockSampler:
        """Make a twin for another thread, which communicates over ``channel`` and has a separate numbering of nodes."""
        twin = copy.copy(self)
        twin._neighbors, twin._relabel = self._neighbors.over(channel), self._make_relabel()
        return twin

    def draw(self, steps: Steps, step: int, stride: int = 1) -> Drawn:
        """Collective. Draw the blocks of a step."""
        return self.draw_groups(steps.groups(step), steps.epoch, step, steps.training)

    def draw_groups(self, groups: Groups, epoch: int, step: int, training: bool) -> Drawn:
        """Collective. Draw the blocks for groups of root nodes."""
        for relabel in self._relabel:
            relabel.begin()
        stream, blocks = Stream.NEIGHBOR if training else Stream.EVAL_NEIGHBOR, []
        hops = self._hops[training]
        if groups and hops and self._neighbors.alone and all(fanouts[0] for fanouts, _ in hops):
            return self._draw_whole(groups, [fanouts[0] for fanouts, _ in hops], stream, epoch, step)
        places = self._places(groups)  # first of all: a block's destinations are the first of its sources
        for hop, (fanouts, kinds) in enumerate(hops):
            frontier = self._unique_ids()
            relations: Sequence[Adjacency] = ()
            counts = tuple(map(len, frontier))
            if kinds:
                sampled = self._ask(frontier, fanouts, Random(self._seed, stream, step, epoch, hop))
                relations = connect(kinds, sampled, self._add(sampled), counts)
            sizes = tuple(len(relabel.unique) for relabel in self._relabel)
            blocks.append(Block(relations, sizes, counts, self._neighbors.device or "cpu"))
        return Drawn(places, tuple(reversed(blocks)), self._unique_ids())

    def _ask(self, frontier: list[Any], fanouts: list[int], random: Random) -> Sampled:
        """Collective. Draw the neighbors of the unique nodes so far."""
        return self._neighbors.ask(frontier, fanouts, random)

    def _add(self, sampled: Sampled) -> Any:
        """Add sampled neighbors to the unique nodes; returns their positions [E] among these."""
        return by_source_type(self._relations, sampled, self._add_of_type)

    def _add_of_type(self, kind: int, sampled: Sampled, chosen: Any) -> Any:
        """Add the sources of the chosen edges, a mask [E], which are of a type; returns their positions."""
        return self._relabel[kind].add(sampled.source[chosen] - self._base[kind])

    def _draw_whole(self, groups: Groups, fanouts: list[int], stream: Stream, epoch: int, step: int) -> Drawn:
        """Draw all hops in one native call, for a graph of one type and one relation that this rank has all of."""
        random, (relabel,) = Random(self._seed, stream, step, epoch), self._relabel
        ids = np.concatenate([ids for _, ids in groups])
        drawn = self._neighbors.layers(ids, fanouts, random, relabel)
        sizes = [len(offsets) - 1 for offsets, _, _ in drawn] + [len(relabel.unique)]
        blocks = [
            Block(
                connect(_kinds(self._relations), Sampled(offsets, source, edge), source, (outer,)), (inner,), (outer,)
            )
            for (offsets, source, edge), outer, inner in zip(drawn, sizes, sizes[1:], strict=False)
        ]
        return Drawn(self._places(groups), tuple(reversed(blocks)), self._unique_ids())

    def _places(self, groups: Groups) -> list[Any]:
        """Add the roots to the unique nodes of their type, first of all; returns their positions among these."""
        return [self._index(self._relabel[kind].add(ids - self._base[kind])) for kind, ids in groups]

    def _index(self, positions: Any) -> Any:
        return self._lib.asarray(positions, dtype=self._lib.int64)

    def _unique_ids(self) -> list[Any]:
        """Copy the global ids so far by type."""
        return [relabel.unique + first for relabel, first in zip(self._relabel, self._base, strict=False)]


def fanouts_by_hop(config: GraphSamplingConfig, relations: tuple[Relation, ...], training: bool) -> list[list[int]]:
    """List the fanouts by hop, then by relation."""
    usual = config.fanouts if training or not config.eval_fanouts else config.eval_fanouts
    names = [relation.name for relation in relations]
    return [[config.relation_fanouts.get(name, usual)[hop] for name in names] for hop in range(len(usual))]


def hops_of(
    config: GraphSamplingConfig, relations: tuple[Relation, ...], training: bool
) -> list[tuple[list[int], Kinds]]:  # fmt: skip
    """List the fanouts by relation of every hop, and the relations whose fanout is not 0."""
    by_hop = fanouts_by_hop(config, relations, training)
    kinds = _kinds(relations)
    return [(fanouts, tuple(kinds[number] for number in np.flatnonzero(fanouts))) for fanouts in by_hop]


def _kinds(relations: tuple[Relation, ...]) -> Kinds:
    return tuple((number, kind.src_type, kind.dst_type) for number, kind in enumerate(relations))


def by_source_type(
    relations: tuple[Relation, ...], sampled: Sampled, place: Callable[[int, Sampled, Any], Any]
) -> Any:  # fmt: skip
    """Find the places [E] of sampled sources, type by type: ``place`` returns the places of a type's edges, a mask [E]
    or a slice of all."""
    kinds = sorted({relation.src_type for relation in relations})
    if len(kinds) == 1:
        return place(kinds[0], sampled, slice(None))
    degree, of_relation = sampled.indptr[1:] - sampled.indptr[:-1], [relation.src_type for relation in relations]
    if isinstance(sampled.source, torch.Tensor):
        kind_of = sampled.indptr.new_tensor(of_relation)[sampled.relation].repeat_interleave(degree)
        places = torch.empty_like(sampled.source)
    else:
        kind_of = np.repeat(np.array(of_relation)[sampled.relation], degree)
        places = np.empty_like(sampled.source)
    for kind in kinds:
        chosen = kind_of == kind
        of_type = place(kind, sampled, chosen)
        places[chosen] = of_type.long() if isinstance(of_type, torch.Tensor) else of_type
    return places


def connect(kinds: Kinds, sampled: Sampled, source: Any, num_dst: tuple[int, ...]) -> Sequence[Adjacency]:
    """Make the adjacencies of a block from a sample of the relations ``kinds``; source [E]: places of the neighbors
    among the block's source nodes; num_dst: destination nodes by type, which are the frontier."""
    indptr, edge = _tensor(sampled.indptr), None if sampled.edge is None else _tensor(sampled.edge)
    source = _tensor(source).long()
    if sampled.relation is None:
        return (Adjacency(*kinds[0], indptr, source, edge),)
    relation, place = _tensor(sampled.relation), _tensor(sampled.place)
    degree = indptr[1:] - indptr[:-1]
    if not degree.all():
        kept = torch.nonzero(degree).squeeze(1)
        relation, place = relation.index_select(0, kept), place.index_select(0, kept)
        indptr = torch.cat([indptr.index_select(0, kept), indptr[-1:]])
    numbers = torch.tensor([number for number, _, _ in kinds], dtype=relation.dtype, device=relation.device)
    begin = (*torch.searchsorted(relation, numbers).tolist(), len(relation))
    first = [sum(num_dst[:dst_type]) for dst_type in range(len(num_dst))]
    if len(num_dst) > 1:
        of_kinds = torch.tensor([first[dst_type] for _, _, dst_type in kinds], device=place.device)
        place = place - of_kinds.repeat_interleave(torch.tensor(begin, device=place.device).diff())
    return RelationEdges(kinds, begin, num_dst, place, indptr, source, edge)


def _tensor(array: np.ndarray | torch.Tensor) -> torch.Tensor:
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(array))


class InducedSampler(BlockSampler):
    """Draws blocks of all edges among the nodes that the hops have sampled. everything: draws all neighbors."""

    def __init__(
        self, neighbors: NeighborSampler, config: GraphSamplingConfig, seed: int, everything: NeighborSampler
    ):  # fmt: skip
        super().__init__(neighbors, config, seed)
        self._everything = everything

    def over(self, channel: Channel) -> InducedSampler:
        twin: Any = super().over(channel)
        twin._everything = self._everything.over(channel)
        return twin

    def draw_groups(self, groups: Groups, epoch: int, step: int, training: bool) -> Drawn:
        """Make the blocks of all edges among the nodes that `BlockSampler` finds."""
        drawn = super().draw_groups(groups, epoch, step, training)
        stream = Stream.NEIGHBOR if training else Stream.EVAL_NEIGHBOR
        nodes: Any = drawn.input_ids  # drawn on the host
        block = induced_block(self._everything, nodes, Random(self._seed, stream, step, epoch))
        return replace(drawn, blocks=(block,) * len(drawn.blocks))


def induced_block(neighbors: NeighborSampler, nodes: list[np.ndarray], random: Random) -> Block:
    """Collective. Draw all edges among nodes, unique global ids [U] by type, as a block with the same destinations as
    sources. neighbors: of mode "full"; random: key of the step, whose seeds are left out."""
    relations = neighbors.partition.relations
    sampled = neighbors.ask(nodes, [FULL] * len(relations), random)
    order = [np.argsort(ids) for ids in nodes]

    def place(kind: int, sampled: Sampled, chosen: Any) -> np.ndarray:
        return _places_among(nodes[kind], order[kind], sampled.source[chosen])

    source = by_source_type(relations, sampled, place)
    is_inside = source >= 0
    below = np.concatenate(([0], np.cumsum(is_inside)))
    edge = None if sampled.edge is None else sampled.edge[is_inside]
    inside = replace(sampled, indptr=below[sampled.indptr], source=sampled.source[is_inside], edge=edge)
    sizes = tuple(map(len, nodes))
    return Block(connect(_kinds(relations), inside, source[is_inside], sizes), sizes, sizes)


def _places_among(nodes: np.ndarray, order: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Find the places [E] of sources among nodes [U], whose order is given; -1 for other sources."""
    place = np.searchsorted(nodes, source, sorter=order)
    is_inside = place < len(nodes)
    is_inside[is_inside] = nodes[order[place[is_inside]]] == source[is_inside]
    places = np.full(len(source), -1)
    places[is_inside] = order[place[is_inside]]
    return places


def choose_draw(neighbors: NeighborSampler, config: GraphSamplingConfig, seed: int, world: World) -> BlockSampler:
    """Choose the draw of static steps by ``sampling.plan_on``. Raises ValueError where the device cannot draw."""
    if config.plan_on != "host":
        device, size = world.device, neighbors.device_bytes
        hindrance = other_device(device) or neighbors.needs_host
        if hindrance and config.plan_on == "device":
            raise ValueError(f"sampling.plan_on device: {hindrance}; leave it auto")
        if not hindrance and (config.plan_on == "device" or world.room.takes(size)):
            world.room.note("edges", size, "sampling.plan_on host")
            return BlockSampler(neighbors.on(device), config, seed)
    return BlockSampler(neighbors, config, seed)
