"""Custom models of temporal graphs: one with another decoder, one that is all new.

Train them by:

    PYTHONPATH=examples mpirun -np 2 hpcgnn train --model.class_path own_model.BilinearTGN
    PYTHONPATH=examples mpirun -np 2 hpcgnn train --model.class_path own_model.Activity --memory.updater none
"""

import torch
from torch import nn

from hpcgnn import TemporalModel


class Bilinear(nn.Module):
    """Decoder: scores a pair by a bilinear form."""

    def __init__(self, width):
        super().__init__()
        self.form = nn.Parameter(torch.eye(width) / width)

    def forward(self, source, destination):
        return (source @ self.form * destination).sum(-1)

    def score(self, rows):
        return self(rows[0], rows[1:])


class BilinearTGN(TemporalModel):
    """The built-in TGN with another decoder."""

    def __init__(self, model, memory, sizes):
        super().__init__(model, memory, sizes)
        self.decoder = Bilinear(model.hidden)


class Activity(nn.Module):
    """A model without memory: it expects further events of nodes that had many recent ones."""

    has_memory = needs_last = needs_nearby = False
    state_width = mail_width = 0
    mailbox_slots = num_hops = 1

    def __init__(self, model, memory, sizes):
        super().__init__()
        if memory.has_memory:
            raise ValueError("Activity has no memory: set memory.updater none")
        self.config = model
        self.embedding, self.decoder = nn.Linear(sizes.slots, model.hidden), Bilinear(model.hidden)

    def base(self, memory, feature):
        return memory

    def embed(self, node, query, last=None, dropout=None):
        attention = query.levels[0].attention  # slot [N, K] (-1: none), dt [N, K]
        exists = attention.slot >= 0
        age = torch.log1p(attention.dt.to(self.embedding.weight.dtype))
        return torch.relu(self.embedding(exists / (1 + age)))

    def decode_pairs(self, source, destination, nearby=None):
        return self.decoder(source, destination)

    def decode(self, rows, nearby=None):
        return self.decoder.score(rows)

    def dropout(self, random, identity):
        return None
