"""What a run on snapshots keeps of nodes and saves in its checkpoints: learnable inputs, and what the model remembers.

n nodes of this rank, W columns.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.store.embeddings import SparseEmbedding
from hpcgnn.store.saved_rows import SavedRows


class SequenceRows:
    """A ``NodeRowStore``. state: rows of nodes [n, W] by name; shared: further state, equal on all ranks; both begin
    anew with every epoch. learnt: rows that the optimizer moves, or None."""

    def __init__(self, num_nodes: int, widths: dict[str, int], learnt: SparseEmbedding | None, like: torch.Tensor):
        self.learnt, self._like = learnt, like
        self._num_nodes, self._widths = num_nodes, widths
        self.saved_shared: dict[str, torch.Tensor] = {}
        self.reset()

    def reset(self) -> None:
        """Nothing is remembered."""
        self.state = {name: self._like.new_zeros(self._num_nodes, width) for name, width in self._widths.items()}
        self.shared: dict[str, torch.Tensor] = {}  # empty: as the model begins
        self.fresh = True

    def remember(self, state: Mapping[str, torch.Tensor]) -> None:
        """The state after a step: [n, 1, W] of nodes, [1, ...] of all."""
        self.fresh = False
        for name, value in state.items():
            found = value.detach().squeeze(1 if name in self._widths else 0)
            (self.state if name in self._widths else self.shared)[name] = found

    def zero(self) -> torch.Tensor:
        """The number 0, of the type and device of the rows."""
        return self._like.new_zeros(())

    def settle(self) -> None:
        """Nothing waits."""

    def saved(self) -> list[SavedRows]:
        """All rows of this rank; ``saved_shared`` is what all ranks share at this moment."""
        self.saved_shared = {name: value.clone() for name, value in self.shared.items()}
        columns = self._columns()
        if not columns:
            return []
        return [SavedRows(torch.arange(self._num_nodes), {name: value.clone() for name, value in columns.items()})]

    def between_epochs(self) -> list[SavedRows]:
        """Learnable rows; the state begins anew."""
        saved = self.saved()
        self.saved_shared = {}
        for piece in saved:
            piece.columns.update({f"state.{name}": torch.zeros_like(value) for name, value in self.state.items()})
        return saved

    def prototype(self) -> dict[str, torch.Tensor]:
        """The columns of no row."""
        return {name: column[:0] for name, column in self._columns().items()}

    def put(self, saved: SavedRows) -> None:
        """Set some of this rank's rows."""
        for name, column in self._columns().items():
            column[saved.rows.to(column.device)] = saved.columns[name]
        self.fresh = False

    def put_shared(self, shared: dict[str, torch.Tensor]) -> None:
        """What ``saved_shared`` was."""
        self.shared = {name: value.to(self._like.device, self._like.dtype) for name, value in shared.items()}
        self.fresh = self.fresh and not shared

    def share(self, channel: Channel) -> None:
        """No rank keeps copies."""

    def put_write(self, pieces: list[SavedRows], channel: Channel) -> None:
        """Never called: nothing waits, so nothing that waits is saved."""
        raise ValueError("the checkpoint holds writes that wait, which a run on snapshots has none of")

    def _columns(self) -> dict[str, torch.Tensor]:
        learnt = {} if self.learnt is None else self.learnt.columns()
        return {**learnt, **{f"state.{name}": value for name, value in self.state.items()}}
