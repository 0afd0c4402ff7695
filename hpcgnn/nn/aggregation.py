"""Functions that graph convolutions on blocks, on whole graphs and on snapshots share: initial weights, factors of
messages, loops, attention.

The mean has two versions. Snapshots multiply messages by factors that are kept from step to step: dividing the sums by
degrees takes 1.08 times as long on their sparse graphs. Blocks divide: factors made for each block take 1.26 times as
long. D destinations, S sources, E edges, H heads, W columns of all heads together.
"""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn import native
from hpcgnn.native import EdgeLists


def glorot(*shape: int) -> nn.Parameter:
    """Make a parameter [..., I, O], uniform with the variance of Glorot and Bengio (2010) for each of its matrices."""
    bound = (6 / (shape[-2] + shape[-1])) ** 0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def product(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Multiply rows [n, I] by a matrix [I, O], for many rows of few columns: neither they nor their gradients are
    copied."""
    return native.grouped_linear(rows, torch.tensor([0, len(rows)]), matrix.unsqueeze(0))


def with_loops(lists: EdgeLists) -> EdgeLists:
    """Add to every destination a self-loop, after its other edges."""
    everyone = torch.arange(len(lists), device=lists.indptr.device)
    source = lists.source.new_empty(len(lists.source) + len(lists))
    source[lists.indptr[1:] + everyone] = everyone
    source[torch.arange(len(lists.source), device=everyone.device) + lists.destination] = lists.source
    return EdgeLists(torch.cat([lists.indptr[:1], lists.indptr[1:] + everyone + 1]), source, lists.num_sources)


def edge_factors(
    lists: EdgeLists, target: torch.Tensor, source: torch.Tensor | None = None, weight: torch.Tensor | None = None,
    loop: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the factor of every message [E, 1]: target [D] of its destination, times source [S] of its source, times
    the edge's weight. loop [D]: factors of the loops that ``with_loops`` added; weight has no entries for the loops."""
    factors, last = target[lists.destination], lists.indptr[1:] - 1
    if source is not None:
        factors = factors * source[lists.source]
    if weight is not None and loop is not None:
        is_edge = torch.ones_like(factors, dtype=torch.bool).index_fill_(0, last, False)
        weight = torch.ones_like(factors).masked_scatter(is_edge, weight)
    if weight is not None:
        factors = factors * weight
    return (factors if loop is None else factors.index_copy(0, last, loop)).unsqueeze(1)


def score_columns(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the matrix [W, 2 H] by which values become scores: of each head at the source of an edge, then at its
    target; source, target [H, W / H]."""
    vectors = torch.stack([source, target], dim=2)
    # Made where the vectors lie: the capture of a CUDA graph allows no copy to the device.
    heads = torch.eye(len(source), dtype=source.dtype, device=source.device)
    return (vectors.unsqueeze(3) * heads[:, None, None]).flatten(0, 1).flatten(1)


def attend(
    values: torch.Tensor, scores: torch.Tensor, lists: EdgeLists, edge_score: torch.Tensor | None = None
) -> torch.Tensor:
    """Sum the sources' values [S, W] or, of k graphs in one, [S, k, W], weighed by attention
    (``native.graph_attention``): [D, W] or [D, k, W]. The destinations are the first of the sources. scores [S, 2 H] or
    [S, k, 2 H]: see ``score_columns``; edge_score [E, H]: added to the scores of both ends."""
    source, target = (half.flatten(1) for half in scores.chunk(2, dim=-1))
    sums = native.graph_attention(values.flatten(1), source, target[: len(lists)], lists, edge_score=edge_score)
    return sums.view(len(lists), *values.shape[1:])
