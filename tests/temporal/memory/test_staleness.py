"""Stale node memory: what a step reads, one answer on any number of ranks, nothing lost, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training_runs import (
    Record,
    assert_same,
    bipartite,
    by_flat_row,
    homogeneous,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    open_trainer,
    record_epoch,
    train_steps,
)

from hpcgnn.comm.world import DistributedError
from hpcgnn.config import check_resumable
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.memory import COLUMNS, NodeMemory

RICH = {"edge_width": 3, "node_width": 4}
SLOTS = {"memory__updater": "transformer", "memory__mailbox_slots": 3}
MEAN, NEIGHBORS = {"memory__aggregator": "mean"}, {"memory__deliver_to": "neighbors"}
HOT = {"memory__hot_ratio": 0.2}

# name: (graph, options of the graph, changes of the configuration)
CASES = {
    "at owner": (bipartite, RICH, {}),
    "at user": (bipartite, RICH, {"memory__update_at": "user"}),
    "replicated": (bipartite, {}, {"memory__placement": "replicated"}),
    "self-loops, ties": (homogeneous, {"ticks": 60}, {"sampling__batch_by": "time"}),
    "jodie": (bipartite, {}, {"memory__updater": "rnn", "model__readout": "time_projection"}),
    "dyrep": (homogeneous, RICH, {"model__readout": "identity", "model__message_from": "embedding"}),
    "transformer": (bipartite, {}, {"memory__updater": "transformer"}),
    "slots": (bipartite, RICH, SLOTS),
    "slots of means, at user": (homogeneous, {}, SLOTS | MEAN | {"memory__update_at": "user"}),
    "mean, replicated": (bipartite, RICH, MEAN | {"memory__placement": "replicated"}),
    "to neighbors": (homogeneous, {"ticks": 60}, SLOTS | NEIGHBORS),
    "batches smaller than ranks": (bipartite, {"num_events": 60}, {"train__batch_size": 2}),
    "hot nodes": (bipartite, RICH, HOT),
    "hot nodes, at user": (homogeneous, {"ticks": 60}, HOT | {"memory__update_at": "user"}),
    "hot nodes, slots, to neighbors": (homogeneous, {}, HOT | SLOTS | NEIGHBORS),
    "hot nodes, mean": (bipartite, RICH, MEAN | {"memory__hot_ratio": 1}),
}


@pytest.fixture
def parts(comm, mpi_tmp_path):
    """A callable: a partition set of one small graph, by name."""

    def make(graph=bipartite, name="parts", num_parts=8, method="random", **options) -> Path:
        path = mpi_tmp_path / "graph.h5"
        if not comm.bcast(path.exists()):
            on_rank_0(comm, lambda: graph(path, **{"num_events": 360} | options) and None)
        return make_parts(comm, path, mpi_tmp_path / name, num_parts, method)

    return make


def stale_config(staleness: int, **changes) -> TemporalConfig:
    return make_config(**{"train__batch_size": 30, "memory__staleness": staleness} | changes)


# ------------------------------------------------------------------------------------------------- what a step reads


def columns_of(memory: NodeMemory) -> dict[str, np.ndarray]:
    """A copy of what reads see."""
    return {name: getattr(memory.table, name).numpy().copy() for name in COLUMNS}


@pytest.mark.parametrize("staleness", [0, 1, 2, 5, 100])
@pytest.mark.parametrize("placement", ["sharded", "replicated"])
def test_a_step_reads_the_memory_of_k_steps_before(comm, parts, monkeypatch, staleness, placement):
    """At step s memory is what the writes of steps 0 .. s - k - 1 make of it. State and mail are replaced together, and
    the state's time is that of the mail that the writing step had read."""
    trainer = open_trainer(comm, parts(), stale_config(staleness, memory__placement=placement))
    memory, write, read, written = trainer.session.memory, trainer.session.memory.write, [], []

    def noted(rows, time, arrive, keep, state=None, place=None, more=False):
        mail = arrive() if state is None else torch.cat([state[place], arrive()], dim=1)
        written.append([tensor.numpy().copy() for tensor in (rows, time, mail)])
        write(rows, time, arrive, keep, state, place, more)

    monkeypatch.setattr(memory, "write", noted)
    with trainer.session.plans("train", 0) as plans:
        for plan in plans:
            read.append(columns_of(memory))
            trainer.train_step(plan)
    memory.settle()
    versions = [read[0]]
    for step, (rows, time, mail) in enumerate(written):
        seen, new = versions[max(0, step - staleness)], {n: v.copy() for n, v in versions[-1].items()}
        new["state"][rows], new["mail"][rows, 0] = mail[:, : new["state"].shape[1]], mail
        new["updated"][rows] = np.where(seen["delivered"][rows] > 0, seen["mailed"][rows, 0], time)
        new["mailed"][rows, 0] = time
        new["delivered"][rows] += 1
        assert (new["mailed"][:, 0] >= new["updated"]).all()
        versions.append(new)
    assert len(written) == len(read) > 5
    for step, seen in enumerate([*read[1:], columns_of(memory)], 1):
        expected = versions[step if step == len(read) else max(0, step - staleness)]
        for name, values in seen.items():
            assert np.array_equal(values, expected[name]), (step, name)
    trainer.close()


