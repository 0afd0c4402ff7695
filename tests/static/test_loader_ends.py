"""What loaders share with other ranks is given back: communicators and copies of the edges, of which MPI libraries and
machines have a limited number."""

from __future__ import annotations

import gc

import pytest
from link_graphs import friends
from mpi4py import MPI
from static_runs import make_static_parts, plain

from hpcgnn.comm import shared
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.link_loader import LinkNeighborLoader
from hpcgnn.static.loader import NeighborLoader


@pytest.fixture
def counted(comm):
    """A communicator, and a list that holds an entry for each living duplicate of it and of those."""
    living: list[int] = []
    key = MPI.Comm.Create_keyval(
        copy_fn=lambda comm, key, value: living.append(1) or value, delete_fn=lambda comm, key, value: living.pop()
    )
    counting = comm.Dup()
    counting.Set_attr(key, "counted")
    living.append(1)  # of itself
    yield counting, living
    counting.Free()
    MPI.Comm.Free_keyval(key)


@pytest.fixture
def windows(monkeypatch):
    """A list that holds every copy of edges that is not closed."""
    living: list[shared.MachineRows] = []
    begin, end = shared.MachineRows.__init__, shared.MachineRows.close

    def note(rows, *arguments, **options):
        begin(rows, *arguments, **options)
        living.append(rows)

    def forget(rows):
        end(rows)
        living.remove(rows)

    monkeypatch.setattr(shared.MachineRows, "__init__", note)
    monkeypatch.setattr(shared.MachineRows, "close", forget)
    return living


def open_graph(counting, comm, folder, make):
    parts = make_static_parts(comm, make, folder)
    return StaticGraph(parts, World(CommConfig(device="cpu", threads=1), counting))


def first_batch(loader):
    for batch in loader:  # an iteration left behind
        return batch


def test_loaders_that_are_gone_leave_no_communicator(comm, mpi_tmp_path, counted):
    counting, living = counted
    graph, most = open_graph(counting, comm, mpi_tmp_path, plain), []
    before = len(living)
    for _ in range(30):
        first_batch(NeighborLoader(graph, "train", [3, 2], 16, prefetch=2, in_flight=2))
        most.append(len(living))
    assert max(most) <= before + 4  # of the newest loader, and of the one before
    graph.close()
    assert len(living) < before


def test_a_loader_that_one_rank_keeps_stays_whole(comm, mpi_tmp_path, counted):
    counting, living = counted
    graph, kept, before = open_graph(counting, comm, mpi_tmp_path, plain), [], 0
    for number in range(6):
        loader = NeighborLoader(graph, "train", [3, 2], 16, prefetch=0)
        if comm.rank == 0:
            kept.append(loader)
        counts = comm.allgather(len(living))
        assert len(set(counts)) == 1
        if number > 0:
            assert counts[0] == before + 1
        before = counts[0]
        del loader
    kept.clear()
    gc.collect()
    last = NeighborLoader(graph, "train", [3, 2], 16, prefetch=0)
    assert len(living) == before - 5
    first_batch(last)
    graph.close()


@pytest.mark.parametrize("close", [False, True])
def test_links_leave_no_copy_of_the_edges(comm, mpi_tmp_path, counted, windows, close):
    """By loaders that are closed, collected, or still there when the graph is closed."""
    counting, living = counted
    graph = open_graph(counting, comm, mpi_tmp_path, friends)
    before, kept = len(living), []
    for _ in range(8):
        loader = LinkNeighborLoader(graph, "train", [3, 2], 24, prefetch=0, topology="replicated")
        first_batch(loader)
        if close:
            loader.close()
        assert len(windows) <= 2 * (comm.size > 1)
        assert len(living) <= before + 2 - close
    kept.append(LinkNeighborLoader(graph, "train", [3, 2], 24, prefetch=0, topology="replicated"))
    graph.close()
    assert not windows
    assert len(living) < before
