"""A model of PyTorch Geometric's SAGEConv layers that ``hpcgnn train`` trains itself, by ``model.class_path``.

Train it by:

    PYTHONPATH=examples mpirun -np 2 hpcgnn train --kind static --model.class_path pyg_model.PygSAGE
"""

import itertools

import torch
from torch import nn
from torch_geometric.nn import SAGEConv

from hpcgnn import GraphModel, rows_of


class PygSAGE(GraphModel):
    """For homogeneous graphs with features."""

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        widths = [sizes.inputs[0], *[config.hidden] * (config.layers - 1), sizes.outputs]
        self.layers = nn.ModuleList(SAGEConv(*pair) for pair in itertools.pairwise(widths))

    def first(self, batch, inputs):
        return rows_of(inputs[0])

    def step(self, number, batch, block, rows):
        edge_index = torch.stack([block.lists.source, block.lists.destination])
        rows = self.layers[number]((rows, block.own(rows)), edge_index)  # bipartite: source rows, destination rows
        return rows if number == self.config.layers - 1 else torch.relu(rows)
