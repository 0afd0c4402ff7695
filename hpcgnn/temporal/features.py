"""Features of nodes and of events: fetched with the plans, ahead of the steps, as they do not depend on weights. Rows
of the ranks of a machine are read in place.

n rows of a rank, e events of a machine, F features, U wanted nodes or events, N queries with K slots, R ranks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import MOST_ROWS, MachineRoute, Route
from hpcgnn.comm.shared import MachineColumns, Shape, has_neighbors, share_columns
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.columns import REMEDY, Widening
from hpcgnn.native.workspace import empty_like_rows
from hpcgnn.temporal.graph import FEATURE, Events, FeatureRows, StoredFeatures, TemporalPartition


class NodeFeatures:
    """Features [n, F] of the nodes whose memory a rank keeps, in the rows of that memory. Collective to create, to
    fetch and to close."""

    def __init__(
        self, table: torch.Tensor, world: World, is_replicated: bool, widening: Widening | None = None
    ):  # fmt: skip
        """table: on the host; is_replicated: every rank has the rows of all nodes; widening: of narrow rows."""
        self._table, self._widening = table, widening
        self._shared: MachineColumns | None = None
        if not is_replicated and has_neighbors(world):
            self._shared = share_columns(world, [((*table.shape,), table.dtype)])
        if self._shared is not None:
            self._table = self._shared.own[0].copy_(table)
            self._shared.publish()

    def fetch(self, owner: np.ndarray, local: np.ndarray, route: Route) -> torch.Tensor:
        """Collective. Fetch the rows [U, F] at ``local`` rows [U] of their owners [U]. Rows of other machines come over
        ``route``; its wanted ids are these rows."""
        rows = self._fetch(owner, local, route)
        return rows if self._widening is None else self._widening(rows)

    def _fetch(self, owner: np.ndarray, local: np.ndarray, route: Route) -> torch.Tensor:
        """Collective. Fetch the rows as they are stored."""
        if self._shared is None:
            return route.pull(self._table)[0]
        near = self._shared.tables[0]
        index = near.first[owner]
        is_near = index >= 0
        index += local
        if not (near.first < 0).any():
            return native.gather_rows(near.table, torch.from_numpy(index))
        far = route.restrict(~is_near, near.first[route.requesters()] < 0)
        (rows,) = far.pull(self._table)
        out = empty_like_rows(rows, len(owner))
        native.scatter_rows(out, torch.from_numpy(np.flatnonzero(~is_near)), rows)
        gathered = native.gather_rows(near.table, torch.from_numpy(index[is_near]))
        native.scatter_rows(out, torch.from_numpy(np.flatnonzero(is_near)), gathered)
        return out

    def close(self) -> None:
        """Collective. Free what ranks share; nothing can be fetched any more."""
        if self._shared is not None:
            self._table = self._table[:0].clone()
            self._shared.close()
            self._shared = None


class EventFeatures:
    """Features of all events with an end at a rank of this machine, in memory that the machine's ranks share. Each
    event has one row, even if both ends are at such ranks. Without room for it, every rank has a table of its own
    events. Collective to create and to close.

    table [e, F], in order of event row id: where no event is far, its row there is its row id. It is float32, or as the
    features are stored: then rows travel so, and ``widen`` makes float32 of them."""

    def __init__(self, partition: TemporalPartition, world: World):
        """Read the features that are stored. Raises DistributedError for files that cannot be read."""
        stored: StoredFeatures | None = partition.stored
        assert stored is not None
        self._encoding = encoding = stored.encoding
        self._widening = None if encoding is None else Widening(encoding, torch.float32, False)
        self._dtype = torch.float32 if self._widening is None else self._widening.stored_dtype
        self._book, self._num_events, self._rank, self._size = (
            partition.book, partition.num_events, world.rank, world.size
        )  # fmt: skip
        with together(world, "read the features of events"):
            self._check(stored)
        machine = world.machine()
        members, is_first = machine.allgather(world.rank), machine.rank == 0
        machine.Free()
        self._is_near = np.isin(np.arange(world.size), members)
        row, self._shared = self._held(stored), None
        if has_neighbors(world):
            self._shared = share_columns(world, self._shapes(stored, len(row)))
            if self._shared is None:
                self._is_near = np.arange(world.size) == world.rank
                row = self._held(stored)
        self._ids = self._gather_ids(row, is_first) if self.has_far else None
        empty = torch.empty(0 if self._shared else len(row), stored.width, dtype=self._dtype)
        self.table = self._shared.tables[0].table if self._shared else empty
        self._load(stored, world)

    @property
    def has_far(self) -> bool:
        """Whether there are events that the table lacks; the same on all ranks."""
        return not self._is_near.all()

    @property
    def width(self) -> int:
        """Width F."""
        return self.table.shape[1]

    def _check(self, stored: StoredFeatures) -> None:
        """Raise ValueError for rows that no event can have."""
        first, last = (int(stored.row.min()), int(stored.row.max())) if len(stored.row) else (0, 0)
        if first < 0 or last >= max(1, self._num_events):
            raise ValueError(f"events have rows {first} to {last}, the book has {self._num_events} events")

    def _lays(self, stored: StoredFeatures) -> np.ndarray:
        """Say which of the stored rows [k] this rank lays down: where its machine has both ends of an event, the owner
        of the source does."""
        return (stored.source_rank == self._rank) | ~self._is_near[stored.source_rank]

    def _held(self, stored: StoredFeatures) -> np.ndarray:
        """Return the row ids of the events that this rank lays down, increasing."""
        return np.unique(stored.row[self._lays(stored)])

    def _shapes(self, stored: StoredFeatures, count: int) -> list[Shape]:
        """Return the shapes of what this rank lays down: features and, where some are far, row ids."""
        shapes: list[Shape] = [((count, stored.width), self._dtype)]
        return [*shapes, ((count,), torch.int64)] if self.has_far else shapes

    def _gather_ids(self, row: np.ndarray, is_first: bool) -> np.ndarray:
        """Collective. Return the row ids [e] of the machine's events, increasing, of which this rank has ``row``."""
        if self._shared is None:
            return row
        ids = self._shared.tables[1].table.numpy()
        self._shared.own[1].copy_(torch.from_numpy(row))
        self._shared.publish()
        if is_first:
            ids.sort()
        self._shared.publish()
        return ids

    def _load(self, stored: StoredFeatures, world: World) -> None:
        """Collective. Read this rank's rows of the table."""
        lays, places = self._lays(stored), np.full(len(stored.row), -1)
        places[lays] = self._rows_of(stored.row[lays])
        with together(world, "read the features of events"):
            stored.read(self._array(self.table), places)
        if self._shared is not None:
            self._shared.publish()

    def _array(self, rows: torch.Tensor) -> np.ndarray:
        """View rows as an array of their dtype in files."""
        return rows.view(torch.int16).numpy().view(np.uint16) if rows.dtype == torch.bfloat16 else rows.numpy()

    def widen(self, rows: torch.Tensor) -> torch.Tensor:
        """Make float32 of rows that ``fetch`` has brought."""
        return rows if self._widening is None else self._widening(rows)

    def wide(self) -> np.ndarray:
        """Return the table in float32."""
        return self.widen(self.table).numpy()

    def _rows_of(self, events: np.ndarray) -> np.ndarray:
        """Return the rows of events that lie in the table."""
        return events if self._ids is None else np.searchsorted(self._ids, events)

    def fetch(
        self, event: np.ndarray, first: np.ndarray, second: np.ndarray, channel: Channel
    ) -> tuple[torch.Tensor, np.ndarray]:
        """Collective where ``has_far``. Return the rows [U, F], as they are stored, of the unique events among
        ``event`` [N, K] (-1 pads), and the place [N, K] int32 of each (-1 pads). first [N], second [N, K]: the events'
        nodes."""
        if not self.has_far:
            unique, place = native.unique_relabel(event.reshape(-1))
            return native.gather_rows(self.table, torch.from_numpy(unique)), place.reshape(event.shape)
        server = self._servers(event, self._book.locate(first)[0][:, None], self._owners(second))
        keys, place = native.unique_relabel(np.where(event < 0, -1, event * (self._size + 1) + server).reshape(-1))
        server, unique = self.locate(keys)
        near, far = np.flatnonzero(server == self._size), np.flatnonzero(server < self._size)
        asks = server[far] if channel.machine is None else server[far] % channel.machine.size  # a rank asks few owners
        by_asked = native.order_of_ranks(asks, channel.size)
        far, asks = far[by_asked], asks[by_asked]
        rows = self._pull(keys[far], asks, channel)
        out = empty_like_rows(rows, len(keys))
        native.scatter_rows(out, torch.from_numpy(far), rows)
        gathered = native.gather_rows(self.table, torch.from_numpy(self._rows_of(unique[near])))
        native.scatter_rows(out, torch.from_numpy(near), gathered)
        return out, place.reshape(event.shape)

    def _owners(self, nodes: np.ndarray) -> np.ndarray:
        """Return the owners of nodes of any shape; -1 is padding."""
        return self._book.locate(np.maximum(nodes, 0).reshape(-1))[0].reshape(nodes.shape)

    def _servers(self, event: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return who serves events of nodes at ranks ``one`` and ``other``, whichever of them was asked for the event:
        R where it lies here, else an owner of the two in turns."""
        by_turns = np.where(event & 1, np.maximum(one, other), np.minimum(one, other))
        return np.where(self._is_near[one] | self._is_near[other], self._size, by_turns)

    def locate(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rank and row id of the events that keys [n] stand for."""
        event, server = np.divmod(keys, self._size + 1)
        return server, event

    def _pull(self, keys: np.ndarray, asks: np.ndarray, channel: Channel) -> torch.Tensor:
        """Collective. Pull the rows of events that lie with other ranks; asks [n]: which rank of this machine asks or,
        where every rank asks for itself, which rank is asked."""
        is_narrow = self._num_events <= MOST_ROWS
        route: Route | MachineRoute
        if channel.machine is None:
            route = Route.plan_located(*self.locate(keys), channel, is_narrow)
        else:
            route = MachineRoute.plan(self, keys, asks, channel, is_narrow)
        served = torch.from_numpy(self._rows_of(route.served.numpy()))
        return route.pull_served(native.gather_rows(self.table, served))[0]

    def of_events(self, events: Events, channel: Channel) -> FeatureRows:
        """Collective where ``has_far``. Return the features of events; features that are not on this machine are
        fetched."""
        table = self._array(self.table)
        if not self.has_far:
            return FeatureRows(table, table[:0], events.row, self._encoding)
        is_far = ~(self._is_near[self._owners(events.src)] | self._is_near[self._owners(events.dst)])
        index = self._rows_of(events.row)
        more, place = self.fetch(
            events.row[is_far][:, None], events.src[is_far], events.dst[is_far][:, None], channel
        )  # fmt: skip
        index[is_far] = len(table) + place[:, 0]
        return FeatureRows(table, self._array(more), index, self._encoding)

    def close(self) -> None:
        """Collective. Free what ranks share; nothing can be fetched any more."""
        if self._shared is not None:
            self.table, self._ids = self.table[:0].clone(), None
            self._shared.close()
            self._shared = None


def read_features(partition: TemporalPartition, world: World, channel: Channel) -> TemporalPartition:
    """Collective. Return the partition with the features of its events where they are stored. Raises
    DistributedError."""
    widths = world.reduce_array(np.array([partition.edge_width, -partition.edge_width]), "max")
    with together(world, "read the features of events"):
        if widths[0] != -widths[1]:
            raise ValueError(f"parts have {-widths[1]} to {widths[0]} features of events; {REMEDY}")
    if partition.stored is None:
        return partition
    features = EventFeatures(partition, world)
    partition.events.columns[FEATURE] = features.of_events(partition.events, channel)
    return replace(partition, stored=None, features=features)
