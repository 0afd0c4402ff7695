"""Ranks that are threads do what ranks that are processes do: the same losses, and the same bytes between them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from mpi4py import MPI
from selection import long_but
from training_runs import bipartite, homogeneous, make_config, make_parts, on_rank_0

from data_tools.synthetic.slice import write_snapshot_slice, write_static_slice, write_temporal_slice
from hpcgnn import kinds
from hpcgnn.bench import command
from hpcgnn.bench.emulated import emulate, emulate_steps
from hpcgnn.bench.pretended import pretend_steps
from hpcgnn.bench.price import Links, busiest, extrapolated_point, floor_law, power_law, simulated_point
from hpcgnn.bench.steps import SimulatedSteps, begin_epoch, choose_steps
from hpcgnn.bench.trace import COUNTS, MEET, PLAN, ROWS, STEP, SUM, Computed, Meeting, Recorder, Trace, Waited
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.static.config import StaticConfig
from hpcgnn.temporal import sampler as temporal_sampler
from hpcgnn.temporal.config import TemporalConfig

STEPS, EPOCH_STEPS = 3, 99  # the latter are cut to those of an epoch


def static_config():
    """Rows that are learned, features, neighbors of owners, edges as seeds."""
    config = StaticConfig()
    config.sampling.topology, config.node_embedding.types = "sharded", ["node"]
    config.train.batch_size = 200
    return config


def cached_config():
    """Copies of some remote rows, and edges of a node's own."""
    config = StaticConfig()
    config.features.cache_ratio, config.train.batch_size = 0.02, 200
    return config


def whole_config():
    """The whole graph in every step: rows of remote nodes are under way while inner nodes are computed."""
    config = StaticConfig()
    config.train.full_graph = True
    return config


def temporal_config():
    config = TemporalConfig()
    config.train.batch_size = 200
    return config


CASES = {
    "static": (static_config, 1), "static, two a machine": (static_config, 2), "cached": (cached_config, 2),
    "whole": (whole_config, 1), "snapshots": (SnapshotConfig, 1), "temporal": (temporal_config, 2),
}  # fmt: skip


# Temporal graphs and runs: every exchange that a step may have.
TEMPORAL_CASES = {
    "plain": (bipartite, {}, {}),
    "features": (bipartite, {"edge_width": 3, "node_width": 2}, {"task__negatives": 2}),
    "user": (bipartite, {"edge_width": 3}, {"memory__update_at": "user", "sampling__strategy": "uniform"}),
    "loops": (homogeneous, {"edge_width": 2}, {"sampling__in_batch_neighbors": False, "sampling__batch_by": "time"}),
    "two layers": (bipartite, {"edge_width": 3}, {"model__layers": 2, "memory__staleness": 1}),
    "neighbors": (bipartite, {"edge_width": 3}, {
        "memory__updater": "transformer", "memory__mailbox_slots": 4, "memory__deliver_to": "neighbors",
    }),
    "hot nodes": (bipartite, {"edge_width": 3, "node_width": 2}, {"memory__hot_ratio": 0.2}),
    "hot nodes at user": (homogeneous, {}, {"memory__hot_ratio": 0.4, "memory__update_at": "user"}),
    "hidden": (bipartite, {"ticks": 60}, {"data__new_node_ratio": 0.1, "train__batch_size": 33}),
}  # fmt: skip


def sent_by(channels, world):
    """Bytes [R] that this rank has sent to each."""
    total = np.zeros(world.size, np.int64)
    for channel in channels:
        total += channel.sent()
    return total


def train(config, path, folder, world, steps):
    """Losses of some steps, and the bytes [R] that this rank sent meanwhile, but for what an epoch begins with."""
    losses, sent = [], np.zeros(world.size, np.int64)
    with command.training(kinds.open_session, config, path, folder, world) as (session, trainer):
        first, steps = choose_steps(session, steps, 0)
        for epoch in itertools.count():
            start = first if epoch == 0 else 0
            begin_epoch(session, trainer, epoch, start)
            before = sent_by(session.channels(), world)
            with session.plans("train", epoch, start) as plans:
                losses += [trainer.train_step(plan)[0] for plan in itertools.islice(plans, steps - len(losses))]
            sent += sent_by(session.channels(), world) - before
            if len(losses) == steps:
                return losses, sent


