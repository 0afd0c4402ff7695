"""Train layers of PyTorch Geometric and learnable node embeddings, then compute the outputs of all nodes exactly.

Run it on the ranks of mpirun, with the folder of a partition set:

    mpirun -np 2 python examples/pyg_exact.py parts/
"""

import sys

import torch
from torch.nn.functional import cross_entropy

from hpcgnn import (
    FlatParameters,
    GradientSum,
    NeighborLoader,
    NodeEmbedding,
    StaticGraph,
    World,
    class_metrics,
    exact_outputs,
)


def train(path, epochs=5, batch_size=64, fanouts=(10, 5), width=8, dtype=torch.float32, world=None):
    from torch_geometric.nn import SAGEConv

    world = world or World()
    graph = StaticGraph(path, world, dtype=dtype)
    (node_type,) = graph.types
    loader = NeighborLoader(graph, "train", list(fanouts), batch_size, as_data="pyg")
    embedding = NodeEmbedding(graph, node_type, width, lr=0.05)  # a row of each node, at its owner
    torch.manual_seed(0)  # the same weights on all ranks
    first, last = SAGEConv(graph.widths[0] + width, 32), SAGEConv(32, graph.num_classes())
    model = torch.nn.ModuleList([first, last]).to(world.device, dtype)

    def hidden(x, data):
        return first(torch.cat([x, embedding(data.n_id)], dim=1), data.edge_index).relu()

    def output(x, data):
        return last(x, data.edge_index)

    flat, reduce = FlatParameters(model), GradientSum(world)
    optimizer = torch.optim.Adam([flat.parameter], lr=0.01)
    for _ in range(epochs):
        for data in loader:  # a share may be empty; the rank still takes part in the step
            rows = output(hidden(data.x, data), data)[: data.batch_size]
            loss = cross_entropy(rows, data.y, reduction="sum") / data.num_seeds
            flat.zero()
            loss.backward()
            flat.sum(reduce)
            optimizer.step()
            embedding.step()  # the rows that were looked up
    # The same functions, layer by layer for all nodes: rows of this rank, in the order of graph.nodes(node_type).
    outputs = exact_outputs(graph, [hidden, output], as_data="pyg")[node_type]
    columns = graph.partition.columns[0]  # of these nodes
    is_test = columns["split"] == 2
    return class_metrics(outputs[is_test], columns["label"][is_test], world)  # over all ranks


if __name__ == "__main__":
    ranks = World()
    metrics = train(sys.argv[1], world=ranks)
    if ranks.rank == 0:
        print(f"test accuracy {metrics['accuracy']:.4f}, macro F1 {metrics['macro_f1']:.4f}")
