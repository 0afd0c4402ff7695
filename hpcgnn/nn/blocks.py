"""What a sampler hands to a model: tensors only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn.native import AttentionPlan


@dataclass(slots=True)
class Level:
    """One layer: N queries over the rows of the level below (the unique nodes, for the lowest level).

    root [N] int64 the query's own row below, root_transpose (indptr, order) its transpose; attention: the neighbours'
    rows below; edge [., F] features of the events that attention.edge_of points at.
    """

    root: torch.Tensor
    root_transpose: tuple[torch.Tensor, torch.Tensor]
    attention: AttentionPlan
    edge: torch.Tensor


@dataclass(slots=True)
class Query:
    """What is to be embedded: N roots = R roles x b events, role by role (source, destination, negatives).

    root [N] int64 rows of the unique nodes with their transpose, time [N] int64, identity [N] int64 keys of the roots'
    random numbers; levels from the lowest to the roots'; windows: the top level has N x windows queries, window by
    window, the newest first.
    """

    root: torch.Tensor
    root_transpose: tuple[torch.Tensor, torch.Tensor]
    time: torch.Tensor
    identity: torch.Tensor
    levels: tuple[Level, ...]
    windows: int = 1
