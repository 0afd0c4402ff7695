"""Train T-GCN to predict a number of every node in the next snapshot, in a training loop of the user's.

Run it on the ranks of mpirun, with the folder of a partition set:

    mpirun -np 2 python examples/loop_snapshots.py parts/
"""

import sys

import torch

from hpcgnn import (
    FlatParameters,
    GradientSum,
    LabelScores,
    SequenceRows,
    SnapshotLoader,
    SnapshotModelConfig,
    SnapshotSequence,
    SnapshotTask,
    World,
)


class NextTarget:
    """The task: predict the column target of every node in the next snapshot."""

    def __init__(self, graph, dtype):
        self.series = torch.from_numpy(graph.partition.series["target"]).to(graph.world.device, dtype)

    def inputs(self, number):
        """Return the inputs of this rank's nodes in a snapshot [n, 1]."""
        return self.series[:, number : number + 1]

    def want(self, split, epoch, number):
        """Return the numbers to predict from a snapshot [n, 1]; they become a part of the plan."""
        return self.series[:, number + 1 : number + 2]

    def score(self, outputs, wanted, chain):
        return LabelScores(outputs, wanted)

    def loss(self, scores):
        return (scores.output - scores.label).square().sum()

    def join(self, scores, training):
        return LabelScores(torch.cat([s.output for s in scores]), torch.cat([s.label for s in scores]))


def train(path, epochs=5, batch_size=2, dtype=torch.float64, world=None):
    world = world or World()  # the MPI ranks; one process without mpirun
    graph = SnapshotSequence(path, world)
    partition, goal = graph.partition, NextTarget(graph, dtype)
    config = SnapshotModelConfig(kind="tgcn", hidden=16)
    model = graph.make_model(config, inputs=1, outputs=1, dtype=dtype, seed=0)  # the same weights on all ranks
    snapshots = range(partition.num_snapshots * 7 // 10)  # the first 70 % are for training
    loader = SnapshotLoader(graph, "train", snapshots, batch_size, goal.want, with_out=model.with_out, dtype=dtype)
    identity = torch.from_numpy(partition.flat_row).to(world.device)
    rows = SequenceRows(identity, model.node_state, None, dtype)  # the hidden state of this rank's nodes
    task = SnapshotTask(model, goal, rows, goal.inputs, graph.channel)
    flat, reduce = FlatParameters(model, num_extras=1), GradientSum(world)
    optimizer, losses = torch.optim.Adam([flat.parameter], lr=1e-2), []
    for epoch in range(epochs):
        rows.reset()  # an epoch begins before the first snapshot
        with loader.plans(epoch) as plans:
            for plan in plans:
                flat.zero()
                # The loss is divided by the predictions of all ranks: gradients are summed over ranks.
                flat.extras[0] = task.train(plan)
                flat.sum(reduce)
                optimizer.step()
                losses.append(float(flat.extras[0]))
    return losses


if __name__ == "__main__":
    ranks = World()
    losses = train(sys.argv[1], world=ranks)
    if ranks.rank == 0:
        print(f"first loss {losses[0]:.4f}, last loss {losses[-1]:.4f}")
