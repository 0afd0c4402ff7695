"""Rows of one node type by global id: at their owners, with copies of hot remote rows on every rank.

n nodes of the type at this rank, U wanted nodes, C copies.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.graph.columns import GatheredTable, Table, gather
from hpcgnn.native.dispatch import upload

FEATURE = "feature"  # the table of input rows


@dataclass(frozen=True, slots=True)
class Fetch:
    """Where the rows of U wanted nodes come from: ``route`` for all, or, with copies, for those at ``pulled``; the
    others, at ``copied``, are rows ``copy`` of the copies."""

    route: Route
    num_wanted: int
    pulled: torch.Tensor | None = None
    copied: torch.Tensor | Any = None
    copy: torch.Tensor | Any = None

    def over(self, channel: Channel) -> Fetch:
        """This fetch over another channel."""
        return replace(self, route=self.route.over(channel))

    def to(self, device: torch.device) -> Fetch:
        """This fetch with its index tensors on a device."""
        if device.type == "cpu" or self.pulled is None:
            return replace(self, route=self.route.to(device))
        moved = [upload(tensor, device) for tensor in (self.pulled, self.copied, self.copy)]
        return Fetch(self.route.to(device), self.num_wanted, *moved)


class NodeRows:
    """Tables of one node type [n, ...], and their copies. Collective to create, to plan and to fetch.

    hot: unique global ids [C] of remote nodes whose rows this rank keeps. wire: dtype that floating rows travel in,
    None: their own. wanted, hits: remote rows wanted so far, and those of them that were found among the copies.
    """

    def __init__(
        self, ownership: BlockOwnership, tables: dict[str, Table], hot: np.ndarray, channel: Channel,
        wire: torch.dtype | None = None,
    ):  # fmt: skip
        self._ownership, self._rank, self.tables, self._wire = ownership, channel.rank, tables, wire
        self.hits = self.wanted = 0
        self._brought: dict[tuple[str, torch.device], torch.Tensor] = {}
        self._counting = threading.Lock()
        self._hot = np.sort(hot)
        route = Route.plan(ownership, self._hot, channel)
        self._copies: dict[str, torch.Tensor] = {}
        if channel.size > 1:
            self._copies = {name: self._pull(route.to(table.device), table) for name, table in tables.items()}

    @property
    def num_copies(self) -> int:
        """C."""
        return len(self._hot)

    def plan(self, ids: np.ndarray | torch.Tensor, channel: Channel) -> Fetch:
        """Collective. How to fetch the rows of unique global ids [U]; of the only rank also a tensor of a device."""
        if isinstance(ids, torch.Tensor):
            return Fetch(Route.alone(channel, ids - int(self._ownership.starts[0])), len(ids))
        if channel.size == 1:
            return Fetch(Route.plan(self._ownership, ids, channel), len(ids))
        first, last = self._ownership.starts[self._rank], self._ownership.starts[self._rank + 1]
        remote = len(ids) - int(((ids >= first) & (ids < last)).sum())
        if len(self._hot) == 0:
            self._count(remote, 0)
            return Fetch(Route.plan(self._ownership, ids, channel), len(ids))
        copy = np.minimum(np.searchsorted(self._hot, ids), len(self._hot) - 1)
        found = self._hot[copy] == ids
        self._count(remote, int(found.sum()))
        index = [torch.from_numpy(array) for array in (np.flatnonzero(~found), np.flatnonzero(found), copy[found])]
        return Fetch(Route.plan(self._ownership, ids[~found], channel), len(ids), *index)

    def _count(self, wanted: int, hits: int) -> None:
        with self._counting:  # several threads may plan
            self.wanted += wanted
            self.hits += hits

    def fetch(self, fetch: Fetch, name: str) -> torch.Tensor:
        """Collective. The wanted rows [U, ...] of a table."""
        rows = self._pull(fetch.route, self._table(name, fetch.route.requests.device))
        if fetch.pulled is None:
            return rows
        out = rows.new_empty((fetch.num_wanted, *rows.shape[1:]))
        native.scatter_rows(out, fetch.pulled, rows)
        native.scatter_rows(out, fetch.copied, native.gather_rows(self._copies[name], fetch.copy))
        return out

    def _table(self, name: str, device: torch.device) -> Table:
        """A table where a route's rows are wanted; one that lies elsewhere is brought there once."""
        table = self.tables[name]
        if isinstance(table, GatheredTable) or table.device == device:
            return table
        if (name, device) not in self._brought:
            self._brought[name, device] = table.to(device)
        return self._brought[name, device]

    def pull_exact(self, route: Route, name: str) -> torch.Tensor:
        """Collective. Rows of a table over any route of this node type's ids, none of them rounded."""
        return route.pull_served(gather(self.tables[name], route.served))[0]

    def held_bytes(self) -> int:
        """Bytes in the memory of this rank and its device: tables, those that stay in files left out, and copies."""
        tables = [*self.tables.values(), *self._copies.values()]
        return sum(
            table.held_bytes if isinstance(table, GatheredTable) else table.numel() * table.element_size()
            for table in tables
        )

    def _pull(self, route: Route, table: Table) -> torch.Tensor:
        narrow = self._wire is not None and table.dtype.is_floating_point and route.channel.size > 1
        if not narrow and not isinstance(table, GatheredTable):
            return route.pull(table)[0]
        rows = gather(table, route.served)
        return route.pull_served(rows.to(self._wire) if narrow else rows)[0].to(table.dtype)
