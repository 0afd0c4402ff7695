"""Draws the neighbours of a step: from its roots to layered blocks, by the graph's edges alone.

Draws are made on the host, or by one rank on a device that holds the edges. s seeds of a rank, U nodes so far of a
type, D destination nodes of a type, E edges of a relation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.graph.partition import Relation
from hpcgnn.loop.placement import leaves_room, other_device
from hpcgnn.native import Random, Stream
from hpcgnn.native.dispatch import Uploads
from hpcgnn.static.config import FULL, GraphSamplingConfig
from hpcgnn.static.model.blocks import Adjacency, Block
from hpcgnn.static.negatives import LinkNegatives
from hpcgnn.static.neighbors import NeighborSampler
from hpcgnn.static.seeds import SeedBatches

Columns = dict[str, np.ndarray]
Groups = list[tuple[int, np.ndarray]]  # of root nodes: their type, their global ids
Roots = tuple[tuple[int, str], ...]  # groups of nodes that a seed needs: their type, their column in the batches


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn for a step. places: by group, positions [s] int64 of its nodes among the last block's destination
    nodes of their type; blocks: the innermost first; wanted: by type, global ids of the innermost source nodes. All on
    the host, or all on the device."""

    places: list[np.ndarray] | list[torch.Tensor]
    blocks: tuple[Block, ...]
    wanted: list[np.ndarray] | list[torch.Tensor]


class Steps:
    """One pass over a split: makes the columns of each step once, in the order in which steps are drawn."""

    def __init__(self, batches: SeedBatches, roots: Roots, epoch: int, complete: LinkNegatives | None):
        """complete: adds the columns that the batches lack."""
        self.batches, self.epoch, self._roots, self._complete = batches, epoch, roots, complete
        self.training = batches.name == "train"
        self._made: dict[int, Columns] = {}

    def groups(self, step: int) -> Groups:
        """Collective. Return the root nodes of this rank's seeds of a step."""
        if step not in self._made:
            if self._complete is not None:
                self._made[step] = self._complete(self.batches, self.epoch, step)
            else:
                seeds = self.batches.at(step)
                self._made[step] = {name: column[seeds] for name, column in self.batches.columns.items()}
        return [(kind, self._made[step][name].ravel()) for kind, name in self._roots]

    def take(self, step: int) -> Columns:
        """Return the columns of a step whose groups were made; those of earlier ones are forgotten."""
        columns = self._made.pop(step)
        self._made = {later: of_later for later, of_later in self._made.items() if later > step}
        return columns


class Draw(Protocol):
    """Draws the blocks of steps, on this rank or another one."""

    def draw(self, steps: Steps, step: int, stride: int = 1) -> Drawn:
        """Collective. Draw for this rank's seeds of a step; the next one to be drawn is likely ``step + stride``."""


