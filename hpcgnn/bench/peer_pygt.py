"""Times cells of PyTorch Geometric Temporal in a plain loop over the same snapshots, inputs and targets.

Its loop holds all snapshots' edges and inputs in memory, as ours does. A head of one linear layer after relu, squared
errors of all nodes, gradients through the snapshots of a step, Adam.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.bench.command import check_installed
from hpcgnn.loop.session import Session
from hpcgnn.snapshots.config import SnapshotConfig

NEEDED = ("torch-geometric-temporal", "torch-geometric")


def check(config: SnapshotConfig) -> None:
    """Raise ValueError where there is nothing to compare with."""
    check_installed("--peer pygt", *NEEDED)
    has_peer = config.model.kind in ("tgcn", "evolvegcn_o") and config.model.layers == 1
    if not has_peer or config.task.kind != "regression" or config.sampling.window_size:
        raise ValueError(
            "--peer pygt compares model.kind tgcn or evolvegcn_o of one layer, with task.kind regression and "
            "sampling.window_size 0"
        )


class Peer(nn.Module):
    """A cell of PyTorch Geometric Temporal and a head."""

    def __init__(self, kind: str, inputs: int, hidden: int, outputs: int):
        super().__init__()
        if kind == "tgcn":
            from torch_geometric_temporal.nn.recurrent.temporalgcn import TGCN

            self.cell, width = TGCN(inputs, hidden), hidden
        else:
            from torch_geometric_temporal.nn.recurrent.evolvegcno import EvolveGCNO

            self.cell, width = EvolveGCNO(inputs), inputs
        self.recurrent, self.head = kind == "tgcn", nn.Linear(width, outputs)

    def forward(self, inputs, edge_index, weight, state):
        """Compute outputs, and hidden rows where the cell has any."""
        if self.recurrent:
            state = self.cell(inputs, edge_index, weight, state)
            return self.head(torch.relu(state)), state
        return self.head(torch.relu(self.cell(inputs, edge_index, weight))), None

    def begin(self, detach: bool) -> None:
        """Prepare for a step; detach: the step continues the one before."""
        if not self.recurrent:
            weight = self.cell.weight
            self.cell.weight = weight.detach() if detach and weight is not None else None


def epoch_seconds(session: Session, epochs: int) -> float:
    """Return the median seconds of an epoch on one rank; the first one warms up."""
    config = session.config
    data = {number: _snapshot(session, number) for number in session.loaders["train"].snapshots}
    peer = Peer(config.model.kind, next(iter(data.values()))[0].shape[1], config.model.hidden, session.goal.num_outputs)
    optimizer, seconds = torch.optim.Adam(peer.parameters(), lr=config.train.lr), []
    for _ in range(epochs + 1):
        begin, state = time.perf_counter(), None
        for number, step in enumerate(session.batches["train"].targets):
            optimizer.zero_grad()
            peer.begin(detach=number > 0)
            state = None if state is None else state.detach()
            loss: Any = 0
            for target in step:
                inputs, edge_index, weight, targets = data[target]
                outputs, state = peer(inputs, edge_index, weight, state)
                loss = loss + nn.functional.mse_loss(outputs, targets)
            (loss / len(step)).backward()
            optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds[1:]))


def _snapshot(session: Session, number: int):
    """Return inputs, edges, weights and targets of a snapshot."""
    partition = session.partition
    columns = tuple(name for name in ("weight",) if name in partition.edge_columns)
    edges = partition.edges_at(number, columns)
    weight = torch.from_numpy(edges.columns["weight"]).to(session.dtype) if columns else None
    edge_index = torch.from_numpy(np.stack([edges.src, edges.dst]))
    inputs = session.task.inputs(number)
    return inputs, edge_index, weight, session.goal.want("train", 0, number).value
