"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import errno
import itertools
import json
import re
import threading
import time

import numpy as np
import pytest
import torch
from mpi4py import MPI
from static_runs import make_static_parts, open_graph_trainer, plain, static_config
from training_runs import homogeneous, make_config, make_parts, on_rank_0, open_session

from hpcgnn import info
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph.saved_rows import SavedRows
from hpcgnn.info import describe_run
from hpcgnn.loop import checkpoint, checkpoint_writer
from hpcgnn.loop import launch as signals
from hpcgnn.loop.checkpoint import Progress, State
from hpcgnn.loop.checkpoint_writer import CheckpointWriter
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.logs import RunLog, read_lines
from hpcgnn.loop.trainer import Trainer
from hpcgnn.reopen import open_run
from hpcgnn.train import _save_config


@pytest.fixture
def writer(comm, mpi_tmp_path):
    world = World(CommConfig(device="cpu", threads=1), comm)
    found = CheckpointWriter(mpi_tmp_path / "checkpoints", "graph", 2, world, Watchdog(world, 0), {})
    yield found
    found.close()


@pytest.fixture
def gate(comm, monkeypatch):
    """An event that files of this rank wait for, the last rank's."""
    event, original = threading.Event(), checkpoint_writer._write_file
    if comm.rank < comm.size - 1:
        event.set()

    def wait(*arguments):
        assert event.wait(60)
        return original(*arguments)

    monkeypatch.setattr(checkpoint_writer, "_write_file", wait)
    yield event
    event.set()


def add(writer, rank, step, tag=None):
    """Begin the checkpoint of a step; every rank has one row of memory."""
    progress = Progress(global_step=step, step=step)
    weight = torch.full((3,), float(step))
    memory = [SavedRows(torch.tensor([0]), {"state": torch.full((1, 2), float(10 * step + rank))})]
    writer.add(tag or checkpoint.step_tag(progress), State(progress, {"model.w": weight}), memory, np.array([rank]))
    weight.fill_(-1.0)  # training goes on


def steps(writer):
    return [int(path.name.split("-")[1]) for path in checkpoint.step_checkpoints(writer._folder)]


def test_whole_once_all_ranks_have_written(comm, writer, gate):
    """Not before; what was added first is whole first; older ones go, as many stay as are to be kept."""
    add(writer, comm.rank, 1)
    assert writer.has_waiting
    comm.barrier()
    assert steps(writer) == []
    assert writer.is_busy or comm.rank < comm.size - 1
    gate.set()
    writer.settle()
    assert not writer.has_waiting
    for step in (2, 3, 4):
        add(writer, comm.rank, step)
    writer.settle()
    comm.barrier()
    assert steps(writer) == [3, 4]
    newest = checkpoint.find_latest(writer._folder)
    assert checkpoint.load_weights(newest)["w"].tolist() == [4.0] * 3
    assert {entry["name"] for entry in checkpoint.read_manifest(newest)["files"]} == {
        "state.safetensors", *(f"memory-{rank}.safetensors" for rank in range(comm.size))
    }  # fmt: skip


def test_no_more_copies_than_two(comm, writer, gate):
    """The third one waits until the first two are whole."""
    timer = threading.Timer(0.5, gate.set)
    timer.start()
    for step in (1, 2, 3):
        add(writer, comm.rank, step)
    assert len(writer._jobs) == 1
    assert gate.is_set()
    comm.barrier()
    assert steps(writer) == [1, 2]
    writer.settle()


def test_a_rank_that_cannot_write(comm, writer, monkeypatch):
    """All ranks leave with its message; what was whole stays, what waited is gone."""
    add(writer, comm.rank, 1)
    writer.settle()

    def fail(path, *_):
        raise OSError(f"{path}: cannot write the checkpoint: No space left on device")

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(checkpoint_writer, "_write_file", fail)
    add(writer, comm.rank, 2)
    with pytest.raises(DistributedError, match="No space left"):
        writer.settle()
    comm.barrier()
    assert steps(writer) == [1]
    assert [path.name for path in writer._folder.iterdir()] == [checkpoint.step_tag(Progress(global_step=1, step=1))]


