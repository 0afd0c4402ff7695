"""A rank that pretends the others plans what it plans among real ones; a thousand ranks need no more than a few."""

from __future__ import annotations

import contextlib
import itertools
import json

import numpy as np
import pytest
from run_commands import run

from data_tools.synthetic.slice import write_snapshot_slice, write_static_slice, write_temporal_slice
from data_tools.verify.command import verify
from hpcgnn import kinds
from hpcgnn.bench import memory
from hpcgnn.bench.pretended import pretend
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.static.config import StaticConfig
from hpcgnn.temporal.config import TemporalConfig

NODES, EDGES = 200, 3000  # of a part
NUMBERS_PER_RANK = 60
ALONE = CommConfig(threads=1, watchdog_seconds=0, ranks_per_machine=1)


def static_config(num_ranks):
    """All neighbors of all seeds in one step: nothing is drawn, so every rank's sample is known from its own part."""
    config = StaticConfig(comm=ALONE)
    config.sampling.topology, config.sampling.fanouts, config.features.cache_ratio = "sharded", [-1, -1], 0.0
    config.model.layers = 2
    config.train.batch_size = NODES * num_ranks
    return config


def temporal_config(num_ranks):
    config = TemporalConfig(comm=ALONE)
    config.task.negative_pool, config.train.batch_size = "all", 60 * num_ranks
    return config


def snapshot_config(num_ranks):
    return SnapshotConfig(comm=ALONE)


def degree_config(num_ranks):
    """Edges travel to the owners of their sources."""
    config = snapshot_config(num_ranks)
    config.inputs.degrees = "log"
    return config


CASES = {
    "snapshots": (snapshot_config, write_snapshot_slice),
    "degrees": (degree_config, write_snapshot_slice),
    "static": (static_config, write_static_slice),
    "temporal": (temporal_config, write_temporal_slice),
}


@contextlib.contextmanager
def opened(config, folder, world):
    """A session, and the plans of two steps, which were trained."""
    session = kinds.open_session(config, str(folder), world, Watchdog(world, 0))
    session.start_epoch(0)
    with session.plans("train", 0) as plans:
        steps = list(itertools.islice(plans, 2))
        for plan in steps:
            assert np.isfinite(float(session.task.train(plan)))
        yield session, steps
    session.close()


def routes(kind, steps):
    """Of their input rows, or, of snapshots, of the rows of neighbors."""
    if kind in ("snapshots", "degrees"):
        return [plan.blocks[number][0].route for plan in steps for number in sorted(plan.blocks)]
    return [plan.route if kind == "temporal" else plan.fetches[0].pull for plan in steps]


@pytest.mark.several_ranks
@pytest.mark.parametrize("kind", CASES)
def test_rank_0_plans_and_holds_what_it_does_among_real_ranks(kind, world, mpi_tmp_path):
    make_config, write = CASES[kind]
    config = make_config(world.size)
    if world.rank == 0:
        write(mpi_tmp_path, world.size, NODES, EDGES, 4, range(world.size))
    world.barrier()
    with opened(config, mpi_tmp_path, World(ALONE)) as (run, steps):
        real, held = routes(kind, steps), memory.structures_of({"run": run})
    if world.rank == 0:
        with pretend(world.size, NODES, ALONE) as alone, opened(config, mpi_tmp_path, alone) as (run, steps):
            for one, other in zip(real, routes(kind, steps), strict=True):
                np.testing.assert_array_equal(other.want_counts, one.want_counts)
                if kind != "temporal":  # negatives are drawn, and other ranks' differ
                    np.testing.assert_array_equal(other.serve_counts, one.serve_counts)
            pretended = memory.structures_of({"run": run})
            assert pretended.keys() == held.keys()
            differ = sum(abs(pretended[name] - held[name]) for name in held)
            assert differ <= (8 * NUMBERS_PER_RANK if kind == "temporal" else 0)  # nodes of a list, divided among ranks
    world.barrier()


@pytest.mark.serial
@pytest.mark.parametrize("kind", CASES)
def test_nothing_of_the_length_of_all_ranks(kind, tmp_path):
    """With the same share, a rank of 1,024 holds what a rank of 16 holds but for a few numbers a rank, which messages
    and books have."""
    make_config, write = CASES[kind]
    held = {}
    for num_ranks in (16, 1024):
        folder = tmp_path / str(num_ranks)
        write(folder, num_ranks, NODES, EDGES, 4)
        with pretend(num_ranks, NODES, ALONE) as alone, opened(make_config(num_ranks), folder, alone) as (run, steps):
            held[num_ranks] = memory.structures_of({"run": run, "plan": steps})
    grown = {name: size - held[16].get(name, 0) for name, size in held[1024].items()}
    assert sum(grown.values()) < NUMBERS_PER_RANK * 8 * (1024 - 16), grown


@pytest.mark.serial
@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("kind", CASES)
def test_a_slice_is_a_part_of_a_graph(kind, width, tmp_path):
    """All parts together are a set in which verify finds nothing wrong but the quality, which is not measured."""
    CASES[kind][1](tmp_path, 3, NODES, EDGES, width, range(3))
    assert [line for line in verify(tmp_path) if "quality: " not in line] == []


@pytest.mark.serial
def test_bytes_that_can_be_reached_are_counted_once():
    base = np.zeros(100)
    held = memory.structures_of({"a": CommConfig(), "b": opened, "c": [base[:10], {"x": base[50:]}]})
    assert sum(held.values()) == base.nbytes


@pytest.mark.launcher
def test_memory_lists_what_a_rank_holds(capsys, tmp_path):
    sizes = ["--ranks=16", "--num_nodes=32000", "--num_edges=640000", "--width=8"]
    small = ["--kind=static", "--model.hidden=8", "--train.batch_size=160", f"--out={tmp_path / 'memory.json'}"]
    assert run([["bench", "memory", *small, *sizes]]) == 0
    report = json.loads((tmp_path / "memory.json").read_text())
    assert (report["nodes"], report["edges"]) == (2000, 40000)
    held = report["structures"]
    assert held["run.graph.partition.edges.src"] == 8 * 40000
    assert held["run.graph.partition.edges.row"] == 0  # nothing asks for the rows of edges
    assert held["run.graph.tables._tables.feature"] == 4 * 8 * 2000
    printed = capsys.readouterr().out
    assert "a rank of 16: 2,000 nodes, 40,000 edges" in printed
    assert "MiB  all arrays" in printed


@pytest.mark.launcher
def test_memory_takes_the_sizes_of_a_set(tmp_path):
    parts, out = tmp_path / "parts", tmp_path / "memory.json"
    write_snapshot_slice(parts, 3, 40, 200, 0, range(3), num_snapshots=7)
    small = ["--kind=snapshots", "--model.hidden=4", "--ranks=3", f"--data.path={parts}", f"--out={out}"]
    assert run([["bench", "memory", *small]]) == 0
    found = json.loads(out.read_text())["options"]
    assert [found[name] for name in ("num_nodes", "num_edges", "snapshots")] == [120, 600, 7]


@pytest.mark.launcher
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ranks=1"], "--ranks must be at least 2"),
        (["--ranks=100", "--num_nodes=50"], "--num_nodes and --num_edges must be at least 1 for each of 100 ranks"),
        (["--kind=static", "--sampling.topology=replicated"], "sampling.topology replicated"),
    ],
)
def test_wrong_options_are_refused(capsys, options, message):
    assert run([["bench", "memory", *options]]) == 2
    assert message in capsys.readouterr().err
