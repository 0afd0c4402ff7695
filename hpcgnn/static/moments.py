"""Computes the moments of input features, by which models standardize them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from hpcgnn.graph.columns import gather
from hpcgnn.static.features import FEATURE
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.sampling.seeds import TRAIN
from hpcgnn.task.moments import moments as of_rows

SLAB = 1 << 16  # rows at a time


def moments(graph: StaticGraph, kind: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Collective. Compute the mean and the standard deviation of each feature [F] float64 over the training nodes of a
    type, or over all of its nodes if the type has no split; None without features."""
    if graph.widths[kind] == 0:
        return None
    partition, table = graph.partition, graph.rows[kind].tables[FEATURE]
    split, nodes = partition.columns[kind].get("split"), partition.of_type(kind)
    chosen = np.arange(nodes.stop - nodes.start) if split is None else np.flatnonzero(split == TRAIN)
    if graph.world.total(len(chosen)) == 0:  # a split of other nodes, as where a graph has none to train on
        chosen = np.arange(nodes.stop - nodes.start)

    def rows() -> Iterator[np.ndarray]:
        for first in range(0, len(chosen), SLAB):
            yield gather(table, torch.from_numpy(chosen[first : first + SLAB]).to(table.device)).double().cpu().numpy()

    return of_rows(rows, graph.widths[kind], graph.world)
