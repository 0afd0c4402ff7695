"""Stages that may take long report to the watchdog on their way, so that it ends no job that is at work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from link_graphs import facts
from static_runs import APART, make_static_parts, open_graph_session, plain, static_config
from training_runs import homogeneous, make_config, make_parts, on_rank_0, open_session

from hpcgnn.comm.group import DistributedError
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.loop import answer_file, checkpoint
from hpcgnn.loop.answer_file import AnswerColumns, write_answers
from hpcgnn.loop.checkpoint import Progress, State
from hpcgnn.loop.checkpoint_writer import CheckpointWriter
from hpcgnn.loop.session import split_metrics


@pytest.fixture
def reports(monkeypatch):
    """How often every stage was reported, by its name up to the first path."""
    counts: Counter = Counter()

    def count(self, stage: str, step: int = 0) -> None:
        counts[stage.partition(" /")[0]] += 1

    monkeypatch.setattr(Watchdog, "at", count)
    monkeypatch.setattr(Watchdog, "working", count)
    return counts


def test_staging_and_reading(comm, mpi_tmp_path, reports):
    """Every part, and every block of a file that is copied."""
    parts = make_static_parts(comm, plain, mpi_tmp_path, parts=6)
    session = open_graph_session(comm, parts, static_config(data__stage_to=str(mpi_tmp_path / "disk")))
    own = len(session.partition.book.parts_of(comm.rank))
    assert reports["read the parts"] == own
    assert reports["copy"] >= own
    assert reports["read"] >= own


def test_reading_events(comm, mpi_tmp_path, reports):
    graph = on_rank_0(comm, lambda: homogeneous(mpi_tmp_path / "graph.h5"))
    parts = make_parts(comm, graph, mpi_tmp_path / "parts", 6)
    session = open_session(comm, parts, make_config())
    assert reports["read the parts"] == len(session.partition.book.parts_of(comm.rank))


@pytest.mark.several_ranks
def test_presampling(comm, mpi_tmp_path, reports):
    """Every step of the epoch that is planned."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(features__cache_ratio=0.2, **APART))
    assert reports["presample"] == session.batches["train"].num_steps


@pytest.mark.parametrize("ranking", ["", "filtered"])
def test_exact_scores(comm, mpi_tmp_path, reports, ranking):
    """Every chunk of inference, every step, and every piece of candidates or of metrics."""
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    config = static_config(
        task__kind="link", task__decoder="distmult", eval__ranking=ranking, eval__exact=True, eval__nodes_per_pass=5,
        eval__batch_size=4,
    )  # fmt: skip
    session = open_graph_session(comm, parts, config)
    reports.clear()
    split_metrics(session, "val", session.scores("val"))
    steps = session.batches["val"].num_steps
    chunks = -(-max(comm.allgather(session.partition.num_nodes)) // 5)
    assert steps > 3
    assert reports["val"] == 1 + steps + config.model.layers * chunks
    assert reports["inference, layer 1"] == chunks
    if ranking:
        assert reports["ranking"] >= 2 * steps  # at both ends
    else:
        assert reports["metrics"] >= 1


def test_writing_predictions(comm, mpi_tmp_path, reports, monkeypatch):
    """Every slab, on all ranks."""
    monkeypatch.setattr(answer_file, "SLAB", 3)
    world = World(CommConfig(device="cpu", threads=1), comm)
    world.working = Watchdog(world, 0).working
    rows = np.arange(comm.rank, 20, comm.size)
    for name in ("nodes.csv", "nodes.npz"):
        reports.clear()
        write_answers(str(mpi_tmp_path / name), AnswerColumns(rows, 20, {"class": rows}), world)
        assert reports["write"] == 7


def test_a_file_without_answers_has_a_header(comm, mpi_tmp_path):
    world, path = World(CommConfig(device="cpu", threads=1), comm), mpi_tmp_path / "none.csv"
    none = np.empty(0, np.int64)
    write_answers(str(path), AnswerColumns(none, 0, {"id": none, "score": np.empty((0, 2))}), world)
    assert path.read_text() == "id,score_0,score_1\n"


@pytest.mark.parametrize("total", [20, 40_000], ids=["at the end", "on the way"])
@pytest.mark.parametrize("suffix", answer_file.WRITERS)
def test_a_full_disk_is_told_by_all_ranks(comm, mpi_tmp_path, monkeypatch, suffix, total):
    """And nothing is left on it."""
    monkeypatch.setattr(answer_file, "SLAB", 10_000)
    path = mpi_tmp_path / f"answers{suffix}"
    temporary = Path(f"{path}.tmp")
    on_rank_0(comm, lambda: temporary.symlink_to("/dev/full"))
    rows, world = np.arange(comm.rank, total, comm.size), World(CommConfig(device="cpu", threads=1), comm)
    with pytest.raises(DistributedError, match="No space left on device"):
        write_answers(str(path), AnswerColumns(rows, total, {"class": rows}), world)
    comm.Barrier()
    assert not temporary.is_symlink()


def test_checking_a_checkpoint(comm, mpi_tmp_path, reports):
    """Every file."""
    world = World(CommConfig(device="cpu", threads=1), comm)
    watchdog = Watchdog(world, 0)
    writer = CheckpointWriter(mpi_tmp_path, "graph", 2, world, watchdog, {})
    writer.add(checkpoint.step_tag(Progress()), State(Progress(), {}), [], np.empty(0, np.int64))
    writer.settle()
    writer.close()
    comm.barrier()
    checkpoint.find_sound(mpi_tmp_path, world, print)
    assert reports["check the checkpoint"] == (comm.rank == 0)
