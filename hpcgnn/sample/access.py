"""Which remote nodes' rows a rank is going to want most: counted over an epoch of plans, or stored with the parts."""

from __future__ import annotations

import numpy as np

from hpcgnn.comm.world import World
from hpcgnn.sample.graph_plan import GraphSampler
from hpcgnn.sample.seeds import SeedBatches
from hpcgnn.store.graph_partition import GraphPartition, Ranking


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
