"""Boundary node sampling: what is left of the remote nodes, and that it is right on average."""

import numpy as np
import pytest
import torch
from snapshot_runs import make_parts, one_thread

from hpcgnn.snapshots.graph import open_snapshot_partition
from hpcgnn.snapshots.neighborhood import Boundary, Builder, propagate


class RemoteNodes:
    """A halo that pulls without gradient."""

    def __init__(self, route):
        self.route = route

    def start(self, rows):
        return rows

    def finish(self, rows):
        return self.route.pull(rows)[0]


@pytest.fixture
def share(comm, mpi_tmp_path):
    parts, world = make_parts(comm, mpi_tmp_path), one_thread(comm)
    partition = open_snapshot_partition(parts, world.rank, world.size)
    return partition, Builder(partition, world.channel(), torch.float64, world.device, by_part=True)


def test_both_sides_choose_the_same(share):
    """Rows that are brought are those of the remote nodes that are left."""
    partition, builder = share
    block = builder.build(5)
    taken = Boundary(0.5, 3, partition.flat_row).sample(block, 1, 2, 5)
    (rows,) = taken.route.pull(torch.from_numpy(partition.flat_row))
    assert np.array_equal(rows.numpy(), taken.remote_row)
    assert len(taken.remote_degree) == len(taken.remote_row)


def test_messages_are_right_on_average(share):
    """The mean over many draws nears the whole sum; no draw alone is it."""
    partition, builder = share
    block, boundary = builder.build(5), Boundary(0.5, 3, partition.flat_row)
    rows = torch.from_numpy(np.sin(partition.flat_row)).unsqueeze(1).double()
    whole = propagate(block, RemoteNodes(block.route), "gcn", rows)
    draws = []
    for step in range(400):
        taken = boundary.sample(block, 0, step, 5)
        draws.append(propagate(taken, RemoteNodes(taken.route), "gcn", rows))
    draws = torch.stack(draws)
    error = (draws.mean(0) - whole).abs()
    assert (error <= 5 * draws.std(0) / 20 + 1e-12).all()
    assert builder.channel.size > 1 or draws.std(0).max() > 0
