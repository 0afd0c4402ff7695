"""Rows of nodes that a run keeps at their owners and saves in its checkpoints: node memory, learnable embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.graph.book import Book


@dataclass(slots=True)
class SavedRows:
    """Some of the nodes that a rank owns: rows [r] (their place among them) and what is known of them, by name."""

    rows: torch.Tensor
    columns: dict[str, torch.Tensor]


class RowOwner(Protocol):
    """A rank's share of a graph."""

    @property
    def graph(self) -> str:
        """Hash of the graph file."""

    @property
    def book(self) -> Book:
        """Which ranks have which nodes."""

    @property
    def num_nodes(self) -> int:
        """Local nodes."""

    @property
    def flat_row(self) -> np.ndarray:
        """Flat row ids [n] int64 of the local nodes."""


class NodeRowStore(Protocol):
    """What the run loop asks of such rows."""

    def reset(self) -> None:
        """Start as new, where an epoch does so."""

    def settle(self) -> None:
        """Let all writes be seen."""

    def saved(self) -> list[SavedRows]:
        """A copy of what this rank owns, and of every write that waits, oldest first."""

    def between_epochs(self) -> list[SavedRows]:
        """What an epoch leaves to the next, to be saved."""

    def prototype(self) -> dict[str, torch.Tensor]:
        """The columns of no row."""

    def put(self, saved: SavedRows) -> None:
        """Set some of the rows that this rank owns."""

    def share(self, channel: Channel) -> None:
        """Collective. Bring the owners' rows to the ranks that keep copies."""

    def put_write(self, pieces: list[SavedRows], channel: Channel) -> None:
        """Collective. Let a saved write, in pieces, wait behind those that wait already."""
