"""Graph WaveNet (Wu et al., Graph WaveNet for deep spatial-temporal graph modeling, 2019): gated convolutions over
time, each followed by a diffusion over the edges and over a learned adjacency of all nodes.

n nodes of this rank, N of all ranks, k sequences, M snapshots, I input, H hidden, E learned columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpcgnn.nn.aggregation import glorot
from hpcgnn.snapshots.model.frame import Frame, SequenceModel, SequenceSizes, State
from hpcgnn.snapshots.model.recurrent import affine
from hpcgnn.snapshots.model.spatial import Distinct, Filter
from hpcgnn.snapshots.neighborhood import WALK


class LearnedAdjacency(nn.Module):
    """The adjacency softmax(relu(E2 E1')) [N, N] of the learnable embeddings of nodes: E1 of sources, E2 of
    destinations, both products of the embeddings with a matrix. A rank has the rows of its nodes."""

    def __init__(self, width: int):
        super().__init__()
        self.source, self.target = glorot(width, width), glorot(width, width)

    def forward(self, frame: Frame, learned: torch.Tensor) -> torch.Tensor:
        """Collective. Compute the rows [n, N] of this rank's nodes from their embeddings [n, E]."""
        scores = (learned @ self.target) @ of_all(frame, learned @ self.source).T
        return torch.softmax(torch.relu(scores), dim=1)


def of_all(frame: Frame, rows: torch.Tensor) -> torch.Tensor:
    """Collective. Bring rows [n, D] of all ranks' nodes [N, D], in order of their global ids."""
    if frame.everyone is None:
        return rows
    most = max(frame.counts)
    padded = functional.pad(rows, (0, 0, 0, most - len(rows)))
    received = frame.everyone.finish(frame.everyone.start(padded)).view(len(frame.counts), most, rows.shape[1])
    return torch.cat([of_rank[:count] for of_rank, count in zip(received, frame.counts, strict=True)])


class GraphWaveNet(SequenceModel):
    """Layers whose rows at a snapshot are made of the rows at this snapshot and at one 1, 2, 4, .. snapshots before:
    gated, filtered over the edges both ways and over the learned adjacency, and added to the rows of the layer below.
    The output reads the sum of all layers' rows. Rows of a layer are formed once for all windows that need them."""

    with_out = True

    def __init__(self, config: Any, sizes: SequenceSizes):
        """Raises ValueError without learnable embeddings, or for too short a window or filter."""
        super().__init__(config, sizes)
        hidden, layers, least = config.hidden, range(config.layers), 1 << config.layers
        if not sizes.learned:
            raise ValueError("model.kind graph_wavenet learns an adjacency: set node_embedding.dim above 0, such as 10")
        if sizes.history < least:
            raise ValueError(
                f"model.kind graph_wavenet looks back over {least} snapshots with model.layers {config.layers}: set "
                f"sampling.window_size to {least} or more, or model.layers lower; got {sizes.history}"
            )
        if config.order < 2:
            raise ValueError("model.kind graph_wavenet needs model.order 2 or more: order 1 has no step along edges")
        self.around, self.steps = Filter(WALK, config.order, both=True), config.order - 1
        self.enter, self.adjacency = nn.Linear(sizes.inputs, hidden), LearnedAdjacency(sizes.learned)
        self.gates = nn.ParameterList(glorot(2 * hidden, 2 * hidden) for _ in layers)
        self.gate_bias = nn.ParameterList(nn.Parameter(torch.zeros(2 * hidden)) for _ in layers)
        terms = self.around.num_terms + self.steps
        self.weight = nn.ParameterList(glorot(terms * hidden, hidden) for _ in layers)
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(hidden)) for _ in layers)
        self.skip = nn.ParameterList(glorot(hidden, hidden) for _ in layers)
        self.end, self.output = nn.Linear(hidden, hidden), nn.Linear(hidden, sizes.outputs)

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        snapshots = {snapshot.number: snapshot for frame in frames for snapshot in frame.snapshots}
        targets = [snapshot.number for snapshot in frames[-1].snapshots]
        below, *layers = self._needed(targets)
        learned = snapshots[targets[0]].inputs[:, -self.sizes.learned :]
        adjacency = self.adjacency(frames[0], learned)
        rows = self.enter(torch.stack([snapshots[number].inputs for number in below], dim=1))
        total = rows.new_zeros(())
        for layer, numbers in enumerate(layers):
            frame = replace(frames[0], snapshots=[snapshots[number] for number in numbers], uses=())
            before = _at(rows, below, [number - (1 << layer) for number in numbers])
            rows = self._layer(layer, frame, before, _at(rows, below, numbers), adjacency)
            total, below = total + _at(rows, numbers, targets) @ self.skip[layer], numbers
        return [self.output(torch.relu(self.end(torch.relu(total))))], state

    def _needed(self, targets: list[int]) -> list[list[int]]:
        """List the snapshots whose rows are needed to form the targets': of the inputs, then of each layer."""
        needed = [sorted(set(targets))]
        for layer in reversed(range(self.config.layers)):
            above = needed[0]
            needed.insert(0, sorted({*targets, *above, *(number - (1 << layer) for number in above)}))
        return needed

    def _layer(
        self, layer: int, frame: Frame, before: torch.Tensor, now: torch.Tensor, adjacency: torch.Tensor
    ) -> torch.Tensor:
        """Collective. Form a layer's rows [n, M, H] at the snapshots of a frame, from the rows below there and at the
        snapshots before."""
        gated = affine(torch.cat([before, now], dim=2), self.gates[layer], self.gate_bias[layer])
        candidate, gate = gated.chunk(2, dim=2)
        rows = torch.tanh(candidate) * torch.sigmoid(gate)
        terms = [rows]
        for _ in range(self.steps):
            terms.append((adjacency @ of_all(frame, terms[-1].flatten(1))).view(rows.shape))
        terms[0] = self._diffused(frame, rows)
        spread = affine(torch.cat(terms, dim=2), self.weight[layer], self.bias[layer])
        return now + frame.drop(spread, layer, self.config.dropout)

    def _diffused(self, frame: Frame, rows: torch.Tensor) -> torch.Tensor:
        """Collective. Filter rows [n, M, H] over the edges of their snapshots."""
        every, numbers = Distinct([frame]), [snapshot.number for snapshot in frame.snapshots]
        groups = [_at(rows, numbers, [snapshot.number for snapshot in group.snapshots]) for group in every.frames]
        (filtered,) = every.spread(self.around.of_rows(every.frames, groups))
        return filtered


def _at(rows: torch.Tensor, numbers: list[int], wanted: list[int]) -> torch.Tensor:
    """Select the rows [n, m, H] of wanted snapshots from those of increasing ``numbers`` [n, M, H]."""
    if numbers == wanted:
        return rows
    places = [numbers.index(number) for number in wanted]
    return rows[:, places]
