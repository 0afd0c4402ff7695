"""Callbacks of the user's own: when they are called, with what, also in a run that stops and resumes on another number
of ranks; how they end training; state without pickle; errors and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import snapshot_runs
import torch
from mpi4py import MPI
from static_runs import make_static_parts, open_graph_trainer, plain, static_config, whole_and_stopped
from training_runs import bipartite, make_config, make_parts, on_rank_0

import hpcgnn
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.kinds import open_session
from hpcgnn.loop.callbacks import Callbacks, _decode, _encode
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.trainer import Trainer


class Recorder:
    """All calls; its own list in the state, and the mean of all weights so far in a tensor. Needs no base class."""

    newest = None

    def __init__(self):
        self.calls, self.mean, self.begun, self.test = [], torch.zeros(3, 2).T, [], None
        Recorder.newest = self

    def on_train_begin(self, run):
        self.model = run.model
        self.begun.append((run.folder.name, run.world.size, run.config.train.epochs, len(self.calls)))

    def on_step_end(self, step, loss):
        self.mean = self.mean * 0.5 + next(self.model.parameters()).detach().mean()
        self.calls.append(["step", step, loss])

    def on_epoch_end(self, epoch, metrics):
        self.calls.append(["epoch", epoch, metrics])

    def on_train_end(self, metrics):
        self.test = metrics

    def state_dict(self):
        return {"calls": self.calls, "mean": self.mean, "best": -math.inf}

    def load_state_dict(self, state):
        assert state["best"] == -math.inf
        self.calls, self.mean = state["calls"], state["mean"]


class Stopper(hpcgnn.Callback):
    """Ends training on the last rank's word, after the second epoch."""

    def on_epoch_end(self, epoch, metrics):
        return epoch == 1 and MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1


class Wrong(hpcgnn.Callback):
    def on_step_end(self, step, loss):
        if step == 2 and MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
            raise ValueError("no\nroom")


class Telling(hpcgnn.Callback):
    def on_epoch_end(self, epoch, metrics):
        return metrics


class Pushing(hpcgnn.Callback):
    """Moves the weights of rank 1."""

    def on_train_begin(self, run):
        self.run = run

    def on_step_end(self, step, loss):
        if self.run.world.rank == 1:
            with torch.no_grad():
                next(self.run.model.parameters()).add_(1.0)


class Drawing(hpcgnn.Callback):
    def on_step_end(self, step, loss):
        np.random.rand()  # noqa: NPY002


class Unsaved(hpcgnn.Callback):
    def state_dict(self):
        return {"seen": [{1: 2}]}

    def load_state_dict(self, state):
        pass


class Misspelt:
    def on_epoch_finished(self, epoch, metrics):
        pass


class Half:
    def state_dict(self):
        return {}


class Unmade:
    def __init__(self, name):
        pass


class Empty:
    pass


def path(named) -> str:
    return f"{__name__}.{named.__name__}"


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def run(comm, parts: Path, folder: Path, config, resume=False) -> Recorder | None:
    """Collective. Train to the end; the newest recorder."""
    trainer = open_graph_trainer(comm, parts, folder, config)
    trainer.resume() if resume else trainer.start()
    assert trainer.run() == 0
    return Recorder.newest


