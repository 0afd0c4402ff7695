"""What is seen of a run while it goes on: progress, TensorBoard, profiles, ranges. None of it changes the answer."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import math
import os
import pty
import socket
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from training_runs import homogeneous, make_config, make_parts, on_rank_0, open_session

from hpcgnn.comm import energy
from hpcgnn.comm.energy import Counter
from hpcgnn.comm.timers import Timers
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop import profile
from hpcgnn.loop import records as step_progress
from hpcgnn.loop import trainer as trainers
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.logs import RunLog, read_lines
from hpcgnn.loop.profile import StageLog
from hpcgnn.loop.records import ERASE, StepProgress
from hpcgnn.loop.settings import TrainConfig
from hpcgnn.loop.trainer import Trainer, headline, outcome
from hpcgnn.temporal import session as sessions
from hpcgnn.train import PROFILED, _parse

LOGGERS = ["tensorboard", *(name for name in ("wandb", "mlflow") if find_spec(name))]


class Terminal(io.StringIO):
    """stderr that is a terminal, or not."""

    def __init__(self, is_terminal: bool):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.fixture(params=[100.0, 1.0])
def clock(monkeypatch, request):
    """Its one number is the time, which began anywhere."""
    now = [request.param]
    monkeypatch.setattr(step_progress.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("COLUMNS", "120")
    return now


def go(clock, stream, **settings) -> list[str]:
    """What is told of two steps a second, thirty of a hundred, after the first ten."""
    told = []
    progress = StepProgress(TrainConfig(**settings), told.append, stream)
    progress.begin(3, 10, 100)
    for done in range(11, 41):
        clock[0] += 0.5
        progress.step(done, 1 / done)
    progress.end()
    return told


@pytest.mark.serial
def test_lines_of_progress_in_the_log(clock):
    assert go(clock, Terminal(False), log_seconds=6) == [
        "epoch 3: step 22 of 100, loss 0.0455, 2.0 steps/s, 0:39 to go",
        "epoch 3: step 34 of 100, loss 0.0294, 2.0 steps/s, 0:33 to go",
    ]
    assert go(clock, Terminal(False), log_seconds=0) == []
    assert go(clock, Terminal(False)) == []


@pytest.mark.serial
def test_lines_of_progress_while_a_split_is_scored(clock):
    told = []
    progress = StepProgress(TrainConfig(log_seconds=6), told.append, Terminal(True))
    progress.begin(0, 0, 0)
    for steps in range(1, 30):
        clock[0] += 0.5
        progress.scored("val", steps)
    assert told == ["val: 12 steps of scoring, 2.0 steps/s", "val: 24 steps of scoring, 2.0 steps/s"]


@pytest.mark.serial
@pytest.mark.parametrize(
    ("progress", "is_terminal", "drawn"),
    [("auto", True, True), ("auto", False, False), ("on", False, True), ("off", True, False)],
)
def test_bar_on_a_terminal(clock, progress, is_terminal, drawn):
    """Drawn over itself, and taken away at the end."""
    stream = Terminal(is_terminal)
    go(clock, stream, progress=progress)
    frames = stream.getvalue().split(ERASE)
    if not drawn:
        assert frames == [""]
        return
    assert len(frames) == 1 + 30 + 1
    assert frames[-2] == "epoch 3 [######..........] 40 of 100, loss 0.0250, 2.0 steps/s, 0:30 to go"
    assert frames[-1] == ""
    assert not any("\n" in frame for frame in frames)


@pytest.mark.serial
def test_bar_is_drawn_ten_times_a_second_at_most_and_no_wider_than_the_terminal(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal(True)
    progress = StepProgress(TrainConfig(), print, stream)
    progress.begin(0, 0, 1000)
    for done in range(1, 1001):
        clock[0] += 0.001
        progress.step(done, 1.0)
    frames = stream.getvalue().split(ERASE)[1:]
    assert 9 <= len(frames) <= 11
    assert max(map(len, frames)) == 29


@pytest.mark.serial
def test_stages_are_marked():
    seen = []

    @contextlib.contextmanager
    def mark(name):
        seen.append(("enter", name))
        yield
        seen.append(("leave", name))

    timers = Timers(mark)
    with timers("compute"):
        pass
    list(timers.waiting("wait", [1]))
    assert seen == [(what, name) for name in ("compute", "wait", "wait") for what in ("enter", "leave")]
    assert set(timers.seconds) == {"compute", "wait"}


@pytest.mark.gpu
def test_stages_are_nvtx_ranges_with_a_gpu(comm, parts):
    world = World(CommConfig(device="cuda", threads=1), comm)
    session = sessions.open_session(make_config(), str(parts), world, Watchdog(world, 0))
    assert session.timers.mark is session.plan_timers.mark is torch.cuda.nvtx.range
    assert open_session(comm, parts, make_config()).timers.mark is contextlib.nullcontext


@pytest.mark.serial
@pytest.mark.parametrize("settings", [{"profile": "7"}, {"profile": "9-3"}, {"progress": "bar"}, {"log_seconds": -1}])
def test_mistakes_are_named(settings):
    with pytest.raises(ValueError, match=f"train.{next(iter(settings))}"):
        TrainConfig(**settings)


@pytest.mark.serial
def test_flag_of_a_profile(tmp_path):
    config, _, _ = _parse(["--profile", "--output.dir", str(tmp_path)])
    assert config.train.profile == PROFILED
    assert config.train.profiled == range(10, 20)


@pytest.fixture
def parts(comm, mpi_tmp_path):
    graph = on_rank_0(comm, lambda: homogeneous(mpi_tmp_path / "graph.h5"))
    return make_parts(comm, graph, mpi_tmp_path / "parts")


def run(comm, parts, folder, first=True, epochs=2, **settings):
    """Collective. Lines of metrics.jsonl after a run of nine steps an epoch, in a new folder or resumed."""
    on_rank_0(comm, lambda: folder.mkdir(exist_ok=True) and None)
    config = make_config(train__epochs=epochs, train__log_every=1, **{f"train__{k}": v for k, v in settings.items()})
    trainer = Trainer(open_session(comm, parts, config), folder, RunLog(folder / "log", comm.rank), StopRequest())
    if first:
        trainer.start()
    else:
        trainer.resume()
    assert trainer.run() == 0
    trainer.close()
    comm.barrier()
    return [{k: v for k, v in line.items() if "second" not in k} for line in read_lines(folder / "metrics.jsonl")]


def names_in(path) -> list[str]:
    """Of the ranges of a trace, in order of time."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    events = [event for event in events if event.get("ph") == "X" and event.get("cat") == "user_annotation"]
    return [event["name"] for event in sorted(events, key=lambda event: event["ts"])]


