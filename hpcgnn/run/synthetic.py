"""The built-in graph of a run without data."""

from __future__ import annotations

from pathlib import Path

from data_tools.partition import partition
from data_tools.synthesize import synthesize_events

PARTS = 64


def make_synthetic(parts: Path, num_events: int) -> None:
    """Bipartite events with repeats and drift, written beside ``parts`` and partitioned into it."""
    graph = parts.parent / "synthetic.h5"
    synthesize_events(graph, num_events, max(10, num_events // 20), max(10, num_events // 100), seed=1)
    partition(graph, parts, PARTS, method="metis")
