"""What only ranks with GPUs reach, as far as a pretended device shows it: calls of MPI in a backward pass, tables in
pinned memory, the group that NCCL needs, the self-check."""

from __future__ import annotations

import mmap
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from mpi4py import MPI
from pretended_device import DEVICE, is_there, pretended_device
from test_feature_storage import write_pieces

from hpcgnn import info, native
from hpcgnn.comm import gradients, world
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import CommConfig, DistributedError, World, mpi_is_gpu_aware
from hpcgnn.graph import columns
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.native import dispatch


@pytest.fixture
def device():
    """A pretended one."""
    pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    with pretended_device():
        torch.cuda.set_device(DEVICE)
        yield DEVICE


def test_backward_passes_that_would_call_mpi_from_a_second_thread(comm, device, monkeypatch):
    """PyTorch runs a device's backward pass in a thread of its own; an MPI that takes one thread's calls forbids it."""
    monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_FUNNELED)
    one = World(CommConfig(threads=1), comm)
    ids = np.arange(3 * comm.size)
    route = Route.plan(BlockOwnership.even(3 * comm.size, comm.size), ids, one.channel())
    rows = torch.ones(3, 2, device=device, requires_grad=True)
    if comm.size > 1:
        with pytest.raises(ValueError, match="allows calls from one thread only: use one with MPI_THREAD_MULT"):
            HaloChain().start(route, rows)
    for harmless in (rows.detach(), torch.ones(3, 2, requires_grad=True)):
        served = route if not is_there(harmless) else Route.alone(one.own_channel(), torch.arange(3, device=device))
        HaloChain().pull(served, harmless)


@pytest.mark.parametrize("direct", [False, True])
def test_rows_of_a_device_for_all_ranks(comm, device, direct):
    """Staged on the host they are all copied, though some are for this rank, too."""
    channel = Channel(comm, direct=direct)
    rows = torch.full((3, 2), float(comm.rank), device=device)
    received = channel.everyone(rows)
    assert is_there(received) == is_there(rows)
    assert received.cpu().tolist() == [[float(rank)] * 2 for rank in range(comm.size) for _ in range(3)]
    channel.close()


@pytest.mark.serial
@pytest.mark.parametrize("width", [1, 3, 4096])
def test_pinned_tables_share_no_page(device, monkeypatch, tmp_path, width):
    """A driver pins whole pages, and refuses one that is pinned already."""
    tables = []
    monkeypatch.setattr(columns, "seen_from", lambda _, table: (tables.append(table), table.to(device))[1])
    values = np.random.default_rng(0).random((30, width), np.float32)
    column = write_pieces(tmp_path, [values[:13], values[13:]])
    for _ in range(3):
        columns.load_pinned(column, torch.float32, False, device, np.zeros(0, np.int64))
    pages = [
        range(t.data_ptr() // mmap.PAGESIZE, (t.data_ptr() + 4 * t.numel() - 1) // mmap.PAGESIZE + 1) for t in tables
    ]
    assert all(t.data_ptr() % mmap.PAGESIZE == 0 for t in tables)
    assert not set(pages[0]) & set(pages[1]) | set(pages[1]) & set(pages[2])
    assert torch.equal(tables[2], torch.from_numpy(values))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("library", "variable", "aware"),
    [
        ("Open MPI v5.0.11", "MPICH_GPU_SUPPORT_ENABLED", False),
        ("MPICH Version: 5.0.2", "MV2_USE_CUDA", False),
        ("MPI VERSION    : CRAY MPICH version 8.1.28.2", "MPICH_GPU_SUPPORT_ENABLED", True),
        ("MVAPICH2 Version      : 2.3.7", "MV2_USE_CUDA", True),
        ("MVAPICH2 Version      : 2.3.7", "MPICH_GPU_SUPPORT_ENABLED", False),
    ],
)
def test_variables_of_other_libraries_say_nothing(monkeypatch, library, variable, aware):
    monkeypatch.setattr(MPI, "Get_library_version", lambda: library)
    monkeypatch.setattr(world, "gpu_query", lambda: None)
    monkeypatch.setenv(variable, "1")
    assert mpi_is_gpu_aware() == aware


@pytest.mark.parametrize("name", ["localhost", "no-such-host.invalid"])
def test_a_group_needs_no_name_of_a_machine(comm, monkeypatch, name):
    """Other machines may not know it, or reach another machine by it: the addresses of network cards are tried."""
    one = World(CommConfig(threads=1, gradients="gloo"), comm)
    one.host = name
    first, *cards, last = gradients._addresses(one)
    assert (first, last, gradients.LOOPBACK in cards) == (gradients.LOOPBACK, name, False)
    monkeypatch.setattr(gradients, "_addresses", lambda world: [last, *cards, first])
    gradients._join_process_group(one.mpi, "gloo", one)
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    torch.distributed.destroy_process_group()
    assert total == comm.size