def test_damage_is_found_and_passed_over(comm, writer):
    """In any file, by whatever rank reads it; nothing whole is left: an error on all."""
    world, told = World(CommConfig(device="cpu", threads=1), comm), []
    for step in (1, 2):
        add(writer, comm.rank, step)
    writer.settle()
    one, two = comm.bcast(checkpoint.step_checkpoints(writer._folder))
    assert checkpoint.find_sound(writer._folder, world, told.append) == (two, True)
    assert not told
    for path, name in ((two, f"memory-{comm.size - 1}.safetensors"), (one, "state.safetensors")):
        on_rank_0(comm, lambda path=path, name=name: flip(path / name))
        if path == two:
            assert checkpoint.find_sound(writer._folder, world, told.append) == (one, True)
    assert told == [f"{two.name} is damaged and skipped: {two / name}: missing or damaged"
                    for name in [f"memory-{comm.size - 1}.safetensors"]]  # fmt: skip
    with pytest.raises(DistributedError, match="none of 1 checkpoints is whole"):
        checkpoint.find_sound(writer._folder, world, told.append)
    comm.barrier()


def test_what_was_begun_before_an_error_of_all_ranks_is_finished(comm, mpi_tmp_path, monkeypatch):
    """Its files may be on disk already."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, static_config(train__checkpoint_every=1))
    train_step = trainer.train_step

    def fail_at_the_second(plan):
        if plan.step == 1:
            raise DistributedError("the scores are not finite", user_error=False)
        return train_step(plan)

    monkeypatch.setattr(CheckpointWriter, "is_busy", True)
    monkeypatch.setattr(trainer, "train_step", fail_at_the_second)
    trainer.start()
    with pytest.raises(DistributedError, match="not finite"):
        trainer.run()
    comm.barrier()
    newest = checkpoint.find_latest(mpi_tmp_path / "checkpoints")
    assert newest.name.startswith("step-0000000001")


def test_a_file_that_cannot_be_read_now_is_not_damaged(comm, writer, monkeypatch):
    """A disk that fails on one machine says nothing of the checkpoint, which stays one."""
    add(writer, comm.rank, 1)
    writer.settle()
    comm.barrier()
    world = World(CommConfig(device="cpu", threads=1), comm)
    with monkeypatch.context() as patch:
        if comm.rank == comm.size - 1:
            patch.setattr(checkpoint.files, "file_hash", fail_to_read)
        with pytest.raises(DistributedError, match="Input/output error"):
            checkpoint.find_sound(writer._folder, world, print)
    comm.barrier()
    assert steps(writer) == [1]


def fail_to_read(path):
    raise OSError(errno.EIO, "Input/output error", str(path))


def test_ranks_look_at_a_file_once(comm, writer, monkeypatch):
    """A file system of many clients is asked for each file by one rank, not by all."""
    add(writer, comm.rank, 1)
    writer.settle()
    world, looked = World(CommConfig(device="cpu", threads=1), comm), []
    path = comm.bcast(checkpoint.find_latest(writer._folder))

    def look(name):
        looked.append(name.name)
        return name.stat().st_size

    monkeypatch.setattr(checkpoint.os.path, "getsize", look)
    assert checkpoint.find_damage(path, world) is None
    assert sorted(itertools.chain(*comm.allgather(looked))) == sorted(
        ["state.safetensors", *(f"memory-{rank}.safetensors" for rank in range(comm.size))]
    )


def test_a_damaged_checkpoint_is_written_anew(comm, writer):
    """It is none once it was skipped, so that it does not count among those to keep either."""
    world = World(CommConfig(device="cpu", threads=1), comm)
    for step in (1, 2):
        add(writer, comm.rank, step)
    writer.settle()
    comm.barrier()
    one, two = comm.bcast(checkpoint.step_checkpoints(writer._folder))
    on_rank_0(comm, lambda: flip(two / "state.safetensors"))
    assert checkpoint.find_sound(writer._folder, world, print) == (one, True)
    assert comm.bcast(steps(writer)) == [1]
    add(writer, comm.rank, 2)
    writer.settle()
    comm.barrier()
    assert comm.bcast(steps(writer)) == [1, 2]
    assert checkpoint.find_sound(writer._folder, world, print) == (two, True)


EPOCHS = 3


@pytest.fixture
def train(comm, mpi_tmp_path, monkeypatch):
    """A function that starts a run, or resumes it, whose epochs have the validation metric that is given; it returns
    the trainer and what was logged."""
    graph = on_rank_0(comm, lambda: homogeneous(mpi_tmp_path / "graph.h5"))
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")

    def run(values, epochs=EPOCHS, resume=True):
        def score(trainer, split, trained=None):
            return {"ap": values[min(trainer.progress.epoch, len(values) - 1)], "auc": 0.5}

        monkeypatch.setattr(Trainer, "_score", score)
        folder, logged = mpi_tmp_path / "run", []
        config = make_config(
            train__epochs=epochs, train__early_stopping_patience=0, train__log_every=1, data__path=str(parts)
        )
        on_rank_0(comm, lambda: folder.mkdir(exist_ok=True))
        trainer = Trainer(
            open_session(comm, parts, config), folder, lambda text, **_: logged.append(text), StopRequest()
        )
        try:
            if resume:
                trainer.resume()
            _save_config(config, folder, trainer.world)
            assert trainer.run() == 0
        finally:
            trainer.close()
            comm.barrier()
        return trainer, "\n".join(logged)

    return run


def read(folder):
    """The lines of metrics.jsonl, without times."""
    return [{k: v for k, v in line.items() if "second" not in k} for line in read_lines(folder / "metrics.jsonl")]


def test_a_damaged_best_epoch_is_trained_anew(comm, train, mpi_tmp_path):
    """From a step checkpoint before it; the run ends as it did."""
    folder, values = mpi_tmp_path / "run", [0.1, 0.2, 0.3]
    train(values, resume=False)
    before, best = read(folder), folder / "checkpoints" / "best-00002"
    weights = checkpoint.load_weights(best)
    comm.barrier()
    on_rank_0(comm, lambda: flip(best / "state.safetensors"))
    trainer, logged = train(values)
    assert "best-00002 is damaged" in logged
    assert ", from before best-00002, which is trained again" in logged
    assert trainer.progress.best_epoch == 2
    assert read(folder) == before
    anew = checkpoint.load_weights(best)
    assert all(torch.equal(weights[name], anew[name]) for name in weights)


def test_a_damaged_best_epoch_that_cannot_be_trained_anew(comm, train, mpi_tmp_path):
    """No checkpoint before it is left: later epochs decide, if there are any."""
    folder, values = mpi_tmp_path / "run", [0.3, 0.2, 0.1, 0.05]
    train(values, resume=False)
    on_rank_0(comm, lambda: flip(folder / "checkpoints" / "best-00000" / "state.safetensors"))
    with pytest.raises(DistributedError, match=r"best-00000: damaged, .* larger --train\.epochs"):
        train(values)
    trainer, logged = train(values, epochs=EPOCHS + 1)
    assert "best-00000 is damaged: the best epoch is chosen among the later ones" in logged
    assert trainer.progress.best_epoch == 3
    assert checkpoint.find_damage(folder / "checkpoints" / "best-00003", trainer.world) is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "no manifest"])
def test_the_best_epoch_is_found_beside_a_damaged_checkpoint(comm, train, mpi_tmp_path, damage):
    """Evaluation needs none of the newest one's files."""
    train([0.3, 0.2, 0.1], resume=False)
    checkpoints = mpi_tmp_path / "run" / "checkpoints"

    def spoil():
        newest = checkpoint.find_latest(checkpoints)
        if damage == "cut":
            (newest / "state.safetensors").write_bytes(b"")
        elif damage == "flipped":
            flip(newest / "state.safetensors")
        else:
            (newest / "manifest.json").write_text("{")

    on_rank_0(comm, spoil)
    assert checkpoint.find_best(checkpoints) == checkpoints / "best-00000"
    comm.barrier()