def test_run_that_is_looked_at_gives_the_same_answer(comm, parts, mpi_tmp_path, capfd):
    """A bar, lines, and a profile of every rank: of the steps asked for, by stage."""
    plain = run(comm, parts, mpi_tmp_path / "plain")
    seen = run(comm, parts, mpi_tmp_path / "seen", progress="on", log_seconds=1e-9, profile="3-5")
    assert seen == plain
    names = names_in(mpi_tmp_path / "seen" / "profile" / f"steps-3-5-rank-{comm.rank}.json.gz")
    assert names.count("optimizer") == 3
    assert {"compute", "exchange", "gradient sum", "wait for plan", "write-back"} <= set(names)
    assert not (mpi_tmp_path / "plain" / "profile").exists()
    log = (mpi_tmp_path / "seen" / "log" / f"rank-{comm.rank}.log").read_text()
    steps_an_epoch = sum(line["kind"] == "step" for line in plain) // 2
    assert log.count("steps/s, ") == (2 * steps_an_epoch if comm.rank == 0 else 0)
    assert ("val: 1 steps of scoring" in log) == (comm.rank == 0)
    assert ("profile of steps 3 to 5" in log) == (comm.rank == 0)
    assert ("epoch 1 [#" in capfd.readouterr().err) == (comm.rank == 0)


def test_the_first_rank_writes_the_stages_of_all(comm, parts, mpi_tmp_path):
    run(comm, parts, mpi_tmp_path / "run", epochs=2)
    start, *epochs = map(json.loads, (mpi_tmp_path / "run" / "stages.jsonl").read_text().splitlines())
    assert (start["kind"], start["ranks"], len(start["hosts"])) == ("start", comm.size, comm.size)
    assert [(line["kind"], line["epoch"], len(line["peak_mib"])) for line in epochs] == [
        ("epoch", number, comm.size) for number in range(2)
    ]


