"""Runs on snapshots through the run loop: stopped and resumed = never stopped, on other numbers of ranks too."""

from __future__ import annotations

import json

import numpy as np
import pytest
from snapshot_runs import make_config, make_parts, open_session, random_graph, write_parts

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.checkpoint import best_tag, find_best
from hpcgnn.loop.logs import RunLog
from hpcgnn.loop.trainer import EXIT_DONE, EXIT_REQUEUE, Trainer
from hpcgnn.snapshots.step import SequenceRows

KINDS = {
    "carried": {"train__batch_size": 2, "node_embedding__dim": 3},
    "state of all": {"train__batch_size": 2, "model__kind": "evolvegcn_o", "inputs__degrees": "log"},
    "windows": {"sampling__window_size": 3, "train__batch_size": 3, "sampling__shuffle": True},
    "stale rows": {"train__batch_size": 2, "sampling__halo_staleness": 1, "model__layers": 2},
    "live": {"train__batch_size": 1, "sampling__updates_per_batch": 2, "train__train_metrics": True},
    "normalized": {"train__batch_size": 2, "model__kind": "roland", "model__norm": "batch"},
    "learned adjacency": {
        "sampling__window_size": 3, "train__batch_size": 3, "model__kind": "graph_wavenet", "node_embedding__dim": 3,
    },
    "queries against all nodes": {
        "sampling__window_size": 3, "train__batch_size": 3, "sampling__shuffle": True, "model__kind": "regcn",
        "model__dropout": 0.2, "node_embedding__dim": 3, "task__kind": "link", "task__loss": "one_vs_all",
        "task__recurrency": True, "eval__ranking": "filtered",
    },
    "standardized differences": {
        "train__batch_size": 2, "task__difference_from": "newest", "task__standardize": True,
        "inputs__standardize": True,
    },
    "accumulated": {"train__batch_size": 1, "train__accumulate_steps": 3},
}  # fmt: skip


def test_a_run_with_nothing_to_train_on_is_refused(comm, mpi_tmp_path):
    """Its epochs would be of no use, and it would end as if all were well."""
    graph = random_graph(5, 24, 9, 20)
    graph.series["target"][:] = np.nan
    parts = write_parts(comm, mpi_tmp_path, graph, parts=4)
    with pytest.raises(DistributedError, match="there are no predictions to train on: see what the graph"):
        run(comm, parts, mpi_tmp_path / "run", make_config(train__batch_size=2), StopAfter(10**6))


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_the_best_epoch_is_that_of_the_test(comm, mpi_tmp_path, epochs):
    """Where some epochs end without a checkpoint to go on from."""
    parts = make_parts(comm, mpi_tmp_path)
    config = make_config(train__epochs=epochs, **KINDS["stale rows"])
    assert run(comm, parts, mpi_tmp_path / "run", config, StopAfter(10**6)) == EXIT_DONE
    told = [values for kind, values in lines(mpi_tmp_path / "run") if kind == "test"] if comm.rank == 0 else []
    for values in told:
        assert find_best(mpi_tmp_path / "run" / "checkpoints").name == best_tag(values["epoch"])
    comm.barrier()


def test_a_step_that_no_run_can_go_on_from_copies_nothing(comm, mpi_tmp_path, monkeypatch):
    """However long ago the last checkpoint was: as often as without any within epochs."""
    parts, copies, saved = make_parts(comm, mpi_tmp_path), [], SequenceRows.saved
    monkeypatch.setattr(SequenceRows, "saved", lambda rows: copies.append(minutes) or saved(rows))
    for minutes in (0.0, 1e-9):
        config = make_config(train__epochs=2, train__checkpoint_minutes=minutes, **KINDS["stale rows"])
        assert run(comm, parts, mpi_tmp_path / f"run-{minutes}", config, StopAfter(10**6)) == EXIT_DONE
    assert copies.count(0.0) == copies.count(1e-9) > 0


class StopAfter:
    """Asks to stop when it has been asked often enough."""

    def __init__(self, steps: int):
        self.left = steps

    @property
    def requested(self) -> bool:
        """Every question counts."""
        self.left -= 1
        return self.left < 0


def lines(folder) -> list[tuple[str, dict]]:
    """Kinds and numbers of the lines of metrics.jsonl, without times."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    numbers = lambda line: {k: v for k, v in line.items() if "second" not in k and not isinstance(v, str)}  # noqa: E731
    return [(line["kind"], numbers(line)) for line in found]


def run(comm, parts, folder, config, stop, resume=False) -> int:
    session = open_session(comm, parts, config)
    if comm.rank == 0:
        folder.mkdir(exist_ok=True)
    comm.barrier()
    trainer = Trainer(session, folder, RunLog(folder / "log", comm.rank), stop)
    trainer.resume() if resume else trainer.start()
    code = trainer.run()
    trainer.close()
    session.close()
    return code


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_is_never_stopped(comm, mpi_tmp_path, kind):
    """Stopped within an epoch on all ranks, resumed on one fewer."""
    parts = make_parts(comm, mpi_tmp_path)
    config = make_config(train__epochs=3, train__log_every=1, inputs__lags=1, **KINDS[kind])
    assert run(comm, parts, mpi_tmp_path / "whole", config, StopAfter(10**6)) == EXIT_DONE
    assert run(comm, parts, mpi_tmp_path / "cut", config, StopAfter(5)) == EXIT_REQUEUE
    fewer = comm.Split(0 if comm.rank < max(1, comm.size - 1) else 1, comm.rank)
    if comm.rank < max(1, comm.size - 1):
        assert run(fewer, parts, mpi_tmp_path / "cut", config, StopAfter(10**6), resume=True) == EXIT_DONE
    comm.barrier()
    whole, cut = lines(mpi_tmp_path / "whole"), lines(mpi_tmp_path / "cut")
    assert len(whole) == len(cut)
    for (kind_of, one), (other_kind, other) in zip(whole, cut, strict=True):
        assert kind_of == other_kind
        assert one == pytest.approx(other, rel=1e-9)
