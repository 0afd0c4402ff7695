"""Halo exchange inside a model: outputs and gradients of all ranks together are those of one dense computation."""

import weakref

import numpy as np
import pytest
import torch

from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph.book import BlockOwnership

NODES, WIDTH, LAYERS, GRAPHS = 23, 5, 3, 4


@pytest.fixture(scope="module")
def world(comm):
    return World(CommConfig(device="cpu", threads=1, watchdog_seconds=0), comm)


class Share:
    """A rank's rows of several random graphs over the same nodes, one without edges: rows [n, N] of their matrices,
    and routes to the other nodes that these meet."""

    def __init__(self, world):
        generator = torch.Generator().manual_seed(7)
        shape = (GRAPHS, NODES, NODES)
        self.matrices = torch.randn(shape, dtype=torch.float64, generator=generator) * (
            torch.rand(shape, generator=generator) < 0.15
        )
        self.matrices[1] = 0
        ownership = BlockOwnership.even(NODES, world.size)
        self.first, self.last = int(ownership.starts[world.rank]), int(ownership.starts[world.rank + 1])
        self.own, self.remote, self.routes, channel = [], [], [], world.channel()
        for matrix in self.matrices:
            mine = matrix[self.first : self.last]
            met = mine.any(0)
            met[self.first : self.last] = False
            ids = torch.nonzero(met).ravel().flip(0)
            self.own.append(mine[:, self.first : self.last])
            self.remote.append(mine[:, ids])
            self.routes.append(Route.plan(ownership, ids.numpy(), channel))


def make_inputs():
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(NODES, WIDTH, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(LAYERS, WIDTH, WIDTH, dtype=torch.float64, generator=generator, requires_grad=True)
    return rows, weight


def dense(share, rows, weight):
    """Layers over every graph, the graphs' results added up as they come (recurrent: each starts with the last)."""
    total, state = 0, rows
    for matrix in share.matrices:
        for layer in weight:
            state = torch.tanh(matrix @ state @ layer + state)
        total = total + state
    return total


def spread(share, rows, weight, chain):
    """The same for this rank's rows; every layer computes its own part while the halo is on its way."""
    total, state = 0, rows
    for own, remote, route in zip(share.own, share.remote, share.routes, strict=True):
        for layer in weight:
            message = state @ layer
            exchange = chain.start(route, message)
            inner = own @ message
            state = torch.tanh(inner + remote @ chain.finish(exchange) + state)
        total = total + state
    return total


@pytest.mark.parametrize("losing", ["all", "last rank", "no input"])
def test_values_and_gradients_are_the_dense_ones(world, losing):
    """Also where the loss of most ranks depends on nothing, and where the input needs no gradient."""
    share, (rows, weight) = Share(world), make_inputs()
    weighted = torch.sin(torch.arange(NODES * WIDTH, dtype=torch.float64)).view(NODES, WIDTH)
    counted = share.first if losing == "last rank" and world.rank < world.size - 1 else share.last
    if losing == "last rank":
        begin = int(BlockOwnership.even(NODES, world.size).starts[world.size - 1])
        weighted[:begin] = 0
    expected = dense(share, rows, weight)
    (expected * weighted).sum().backward()

    mine = rows.detach()[share.first : share.last].clone().requires_grad_(losing != "no input")
    own_weight, chain = weight.detach().clone().requires_grad_(), HaloChain()
    found = spread(share, mine, own_weight, chain)
    taken = slice(0, counted - share.first)
    chain.tie((found[taken] * weighted[share.first : share.last][taken]).sum()).backward()

    assert torch.allclose(found, expected[share.first : share.last], rtol=1e-12, atol=1e-12)
    summed = world.reduce_array(own_weight.grad.numpy())
    assert np.allclose(summed, weight.grad.numpy(), rtol=1e-10, atol=1e-12)
    if losing != "no input":
        assert torch.allclose(mine.grad, rows.grad[share.first : share.last], rtol=1e-10, atol=1e-12)


def test_exchanges_may_run_ahead(world):
    """All graphs' exchanges are started before the first is finished; each takes part in the gradient once."""
    share, (rows, _) = Share(world), make_inputs()
    expected = sum(torch.tanh(matrix @ rows) for matrix in share.matrices)
    expected.pow(2).sum().backward()
    mine = rows.detach()[share.first : share.last].clone().requires_grad_()
    chain = HaloChain()
    ahead = [chain.start(route, mine) for route in share.routes]
    found = 0
    for own, remote, exchange in zip(share.own, share.remote, ahead, strict=True):
        found = found + torch.tanh(own @ mine + remote @ chain.finish(exchange))
    chain.tie(found.pow(2).sum()).backward()
    assert torch.allclose(found, expected[share.first : share.last])
    assert torch.allclose(mine.grad, rows.grad[share.first : share.last])


def test_what_was_pulled_is_freed_with_the_last_that_uses_it(world):
    """At once: layers of a whole graph are large."""
    share, (rows, _) = Share(world), make_inputs()
    chain = HaloChain()
    remote_nodes = chain.pull(share.routes[0], rows[share.first : share.last])
    chain.tie(remote_nodes.sum()).backward()
    held = weakref.ref(remote_nodes)
    del remote_nodes
    assert held() is None


@pytest.mark.several_ranks
def test_memory_of_an_exchange_that_nobody_waits_for_is_kept_until_it_has_ended(comm, world):
    """As where a model fails between start and finish: MPI writes the rows whenever they come."""
    channel, rows, counts = world.channel(), torch.ones(comm.size, WIDTH), np.ones(comm.size, np.int64)
    late = comm.rank == comm.size - 1
    if late:
        comm.Barrier()
    transfer = channel.start(rows, counts, counts)
    held = weakref.ref(transfer.held[1])
    del transfer
    kept = late or held() is not None  # the last rank sends nothing before the barrier
    if not late:
        comm.Barrier()
    assert all(comm.allgather(kept))
    while comm.allreduce(held() is not None):
        channel.rows(rows, counts, counts)
    channel.close()


def test_without_gradients_nothing_is_chained(world):
    share, (rows, _) = Share(world), make_inputs()
    chain = HaloChain()
    with torch.no_grad():
        remote_nodes = chain.pull(share.routes[0], rows[share.first : share.last])
    loss = torch.ones((), requires_grad=True)
    assert chain.tie(loss) is loss
    assert remote_nodes.shape == (share.routes[0].num_wanted, WIDTH)
