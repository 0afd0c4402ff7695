"""Holds the rows of nodes that steps fetch: features, row ids, degrees, at their owners, with copies of remote rows.

The remote rows that a rank needs most are counted over an epoch of plans, or were stored with the parts.
"""

from __future__ import annotations

import copy
from collections.abc import Collection

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.columns import FileTable, Table, load, load_pinned
from hpcgnn.graph.partition import GraphPartition, Ranking
from hpcgnn.static.config import WIRES, FeatureConfig
from hpcgnn.static.plan import GraphSampler
from hpcgnn.static.rows import FEATURE, NodeRows
from hpcgnn.static.seeds import SeedBatches


def presample(sampler: GraphSampler, batches: SeedBatches, partition: GraphPartition) -> tuple[Ranking, ...]:
    """Collective. Rank the remote nodes of each type by how often the steps of the first epoch need them; probability:
    needs a step (Yang et al., GNNLab, EuroSys 2022, rank nodes so)."""
    pieces = [[np.empty(0, np.int64)] for _ in partition.types]
    for step in range(batches.num_steps):
        for kind, ids in enumerate(sampler.input_ids(batches, 0, step)):
            owner, _ = partition.book.of_type(kind).locate(ids)
            pieces[kind].append(ids[owner != partition.rank])
    rankings = []
    for pieces_of_type in pieces:
        unique, counts = np.unique(np.concatenate(pieces_of_type), return_counts=True)
        order = np.argsort(-counts, kind="stable")
        probability = (counts[order] / max(1, batches.num_steps)).astype(np.float32)
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

    def keep_copies(self, sampler: GraphSampler, batches: SeedBatches, without: Collection[int] = ()) -> None:
        """Collective. Copy the remote rows that this rank needs most, by the parts' ranking or by the plans of
        ``batches``, of the types with features except those in ``without``. Raises DistributedError where the parts
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
            rankings = presample(sampler, batches, partition)
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
