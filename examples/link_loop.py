"""Train GraphSAGE on link prediction, in a training loop of the user's. The seeds are the training edges.

Run it on the ranks of mpirun, with the folder of a partition set:

    mpirun -np 2 python examples/link_loop.py parts/
"""

import sys

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from hpcgnn import FlatParameters, GradientSum, GraphModelConfig, LinkNeighborLoader, StaticGraph, World


def train(path, epochs=5, batch_size=64, dtype=torch.float64, world=None):
    world = world or World()  # the MPI ranks; one process without mpirun
    graph = StaticGraph(path, world, dtype=dtype)
    # Two drawn pairs per training edge are the negatives. batch_size counts the edges of all ranks together.
    loader = LinkNeighborLoader(
        graph, "train", fanouts=[10, 5], batch_size=batch_size, neg_sampling="binary", negatives=2
    )
    config = GraphModelConfig(kind="sage", layers=2, hidden=32)
    model = graph.make_model(config, outputs=32, seed=0)  # the same weights on all ranks
    flat, reduce = FlatParameters(model, num_extras=1), GradientSum(world)
    optimizer, losses = torch.optim.Adam([flat.parameter], lr=1e-2), []
    for _ in range(epochs):
        for batch in loader:
            rows = model(batch.batch, batch.x)[0]  # embeddings of the nodes of the only type
            source, target = rows[batch.edge_label_index]
            label = batch.edge_label.to(rows.dtype)  # 1: an edge, 0: a negative
            # Divided by the edges of all ranks: gradients are summed over ranks, never averaged.
            loss = bce((source * target).sum(1), label, reduction="sum") / batch.batch_size
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
