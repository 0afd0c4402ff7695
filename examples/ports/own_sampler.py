"""GraphSAGE in a training loop with a sampling method of the user's, as DGL's ``sample_frontier`` has it.

mpirun -np 2 python examples/ports/own_sampler.py parts/
"""

import sys

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from hpcgnn import FlatParameters, GradientSum, GraphModelConfig, NeighborLoader, NeighborSampler, StaticGraph, World


class FirstNeighbors(NeighborSampler):
    """The first ``fanout`` in-neighbors of a node, in the order of the edges in the graph file."""

    def draw(self, lists, nodes, fanout, random):
        """Positions of edges in the lists: ``random`` is the key of draws, which this method does not need."""
        first = lists.indptr
        count = np.minimum(first[nodes + 1] - first[nodes], fanout)
        offsets = np.concatenate(([0], np.cumsum(count)))
        return offsets, np.repeat(first[nodes] - offsets[:-1], count) + np.arange(offsets[-1])


def train(path, epochs=3, batch_size=256, world=None):
    world = world or World()
    graph = StaticGraph(path, world, dtype=torch.float64)
    loader, tests = (
        NeighborLoader(graph, split, fanouts=[4, 4, 4], batch_size=batch_size, sampler=FirstNeighbors)
        for split in ("train", "test")
    )
    config = GraphModelConfig(kind="sage", layers=3, hidden=32)
    model = graph.make_model(config, outputs=graph.num_classes(), seed=0)
    flat, reduce = FlatParameters(model, num_extras=1), GradientSum(world)
    optimizer, losses = torch.optim.Adam([flat.parameter], lr=0.01), []
    for _ in range(epochs):
        for batch in loader:
            output = model(batch.batch, batch.x)[batch.seed_type][: len(batch.seeds)]
            loss = cross_entropy(output, batch.y, reduction="sum") / batch.batch_size
            flat.zero()
            loss.backward()
            flat.extras[0] = loss.detach()
            flat.sum(reduce)
            optimizer.step()
            losses.append(float(flat.extras[0]))
    return losses, accuracy(model, tests, world)


@torch.no_grad()
def accuracy(model, loader, world):
    """Share of the seeds of all ranks that are classified correctly."""
    right = seeds = 0
    for batch in loader:
        output = model(batch.batch, batch.x)[batch.seed_type][: len(batch.seeds)]
        right += int((output.argmax(1) == batch.y).sum())
        seeds += len(batch.seeds)
    return world.total(right) / world.total(seeds)


if __name__ == "__main__":
    ranks = World()
    losses, share = train(sys.argv[1], world=ranks)
    if ranks.rank == 0:
        print(f"first loss {losses[0]:.4f}, last loss {losses[-1]:.4f}, test accuracy {share:.4f}")