def test_energy_of_an_epoch_is_that_of_each_machine(comm, parts, mpi_tmp_path, monkeypatch):
    """By a counter that every look moves on by 500 J: one at the end of an epoch, and one when the next one begins. A
    machine is one, however many ranks it has."""
    monkeypatch.setattr(energy, "POLL_SECONDS", 1e6)
    for number, opens in enumerate((False, True)):
        counts = itertools.count(0, 500)
        counters = [Counter("machine", lambda counts=counts: float(next(counts)))] if opens else []
        monkeypatch.setattr(profile, "find_counters", lambda _, counters=counters: counters)
        run(comm, parts, mpi_tmp_path / f"run{number}", epochs=2)
        lines = map(json.loads, (mpi_tmp_path / f"run{number}" / "stages.jsonl").read_text().splitlines())
        found = [line["joules"] for line in lines if line["kind"] == "epoch"]
        assert found == [{socket.gethostname(): {"machine": 500.0}} if opens else None] * 2
        log = (mpi_tmp_path / f"run{number}" / "log" / "rank-0.log").read_text()
        assert ("kJ of a machine          1.0       1.0       1.0" in log) == opens


def test_profile_ends_with_its_epoch(comm, parts, mpi_tmp_path):
    steps = sum(line["kind"] == "step" for line in run(comm, parts, mpi_tmp_path / "run", epochs=1, profile="2-99"))
    names = names_in(mpi_tmp_path / "run" / "profile" / f"steps-2-99-rank-{comm.rank}.json.gz")
    assert names.count("optimizer") == steps - 2


def test_profile_that_cannot_be_written_is_no_reason_to_stop(comm, parts, mpi_tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", fail)
    run(comm, parts, mpi_tmp_path / "run", epochs=1, profile="0-0")
    assert "cannot write the profile: No space left" in (mpi_tmp_path / "run/log" / f"rank-{comm.rank}.log").read_text()


@pytest.mark.launcher
def test_the_bar_reaches_the_terminal_of_mpirun(mpirun, tmp_path):
    """Of training and of validation, where mpirun's stderr is a terminal; not where it is a file."""
    options = ("-m", "hpcgnn.train", "--train.epochs=1", "--train.log_seconds=0", f"--output.dir={tmp_path}/run")
    terminal, end = pty.openpty()
    job = mpirun.popen(2, *options, stderr=end, stdout=subprocess.DEVNULL)
    os.close(end)
    seen = bytearray()
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        while piece := os.read(terminal, 1 << 16):
            seen += piece
    os.close(terminal)
    assert job.wait(timeout=100) == 0
    for shown in (b"epoch 0 [", b" steps/s, ", b"val: "):
        assert shown in seen
    again = mpirun(2, *options[:-1], f"--output.dir={tmp_path}/again")
    assert ERASE not in again.stderr


def test_loggers_have_the_numbers_of_the_metrics(comm, parts, mpi_tmp_path):
    """Of a run that is resumed too."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = mpi_tmp_path / "run"
    run(comm, parts, folder, epochs=1, loggers=LOGGERS)
    lines = run(comm, parts, folder, first=False, epochs=2, loggers=LOGGERS)
    if comm.rank == 0:
        board = EventAccumulator(str(folder / "tensorboard")).Reload()
        for kind, name in (("step", "loss"), ("step", "lr"), ("epoch", "loss"), ("epoch", "val_ap")):
            found = [(event.step, event.value) for event in board.Scalars(f"{kind}/{name}")]
            values = [line[name] for line in lines if line["kind"] == kind]
            assert [value for _, value in found] == pytest.approx(values, rel=1e-6)
        assert [step for step, _ in found] == [len(values) for values in (range(9), range(18))]
        if "mlflow" in LOGGERS:
            assert mlflow_has(folder, "epoch/val_ap") == pytest.approx(values, rel=1e-12)
        assert ("wandb" in LOGGERS) == bool(list(folder.glob("wandb/offline-run-*/*.wandb")))


def mlflow_has(folder, name: str) -> list[float]:
    """The values of a metric in the one run that MLflow has of a run folder."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.resolve()}/mlflow.db")
    (number,) = (found.experiment_id for found in client.search_experiments(filter_string="name = 'hpcgnn'"))
    (run,) = client.search_runs([number])
    return [metric.value for metric in client.get_metric_history(run.info.run_id, name)]


