"""What graph convolutions on blocks, on whole graphs and on snapshots share: factors of messages, loops, attention.

The mean has two versions. Snapshots multiply messages by factors that are kept from step to step (dividing the sums by
degrees takes 1.08 times as long on their sparse graphs); blocks divide (factors of a block's own take 1.26 times).
D destinations, S sources, E edges, H heads, W columns of all heads together.
"""

from __future__ import annotations

import torch

from hpcgnn import native
from hpcgnn.native import EdgeLists


def product(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Multiply rows [n, I] by a matrix [I, O], for many rows of few columns: neither they nor their gradients are
    copied."""
    return native.grouped_linear(rows, torch.tensor([0, len(rows)]), matrix.unsqueeze(0))


def with_loops(lists: EdgeLists) -> EdgeLists:
    """Add every destination as one more source of itself, after its others."""
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
    the edge's weight. loop [D]: factors of the loops that ``with_loops`` added; weight has none of these."""
    factors, last = target[lists.destination], lists.indptr[1:] - 1
    if source is not None:
        factors = factors * source[lists.source]
    if weight is not None and loop is not None:
        is_edge = torch.ones_like(factors, dtype=torch.bool).index_fill_(0, last, False)
        weight = torch.ones_like(factors).masked_scatter(is_edge, weight)
    if weight is not None:
        factors = factors * weight
    return (factors if loop is None else factors.index_copy(0, last, loop)).unsqueeze(1)


def attend(values: torch.Tensor, source: torch.Tensor, target: torch.Tensor, lists: EdgeLists) -> torch.Tensor:
    """Sum the sources' values [S, W] or, of k graphs in one, [S, k, W], weighed by attention: [D, W] or [D, k, W].

    The destinations are the first of the sources. source, target [H, W / H] make the scores of both ends of an edge
    from their values (see ``native.graph_attention``), all in one product.
    """
    vectors, heads = torch.stack([source, target], dim=2), torch.eye(len(source), dtype=values.dtype)
    columns = (vectors.unsqueeze(3) * heads.to(values.device)[:, None, None]).flatten(0, 1).flatten(1)
    scores = product(values.reshape(-1, values.shape[-1]), columns).view(*values.shape[:-1], 2, len(source))
    of_source, of_target = (scores.select(-2, end).flatten(1) for end in (0, 1))
    sums = native.graph_attention(values.flatten(1), of_source, of_target[: len(lists)], lists)
    return sums.view(len(lists), *values.shape[1:])