class BlockSampler:
    """Draws on this rank's host, hop by hop from the owners of the frontier. For one thread at a time; see ``over``."""

    def __init__(
        self, neighbors: NeighborSampler, config: GraphSamplingConfig, seed: int,
        everything: NeighborSampler | None = None,
    ):  # fmt: skip
        """everything: of mode "full", for induced blocks: each has all edges among the nodes that were drawn."""
        self._neighbors, self._config, self._seed, self._everything = neighbors, config, seed, everything
        self._relations, self._base = neighbors.partition.relations, neighbors.partition.book.type_base()
        self._relabel = [native.Relabel(int(count)) for count in np.diff(self._base)]

    def over(self, channel: Channel) -> BlockSampler:
        """Return a twin for another thread, which asks over a channel of its own."""
        everything = self._everything and self._everything.over(channel)
        return BlockSampler(self._neighbors.over(channel), self._config, self._seed, everything)

    def draw(self, steps: Steps, step: int, stride: int = 1) -> Drawn:
        """Collective. Draw the blocks of a step."""
        return self.draw_groups(steps.groups(step), steps.epoch, step, steps.training)

    def draw_groups(self, groups: Groups, epoch: int, step: int, training: bool) -> Drawn:
        """Collective. Draw the blocks of groups of root nodes."""
        for relabel in self._relabel:
            relabel.begin()
        stream, blocks = Stream.NEIGHBOR if training else Stream.EVAL_NEIGHBOR, []
        random = Random(self._seed, stream, step, epoch)
        by_hop = fanouts_by_hop(self._config, self._relations, training)
        if groups and by_hop and self._neighbors.alone and all(fanouts[0] for fanouts in by_hop):
            blocks = self._draw_all_hops(groups, [fanouts[0] for fanouts in by_hop], random)
            places = self._places(groups)
        else:
            places = self._places(groups)
            for hop, fanouts in enumerate(by_hop):
                frontier = self._nodes()
                samples = self._neighbors.ask(frontier, fanouts, Random(self._seed, stream, step, epoch, hop))
                relations = []
                for number, (sampled, fanout) in enumerate(zip(samples, fanouts, strict=True)):
                    if fanout != 0:
                        kind = self._relations[number].src_type
                        source = self._relabel[kind].add(sampled.source - self._base[kind])
                        relations.append(self._adjacency(number, sampled.indptr, source, sampled.edge))
                sizes = tuple(len(relabel.unique) for relabel in self._relabel)
                blocks.append(Block(tuple(relations), sizes, tuple(len(ids) for ids in frontier)))
        nodes = self._nodes()
        if self._everything is not None:
            blocks = [induced_block(self._everything, nodes, random)] * len(blocks)
        return Drawn(places, tuple(reversed(blocks)), nodes)

    def _draw_all_hops(self, groups: Groups, fanouts: list[int], random: Random) -> list[Block]:
        """Draw all hops of a graph of one type and one relation that this rank has as a whole."""
        (relabel,) = self._relabel
        hops = self._neighbors.layers(np.concatenate([ids for _, ids in groups]), fanouts, random, relabel)
        sizes = [len(offsets) - 1 for offsets, _, _ in hops] + [len(relabel.unique)]
        return [
            Block((self._adjacency(0, offsets, source, edge),), (num_src,), (num_dst,))
            for (offsets, source, edge), num_dst, num_src in zip(hops, sizes, sizes[1:], strict=False)
        ]

    def _places(self, groups: Groups) -> list[np.ndarray]:
        """Find the positions of the roots among the unique nodes of their type, which they join."""
        return [self._relabel[kind].add(ids - self._base[kind]).astype(np.int64) for kind, ids in groups]

    def _adjacency(self, number: int, indptr: np.ndarray, source: np.ndarray, edge: np.ndarray | None) -> Adjacency:
        relation, columns = self._relations[number], (indptr, source.astype(np.int64), edge)
        tensors: list[Any] = [None if column is None else torch.from_numpy(np.ascontiguousarray(column))
                              for column in columns]  # fmt: skip
        return Adjacency(number, relation.src_type, relation.dst_type, *tensors)

    def _nodes(self) -> list[np.ndarray]:
        """Copy the global ids of the nodes so far, by type."""
        return [relabel.unique + first for relabel, first in zip(self._relabel, self._base, strict=False)]


def fanouts_by_hop(config: GraphSamplingConfig, relations: tuple[Relation, ...], training: bool) -> list[list[int]]:
    """List the fanouts of every hop by relation."""
    usual = config.fanouts if training or not config.eval_fanouts else config.eval_fanouts
    if config.mode == "full":
        usual = [FULL] * len(usual)
    names = [relation.name for relation in relations]
    return [[config.relation_fanouts.get(name, usual)[hop] for name in names] for hop in range(len(usual))]


def induced_block(neighbors: NeighborSampler, nodes: list[np.ndarray], random: Random) -> Block:
    """Collective. Make the block of all edges among nodes, unique global ids [U] by type, which are its sources and its
    destinations. neighbors: of mode "full"; random: key of the step's draws, whose seeds are left out."""
    relations = neighbors.partition.relations
    samples = neighbors.ask(nodes, [FULL] * len(relations), random)
    orders, adjacencies = [np.argsort(ids) for ids in nodes], []
    for number, (relation, sampled) in enumerate(zip(relations, samples, strict=True)):
        order = orders[relation.src_type]
        ids = nodes[relation.src_type][order]
        place = np.searchsorted(ids, sampled.source)
        is_inside = place < len(ids)
        is_inside[is_inside] = ids[place[is_inside]] == sampled.source[is_inside]
        indptr = np.concatenate(([0], np.cumsum(is_inside)))[sampled.indptr]
        edge = None if sampled.edge is None else torch.from_numpy(sampled.edge[is_inside])
        lists = torch.from_numpy(indptr), torch.from_numpy(order[place[is_inside]])
        adjacencies.append(Adjacency(number, relation.src_type, relation.dst_type, *lists, edge))
    sizes = tuple(map(len, nodes))
    return Block(tuple(adjacencies), sizes, sizes)


