"""A custom model of a graph of users and items: an encoder for each node type, then GraphSAGE over all relations.

Items have features, such as embeddings of their texts; users have learnable embeddings. Train it by:

    PYTHONPATH=examples/further mpirun -np 2 hpcgnn train --recipe bipartite --data.path parts/ \\
        --model.class_path two_encoders.TwoEncoders
"""

from dataclasses import replace

import torch
from torch import nn

from hpcgnn import rows_of
from hpcgnn.static.model.models import LayeredModel


class TwoEncoders(LayeredModel):
    """An MLP for the features of items, a product for the embeddings of all other types."""

    def __init__(self, config, sizes):
        # The layers get the rows of the encoders, which have one width, in place of the input rows.
        super().__init__(config, replace(sizes, inputs=(config.hidden,) * len(sizes.inputs)))
        self.encoders = nn.ModuleList(
            self.make_encoder(name, width, config.hidden) for name, width in zip(sizes.types, sizes.inputs, strict=True)
        )

    @staticmethod
    def make_encoder(name, width, hidden):
        if name == "item":
            return nn.Sequential(nn.Linear(width, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden))
        return nn.Linear(width, hidden)

    def first(self, batch, inputs):
        """Rows of all types, one below the other: of sampled nodes, or of all nodes in exact inference."""
        return torch.cat([encode(rows_of(rows)) for encode, rows in zip(self.encoders, inputs, strict=True)])
