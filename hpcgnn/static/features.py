"""A node's rows and how they are fetched. Rows are features, row ids and degrees. They come from memory that the ranks
of a machine share, from their owners, or from copies that a rank keeps.

The remote rows that a rank needs most are counted beforehand (presample.py), or were stored with the parts. n nodes of
a type at this rank, N at the ranks that it shares memory with, U wanted nodes, C copies.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.memory import free_bytes
from hpcgnn.comm.route import MachineRoute, Route
from hpcgnn.comm.shared import MachineColumns, MachineTable, Shape, has_neighbors, share_columns
from hpcgnn.comm.together import together
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.graph.columns import (
    FileTable,
    GatheredTable,
    NarrowTable,
    PinnedTable,
    StoredColumn,
    Table,
    convert,
    gather,
    gather_stored,
    load_pinned,
    load_table,
    seen_from,
    widen,
    widening_of,
)
from hpcgnn.graph.embeddings import EmbeddingStore
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.native.dispatch import upload
from hpcgnn.native.workspace import empty_like_rows
from hpcgnn.static.config import AUTO, DEVICE, FILE, PINNED, STORAGES, WIRES, FeatureConfig, Storage
from hpcgnn.static.model.blocks import IndexedRows
from hpcgnn.static.presample import InputIds, presample

FEATURE = "feature"  # the table of input rows
MOST_OF_FREE = 0.75  # share of free memory that features take, where it is for them to choose
Stored = tuple[StoredColumn | None, ...]  # features by type


@dataclass(frozen=True, slots=True)
class Fetch:
    """A plan to fetch the rows of U wanted nodes. index [U]: their rows in the near tables, if all of them are near.
    Otherwise index is None: the nodes at positions ``near`` are rows ``row`` of the near tables, and the nodes at
    ``copied`` are rows ``copy`` of the feature cache. The rows of the nodes at ``pulled`` come over the route ``pull``.
    All int64. route: to the owners of all wanted nodes, for types with learnable embeddings; to nothing for others.
    repeat [W]: where nodes may be wanted several times, the place of each among the U unique ones, which are fetched;
    then index is [W] too."""

    num_wanted: int
    route: Route
    index: torch.Tensor | Any = None
    near: torch.Tensor | Any = None
    row: torch.Tensor | Any = None
    copied: torch.Tensor | Any = None
    copy: torch.Tensor | Any = None
    pulled: torch.Tensor | Any = None
    pull: Route | Any = None
    repeat: torch.Tensor | Any = None

    def repeated(self, rows: torch.Tensor) -> torch.Tensor:
        """Give every wanted node its row, out of the rows of the unique ones."""
        return rows if self.repeat is None else native.gather_rows(rows, self.repeat)

    def summed(self, gradient: torch.Tensor) -> torch.Tensor:
        """Sum the gradients [U, D] of wanted nodes by unique node: what ``route`` sends."""
        if self.repeat is None:
            return gradient
        place = torch.arange(len(self.repeat) + 1, device=self.repeat.device)
        users = native.EdgeLists(place, self.repeat, self.num_wanted).transposed
        return native.segment_sum_rows(gradient.contiguous(), users.indptr, users.edge)

    @property
    def num_asked(self) -> int:
        """Number of rows that this rank requests from other machines, for all ranks of its machine."""
        if self.pull is None:
            return 0
        return (self.pull.far if isinstance(self.pull, MachineRoute) else self.pull).num_wanted

    def to(self, device: torch.device, channel: Channel) -> Fetch:
        """Return this fetch with its index tensors on a device, over another channel."""
        routes = {name: getattr(self, name).over(channel).to(device) for name in self._names(Route, MachineRoute)}
        if device.type == "cpu":
            return replace(self, **routes)
        indices: dict[str, Any] = {name: upload(getattr(self, name), device) for name in self._names(torch.Tensor)}
        return replace(self, **routes, **indices)

    def _names(self, *kinds: type) -> list[str]:
        return [field.name for field in fields(self) if isinstance(getattr(self, field.name), kinds)]


class NodeRows:
    """Tables of one node type [n, ...] by name, and copies of remote rows. Collective to create, to plan and to fetch.

    Rows are *near* if they lie in memory that this rank can read: its own and, where ranks share memory, theirs. A
    cache holds copies of C far rows. num_copies: C. wire: dtype that floating rows travel in, to which all rows are
    rounded, or None. remote, hits: how many of the rows planned so far were far, and how many of these the cache had.
    near_learned: learnable embeddings of all ranks that share memory, read in place; None where they are fetched.
    """

    def __init__(
        self, ownership: BlockOwnership, tables: dict[str, Table], hot: np.ndarray, channel: Channel,
        wire: torch.dtype | None = None, shared: dict[str, MachineTable] | None = None, is_learned: bool = False,
    ):  # fmt: skip
        """hot: unique global ids [C] of the remote nodes whose rows this rank copies; wire: dtype that floating rows
        travel in, None: their own; shared: the tables with the rows of all ranks that share memory; is_learned:
        plans have a route to all wanted nodes, over which a step moves their learnable embeddings."""
        self._ownership, self._rank, self.tables, self.wire = ownership, channel.rank, tables, wire
        self._near_tables: dict[str, Table] = dict(tables)
        self._first = np.full(channel.size, -1, np.int64)  # row of the near tables at which a rank's rows begin
        self._first[self._rank] = 0
        for name, of_machine in (shared or {}).items():
            own, near = tables[name], of_machine.table
            self._near_tables[name] = NarrowTable(near, own.widening) if isinstance(own, NarrowTable) else near
            self._first = of_machine.first
        self.hits = self.remote = 0
        self._is_learned = is_learned
        self.near_learned: torch.Tensor | None = None
        self._moved: dict[tuple[str, torch.device], Table] = {}
        self._counting = threading.Lock()  # several threads may plan
        self._hot, self.num_copies = np.sort(hot), len(hot)
        self._copies: dict[str, torch.Tensor] = {}
        if self.has_far_ranks:
            route = Route.plan(ownership, self._hot, channel)
            self._copies = {name: self._pull(route.to(table.device), table) for name, table in tables.items()}

    @property
    def has_far_ranks(self) -> bool:
        """Whether rows of some ranks are not near; the same on all ranks."""
        return bool((self._first < 0).any())

    def is_near(self, ids: np.ndarray) -> np.ndarray:
        """Say of which global ids [U] this rank reads the rows where they lie."""
        return self._first[self._ownership.locate(ids)[0]] >= 0

    def plan_repeated(self, ids: np.ndarray, channel: Channel) -> Fetch:
        """Collective. Plan to fetch the rows of global ids [W] that may repeat; every row travels once."""
        unique, place = native.unique_relabel(ids)
        fetch, repeat = self.plan(unique, channel), torch.from_numpy(place.astype(np.int64))
        return replace(fetch, index=None if fetch.index is None else fetch.index[repeat], repeat=repeat)

    def plan(self, ids: np.ndarray | torch.Tensor, channel: Channel) -> Fetch:
        """Collective. Plan to fetch the rows of unique global ids [U], which may be a tensor of a device; several ranks
        plan on the host."""
        if isinstance(ids, torch.Tensor):
            if channel.size == 1:
                index = ids - int(self._ownership.starts[0])
                route = Route.alone(channel, index) if self._is_learned else Route.to_nothing(channel)
                return Fetch(len(ids), route, index)
            ids = ids.cpu().numpy()
        owner, local = self._ownership.locate(ids)
        row = self._first[owner]
        is_near = row >= 0
        row += local
        route = Route.plan_located(owner, local, channel) if self._is_learned else Route.to_nothing(channel)
        if not self.has_far_ranks:
            return Fetch(len(ids), route, torch.from_numpy(row))
        return self._plan_far(ids, owner, local, row, is_near, route)

    def _plan_far(self, ids, owner, local, row, is_near, route: Route) -> Fetch:
        """Collective. Plan to fetch rows some of which may not be near."""
        copied = copy = np.empty(0, np.int64)
        near, is_pulled = np.flatnonzero(is_near), ~is_near
        if self.num_copies:  # none of learned types
            place = np.minimum(np.searchsorted(self._hot, ids), self.num_copies - 1)
            copied = np.flatnonzero((self._hot[place] == ids) & is_pulled)
            is_pulled[copied], copy = False, place[copied]
        with self._counting:
            self.remote += len(ids) - len(near)
            self.hits += len(copied)
        pulled = np.flatnonzero(is_pulled)
        pull: Route | MachineRoute
        if self._is_learned:
            pull = route.restrict(is_pulled, self._first[route.requesters()] < 0)
        else:
            channel = route.channel
            asks = owner if channel.machine is None else owner % channel.machine.size  # so that a rank asks few owners
            # In the order in which replies arrive, so that no row is moved twice.
            pulled = pulled[native.order_of_ranks(asks[pulled], channel.size)]
            plain = self.wire is None and not any(isinstance(table, GatheredTable) for table in self.tables.values())
            pull = (
                Route.plan_located(owner[pulled], local[pulled], channel, pulls_only=plain) if channel.machine is None
                else MachineRoute.plan(self._ownership, ids[pulled], asks[pulled], channel)
            )  # fmt: skip
        columns = {"near": near, "row": row[near], "copied": copied, "copy": copy, "pulled": pulled}
        indices: dict[str, Any] = {name: torch.from_numpy(index) for name, index in columns.items()}
        return Fetch(len(ids), route, pull=pull, **indices)

    def in_place(self, fetch: Fetch, name: str) -> IndexedRows | None:
        """Return the wanted rows of a table where they lie; None where they must be fetched."""
        table = self._near_tables[name]
        if fetch.index is None or self._is_narrow(table) or isinstance(table, GatheredTable):
            return None
        return IndexedRows(table, fetch.index)

    def wanted(self, fetch: Fetch, name: str) -> torch.Tensor | IndexedRows | None:
        """Collective. Return the wanted rows [U, ...] of a table, where they lie or fetched; None without a table."""
        if name not in self.tables:
            return None
        indexed = self.in_place(fetch, name)
        return self.fetch(fetch, name) if indexed is None else indexed

    def fetch(self, fetch: Fetch, name: str) -> torch.Tensor:
        """Collective. Fetch the wanted rows [U, ...] of a table."""
        device = (fetch.pulled if fetch.index is None else fetch.index).device
        near = self._on(device, name, self._near_tables[name])
        if fetch.index is not None:
            return widen(near, self._gather(near, fetch.index))
        rows = self._pull(fetch.pull, self._on(device, name, self.tables[name]))
        return fetch.repeated(widen(near, self._put_together(fetch, name, self._gather(near, fetch.row), rows)))

    def fetch_exact(self, fetch: Fetch, names: Sequence[str]) -> list[torch.Tensor]:
        """Collective. Fetch the wanted rows [U, ...] of several tables in their own dtypes, with one message for rows
        of other machines."""
        device = (fetch.pulled if fetch.index is None else fetch.index).device
        near: list[Any] = [self._on(device, name, self._near_tables[name]) for name in names]
        if fetch.index is not None:
            return [gather(table, fetch.index) for table in near]
        own: list[Any] = [self._on(device, name, self.tables[name]) for name in names]
        gathered = [gather(table, fetch.row) for table in near]
        pieces = zip(names, gathered, fetch.pull.pull(*own), strict=True)
        return [self._put_together(fetch, *each) for each in pieces]

    def _put_together(self, fetch: Fetch, name: str, near: torch.Tensor, pulled: torch.Tensor) -> torch.Tensor:
        """Bring near, copied and pulled rows of a table to their places among the wanted ones."""
        out = empty_like_rows(pulled, fetch.num_wanted)
        native.scatter_rows(out, fetch.pulled, pulled)
        native.scatter_rows(out, fetch.near, near)
        if self.num_copies:
            native.scatter_rows(out, fetch.copied, native.gather_rows(self._copies[name], fetch.copy))
        return out

    def fetch_learned(self, fetch: Fetch, own: torch.Tensor) -> torch.Tensor:
        """Collective. Fetch the learnable embeddings [U, Z] of the wanted nodes; own [n, Z]: of this rank's nodes."""
        if self.near_learned is None:
            return fetch.repeated(fetch.route.pull(own)[0])
        if fetch.index is not None:
            return native.gather_rows(self.near_learned, fetch.index)
        rows = fetch.pull.pull(own)[0]
        out = empty_like_rows(rows, fetch.num_wanted)
        native.scatter_rows(out, fetch.pulled, rows)
        native.scatter_rows(out, fetch.near, native.gather_rows(self.near_learned, fetch.row))
        return fetch.repeated(out)

    def pull_exact(self, route: Route, name: str) -> torch.Tensor:
        """Collective. Pull rows of a table over a route of this node type's ids, in the table's own dtype."""
        table = self.tables[name]
        return widen(table, route.pull_served(gather_stored(table, route.served))[0])

    def held_bytes(self) -> int:
        """Count the bytes of tables and copies in the memory of this rank and its device; tables in files count
        nothing."""
        tables = [*self.tables.values(), *self._copies.values()]
        return sum(
            table.held_bytes if isinstance(table, GatheredTable) else table.numel() * table.element_size()
            for table in tables
        )

    def _on(self, device: torch.device, name: str, table: Table) -> Table:
        """Return a table on a device, to which it is moved once."""
        if table.device == device:
            return table
        if (name, device) not in self._moved:
            self._moved[name, device] = table.to(device)
        return self._moved[name, device]

    def _is_narrow(self, table: Table) -> bool:
        """Say whether rows of a table travel in the dtype ``wire``. Those that need not travel are rounded as well, so
        that the answer does not depend on the number of ranks."""
        return self.wire is not None and table.dtype.is_floating_point

    def _gather(self, table: Table, rows: torch.Tensor) -> torch.Tensor:
        """Copy near rows of a table, as they are stored, rounded as if they had traveled."""
        gathered = gather_stored(table, rows)
        return gathered.to(self.wire).to(table.dtype) if self._is_narrow(table) else gathered

    def _pull(self, route: Route | MachineRoute, table: Table) -> torch.Tensor:
        """Collective. Pull rows of a table as they are stored, in the dtype in which they travel."""
        if self._is_narrow(table):
            return route.pull_served(gather_stored(table, route.served).to(self.wire))[0].to(table.dtype)
        if isinstance(table, GatheredTable):
            return route.pull_served(gather_stored(table, route.served))[0]
        return route.pull(table)[0]