def test_evaluating_a_damaged_best_epoch(comm, train, mpi_tmp_path):
    """Refused with the remedy."""
    train([0.3, 0.2, 0.1], resume=False)
    folder = mpi_tmp_path / "run"
    on_rank_0(comm, lambda: flip(folder / "checkpoints" / "best-00000" / "state.safetensors"))
    with (
        pytest.raises(DistributedError, match=rf"missing or damaged; .* --resume {folder} makes a damaged"),
        open_run(str(folder), "", CommConfig(device="cpu", threads=1), World(CommConfig(device="cpu"), comm)),
    ):
        pass
    comm.barrier()


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.serial
@pytest.mark.parametrize(("left", "wanted", "early"), [(3600, 60, 60), (100, 60, 10)])
def test_a_run_leaves_before_its_time_ends(monkeypatch, left, wanted, early):
    for name in signals.END_TIMES:
        monkeypatch.delenv(name, raising=False)
    stop = StopRequest()
    assert stop.leave_before_end(wanted) == ""
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + left))
    assert stop.leave_before_end(0) == ""
    assert f"{early} s before the end" in stop.leave_before_end(wanted)
    assert stop._deadline == pytest.approx(time.time() + left - early, abs=1)
    assert not stop.requested
    monkeypatch.setenv("HPCGNN_JOB_END", "soon")
    with pytest.raises(ValueError, match="HPCGNN_JOB_END=soon"):
        stop.leave_before_end(wanted)


