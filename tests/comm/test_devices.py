"""GPUs of ranks, as far as they show without one: which is taken, who shares it, and words for one that is full."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from mpi4py import MPI

from hpcgnn.comm import devices
from hpcgnn.comm.devices import DeviceRoom
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop import launch

GPU, GIB = torch.device("cuda", 0), 1 << 30
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139 GiB")
CONFIG = CommConfig(threads=1, watchdog_seconds=0, gpu_direct="off")


@pytest.fixture
def gpus(monkeypatch):
    """Sets how many GPUs torch sees; their UUIDs, one a GPU, and their name."""

    def pretend(count: int, uuids: list[str] | None = None, name: str = "NVIDIA H200") -> None:
        def properties(device):
            index = device if isinstance(device, int) else device.index
            return SimpleNamespace(uuid=(uuids or [f"GPU-{number}" for number in range(count)])[index], name=name)

        for stub, value in {
            "is_available": lambda: count > 0, "device_count": lambda: count, "set_device": lambda device: None,
            "get_device_properties": properties, "mem_get_info": lambda device: (3 * GIB, 139 * GIB),
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, stub, value)

    return pretend


# ---------------------------------------------------------------------------------------------- memory that is full


@pytest.mark.serial
@pytest.mark.parametrize(("size", "ranks", "fits"), [
    (0, 1, True), (50, 1, True), (51, 1, False), (25, 2, True), (26, 2, False), (12, 4, True), (13, 4, False),
])  # fmt: skip
def test_ranks_that_share_a_gpu_divide_what_is_free(monkeypatch, size, ranks, fits):
    """All of them look before any of them takes its half."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (101, 1000))
    assert DeviceRoom(GPU, ranks).takes(size) == fits
    assert DeviceRoom(torch.device("cpu"), ranks).takes(size)


@pytest.mark.serial
def test_a_full_gpu_is_a_line_with_the_remedy(gpus):
    """Of what lies there, that of the largest which can lie elsewhere."""
    gpus(1)
    room = DeviceRoom(GPU, 2)
    room.note("node memory", 70 * GIB)
    room.note("features", 60 * GIB, "features.storage pinned")
    room.note("edges", 3 * GIB, "sampling.plan_on host")
    assert room.explain(FULL) == (
        "out of memory on cuda:0 (NVIDIA H200): 20.00 GiB wanted, 3.00 GiB of 139.00 GiB free; the rank places there "
        "node memory 70.00 GiB, features 60.00 GiB, edges 3.00 GiB; 2 ranks share the GPU; use features.storage "
        f"pinned, or {devices.SMALLER}"
    )
    assert room.explain(RuntimeError("another")) == ""
    assert DeviceRoom(GPU).explain(torch.OutOfMemoryError("odd")).startswith(
        "out of memory on cuda:0 (NVIDIA H200): more memory wanted, 3.00 GiB of 139.00 GiB free; use a smaller"
    )  # fmt: skip


def test_ranks_leave_together_where_a_gpu_is_full(comm, gpus):
    gpus(comm.size)
    world, last = World(CONFIG, comm), comm.size - 1

    def read():
        with together(world, "read the features"):
            if comm.rank == last:
                raise FULL

    words = rf"rank {last} of {comm.size} on .*: out of memory on cuda:{last} .*20.00 GiB wanted.* \[read the features"
    with pytest.raises(DistributedError, match=words) as caught:
        read()
    assert caught.value.user_error


@pytest.mark.serial
def test_a_step_that_finds_no_memory_ends_with_a_line(gpus, capsys):
    """Elsewhere than where all ranks wait for one another: the job is ended."""
    gpus(1)

    def main(world, argv):
        with Watchdog(World(CONFIG, MPI.COMM_SELF), 0) as watchdog:
            watchdog.at("train", 3)
            raise FULL

    assert launch.run(main, []) == launch.EXIT_FAILURE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: rank 0 of 1 on ")
    assert ": out of memory on cuda:0 (NVIDIA H200): 20.00 GiB wanted" in line
    assert line.endswith(" [train, step 3]")


