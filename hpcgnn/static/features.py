"""What steps fetch of nodes, by type: features, row ids, degrees; at their owners, with copies of hot remote rows.

Which remote rows a rank is going to want most is counted over an epoch of plans, or was stored with the parts.
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
    """Collective. By node type the remote nodes that the steps of the first epoch want, the most wanted first;
    probability: wants a step (Yang et al., GNNLab, EuroSys 2022, rank nodes so)."""
    found: list[list[np.ndarray]] = [[] for _ in partition.types]
    for step in range(batches.num_steps):
        for kind, ids in enumerate(sampler.wanted(batches, 0, step)):
            owner, _ = partition.book.of_type(kind).locate(ids)
            found[kind].append(ids[owner != partition.rank])
    return tuple(_ranked(np.concatenate(pieces) if pieces else np.empty(0, np.int64), batches) for pieces in found)


def _ranked(ids: np.ndarray, batches: SeedBatches) -> Ranking:
    unique, counts = np.unique(ids, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return Ranking(unique[order], (counts[order] / max(1, batches.num_steps)).astype(np.float32))


def stored_rankings(partition: GraphPartition) -> tuple[Ranking, ...]:
    """What the parts expect. Raises ValueError where they were stored without."""
    if not any(len(ranking.id) for ranking in partition.ranking):
        raise ValueError(
            "features.cache stored: the parts hold no ranking; partition again with --cache-ranking or --method "
            "hotness, or use features.cache presample"
        )
    return partition.ranking


def predicted_hit_rate(rankings: tuple[Ranking, ...], room: list[int], world: World) -> float:
    """Collective. Share of the ranked wants that the first ``room`` nodes of every type answer, over all ranks."""
    answered = sum(float(r.probability[:count].sum()) for r, count in zip(rankings, room, strict=True))
    wanted = sum(float(r.probability.sum()) for r, count in zip(rankings, room, strict=True) if count)
    return world.total(answered) / max(world.total(wanted), 1e-30)


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
        """Collective. These tables, without copies, with the degrees of another graph of the same nodes."""
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