def steps_of_slots(seen: dict[str, np.ndarray], new: dict[str, np.ndarray], written: list[np.ndarray]) -> None:
    """Write a step's states, made from what was seen, and its mails, each on top of its row's newest one."""
    rows, state, receiver, mail, time = written
    for row, values in zip(rows, state, strict=True):
        mailed = seen["mailed"][row][: seen["delivered"][row]]
        new["state"][row] = values
        new["updated"][row] = mailed.max() if len(mailed) else time[receiver == row][0]
    for row, values, at in zip(receiver, mail, time, strict=True):
        place = new["delivered"][row] % new["mail"].shape[1]
        new["mail"][row, place], new["mailed"][row, place] = values, at
        if new["delivered"][row] == 0:
            new["updated"][row] = at
        new["delivered"][row] += 1


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize(
    "changes",
    [SLOTS, MEAN, SLOTS | NEIGHBORS | {"memory__placement": "replicated"}],
    ids=["slots", "mean", "neighbors"],
)
def test_mails_beside_others_come_k_steps_late(comm, parts, monkeypatch, staleness, changes):
    """At step s memory is what the writes of steps 0 .. s - k - 1 make of it."""
    trainer = open_trainer(comm, parts(), stale_config(staleness, **changes))
    memory, deliver, read, written = trainer.session.memory, trainer.session.memory.deliver, [], []

    def noted(rows, mails, arrive, keep, more=False):
        state, mail = arrive()
        written.append([tensor.numpy().copy() for tensor in (rows, state, mails[0], mail, mails[2])])
        deliver(rows, mails, arrive, keep, more)

    monkeypatch.setattr(memory, "deliver", noted)
    with trainer.session.plans("train", 0) as plans:
        for plan in plans:
            read.append(columns_of(memory))
            trainer.train_step(plan)
    memory.settle()
    versions = [read[0]]
    for step, write in enumerate(written):
        versions.append({name: values.copy() for name, values in versions[-1].items()})
        steps_of_slots(versions[max(0, step - staleness)], versions[-1], write)
    assert len(written) == len(read) > 5
    for step, seen in enumerate([*read[1:], columns_of(memory)], 1):
        expected = versions[step if step == len(read) else max(0, step - staleness)]
        for name, values in seen.items():
            assert np.array_equal(values, expected[name]), (step, name)
    trainer.close()


def test_zero_is_the_default_and_others_differ(comm, parts):
    """Bit for bit; a stale run starts alike, for no step reads a write before the second."""
    path = parts(**RICH)
    default = record_epoch(comm, path, make_config(train__batch_size=30))
    exact, one, two = (record_epoch(comm, path, stale_config(k)) for k in (0, 1, 2))
    if comm.rank > 0:
        return
    assert default.losses == exact.losses
    assert np.array_equal(default.parameters, exact.parameters)
    assert all(np.array_equal(values, exact.memory[name]) for name, values in default.memory.items())
    assert first_difference(exact, one) == 1
    assert first_difference(exact, two) == 1
    assert first_difference(one, two) == 2


def first_difference(one: Record, other: Record) -> int:
    """The first step with another loss."""
    return int(np.flatnonzero(np.array(one.losses) != other.losses)[0])


# -------------------------------------------------------------------------------------------- ranks, kills, evaluation


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("staleness", [1, 3])
def test_ranks_do_not_change_the_answer(comm, parts, case, staleness):
    """Losses, weights, memory and validation scores, with another partition set on one rank."""
    graph, options, changes = CASES[case]
    path, other = parts(graph, **options), parts(graph, "other", 4, "metis")
    config = stale_config(staleness, **changes)
    record = record_epoch(comm, path, config)
    if comm.rank == 0:
        assert_same(record, record_epoch(MPI.COMM_SELF, other, config))