def test_a_logger_that_is_missing_is_named(comm, parts, mpi_tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(DistributedError, match="pip install tensorboard, or") as caught:
        run(comm, parts, mpi_tmp_path / "run", loggers=["tensorboard"])
    assert caught.value.user_error


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([math.nan, 0.5, math.nan, 0.4], 1),
        ([0.5, math.nan, 0.6, math.nan], 2),
        ([math.nan] * 4, 3),
        ([None, 0.5, None, 0.4], 1),
    ],
)
def test_an_epoch_without_the_metric_is_no_better_than_one_with_it(
    comm, parts, mpi_tmp_path, monkeypatch, values, best
):
    """The newest one counts as best only as long as none has a number, and the log says so. None: the split has no such
    metric."""
    scored = iter([*values, 0.1, 0.2])  # validation and test of the best epoch end the run
    monkeypatch.setattr(
        trainers, "split_metrics", lambda *_: {"auc": 0.7} | ({} if (value := next(scored)) is None else {"ap": value})
    )
    lines = run(comm, parts, mpi_tmp_path / "run", epochs=4, monitor="ap", early_stopping_patience=0)
    assert lines[-1]["kind"] == "test"
    assert lines[-1]["epoch"] == best
    log = (mpi_tmp_path / "run" / "log" / f"rank-{comm.rank}.log").read_text()
    assert log.count("validation has no ap") == (comm.rank == 0 and values[0] != 0.5)
    assert log.count("val ap 0.5000, auc 0.7000") == (comm.rank == 0 and best < 3)
    assert "nan" not in log


@pytest.mark.serial
def test_sent_bytes_are_told_in_parts_of_a_mebibyte():
    log = object.__new__(StageLog)
    log._total = {"epoch": np.array([1.0, 2.0])}
    log._sent, log._peak, log._joules = np.array([1 << 19, 3 << 19]), np.array([1.0, 2.0]), {}
    assert "MiB sent                 0.5       1.0       1.5" in log.table()


def test_a_headline_has_the_monitored_metric():
    values = {"val_ap": 0.1, "val_auc": 0.2, "val_inductive_ap": 0.3, "val_inductive_auc": math.nan}
    assert headline("val", values) == "val ap 0.1000, auc 0.2000"
    assert outcome(values) == outcome(values | {"test_ap": math.nan}) == "val ap 0.1000, auc 0.2000"
    assert outcome(values | {"test_ap": 0.5}) == "test ap 0.5000"
    assert headline("val", values, "auc") == "val auc 0.2000, ap 0.1000"
    assert headline("val", values, "inductive_ap") == "val inductive_ap 0.3000, ap 0.1000"
    assert headline("val", values, "inductive_auc") == "val ap 0.1000, auc 0.2000"
    assert headline("test", values, "ap") == headline("val", {"val_ap": math.nan}) == ""


@pytest.mark.serial
def test_bytes_of_groups_are_those_to_their_ranks():
    """Of the third of four groups of two ranks."""
    log = object.__new__(StageLog)
    channels = [SimpleNamespace(size=2, sent=lambda sent=sent: np.array(sent)) for sent in ([5, 7], [0, 1])]
    log._world = SimpleNamespace(size=8)
    log._session = SimpleNamespace(world=SimpleNamespace(group=2, size=2), channels=lambda: channels)
    assert log._sent_to().tolist() == [0, 0, 0, 0, 5, 8, 0, 0]


# Of two machines, by epoch.
JOULES = [
    {"a": {"gpus": 1000.0, "memory": 500.0004}, "b": {"machine": 3000}},
    {"a": {"gpus": 500.0}, "b": {"machine": 3000}},
]


@pytest.mark.serial
def test_table_of_stages():
    """Two epochs of two ranks: seconds, bytes, energy, and how much longer the busiest rank computes."""
    log, lines = object.__new__(StageLog), []
    log._total, log._sent, log._peak, log._joules = {}, np.zeros(2, np.int64), np.zeros(2), {}
    log._write = lambda **line: lines.append(line)
    for number in range(2):
        stages = {"epoch": 4.0, "compute": 3.0}, {"epoch": 4.0, "compute": 1.0}
        log._add(number, stages, np.array([1 << 20, 3 << 20]), np.array([400.26, 300.0]), JOULES[number])
    assert lines[1]["peak_mib"] == [400.3, 300.0]
    assert lines[0]["joules"] == {"a": {"gpus": 1000.0, "memory": 500.0}, "b": {"machine": 3000}}
    assert [line.split() for line in log.table()] == [
        ["seconds", "min", "mean", "max"],
        ["epoch", "8.00", "8.00", "8.00", "100.0", "%"],
        ["compute", "2.00", "4.00", "6.00", "50.0", "%"],
        ["MiB", "sent", "2.0", "4.0", "6.0"],
        ["MiB", "of", "memory", "300", "350", "400"],
        ["kJ", "of", "a", "machine", "2.0", "4.0", "6.0"],
        "the busiest rank computes 50 % longer than the mean".split(),
    ]
