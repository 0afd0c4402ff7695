"""Layers of PyTorch Geometric for graphs of several node types and relations, which hpcgnn also computes one by one.

Train on the whole graph by:

    PYTHONPATH=examples/further mpirun -np 2 hpcgnn train --recipe bipartite --data.path parts/ \\
        --train.full_graph true --model.class_path typed_layers.TypedLayers --train.epochs 2
"""

import torch
from torch import nn
from torch_geometric.nn import HeteroConv, SAGEConv


class TypedLayer(nn.Module):
    """A convolution for each relation, then ReLU, but not after the last layer. -1: widths come from the graph."""

    def __init__(self, relations, width, is_last):
        super().__init__()
        self.convolution = HeteroConv({name: SAGEConv((-1, -1), width) for name in relations}, aggr="sum")
        self.is_last = is_last

    def forward(self, x_dict, edge_index_dict):
        rows = self.convolution(x_dict, edge_index_dict)
        return rows if self.is_last else {name: torch.relu(of_type) for name, of_type in rows.items()}


class TypedLayers(nn.Module):
    """metadata: names of the node types and of the relations of the graph."""

    def __init__(self, hidden_channels, num_layers, out_channels, metadata):
        super().__init__()
        widths = [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(
            TypedLayer(metadata[1], width, number + 1 == num_layers) for number, width in enumerate(widths)
        )

    def forward(self, x_dict, edge_index_dict):
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict)
        return x_dict