def compare_with_processes(config, path, world, folder, steps):
    """Collective. Train on these ranks and on threads."""
    losses, sent = train(config, path, folder / "run", World(config.comm), steps)
    sent = world.allgather_array(sent)
    if world.rank == 0:
        emulated = emulate_steps(config, path, world.size, steps, 0, folder / "emulated")
        np.testing.assert_allclose(emulated.losses, losses, rtol=1e-12)
        np.testing.assert_array_equal(emulated.trace.sent(), sent)
    world.barrier()


@pytest.fixture
def one_by_one(monkeypatch):
    """Processes make plans as threads do: when their turn comes, not several in a row."""
    monkeypatch.setattr(temporal_sampler, "MOST_PLANS_IN_A_ROW", 1)


def as_processes(config, ranks_per_machine):
    """Let processes plan nothing ahead, in a number type that shows any difference."""
    config.comm = CommConfig(
        device="cpu", threads=1, watchdog_seconds=0, ranks_per_machine=ranks_per_machine, gradients="mpi"
    )
    config.sampling.prefetch, config.train.precision = 0, "float64"
    return config


@pytest.mark.several_ranks
@pytest.mark.parametrize("name", long_but(CASES, "static".__ne__))
def test_the_same_steps_as_processes(name, world, mpi_tmp_path, one_by_one):
    make, ranks_per_machine = CASES[name]
    config, path = as_processes(make(), ranks_per_machine), str(mpi_tmp_path / "parts")
    if world.rank == 0:
        kinds.make_built_in(config, mpi_tmp_path / "parts")
    world.barrier()
    compare_with_processes(config, path, world, mpi_tmp_path, STEPS)


@pytest.mark.several_ranks
@pytest.mark.parametrize("name", TEMPORAL_CASES)
def test_the_same_temporal_epoch_as_processes(name, comm, world, mpi_tmp_path, one_by_one):
    write, shape, changes = TEMPORAL_CASES[name]
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: write(graph, **shape) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts", parts=8)
    config = as_processes(make_config(**changes), 1)
    compare_with_processes(config, str(parts), world, mpi_tmp_path, EPOCH_STEPS)


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
    kinds_of = [[event.kind for event in one.trace.meetings()] for one in (alone, whole)]
    assert kinds_of[0] == kinds_of[1]


@pytest.mark.serial
@pytest.mark.parametrize("update_at", ["owner", "user"])
def test_a_temporal_rank_that_pretends_the_others_sends_about_what_it_sends_among_them(update_at, tmp_path):
    """Negatives are drawn at random, and other ranks' differ."""
    config = TemporalConfig()
    config.train.batch_size, config.memory.update_at, config.sampling.negative_pool = 600, update_at, "all"
    config.comm.threads, config.sampling.prefetch = 1, 0
    sizes = 3, 400, 4000, 4
    write_temporal_slice(tmp_path / "whole", *sizes, range(3))
    whole = emulate_steps(config, str(tmp_path / "whole"), 3, 4, 1, tmp_path / "run")
    alone = pretend_steps(config, sizes, 4, 1, tmp_path)
    assert (alone.epoch_steps, whole.epoch_steps) == (16, 16)
    for stage in (PLAN, STEP):
        np.testing.assert_allclose(alone.trace.sent(stage).sum(), whole.trace.sent(stage).sum(), rtol=0.05)
    kinds_of = [[(event.kind, event.part) for event in one.trace.meetings()] for one in (alone, whole)]
    assert kinds_of[0] == kinds_of[1]


