"""Defines the mini-batches that loaders of static graphs yield.

s seeds of this rank, k negatives a seed, U nodes of a type in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hpcgnn.static.model.blocks import Batch


@dataclass(frozen=True, slots=True)
class NeighborBatch:
    """A mini-batch of nodes at this rank.

    batch: blocks and all other inputs of the models of ``hpcgnn.static.model``. x: by node type, input rows [U, F] of
    the innermost block's source nodes, None without features; n_id: by type, rows in the graph file [U] of these nodes.
    seeds [s]: rows in the graph file of the seeds, the first nodes of type ``seed_type``; y [s]: labels, None without.
    input_id [s]: places of the seeds in the given input. For a mask of all nodes the places are the rows. For lists
    they count over the concatenated lists of all ranks, for a split over its nodes in order of row. batch_size: number
    of seeds of all ranks in this step. columns: by type, the ``node_columns`` [U, ...] of the nodes, by name.
    seed_number: in disjoint batches, by type, the place of each node's seed among the seeds [U]; else empty. With
    ``time_column`` or ``disjoint``, a node is there once for every time, or seed, that needs it.
    """

    batch: Batch
    x: tuple[torch.Tensor | None, ...]
    n_id: tuple[torch.Tensor, ...]
    seed_type: int
    seeds: torch.Tensor
    y: torch.Tensor | None
    input_id: torch.Tensor
    batch_size: int
    columns: tuple[dict[str, torch.Tensor], ...] = ()
    seed_number: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerBatch:
    """A part of the nodes, of which a layer computes the rows in ``hpcgnn.exact_outputs``.

    batch: one block, with all neighbors of the nodes, and all other inputs of a layer. x: by node type, rows [U, W] of
    the block's source nodes from the layer before, or None; n_id: by type, rows in the graph file [U] of these nodes.
    columns, seed_number: by type, none.
    """

    batch: Batch
    x: tuple[torch.Tensor | None, ...]
    n_id: tuple[torch.Tensor, ...]
    columns: tuple[dict[str, torch.Tensor], ...]
    seed_number: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkBatch:
    """A mini-batch of edges at this rank.

    batch, x, n_id: the same as in a NeighborBatch. src, dst [s]: places of the seeds' ends among the nodes of their
    types; negative_src, negative_dst [s, k]: places of the negatives, or None. row [s]: of the seeds in the graph file;
    input_id [s]: their places among the input edges, as in a NeighborBatch; rel [s]: their column of that name, or
    None. relation: number of their relation; batch_size: number of seeds of all ranks in this step. columns: by type,
    the ``node_columns`` [U, ...] of the nodes, by name; label [s]: the given labels of the seeds, or None. seed_number:
    in disjoint batches, by type, the number of each node's pair in ``edge_label_index`` [U]; a drawn destination
    without a drawn source has the number of its seed.
    """

    batch: Batch
    x: tuple[torch.Tensor | None, ...]
    n_id: tuple[torch.Tensor, ...]
    src: torch.Tensor
    dst: torch.Tensor
    negative_src: torch.Tensor | None
    negative_dst: torch.Tensor | Any
    row: torch.Tensor
    input_id: torch.Tensor
    rel: torch.Tensor | None
    relation: int
    batch_size: int
    columns: tuple[dict[str, torch.Tensor], ...] = ()
    label: torch.Tensor | None = None
    seed_number: tuple[torch.Tensor, ...] = ()

    @property
    def edge_label_index(self) -> torch.Tensor:
        """The seeds, then their binary negatives, as places [2, s + s k] of sources and destinations."""
        src, dst = self.src, self.dst
        if self.negative_src is not None:
            src, dst = torch.cat([src, self.negative_src.ravel()]), torch.cat([dst, self.negative_dst.ravel()])
        return torch.stack([src, dst])

    @property
    def edge_label(self) -> torch.Tensor:
        """The given labels of the seeds [s]; without any, 1 for seeds and 0 for negatives [s + s k], float32."""
        if self.label is not None:
            return self.label
        label = torch.zeros(self.edge_label_index.shape[1], device=self.src.device)
        label[: len(self.src)] = 1
        return label
