"""What ranks must have alike, planted otherwise on one of them: refused on all, by name, before it is in any number."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from snapshot_runs import make_config as snapshot_config
from snapshot_runs import open_session as open_snapshot_session
from static_runs import open_graph_session, plain, static_config
from training_runs import homogeneous, make_config, on_rank_0, open_session

from data_tools.partition.command import partition
from data_tools.synthetic.snapshots import synthesize_snapshots
from hpcgnn import info
from hpcgnn.comm import same
from hpcgnn.comm import world as worlds
from hpcgnn.comm.same import check_shared, same_everywhere
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.logs import RunLog
from hpcgnn.loop.trainer import Trainer

several = pytest.mark.several_ranks
WINGS = ("temporal", "static", "snapshots")
CPU = CommConfig(device="cpu", threads=1, watchdog_seconds=0)


def is_last(comm) -> bool:
    return comm.rank == comm.size - 1


def place(comm, rank: int | None = None) -> str:
    """The words that name a rank, by default the last one, and its machine."""
    rank = comm.size - 1 if rank is None else rank
    return re.escape(f"rank {rank} of {comm.size} on {MPI.Get_processor_name()}")


def make_sets(comm, wing: str, folder: Path, seeds=(0,)) -> list[Path]:
    """Collective. Random partition sets of one graph, a seed each."""

    def write() -> None:
        graph = folder / "graph.h5"
        if wing == "snapshots":
            synthesize_snapshots(graph, 60, 14, 3)
        else:
            {"static": plain, "temporal": homogeneous}[wing](graph)
        for seed in seeds:
            partition(graph, folder / f"parts-{seed}", 8, "random", seed=seed)

    on_rank_0(comm, write)
    return [folder / f"parts-{seed}" for seed in seeds]


def open_wing(comm, wing: str, parts: Path, **changes):
    """Collective. A session of two epochs."""
    if wing == "static":
        return open_graph_session(comm, parts, static_config(**changes))
    if wing == "temporal":
        return open_session(comm, parts, make_config(train__epochs=2, train__log_every=1, **changes))
    config = partial(snapshot_config, train__batch_size=2, train__log_every=1, inputs__lags=1)
    return open_snapshot_session(comm, parts, config(**changes))


def trainer_of(comm, session, folder: Path) -> Trainer:
    folder.mkdir(exist_ok=True)
    return Trainer(session, folder, RunLog(folder / "log", comm.rank), StopRequest())


# ------------------------------------------------------------------------------------------------------- one exchange


@several
def test_the_first_rank_that_differs_is_named(comm):
    world = World(CPU, comm)
    same_everywhere(world, {"color": "red", "size": np.int64(3)}, "paint it")
    what = {"size": 3} if is_last(comm) else {"color": "red", "size": 3}
    words = f"the same color: {place(comm)} has nothing, rank 0 on .* has red; paint it"
    with pytest.raises(DistributedError, match=words) as error:
        same_everywhere(world, what, "paint it")
    assert error.value.user_error


@several
@pytest.mark.parametrize(("part", "words"), [
    ("__version__", "version of hpcgnn: {} has other, rank 0 on .* has "),
    ("SOURCE", "source of the compiled kernels: {} has other, rank 0 on .* has [0-9a-f]{{64}}; install one build on"),
])  # fmt: skip
def test_another_hpcgnn_is_refused(comm, monkeypatch, part, words):
    if is_last(comm):
        monkeypatch.setattr(worlds if part == "__version__" else worlds.hpcgnn_native, part, "other")
    with pytest.raises(DistributedError, match=words.format(place(comm))):
        World(CPU, comm)


@several
def test_info_says_which_rank_differs(comm, monkeypatch, capsys):
    """It is what such a refusal points to, so that it must not be refused itself."""
    if is_last(comm):
        monkeypatch.setattr(worlds, "__version__", "other")
    assert info.main(World(CPU, comm, compares=False), []) == 1
    words = f"self-check: all ranks must have the same version .*{place(comm)} has other"
    assert comm.rank or re.search(words, capsys.readouterr().out)


@several
def test_a_rank_whose_gpu_is_broken_is_refused(comm, monkeypatch):
    device = torch.device("cpu") if is_last(comm) else torch.device("cuda", 0)
    monkeypatch.setattr(World, "_bind_device", lambda world: device)
    with pytest.raises(
        DistributedError, match=f"kind of device: {place(comm)} has cpu, rank 0 .*cuda; .*comm.device cpu"
    ):
        World(CommConfig(watchdog_seconds=0), comm)


def pretend_gpus(monkeypatch, count: int) -> None:
    """So many GPUs that torch sees, and nothing else of them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