class NodeTables:
    """The rows of nodes, by node type in ``rows``; ``keep_copies`` makes them anew, with a feature cache. Collective to
    create. predicted_hits: share of the needed far rows that the cache should have; storage: where features lie, the
    same on all ranks; lacks_room: a machine's memory has no room for rows that its ranks share."""

    def __init__(
        self, partition: GraphPartition, config: FeatureConfig, world: World, channel: Channel, dtype: torch.dtype,
        shares: bool = True, loads_features: bool = True,
    ):  # fmt: skip
        """shares: the rows lie in memory that the ranks of a machine share; loads_features: features are among them."""
        self._config, self._world, self._channel = config, world, channel
        self._book, self._ranking = partition.book, partition.ranking
        self._shared: list[MachineColumns] = []
        self.lacks_room = False
        self._near: list[dict[str, MachineTable]] = [{} for _ in partition.types]
        stored = partition.features if loads_features else (None,) * len(partition.types)
        shapes = _shapes(partition, stored, dtype)
        self.storage = _choose_storage(config, shapes, world)
        self._by_device = world.any(world.device.type != "cpu")  # which reads pinned rows over the bus
        self._shares = shares and self.storage == (PINNED if self._by_device else DEVICE)
        places = self._share(shapes)
        if self.storage == DEVICE:
            world.room.note("features", _feature_bytes(shapes), f"features.storage {PINNED}" if shares else "")
        with together(world, "read the features"):
            self._tables = _make_tables(partition, stored, replace(config, storage=self.storage), dtype, world, places)
        self._publish()
        if self._by_device and self._shared:
            with together(world, "pin the features"):
                self._see_features(self._shared[0], partition)
        self.predicted_hits = 0.0
        self._learned: Collection[int] = ()
        self._in_shared: EmbeddingStore | None = None
        self.rows = self._make_rows([np.empty(0, np.int64)] * len(self._tables))

    def learn(self, kinds: Collection[int]) -> None:
        """Collective. Set the node types with learnable embeddings, whose rows are not cached."""
        self._learned = kinds
        self.rows = self._make_rows([np.empty(0, np.int64)] * len(self._tables))

    def share_learned(self, learned: EmbeddingStore) -> None:
        """Collective. Put learnable embeddings into memory that the ranks of a machine share, if features lie there."""
        shapes: list[Shape] = [(tuple(table.weight.shape), table.weight.dtype) for table in learned.tables.values()]
        columns = share_columns(self._world, shapes) if self.has_common_columns and shapes else None
        if columns is None:
            return
        self._shared.append(columns)
        learned.lie_in(columns)
        self._in_shared = learned
        for kind, of_machine in zip(learned.tables, columns.tables, strict=True):
            self.rows[kind].near_learned = of_machine.table

    def _share(self, shapes: list[dict[str, Shape]]) -> list[dict[str, torch.Tensor]]:
        """Collective. Make tables of this rank's rows, by type and name, in memory that the ranks of a machine share;
        none where they do not."""
        places: list[dict[str, torch.Tensor]] = [{} for _ in shapes]
        if not self._shares or not has_neighbors(self._world):
            return places
        columns = share_columns(self._world, [shape for of_type in shapes for shape in of_type.values()])
        if columns is None:
            self.lacks_room = True
            return places
        self._shared.append(columns)
        names = [(kind, name) for kind, of_type in enumerate(shapes) for name in of_type]
        for (kind, name), own, of_machine in zip(names, columns.own, columns.tables, strict=True):
            places[kind][name], self._near[kind][name] = own, of_machine
        return places

    def _publish(self) -> None:
        """Collective. Let the ranks of the machine see what was written last."""
        if self._shared:
            self._shared[-1].publish()

    def _see_features(self, columns: MachineColumns, partition: GraphPartition) -> None:
        """Pin the memory that the ranks of the machine share, and let this rank's device read all features in it."""
        # At once, as no page may be pinned twice.
        seen, begin = seen_from(self._world.device, columns.memory), columns.memory.data_ptr()
        for kind, (tables, near) in enumerate(zip(self._tables, self._near, strict=True)):
            if FEATURE not in near:
                continue
            own, table = tables[FEATURE], near[FEATURE].table
            at, first = table.data_ptr() - begin, int(near[FEATURE].first[self._world.rank])
            raw = seen[at : at + table.numel() * table.element_size()]
            there = raw.view(table.dtype).view(table.shape) if len(raw) else table.to(self._world.device)
            hot = first + hot_rows(partition, kind, self._world.rank, self._config.device_ratio)
            pinned = PinnedTable(there, hot, own.widening if isinstance(own, NarrowTable) else None)
            near[FEATURE] = replace(near[FEATURE], table=pinned)
            tables[FEATURE] = pinned.part(first, first + own.shape[0])

    def close(self) -> None:
        """Collective. Free what ranks share; the tables must not be used any more."""
        if self._in_shared is not None:
            self._in_shared.leave()
        self.rows, self._near, self._tables = (), [], []
        while self._shared:
            self._shared.pop().close()

    def over(self, partition: GraphPartition) -> NodeTables:
        """Collective. Return these tables, without copies, with the degrees of another graph of the same nodes."""
        other, degree = copy.copy(self), partition.in_degree()
        other._near = [dict(near) for near in self._near]
        own = [torch.from_numpy(degree[partition.of_type(kind)]) for kind in range(len(partition.types))]
        shapes: list[dict[str, Shape]] = [{"degree": (tuple(rows.shape), rows.dtype)} for rows in own]
        places = other._share(shapes) if self.is_shared else [{} for _ in own]
        if not any(places):
            other._near = [{} for _ in own]  # a machine's columns are all shared, or none is
        other._tables = []
        for tables, place, rows in zip(self._tables, places, own, strict=True):
            other._tables.append(tables | {"degree": place["degree"].copy_(rows) if place else rows})
        other._publish()
        other.rows = other._make_rows([np.empty(0, np.int64)] * len(self._tables))
        return other

    @property
    def is_shared(self) -> bool:
        """Whether the ranks of a machine read each other's rows."""
        return bool(self._shared)

    @property
    def has_common_columns(self) -> bool:
        """Whether the ranks of a machine compute on memory that they share."""
        return self.is_shared and not self._by_device

    def near(self, kind: int, name: str) -> MachineTable | None:
        """Return a type's table of all ranks of this machine; None where they do not share it."""
        return self._near[kind].get(name)

    @property
    def wants_copies(self) -> bool:
        """Whether copies are configured and some rows are not near."""
        return self._config.cache_ratio > 0 and self.rows[0].has_far_ranks

    def _make_rows(self, hot: list[np.ndarray]) -> tuple[NodeRows, ...]:
        """Collective. Make the rows of each type, with copies of the ``hot`` global ids."""
        wire, book = WIRES[self._config.wire], self._book
        return tuple(
            NodeRows(book.of_type(kind), tables, ids, self._channel, wire, near, kind in self._learned)
            for kind, (tables, ids, near) in enumerate(zip(self._tables, hot, self._near, strict=True))
        )

    def keep_copies(self, input_ids: InputIds, num_steps: int) -> None:
        """Collective. Copy the rows that this rank needs most, by the parts' ranking or by the needs of an epoch's
        steps. Only rows that are not near are copied, of types with features and without learnable embeddings. Raises
        DistributedError where the parts should have a ranking and have none."""
        config = self._config
        if config.cache_policy == "stored":
            if not self._world.any(any(len(ranking.id) for ranking in self._ranking)):
                raise DistributedError(
                    "features.cache_policy stored: the parts hold no ranking; partition again with --cache_ranking or "
                    "--method hotness, or use features.cache_policy presample", user_error=True,
                )  # fmt: skip
            rankings = tuple(
                ranking.of(~rows.is_near(ranking.id)) for ranking, rows in zip(self._ranking, self.rows, strict=True)
            )
        else:
            rankings = presample(input_ids, num_steps, [rows.is_near for rows in self.rows], self._world)
        counts = np.diff(self._book.type_base())
        room = [int(config.cache_ratio * counts[kind]) * (FEATURE in tables and kind not in self._learned)
                for kind, tables in enumerate(self._tables)]  # fmt: skip
        ranked = [(ranking, count) for ranking, count in zip(rankings, room, strict=True) if count]
        answered = self._world.total(sum(float(ranking.probability[:count].sum()) for ranking, count in ranked))
        needed = self._world.total(sum(float(ranking.probability.sum()) for ranking, _ in ranked))
        self.predicted_hits = answered / max(needed, 1e-30)
        self.rows = self._make_rows([ranking.id[:count] for ranking, count in zip(rankings, room, strict=True)])

    def num_copies(self) -> int:
        """Collective. Count the copied rows of all ranks together."""
        return int(self._world.total(sum(rows.num_copies for rows in self.rows)))

    def held_bytes(self) -> int:
        """Count the bytes of rows and copies in this rank's memory."""
        return sum(rows.held_bytes() for rows in self.rows)

    def hit_rate(self) -> float:
        """Collective. Compute the share of the remote rows needed so far that were copied, over all ranks."""
        needed, hits = (
            self._world.total(sum(getattr(rows, name) for rows in self.rows)) for name in ("remote", "hits")
        )
        return hits / max(1, needed)


