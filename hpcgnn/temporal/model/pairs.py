"""A decoder that sees, besides two embeddings, how the two nodes' recent neighbours meet.

Whether a destination is among the source's recent neighbours, and how recent, is what memory-less baselines live on
(Poursafaei et al., EdgeBank, 2022); neighbours in common are the rest of it (Yu et al., DyGFormer, 2023; Zhang et al.,
TNCN, 2024). b events, K slots, Z embedding width.
"""

from __future__ import annotations

import torch
from torch import nn

from hpcgnn.nn.decoder import LinkDecoder
from hpcgnn.nn.linear import linear


def meeting(source_node, source_slot, destination_node, destination_slot) -> torch.Tensor:
    """Where two neighbourhoods meet, [n, 4 K] 0 or 1: the source's slots that are the destination, the destination's
    slots that are the source, and each side's slots that the other has as well.

    source_node, destination_node [n] rows; source_slot, destination_slot [n, K] rows, -1 pads.
    """
    common = (source_slot.unsqueeze(2) == destination_slot.unsqueeze(1)) & (source_slot >= 0).unsqueeze(2)
    pieces = [
        source_slot == destination_node.unsqueeze(1), destination_slot == source_node.unsqueeze(1),
        common.any(2), common.any(1),
    ]  # fmt: skip
    return torch.cat(pieces, dim=1)


class PairDecoder(nn.Module):
    """An MLP over the embeddings, plus one over where the neighbourhoods meet."""

    def __init__(self, width: int, slots: int):
        super().__init__()
        self.link = LinkDecoder(width)
        self.hidden, self.out = nn.Linear(4 * slots, width), nn.Linear(width, 1, bias=False)

    def forward(self, source, destination, met) -> torch.Tensor:
        """source [n, Z], destination [n, Z] or [k, n, Z], met: ``meeting`` [n, 4 K] or [k, n, 4 K]; returns logits."""
        features = met.to(source.dtype)
        hidden = torch.relu(linear(features.flatten(0, -2), self.hidden.weight, self.hidden.bias))
        return self.link(source, destination) + linear(hidden, self.out.weight).view(features.shape[:-1])