@pytest.mark.serial
def test_temporal_steps_are_those_in_the_middle_of_an_epoch_or_a_whole_one(tmp_path):
    """In the middle as many nodes have mails as after the steps before it."""
    graph, parts = tmp_path / "graph.h5", tmp_path / "parts"
    bipartite(graph)
    make_parts(MPI.COMM_SELF, graph, parts)
    config = as_processes(make_config(), 1)
    world = World(config.comm, MPI.COMM_SELF)
    with command.training(kinds.open_session, config, str(parts), tmp_path, world) as (session, trainer):
        num_steps = session.batches["train"].num_steps
        assert [choose_steps(session, *given) for given in ((1, 0), (3, 1), (num_steps, 1), (99, 0), (4, 9))] == [
            (num_steps // 2, 1), ((num_steps - 3) // 2 - 1, 3), (num_steps - 1, num_steps), (0, num_steps), (0, 4),
        ]  # fmt: skip
        begin_epoch(session, trainer, 0, 6)
        has_mail = session.memory.table.delivered.numpy().copy()
        begin_epoch(session, trainer, 0, 0)
        assert not session.memory.table.delivered.any()
        with session.plans("train", 0) as plans:
            for plan in itertools.islice(plans, 6):
                trainer.train_step(plan)
        np.testing.assert_array_equal(session.memory.table.delivered.numpy() > 0, has_mail)
        assert 0 < has_mail.sum() < len(has_mail)


@pytest.mark.serial
def test_the_price_of_a_record():
    """A rank that has nothing else to do waits for the slowest; what is begun early travels meanwhile."""
    rows = Meeting(np.arange(2), STEP, ROWS, np.array([[0, 8], [4, 0]]))
    counts = Meeting(np.arange(2), STEP, COUNTS)
    trace = Trace(2)
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


@pytest.mark.serial
def test_rows_within_a_machine_are_no_load_of_the_network():
    links = Links(latency=1e-3, bandwidth=100.0, copy=1000.0, machine_ranks=2)
    sent = np.zeros((4, 4), np.int64)
    sent[0, 1], sent[0, 2], sent[0, 3], sent[3, 2] = 500, 10, 20, 700
    meeting = Meeting(np.arange(4), STEP, ROWS, sent)
    assert [busiest(part) for part in links.sent(meeting)] == [30, 700]
    assert links.seconds(meeting) == pytest.approx(2e-3 + 30 / 100 + 700 / 1000)
    assert links.seconds(Meeting(np.array([2, 3]), STEP, MEET)) == 0
    assert links.seconds(Meeting(np.arange(4), STEP, COUNTS)) == pytest.approx(2e-3)


@pytest.mark.serial
def test_beyond_the_parts_computing_and_bytes_are_powers_of_the_ranks():
    """The price of what was never recorded is that of a record of such ranks."""

    def job(ranks):
        trace, members = Trace(ranks), np.arange(ranks)
        recorders = [Recorder(trace, rank) for rank in range(ranks)]
        recorders[0].stage = STEP
        sizes = {COUNTS: {}, ROWS: {"sent": np.where(members > 0, 1000 // ranks, 0)}, SUM: {"num_bytes": 800}}
        for part, kind in (("exchange", COUNTS), ("exchange", ROWS), ("gradient sum", SUM)):
            with recorders[0].within(part):
                meeting = recorders[0].meeting(members, kind, **sizes[kind])
            trace.events[-1:] = [*(Computed(rank, 8 / ranks, STEP) for rank in range(ranks)), meeting]
            trace.events += [Waited(rank, meeting) for rank in range(ranks)]
        return SimulatedSteps(trace, 1, 64, [0.0], 10, False)

    links = Links(latency=1e-3, bandwidth=1e4, copy=1e9, machine_ranks=1)
    expected = simulated_point(job(16), links, 2.0)
    found = extrapolated_point(16, [job(4), job(8)], links, 2.0)
    assert found["seconds"].keys() == {"compute", "exchange messages", "gradient sum messages"}
    for name, seconds in expected["seconds"].items():
        assert found["seconds"][name] == pytest.approx(seconds, rel=0.1)  # (R - 1) / R
    assert (found["counted"], expected["counted"], found["batch_size"]) == (False, True, 64)
    assert expected["bytes"] == {"exchange": 15 * 62, "gradient sum": 0}
    assert expected["bytes_busiest"] == expected["bytes_per_rank"] == 15 * 62
    assert found["epoch_seconds"] == 10 * found["step_seconds"]


@pytest.mark.serial
def test_beyond_the_parts_a_batch_of_a_rank_stays_its_own():
    """So an epoch has fewer steps."""
    jobs = [SimulatedSteps(Trace(ranks), 1, 8 * ranks, [0.0], 100 // ranks, False) for ranks in (2, 4)]
    found = extrapolated_point(16, jobs, Links(1e-6, 1e9, 1e9, 1), 1.0)
    assert (found["batch_size"], found["epoch_seconds"]) == (128, 7 * found["step_seconds"])


@pytest.mark.serial
def test_bytes_are_a_power_through_the_last_two_points():
    assert power_law([2, 4, 8], [9, 3 * 4**-0.4, 3 * 8**-0.4], 100) == pytest.approx(3 * 100**-0.4)
    assert power_law([2, 4], [0, 0], 100) < 1e-8


@pytest.mark.serial
def test_seconds_have_a_floor():
    assert floor_law([2, 4, 8], [3 + 8 / ranks for ranks in (2, 4, 8)], 100) == pytest.approx(3.08)
    assert floor_law([2, 4], [8, 4], 16) == pytest.approx(1)
    assert floor_law([2, 4], [8, 3], 16) == pytest.approx(0.75)  # not below 0
    assert floor_law([2, 4], [3, 4], 16) == 4  # not above what is known


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
