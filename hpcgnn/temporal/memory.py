"""Node memory and mailbox of the nodes that a rank keeps: its own nodes, and the hot nodes.

Hot nodes have most training events; every rank keeps a copy of them. (StarryGL keeps such copies and brings them up to
date now and then; here they are always exact.) n nodes that a rank owns, H hot nodes, U unique ids, S mailbox slots, D
memory width, M mail width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.graph.directory import bounds_of_least
from hpcgnn.graph.saved_rows import NodeRowStore, SavedRows
from hpcgnn.native.layers import is_supported
from hpcgnn.native.memory import replace_memory
from hpcgnn.temporal.graph import TemporalPartition


@dataclass(frozen=True, slots=True)
class Layout:
    """Assigns the rows of a table of ``num_rows`` rows to nodes. own [n] int64: rows of the nodes that this rank owns.
    From row ``first_copy`` on lie the nodes that all ranks have, in the same order on each."""

    num_rows: int
    own: torch.Tensor
    first_copy: int

    def share(self, table: torch.Tensor, channel: Channel) -> None:
        """Collective. Bring the owners' rows of the copied nodes to all ranks, in place."""
        shared = self.own[self.own >= self.first_copy]
        rows = channel.everyone(shared - self.first_copy) + self.first_copy
        table[rows] = channel.everyone(table[shared])

    def everywhere(self, rows: torch.Tensor, columns: list[torch.Tensor], channel: Channel) -> list[torch.Tensor]:
        """Collective. Bring what owned rows [r] are to hold, columns [r, ...], to all ranks that keep these rows;
        returns rows and columns."""
        shared = rows >= self.first_copy
        copies = [channel.everyone(values[shared]) for values in (rows - self.first_copy, *columns)]
        copies[0] += self.first_copy
        return [torch.cat([own[~shared], all_ranks]) for own, all_ranks in zip((rows, *columns), copies, strict=True)]

    def spread(self, values: torch.Tensor, channel: Channel) -> torch.Tensor:
        """Collective. Make a table of the owned nodes' values [n, ...], copies included."""
        table = values.new_zeros((self.num_rows, *values.shape[1:]))
        table[self.own] = values
        self.share(table, channel)
        return table


COLUMNS = ("state", "mail", "updated", "mailed", "delivered")
NEVER = torch.iinfo(torch.int64).min  # the time of the last mail of a node that had none


def newest_mail(mailed: torch.Tensor, delivered: torch.Tensor) -> torch.Tensor:
    """Return the time of the newest mail of nodes, int64 [r], NEVER where there was none; mailed [r, S] times by slot,
    delivered [r] mails ever received."""
    is_empty = torch.arange(mailed.shape[1], device=mailed.device) >= delivered.unsqueeze(1)
    return mailed.masked_fill(is_empty, NEVER).max(dim=1).values


@dataclass(slots=True)
class MemoryRows:
    """Rows of the node memory. state [r, D], mail [r, S, M]; updated [r]: time of the state; mailed [r, S]: times of
    the mails; delivered [r]: number of mails ever received (int64). Mail number j lies in slot j % S."""

    state: torch.Tensor
    mail: torch.Tensor
    updated: torch.Tensor
    mailed: torch.Tensor
    delivered: torch.Tensor

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the five columns."""
        return self.state, self.mail, self.updated, self.mailed, self.delivered

    def at(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the columns of some rows, by name."""
        return {name: tensor[rows] for name, tensor in zip(COLUMNS, self.tensors(), strict=True)}


@dataclass(slots=True)
class WaitingWrite:
    """A step's write that reads do not see yet. rows [r]: unique rows that get a state, of times updated [r]; mails [m]
    go to rows receiver [m], in order of rows, oldest first, as number [m] among the new mails of their row, with times
    mailed [m]. arrive() finishes the exchanges that bring them, and returns the states [r, D] and mails [m, M]."""

    rows: torch.Tensor
    updated: torch.Tensor
    receiver: torch.Tensor
    number: torch.Tensor
    mailed: torch.Tensor
    arrive: Callable[[], tuple[torch.Tensor, torch.Tensor]]


def _join(one: WaitingWrite, other: WaitingWrite) -> WaitingWrite:
    """Make one write of two, which go to different rows; the second one's rows follow the first one's."""

    def arrive() -> tuple[torch.Tensor, torch.Tensor]:
        (state, mail), (more_state, more_mail) = one.arrive(), other.arrive()
        return torch.cat([state, more_state]), torch.cat([mail, more_mail])

    rows, updated = torch.cat([one.rows, other.rows]), torch.cat([one.updated, other.updated])
    receiver, number = torch.cat([one.receiver, other.receiver]), torch.cat([one.number, other.number])
    return WaitingWrite(rows, updated, receiver, number, torch.cat([one.mailed, other.mailed]), arrive)


