"""Kinds of mails, places of node memory, late writes and windows of time together: which combinations give one answer
on any number of ranks and resume, whatever the place of memory, and which are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from training_runs import (
    assert_same,
    bipartite,
    by_flat_row,
    homogeneous,
    make_config,
    make_parts,
    on_rank_0,
    open_trainer,
    read_plain,
    record_epoch,
    train_steps,
)

from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.memory import COLUMNS

SLOTS = {"memory__updater": "transformer", "memory__mailbox_slots": 3}
MEAN, NEIGHBORS = {"memory__aggregator": "mean"}, {"memory__deliver_to": "neighbors"}

# Mails, by name: graph, and what they are like.
MAILS = {
    "newest": (bipartite, {"sampling__batch_by": "span", "sampling__batch_span": 300}),
    "slots": (bipartite, SLOTS),
    "mean": (homogeneous, MEAN),
    "slots of means": (homogeneous, SLOTS | MEAN),
    "to neighbors": (homogeneous, NEIGHBORS | {"model__readout": "time_projection", "memory__updater": "rnn"}),
    "to neighbors, slots, of embeddings": (bipartite, SLOTS | NEIGHBORS | {"model__message_from": "embedding"}),
    "to neighbors, mean": (bipartite, NEIGHBORS | MEAN | {"sampling__strategy": "uniform"}),
    "to neighbors, slots of means": (bipartite, SLOTS | NEIGHBORS | MEAN),
}  # fmt: skip
# Where memory is, and who updates it: the answer does not depend on it. Features of events are in the memory of a
# machine; with one rank a machine, ranks fetch them.
PLACES = {
    "at owner": {},
    "at user, one rank a machine": {"memory__update_at": "user", "comm__ranks_per_machine": 1},
    "replicated": {"memory__placement": "replicated"},
    "hot": {"memory__hot_ratio": 0.2},
    "hot, at user": {"memory__hot_ratio": 0.4, "memory__update_at": "user"},
}  # fmt: skip
LATE = ("at owner", "at user, one rank a machine", "replicated")  # places that go with late writes


def combined(mails: str, place: str, **changes) -> TemporalConfig:
    return make_config(**{"train__batch_size": 30} | MAILS[mails][1] | PLACES[place] | changes)


def make_case(comm, folder: Path, mails: str, name: str = "parts", num_parts: int = 8) -> Path:
    """Collective. A small graph with features, in parts."""
    path = folder / "graph.h5"
    if not comm.bcast(path.exists()):
        on_rank_0(comm, lambda: MAILS[mails][0](path, num_events=300, edge_width=3, node_width=2) and None)
    return make_parts(comm, path, folder / name, num_parts, "random")


@pytest.mark.parametrize("mails", MAILS)
def test_the_place_of_memory_does_not_change_the_answer(comm, mpi_tmp_path, mails):
    """Samples, losses, weights, memory and scores of one rank that owns all."""
    parts = make_case(comm, mpi_tmp_path, mails)
    alone = record_epoch(MPI.COMM_SELF, parts, combined(mails, "at owner")) if comm.rank == 0 else None
    for place in PLACES:
        found = record_epoch(comm, parts, combined(mails, place))
        if comm.rank == 0:
            assert_same(found, alone)


@pytest.mark.parametrize("place", ["at user, one rank a machine", "replicated", "hot"])
def test_slots_of_means_keep_a_mail_a_batch(comm, mpi_tmp_path, place):
    """Of the three last batches of a node, at the time of its last event there."""
    trainer = open_trainer(
        comm, make_case(comm, mpi_tmp_path, "slots of means"), combined("slots of means", place)
    )  # fmt: skip
    train_steps(trainer, 0)
    owned, events = trainer.session.memory.owned(), read_plain(mpi_tmp_path / "graph.h5")
    end = int(trainer.session.graph.splits.bounds[1])
    for row, mailed, delivered in zip(
        trainer.session.partition.flat_row.tolist(), owned.mailed.tolist(), owned.delivered.tolist(), strict=True
    ):
        touched = np.flatnonzero((events.src[:end] == row) | (events.dst[:end] == row))
        batches = {int(event) // 30: int(events.time[event]) for event in touched}
        assert delivered == len(batches)
        assert sorted(mailed[: len(batches)]) == sorted(list(batches.values())[-3:])
    trainer.close()


@pytest.mark.parametrize("mails", MAILS)
def test_late_writes_in_all_places(comm, mpi_tmp_path, mails):
    parts = make_case(comm, mpi_tmp_path, mails)
    late = {"memory__staleness": 2}
    alone = record_epoch(MPI.COMM_SELF, parts, combined(mails, "at owner", **late)) if comm.rank == 0 else None
    for place in LATE:
        found = record_epoch(comm, parts, combined(mails, place, **late))
        if comm.rank == 0:
            assert_same(found, alone)


def finish(trainer) -> dict[str, np.ndarray | None]:
    """Collective. Node memory in order of flat row id, on rank 0; closes the trainer."""
    trainer.session.memory.settle()
    owned = trainer.session.memory.owned()
    memory = {name: by_flat_row(trainer.session, getattr(owned, name).numpy()) for name in COLUMNS}
    trainer.close()
    return memory


@pytest.mark.parametrize("mails", MAILS)
def test_a_run_resumes_in_another_place(comm, mpi_tmp_path, mails):
    """On other ranks and parts, with memory elsewhere: losses and memory of a run that never stopped. Only what a
    resumed run may change differs between the runs."""
    parts, other = (make_case(comm, mpi_tmp_path, mails, name, count) for name, count in (("parts", 8), ("other", 4)))
    whole = open_trainer(comm, parts, combined(mails, "at owner"))
    losses, memory, folder = train_steps(whole, 0), finish(whole), mpi_tmp_path / "run"
    on_rank_0(comm, folder.mkdir)
    for step, (before, after) in enumerate((("replicated", "hot"), ("hot", "replicated")), 3):
        if comm.rank == 0 or step == 3:
            first = open_trainer(comm if step == 3 else MPI.COMM_SELF, parts, combined(mails, before), folder)
            train_steps(first, 0, step)
            first._save(first.session.memory.saved())
            first.close()
        comm.barrier()
        second = open_trainer(comm, other, combined(mails, after), folder)
        second.resume()
        assert second.progress.step == step
        np.testing.assert_allclose(train_steps(second, step), losses[step:], rtol=1e-9)
        later = finish(second)
        for name in COLUMNS if comm.rank == 0 else ():
            np.testing.assert_allclose(later[name], memory[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory__hot_ratio": 0.1, "memory__placement": "replicated"}, "use placement sharded"),
        ({"memory__placement": "replicated", "memory__update_at": "user"}, "use update_at owner"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        make_config(**changes)
