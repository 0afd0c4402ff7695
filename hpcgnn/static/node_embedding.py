"""Learnable node embeddings in a user's training loop: kept at the nodes' owners, trained by a sparse optimizer there.

n nodes of the type at this rank, D width, U looked up nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
import torch

from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.graph.embeddings import EmbeddingConfig, SparseEmbedding
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.sampling.seeds import type_directory

ROW = "row"


class NodeEmbedding:
    """Embeddings of all nodes of a type, as rows that a loop looks up and trains. Collective to create, to call and to
    step.

    A step updates only the rows that were looked up and have a gradient. The gradients of all ranks and lookups are
    added up, and their owners update each row once. "adam" corrects its bias by the number of updates of the row, where
    ``torch.optim.SparseAdam`` takes the number of all steps; its eps counts before the correction.
    "adagrad" is that of torch.
    """

    def __init__(
        self, graph: StaticGraph, node_type: str, width: int, *, lr: float = 0.01,
        optimizer: Literal["adam", "adagrad"] = "adam", weight_decay: float = 0.0, scale: float = 0.0, seed: int = 0,
    ):  # fmt: skip
        """width: D. weight_decay: added to the gradients, times the row. scale: rows start uniform in [-scale, scale],
        the same on any number of ranks; 0: sqrt(3 / D). Raises DistributedError."""
        partition, world = graph.partition, graph.world
        with together(world, "make node embeddings"):
            kind = partition.type_of(node_type)
            config = EmbeddingConfig([node_type], optimizer, lr, weight_decay, scale)
            if width < 1 or lr == 0:
                raise ValueError(f"width must be at least 1 and lr above 0, got {width} and {lr}")
        self.node_type, self._num_nodes, self._world = node_type, graph.num_nodes(kind), world
        self._rows, self._channel = graph.nodes(node_type), graph.channel
        self._ownership = partition.book.of_type(kind)
        self._directory = type_directory(partition, kind, world, graph.channel)
        flat_row = partition.flat_row[partition.of_type(kind)]
        self._table = SparseEmbedding(flat_row, width, config, lr, seed, graph.dtype, world.device)
        self._lookups: list[tuple[np.ndarray, torch.Tensor]] = []  # since the last step: global ids, and their rows

    @property
    def weight(self) -> torch.Tensor:
        """The rows [n, D] of this rank's nodes, in the order of ``graph.nodes(node_type)``."""
        return self._table.weight

    def __call__(self, n_id: torch.Tensor) -> torch.Tensor:
        """Collective. Look up the embeddings [U, D] of nodes, by their rows in the graph file [U], such as ``n_id`` of
        a batch. Their gradients belong to the next ``step``, unless gradients are off. Raises ValueError for a row that
        is no node."""
        nodes, place = np.unique(n_id.cpu().numpy(), return_inverse=True)
        if len(nodes) and not 0 <= nodes[0] <= nodes[-1] < self._num_nodes:
            raise ValueError(f"{self.node_type} has {self._num_nodes} nodes, none of row {nodes[0]} or {nodes[-1]}")
        ids = self._directory.lookup(nodes)
        (rows,) = self._route(ids).pull(self._table.weight)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            self._lookups.append((ids, rows))
        return rows[torch.from_numpy(place).to(rows.device)]

    @torch.no_grad()
    def step(self) -> None:
        """Collective. Update the rows that were looked up since the last step, after the backward pass."""
        none = self._table.weight[:0]
        used = [(ids, rows.grad) for ids, rows in self._lookups if rows.grad is not None]
        self._lookups.clear()
        ids, place = np.unique(np.concatenate([np.empty(0, np.int64), *(i for i, _ in used)]), return_inverse=True)
        gradient = torch.cat([none, *(of_rows for _, of_rows in used)])
        total = gradient.new_zeros(len(ids), gradient.shape[1])
        total.index_add_(0, torch.from_numpy(place).to(gradient.device), gradient)
        self._table.apply(self._route(ids), total)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of this rank's rows and of their optimizer's state, and ``row`` [n], the rows of the nodes in
        the graph file: what to save on every rank."""
        columns = {name: column.clone() for name, column in self._table.columns().items()}
        return {ROW: torch.from_numpy(self._rows.copy())} | columns

    def load_state_dict(self, states: Iterable[Mapping[str, torch.Tensor]]) -> None:
        """Collective. Take this rank's rows out of the states of all ranks that saved, whose number may be another one.
        states: may be loaded one by one. Raises DistributedError for other columns or widths, and where a node is
        missing."""
        columns, order = self._table.columns(), np.argsort(self._rows)
        is_set = np.zeros(len(self._rows), bool)
        with together(self._world, "load node embeddings"):
            for state in states:
                self._check(state)
                rows = state[ROW].cpu().numpy()
                is_own = np.isin(rows, self._rows)
                place = order[np.searchsorted(self._rows, rows[is_own], sorter=order)]
                for name, column in columns.items():
                    column[torch.from_numpy(place)] = state[name][torch.from_numpy(is_own)].to(column)
                is_set[place] = True
            if not is_set.all():
                missing = f"{self.node_type} {self._rows[~is_set][0]}"
                raise ValueError(f"the states lack {missing}: give the states of all ranks that saved")
        self._lookups.clear()

    def _check(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raises ValueError for a state of another embedding."""
        wanted = {ROW: ()} | {name: tuple(column.shape[1:]) for name, column in self._table.columns().items()}
        given = {name: tuple(column.shape[1:]) for name, column in state.items()}
        if given != wanted:
            raise ValueError(f"a state has columns of widths {given}, the embedding of {self.node_type} has {wanted}")

    def _route(self, ids: np.ndarray) -> Route:
        """Collective."""
        return Route.plan(self._ownership, ids, self._channel).to(self._world.device)
