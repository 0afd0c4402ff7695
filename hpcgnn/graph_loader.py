"""For a training loop of one's own on a static graph: mini-batches of sampled neighbours, without a run file.

``docs/library.md`` shows a whole loop. All of it is collective: every rank makes the same objects in the same order.
Nodes are named by their row in the graph file, within their type, whatever the partition. s seeds of this rank, U
nodes of a type in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn import pyg
from hpcgnn.graph.splits import SPLITS
from hpcgnn.nn.message_blocks import Batch
from hpcgnn.planned_loader import PlannedLoader, own_rows
from hpcgnn.sample.graph_plan import GraphPlan
from hpcgnn.sample.seeds import make_pool
from hpcgnn.static_graph import Nodes, StaticGraph
from hpcgnn.tasks.labels import has_label, labelled_type, node_labels

__all__ = ["NeighborBatch", "NeighborLoader", "StaticGraph"]


@dataclass(frozen=True, slots=True)
class NeighborBatch:
    """A mini-batch of this rank. batch: blocks and all else that the models of ``hpcgnn.nn`` take; x: by node type,
    input rows [U, F] of the innermost block's source nodes, None without features; n_id: by type, rows in the graph
    file [U] of these nodes; seeds [s], likewise: the first nodes of type ``seed_type``; y [s] labels, None without;
    input_id [s]: places of the seeds among the input nodes of all ranks in order of row; batch_size: seeds of all
    ranks in this step.
    """

    batch: Batch
    x: tuple[torch.Tensor | None, ...]
    n_id: tuple[torch.Tensor, ...]
    seed_type: int
    seeds: torch.Tensor
    y: torch.Tensor | None
    input_id: torch.Tensor
    batch_size: int


class NeighborLoader(PlannedLoader):
    """Collective to create and to iterate. Mini-batches of nodes with sampled neighbours; as PlannedLoader says."""

    def __init__(
        self, graph: StaticGraph, input_nodes: str | tuple[str, str | Nodes], fanouts: list[int], batch_size: int,
        **options: Any,
    ):  # fmt: skip
        """input_nodes: a split ("train", "val", "test") of the only type with labels, or (node type, split), or (node
        type, nodes of this rank): a mask over ``graph.nodes(type)``, or rows among these. The rest as in PlannedLoader.

        Raises DistributedError.
        """
        self._input = input_nodes
        super().__init__(graph, fanouts, batch_size, **options)

    def _read(self) -> str:
        self.seed_type, self._rows, split = _input_nodes(self._graph, self._input)
        self._columns = _seed_columns(self._graph, self.seed_type, self._rows, split)
        return split

    def _prepare(self) -> None:
        graph, name = self._graph, "train" if self.shuffle else "nodes"
        num_nodes = graph.partition.book.num_nodes
        pool = make_pool(name, self._rows, num_nodes, self._columns, graph.world, graph.channel)
        self._pool = replace(pool, columns=pool.columns | {"input_id": pool.place})
        self._roots = ((self.seed_type, "id"),)

    def _finish(self, plan: GraphPlan, x, n_id) -> Any:
        columns, seeds = plan.columns, n_id[self.seed_type][plan.roots[0]]
        batch = NeighborBatch(
            plan.batch, x, n_id, self.seed_type, seeds, columns.get("label"), columns["input_id"], plan.batch_size
        )
        return pyg.to_data(batch, self._graph) if self._as_data else batch


def _input_nodes(graph: StaticGraph, given) -> tuple[int, np.ndarray, str]:
    """The type of the input nodes, this rank's rows of it, and the split that they are; empty: none. Raises
    ValueError."""
    name, chosen = ("", given) if isinstance(given, str) else given
    if isinstance(chosen, str):
        if chosen not in SPLITS:
            raise ValueError(f"input_nodes: a split is one of {', '.join(SPLITS)}, got {chosen!r}")
        kind = labelled_type(graph.partition, name, "input_nodes")
        label, split = node_labels(graph.partition.columns[kind], graph.types[kind], 0)
        mask = (split == SPLITS.index(chosen)) & has_label(label)
        return kind, graph.nodes(graph.types[kind])[mask], chosen
    kind, known = graph.partition.type_of(name), f"graph.nodes({name!r}) lists its nodes"
    return kind, own_rows(graph.nodes(name), np.asarray(chosen), "input_nodes", name, known), ""


def _seed_columns(graph: StaticGraph, kind: int, rows: np.ndarray, split: str) -> dict[str, np.ndarray]:
    """Global ids of the rows, and labels where the type has them."""
    partition = graph.partition
    mine = graph.nodes(partition.types[kind])
    order = np.argsort(mine)
    place = order[np.searchsorted(mine, rows, sorter=order)]
    columns = {"id": partition.global_ids(kind)[place]}
    if "label" in partition.columns[kind]:
        label = partition.columns[kind]["label"][place]
        columns["label"] = label.astype(np.int64) if label.dtype.kind in "iub" else label
    return columns
