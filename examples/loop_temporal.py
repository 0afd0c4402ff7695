"""Train TGN on temporal link prediction, in a training loop of the user's.

Run it on the ranks of mpirun, with the folder of a partition set:

    mpirun -np 2 python examples/loop_temporal.py parts/
"""

import sys

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from hpcgnn import (
    FlatParameters,
    GradientSum,
    Mailing,
    MemoryConfig,
    NodeMemory,
    TemporalGraph,
    TemporalLoader,
    TemporalModelConfig,
    TemporalSamplingConfig,
    World,
    evaluate_links,
)


def train(path, epochs=2, batch_size=100, dtype=torch.float64, world=None):
    world = world or World()  # the MPI ranks; one process without mpirun
    graph = TemporalGraph(path, world)  # this rank's parts, and the splits in time
    sampling = TemporalSamplingConfig(fanouts=[10], strategy="recent")
    options = {"sampling": sampling, "mailing": Mailing(), "dtype": dtype}
    loader = TemporalLoader(graph, "train", batch_size, negatives=3, drop_last=True, **options)
    validation = TemporalLoader(graph, "val", batch_size, **options)
    config = TemporalModelConfig(time_dim=32, hidden=32, dropout=0.0)
    model = graph.make_model(config, MemoryConfig(dim=32), slots=10, dtype=dtype, seed=0)  # equal on all ranks
    memory = NodeMemory(graph.partition.num_nodes, model.state_width, model.mail_width, dtype, world.device)
    # All gradients in one buffer, which one all-reduce sums. One extra number travels with them: the loss.
    flat, reduce = FlatParameters(model, num_extras=1), GradientSum(world)
    optimizer, losses = torch.optim.Adam([flat.parameter], lr=1e-3), []
    for epoch in range(epochs):
        memory.reset()  # an epoch begins before the first event
        with loader.plans(epoch) as plans:
            for plan in plans:  # the same number of steps on all ranks
                losses.append(step(plan, model, memory, flat, reduce))
                optimizer.step()
        metrics = evaluate_links(validation, lambda plan: forward(plan, model, memory))  # goes on from this memory
    return losses, metrics


def forward(plan, model, memory):
    """Collective. Logits [1 + k, b] of the step's events and of their k negatives; node memory moves on."""
    # Memory of all nodes in the step, from their owners; the model updates it by the pending mails.
    rows = model.update(*plan.route.pull(*memory.table.tensors()))
    embedding = model.embed(rows, plan.query)
    write(plan, rows.detach(), memory)
    return model.decode(embedding.view(2 + plan.num_negatives, plan.num_events, -1))


def write(plan, rows, memory):
    """Collective. The last event of each node in the global batch sends the node's new state and mail to its owner."""
    write, width = plan.write, rows.shape[1]
    mail = torch.cat([rows[write.node], rows[write.other], plan.event_feature[write.event]], dim=1)
    mail = write.route.push(mail)
    memory.replace(write.rows, mail[:, :width], mail[:, width:], write.time)


def step(plan, model, memory, flat, reduce):
    """Collective. One step up to the gradient; returns the loss of the global batch."""
    logits = forward(plan, model, memory)
    positive = bce(logits[0], torch.ones_like(logits[0]), reduction="sum")
    negative = bce(logits[1:], torch.zeros_like(logits[1:]), reduction="sum") / plan.num_negatives
    # Divided by the events of all ranks: gradients are summed over ranks, never averaged.
    loss = (positive + negative) / plan.batch_size
    flat.zero()
    loss.backward()
    flat.extras[0] = loss.detach()
    flat.sum(reduce)
    return float(flat.extras[0])


if __name__ == "__main__":
    ranks = World()
    losses, metrics = train(sys.argv[1], world=ranks)
    if ranks.rank == 0:
        print(f"first loss {losses[0]:.4f}, last loss {losses[-1]:.4f}, validation AP {metrics['ap']:.4f}")
