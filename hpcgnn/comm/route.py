"""Plans an exchange of rows between owners and users once, and executes it often.

A rank lists the *wanted* rows by id; their owners *serve* them. Planning costs one count and one id exchange; after
that rows can be pulled (owner to user) and pushed (user to owner) any number of times with known counts. Push with sum
is the adjoint of pull.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel, Transfer
from hpcgnn.native.dispatch import upload
from hpcgnn.native.workspace import empty_like_rows

MOST_ROWS = 1 << 32  # of a rank that others can ask for


class Ownership(Protocol):
    """Says which rank owns an id, and in which of its rows."""

    def locate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the owning rank and the owner's local row of every global id, both int64 [n]."""


def narrow_rows(local: np.ndarray) -> np.ndarray:
    """Return local rows as uint32, in which they are sent. Raises ValueError for a row that does not fit."""
    if local.size and local.max() > MOST_ROWS - 1:
        raise ValueError(f"row {local.max()} of one rank: a rank has at most {MOST_ROWS} rows; start more ranks")
    return local.astype(np.uint32)


@dataclass(frozen=True, slots=True)
class Route:
    """A plan for exchanges of rows, made by ``Route.plan``. W wanted ids, M requests served (grouped by requesting
    rank), S unique rows among them, which routes for pulls alone do not have.

    Results are tensors of the caller's, but on one rank ``push``, ``push_sum`` and ``pull_served`` may return their
    argument itself, so neither may be changed in place. Rows given to ``start_push`` must not change until ``wait``;
    tables are read before a pull returns or starts.

    want_counts, serve_counts [R]; order [W]: positions that bring the wanted ids into the order of their owners; None:
    they are in that order. requests [M] int64 local rows; served [S] unique local rows; position [M] of a request in
    served, with its transpose (indptr [S + 1], members [M])."""

    channel: Channel
    want_counts: np.ndarray
    serve_counts: np.ndarray
    order: torch.Tensor | None
    requests: torch.Tensor
    served: torch.Tensor
    position: torch.Tensor
    indptr: torch.Tensor
    members: torch.Tensor

    @classmethod
    def plan(cls, ownership: Ownership, ids: np.ndarray, channel: Channel) -> Route:
        """Collective. Plan the exchange of the rows of unique global ``ids`` [W] int64."""
        owner, local = ownership.locate(ids)
        return cls.plan_located(owner, local, channel)

    @classmethod
    def alone(cls, channel: Channel, rows: torch.Tensor) -> Route:
        """Make a route to unique local rows [W] int64 of the only rank; nothing is sent."""
        place, count = torch.arange(len(rows) + 1, device=rows.device), np.array([len(rows)])
        return cls(channel, count, count, None, rows, rows, place[:-1], place, place[:-1])

    @classmethod
    def to_nothing(cls, channel: Channel) -> Route:
        """Make the route of a plan that needs none: no rows travel over it, and nothing is planned."""
        none, counts = torch.empty(0, dtype=torch.int64), np.zeros(channel.size, np.int64)
        return cls(channel, counts, counts, None, none, none, none, none, none)

    @classmethod
    def plan_located(
        cls, owner: np.ndarray, local: np.ndarray, channel: Channel, narrow: bool = True, pulls_only: bool = False
    ) -> Route:
        """Collective. Plan the exchange of rows whose owners are known; (owner, local) pairs are unique. narrow: rows
        are sent in 32 bits, else whole, as numbers that only the owner understands; pulls_only: the route is for
        ``pull`` alone, and served rows are not looked for."""
        order = None
        if np.any(owner[1:] < owner[:-1]):
            by_owner = native.order_of_ranks(owner, channel.size)
            order, local = by_owner, local[by_owner]
        want_counts = np.bincount(owner, minlength=channel.size).astype(np.int64)
        serve_counts = channel.counts(want_counts)
        sent = narrow_rows(local) if narrow else local
        requests = channel.array(sent, want_counts, serve_counts).astype(np.int64)
        if pulls_only and channel.size > 1:
            none: Any = None
            rows = None if order is None else torch.from_numpy(order), torch.from_numpy(requests)
            return cls(channel, want_counts, serve_counts, *rows, none, none, none, none)
        return cls._build(channel, want_counts, serve_counts, order, requests)

    @classmethod
    def _build(cls, channel, want_counts, serve_counts, order, requests) -> Route:
        if channel.size == 1:  # requests of one rank are unique
            indptr = np.arange(len(requests) + 1)
            served, position, members = requests, indptr[:-1], indptr[:-1]
        else:
            served, position = native.unique_relabel(requests)
            indptr, members = native.transpose_index(position, len(served))
        tensors = [torch.from_numpy(a) for a in (requests, served, position.astype(np.int64), indptr, members)]
        return cls(channel, want_counts, serve_counts, None if order is None else torch.from_numpy(order), *tensors)

    @property
    def num_wanted(self) -> int:
        """Number W of wanted ids."""
        return int(self.want_counts.sum())

    def to(self, device: torch.device) -> Route:
        """Return the route with its index tensors on ``device``."""
        if device.type == "cpu":
            return self
        names = ("order", "requests", "served", "position", "indptr", "members")
        tensors = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        uploaded: dict[str, Any] = {name: upload(tensor, device) for name, tensor in tensors.items()}
        return replace(self, **uploaded)

    def over(self, channel: Channel) -> Route:
        """Return the route over another channel, to execute in another thread than it was planned in."""
        return replace(self, channel=channel)

    def requesters(self) -> np.ndarray:
        """Return the requesting rank of every request, int64 [M]."""
        return np.repeat(np.arange(self.channel.size), self.serve_counts)

    def restrict(self, wanted: np.ndarray, requested: np.ndarray) -> Route:
        """Return the sub-route of the wanted ids and requests that the boolean masks [W] and [M] select; no exchange.

        Both sides must select the same (user, row) pairs; selected ids keep their order.
        """
        in_owner_order, order = wanted, None
        if self.order is not None:
            place = self.order.cpu().numpy()
            in_owner_order = wanted[place]
            order = (np.cumsum(wanted) - 1)[place[in_owner_order]]
        restricted = Route._build(
            self.channel,
            _count_groups(in_owner_order, self.want_counts),
            _count_groups(requested, self.serve_counts),
            order,
            self.requests.cpu().numpy()[requested],
        )
        return restricted.to(self.requests.device)

    def pull(self, *tables: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Collective. Fetch the wanted ids' rows of the owners' tables [local rows, ...], in one message; returns
        [W, ...] for each table."""
        return self._deliver([native.gather_rows(table, self.requests) for table in tables])

    def start_pull(self, table: torch.Tensor) -> Pull:
        """Collective. Start to pull from one table, without waiting for the rows."""
        rows = native.gather_rows(table, self.requests)
        return Pull(self, self.channel.start(rows, self.serve_counts, self.want_counts))

    def pull_served(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Collective. Fetch values [S, ...] that owners have for their served rows only; on one rank the result may be
        the values themselves."""
        if self.requests.shape == self.served.shape:
            return self._deliver(list(values))  # every row has one user: requests and served agree
        return self._deliver([native.gather_rows(value, self.position) for value in values])

    def push(self, rows: torch.Tensor) -> torch.Tensor:
        """Collective. Send rows [W, ...] of the wanted ids to their owners, who receive them uncombined: [M, ...] in
        order of ``requests``."""
        return self.start_push(rows).wait()

    def start_push(self, rows: torch.Tensor) -> Transfer:
        """Collective. Start to push, without waiting for the rows."""
        if self.order is not None:
            rows = native.gather_rows(rows, self.order)
        return self.channel.start(rows, self.want_counts, self.serve_counts)

    def push_sum(self, rows: torch.Tensor) -> torch.Tensor:
        """Collective. Send rows [W, D] to their owners, who sum over the users, in rank order: [S, D] in order of
        ``served``."""
        return self.sum_requests(self.push(rows))

    def sum_requests(self, received: torch.Tensor) -> torch.Tensor:
        """Sum pushed rows [M, D] over the users, in rank order: [S, D] in order of ``served``."""
        if self.requests.shape == self.served.shape:
            return received  # every row has one user: requests and served agree
        return native.segment_sum_rows(received, self.indptr, self.members)

    def reorder(self, received: torch.Tensor) -> torch.Tensor:
        """Bring rows [W, ...] from the order of their owners into the order of the wanted ids."""
        assert self.order is not None
        ordered = empty_like_rows(received, len(received))
        native.scatter_rows(ordered, self.order, received)
        return ordered

    def _deliver(self, rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        received = self.channel.rows(pack(rows), self.serve_counts, self.want_counts)
        return unpack(received if self.order is None else self.reorder(received), rows)


@dataclass(frozen=True, slots=True)
class MachineRoute:
    """A plan for pulls in which the ranks of a machine request rows of other machines together. A row that several
    ranks use travels to the machine once, to the rank that requests it, and from there to its users.

    far: to the owners of the rows that this rank requests; near: within the machine, to the ranks that request the rows
    that this rank uses. The served rows of near are the wanted rows of far."""

    near: Route
    far: Route

    @classmethod
    def plan(
        cls, ownership: Ownership, ids: np.ndarray, asks: np.ndarray, channel: Channel, narrow: bool = True
    ) -> MachineRoute:  # fmt: skip
        """Collective. Plan pulls of the rows of unique global ids [W]. ``asks`` [W]: for each id the rank within the
        machine that requests it, the same on all ranks of the machine; narrow: see ``Route.plan_located``."""
        near = Route.plan_located(asks, ids, channel.machine, narrow=False)
        return cls(near, Route.plan_located(*ownership.locate(near.served.numpy()), channel, narrow))

    @property
    def served(self) -> torch.Tensor:
        """Unique local rows [S] that this rank serves to other machines."""
        return self.far.served

    def to(self, device: torch.device) -> MachineRoute:
        """Return the route with its index tensors on ``device``."""
        return MachineRoute(self.near.to(device), self.far.to(device))

    def over(self, channel: Channel) -> MachineRoute:
        """Return the route over another channel, to execute in another thread than it was planned in."""
        return MachineRoute(self.near.over(channel.machine), self.far.over(channel))

    def pull(self, *tables: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Collective. Fetch the wanted ids' rows of the owners' tables [local rows, ...]; returns [W, ...] for each."""
        return self.near.pull_served(*self.far.pull(*tables))

    def pull_served(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Collective. Fetch values [S, ...] that owners have for their served rows only."""
        return self.near.pull_served(*self.far.pull_served(*values))


class Pull:
    """Rows of one table under way, begun by ``Route.start_pull``."""

    def __init__(self, route: Route, transfer: Transfer):
        self._route, self._transfer = route, transfer

    def wait(self) -> torch.Tensor:
        """Wait for the wanted rows [W, ...] and return them."""
        received = self._transfer.wait()
        return received if self._route.order is None else self._route.reorder(received)


def _count_groups(mask: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Count the selected rows of each group of consecutive rows; mask: which rows are selected."""
    below = np.concatenate(([0], np.cumsum(mask)))
    stops = np.cumsum(counts)
    return (below[stops] - below[stops - counts]).astype(np.int64)


def pack(rows: list[torch.Tensor]) -> torch.Tensor:
    """Lay rows [n, ...] of several tables side by side, as bytes [n, total] where there are several."""
    if len(rows) == 1:
        return rows[0]
    return torch.cat([r.reshape(r.shape[0], _width(r)).view(torch.uint8) for r in rows], dim=1)


def unpack(packed: torch.Tensor, like: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the rows of each table, of the widths and dtypes of ``like``, from what ``pack`` made."""
    if len(like) == 1:
        return (packed,)
    out, begin = [], 0
    for rows in like:
        size = _width(rows) * rows.element_size()
        piece = rows.new_empty((packed.shape[0], *rows.shape[1:]))  # a slice would be misaligned for its dtype
        if piece.numel():
            piece.view(-1).view(torch.uint8).view(packed.shape[0], size).copy_(packed[:, begin : begin + size])
        out.append(piece)
        begin += size
    return tuple(out)


def _width(rows: torch.Tensor) -> int:
    return int(np.prod(rows.shape[1:], dtype=np.int64))
