"""The built-in graph of a run without data."""

from __future__ import annotations

from pathlib import Path

from data_tools.partition import partition
from data_tools.synthesize import synthesize_events

PARTS = 64


def make_synthetic(parts: Path, num_events: int) -> None:
    """Bipartite events with repeats, drift and labels, written beside ``parts`` and partitioned into it."""
    graph = parts.parent / "synthetic.h5"
    num_users, num_items = max(10, num_events // 20), max(10, num_events // 100)
    synthesize_events(graph, num_events, num_users, num_items, seed=1, labels=True)
    partition(graph, parts, PARTS, method="metis")
