"""The best-scored rows of all ranks: those of one sorted table, and their gradients, at the rows' owners."""

import pytest
import torch

from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.snapshots.model.evolving import best_rows
from hpcgnn.snapshots.model.frame import Frame, Snapshot
from hpcgnn.snapshots.step import RankRows

FRAMES, SEQUENCES, WIDTH = 3, 2, 4


@pytest.fixture(scope="module")
def world(comm):
    return World(CommConfig(device="cpu", threads=1, watchdog_seconds=0), comm)


def make_rows(nodes):
    """Few different values, so that many rows score alike; the direction has length 1."""
    generator = torch.Generator().manual_seed(4)
    rows = torch.randint(-1, 2, (FRAMES, nodes, SEQUENCES, WIDTH), generator=generator).double()
    return rows, torch.tensor([0.5, 0.5, -0.5, 0.5], dtype=torch.float64)


def sorted_best(rows, direction, number):
    """Of one problem: rows [N, D]."""
    score = rows @ direction
    order = sorted(range(len(rows)), key=lambda row: (-score[row].item(), row))[:number]
    found = rows[order] * torch.tanh(score[order])[:, None]
    return torch.cat([found, found.new_zeros(number - len(order), WIDTH)])


@pytest.mark.parametrize("number", [1, 5, 40])
@pytest.mark.parametrize("nodes", [3, 23])
def test_best_of_all_ranks(world, nodes, number):
    """Every rank weighs what it gets by a factor of its own: owners get the sum. Ties go to lower row ids, which are
    spread over the ranks; with few nodes some ranks have none."""
    rows, direction = make_rows(nodes)
    identity = torch.randperm(nodes, generator=torch.Generator().manual_seed(1))[world.rank :: world.size]
    mine = rows[:, identity].clone().requires_grad_()
    toward = direction.clone().requires_grad_()
    chain = HaloChain()
    everyone = RankRows(chain, world.channel()) if world.size > 1 else None
    frames = [Frame([Snapshot(i, None, None, identity)] * SEQUENCES, everyone=everyone) for i in range(FRAMES)]
    found = torch.stack(best_rows(frames, list(mine), toward, number))
    factor = torch.cos(torch.arange(found.numel(), dtype=torch.float64)).view(found.shape)
    chain.tie((found * factor).sum() * (1 + world.rank)).backward()

    rows, direction = rows.requires_grad_(), direction.requires_grad_()
    expected = torch.stack([
        torch.stack([sorted_best(piece, direction, number) for piece in some.unbind(1)]) for some in rows
    ])  # fmt: skip
    ((expected * factor).sum() * sum(range(1, 1 + world.size))).backward()
    assert torch.equal(found, expected)
    assert torch.allclose(mine.grad, rows.grad[:, identity], rtol=1e-12, atol=1e-12)
    assert torch.allclose(torch.from_numpy(world.reduce_array(toward.grad.numpy())), direction.grad)
