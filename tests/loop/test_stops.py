"""A request to leave is heard after every step of training and of evaluation, and what was trained is kept."""

from __future__ import annotations

import json
import time
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from link_graphs import facts, shop
from snapshot_runs import make_config as snapshot_config
from snapshot_runs import make_parts as make_snapshot_parts
from snapshot_runs import open_session as open_snapshot_session
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, plain, static_config
from training_runs import on_rank_0

from hpcgnn.loop import checkpoint
from hpcgnn.loop import trainer as trainer_module
from hpcgnn.loop.launch import EXIT_DONE, EXIT_REQUEUE, StopRequest
from hpcgnn.loop.session import split_metrics
from hpcgnn.loop.trainer import Trainer

LINKS = {"task__kind": "link", "train__batch_size": 24}
STATIC = {
    "features": (plain, {}),
    "whole": (plain, {"train__full_graph": True, "model__dropout": 0.0}),
    "exact": (plain, {"eval__exact": True, "eval__nodes_per_pass": 7}),
    "links, exact": (shop, {**LINKS, "eval__exact": True, "eval__nodes_per_pass": 7, "eval__batch_size": 11}),
    "filtered": (
        facts,
        {
            **LINKS,
            "task__decoder": "distmult",
            "eval__ranking": "filtered",
            "eval__nodes_per_pass": 7,
            "eval__batch_size": 11,
        },
    ),
    "full": (shop, {**LINKS, "eval__ranking": "destinations", "eval__nodes_per_pass": 7}),
}


class StopAt:
    """Requested from the n-th question on, counted from 0."""

    def __init__(self, number: int):
        self._number, self._asked = number, count()

    @property
    def requested(self) -> bool:
        """Every question counts."""
        return next(self._asked) >= self._number


@pytest.fixture
def opened(comm, mpi_tmp_path):
    """A function that opens a session of a kind of run again and again."""

    def make(case: str):
        if case == "windows of snapshots":
            config = snapshot_config(sampling__window_size=3, train__batch_size=3, inputs__lags=1, train__log_every=1)
            parts = make_snapshot_parts(comm, mpi_tmp_path)
            return lambda: open_snapshot_session(comm, parts, config)
        graph, changes = STATIC[case]
        parts = make_static_parts(comm, graph, mpi_tmp_path)
        return lambda: open_graph_session(comm, parts, static_config(**changes))

    return make


def run(comm, session, folder, stop, resume=False) -> tuple[int, Trainer]:
    """Collective. The exit code of a run that is new or resumed."""
    on_rank_0(comm, lambda: folder.mkdir(exist_ok=True))
    trainer = Trainer(session, folder, lambda *_, **__: None, stop)
    if resume:
        trainer.resume()
    code = trainer.run()
    trainer.close()
    return code, trainer


def lines(folder) -> list[dict]:
    """The lines of metrics.jsonl, without times."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kinds = {"step": 0, "epoch": 1, "test": 2}  # pytest.approx takes numbers only
    times = ("samples", "seconds", "second")
    return [{key: kinds.get(value, value) for key, value in line.items() if not key.endswith(times)} for line in found]


@pytest.mark.parametrize("case", [*STATIC, "windows of snapshots"])
def test_asked_in_validation(comm, mpi_tmp_path, opened, case):
    """A checkpoint is there, behind the epoch's last step, and the run goes on as if it had never stopped."""
    make = opened(case)
    code, trainer = run(comm, make(), mpi_tmp_path / "whole", StopRequest())
    assert code == EXIT_DONE
    steps, folder = trainer.session.batches["train"].num_steps, mpi_tmp_path / "cut"
    assert run(comm, make(), folder, StopAt(steps))[0] == EXIT_REQUEUE
    newest = comm.bcast(checkpoint.find_latest(folder / "checkpoints"))
    assert newest is not None
    progress = checkpoint.read_manifest(newest)["progress"]
    assert (progress["epoch"], progress["step"]) == (0, steps)
    comm.barrier()
    code, second = run(comm, make(), folder, StopRequest(), resume=True)
    assert code == EXIT_DONE
    torch.testing.assert_close(second.flat.parameter, trainer.flat.parameter, rtol=1e-12, atol=1e-12)
    comm.barrier()
    if comm.rank == 0:
        for one, other in zip(lines(folder), lines(mpi_tmp_path / "whole"), strict=True):
            words = [key for key, value in other.items() if isinstance(value, str)]
            assert [one.pop(key) for key in words] == [other.pop(key) for key in words]
            assert one == pytest.approx(other, rel=1e-9)
    comm.barrier()


@pytest.mark.parametrize("case", STATIC)
def test_asked_at_any_step_of_a_split(opened, case):
    """Also within exact inference, after every chunk of a layer, and after every step of ranking."""
    session = opened(case)()
    asked = count()
    collected = session.scores("val", lambda: next(asked) < 0)
    questions = next(asked)
    split_metrics(session, "val", collected)
    config, steps = session.config, session.batches["val"].num_steps
    chunks = 0
    if config.eval.exact or config.eval.ranking:
        most = max(session.world.allgather(session.partition.num_nodes))
        chunks = config.model.layers * -(-most // config.eval.nodes_per_pass)
        steps *= config.task.kind == "link"
    assert questions >= chunks + steps > 0
    for number in range(questions):
        asked = count()
        assert session.scores("val", lambda number=number, asked=asked: next(asked) >= number) is None
        assert next(asked) == number + 1


def test_a_checkpoint_is_due_by_the_clock_of_any_rank(comm, mpi_tmp_path, monkeypatch):
    """Steps of twenty seconds by the clock of the last rank alone, and a minute between two checkpoints: one after
    every third step, on all ranks, and the losses of a run without any."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    clock = SimpleNamespace(perf_counter=time.perf_counter, time=time.time, monotonic=lambda: 0.0)
    monkeypatch.setattr(trainer_module, "time", clock)

    def run(minutes: float) -> tuple[list[int], list[float]]:
        changes = {"train__checkpoint_minutes": minutes, "train__batch_size": 8, "train__epochs": 1}
        folder, steps, saved, losses = mpi_tmp_path / f"run-{minutes}", count(1), [], []
        on_rank_0(comm, lambda: folder.mkdir() and None)
        trainer = open_graph_trainer(comm, parts, folder, static_config(**changes))
        train_step, add = trainer.train_step, trainer._writer.add

        def step_of_twenty_seconds(plan):
            if comm.rank == comm.size - 1:
                now = 20.0 * next(steps)
                clock.monotonic = lambda: now
            losses.append(train_step(plan))
            trainer._writer.settle()  # one that is under way would be waited for
            return losses[-1]

        def note(tag, *arguments):
            saved.append(tag)
            add(tag, *arguments)

        monkeypatch.setattr(trainer, "train_step", step_of_twenty_seconds)
        monkeypatch.setattr(trainer._writer, "add", note)
        clock.monotonic = lambda: 0.0
        trainer._saved_at = 0.0
        assert trainer.run() == EXIT_DONE
        assert len(losses) >= 8
        within = [int(tag.split("-")[1]) for tag in saved if tag.startswith("step-")]
        return within[:-1], [result[0] for result in losses]

    without, losses = run(0.0)
    within, others = run(1.0)
    assert without == []
    assert within == [step for step in range(3, len(losses), 3)]
    assert others == losses
    assert set(comm.allgather(tuple(within))) == {tuple(within)}
