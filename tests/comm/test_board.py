"""Routes over memory that the ranks of a machine share: rows and sums are those of messages, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.comm import board as boards
from hpcgnn.comm.board import BoardRoute, make_board
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph.book import BlockOwnership

TOTAL = 97


def make_world(comm, ranks_per_machine: int) -> World:
    """Collective."""
    return World(CommConfig(device="cpu", threads=1, ranks_per_machine=ranks_per_machine), comm)


def make_route(world, channel, seed: int, wanted: int) -> tuple[BlockOwnership, Route]:
    """Collective. Every rank wants other ids, the second one none."""
    ownership, rng = BlockOwnership.even(TOTAL, world.size), np.random.default_rng([seed, world.rank])
    ids = np.sort(rng.choice(TOTAL, 0 if world.rank == 1 else wanted, replace=False))
    return ownership, Route.plan(ownership, ids, channel)


@pytest.mark.several_ranks
@pytest.mark.parametrize("ranks_per_machine", [0, 2])
def test_rows_and_sums_are_those_of_messages(comm, ranks_per_machine):
    """Step after step, some of which need more room than those before; without a meeting that no row needs."""
    world = make_world(comm, ranks_per_machine)
    board, channel = make_board(world), world.channel(by_machine=True)
    for seed, wanted in enumerate([5, 40, 20, 0, 90, 90, 30]):
        ownership, plain = make_route(world, channel, seed, wanted)
        route = BoardRoute.upon(board, plain)
        num_own = int(ownership.starts[world.rank + 1] - ownership.starts[world.rank])
        generator = torch.Generator().manual_seed(100 * seed + world.rank)
        table = torch.randn(num_own, 3, 2, generator=generator)
        time = torch.randint(1 << 60, (num_own,), generator=generator)
        for _ in range(2):
            for got, expected in zip(route.pull(table, time), plain.pull(table, time), strict=True):
                assert torch.equal(got, expected)
        (got,), (expected,) = (each.pull_served(table[plain.served]) for each in (route, plain))
        assert torch.equal(got, expected)
        rows = torch.randn(plain.num_wanted, 7, dtype=torch.float64, generator=generator)
        for _ in range(2):
            assert torch.equal(route.push_sum(rows), plain.push_sum(rows))
    board.close()


@pytest.mark.several_ranks
def test_a_group_that_lies_on_two_machines_has_no_board(comm, monkeypatch):
    """Its ranks are neighbors of other groups alone; a group beside it on one machine has one."""
    monkeypatch.setattr(World, "machine", lambda world: world.mpi.Split(comm.rank // 3, world.rank))
    world = make_world(comm, 0).split(2)
    board, channel = make_board(world), world.channel(by_machine=True)
    machines = {(comm.rank - world.rank + rank) // 3 for rank in range(world.size)}
    assert (board is None) == (len(machines) == world.size)
    ownership, plain = make_route(world, channel, 0, 30)
    if board is not None:
        route = BoardRoute.upon(board, plain)
        table = torch.arange(float(ownership.starts[world.rank + 1] - ownership.starts[world.rank]))[:, None]
        assert torch.equal(*(each.pull(table)[0] for each in (route, plain)))
        board.close()


@pytest.mark.several_ranks
@pytest.mark.parametrize("ranks_per_machine", [0, 2])
def test_rows_of_other_nodes_alone_are_sent(comm, ranks_per_machine):
    world = make_world(comm, ranks_per_machine)
    board, channel = make_board(world), world.channel(by_machine=True)
    ownership, plain = make_route(world, channel, 0, 30)
    route = BoardRoute.upon(board, plain)
    table = torch.zeros(int(ownership.starts[world.rank + 1] - ownership.starts[world.rank]), 4)
    before = channel.sent_to.copy()
    (rows,) = route.pull(table)
    route.push_sum(rows)
    sent = channel.sent_to - before
    is_far = np.array([rank // (ranks_per_machine or world.size) != world.rank // (ranks_per_machine or world.size)
                       for rank in range(world.size)])  # fmt: skip
    assert np.array_equal(sent, 16 * np.where(is_far, plain.serve_counts + plain.want_counts, 0))
    board.close()


@pytest.mark.several_ranks
def test_bytes_within_a_node_are_counted(comm):
    """To whom they went, whichever communicator they took."""
    world = make_world(comm, 2)
    channel, ones = world.channel(by_machine=True), np.ones(world.size, np.int64)
    channel.rows(torch.zeros(world.size, 4), ones, ones)
    expected = np.where(np.arange(world.size) == world.rank, 0, 16)
    if channel.machine is not None:
        ones = ones[: channel.machine.size]
        channel.machine.rows(torch.zeros(len(ones), 4), ones, ones)
        expected[np.arange(world.size) // 2 == world.rank // 2] *= 2
    assert channel.sent().tolist() == expected.tolist()


@pytest.mark.several_ranks
def test_a_node_without_room_sends_messages(comm, monkeypatch):
    """From the first step on, or when more room is needed than there is."""
    world = make_world(comm, 0)
    channel, makes = world.channel(by_machine=True), boards.share_columns
    for last in (0, 30):
        board = make_board(world)
        monkeypatch.setattr(boards, "share_columns", lambda w, shapes, last=last: (
            makes(w, shapes) if shapes[0][0][0] <= boards.SPARE * last else None))  # fmt: skip
        for seed, wanted in enumerate([10, 60, 10]):
            _, plain = make_route(world, channel, seed, wanted)
            route = BoardRoute.upon(board, plain)
            rows = torch.arange(3.0 * len(plain.served)).view(-1, 3)
            assert torch.equal(route.pull_served(rows)[0], plain.pull_served(rows)[0])
            wanted_rows = torch.arange(3.0 * plain.num_wanted).view(-1, 3)
            assert torch.equal(route.push_sum(wanted_rows), plain.push_sum(wanted_rows))
        assert not board.has_room
        board.close()


def test_no_board_where_ranks_are_alone(comm):
    assert make_board(make_world(comm, 1)) is None
