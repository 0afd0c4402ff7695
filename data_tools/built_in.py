"""Makes the data of runs that have none: built-in graphs, synthesized and partitioned in one go, or slices of large
graphs."""

from __future__ import annotations

import os
from pathlib import Path

from data_tools.derive import DeriveOptions, derive
from data_tools.partition.command import partition
from data_tools.synthesize import synthesize_events
from data_tools.synthetic.links import synthesize_links
from data_tools.synthetic.slice import write_snapshot_slice, write_static_slice, write_temporal_slice
from data_tools.synthetic.snapshots import synthesize_snapshots
from data_tools.synthetic.static import synthesize_static

__all__ = [
    "make_synthetic", "make_synthetic_graph", "make_synthetic_snapshots", "write_snapshot_slice", "write_static_slice",
    "write_temporal_slice",
]  # fmt: skip
PARTS = 64


def make_synthetic(parts: Path, num_events: int) -> None:
    """Make bipartite events with repeats, drift and labels, written beside ``parts`` and partitioned into it."""
    graph = parts.parent / "synthetic.h5"
    num_users, num_items = max(10, num_events // 20), max(10, num_events // 100)
    synthesize_events(graph, num_events, num_users, num_items, seed=1, labels=True)
    partition(graph, parts, PARTS, method="metis")


def make_synthetic_snapshots(parts: Path, num_nodes: int, num_snapshots: int) -> None:
    """Make links that come and go and a number of every node, written beside ``parts`` and partitioned into it."""
    graph = parts.parent / "synthetic.h5"
    synthesize_snapshots(graph, num_nodes, num_snapshots, seed=1)
    partition(graph, parts, min(PARTS, num_nodes // 4), method="metis")


def make_synthetic_graph(parts: str | os.PathLike, num_nodes: int, links: bool = False) -> None:
    """Make a graph with a power law of degrees, features and labels, written beside ``parts`` and partitioned into it.
    For ``links``, it is a graph of users and items, which joins items that have users in common."""
    parts = Path(parts)
    graph = parts.parent / "synthetic.h5"
    if links:
        bare = parts.parent / "synthetic-links.h5"
        synthesize_links(bare, num_nodes // 2, num_nodes // 2, 20 * num_nodes, seed=1)
        derive(bare, graph, DeriveOptions("user.likes.item"))
        partition(graph, parts, PARTS, method="metis")
        return
    synthesize_static(graph, num_nodes, 20 * num_nodes, seed=1, width=16, num_classes=5)
    partition(graph, parts, PARTS, method="metis")
