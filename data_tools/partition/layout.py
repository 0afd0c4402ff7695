"""Where every node goes: from a part per node to global ids.

Parts that come in no order are numbered so that consecutive ones are neighbors. N nodes of all types numbered
together, n of them in a rank's block, P parts, R ranks. Global ids are contiguous by (node type, part).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from data_tools.graph.source import Source
from data_tools.partition.blocks import NodeBlocks
from data_tools.partition.methods.metis import metis_partition
from data_tools.partition.pair_graph import PairGraph
from data_tools.team import Team


@dataclass(frozen=True, slots=True)
class PartLayout:
    """An assignment of all nodes to P parts and the global ids that follow from it. part and global_id are indexed by
    nodes, in the numbers that the rows at hand have."""

    num_parts: int
    part: np.ndarray  # [N] int32
    global_id: np.ndarray  # [N] int64
    offsets: tuple[np.ndarray, ...]  # per type [P + 1] int64, absolute

    def local_bases(self, part: int) -> np.ndarray:
        """Find the first local index [T + 1] of each type within a part, types concatenated."""
        sizes = [offsets[part + 1] - offsets[part] for offsets in self.offsets]
        return np.r_[0, np.cumsum(sizes, dtype=np.int64)]


class PartOfId:
    """The part of every global id, indexed as an array is."""

    def __init__(self, offsets: tuple[np.ndarray, ...]):
        self._starts = np.concatenate([part_starts[:-1] for part_starts in offsets] or [np.zeros(1, np.int64)])
        self._num_parts = len(offsets[0]) - 1 if offsets else 1

    def __getitem__(self, global_ids: np.ndarray) -> np.ndarray:
        """Find the parts [k] int32 of global ids [k]."""
        return ((np.searchsorted(self._starts, global_ids, side="right") - 1) % self._num_parts).astype(np.int32)


class Same:
    """The numbers themselves, indexed as an array 0, 1, ... is."""

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        return numbers


@dataclass(frozen=True, slots=True)
class Numbering:
    """The part and the global id of the nodes of this rank's block, and which rank writes which parts."""

    blocks: NodeBlocks
    part: np.ndarray  # [n] int32
    global_id: np.ndarray  # [n] int64
    by_id: PartLayout  # of nodes that are numbered by their global ids
    first_part: np.ndarray  # [R + 1] first part that each rank writes

    @property
    def own_parts(self) -> range:
        """The parts that this rank writes."""
        rank = self.blocks.team.rank
        return range(int(self.first_part[rank]), int(self.first_part[rank + 1]))

    def rank_of(self, global_ids: np.ndarray) -> np.ndarray:
        """Find the rank [k] that writes the part of each node."""
        return np.searchsorted(self.first_part, self.by_id.part[global_ids], side="right") - 1

    def by_node(self) -> PartLayout:
        """Collective. Return the layout of nodes that are numbered as in the graph file: 12 bytes for each of all
        nodes."""
        part, global_id = self.part, self.global_id
        if self.blocks.team.size > 1:
            part, global_id = (_of_all(values, self.blocks.team) for values in (part, global_id))
        return PartLayout(self.by_id.num_parts, part, global_id, self.by_id.offsets)


GATHERED = 1 << 26  # values in a message of all ranks


def _of_all(values: np.ndarray, team: Team) -> np.ndarray:
    """Collective. Join the values [n] of all ranks, in rank order; a message has some of them, as it may have no 2
    GiB."""
    rows, pieces = max(1, GATHERED // team.size), []
    for first in range(0, max(team.everyone(len(values))), rows):
        pieces.append(team.everyone(values[first : first + rows]))
    return np.concatenate([piece for of_rank in zip(*pieces, strict=True) for piece in of_rank] or [values])


def number_nodes(source: Source, blocks: NodeBlocks, part: np.ndarray, num_parts: int) -> Numbering:
    """Collective. Number the nodes of a source globally for an assignment; part [n] of this rank's block."""
    team = blocks.team
    counts = np.zeros((len(source.types), num_parts), np.int64)
    for node_type, _, place in source.types_in(blocks.own):
        counts[node_type.index] = np.bincount(part[place], minlength=num_parts)
    by_rank = np.array(team.everyone(counts))  # [R, T, P]
    before, sizes = by_rank[: team.rank].sum(axis=0), by_rank.sum(axis=0)
    global_id, offsets = np.empty(len(part), np.int64), []
    for node_type, rows, place in source.types_in(blocks.own):
        offsets.append(node_type.base + np.r_[0, np.cumsum(sizes[node_type.index])].astype(np.int64))
        order = np.argsort(part[place], kind="stable")
        first = offsets[-1][:-1] + before[node_type.index]  # the first id that a node of this block has in each part
        own = counts[node_type.index]
        global_id[place.start + order] = np.arange(len(rows)) + np.repeat(first - (np.cumsum(own) - own), own)
    part_of, same = cast(np.ndarray, PartOfId(tuple(offsets))), cast(np.ndarray, Same())  # read by index only
    by_id = PartLayout(num_parts, part_of, same, tuple(offsets))
    first_part = np.arange(team.size + 1) * num_parts // team.size
    return Numbering(blocks, part.astype(np.int32, copy=False), global_id, by_id, first_part)


def part_ties(own: np.ndarray, other: np.ndarray, weight: np.ndarray, num_parts: int) -> np.ndarray:
    """Add up the weight [P, P] int64 of ties [A] between nodes of parts ``own`` [A] and ``other`` [A]."""
    cells = own.astype(np.int64) * num_parts + other
    ties = np.bincount(cells, weights=weight, minlength=num_parts**2)
    return ties.astype(np.int64).reshape(num_parts, num_parts)


def new_numbers(ties: np.ndarray, seed: int) -> np.ndarray:
    """Choose numbers [P] int32 of parts with ties [P, P] between them, so that consecutive ones are neighbors: the
    graph of the parts is bisected again and again."""
    ties = ties.copy()
    np.fill_diagonal(ties, 0)
    numbers = np.empty(len(ties), np.int32)
    numbers[bisect(ties, np.arange(len(ties)), seed)] = np.arange(len(ties))
    return numbers


def order_parts(graph: PairGraph, part: np.ndarray, num_parts: int, seed: int) -> np.ndarray:
    """Renumber the parts of an assignment [N] of a whole graph so that consecutive ones are neighbors."""
    own = np.repeat(part, graph.degrees())
    return new_numbers(part_ties(own, part[graph.neighbor], graph.weight, num_parts), seed)[part]


def bisect(ties: np.ndarray, parts: np.ndarray, seed: int) -> np.ndarray:
    """Order parts [n]: two halves, of n // 2 and n - n // 2, with few ties between them, each ordered in turn."""
    if len(parts) <= 2:
        return parts
    inside = ties[np.ix_(parts, parts)]
    own, other = np.nonzero(inside)
    indptr = np.searchsorted(own, np.arange(len(parts) + 1))
    quotient = PairGraph(indptr, other, inside[own, other])
    side = metis_partition(quotient, 2, np.ones((len(parts), 1), np.int64), tolerance=1.001, seed=seed)
    # METIS may be one off: the parts that lean most to the other side change over.
    lean = inside[:, side == 1].sum(axis=1) - inside[:, side == 0].sum(axis=1)
    order = np.lexsort((np.arange(len(parts)), lean, side))
    half = len(parts) // 2
    return np.r_[bisect(ties, parts[np.sort(order[:half])], seed), bisect(ties, parts[np.sort(order[half:])], seed)]
