"""Hot nodes: those with most training events, whose rows every rank keeps a copy of (StarryGL keeps such copies and
brings them up to date now and then; here they are always exact). H hot nodes, n nodes that a rank owns, U unique ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.store.layout import Layout
from hpcgnn.store.partition import TemporalPartition


@dataclass(frozen=True, slots=True)
class HotNodes:
    """ids [H] global ids, increasing. Behind its own rows every rank keeps theirs: that of ids[h] is first + h."""

    ids: np.ndarray
    first: int

    @property
    def num_rows(self) -> int:
        """Rows of a table with the copies."""
        return self.first + len(self.ids)

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Place among the hot nodes of every global id, -1 for cold ones."""
        place = np.searchsorted(self.ids, ids)
        return np.where(self.ids[np.minimum(place, len(self.ids) - 1)] == ids, place, -1)

    def layout(self, ids: np.ndarray, device: torch.device) -> Layout:
        """The layout of a rank that owns the global ``ids`` [n]; the own rows of its hot nodes lie idle."""
        place = self.find(ids)
        own = np.where(place >= 0, self.first + place, np.arange(len(ids)))
        return Layout(self.num_rows, torch.from_numpy(own).to(device), self.first)

    def at_home(
        self, rank: int, unique: np.ndarray, inverse: np.ndarray, owner: np.ndarray, local: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Unique ids [U], inverse (int32 into them, -1 pads), owners and local rows [U], the hot nodes located on this
        very rank, again in order of owner."""
        place = self.find(unique)
        owner, local = np.where(place >= 0, rank, owner), np.where(place >= 0, self.first + place, local)
        order = np.argsort(owner, kind="stable")
        number = np.full(len(order) + 1, -1, np.int32)  # the last one answers to the padding
        number[order] = np.arange(len(order), dtype=np.int32)
        return unique[order], number[inverse], owner[order], local[order]


def hottest(share: float, count: np.ndarray, partition: TemporalPartition, channel: Channel) -> HotNodes | None:
    """Collective. That share of all nodes with the largest ``count`` [n] above 0, ties by flat row id: the same nodes
    on any number of ranks. None where that is no node."""
    wanted = round(share * partition.book.num_nodes)
    ids = partition.book.local_to_global(channel.rank)
    mine = np.stack([-count, partition.flat_row, ids], axis=1)[count > 0]
    known = channel.everyone(torch.from_numpy(_first(mine, wanted))).numpy()
    chosen = np.sort(_first(known, wanted)[:, 2])
    return HotNodes(chosen, partition.num_nodes) if len(chosen) else None


def _first(rows: np.ndarray, count: int) -> np.ndarray:
    """The first rows by columns 0 and 1."""
    return np.ascontiguousarray(rows[np.lexsort((rows[:, 1], rows[:, 0]))[:count]])