@several
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_samplers_need_no_gpu(comm, monkeypatch, device):
    """And take nothing from the trainers: these hand device memory to MPI where that is on."""
    pretend_gpus(monkeypatch, 0 if is_last(comm) else 2)
    world = World(CommConfig(device=device, gpu_direct="on", sampler_ranks=1, watchdog_seconds=0), comm)
    side = world.split_off(1)
    assert (side.device.type, side.gpu_direct) == (("cpu", False) if is_last(comm) else ("cuda", True))


def test_gpus_without_a_rank_are_counted(comm, monkeypatch):
    pretend_gpus(monkeypatch, 8)
    assert World(CommConfig(watchdog_seconds=0), comm).unused_gpus == 8 - comm.size
    assert World(CPU, comm).unused_gpus == 0
    pretend_gpus(monkeypatch, 1)  # as where the batch system shows every rank its own
    assert World(CommConfig(watchdog_seconds=0), comm).unused_gpus == 0


# --------------------------------------------------------------------------------------------------- sets and folders


@several
@pytest.mark.parametrize("wing", WINGS)
def test_ranks_with_different_partition_sets_are_refused(comm, mpi_tmp_path, wing):
    one, other = make_sets(comm, wing, mpi_tmp_path, (0, 1))
    with pytest.raises(DistributedError, match=f"id of the partition set: {place(comm)} has .*name a folder that all"):
        open_wing(comm, wing, other if is_last(comm) else one)


@several
def test_a_run_folder_that_is_not_shared_is_refused(comm, mpi_tmp_path, monkeypatch):
    world, own = World(CPU, comm), mpi_tmp_path / ("other" if is_last(comm) else "run")
    own.mkdir(exist_ok=True)
    (own / f"{same.TOKEN}of-a-killed-start").touch()
    monkeypatch.setattr(same, "PATIENCE", 0.3)
    words = f"^{place(comm)} does not see what rank 0 wrote into the run folder .*other: name a folder"
    with pytest.raises(DistributedError, match=words):
        check_shared(own, world)
    check_shared(mpi_tmp_path / "run", world)
    comm.Barrier()
    assert not list((mpi_tmp_path / "run").iterdir())


def test_a_token_that_comes_late_is_waited_for(comm, mpi_tmp_path, monkeypatch):
    """As on a network file system."""
    looks = iter(range(5))
    monkeypatch.setattr(same, "await_files", partial(same.await_files, is_whole=lambda path: next(looks) > 3))
    check_shared(mpi_tmp_path, World(CPU, comm))


@pytest.mark.launcher
def test_a_relative_folder_on_two_machines(mpirun, tmp_path):
    """Ranks whose current folders differ, as where each machine has its own; the job ends at once."""
    code = "import os, sys, runpy; os.chdir(sys.argv[1 + int(os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get("
    code += "'PMI_RANK', 0)))]); sys.argv[1:3] = []; runpy.run_module('hpcgnn.train', run_name='__main__')"
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()
    options = "--output.dir=run", "--data.synthetic_events=500", "--comm.device=cpu", "--train.epochs=1"
    result = mpirun(2, "-c", code, *homes, *options, check=False, timeout=120)
    assert result.returncode == 2, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert re.search(rf"rank 1 of 2 on .* does not see .* run folder {homes[1]}/run", line)
    assert not list(homes[0].rglob("checkpoints"))