def split_mail(state: torch.Tensor | None, mail: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the state [r, D], which mails begin with when it is None, and what follows it [r, M - D]."""
    return (mail[:, :width], mail[:, width:]) if state is None else (state, mail)


class NodeMemory(NodeRowStore):
    """State, pending mails and their times for n nodes, and the writes that wait until reads may see them.

    ``layout``: which rows are of nodes that this rank owns, and which all ranks keep; None: n own ones. A replicated
    memory has the rows of all nodes, by global id.
    """

    def __init__(
        self, num_nodes: int, state_width: int, mail_width: int, dtype: torch.dtype, device: torch.device,
        slots: int = 1, layout: Layout | None = None,
    ):  # fmt: skip
        zeros = lambda *shape, dtype: torch.zeros(shape, dtype=dtype, device=device)  # noqa: E731
        self.slots, self.layout, self._fixed = slots, layout, 0
        self._waiting: deque[WaitingWrite] = deque()
        self._first: WaitingWrite | None = None  # of two parts of a step's write
        self.table = MemoryRows(
            zeros(num_nodes, state_width, dtype=dtype), zeros(num_nodes, slots, mail_width, dtype=dtype),
            zeros(num_nodes, dtype=torch.int64), zeros(num_nodes, slots, dtype=torch.int64),
            zeros(num_nodes, dtype=torch.int64),
        )  # fmt: skip

    def fix(self, columns: torch.Tensor, channel: Channel) -> None:
        """Collective. Let the states of this rank's nodes begin with ``columns`` [n, .], which no write changes and
        ``reset`` keeps."""
        columns, self._fixed = columns.to(self.table.state), columns.shape[1]
        self.table.state[:, : self._fixed] = columns if self.layout is None else self.layout.spread(columns, channel)

    def reset(self) -> None:
        """Forget everything (start of an epoch)."""
        self.settle()
        state, *others = self.table.tensors()
        for tensor in (state[:, self._fixed :], *others):
            tensor.zero_()

    def newest(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the time of the newest mail of rows [r], NEVER where there was none."""
        mailed = native.gather_rows(self.table.mailed, rows)
        return newest_mail(mailed, native.gather_rows(self.table.delivered, rows))

    def replace(self, rows, state, rest, time, place: torch.Tensor | None = None) -> None:
        """Replace state and only mail of unique rows [r]. States are state [., D] at place [r] (None: [r, D] in order);
        mails of times [r] are the new state, then rest [r, M - D]. The state's time becomes the time of the mail it
        consumed; for a node without mail, the time of its first mail, whose time difference is thereby 0."""
        table = self.table
        if is_supported(table.state, state, rest):
            replace_memory(table.tensors(), rows, place, state.contiguous(), rest.contiguous(), time)
            return
        if place is not None:
            state = native.gather_rows(state, place)
        self._delay(rows, time, state, lambda: rest, 0, False)

    def write(
        self, rows: torch.Tensor, time: torch.Tensor, arrive: Callable[[], torch.Tensor], keep: int,
        state: torch.Tensor | Any = None, place: torch.Tensor | None = None, more: bool = False,
    ) -> None:  # fmt: skip
        """Replace states and mails of rows [r]; reads see the change after ``keep`` further writes, or ``settle``.
        arrive() returns the mails without their leading state [r, M - D] if ``state`` is given, else whole mails [r,
        M]. The state was made from what reads see now, and so is its time. more: the next write is of the same step, to
        other rows: where writes wait, the two count as one."""
        if keep == 0:
            state, rest = split_mail(state, arrive(), self.table.state.shape[1])
            self.replace(rows, state, rest, time, place)
            return
        if place is not None:
            state = native.gather_rows(state, place)
        self._delay(rows, time, state, arrive, keep, more)

    def _wait(self, write: WaitingWrite, keep: int, more: bool) -> None:
        write, self._first = write if self._first is None else _join(self._first, write), None
        if more and keep:
            self._first = write  # older writes arrive after the second part, whose times are of the same table
            return
        self._waiting.append(write)
        self.settle(keep)

    def _delay(
        self, rows, time, state: torch.Tensor | None, arrive: Callable[[], torch.Tensor], keep: int, more: bool
    ) -> None:
        width = self.table.state.shape[1]

        def bring() -> tuple[torch.Tensor, torch.Tensor]:
            own, rest = split_mail(state, arrive(), width)
            return own.contiguous(), torch.cat([own, rest], dim=1)

        updated = self._time_of_state(rows, time)
        self._wait(WaitingWrite(rows, updated, rows, torch.zeros_like(rows), time, bring), keep, more)

    def _time_of_state(self, rows: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """Return the times [r] of states that are made from what reads see now: of the newest mail and, where there is
        none, of the first new one [r]."""
        newest = self.newest(rows)
        return torch.where(newest != NEVER, newest, first)

    def deliver(
        self, rows: torch.Tensor, mails: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        arrive: Callable[[], tuple[torch.Tensor, torch.Tensor]], keep: int, more: bool = False,
    ) -> None:  # fmt: skip
        """Replace the states of unique rows [r], each of which gets mail, and put mails (receiver [m], number [m], time
        [m]) into the rings of their rows. keep, more: as of ``write``; others: as of WaitingWrite."""
        receiver, number, time = mails
        first = time[torch.searchsorted(receiver, rows)]
        write = WaitingWrite(rows, self._time_of_state(rows, first), receiver, number, time, arrive)
        self._wait(write, keep, more)

    def settle(self, keep: int = 0) -> None:
        """Let reads see the writes that wait, oldest first, except the newest ``keep``. Every rank must have begun
        their exchanges."""
        # Two waiting writes may have a node in common: in another order the older one would stay.
        while len(self._waiting) > keep:
            write = self._waiting.popleft()
            state, mail = write.arrive()
            native.scatter_rows(self.table.state, write.rows, state)
            native.scatter_rows(self.table.updated, write.rows, write.updated)
            self._append(write.receiver, write.number, mail, write.mailed)

    def move(self, rows: torch.Tensor, state: torch.Tensor, time: torch.Tensor) -> None:
        """Replace the states of unique rows [r], which keep no mails, as of times [r]."""
        table = self.table
        native.scatter_rows(table.state, rows, state)
        native.scatter_rows(table.updated, rows, time)
        native.scatter_rows(table.mailed, rows, time.unsqueeze(1))
        table.delivered.index_add_(0, rows, torch.ones_like(rows))

    def _append(self, rows: torch.Tensor, number: torch.Tensor, mail: torch.Tensor, time: torch.Tensor) -> None:
        """Put new mails [m, M] of times [m] into the rings of rows [m], oldest first, at most S per row. number [m]:
        place among the new mails of its row. A first mail sets the state's time, so that its time
        difference is 0."""
        table, slots = self.table, self.slots
        delivered = native.gather_rows(table.delivered, rows)
        place = rows * slots + (delivered + number) % slots
        table.mail.view(-1, mail.shape[1])[place] = mail
        table.mailed.view(-1)[place] = time
        is_first = (delivered == 0) & (number == 0)
        native.scatter_rows(table.updated, torch.where(is_first, rows, -1), time)
        # Not added: padding writes what the first row writes once more.
        table.delivered.scatter_reduce_(0, rows, delivered + number + 1, "amax")

    def owned(self) -> MemoryRows:
        """Return the rows of the nodes that this rank owns."""
        if self.layout is None:
            return self.table
        return MemoryRows(*(tensor[self.layout.own] for tensor in self.table.tensors()))

    def saved(self) -> list[SavedRows]:
        """Copy the rows that this rank owns: the rows that have mail, then the rows of every write that waits, oldest
        first."""
        owned = self.owned()
        rows = torch.nonzero(owned.delivered).squeeze(1)
        return [
            SavedRows(rows, owned.at(rows)),
            *(self._owned_part(write) for write in self._waiting),
        ]

    def _owned_part(self, write: WaitingWrite) -> SavedRows:
        """Copy what a write holds for rows that this rank owns. Rows without a new state have NEVER as its time; new
        mails lie in the first slots, ``delivered`` many."""
        rows, place = torch.unique(torch.cat([write.rows, write.receiver]), return_inverse=True)
        columns = MemoryRows(*(tensor.new_zeros((len(rows), *tensor.shape[1:])) for tensor in self.table.tensors()))
        (state, mail), (of_state, of_mail) = write.arrive(), place.split([len(write.rows), len(write.receiver)])
        columns.updated.fill_(NEVER)
        columns.state[of_state], columns.updated[of_state] = state, write.updated
        columns.mail[of_mail, write.number], columns.mailed[of_mail, write.number] = mail, write.mailed
        columns.delivered.index_add_(0, of_mail, torch.ones_like(of_mail))
        if self.layout is None:
            return SavedRows(rows, columns.at(torch.arange(len(rows), device=rows.device)))
        owned = torch.full((len(self.table.delivered),), -1, device=rows.device)
        owned[self.layout.own] = torch.arange(len(self.layout.own), device=rows.device)
        is_own = owned[rows] >= 0
        return SavedRows(owned[rows[is_own]], columns.at(is_own))

    def between_epochs(self) -> list[SavedRows]:
        """Return the rows that an epoch leaves to the next: none, every epoch starts with empty memory."""
        return []

    def prototype(self) -> dict[str, torch.Tensor]:
        """Return the columns of no row."""
        return self.table.at(torch.arange(0, device=self.table.state.device))

    def put(self, saved: SavedRows) -> None:
        """Set some of the rows that this rank owns."""
        rows = saved.rows if self.layout is None else self.layout.own[saved.rows]
        for name, tensor in zip(COLUMNS, self.table.tensors(), strict=True):
            tensor[rows] = saved.columns[name]

    def share(self, channel: Channel) -> None:
        """Collective. Bring the owners' rows to the ranks that keep copies."""
        if self.layout is not None:
            for table in self.table.tensors():
                self.layout.share(table, channel)

    def put_write(self, pieces: list[SavedRows], channel: Channel) -> None:
        """Collective. Let a saved write, in pieces, wait behind the writes that already wait."""
        rows = torch.cat([piece.rows for piece in pieces])
        columns = [torch.cat([piece.columns[name] for piece in pieces]) for name in COLUMNS]
        if self.layout is not None:
            rows, *columns = self.layout.everywhere(self.layout.own[rows], columns, channel)
        rows, order = torch.sort(rows)
        state, mail, updated, mailed, delivered = (column[order] for column in columns)
        has_state = updated != NEVER
        place, number = torch.nonzero(torch.arange(self.slots, device=rows.device) < delivered[:, None]).unbind(1)
        state, mail = state[has_state], mail[place, number]
        self._waiting.append(
            WaitingWrite(
                rows[has_state], updated[has_state], rows[place], number, mailed[place, number], lambda: (state, mail)
            )
        )


@dataclass(frozen=True, slots=True)
class HotNodes:
    """Nodes that every rank has a copy of: ids [H] global ids, increasing; ids[h] is in row first + h of the memory,
    behind the rank's own rows."""

    ids: np.ndarray
    first: int

    @property
    def num_rows(self) -> int:
        """Rows of a table with the copies."""
        return self.first + len(self.ids)

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Find the place among the hot nodes of every global id, -1 for cold ones."""
        place = np.searchsorted(self.ids, ids)
        return np.where(self.ids[np.minimum(place, len(self.ids) - 1)] == ids, place, -1)

    def layout(self, ids: np.ndarray, device: torch.device) -> Layout:
        """Make the layout of a rank that owns the global ``ids`` [n]; the first rows of its hot nodes are not used."""
        place = self.find(ids)
        own = np.where(place >= 0, self.first + place, np.arange(len(ids)))
        return Layout(self.num_rows, torch.from_numpy(own).to(device), self.first)

    def at_home(
        self, rank: int, unique: np.ndarray, inverse: np.ndarray, owner: np.ndarray, local: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Locate the hot nodes on this very rank: returns unique ids [U], inverse (int32 into them, -1 pads), owners
        and local rows [U], again in order of owner."""
        place = self.find(unique)
        owner, local = np.where(place >= 0, rank, owner), np.where(place >= 0, self.first + place, local)
        order = np.argsort(owner, kind="stable")
        number = np.full(len(order) + 1, -1, np.int32)  # the last one answers to the padding
        number[order] = np.arange(len(order), dtype=np.int32)
        return unique[order], number[inverse], owner[order], local[order]


def hottest(
    share: float, count: np.ndarray, partition: TemporalPartition, world: World, channel: Channel
) -> HotNodes | None:
    """Collective. Choose the share of all nodes with the largest ``count`` [n] above 0, ties by flat row id. The nodes
    are the same on any number of ranks; a rank sends only its chosen ones. Returns None where that is no node."""
    most = round(share * partition.book.num_nodes)
    candidates = np.flatnonzero(count > 0)
    coldness, row = -count[candidates], partition.flat_row[candidates]
    (bound,) = bounds_of_least(np.sort(coldness), np.array([most]), world)
    chosen, tied = coldness < bound, coldness == bound
    left = most - world.reduce_array(np.array([chosen.sum()]))
    chosen |= tied & (row < bounds_of_least(np.sort(row[tied]), left, world))
    own = torch.from_numpy(partition.book.local_to_global(channel.rank)[candidates[chosen]])
    ids = np.sort(channel.everyone(own).numpy())
    return HotNodes(ids, partition.num_nodes) if len(ids) else None
