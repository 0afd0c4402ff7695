"""Decoders: from embeddings to scores."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from hpcgnn.native.layers import can_multiply
from hpcgnn.native.link_decoder import link_decoder
from hpcgnn.nn.linear import linear


class LinkDecoder(nn.Module):
    """Score of a pair from its embeddings."""

    def __init__(self, width: int):
        super().__init__()
        self.source, self.destination = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 1)

    def score(self, embedding) -> torch.Tensor:
        """Score pairs. embedding [R, b, Z]: sources, then destinations of R - 1 roles; returns logits [R - 1, b]. One
        native call on the CPU."""
        if not can_multiply(embedding, self.out.weight):
            return self(embedding[0], embedding[1:])
        return link_decoder(embedding, *self.weights())

    def weights(self) -> list[torch.Tensor]:
        """List the weights in the order in which `link_decoder` takes them."""
        return [self.source.weight, self.source.bias, self.destination.weight, self.out.weight, self.out.bias]

    def forward(self, source, destination) -> torch.Tensor:
        """Score pairs. source [n, Z]; destination [n, Z] or [k, n, Z]; returns logits [n] or [k, n], in plain torch."""
        from_source = linear(source, self.source.weight, self.source.bias)
        from_destination = linear(destination.flatten(0, -2), self.destination.weight)
        from_destination = from_destination.view(*destination.shape[:-1], self.destination.out_features)
        return functional.linear(torch.relu(from_source + from_destination), self.out.weight, self.out.bias).squeeze(-1)