def test_a_resumed_run_makes_the_same_calls(comm, mpi_tmp_path):
    """Stopped within the second epoch, resumed on all ranks and on one; each call has what metrics.jsonl has."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config = static_config(train__callbacks=[path(Recorder)], train__epochs=3, train__batch_size=32)
    whole, *_ = whole_and_stopped(comm, parts, mpi_tmp_path, config, steps=4)
    expected = comm.bcast(run(comm, parts, on_rank_0(comm, lambda: make(mpi_tmp_path / "again")), config).calls)
    num_steps, lines = whole.session.batches["train"].num_steps, lines_of(mpi_tmp_path / "again")
    assert [call[1] for call in expected if call[0] == "step"] == list(range(3 * num_steps))
    shown = [line for line in lines if line["kind"] == "epoch"]
    assert [call[2]["val_accuracy"] for call in expected if call[0] == "epoch"] == [n["val_accuracy"] for n in shown]
    assert [call[2]["loss"] for call in expected if call[0] == "epoch"] == [line["loss"] for line in shown]
    at = num_steps  # the first epoch's end
    assert expected[at][:2] == ["epoch", 0]
    mean, test = Recorder.newest.mean, Recorder.newest.test
    assert test["test_accuracy"] == lines[-1]["test_accuracy"]
    resumed = run(comm, parts, mpi_tmp_path / "broken", config, resume=True)
    assert resumed.begun == [("broken", comm.size, 3, 0)]  # before its state came back
    assert resumed.calls == expected
    assert torch.equal(resumed.mean, mean)
    assert not list((mpi_tmp_path / "broken").rglob("*.pt"))


def assert_alike(calls: list, others: list) -> None:
    """Of one order, with numbers that are equal to rounding."""
    assert [call[:2] for call in calls] == [call[:2] for call in others]
    for one, other in zip(calls, others, strict=True):
        assert one[2] == pytest.approx(other[2], rel=1e-9, nan_ok=True)


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_resumed_on_one_rank(comm, mpi_tmp_path):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config = static_config(train__callbacks=[path(Recorder)], train__batch_size=32)
    whole_and_stopped(comm, parts, mpi_tmp_path, config, steps=4)
    expected = run(comm, parts, on_rank_0(comm, lambda: make(mpi_tmp_path / "again")), config).calls
    if comm.rank == 0:
        resumed = run(MPI.COMM_SELF, parts, mpi_tmp_path / "broken", config, resume=True).calls
        assert_alike(resumed, expected)


@pytest.mark.parametrize("kind", ["temporal", "snapshots"])
def test_graphs_of_other_kinds(comm, mpi_tmp_path, kind):
    """The calls on all ranks are those of one."""
    if kind == "temporal":
        on_rank_0(comm, lambda: bipartite(mpi_tmp_path / "graph.h5", num_events=300) and None)
        parts, module = make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts", 8, "random"), make_config
    else:
        parts, module = snapshot_runs.make_parts(comm, mpi_tmp_path), snapshot_runs.make_config
    config, found = module(train__callbacks=[path(Recorder)], train__epochs=1), []
    for part, folder in ((comm, mpi_tmp_path / "all"), (MPI.COMM_SELF, mpi_tmp_path / f"alone-{comm.rank}")):
        folder.mkdir(exist_ok=True)
        world = World(CommConfig(device="cpu", threads=1), part)
        session = open_session(config, str(parts), world, Watchdog(world, 0))
        Trainer(session, folder, lambda *_, **__: None, StopRequest()).run()
        found.append(Recorder.newest)
    assert len(found[0].calls) > 2
    assert_alike(*(recorder.calls for recorder in found))
    assert found[0].test == pytest.approx(found[1].test, rel=1e-9, nan_ok=True)


@pytest.mark.parametrize(("every", "epochs"), [(1, 2), (3, 3)])
def test_a_callback_ends_training(comm, mpi_tmp_path, every, epochs):
    """With the test; of rare validations after the next one. A resumed run stays at its end."""
    parts, folder = make_static_parts(comm, plain, mpi_tmp_path), on_rank_0(comm, lambda: make(mpi_tmp_path / "run"))
    config = static_config(
        train__callbacks=[path(Stopper)], train__epochs=5, train__eval_every=every, train__log_every=0
    )
    for resume in (False, True):
        run(comm, parts, folder, config, resume)
        assert [line["kind"] for line in lines_of(folder)] == ["epoch"] * epochs + ["test"]
        comm.barrier()


@pytest.mark.parametrize(("named", "reason"), [
    (Wrong, r"train.callbacks 'test_callbacks.Wrong': on_step_end: ValueError: no room \[test_callbacks.py:\d+\] \["),
    (Telling, "test_callbacks.Telling': on_epoch_end returned dict: return True to end training"),
    (Drawing, "model sage or train.callbacks test_callbacks.Drawing draws from NumPy's generator"),
    (Unsaved, r"Unsaved': state_dict: TypeError: its result\['seen'\]\[0\] is dict: a checkpoint stores text, numbers"),
])  # fmt: skip
def test_all_ranks_leave_together(comm, mpi_tmp_path, named, reason):
    parts, folder = make_static_parts(comm, plain, mpi_tmp_path), on_rank_0(comm, lambda: make(mpi_tmp_path / "run"))
    with pytest.raises(DistributedError, match=reason):
        run(comm, parts, folder, static_config(train__callbacks=[path(named)], train__epochs=1))


@pytest.mark.several_ranks
def test_weights_that_differ_are_found(comm, mpi_tmp_path):
    parts, folder = make_static_parts(comm, plain, mpi_tmp_path), on_rank_0(comm, lambda: make(mpi_tmp_path / "run"))
    with pytest.raises(
        DistributedError, match=r"weight .*: rank 1 .*; train.callbacks test_callbacks.Pushing: no buffer"
    ):
        run(comm, parts, folder, static_config(train__callbacks=[path(Pushing)], train__epochs=1))


@pytest.mark.serial
@pytest.mark.parametrize(("paths", "reason"), [
    ([path(Misspelt)], "on_epoch_finished is never called; methods are on_train_begin, on_step_end, on_epoch_end, on_"),
    ([path(Half)], "state_dict and load_state_dict belong together: write both, or none"),
    ([path(Unmade)], r"'test_callbacks.Unmade': __init__: TypeError: .* required positional argument: 'name' \["),
    ([path(Empty)], "has none of the methods on_train_begin"),
    ([path(lines_of)], "'test_callbacks.lines_of' is no class"),
    ([path(Stopper), path(Stopper)], "names 'test_callbacks.Stopper' twice"),
    (["nowhere.Class"], "'nowhere.Class': No module named 'nowhere'; it is package.module.Class"),
])  # fmt: skip
def test_what_is_no_callback_is_refused(paths, reason):
    with pytest.raises(DistributedError, match=reason):
        Callbacks(paths, World(CommConfig(device="cpu"), MPI.COMM_SELF))


@pytest.mark.serial
def test_state_comes_back_as_it_was():
    tensors: dict[str, torch.Tensor] = {}
    state = {
        "dict": {"tensor": "0"},
        "a": [1, 2.5, "x", None, True, [math.inf]],
        "t": [torch.arange(4).view(2, 2).T],
        "": {},
    }
    back = _decode(json.loads(json.dumps(_encode(state, "state", tensors))), tensors)
    assert torch.equal(back["t"].pop(), state["t"].pop())
    assert back == state
    assert [type(value) for value in back["a"]] == [type(value) for value in state["a"]]
    for wrong in ((1, 2), np.zeros(2), torch.zeros(2, dtype=torch.complex64), {"a": {2}}, {1: 2}):
        with pytest.raises(TypeError, match="a checkpoint stores"):
            _encode(wrong, "state", {})


def test_fit_takes_the_class(comm, mpi_tmp_path):
    on_rank_0(comm, lambda: plain(mpi_tmp_path / "graph.h5") and None)
    config = {"train.callbacks": [Stopper, Recorder], "train.epochs": 4, "comm.device": "cpu"}
    run = hpcgnn.fit(mpi_tmp_path / "graph.h5", config=config, folder=mpi_tmp_path / "run", quiet=True)
    assert run.config.train.callbacks == [path(Stopper), path(Recorder)]
    assert [call[1] for call in Recorder.newest.calls if call[0] == "epoch"] == [0, 1]
    if comm.rank == 0:
        log = (mpi_tmp_path / "run" / "log" / "rank-0.log").read_text()
        assert "training ends with epoch 1: train.callbacks test_callbacks.Stopper" in log
