"""Where every node goes, with the nodes in blocks on the ranks: from parts to global ids.

N nodes of all types numbered together, n of them in a rank's block, T types, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from data_tools.partition.directory import Directory
from data_tools.partition.layout import Layout
from data_tools.partition.source import Source
from data_tools.team import Team
from hpcgnn.graph.book import BlockOwnership


class PartOfId:
    """The part of every global id, as an array would tell it."""

    def __init__(self, offsets: tuple[np.ndarray, ...]):
        self._starts = np.concatenate([part_starts[:-1] for part_starts in offsets] or [np.zeros(1, np.int64)])
        self._num_parts = len(offsets[0]) - 1 if offsets else 1

    def __getitem__(self, global_ids: np.ndarray) -> np.ndarray:
        """Parts [k] int32."""
        return ((np.searchsorted(self._starts, global_ids, side="right") - 1) % self._num_parts).astype(np.int32)


class Same:
    """The numbers themselves, as an array 0, 1, ... would tell them."""

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        return numbers


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """layout: of nodes that are numbered by their global ids; global_id: of every node; parts: those of this rank."""

    layout: Layout
    global_id: Directory
    first_part: np.ndarray  # [R + 1]

    @property
    def parts(self) -> range:
        """The parts that this rank writes."""
        rank = self.global_id.team.rank
        return range(int(self.first_part[rank]), int(self.first_part[rank + 1]))

    def rank_of(self, global_ids: np.ndarray) -> np.ndarray:
        """The rank [k] that writes the part of each node."""
        return np.searchsorted(self.first_part, self.layout.part[global_ids], side="right") - 1


def shared_layout(team: Team, source: Source, blocks: BlockOwnership, part: np.ndarray, num_parts: int) -> SharedLayout:
    """Collective. Number the nodes as `make_layout` does; part [n] of this rank's block."""
    first = int(blocks.starts[team.rank])
    bases = np.array([node_type.base for node_type in source.types], np.int64)
    type_of = np.searchsorted(bases, np.arange(first, first + len(part)), side="right") - 1
    cell = type_of * num_parts + part
    counts = np.array(team.everyone(np.bincount(cell, minlength=len(bases) * num_parts)))  # [R, T P]
    before, sizes = counts[: team.rank].sum(axis=0), counts.sum(axis=0)
    starts = np.cumsum(sizes) - sizes  # types follow each other, parts within a type
    order = np.argsort(cell, kind="stable")
    mine = counts[team.rank]
    place = np.empty(len(part), np.int64)
    place[order] = np.arange(len(part)) - np.repeat(np.cumsum(mine) - mine, mine)
    global_id = (starts + before)[cell] + place
    ends = np.cumsum(sizes).reshape(-1, num_parts)[:, -1:]
    offsets = tuple(np.hstack([starts.reshape(-1, num_parts), ends]).astype(np.int64))
    part_of, global_of = cast(np.ndarray, PartOfId(offsets)), cast(np.ndarray, Same())  # read by index only
    layout = Layout(num_parts, part_of, global_of, offsets, ())
    first_part = np.arange(team.size + 1) * num_parts // team.size
    return SharedLayout(layout, Directory(team, blocks, global_id), first_part)
