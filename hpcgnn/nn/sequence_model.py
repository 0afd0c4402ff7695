"""What every model of snapshots offers the run.

n nodes of this rank, k sequences followed at once, I input and C output columns. *State* is what a model remembers from
snapshot to snapshot: rows of nodes [n, k, W], kept at their owners, and what all ranks share [k, ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from hpcgnn.nn.snapshot import Frame
from hpcgnn.nn.snapshot_config import SnapshotModelConfig

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class SequenceSizes:
    """Columns of the inputs and of the outputs; history: snapshots of a window, 0: state is carried on."""

    inputs: int
    outputs: int
    history: int = 0


class SequenceModel(nn.Module):
    """A model of one's own is made as Class(config, sizes) and has these attributes and methods.

    node_state: widths of the state of nodes by name; with_out: whether frames must have out-neighbours; weighs_edges:
    it does so itself, with no regard to a column weight.
    """

    node_state: dict[str, int] = {}  # noqa: RUF012 - models set their own
    with_out = False
    weighs_edges = False

    def __init__(self, config: SnapshotModelConfig, sizes: SequenceSizes):
        super().__init__()
        self.config, self.sizes = config, sizes

    def begin(self, inputs: torch.Tensor) -> State:
        """The state before the first snapshot, for inputs [n, k, I]."""
        nodes, sequences = inputs.shape[:2]
        state = {name: inputs.new_zeros(nodes, sequences, width) for name, width in self.node_state.items()}
        return state | {name: value.expand(sequences, *value.shape) for name, value in self.shared_state().items()}

    def asked(self, sequence: list) -> list:
        """What outputs are formed of, out of one thing a frame: the last of a window, else all."""
        return sequence[-1:] if self.sizes.history else sequence

    def shared_state(self) -> State:
        """State that is the same for all nodes, as a sequence begins [...]: learnt, or zeros."""
        return {}

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        """Collective. Snapshots that follow each other; returns the outputs [n, k, C] of all of them, or of the last
        ones, and the state after the last."""
        raise NotImplementedError
