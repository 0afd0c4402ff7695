"""Ranks that are threads do what ranks that are processes do: the same losses, and the same bytes between them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from mpi4py import MPI

from data_tools.synthetic.slice import write_snapshot_slice, write_static_slice
from hpcgnn import kinds
from hpcgnn.bench import command
from hpcgnn.bench.cost import Machine
from hpcgnn.bench.emulated import PLAN, STEP, Emulated, emulate_steps
from hpcgnn.bench.pretended import pretend_steps
from hpcgnn.bench.price import Links, busiest, emulated_point, extrapolated_point
from hpcgnn.comm.emulated import COUNTS, MEET, ROWS, SUM, Computed, Meeting, Trace, Waited, emulate
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.static.config import StaticConfig
from hpcgnn.temporal import sampler as temporal_sampler
from hpcgnn.temporal.config import RunConfig

STEPS = 3


def static_config():
    """Rows that are learnt, features, neighbours of owners, edges as seeds."""
    config = StaticConfig()
    config.sampling.topology, config.embedding.types = "sharded", ["node"]
    config.train.batch_size = 200
    return config


def cached_config():
    """Copies of some remote rows, and edges of a node's own."""
    config = StaticConfig()
    config.features.cache_ratio, config.train.batch_size = 0.02, 200
    return config


def whole_config():
    """The whole graph in every step: rows of ghosts are under way while inner nodes are computed."""
    config = StaticConfig()
    config.sampling.mode = "whole"
    return config


def temporal_config():
    config = RunConfig()
    config.train.batch_size = 200
    return config


CASES = {
    "static": (static_config, 1), "static, two a node": (static_config, 2), "cached": (cached_config, 2),
    "whole": (whole_config, 1), "snapshots": (SnapshotConfig, 1), "temporal": (temporal_config, 2),
}  # fmt: skip


def sent_by(channels, world):
    """Bytes [R] that this rank has sent to each."""
    total = np.zeros(world.size, np.int64)
    for channel in channels:
        total += channel.sent()
    return total


def train(config, path, folder, world):
    """Losses of some steps, and the bytes [R] that this rank sent meanwhile, but for what an epoch begins with."""
    losses, sent = [], np.zeros(world.size, np.int64)
    with command.training(kinds.open_session, config, path, folder, world) as (session, trainer):
        for epoch in itertools.count():
            trainer.start_epoch(epoch)
            before = sent_by(session.channels(), world)
            with session.plans("train", epoch) as plans:
                losses += [trainer.train_step(plan)[0] for plan in itertools.islice(plans, STEPS - len(losses))]
            sent += sent_by(session.channels(), world) - before
            if len(losses) == STEPS:
                return losses, sent


@pytest.mark.several_ranks
@pytest.mark.parametrize("name", CASES)
def test_the_same_steps_as_processes(name, world, mpi_tmp_path, monkeypatch):
    make_config, node_ranks = CASES[name]
    monkeypatch.setattr(temporal_sampler, "MOST_PLANS_IN_A_ROW", 1)  # none is made but for a step
    config, path = make_config(), str(mpi_tmp_path / "parts")
    config.comm = CommConfig(device="cpu", threads=1, watchdog_seconds=0, node_ranks=node_ranks, gradients="mpi")
    config.sampling.prefetch, config.train.precision = 0, "float64"
    if world.rank == 0:
        kinds.make_built_in(config, mpi_tmp_path / "parts")
    world.barrier()
    losses, sent = train(config, path, mpi_tmp_path / "run", World(config.comm))
    sent = world.allgather_array(sent)
    if world.rank == 0:
        emulated = emulate_steps(config, path, world.size, STEPS, 0, mpi_tmp_path / "emulated")
        np.testing.assert_allclose(emulated.losses, losses, rtol=1e-12)
        np.testing.assert_array_equal(emulated.trace.sent(), sent)
    world.barrier()


@pytest.mark.serial
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
@pytest.mark.parametrize("kind", ["static", "snapshots"])
def test_a_rank_that_pretends_the_others_sends_what_it_sends_among_them(kind, num_ranks, tmp_path):
    """Nothing is drawn at random in these steps: all ranks of the slice do alike."""
    if kind == "static":
        config, write = StaticConfig(), write_static_slice
        config.sampling.topology, config.sampling.fanouts, config.model.layers = "sharded", [-1, -1], 2
        config.train.batch_size = 100 * num_ranks
    else:
        config, write = SnapshotConfig(), write_snapshot_slice
    config.comm.threads, config.sampling.prefetch = 1, 3
    sizes = num_ranks, 100, 1000, 4
    write(tmp_path / "whole", *sizes, range(num_ranks))
    whole = emulate_steps(config, str(tmp_path / "whole"), num_ranks, 2, 1, tmp_path / "run")
    alone = pretend_steps(config, sizes, 2, 1, tmp_path)
    for stage in (PLAN, STEP):
        np.testing.assert_array_equal(alone.trace.sent(stage)[0], whole.trace.sent(stage)[0])
        np.testing.assert_array_equal(alone.trace.sent(stage), whole.trace.sent(stage))  # the others alike
    kinds_of = [[event.kind for event in one.trace.events if isinstance(event, Meeting)] for one in (alone, whole)]
    assert kinds_of[0] == kinds_of[1]


