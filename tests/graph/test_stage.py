"""Staged partition sets: the same training answer, copied once, checked; what cannot be staged is refused by all."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import snapshot_runs
from static_runs import make_static_parts, open_graph_session, plain, static_config
from training_runs import assert_same, bipartite, make_config, make_parts, on_rank_0, record_epoch

from data_tools.stage import main
from data_tools.team import Ranks
from data_tools.verify.command import verify
from hpcgnn import evaluate, train
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph import files
from hpcgnn.graph.stage import copy_checked, plan_stage, stage, unusable
from hpcgnn.snapshots.graph import open_snapshot_partition

SMALL = [
    "--memory.dim=4", "--model.time_dim=4", "--model.hidden=4", "--train.batch_size=50", "--comm.threads=1",
    "--comm.device=cpu",
]  # fmt: skip


def world_of(comm) -> World:
    return World(CommConfig(device="cpu", threads=1), comm)


@pytest.fixture
def parts(comm, mpi_tmp_path):
    """A partition set of a static graph."""
    return make_static_parts(comm, plain, mpi_tmp_path)


def staged_folder(comm, parts, target):
    """Where a set goes."""
    with h5py.File(files.book_path(parts)) as book:
        return target / book.attrs["set_id"][:16]


def test_temporal_training_is_the_same(comm, mpi_tmp_path):
    on_rank_0(comm, lambda: bipartite(mpi_tmp_path / "graph.h5", num_events=300) and None)
    parts = make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts", 8, "random")
    here, there = (
        record_epoch(comm, parts, make_config(data__stage_to=target)) for target in ("", str(mpi_tmp_path / "local"))
    )
    assert (mpi_tmp_path / "local").exists()
    if comm.rank == 0:
        assert_same(here, there)


def losses_of(comm, parts, target):
    """Losses of the first epoch of a static run, weights untouched."""
    session = open_graph_session(comm, parts, static_config(data__stage_to=str(target)))
    with session.plans("train", 0) as plans:
        losses = [session.task.train(plan).detach().numpy().copy() for plan in plans]
    session.close()
    return session.world.reduce_array(np.array(losses))


def test_snapshots_are_read_where_another_node_has_part_0(comm, mpi_tmp_path):
    snapshots, local = snapshot_runs.make_parts(comm, mpi_tmp_path), mpi_tmp_path / str(comm.rank)
    folder, staged_files = plan_stage(snapshots, str(local), 1, 2)
    folder.mkdir(parents=True)
    assert all(map(copy_checked, staged_files))
    assert not files.part_path(folder, 0).exists()
    here, there = (open_snapshot_partition(path, 1, 2) for path in (snapshots, folder))
    assert there.series.keys() == here.series.keys()
    assert all(np.array_equal(there.series[name], column) for name, column in here.series.items())
    assert there.scales == here.scales


def test_static_training_reads_what_was_staged(comm, parts, mpi_tmp_path):
    expected = losses_of(comm, parts, "")
    np.testing.assert_array_equal(losses_of(comm, parts, mpi_tmp_path / "local"), expected)
    on_rank_0(comm, lambda: [path.unlink() for path in parts.glob("part-*")] and None)
    np.testing.assert_array_equal(losses_of(comm, parts, mpi_tmp_path / "local"), expected)


def test_snapshot_training_is_the_same(comm, mpi_tmp_path):
    parts = snapshot_runs.make_parts(comm, mpi_tmp_path)
    here, there = (
        snapshot_runs.run_epochs(comm, parts, snapshot_runs.make_config(data__stage_to=target))
        for target in ("", str(mpi_tmp_path / "local"))
    )
    np.testing.assert_array_equal(here[0], there[0])


def test_what_is_there_and_right_is_not_copied_again(comm, parts, mpi_tmp_path):
    world, target = world_of(comm), mpi_tmp_path / "local"
    folder = staged_folder(comm, parts, target)
    first = stage(parts, str(target), world)
    assert first.folder == folder
    assert world.total(first.files) == 9  # 8 parts and the book
    assert not world.any(stage(parts, str(target), world).files > 0)
    assert on_rank_0(comm, lambda: verify(folder)) == []
    on_rank_0(comm, lambda: shutil.copy(files.part_path(folder, 1), files.part_path(folder, 0)) and None)
    again = stage(parts, str(target), world)
    assert world.total(again.files) == 1
    assert on_rank_0(comm, lambda: verify(folder)) == []


def test_damage_and_lack_of_room_are_refused_on_all_ranks(comm, parts, mpi_tmp_path, monkeypatch):
    world, target = world_of(comm), mpi_tmp_path / "local"
    with monkeypatch.context() as patch:
        patch.setattr("hpcgnn.graph.stage.shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
        with pytest.raises(DistributedError, match="100 are free"):
            stage(parts, str(target), world)
    on_rank_0(comm, lambda: shutil.copy(files.part_path(parts, 1), files.part_path(parts, 0)) and None)
    with pytest.raises(DistributedError, match="contents do not match the hash"):
        stage(parts, str(target), world)
    folder = staged_folder(comm, parts, target)
    assert not files.part_path(folder, 0).exists()
    assert not list(folder.glob(".*.tmp"))


def test_a_folder_that_cannot_be_written_is_named(comm, mpi_tmp_path, monkeypatch):
    """With the host, on all ranks; so is one that names a variable that is not set."""
    world, folder = world_of(comm), str(mpi_tmp_path / "local")
    assert unusable(folder, world) == ""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert unusable(folder, world).endswith(f": {folder} cannot be written")
    assert "the environment has no such variable" in unusable("$NO_SUCH_FOLDER_IS_SET", world)


def test_other_jobs_do_without_the_disk_of_the_first_one(comm, mpi_tmp_path, capfd, monkeypatch):
    """Evaluation stages only where it is told to; a resumed run where it can, unless the folder is given anew."""
    on_rank_0(comm, lambda: bipartite(mpi_tmp_path / "graph.h5", num_events=300) and None)
    parts = make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts", 8, "random")
    run, disk, world = mpi_tmp_path / "run", mpi_tmp_path / "disk", world_of(comm)
    first = [f"--data.path={parts}", f"--output.dir={run}", f"--data.stage_to={disk}/job1", "--train.epochs=1", *SMALL]
    assert train.main(world, first) == 0
    assert staged_folder(comm, parts, disk / "job1").exists()
    comm.barrier()
    on_rank_0(comm, lambda: (shutil.rmtree(disk), disk.touch()) and None)
    capfd.readouterr()
    comm.barrier()
    assert evaluate.main(world, [str(run), "--comm.device=cpu", "--comm.threads=1"]) == 0
    told = capfd.readouterr().out
    there = [f"--data.stage_to={mpi_tmp_path}/here"]
    assert evaluate.main(world, [str(run), "--comm.device=cpu", "--comm.threads=1", *there]) == 0
    assert capfd.readouterr().out == told
    assert staged_folder(comm, parts, mpi_tmp_path / "here").exists()
    with pytest.raises(DistributedError, match="disk/job1"):
        train.main(world, ["--resume", str(run), f"--data.stage_to={disk}/job1"])
    assert train.main(world, ["--resume", str(run), "--train.epochs=2"]) == 0
    told = capfd.readouterr().out
    assert (f"data.stage_to {disk}/job1 of an earlier start is not used" in told) == (comm.rank == 0)
    monkeypatch.setenv("OWN_DISK", str(mpi_tmp_path / f"disk{comm.rank}"))
    assert train.main(world, ["--resume", str(run), "--train.epochs=3", "--data.stage_to=$OWN_DISK/job2"]) == 0
    assert staged_folder(comm, parts, mpi_tmp_path / f"disk{comm.rank}" / "job2").exists()
    comm.barrier()
    assert "stage_to: $OWN_DISK/job2" in (run / "config.yaml").read_text()
    with pytest.raises(DistributedError, match="the environment has no such variable"):
        train.main(world, ["--resume", str(run), "--data.stage_to=$NOBODYS"])


def test_the_command_stages_the_parts_of_all_ranks(comm, parts, mpi_tmp_path, capsys):
    target = mpi_tmp_path / "local"
    assert main([str(parts), str(target)], Ranks(world_of(comm))) == 0
    assert ("9 files copied" in capsys.readouterr().out) == (comm.rank == 0)
    assert on_rank_0(comm, lambda: verify(staged_folder(comm, parts, target))) == []
