"""Train PyTorch Geometric's GraphSAGE on mini-batches of hpcgnn's NeighborLoader.

Run it on the ranks of mpirun:

    mpirun -np 2 python examples/pyg_sage.py            # on a small built-in graph
    mpirun -np 2 python examples/pyg_sage.py parts/ 7   # on a partition set of yours, with 7 classes
"""

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from hpcgnn import FlatParameters, GradientSum, NeighborLoader, StaticGraph, World, make_synthetic_graph


def train(path, num_classes, epochs=5, batch_size=128, fanouts=(10, 5), dtype=torch.float32, world=None):
    from torch_geometric.nn import GraphSAGE

    world = world or World()
    graph = StaticGraph(path, world, dtype=dtype)

    # batch_size is global: the seeds of all ranks together. On 2 ranks each gets about 64 of 128.
    train_loader = NeighborLoader(graph, "train", list(fanouts), batch_size, as_data="pyg")
    test_loader = NeighborLoader(graph, "test", list(fanouts), batch_size=512, as_data="pyg")

    torch.manual_seed(0)  # the same weights on all ranks
    (width,) = graph.widths  # columns of the features of the only node type
    model = GraphSAGE(width, hidden_channels=32, num_layers=2, out_channels=num_classes).to(world.device, dtype)

    # What DistributedDataParallel does in PyTorch: the gradients of all ranks are added up after backward().
    flat, reduce = FlatParameters(model, num_extras=1), GradientSum(world)
    optimizer, losses = torch.optim.Adam([flat.parameter], lr=0.01), []
    for epoch in range(epochs):
        model.train()
        for data in train_loader:  # torch_geometric.data.Data
            # The first nodes are the seeds of this rank: data.batch_size of them, perhaps none. data.y is for them.
            output = model(data.x, data.edge_index)[: data.batch_size]
            # data.num_seeds counts the seeds of all ranks. A sum divided by it is the mean over the global batch,
            # once gradients are summed over ranks. (DDP averages gradients: there each rank takes its own mean.)
            loss = cross_entropy(output, data.y, reduction="sum") / data.num_seeds
            flat.zero()
            loss.backward()
            flat.extras[0] = loss.detach()  # travels with the gradients
            flat.sum(reduce)
            optimizer.step()
            losses.append(float(flat.extras[0]))
        accuracy = evaluate(model, test_loader, world)
        if world.rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f}, test accuracy {accuracy:.4f}", flush=True)
    return losses


@torch.no_grad()
def evaluate(model, loader, world):
    """Share of the seeds of all ranks that the model classifies correctly."""
    model.eval()
    right, seeds = 0, 0
    for data in loader:
        output = model(data.x, data.edge_index)[: data.batch_size]
        right += int((output.argmax(1) == data.y).sum())
        seeds += data.batch_size
    return world.total(right) / world.total(seeds)


def built_in(world):
    """Path of a small graph with 5 classes, made by rank 0."""
    parts = Path("runs/pyg_sage/parts")
    if world.rank == 0 and not parts.exists():
        parts.parent.mkdir(parents=True, exist_ok=True)
        make_synthetic_graph(parts, num_nodes=2000)
    world.barrier()
    return parts


if __name__ == "__main__":
    try:
        import torch_geometric  # noqa: F401
    except ImportError:
        sys.exit("this example needs PyTorch Geometric: pip install torch-geometric")
    ranks = World()
    if len(sys.argv) > 1:
        train(sys.argv[1], int(sys.argv[2]), world=ranks)
    else:
        train(built_in(ranks), num_classes=5, epochs=10, world=ranks)
