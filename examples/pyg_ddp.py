"""Train PyTorch Geometric's GraphSAGE with PyTorch's DistributedDataParallel, on batches of hpcgnn's NeighborLoader.

Run it on the ranks of mpirun, with the folder of a partition set:

    mpirun -np 2 python examples/pyg_ddp.py parts/
"""

import sys

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from hpcgnn import NeighborLoader, StaticGraph, World, average_by_seeds, join_process_group


def train(path, epochs=5, batch_size=128, fanouts=(-1, -1), dtype=torch.float32, world=None):
    from torch_geometric.nn import GraphSAGE

    world = world or World()
    join_process_group(world)  # in place of torch.distributed.init_process_group
    graph = StaticGraph(path, world, dtype=dtype)
    loader = NeighborLoader(graph, "train", list(fanouts), batch_size, as_data="pyg")  # 128 seeds on all ranks together
    torch.manual_seed(0)
    (width,) = graph.widths  # columns of the features of the only node type
    model = GraphSAGE(width, hidden_channels=32, num_layers=2, out_channels=graph.num_classes())
    model = DistributedDataParallel(model.to(world.device, dtype))
    average_by_seeds(model, loader)  # ranks have unequal shares of a batch; without this line, each counts the same
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for epoch in range(epochs):
        for data in loader:
            optimizer.zero_grad()
            output = model(data.x, data.edge_index)[: data.batch_size]
            loss = cross_entropy(output, data.y)  # the mean over this rank's seeds
            loss.backward()
            optimizer.step()
        losses.append(mean_loss(loss, data, world))
        if world.rank == 0:
            print(f"epoch {epoch}: loss of the last batch {losses[-1]:.4f}", flush=True)
    return losses


def mean_loss(loss, data, world):
    """Mean loss of the seeds of all ranks."""
    return world.total(loss.item() * data.batch_size if data.batch_size else 0.0) / data.num_seeds


if __name__ == "__main__":
    train(sys.argv[1])
    torch.distributed.destroy_process_group()
