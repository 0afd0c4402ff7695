"""A custom model of snapshot graphs: a GRU of every node over its inputs and those of its neighbors.

Train it by:

    PYTHONPATH=examples mpirun -np 2 hpcgnn train --kind snapshots --model.class_path own_snapshot_model.NeighborGRU
"""

import torch
from torch import nn

from hpcgnn import SequenceModel, smooth_all


class NeighborGRU(SequenceModel):
    """A GRU per node over the node's inputs and the mean of its neighbors' inputs."""

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.node_state = {"hidden": config.hidden}  # rows that a node keeps from snapshot to snapshot
        self.cell = nn.GRUCell(2 * sizes.inputs, config.hidden)
        self.output = nn.Linear(config.hidden, sizes.outputs)

    def forward(self, frames, state):
        """A frame is a snapshot, or k of them in k windows; frame.inputs [n, k, I] of this rank's n nodes."""
        hidden, every = state["hidden"], []  # [n, k, H]
        for frame, mean in zip(frames, smooth_all(frames, "mean"), strict=True):  # a halo exchange brings remote rows
            inputs = torch.cat([frame.inputs, mean], dim=-1)
            hidden = self.cell(inputs.flatten(0, 1), hidden.flatten(0, 1)).view(hidden.shape)
            every.append(hidden)
        return [self.output(rows) for rows in self.asked(every)], {"hidden": hidden}