def test_checkpoints_within_an_epoch(comm, mpi_tmp_path, monkeypatch):
    """After every so many steps, but the last of the epoch, which has one of its own."""
    graph = on_rank_0(comm, lambda: homogeneous(mpi_tmp_path / "graph.h5"))
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")
    config = make_config(train__epochs=1, train__checkpoint_every=2, train__batch_size=30)
    trainer, steps = Trainer(open_session(comm, parts, config), mpi_tmp_path, lambda *_: None, StopRequest()), []
    trainer.start()
    save = trainer._save

    def save_and_note(*arguments, **options):
        steps.append(trainer.progress.step)
        save(*arguments, **options)

    monkeypatch.setattr(trainer, "_save", save_and_note)
    trainer.run()
    trainer.close()
    num_steps = trainer.session.batches["train"].num_steps
    assert num_steps > 4
    assert [step for step in steps if 0 < step < num_steps] == list(range(2, num_steps, 2))


def test_a_run_out_of_time_goes_on_as_if_it_had_never_stopped(comm, mpi_tmp_path, capsys):
    """One rank's clock is enough; a checkpoint is whole before the run leaves with 75; info tells it all."""
    graph = on_rank_0(comm, lambda: homogeneous(mpi_tmp_path / "graph.h5"))
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")

    def run(folder, stop_at, resume):
        on_rank_0(comm, lambda: folder.mkdir(exist_ok=True) and None)
        session, stop = open_session(comm, parts, make_config(train__epochs=2, data__path=str(parts))), StopRequest()
        trainer = Trainer(session, folder, RunLog(folder / "log", comm.rank), stop)
        if resume:
            trainer.resume()
        else:
            trainer.start()
        _save_config(session.config, folder, trainer.world)
        train, calls = session.task.train, 0

        def train_and_look(plan):
            nonlocal calls
            calls += 1
            if calls == stop_at and comm.rank == comm.size - 1:
                stop._deadline = 0.0
            return train(plan)

        session.task.train = train_and_look
        code = trainer.run()
        whole = len(checkpoint.step_checkpoints(folder / "checkpoints")) if comm.rank == 0 else None
        trainer.close()
        return code, whole, (folder / "metrics.jsonl").read_text().count("\n")

    whole = run(mpi_tmp_path / "whole", 0, False)
    begin = time.perf_counter()
    assert run(mpi_tmp_path / "cut", 5, False)[:2] == (75, 1 if comm.rank == 0 else None)
    if comm.rank == 0:
        (left,) = checkpoint.step_checkpoints(mpi_tmp_path / "cut/checkpoints")
        seconds = json.loads((left / "manifest.json").read_text())["progress"]["train_seconds"]
        assert 0 < seconds < time.perf_counter() - begin
    comm.barrier()
    assert run(mpi_tmp_path / "cut", 0, True) == whole
    comm.barrier()
    if comm.rank == 0:
        lines, problems = describe_run(mpi_tmp_path / "cut", check=True)
        assert not problems
        assert any(line.startswith("tested: best epoch") for line in lines)
        assert sum("whole" in line for line in lines) == 3
        (best,) = (line for line in lines if line.startswith("best-"))
        assert re.match(r"best-0000(\d): after the training of epoch \1; ", best)
        alone = World(CommConfig(device="cpu", threads=1), MPI.COMM_SELF)
        folders = [mpi_tmp_path / "whole", mpi_tmp_path / "cut"]
        capsys.readouterr()
        assert info.main(alone, list(map(str, folders))) == 0
        printed = capsys.readouterr().out
        assert all(f"{folder}: temporal graph" in printed for folder in folders)
        flip(checkpoint.find_latest(mpi_tmp_path / "cut" / "checkpoints") / "state.safetensors")
        _, problems = describe_run(mpi_tmp_path / "cut", check=True)
        assert len(problems) == 1
    comm.barrier()


def test_a_rank_makes_the_folder_that_it_does_not_see(tmp_path):
    """A network file system may show what rank 0 has made later."""
    folder = tmp_path / "checkpoints" / "step-1"
    (entry,) = checkpoint_writer._write_files(folder, {"memory-1.safetensors": {"state": torch.ones(2)}}, {})
    checkpoint.check_files(folder, [entry])


@pytest.mark.serial
@pytest.mark.parametrize("name", signals.END_TIMES)
@pytest.mark.parametrize("ago", [1, 1e8])
def test_an_end_that_is_over_is_ignored(monkeypatch, name, ago):
    """As of an older job, in a shell that was started in it, or of a limit that was raised since."""
    for other in signals.END_TIMES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, f"{time.time() - ago:.0f}")
    stop = signals.StopRequest()
    assert f"{name}=" in (said := stop.leave_before_end(60.0))
    assert "is over: ignored" in said
    assert not stop.requested