@dataclass(frozen=True, slots=True)
class ResidentLists:
    """The in-edges of a relation on a device: indptr [n + 1], identity [n] flat row ids of the nodes, src [m] rows of
    the source type, all int64; weight [m] uint32 and source_identity [m] flat row ids of the sources, or None."""

    indptr: torch.Tensor
    identity: torch.Tensor
    src: torch.Tensor
    weight: torch.Tensor | None
    source_identity: torch.Tensor | None


class UniqueNodes:
    """The unique rows of one type, in order of first occurrence over several calls, on a device."""

    def __init__(self, device: torch.device):
        self.rows = torch.empty(0, dtype=torch.int64, device=device)

    def add(self, rows: torch.Tensor) -> torch.Tensor:
        """Find the position [k] int64 of every row [k] int64 among the unique ones, which new rows join."""
        known = len(self.rows)
        self.rows, inverse = native.unique_relabel(torch.cat([self.rows, rows]))
        return inverse[known:].long()


class ResidentDraw:
    """Draws the blocks of `BlockSampler` on a device that holds the edges, as tensors of the device."""

    def __init__(self, neighbors: NeighborSampler, config: GraphSamplingConfig, seed: int, device: torch.device):
        partition, upload = neighbors.partition, Uploads(device)
        self._relations, self._mode, self._config, self._seed = partition.relations, neighbors.mode, config, seed
        self.device, self._base, self._lists = device, partition.book.type_base().tolist(), list[ResidentLists]()
        for relation, edges, lists in zip(partition.relations, partition.edges, neighbors.lists, strict=True):
            columns = (lists.weight, lists.source_identity)
            optional = [None if column is None else upload(column) for column in columns]
            src = upload(edges.src, torch.int64) - self._base[relation.src_type]
            self._lists.append(ResidentLists(upload(lists.indptr), upload(lists.identity), src, *optional))

    def over(self, channel: Channel) -> ResidentDraw:
        """Return itself: it asks no other rank, and keeps nothing from step to step."""
        return self

    def draw(self, steps: Steps, step: int, stride: int = 1) -> Drawn:
        """Draw the blocks of a step; places and wanted are tensors of the device."""
        stream, blocks = Stream.NEIGHBOR if steps.training else Stream.EVAL_NEIGHBOR, []
        nodes, places = [UniqueNodes(self.device) for _ in self._base[1:]], []
        for kind, ids in steps.groups(step):
            rows = torch.from_numpy(np.ascontiguousarray(ids, np.int64)).to(self.device) - self._base[kind]
            places.append(nodes[kind].add(rows))
        for hop, fanouts in enumerate(fanouts_by_hop(self._config, self._relations, steps.training)):
            frontier, adjacencies = [of_type.rows for of_type in nodes], []
            for number, (relation, lists, fanout) in enumerate(zip(self._relations, self._lists, fanouts, strict=True)):
                if fanout == 0:
                    continue
                random = Random(self._seed, stream, step, steps.epoch, hop, number)
                indptr, positions = native.sample_neighbors(
                    lists.indptr, frontier[relation.dst_type], lists.identity, fanout, random, mode=self._mode,
                    weight=lists.weight, source_identity=lists.source_identity,
                )  # fmt: skip
                source = nodes[relation.src_type].add(lists.src[positions])
                adjacencies.append(Adjacency(number, relation.src_type, relation.dst_type, indptr, source))
            sizes = tuple(len(of_type.rows) for of_type in nodes)
            blocks.append(Block(tuple(adjacencies), sizes, tuple(map(len, frontier)), self.device))
        wanted = [of_type.rows + first for of_type, first in zip(nodes, self._base, strict=False)]
        return Drawn(places, tuple(reversed(blocks)), wanted)


def choose_draw(
    neighbors: NeighborSampler, config: GraphSamplingConfig, seed: int, device: torch.device
) -> BlockSampler | ResidentDraw:
    """Make the draw of static steps that ``sampling.planner`` names. Raises ValueError where the device is named but
    cannot draw."""
    if config.planner != "host":
        hindrance = other_device(device) or neighbors.needs_host
        if hindrance and config.planner == "device":
            raise ValueError(f"sampling.planner device: {hindrance}; leave it auto")
        num_bytes = sum(8 * len(edges.src) for edges in neighbors.partition.edges)
        for lists in neighbors.lists:
            columns = (lists.indptr, lists.identity, lists.weight, lists.source_identity)
            num_bytes += sum(column.nbytes for column in columns if column is not None)
        if not hindrance and (config.planner == "device" or leaves_room(num_bytes, device)):
            return ResidentDraw(neighbors, config, seed, device)
    return BlockSampler(neighbors, config, seed)
