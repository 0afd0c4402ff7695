"""What steps fetch of nodes, by type: features, row ids, degrees; at their owners, with copies of hot remote rows."""

from __future__ import annotations

import copy
from collections.abc import Collection

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.sample.access import predicted_hit_rate, presample, stored_rankings
from hpcgnn.sample.graph_plan import GraphSampler
from hpcgnn.sample.seeds import SeedBatches
from hpcgnn.store.features import FEATURE, WIRES, FeatureConfig, NodeRows
from hpcgnn.store.graph_partition import GraphPartition
from hpcgnn.store.input_rows import FileTable, Table, load, load_pinned


class NodeTables:
    """Collective to create. rows: by node type, without copies until ``keep_copies`` makes them anew; predicted_hits:
    share of the remote rows that the copies should answer."""

    def __init__(
        self, partition: GraphPartition, config: FeatureConfig, world: World, channel: Channel, dtype: torch.dtype
    ):
        self._partition, self._config, self._world, self._channel = partition, config, world, channel
        with together(world, "read the features"):
            self._tables = _make_tables(partition, config, dtype, world)
        self.predicted_hits = 0.0
        self.rows = self._make_rows([np.empty(0, np.int64)] * len(self._tables))

    def over(self, partition: GraphPartition) -> NodeTables:
        """Collective. The same tables, without copies, with the degrees of another graph of the same nodes."""
        other, degree = copy.copy(self), partition.in_degree()
        other._partition = partition
        other._tables = [
            found | {"degree": torch.from_numpy(degree[partition.of_type(kind)])}
            for kind, found in enumerate(self._tables)
        ]
        other.rows = other._make_rows([np.empty(0, np.int64)] * len(self._tables))
        return other

    @property
    def wants_copies(self) -> bool:
        """Whether copies are configured and there is anything remote."""
        return self._config.cache_ratio > 0 and self._world.size > 1

    def _make_rows(self, hot: list[np.ndarray]) -> tuple[NodeRows, ...]:
        """Collective. The tables, with copies of the ``hot`` global ids of each type."""
        wire, book = WIRES[self._config.wire], self._partition.book
        return tuple(
            NodeRows(book.of_type(kind), found, ids, self._channel, wire)
            for kind, (found, ids) in enumerate(zip(self._tables, hot, strict=True))
        )

    def keep_copies(self, sampler: GraphSampler, batches: SeedBatches, without: Collection[int] = ()) -> None:
        """Collective. Copies of the remote rows that this rank wants most, of the types with features but ``without``
        some; which those are, the plans of ``batches`` tell or the parts."""
        config, partition = self._config, self._partition
        if config.cache == "stored":
            with together(self._world, "read the cache ranking"):
                rankings = stored_rankings(partition)
        else:
            rankings = presample(sampler, batches, partition)
        counts = np.diff(partition.book.type_base())
        room = [int(config.cache_ratio * counts[kind]) * (FEATURE in found and kind not in without)
                for kind, found in enumerate(self._tables)]  # fmt: skip
        self.predicted_hits = predicted_hit_rate(rankings, room, self._world)
        self.rows = self._make_rows([ranking.id[:count] for ranking, count in zip(rankings, room, strict=True)])

    def num_copies(self) -> int:
        """Collective. Copied rows on all ranks together."""
        return int(self._world.total(sum(rows.num_copies for rows in self.rows)))

    def held_bytes(self) -> int:
        """Bytes of rows and copies in this rank's memory."""
        return sum(rows.held_bytes() for rows in self.rows)

    def hit_rate(self) -> float:
        """Collective. Share of the remote rows wanted so far that were found among the copies."""
        wanted, hits = (
            self._world.total(sum(getattr(rows, name) for rows in self.rows)) for name in ("wanted", "hits")
        )
        return hits / max(1, wanted)


def _make_tables(
    partition: GraphPartition, config: FeatureConfig, dtype: torch.dtype, world: World
) -> list[dict[str, Table]]:
    degree, tables = partition.in_degree(), list[dict[str, Table]]()
    for kind, features in enumerate(partition.features):
        mine = partition.of_type(kind)
        found: dict[str, Table] = {
            "identity": torch.from_numpy(partition.flat_row[mine]),
            "degree": torch.from_numpy(degree[mine]),
        }
        if features is not None:
            told = (features, dtype, config.normalize, world.device)
            if config.storage == "pinned":
                found[FEATURE] = load_pinned(*told, hot_rows(partition, kind, world.rank, config.device_ratio))
            else:
                found[FEATURE] = (FileTable if config.storage == "file" else load)(*told)
        tables.append(found)
    return tables


def hot_rows(partition: GraphPartition, kind: int, rank: int, ratio: float) -> np.ndarray:
    """Positions [h] int64 of the rank's nodes of a type with most out-edges to its own nodes, a share of them."""
    first, last = partition.book.of_type(kind).starts[rank : rank + 2]
    uses = np.zeros(last - first, np.int64)
    if ratio == 0:
        return np.flatnonzero(uses)
    for relation, edges in zip(partition.relations, partition.edges, strict=True):
        if relation.src_type == kind:
            own = edges.src[(edges.src >= first) & (edges.src < last)]
            uses += np.bincount(own - first, minlength=len(uses))
    return np.sort(np.argsort(-uses, kind="stable")[: int(ratio * len(uses))])
