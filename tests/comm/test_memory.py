"""Free memory: of the machine, or of the control group that a batch system made for the job."""

import pytest

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
