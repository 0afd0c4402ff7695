"""A custom model of static graphs: GraphSAGE in plain PyTorch.

Train it by:

    PYTHONPATH=examples mpirun -np 2 hpcgnn train --kind static --model.class_path own_static_model.MeanSAGE
"""

import itertools

import torch
from torch import nn

from hpcgnn import GraphModel, drop, rows_of, stack_first


class MeanSAGE(GraphModel):
    """A node's row and the mean of its neighbors' rows, for homogeneous graphs with features."""

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        if (len(sizes.inputs), len(sizes.relations)) != (1, 1) or not sizes.inputs[0]:
            raise ValueError("MeanSAGE is for graphs of one node type and one relation, with features")
        widths = list(itertools.pairwise([sizes.inputs[0], *[config.hidden] * (config.layers - 1), sizes.outputs]))
        self.node = nn.ModuleList(nn.Linear(*pair) for pair in widths)
        self.neighbors = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in widths)
        self.embedding_hops = config.layers - 1  # predict --embeddings writes the rows before the last layer

    def first(self, batch, inputs):
        """Rows of the nodes furthest from the seeds [S, F]: the features of the only node type."""
        return rows_of(inputs[0])

    def step(self, number, batch, block, rows):
        """Layer ``number``: rows of a block's D destination nodes from rows of its S source nodes."""
        if number:  # dropout whose mask depends on the node, not on the rank
            rows = drop(rows, batch, stack_first(batch.identity, block.num_src), number, self.config.dropout)
        edges = block.lists  # edges.source and edges.destination [E], positions among the block's nodes
        total = rows.new_zeros(block.num_dst[0], rows.shape[1])
        total = total.index_add(0, edges.destination, rows[edges.source])
        degree = torch.bincount(edges.destination, minlength=len(total)).clamp(min=1)
        out = self.node[number](block.own(rows)) + self.neighbors[number](total / degree.unsqueeze(1))
        return out if number == self.config.layers - 1 else torch.relu(out)
