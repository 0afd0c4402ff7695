"""Times PyTorch Geometric's temporal graph network over the same events, to compare one rank with.

The model of Rossi et al. (2020) from PyG's documented parts: TGNMemory, IdentityMessage, LastAggregator and
TransformerConv over the last neighbors. b events a batch, Z embedding width.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from hpcgnn.bench import command
from hpcgnn.loop.session import Session
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.graph import FEATURE

WARM_UP_STEPS = 5


class PeerTGN(nn.Module):
    """Memory, attention and decoder, with the neighbor table that PyG keeps outside of the model."""

    def __init__(self, config: TemporalConfig, num_nodes: int, message_width: int, device: torch.device):
        from torch_geometric.nn import TGNMemory, TransformerConv
        from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader

        super().__init__()
        model, memory = config.model, config.memory
        message = IdentityMessage(message_width, memory.dim, model.time_dim)
        self.memory = TGNMemory(
            num_nodes, message_width, memory.dim, model.time_dim, message, LastAggregator()
        )  # fmt: skip
        head_width, edge_width = model.hidden // model.heads, message_width + model.time_dim
        self.attention = TransformerConv(
            memory.dim, head_width, model.heads, dropout=model.dropout, edge_dim=edge_width
        )
        self.source, self.destination = (nn.Linear(model.hidden, model.hidden) for _ in range(2))
        self.out = nn.Linear(model.hidden, 1)
        self.neighbors = LastNeighborLoader(num_nodes, config.sampling.fanout(0), device=device)
        self.to(device)

    def reset(self) -> None:
        """Forget all events."""
        self.memory.reset_state()
        self.neighbors.reset_state()

    def embed(self, nodes: torch.Tensor, times: torch.Tensor, messages: torch.Tensor) -> torch.Tensor:
        """Embed ``nodes`` [n] as [n, Z]; times, messages: of all events, by row."""
        unique, inverse = nodes.unique(return_inverse=True)
        involved, edges, rows = self.neighbors(unique)
        state, last_update = self.memory(involved)
        time_passed = (last_update[edges[0]] - times[rows]).to(state.dtype)
        features = torch.cat([self.memory.time_enc(time_passed), messages[rows]], dim=1)
        return self.attention(state, edges, features)[torch.searchsorted(involved, unique)][inverse]

    def scores(self, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
        """Score pairs of embeddings by logits [n]."""
        return self.out(torch.relu(self.source(source) + self.destination(destination))).squeeze(1)

    def observe(self, source, destination, time, message) -> None:
        """Update memory and neighbors with events [b] that have happened."""
        self.memory.update_state(source, destination, time, message)
        self.neighbors.insert(source, destination)


def epoch_seconds(session: Session) -> float:
    """Return the seconds that PyG takes for the training epoch that ``session`` (of one rank) prepared.

    Same events, batches, negatives, neighbors, widths, threads and device; evaluation and set-up are not timed.
    """
    events, steps = session.batches["train"].events, session.batches["train"].num_steps
    feature, device = session.partition.edge_width, session.world.device
    # PyG drops empty messages of width 0 and then finds too few: one column of zeros stands for "no features".
    messages = torch.from_numpy(np.asarray(events.columns[FEATURE])) if feature else torch.zeros(len(events), 1)
    messages = messages.to(device)
    columns = [torch.from_numpy(column).to(device) for column in (events.src, events.dst, events.time)]
    drawn: Any = session.loaders["train"].negatives(0)
    negatives = torch.from_numpy(drawn.whole().dst).to(device)
    model = PeerTGN(session.config, session.partition.book.num_nodes, messages.shape[1], device)
    optimizer = torch.optim.Adam(model.parameters(), lr=session.config.train.lr)
    batches = [session.batches["train"].at(step) for step in range(steps)]
    model.reset()
    for rows in batches[:WARM_UP_STEPS]:
        _step(model, optimizer, rows, columns, messages, negatives)
    model.reset()
    command.wait_for(device)
    begin = time.perf_counter()
    for rows in batches:
        _step(model, optimizer, rows, columns, messages, negatives)
    command.wait_for(device)
    return time.perf_counter() - begin


def _step(model: PeerTGN, optimizer, rows: slice, columns, messages, negatives) -> None:
    source, destination, times = (column[rows] for column in columns)
    negative = negatives[rows].T.flatten()
    optimizer.zero_grad()
    embedding = model.embed(torch.cat([source, destination, negative]), columns[2], messages)
    at_source, at_destination, at_negative = embedding.split([len(source), len(source), len(negative)])
    positive_scores = model.scores(at_source, at_destination)
    negative_scores = model.scores(at_source.repeat(len(negative) // max(1, len(source)), 1), at_negative)
    loss = bce(positive_scores, torch.ones_like(positive_scores))
    loss = loss + bce(negative_scores, torch.zeros_like(negative_scores))
    model.observe(source, destination, times, messages[rows])
    loss.backward()
    optimizer.step()
    model.memory.detach()
