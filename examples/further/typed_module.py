"""A module of PyTorch Geometric for graphs of several node types and relations, made of a plain one by `to_hetero`.

Train it by:

    PYTHONPATH=examples/further mpirun -np 2 hpcgnn train --recipe bipartite --data.path parts/ \\
        --eval.ranking "" --model.class_path typed_module.TypedSAGE
"""

import torch
from torch import nn
from torch_geometric.nn import SAGEConv, to_hetero


class PlainSAGE(nn.Module):
    """Two layers, of which `to_hetero` makes a copy for each relation; -1: widths come from the graph."""

    def __init__(self, hidden, outputs):
        super().__init__()
        self.first, self.last = SAGEConv((-1, -1), hidden), SAGEConv((-1, -1), outputs)

    def forward(self, x, edge_index):
        return self.last(torch.relu(self.first(x, edge_index)), edge_index)


class TypedSAGE(nn.Module):
    """metadata: names of the node types and of the relations of the graph."""

    def __init__(self, hidden_channels, out_channels, metadata):
        super().__init__()
        self.module = to_hetero(PlainSAGE(hidden_channels, out_channels), metadata)

    def forward(self, x_dict, edge_index_dict):
        return self.module(x_dict, edge_index_dict)
