"""The nodes in the order in which they are streamed, dealt to the ranks: slab by slab in turn.

N nodes of all types numbered together; *rows* number them again, those with most edges first, as `build_spooled_graph`
does. K slabs of rows, slab k lies on rank k modulo R; n rows of a rank, in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_tools.team import Team


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows by their number of entries, of which there are far fewer than rows: entries [D] decrease, first_row [D + 1]
    is where those with so many begin."""

    entries: np.ndarray
    first_row: np.ndarray

    def entries_of(self, rows: np.ndarray) -> np.ndarray:
        """Entries [k] of some rows."""
        return self.entries[np.searchsorted(self.first_row, rows, side="right") - 1]

    def slab_starts(self, limit: int) -> np.ndarray:
        """First row of every slab, and N [K + 1]: about ``limit`` entries and rows together, or one row."""
        costs = np.r_[0, np.cumsum((self.entries + 1) * np.diff(self.first_row))]  # before the first of so many
        wanted = np.arange(0, costs[-1], max(1, limit))
        index = np.searchsorted(costs, wanted, side="right") - 1
        rows = self.first_row[index] - (costs[index] - wanted) // (self.entries[index] + 1)
        return np.unique(np.r_[rows, self.first_row[-1]]).astype(np.int64)

    @property
    def cost(self) -> int:
        """Entries and rows in all."""
        return int(((self.entries + 1) * np.diff(self.first_row)).sum())


def number_rows(team: Team, entries: np.ndarray) -> tuple[RowTable, np.ndarray]:
    """Collective. The rows by their entries, and the row [n] of every node of this rank's block, which have so many
    ``entries`` [n]: nodes with equally many are in their own order."""
    distinct, inverse, mine = np.unique(-entries, return_inverse=True, return_counts=True)
    told = team.everyone((distinct, mine))
    values = np.unique(np.concatenate([values for values, _ in told]))
    counts = np.zeros((len(told), len(values)), np.int64)  # [R, D]
    for rank, (some, amount) in enumerate(told):
        counts[rank, np.searchsorted(values, some)] = amount
    first_row = np.r_[0, np.cumsum(counts.sum(axis=0))]
    start = first_row[:-1] + counts[: team.rank].sum(axis=0)
    order = np.argsort(inverse, kind="stable")
    row = np.empty(len(entries), np.int64)
    row[order] = np.arange(len(entries)) - np.repeat(np.cumsum(mine) - mine, mine)
    row += start[np.searchsorted(values, distinct)][inverse]
    return RowTable(-values, first_row), row


@dataclass(frozen=True, slots=True)
class RowSlabs:
    """Where rows lie. starts [K + 1]: first row of every slab."""

    team: Team
    starts: np.ndarray

    @property
    def num_slabs(self) -> int:
        """Slabs of all ranks."""
        return len(self.starts) - 1

    @property
    def local_starts(self) -> np.ndarray:
        """First of this rank's rows in each of its slabs, and n."""
        return np.r_[0, np.cumsum(np.diff(self.starts)[self.team.rank :: self.team.size])]

    def rows(self) -> np.ndarray:
        """The rows [n] of this rank."""
        own = range(self.team.rank, self.num_slabs, self.team.size)
        return np.concatenate([np.empty(0, np.int64), *(np.arange(self.starts[k], self.starts[k + 1]) for k in own)])

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rank [k] that has each row, and its place among the rank's rows."""
        sizes, size = np.diff(self.starts), self.team.size
        first = np.zeros(len(sizes), np.int64)  # place of a slab's first row
        for number in range(size, len(sizes)):
            first[number] = first[number - size] + sizes[number - size]
        slab = np.searchsorted(self.starts, rows, side="right") - 1
        return slab % size, first[slab] + rows - self.starts[slab]

    def lookup(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Collective. Values [k, ...] of rows [k] of any rank; values [n, ...] of this rank's rows."""
        rank, place = self.locate(rows)
        order = np.argsort(rank, kind="stable")
        asked, counts = self.team.exchange(place[order], np.bincount(rank, minlength=self.team.size))
        answers = self.team.exchange(values[asked], counts)[0]
        found = np.empty_like(answers)
        found[order] = answers
        return found

    def deal(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Collective. Values [n, ...] of this rank's rows, from those [k, ...] that ranks have of rows [k]."""
        rank, place = self.locate(rows)
        order, counts = np.argsort(rank, kind="stable"), np.bincount(rank, minlength=self.team.size)
        here = self.team.exchange(place[order], counts)[0]
        dealt = np.empty((len(here), *values.shape[1:]), values.dtype)
        dealt[here] = self.team.exchange(values[order], counts)[0]
        return dealt
