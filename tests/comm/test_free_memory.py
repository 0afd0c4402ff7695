"""Free memory and granted cores: of the machine, or of the control group that a batch system made for the job."""

import os

import pytest
import torch
from mpi4py import MPI

from hpcgnn.comm import memory
from hpcgnn.comm.shared import free_memory
from hpcgnn.comm.world import CommConfig, World

GIB = 1 << 30


def write(folder, **values):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("__", ".")).write_text(value)


@pytest.fixture(params=[1, 2])
def groups(request, tmp_path, monkeypatch):
    """A machine with 64 GiB free. Returns a function that sets a group's limit, usage and unread pages of files, in
    GiB."""
    version, root = request.param, tmp_path / "cgroup"
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   67108864 kB\n")
    lines = {1: "9:cpu:/\n4:memory:/slurm/job_1/step_0\n", 2: "0::/slurm/job_1/step_0\n"}
    (tmp_path / "own").write_text(lines[version])
    monkeypatch.setattr(memory, "MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "GROUPS", root)

    def limit(path, most, used, unread=0):
        stat = f"cache 5\n{'total_' if version == 1 else ''}inactive_file {unread * GIB}\n"
        place = (root / "memory" if version == 1 else root) / path
        names = ("limit_in_bytes", "usage_in_bytes") if version == 1 else ("max", "current")
        values = (most if isinstance(most, str) else str(most * GIB), str(used * GIB))
        write(place, memory__stat=stat, **{f"memory__{n}": value for n, value in zip(names, values, strict=True)})

    return limit


def test_the_machine_counts_where_no_group_has_a_limit(groups):
    groups("slurm/job_1/step_0", "max", 3)
    assert memory.free_bytes() == 64 * GIB


def test_the_tightest_group_counts(groups):
    groups("slurm/job_1/step_0", 32, 3)
    groups("slurm/job_1", 16, 6)
    assert memory.free_bytes() == 10 * GIB
    groups("slurm/job_1", 16, 20)
    assert memory.free_bytes() == 0


def test_pages_of_files_that_nobody_reads_are_free(groups):
    groups("slurm/job_1", 16, 15, unread=12)
    assert memory.free_bytes() == 13 * GIB


def test_copies_are_decided_by_the_job_not_by_the_machine(groups, comm):
    groups("slurm/job_1", 1, 0)
    assert 0 < free_memory(World(CommConfig(device="cpu", threads=1, watchdog_seconds=0), comm)) <= GIB


@pytest.fixture(params=[1, 2])
def quota(request, tmp_path, monkeypatch):
    """Returns a function that sets a control group's quota, in cores; None: none."""
    version, root = request.param, tmp_path / "cgroup"
    (tmp_path / "own").write_text({1: "9:cpu,cpuacct:/pod/box\n4:memory:/\n", 2: "0::/pod/box\n"}[version])
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "GROUPS", root)
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))

    def limit(path, cores):
        if version == 1:
            time = "-1" if cores is None else str(int(cores * 50_000))
            write(root / "cpu" / path, cpu__cfs_quota_us=time, cpu__cfs_period_us="50000\n")
        else:
            write(root / path, cpu__max="max 100000\n" if cores is None else f"{int(cores * 100_000)} 100000\n")

    return limit


def threads(comm, **options) -> int:
    return World(CommConfig(device="cpu", **options), comm).threads


def test_a_quota_is_shared_by_the_ranks_in_its_group(quota, comm):
    before = torch.get_num_threads()
    quota("pod", None)
    assert threads(comm) == 12 // comm.size
    quota("pod/box", 4.5)
    assert threads(comm) == max(1, int(4.5 / comm.size))
    quota("pod", 1.5)
    assert threads(comm) == 1
    assert threads(comm, threads=3) == 3
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("values", "expected"),
    [({"OMP_NUM_THREADS": "2,1"}, 2), ({"SLURM_CPUS_PER_TASK": "3"}, 3), ({"OMP_NUM_THREADS": "many"}, 12),
     ({"OMP_NUM_THREADS": "1", "SLURM_CPUS_PER_TASK": "8"}, 1), ({"OMP_NUM_THREADS": "64"}, 12)],
)  # fmt: skip
def test_threads_that_the_environment_wants(quota, monkeypatch, values, expected):
    before = torch.get_num_threads()
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert threads(MPI.COMM_SELF) == expected
    assert threads(MPI.COMM_SELF, threads=5) == 5
    torch.set_num_threads(before)