def _shapes(partition: GraphPartition, stored: Stored, dtype: torch.dtype) -> list[dict[str, Shape]]:
    """Return shape and dtype of the tables of this rank's nodes, by type and name."""
    shapes: list[dict[str, Shape]] = []
    for kind, features in enumerate(stored):
        nodes = partition.of_type(kind)
        count = (nodes.stop - nodes.start,)
        degree: Shape = (count, torch.float64 if partition.weighs else torch.int64)
        shapes.append({"identity": (count, torch.int64), "degree": degree})
        if features is not None:
            widening = widening_of(features, dtype, False)
            shapes[-1][FEATURE] = (features.shape, dtype if widening is None else widening.stored_dtype)
    return shapes


def _feature_bytes(shapes: list[dict[str, Shape]]) -> int:
    """Count the bytes of this rank's rows of features."""
    tables = [of_type[FEATURE] for of_type in shapes if FEATURE in of_type]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in tables)


def _choose_storage(config: FeatureConfig, shapes: list[dict[str, Shape]], world: World) -> Storage:
    """Collective. Choose where features lie (``features.storage``), alike on all ranks. shapes: of this rank's
    tables."""
    if config.storage != AUTO:
        return config.storage
    size, ranks = _feature_bytes(shapes), world.ranks_on_machine()
    # All look before any of them reads: that of each is an equal share.
    free: dict[Storage, int] = {PINNED: free_bytes() // ranks, DEVICE: world.room.free()}
    if world.device.type == "cpu":
        free[DEVICE] = free.pop(PINNED)  # which are one memory there
    fitting = [place for place in STORAGES if place in free and size <= MOST_OF_FREE * free[place]]
    place = world.reduce_array(np.array([STORAGES.index(fitting[0] if fitting else FILE)]), "max")[0]
    if STORAGES[place] == FILE and config.needs_memory:
        return max(free, key=STORAGES.index)
    return STORAGES[place]


def _make_tables(
    partition: GraphPartition, stored: Stored, config: FeatureConfig, dtype: torch.dtype, world: World,
    places: list[dict[str, torch.Tensor]],
) -> list[dict[str, Table]]:  # fmt: skip
    """Load the tables of this rank's nodes, by type and name, into ``places`` where they have one."""
    degree, tables = partition.in_degree(), []
    for kind, (features, place) in enumerate(zip(stored, places, strict=True)):
        nodes = partition.of_type(kind)
        of_type: dict[str, Table] = {}
        for name, column in (("identity", partition.flat_row[nodes]), ("degree", degree[nodes])):
            rows = torch.from_numpy(column)
            of_type[name] = place[name].copy_(rows) if place else rows
        if features is not None:
            options = (features, dtype, config.normalize, world.device)
            base = partition.book.type_base()[kind]
            _check_range(features, dtype, config, partition.types[kind], partition.flat_row[nodes] - base)
            if config.storage == PINNED and not place:
                of_type[FEATURE] = load_pinned(*options, hot_rows(partition, kind, world.rank, config.device_ratio))
            elif config.storage == FILE:
                of_type[FEATURE] = FileTable(*options)
            else:
                of_type[FEATURE] = load_table(*options, place.get(FEATURE))
        tables.append(of_type)
    return tables


def _check_range(
    column: StoredColumn, dtype: torch.dtype, config: FeatureConfig, node_type: str, row: np.ndarray
) -> None:
    """Check that all features have numbers in the dtype that rows are kept in, and in the one they travel in; row [n]:
    of the nodes in the graph file. Raises ValueError for one that would be infinite there."""
    wire = WIRES[config.wire]
    if column.encoding is not None:
        if wire is not None:
            raise ValueError(
                f"features.wire {config.wire}: column feat of {node_type} is stored as {column.encoding.name}, and "
                "travels so; leave features.wire empty"
            )
        return
    narrowest, key = (dtype, f"train.precision {dtype}") if wire is None else (wire, f"features.wire {config.wire}")
    if wire is None and column.dtype.itemsize <= dtype.itemsize:
        return
    for first, rows in column.slabs():
        is_lost = ~convert(rows, dtype, config.normalize).to(narrowest).isfinite().numpy() & np.isfinite(rows)
        if is_lost.any():
            at, entry = np.argwhere(is_lost)[0]
            wider = " use bfloat16," if wire == torch.float16 else ""
            raise ValueError(
                f"{key.replace('torch.', '')}: column feat of {node_type}, row {row[first + at]}, has "
                f"{rows[at, entry]}, which is infinite there ({torch.finfo(narrowest).max:g} is the most):{wider} "
                f"{'leave features.wire empty' if wire else 'use float64'}, or scale the column"
            )


def hot_rows(partition: GraphPartition, kind: int, rank: int, ratio: float) -> np.ndarray:
    """Choose the share ``ratio`` of the rank's nodes of a type that have most out-edges to its own nodes: positions [h]
    int64, increasing."""
    first, last = partition.book.of_type(kind).starts[rank : rank + 2]
    uses = np.zeros(last - first, np.int64)
    if ratio == 0:
        return np.flatnonzero(uses)
    for relation, edges in zip(partition.relations, partition.edges, strict=True):
        if relation.src_type == kind:
            own = edges.src[(edges.src >= first) & (edges.src < last)]
            uses += np.bincount(own - first, minlength=len(uses))
    return np.sort(np.argsort(-uses, kind="stable")[: int(ratio * len(uses))])
