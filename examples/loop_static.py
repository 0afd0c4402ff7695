"""Train GraphSAGE on node classification, in a training loop of the user's.

Run it on the ranks of mpirun, with the folder of a partition set:

    mpirun -np 2 python examples/loop_static.py parts/
"""

import sys

import torch
from torch.nn.functional import cross_entropy

from hpcgnn import FlatParameters, GradientSum, GraphModelConfig, NeighborLoader, StaticGraph, World


def train(path, epochs=5, batch_size=64, dtype=torch.float64, world=None):
    world = world or World()  # the MPI ranks; one process without mpirun
    graph = StaticGraph(path, world, dtype=dtype)
    # batch_size counts the seeds of all ranks together. Each rank gets its share of them.
    loader = NeighborLoader(graph, "train", fanouts=[10, 5], batch_size=batch_size)
    config = GraphModelConfig(kind="sage", layers=2, hidden=32, dropout=0.2)
    model = graph.make_model(config, outputs=graph.num_classes(), seed=0)  # the same weights on all ranks
    # All gradients in one buffer, which one all-reduce sums. One extra number travels with them: the loss.
    flat, reduce = FlatParameters(model, num_extras=1), GradientSum(world)
    optimizer, losses = torch.optim.Adam([flat.parameter], lr=1e-2), []
    for _ in range(epochs):
        for batch in loader:  # a share may be empty; the rank still takes part in the step
            output = model(batch.batch, batch.x)[batch.seed_type][: len(batch.seeds)]
            # Divided by the seeds of all ranks: gradients are summed over ranks, never averaged.
            loss = cross_entropy(output, batch.y, reduction="sum") / batch.batch_size
            flat.zero()
            loss.backward()
            flat.extras[0] = loss.detach()
            flat.sum(reduce)
            optimizer.step()
            losses.append(float(flat.extras[0]))
    return losses


if __name__ == "__main__":
    ranks = World()
    losses = train(sys.argv[1], world=ranks)
    if ranks.rank == 0:
        print(f"first loss {losses[0]:.4f}, last loss {losses[-1]:.4f}")
