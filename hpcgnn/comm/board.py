"""Routes whose rows the ranks of a machine lay down for each other in shared memory, where they would send them.

R ranks, n of this machine; W wanted rows, M requests, S served rows, as of a Route. Rows of other machines travel in
messages and are laid down behind a rank's own, so that one table has all that a rank reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.route import Route, narrow_rows, pack, unpack
from hpcgnn.comm.shared import MachineColumns, Shape, has_neighbors, share_columns
from hpcgnn.comm.world import World

SPARE = 1.25  # more rows than the step that found too few has
PLACES = ("wanted_at", "wanted_row", "pushed_at", "pushed_row", "far_position", "far_wanted")  # of a BoardRoute


@dataclass(slots=True)
class _Slabs:
    """Columns with the same number of rows for each rank of a machine; was_read: whether a rank may have read them
    since all of these ranks last met."""

    columns: MachineColumns
    was_read: bool = False


class Board:
    """Memory of a machine in which each of its ranks has slabs, whose rows the others read where they lie. The slabs
    grow with the needs of steps. Collective to create, to lay rows down and to close.

    members [n]: the machine's ranks; place [R]: of every rank among the members (for ranks of other machines, this
    rank's place). is_near [R]: whether a rank is on this machine; has_far: whether there are other machines.
    """

    def __init__(self, world: World):
        self._world = world.apart()
        machine = world.machine()
        self.members = np.array(machine.allgather(world.rank))
        self.is_near = np.zeros(world.size, bool)
        self.is_near[self.members] = True
        self.place = np.full(world.size, machine.rank)
        self.place[self.members] = np.arange(machine.size)
        machine.Free()
        self.has_far = not self.is_near.all()
        self.capacity, self.has_room = 0, True
        self._slabs: dict[tuple[str, tuple[Shape, ...]], _Slabs] = {}

    def hold(self, rows: int) -> bool:
        """Collective. Make room for ``rows`` rows in each slab, the same number on all ranks; returns whether there is
        room. Nothing may refer to rows that were laid down before."""
        if self.has_room and rows > self.capacity:  # so on all ranks, as they give the same number
            self.close()
            self.capacity = int(rows * SPARE)
        return self.has_room

    def lay(self, use: str, pieces: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor] | None:
        """Collective. Lay down this rank's rows of some columns, each the concatenated ``pieces`` [., ...], and meet.
        Returns the tables [n capacity, ...] of the machine's rows, valid until the next rows are laid down for this
        ``use``. Returns None, on all ranks, where there is no room."""
        shapes = tuple(((self.capacity, *column[0].shape[1:]), column[0].dtype) for column in pieces)
        slabs = self._find(use, shapes)
        if slabs is None:
            return None
        if slabs.was_read:  # a slower rank may still read what is overwritten now
            self._meet(slabs)
        for own, column in zip(slabs.columns.own, pieces, strict=True):
            begin = 0
            for piece in column:
                own[begin : begin + len(piece)] = piece
                begin += len(piece)
        self._meet(slabs)
        slabs.was_read = True
        return [of_machine.table for of_machine in slabs.columns.tables]

    def _find(self, use: str, shapes: tuple[Shape, ...]) -> _Slabs | None:
        """Collective. Find the slabs of a use; make them the first time."""
        key = use, shapes
        if key not in self._slabs:
            columns = share_columns(self._world, shapes)
            if columns is None:
                self.close()
                self.has_room = False
                return None
            self._slabs[key] = _Slabs(columns)
        return self._slabs[key]

    def _meet(self, slabs: _Slabs) -> None:
        """Collective. Meet; what was read of any slab has been read by all."""
        slabs.columns.publish()
        for each in self._slabs.values():
            each.was_read = False

    def close(self) -> None:
        """Collective. Free the memory; it is made again when it is needed."""
        for slabs in self._slabs.values():
            slabs.columns.close()
        self._slabs, self.capacity = {}, 0


def make_board(world: World) -> Board | None:
    """Collective. Make a board, where ranks of this world share memory and compute on the CPU."""
    if world.any(world.device.type != "cpu") or not has_neighbors(world.apart()):
        return None
    return Board(world)


@dataclass(frozen=True, slots=True)
class BoardRoute(Route):
    """A route over a board; wanted rows come in order of their owners.

    wanted_at, wanted_row [W]: for each wanted row, the place among the machine's ranks of the slab that has it, and its
    row there. pushed_at, pushed_row [M]: the same for each row that users push, in order of ``members``. far_position:
    positions, among the served rows, of the rows for other machines; far_wanted: positions, among the wanted rows, of
    the rows that other machines own. need: rows of a slab, on the rank that needs most."""

    board: Board | Any = None
    wanted_at: torch.Tensor | Any = None
    wanted_row: torch.Tensor | Any = None
    pushed_at: torch.Tensor | Any = None
    pushed_row: torch.Tensor | Any = None
    far_position: torch.Tensor | Any = None
    far_wanted: torch.Tensor | Any = None
    need: int = 0

    @classmethod
    def upon(cls, board: Board, route: Route) -> BoardRoute:
        """Collective. Plan which rows of the board a route moves, over the channel of the route."""
        assert route.order is None
        want, serve, members = route.want_counts, route.serve_counts, board.members
        near = route.channel.machine or route.channel  # without several machines all ranks are near
        is_wanted_near, is_asked_near = np.repeat(board.is_near, want), np.repeat(board.is_near, serve)
        position, num_served = route.position.numpy(), len(route.served)
        places = near.array(narrow_rows(position[is_asked_near]), serve[members], want[members])
        begins = near.counts((np.cumsum(want) - want)[members])  # at each user, of what it wants of this rank
        wanted_row, asked_row = np.empty(len(is_wanted_near), np.int64), np.empty(len(is_asked_near), np.int64)
        wanted_row[is_wanted_near] = places
        wanted_row[~is_wanted_near] = num_served + np.arange(len(wanted_row) - len(places))
        within = np.arange(len(asked_row)) - np.repeat(np.cumsum(serve) - serve, serve)
        asked_row[is_asked_near] = within[is_asked_near] + np.repeat(begins, serve[members])
        num_far = len(asked_row) - int(is_asked_near.sum())
        asked_row[~is_asked_near] = len(wanted_row) + np.arange(num_far)
        need = max(num_served + len(wanted_row) - len(places), len(wanted_row) + num_far)
        members_of = route.members.numpy()
        arrays: tuple[np.ndarray, ...] = (
            np.repeat(board.place, want), wanted_row, np.repeat(board.place, serve)[members_of], asked_row[members_of],
            position[~is_asked_near], np.flatnonzero(~is_wanted_near),
        )  # fmt: skip
        known: dict[str, Any] = {field.name: getattr(route, field.name) for field in fields(Route)}
        known |= dict(zip(PLACES, map(torch.from_numpy, arrays), strict=True))
        most = int(route.channel.counts(np.full(route.channel.size, need)).max())
        return cls(**known, board=board, need=most)

    def pull(self, *tables: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Collective. Fetch the wanted ids' rows of the owners' tables [local rows, ...]; returns [W, ...] for each
        table."""
        return self.pull_served(*(native.gather_rows(table, self.served) for table in tables))

    def pull_served(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Collective. Fetch values [S, ...] that owners have for their served rows only."""
        if not self.board.hold(self.need):
            return Route.pull_served(self, *values)
        pieces = [[value] for value in values]
        if self.board.has_far:
            asked = [native.gather_rows(value, self.far_position) for value in values]
            received = self._move_far(pack(asked), self.serve_counts, self.want_counts)
            pieces = [[value, far] for value, far in zip(values, unpack(received, asked), strict=True)]
        tables = self.board.lay("pull", pieces)
        if tables is None:
            return Route.pull_served(self, *values)
        index = torch.add(self.wanted_row, self.wanted_at, alpha=self.board.capacity)
        return tuple(native.gather_rows(table, index) for table in tables)

    def push_sum(self, rows: torch.Tensor) -> torch.Tensor:
        """Collective. Give rows [W, D] to their owners, who sum over the users, in rank order: [S, D] in order of
        ``served``."""
        if not self.board.hold(self.need):
            return Route.push_sum(self, rows)
        pieces = [rows]
        if self.board.has_far:
            far = native.gather_rows(rows, self.far_wanted)
            pieces.append(self._move_far(far, self.want_counts, self.serve_counts))
        tables = self.board.lay("push", [pieces])
        if tables is None:
            return Route.push_sum(self, rows)
        index = torch.add(self.pushed_row, self.pushed_at, alpha=self.board.capacity)
        return native.segment_sum_rows(tables[0], self.indptr, index)

    def _move_far(self, rows: torch.Tensor, send: np.ndarray, receive: np.ndarray) -> torch.Tensor:
        """Collective. Send rows to other machines, of which ``send`` and ``receive`` count those within the machine,
        too."""
        send, receive = (np.where(self.board.is_near, 0, counts) for counts in (send, receive))
        return self.channel.rows(rows, send, receive)
