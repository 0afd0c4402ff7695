"""A node's rows and how they are fetched: features, row ids and degrees, from their owners or from copies a rank keeps.

The remote rows that a rank needs most are counted over an epoch of plans, or were stored with the parts. n nodes of a
type at this rank, U wanted nodes, C copies.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.graph.columns import FileTable, GatheredTable, Table, gather, load, load_pinned
from hpcgnn.graph.partition import GraphPartition, Ranking
from hpcgnn.native.dispatch import upload
from hpcgnn.static.config import WIRES, FeatureConfig

FEATURE = "feature"  # the table of input rows
InputIds = Callable[[int], Sequence[np.ndarray]]  # collective: the global ids that a step needs, by node type


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


def presample(input_ids: InputIds, num_steps: int, partition: GraphPartition, world: World) -> tuple[Ranking, ...]:
    """Collective. Rank the remote nodes of each type by how often the steps of an epoch need them; probability: needs a
    step (Yang et al., GNNLab, EuroSys 2022, rank nodes so)."""
    pieces = [[np.empty(0, np.int64)] for _ in partition.types]
    for step in range(num_steps):
        world.working("presample", step)
        for kind, ids in enumerate(input_ids(step)):
            owner, _ = partition.book.of_type(kind).locate(ids)
            pieces[kind].append(ids[owner != partition.rank])
    rankings = []
    for pieces_of_type in pieces:
        unique, counts = np.unique(np.concatenate(pieces_of_type), return_counts=True)
        order = np.argsort(-counts, kind="stable")
        probability = (counts[order] / max(1, num_steps)).astype(np.float32)
        rankings.append(Ranking(unique[order], probability))
    return tuple(rankings)


class NodeTables:
    """The rows of nodes, by node type in ``rows``, without copies until ``keep_copies`` makes them anew. Collective to
    create. predicted_hits: share of the remote rows needed that the copies should answer."""

    def __init__(
        self, partition: GraphPartition, config: FeatureConfig, world: World, channel: Channel, dtype: torch.dtype
    ):
        self._partition, self._config, self._world, self._channel = partition, config, world, channel
        with together(world, "read the features"):
            self._tables = _make_tables(partition, config, dtype, world)
        self.predicted_hits = 0.0
        self.rows = self._make_rows([np.empty(0, np.int64)] * len(self._tables))

    def over(self, partition: GraphPartition) -> NodeTables:
        """Collective. Return these tables, without copies, with the degrees of another graph of the same nodes."""
        other, degree = copy.copy(self), partition.in_degree()
        other._partition = partition
        other._tables = [
            tables | {"degree": torch.from_numpy(degree[partition.of_type(kind)])}
            for kind, tables in enumerate(self._tables)
        ]
        other.rows = other._make_rows([np.empty(0, np.int64)] * len(self._tables))
        return other

    @property
    def wants_copies(self) -> bool:
        """Whether copies are configured and there are remote rows."""
        return self._config.cache_ratio > 0 and self._world.size > 1

    def _make_rows(self, hot: list[np.ndarray]) -> tuple[NodeRows, ...]:
        """Collective. Make the rows of each type, with copies of the ``hot`` global ids."""
        wire, book = WIRES[self._config.wire], self._partition.book
        return tuple(
            NodeRows(book.of_type(kind), tables, ids, self._channel, wire)
            for kind, (tables, ids) in enumerate(zip(self._tables, hot, strict=True))
        )

    def keep_copies(self, input_ids: InputIds, num_steps: int, without: Collection[int] = ()) -> None:
        """Collective. Copy the remote rows that this rank needs most, by the parts' ranking or by what the steps of an
        epoch need, of the types with features except those in ``without``. Raises DistributedError where the parts
        should have a ranking and have none."""
        config, partition = self._config, self._partition
        if config.cache == "stored":
            with together(self._world, "read the cache ranking"):
                rankings = partition.ranking
                if not any(len(ranking.id) for ranking in rankings):
                    raise ValueError(
                        "features.cache stored: the parts hold no ranking; partition again with --cache-ranking or "
                        "--method hotness, or use features.cache presample"
                    )
        else:
            rankings = presample(input_ids, num_steps, partition, self._world)
        counts = np.diff(partition.book.type_base())
        room = [int(config.cache_ratio * counts[kind]) * (FEATURE in tables and kind not in without)
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


def _make_tables(
    partition: GraphPartition, config: FeatureConfig, dtype: torch.dtype, world: World
) -> list[dict[str, Table]]:
    """Load the tables of this rank's nodes, by type and name."""
    degree, tables = partition.in_degree(), []
    for kind, features in enumerate(partition.features):
        nodes = partition.of_type(kind)
        of_type: dict[str, Table] = {
            "identity": torch.from_numpy(partition.flat_row[nodes]),
            "degree": torch.from_numpy(degree[nodes]),
        }
        if features is not None:
            options = (features, dtype, config.normalize, world.device)
            if config.storage == "pinned":
                of_type[FEATURE] = load_pinned(*options, hot_rows(partition, kind, world.rank, config.device_ratio))
            else:
                of_type[FEATURE] = (FileTable if config.storage == "file" else load)(*options)
        tables.append(of_type)
    return tables


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