@pytest.mark.serial
def test_the_price_of_a_record():
    """A rank that has nothing else to do waits for the slowest; what is begun early travels meanwhile."""
    rows = Meeting(np.arange(2), STEP, ROWS, np.array([[0, 8], [4, 0]]))
    counts = Meeting(np.arange(2), STEP, COUNTS)
    trace = Trace(2)
    trace.stages = [STEP, STEP]
    for event in (
        Computed(0, 1.0, STEP), Computed(1, 3.0, STEP), counts, Waited(0, counts), Waited(1, counts), rows,
        Computed(0, 1.5, STEP), Waited(0, rows), Computed(1, 0.5, STEP), Waited(1, rows), Computed(1, 1.0, PLAN),
    ):  # fmt: skip
        trace.add(event)
    assert trace.price(STEP, lambda _: 0.0) == 4.5  # 3, and what rank 0 computes then
    assert trace.price(STEP, lambda meeting: 2.0 if meeting is rows else 0.25) == 5.25
    assert trace.price(STEP, lambda meeting: 2.0 if meeting is rows else 0.25, speed=10) == pytest.approx(2.55)
    assert trace.price(PLAN, lambda _: 0.0) == 1.0
    np.testing.assert_array_equal(trace.sent(), rows.sent)
    np.testing.assert_array_equal(trace.computed(STEP), [2.5, 3.5])


@pytest.mark.serial
def test_rows_within_a_node_are_no_load_of_the_network():
    links = Links(Machine(latency=1e-3, bandwidth=100.0, flops=1.0), copy=1000.0, node_ranks=2)
    sent = np.zeros((4, 4), np.int64)
    sent[0, 1], sent[0, 2], sent[0, 3], sent[3, 2] = 500, 10, 20, 700
    meeting = Meeting(np.arange(4), STEP, ROWS, sent)
    assert busiest(meeting, 2) == (30, 700)
    assert links.seconds(meeting) == pytest.approx(2e-3 + 30 / 100 + 700 / 1000)
    assert links.seconds(Meeting(np.array([2, 3]), STEP, MEET)) == 0
    assert links.seconds(Meeting(np.arange(4), STEP, COUNTS)) == pytest.approx(2e-3)


@pytest.mark.serial
def test_beyond_the_parts_computing_and_bytes_are_powers_of_the_ranks():
    """The price of what was never recorded is that of a record of such ranks."""

    def job(ranks):
        trace, members = Trace(ranks), np.arange(ranks)
        trace.stages = [STEP] * ranks
        rows = Meeting(members, STEP, ROWS, np.where(members > 0, 1000 // ranks, 0))
        for meeting in (Meeting(members, STEP, COUNTS), rows, Meeting(members, STEP, SUM, num_bytes=800)):
            for rank in range(ranks):
                trace.add(Computed(rank, 8 / ranks, STEP))
            trace.add(meeting)
            for rank in range(ranks):
                trace.add(Waited(rank, meeting))
        return Emulated(trace, 1, 64, [0.0], False)

    links = Links(Machine(latency=1e-3, bandwidth=1e4, flops=1.0), copy=1e9, node_ranks=1)
    expected = emulated_point(job(16), links, 2.0)
    found = extrapolated_point(16, [job(4), job(8)], links, 2.0)
    assert found["seconds"]["compute"] == pytest.approx(expected["seconds"]["compute"])
    assert found["seconds"]["exchange"] == pytest.approx(expected["seconds"]["exchange"], rel=0.1)  # (R - 1) / R
    assert (found["counted"], expected["counted"], found["batch_size"]) == (False, True, 64)


@pytest.mark.serial
def test_an_error_of_one_rank_ends_all():
    def work(comm):
        comm.Barrier()
        if comm.rank == 1:
            raise ValueError("rank 1 has no data")
        comm.Barrier()

    with pytest.raises(ValueError, match="rank 1 has no data"):
        emulate(3, work)


@pytest.mark.serial
def test_collectives_of_threads():
    def work(comm):
        part = comm.Split(comm.rank % 2, comm.rank)
        out = np.array([comm.rank, 1.5])
        comm.Allreduce(MPI.IN_PLACE, out)
        return comm.allgather(part.allgather(comm.rank)), comm.allreduce(comm.rank, MPI.MAX), out.tolist()

    everyone, most, total = emulate(4, work)[0]
    assert everyone == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert (most, total) == (3, [6, 6.0])
