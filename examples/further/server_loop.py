"""Train GraphSAGE in a loop of the user's, while the last rank draws the neighbors for the other ones.

Run it on the ranks of mpirun, with the folder of a partition set:

    mpirun -np 3 python examples/further/server_loop.py parts/
"""

import sys

import torch
from torch.nn.functional import cross_entropy

from hpcgnn import CommConfig, FlatParameters, GradientSum, GraphModelConfig, NeighborLoader, World, beside_servers


def loop(graph):
    """Train on graph.world, the ranks that are no servers; returns the losses."""
    loader = NeighborLoader(graph, "train", fanouts=[10, 5], batch_size=64)
    config = GraphModelConfig(kind="sage", layers=2, hidden=32)
    model = graph.make_model(config, outputs=graph.num_classes(), seed=0)
    flat, reduce = FlatParameters(model, num_extras=1), GradientSum(graph.world)
    optimizer, losses = torch.optim.Adam([flat.parameter], lr=1e-2), []
    for _ in range(5):
        for batch in loader:
            output = model(batch.batch, batch.x)[batch.seed_type][: len(batch.seeds)]
            loss = cross_entropy(output, batch.y, reduction="sum") / batch.batch_size
            flat.zero()
            loss.backward()
            flat.extras[0] = loss.detach()
            flat.sum(reduce)
            optimizer.step()
            losses.append(float(flat.extras[0]))
    return losses


if __name__ == "__main__":
    ranks = World(CommConfig(sampling_servers=1))
    losses = beside_servers(loop, sys.argv[1], ranks)  # None on servers
    if ranks.rank == 0:
        print(f"first loss {losses[0]:.4f}, last loss {losses[-1]:.4f}")
