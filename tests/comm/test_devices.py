"""GPUs of ranks, as far as they show without one: which is taken, who shares it, and words for one that is full."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from mpi4py import MPI

from hpcgnn.comm import devices, gradients
from hpcgnn.comm import world as worlds
from hpcgnn.comm.devices import DeviceRoom, choose_gpus, cores_near
from hpcgnn.comm.launch import (
    CUDA_AWARE,
    LAUNCHER_LOCAL_RANKS,
    environment_without_launcher,
    local_rank_for_gpu,
)
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop import launch
from hpcgnn.native import dispatch
from hpcgnn.native.dispatch import Uploads

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

    for name in (*CUDA_AWARE.values(), "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
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


@pytest.mark.serial
@pytest.mark.parametrize("shape", [(), (0,), (7,), (300, 3), (2, 5, 100)])
def test_arrays_that_ranks_share_are_not_copied_whole(monkeypatch, shape):
    """On the host: every rank would hold a copy of the one that they share."""
    monkeypatch.setattr(dispatch, "SLAB_BYTES", 256)
    array = torch.rand(shape).numpy()
    array.flags.writeable = False
    slabs = []
    make = torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda rows: (slabs.append(rows), make(rows))[1])
    upload = Uploads(torch.device("cpu"))
    found, wide = upload._in_slabs(array, None), upload._in_slabs(array, torch.float64)
    assert (found.numpy() == array).all()
    assert found.shape == wide.shape == shape
    assert (found.dtype, wide.dtype) == (torch.float32, torch.float64)
    assert max((rows.nbytes for rows in slabs), default=0) <= 256


# ------------------------------------------------------------------------------------------------ which GPU is taken


@pytest.mark.serial
@pytest.mark.parametrize(("cores", "near", "chosen"), [
    ([{0}, {1}, {2}, {3}], [{3}, {2}, {1}, {0}], [3, 2, 1, 0]),  # as on machines whose cards are in reverse order
    ([{0, 1}, {2, 3}], [{0, 1}, {0, 1}, {2, 3}, {2, 3}], [0, 2]),
    ([{0, 1}, {0, 1}], [{0, 1}, {0, 1}], [0, 1]),  # ranks that are not bound
    ([{0}, {1}, {2}], [set(), set(), set()], [0, 1, 2]),  # where nothing is known
    ([{0}, {0}], [{0}, {1}], [0, 1]),
    ([{0}, {1}, {2}], [{2}, {1}], [0, 1, 0]),  # more ranks than GPUs
    ([{3}], [{3}], [0]),
])  # fmt: skip
def test_gpus_near_the_cores_of_a_rank_are_taken(cores, near, chosen):
    assert choose_gpus(cores, near) == chosen


@pytest.mark.serial
def test_linux_knows_which_cores_are_near(monkeypatch, tmp_path):
    slot = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: slot if index == 0 else SimpleNamespace())
    monkeypatch.setattr(devices, "PCI", tmp_path)
    assert cores_near(0) == set()  # no such file
    (tmp_path / "0000:c1:00.0").mkdir()
    (tmp_path / "0000:c1:00.0" / "local_cpulist").write_text("0-3,64,66-67\n")
    assert cores_near(0) == {0, 1, 2, 3, 64, 66, 67}
    assert cores_near(1) == set()  # an older torch, which does not know the slot


def test_a_rank_takes_the_gpu_near_its_cores(comm, gpus, monkeypatch):
    gpus(comm.size)
    monkeypatch.setattr(worlds.os, "sched_getaffinity", lambda process: {comm.rank})
    monkeypatch.setattr(worlds, "cores_near", lambda gpu: {comm.size - 1 - gpu})
    assert World(CONFIG, comm).device.index == comm.size - 1 - comm.rank


def test_mpi_that_takes_device_memory_starts_with_the_gpu_of_the_local_rank(comm, gpus, monkeypatch):
    """It stays that one, wherever the cores are."""
    gpus(comm.size)
    for name in LAUNCHER_LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_LOCALID", str(comm.size - 1 - comm.rank))
    assert World(CONFIG, comm).device.index == comm.rank
    monkeypatch.setenv("MPICH_GPU_SUPPORT_ENABLED", "1")
    assert World(CONFIG, comm).device.index == comm.size - 1 - comm.rank


EARLY = """
import sys, torch
found = []
torch.cuda.is_available, torch.cuda.device_count = (lambda: True), (lambda: 4)
torch.cuda.set_device = lambda device: found.append((device, "mpi4py.MPI" in sys.modules))
import hpcgnn.comm.world
print(found)
"""


@pytest.mark.serial
@pytest.mark.parametrize(("variables", "local_rank"), [
    ({"MPICH_GPU_SUPPORT_ENABLED": "1", "SLURM_LOCALID": "2"}, 2),
    ({"MPICH_GPU_SUPPORT_ENABLED": "1", "PALS_LOCAL_RANKID": "6", "SLURM_LOCALID": "0"}, 6),
    ({"MV2_USE_CUDA": "1", "MV2_COMM_WORLD_LOCAL_RANK": "1"}, 1),
    ({"MPICH_GPU_SUPPORT_ENABLED": "1"}, None),
    ({"MPICH_GPU_SUPPORT_ENABLED": "0", "SLURM_LOCALID": "2"}, None),
    ({"SLURM_LOCALID": "2"}, None),
])  # fmt: skip
def test_the_launcher_knows_the_local_rank(gpus, monkeypatch, variables, local_rank):
    """A GPU is taken by it where the environment says that MPI takes device memory."""
    for name in LAUNCHER_LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert local_rank_for_gpu() == local_rank


@pytest.mark.serial
def test_a_rank_has_its_gpu_before_mpi_starts():
    variables = {"MPICH_GPU_SUPPORT_ENABLED": "1", "SLURM_LOCALID": "6"}
    run = subprocess.run(
        [sys.executable, "-c", EARLY], env=environment_without_launcher() | variables, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert run.stdout.strip() == "[(2, False)]", run.stderr


# ------------------------------------------------------------------------------------------------- GPUs that are shared


def test_ranks_that_share_gpus_are_warned_of(comm, gpus):
    gpus(2)
    world = World(CONFIG, comm)
    assert world.room.ranks == -(-comm.size // 2)
    said = "\n".join(world.describe_sharing())
    assert (f"warning: {world.room.ranks} ranks share a GPU: start one rank for each GPU" in said) == (comm.size > 2)
    assert ("1 GPUs of a machine are not used" in said) == (comm.size == 1)
    assert World(CommConfig(device="cpu", threads=1), comm).describe_sharing() == []


def test_slices_of_a_gpu_are_no_gpus_of_ranks(comm, gpus, monkeypatch):
    """NCCL refuses two of one GPU: gradients go by MPI. Each process sees one slice at most."""
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    gpus(1, [f"MIG-{comm.rank}"], "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    world = World(CONFIG, comm)
    assert (world.room.ranks, world.describe_sharing()) == (1, [])
    assert gradients._choose(world) == "mpi"
    gpus(1, ["MIG-0"], "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    world = World(CONFIG, comm)
    warning = f"warning: {comm.size} ranks share a GPU: name another slice for each rank by CUDA_VISIBLE_DEVICES"
    assert world.describe_sharing() == [warning] * (comm.size > 1)
    gpus(1, [f"GPU-{comm.rank}"])
    assert gradients._choose(World(CONFIG, comm)) == "nccl"
    world = World(CommConfig(threads=1, watchdog_seconds=0, gradients="nccl"), comm)
    gpus(1, [f"MIG-{comm.rank}"], "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    with pytest.raises(DistributedError, match=r"a GPU of its own, and no slice of one \(MIG\); use mpi or auto"):
        gradients._choose(world)