def finish(trainer: Trainer) -> dict[str, np.ndarray | None]:
    """Collective. Node memory behind all writes, in order of flat row id, on rank 0."""
    trainer.session.memory.settle()
    owned = trainer.session.memory.owned()
    memory = {name: by_flat_row(trainer.session, getattr(owned, name).numpy()) for name in COLUMNS}
    trainer.close()
    return memory


GOES_ON = {
    "newest": {}, "slots, to neighbors": SLOTS | NEIGHBORS, "mean": MEAN, "hot nodes": HOT,
    "hot nodes, slots, to neighbors": HOT | SLOTS | NEIGHBORS,
}  # fmt: skip


@pytest.mark.parametrize("step", [1, 4, None])
@pytest.mark.parametrize("alone", ["before", "after"])
@pytest.mark.parametrize("mails", GOES_ON.values(), ids=GOES_ON)
def test_a_run_goes_on_with_its_waiting_writes(comm, parts, mpi_tmp_path, mails, step, alone):
    """Stopped after a step, also the epoch's last, on one rank or all of them; continued on the others, on another
    partition set, with another placement of memory or fewer hot nodes: the losses and the memory of a run that was
    never stopped."""
    path, other, folder = parts(), parts(name="other", num_parts=4), mpi_tmp_path / "run"
    whole = open_trainer(comm, path, stale_config(3, **mails))
    losses, memory = train_steps(whole, 0), finish(whole)
    on_rank_0(comm, folder.mkdir)
    step = len(losses) if step is None else step
    values = [{"memory__placement": placement} for placement in ("sharded", "replicated")]
    if HOT.items() <= mails.items():
        values = [{}, {"memory__hot_ratio": 0.05}]
    configs = [stale_config(3, **mails | changes) for changes in (values if step == 4 else reversed(values))]
    comms = (MPI.COMM_SELF, comm) if alone == "before" else (comm, MPI.COMM_SELF)
    if comms[0] is comm or comm.rank == 0:
        first = open_trainer(comms[0], path, configs[0], folder)
        train_steps(first, 0, step)
        first._save(first.session.memory.saved())
        first.close()
    comm.barrier()
    if comms[1] is comm or comm.rank == 0:
        second = open_trainer(comms[1], other, configs[1], folder)
        second.resume()
        assert second.progress.step == step
        found, later = train_steps(second, step), finish(second)
        np.testing.assert_allclose(found, losses[step:], rtol=1e-9)
        for name in COLUMNS if comm.rank == 0 else ():
            np.testing.assert_allclose(later[name], memory[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_evaluation_reads_all_writes(comm, parts):
    """Also right after training, and it waits for its own."""
    trainer = open_trainer(comm, parts(), stale_config(2))
    train_steps(trainer, 0)
    session = trainer.session
    with session.plans("val", 0) as plans:
        for plan in plans:
            session.task.evaluate(plan)
            before = columns_of(session.memory)
            session.memory.settle()
            assert all(np.array_equal(values, before[name]) for name, values in columns_of(session.memory).items())
            delivered = session.memory.owned().delivered[plan.write.rows]
            assert (delivered > 0).all()
    trainer.close()


def test_leaving_together_leaves_nothing_under_way(comm, parts, mpi_tmp_path):
    """A loss that is not finite, with writes on their way."""
    on_rank_0(comm, (mpi_tmp_path / "run").mkdir)
    trainer = open_trainer(comm, parts(), stale_config(2, train__lr=1e300), mpi_tmp_path / "run")
    with pytest.raises(DistributedError, match=r"lower train\.lr"):
        trainer.run()
    assert len(trainer.session.memory.saved()) == 1
    trainer.close()


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"staleness": -1}, "memory.staleness must be at least 0"),
        ({"staleness": 1, "updater": "none"}, "memory.staleness needs node memory"),
        ({"staleness": 1, "updater": "walks"}, "use 0"),
    ],
)
def test_refusals(changes, words):
    with pytest.raises(ValueError, match=words):
        TemporalConfig.from_dict({"memory": changes})


def test_a_resumed_run_keeps_its_staleness():
    with pytest.raises(ValueError, match=r"memory\.staleness \(0 -> 1\)"):
        check_resumable(stale_config(0), stale_config(1))


def test_a_model_of_ones_own_without_memory_is_refused(comm, parts, monkeypatch):
    config = stale_config(1, model__class_path="forgetful.Model")
    forgetful = type("Forgetful", (), {"has_memory": False})
    monkeypatch.setattr("hpcgnn.temporal.session.resolve_model", lambda _: lambda *_: forgetful())
    with pytest.raises(DistributedError, match=r"Forgetful has no node memory: leave memory\.staleness 0"):
        open_session(comm, parts(), config)
