"""The run file's ``data`` section of static graphs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class GraphDataConfig:
    """The graph.

    Attributes:
        path: folder of a partition set; empty: a built-in synthetic graph.
        check_hash: compare every part with its hash in the book before use.
        stage_to: a folder on a disk of the node that a rank copies its parts to first; empty: none.
        synthetic_nodes: size of the built-in graph.
    """

    path: str = ""
    check_hash: bool = True
    stage_to: str = ""
    synthetic_nodes: int = 5_000

    def __post_init__(self):
        if self.synthetic_nodes < 100:
            raise ValueError(f"data.synthetic_nodes must be at least 100, got {self.synthetic_nodes}")
