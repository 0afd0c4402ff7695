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
    """Some of a rank's own nodes: rows [r], their places among all own nodes, and their columns [r, ...] by name."""

    rows: torch.Tensor
    columns: dict[str, torch.Tensor]


class RowOwner(Protocol):
    """A rank's share of a graph."""

    @property
    def graph_hash(self) -> str:
        """Hash of the graph file, the same for all its partition sets."""

    @property
    def book(self) -> Book:
        """Which rank owns which node."""

    @property
    def num_nodes(self) -> int:
        """Number of local nodes."""

    @property
    def flat_row(self) -> np.ndarray:
        """Flat row ids [n] int64 of the local nodes."""


class NodeRowStore(Protocol):
    """Rows of nodes that the run loop saves and restores. The methods with a body here are for a store without waiting
    writes and without copies at other ranks."""

    @property
    def num_learned(self) -> int | None:
        """Number of this rank's rows that are learned, so that each belongs to its node; None, on all ranks, where no
        node has any."""
        return None

    def reset(self) -> None:
        """Start anew, where an epoch does not continue the one before."""
        return

    def set_rate(self, factor: float) -> None:
        """Learn the rows that are learned with this share of their learning rate from now on."""
        return

    def settle(self) -> None:
        """Finish all writes that wait."""
        return

    def saved(self) -> list[SavedRows]:
        """Copy this rank's own rows, and every write that waits, oldest first."""

    def between_epochs(self) -> list[SavedRows]:
        """Copy the rows that an epoch leaves to the next one, to be saved; by default all."""
        return self.saved()

    def prototype(self) -> dict[str, torch.Tensor]:
        """Return the columns with no row in them."""

    def put(self, saved: SavedRows) -> None:
        """Set some of this rank's own rows."""

    def share(self, channel: Channel) -> None:
        """Collective. Send the owners' rows to the ranks that keep copies."""
        return

    def put_write(self, pieces: list[SavedRows], channel: Channel) -> None:
        """Collective. Add a saved write, in pieces, behind the writes that already wait."""
