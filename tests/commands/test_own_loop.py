"""Programs of one's own: an error on one rank ends the job, which would wait for that rank for ever."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from mpi4py import MPI
from static_runs import make_static_parts, plain

from hpcgnn import environment

LOOP = """
import sys
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.loader import NeighborLoader

world = World(CommConfig(device="cpu", threads=1))
loader = NeighborLoader(StaticGraph(sys.argv[1], world), "train", [3, 2], 8, prefetch=int(sys.argv[2]))
for number, batch in enumerate(loader):
    if number == 2 and world.rank == 1:
        raise ZeroDivisionError("a defect of one's own")
    world.total(len(batch.seeds))
"""
TOGETHER = """
import sys
from hpcgnn.comm.together import together
from hpcgnn.comm.world import CommConfig, World

world = World(CommConfig(device="cpu", threads=1))
with together(world, "check"):
    if world.rank == 1:
        raise ValueError("wrong")
"""


@pytest.mark.launcher
@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_error_of_one_rank_ends_the_job(tmp_path, mpirun, prefetch):
    """With its traceback, whether or not plans are made in the background."""
    parts = make_static_parts(MPI.COMM_SELF, plain, tmp_path)
    (tmp_path / "loop.py").write_text(LOOP)
    result = mpirun(2, tmp_path / "loop.py", parts, prefetch, check=False, timeout=40)
    assert result.returncode != 0
    assert "ZeroDivisionError: a defect of one's own" in result.stderr
    assert "hpcgnn: rank 1 of 2 on " in result.stderr
    assert "OSC UCX" not in result.stderr  # Open MPI's component for windows between nodes, of which there are none


@pytest.mark.serial
@pytest.mark.parametrize("value", [None, "rdma"])
def test_a_choice_of_windows_stays(monkeypatch, value):
    """Open MPI reads the variable when MPI starts, so commands set it before; a program's import changes nothing."""
    monkeypatch.delenv("OMPI_MCA_osc", raising=False)
    if value:
        monkeypatch.setenv("OMPI_MCA_osc", value)
    show = "import os, sys; sys.orig_argv = sys.argv = ['python', *sys.argv[1:]]; "
    show += "import hpcgnn; print(os.environ.get('OMPI_MCA_osc'))"

    def set_in(*words: str) -> str:
        command = [sys.executable, "-c", show, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    assert set_in("-m", "hpcgnn.train", "--help") == (value or "^ucx")
    assert set_in("-X", "dev", "-um", "hpcgnn.train") == (value or "^ucx")
    assert set_in("-m", "other.train") == set_in("loop.py") == str(value)
    assert set_in("loop.py", "-m", "hpcgnn.train") == set_in("loop.py", "-m") == str(value)


@pytest.mark.serial
def test_import_leaves_the_environment():
    """Of a program that imports the loaders, beside what torch and MPI do themselves."""
    program = "import os, torch; from mpi4py import MPI; before = dict(os.environ); " + "".join(
        f"import hpcgnn.{name}; " for name in ("train", "static.loader", "temporal.loader", "snapshots.loader")
    )
    unset = {name: value for name, value in os.environ.items() if name not in environment.VARIABLES}
    command = [sys.executable, "-c", program + "assert dict(os.environ) == before"]
    subprocess.run(command, check=True, timeout=60, env=unset)


@pytest.mark.launcher
def test_an_error_that_all_ranks_have_aborts_nothing(tmp_path, mpirun):
    (tmp_path / "check.py").write_text(TOGETHER)
    result = mpirun(2, tmp_path / "check.py", check=False, timeout=40)
    assert result.returncode == 1
    assert result.stderr.count("DistributedError: wrong [check, rank 1 of 2]") >= 1
    assert "ends the job" not in result.stderr
    assert "MPI_ABORT" not in result.stderr


SERVERS = """
import sys
import numpy as np
from hpcgnn import CommConfig, NeighborLoader, NeighborSampler, World, beside_servers

class Failing(NeighborSampler):
    calls = 0

    def draw(self, lists, nodes, fanout, random):
        Failing.calls += 1
        if Failing.calls == 5:
            raise KeyError("a defect")
        return np.zeros(len(nodes) + 1, np.int64), np.empty(0, np.int64)

def loop(graph):
    for epoch in range(10):
        for batch in NeighborLoader(graph, "train", [3, 2], 8, sampler=Failing):
            pass

beside_servers(loop, sys.argv[1], World(CommConfig(device="cpu", threads=1, sampling_servers=1)))
"""


@pytest.mark.launcher
def test_an_error_of_a_sampling_server_ends_the_job(tmp_path, mpirun):
    """With one message, of the server."""
    parts = make_static_parts(MPI.COMM_SELF, plain, tmp_path)
    (tmp_path / "loop.py").write_text(SERVERS)
    result = mpirun(3, tmp_path / "loop.py", parts, check=False, timeout=120)
    assert result.returncode != 0
    assert result.stderr.count("Traceback") == 2, result.stderr  # of the error, and of its cause
    assert result.stderr.count("KeyError: 'a defect'") == 1
    assert "RuntimeError: sampling server 0 of 1 failed at epoch 0, step" in result.stderr
    assert result.stderr.count("ends the job") == 1
    assert "hpcgnn: rank 2 of 3 on " in result.stderr
