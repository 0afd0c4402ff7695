"""What graph convolutions of all kinds do with lists of edges: factors of the messages, and loops.

D destinations, S sources, E edges.
"""

from __future__ import annotations

import torch

from hpcgnn.native import EdgeLists


def edge_factors(
    lists: EdgeLists, target: torch.Tensor, source: torch.Tensor | None = None, weight: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the factor of every message [E, 1]: target [D] of its destination, times source [S] of its source, times
    the edge's weight [E]."""
    factors = target[lists.destination]
    for further in (None if source is None else source[lists.source], weight):
        factors = factors if further is None else factors * further
    return factors.unsqueeze(1)


def with_loops(lists: EdgeLists) -> EdgeLists:
    """Add every destination as one more source of itself, after its others."""
    everyone = torch.arange(len(lists), device=lists.indptr.device)
    source = lists.source.new_empty(len(lists.source) + len(lists))
    source[lists.indptr[1:] + everyone] = everyone
    source[torch.arange(len(lists.source), device=everyone.device) + lists.destination] = lists.source
    return EdgeLists(torch.cat([lists.indptr[:1], lists.indptr[1:] + everyone + 1]), source, lists.num_sources)
