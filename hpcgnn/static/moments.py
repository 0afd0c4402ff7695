"""Computes the moments of input features, by which models standardize them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from hpcgnn.graph.columns import gather
from hpcgnn.static.features import FEATURE
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.sampling.seeds import TRAIN

SLAB = 1 << 16  # rows at a time


def moments(graph: StaticGraph, kind: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Collective. Compute the mean and the standard deviation of each feature [F] float64 over the training nodes of a
    type, or over all of its nodes if the type has no split; None without features."""
    if graph.widths[kind] == 0:
        return None
    partition, table = graph.partition, graph.rows[kind].tables[FEATURE]
    split, nodes = partition.columns[kind].get("split"), partition.of_type(kind)
    chosen = np.arange(nodes.stop - nodes.start) if split is None else np.flatnonzero(split == TRAIN)
    count = graph.world.total(len(chosen))
    if count == 0:  # a split of other nodes, as where a graph has none to train on
        chosen = np.arange(nodes.stop - nodes.start)
        count = max(1, graph.world.total(len(chosen)))

    def mean_of(values: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(graph.widths[kind], dtype=torch.float64)
        for first in range(0, len(chosen), SLAB):
            rows = gather(table, torch.from_numpy(chosen[first : first + SLAB]).to(table.device))
            total += values(rows.double().cpu()).sum(0)
        return torch.from_numpy(graph.world.reduce_array(total.numpy())) / count

    mean = mean_of(lambda rows: rows)
    return mean, mean_of(lambda rows: (rows - mean).square()).sqrt()