@pytest.mark.several_ranks
def test_a_machine_that_cannot_be_reached_is_named(comm, monkeypatch):
    monkeypatch.setattr(gradients, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(gradients, "_addresses", lambda world: ["no-such-host.invalid", "198.51.100.1"])
    one = World(CommConfig(threads=1), comm)
    words = r"cannot connect to port \d+ of rank 0 at no-such-host.invalid or 198.51.100.1: .* --comm.gradients=mpi"
    with pytest.raises(DistributedError, match=words):
        gradients._join_process_group(one.mpi, "gloo", one)


@pytest.mark.serial
def test_a_store_of_another_job_is_left_alone():
    """Two machines may have one address, such as that of their containers."""
    other = torch.distributed.TCPStore(gradients.LOOPBACK, 0, 1, is_master=True, wait_for_workers=False)
    with pytest.raises(ValueError, match="cannot connect to port"):
        gradients._reach([gradients.LOOPBACK], other.port, "token", 1)
    other.set("token", "")
    assert gradients._reach([gradients.LOOPBACK], other.port, "token", 1).check(["token"])


@pytest.fixture
def debug():
    """As with train.debug."""
    dispatch.check_indices(True)
    yield
    dispatch.check_indices(False)


@pytest.mark.serial
def test_indices_are_looked_at_where_that_is_asked_for(debug):
    rows = torch.ones(4, 2)
    lists, below = (native.EdgeLists(torch.tensor([0, 2]), torch.tensor([1, source]), 4) for source in (4, -1))
    for call, name in (
        (lambda: native.gather_rows(rows, torch.tensor([0, 3, 9, -1])), "gather_rows: index 9 at place 2 of 4"),
        (lambda: native.scatter_rows(rows, torch.tensor([4]), rows[:1]), "scatter_rows: index 4 at place 0 of 1"),
        (lambda: native.segment_sum(rows, lists), "segment_sum: index 4 at place 1 of 2, where there are 4 rows"),
        (lambda: native.segment_sum(rows, below), "segment_sum: index -1 at place 1 of 2, where there are 4 rows"),
        (lambda: native.segment_max(rows, lists), "segment_max: index 4"),
        (lambda: native.segment_max(rows, below), "segment_max: index -1"),
        (lambda: native.graph_attention(rows, rows, rows[:1], lists), "graph_attention: index 4"),
        (lambda: native.graph_attention(rows, rows, rows[:1], below), "graph_attention: index -1"),
    ):
        with pytest.raises(IndexError, match=name):
            call()
    assert native.gather_rows(rows, torch.tensor([3, -1])).tolist() == [[1, 1], [0, 0]]


@pytest.mark.serial
def test_indices_of_plans_on_a_device_are_looked_at(debug):
    pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    history, random = torch.tensor([0, 2, 3]), native.Random(0, native.Stream.NEIGHBOR)
    graph = history, torch.arange(3), torch.arange(3)
    with dispatch.emulation():
        for wrong in (2, -1):
            nodes, times = torch.tensor([0, wrong]), torch.tensor([5, 5])
            for call, name in (
                (lambda: native.sample_recent(graph, nodes, times, 2), "sampling of histories"),  # noqa: B023
                (lambda: native.sample_neighbors(history, nodes, history, 1, random), "sample_neighbors"),  # noqa: B023
            ):
                with pytest.raises(IndexError, match=f"{name}: index {wrong} at place 1 of 2, where there are 2 rows"):
                    call()
        with pytest.raises(IndexError, match="temporal_reply: index 3 at place 1 of 2"):
            native.temporal_reply(*graph, torch.tensor([[-1, 3]]), torch.tensor([5]))
        with pytest.raises(IndexError, match="transpose_index: index -2 at place 0 of 2"):
            native.transpose_index(torch.tensor([-2, -1], dtype=torch.int32), 2)


@pytest.mark.several_ranks
def test_threads_begin_with_another_device(comm, device):
    """As on machines with several GPUs: kernels are refused there."""
    torch.cuda.set_device(device)
    rows, index = torch.ones(2, 2, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    native.gather_rows(rows, index)
    found = []

    def use(context):
        try:
            with context:
                found.append(len(native.gather_rows(rows, index)))
        except ValueError as error:
            found.append(str(error))

    for context in (nullcontext(), torch.cuda.device(device)):
        thread = threading.Thread(target=use, args=(context,))
        thread.start()
        thread.join()
    refused = f"tensor on {device}, but this thread's device is 0"
    assert found == [refused if comm.rank else 1, 1]


@pytest.mark.serial
def test_the_self_check_runs_kernels_of_the_device(device, monkeypatch):
    """One that gives other numbers is named."""
    one = World(CommConfig(threads=1), MPI.COMM_SELF)
    assert one.device == device
    assert info._device_agrees(device)
    right = native.gather_rows
    monkeypatch.setattr(native, "gather_rows", lambda table, index: right(table, index) + is_there(table))
    assert not info._device_agrees(device)
