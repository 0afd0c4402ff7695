"""Fetches rows of one node type by global id: from their owners, or from copies of remote rows that a rank keeps.

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
    """A plan to fetch the rows of U wanted nodes: over ``route`` for all, or, with copies, for those at positions
    ``pulled``; those at positions ``copied`` are rows ``copy`` of the copies. All int64."""

    route: Route
    num_wanted: int
    pulled: torch.Tensor | None = None
    copied: torch.Tensor | Any = None
    copy: torch.Tensor | Any = None

    def to(self, device: torch.device, channel: Channel) -> Fetch:
        """Return this fetch with its index tensors on a device, over another channel."""
        route = self.route.over(channel).to(device)
        if device.type == "cpu" or self.pulled is None:
            return replace(self, route=route)
        indices = [upload(tensor, device) for tensor in (self.pulled, self.copied, self.copy)]
        return Fetch(route, self.num_wanted, *indices)


class NodeRows:
    """Tables of one node type [n, ...] by name, and copies of remote rows. Collective to create, to plan and to fetch.

    num_copies: C. wire: dtype that floating rows travel in, to which all are rounded, or None. remote, hits: remote
    rows planned so far, and those of them that were copied.
    """

    def __init__(
        self, ownership: BlockOwnership, tables: dict[str, Table], hot: np.ndarray, channel: Channel,
        wire: torch.dtype | None = None,
    ):  # fmt: skip
        """hot: unique global ids [C] of the remote nodes whose rows this rank copies; wire: dtype that floating rows
        travel in, None: their own."""
        self._ownership, self._rank, self.tables, self.wire = ownership, channel.rank, tables, wire
        self.hits = self.remote = 0
        self._moved: dict[tuple[str, torch.device], torch.Tensor] = {}
        self._counting = threading.Lock()  # several threads may plan
        self._hot, self.num_copies = np.sort(hot), len(hot)
        route = Route.plan(ownership, self._hot, channel)
        self._copies: dict[str, torch.Tensor] = {}
        if channel.size > 1:
            self._copies = {name: self._pull(route.to(table.device), table) for name, table in tables.items()}

    def plan(self, ids: np.ndarray | torch.Tensor, channel: Channel) -> Fetch:
        """Collective. Plan to fetch the rows of unique global ids [U], which may be a tensor of a device; several ranks
        plan on the host."""
        if isinstance(ids, torch.Tensor):
            if channel.size == 1:
                return Fetch(Route.alone(channel, ids - int(self._ownership.starts[0])), len(ids))
            ids = ids.cpu().numpy()
        if channel.size == 1:
            return Fetch(Route.plan(self._ownership, ids, channel), len(ids))
        first, last = self._ownership.starts[self._rank], self._ownership.starts[self._rank + 1]
        num_remote, num_hits = len(ids) - int(((ids >= first) & (ids < last)).sum()), 0
        if self.num_copies == 0:
            fetch = Fetch(Route.plan(self._ownership, ids, channel), len(ids))
        else:
            copy = np.minimum(np.searchsorted(self._hot, ids), self.num_copies - 1)
            is_copied = self._hot[copy] == ids
            num_hits = int(is_copied.sum())
            indices = (np.flatnonzero(~is_copied), np.flatnonzero(is_copied), copy[is_copied])
            route = Route.plan(self._ownership, ids[~is_copied], channel)
            fetch = Fetch(route, len(ids), *(torch.from_numpy(index) for index in indices))
        with self._counting:
            self.remote += num_remote
            self.hits += num_hits
        return fetch

    def fetch(self, fetch: Fetch, name: str) -> torch.Tensor:
        """Collective. Fetch the wanted rows [U, ...] of a table."""
        table, device = self.tables[name], fetch.route.requests.device
        if not isinstance(table, GatheredTable) and table.device != device:
            if (name, device) not in self._moved:
                self._moved[name, device] = table.to(device)
            table = self._moved[name, device]
        rows = self._pull(fetch.route, table)
        if fetch.pulled is None:
            return rows
        out = rows.new_empty((fetch.num_wanted, *rows.shape[1:]))
        native.scatter_rows(out, fetch.pulled, rows)
        native.scatter_rows(out, fetch.copied, native.gather_rows(self._copies[name], fetch.copy))
        return out

    def pull_exact(self, route: Route, name: str) -> torch.Tensor:
        """Collective. Pull rows of a table over a route of this node type's ids, in the table's own dtype."""
        return route.pull_served(gather(self.tables[name], route.served))[0]

    def held_bytes(self) -> int:
        """Count the bytes of tables and copies in the memory of this rank and its device; tables in files count
        nothing."""
        tables = [*self.tables.values(), *self._copies.values()]
        return sum(
            table.held_bytes if isinstance(table, GatheredTable) else table.numel() * table.element_size()
            for table in tables
        )

    def _pull(self, route: Route, table: Table) -> torch.Tensor:
        """Collective. Pull rows of a table; floating ones travel in the dtype ``wire``, and those that need not travel
        are rounded as well, so that the answer does not depend on the number of ranks."""
        narrow = self.wire is not None and table.dtype.is_floating_point
        if not narrow and not isinstance(table, GatheredTable):
            return route.pull(table)[0]
        rows = gather(table, route.served)
        return route.pull_served(rows.to(self.wire) if narrow else rows)[0].to(table.dtype)
