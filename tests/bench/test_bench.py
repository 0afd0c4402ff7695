"""The cost model: bytes that it predicts are the bytes that ranks send; laws, report, picture; the peer."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from training_runs import bipartite, homogeneous, make_config, make_parts, on_rank_0, open_session

from hpcgnn.bench import epoch, neighbors, scores
from hpcgnn.bench.cost import Machine, Setting, predict
from hpcgnn.bench.counts import count
from hpcgnn.bench.exchanges import exchanges, gradient_bytes, sent_bytes
from hpcgnn.bench.laws import Laws, Power, Total, counted_demand
from hpcgnn.bench.machine import open_alone
from hpcgnn.bench.scale import ScaleOptions, make_report
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.trainer import Trainer

CASES = {
    "plain": (bipartite, {}, {}),
    "features": (bipartite, {"edge_width": 3, "node_width": 2}, {"sampling__negatives": 2}),
    "user": (bipartite, {"edge_width": 3}, {"memory__update_at": "user", "sampling__strategy": "uniform"}),
    "loops": (homogeneous, {"edge_width": 2}, {"sampling__in_batch_neighbors": False, "sampling__batch_by": "time"}),
    "hot nodes": (bipartite, {"edge_width": 3, "node_width": 2}, {"memory__hot_nodes": 0.2}),
    "hot nodes at user": (homogeneous, {}, {"memory__hot_nodes": 0.4, "memory__update_at": "user"}),
    "hidden": (bipartite, {"ticks": 60}, {"data__new_node_fraction": 0.1, "train__batch_size": 33}),
}


def make_case(comm, folder: Path, name: str):
    """Collective. The parts and the configuration of a case."""
    write, shape, changes = CASES[name]
    graph = folder / "graph.h5"
    on_rank_0(comm, lambda: write(graph, **shape) and None)
    return make_parts(comm, graph, folder / "parts", parts=8), make_config(**changes, comm__node_ranks=1)


def epoch_bytes(comm, parts: Path, config) -> np.ndarray:
    """Collective. Bytes [R, 2] that Channel counted for each rank in one epoch's plans and in its execution."""
    session = open_session(comm, parts, config)
    trainer = Trainer(session, Path("unused"), lambda *_, **__: None, StopRequest())
    (planning,) = session.loaders["train"].channels()
    before = planning.sent_bytes
    session.loaders["train"].negatives(0).whole()  # drawn once an epoch: no part of a step
    drawn = planning.sent_bytes - before
    before = np.array([planning.sent_bytes + drawn, session.graph.channel.sent_bytes])
    with session.plans("train", 0) as plans:
        for plan in plans:
            trainer.train_step(plan)
    after = np.array([planning.sent_bytes, session.graph.channel.sent_bytes])
    trainer.close()
    return session.world.allgather_array(after - before)


@pytest.mark.several_ranks
@pytest.mark.parametrize("name", CASES)
def test_predicted_bytes_are_the_bytes_sent(comm, mpi_tmp_path, name):
    parts, config = make_case(comm, mpi_tmp_path, name)
    sent = epoch_bytes(comm, parts, config)
    session = open_alone(config, str(parts), threads=1)
    steps = np.arange(session.batches["train"].num_steps)
    counts = count(session, [comm.size], steps)[0][comm.size]
    found = exchanges(session)
    assert np.array_equal(np.stack([sent_bytes(found, counts, planned) for planned in (True, False)], axis=1), sent)
    assert counts.roots.total == counts.kinds["requests"].total
    assert sent.min() > 0


@pytest.fixture
def session(tmp_path):
    """A session of this rank alone; every rank of an MPI run makes its own."""
    from mpi4py import MPI

    parts, config = make_case(MPI.COMM_SELF, tmp_path, "features")
    return open_alone(config, str(parts), threads=1)


def test_counts_approach_their_limits(session):
    steps = np.arange(session.batches["train"].num_steps)
    counts, apart = count(session, [1, 2, 4, 8], steps)
    for kind, limit in apart.kinds.items():
        wanted = [counts[size].kinds[kind].total for size in (1, 2, 4, 8)]
        assert wanted == sorted(wanted)
        assert wanted[-1] <= limit.total
        assert counts[1].kinds[kind].remote == 0
    assert all(c.updated.total == counts[1].updated.total for c in counts.values())  # at the owner: each node once
    roles = 2 + session.config.sampling.negatives
    assert all(c.roots.peak <= c.steps * roles * -(-40 // size) for size, c in counts.items())


def test_laws_return_what_they_were_fitted_to():
    ranks = np.array([2.0, 4.0, 8.0, 16.0])
    power, total = Power.fit(ranks, 3 * ranks**-0.4), Total.fit(ranks, 100 - 60 * ranks**-0.3, 40, 100)
    assert (power.factor, power.exponent) == pytest.approx((3, -0.4))
    assert total.exponent == pytest.approx(0.3)
    assert total(1) == 40
    assert total(1 << 20) == pytest.approx(100, abs=2)
    assert Total.fit(ranks, np.full(4, 7.0), 7, 7)(1000) == 7


def test_extrapolation_is_bounded_and_continues_what_was_counted(session):
    counts, apart = count(session, [1, 2, 3, 4, 8], np.arange(4))
    laws = Laws.fit(counts, apart)
    assert laws.fitted == [2, 3, 4, 8]
    known, guessed = counted_demand(counts[8]), laws.demand(8)
    for kind in guessed.rows:
        assert guessed.rows[kind].mean == pytest.approx(known.rows[kind].mean, rel=0.35)
    for size in (16, 1024):
        demand = laws.demand(size)
        assert not demand.counted
        for kind, rows in demand.rows.items():
            assert 0 <= rows.mean <= rows.peak
            assert rows.mean * size <= apart.kinds[kind].total / apart.steps * (1 + 1e-9)
    assert Laws.fit({1: counts[1], 2: counts[2]}, apart) is None


def test_hot_nodes_are_counted_but_not_extrapolated(tmp_path):
    from mpi4py import MPI

    parts, config = make_case(MPI.COMM_SELF, tmp_path, "hot nodes")
    options = ScaleOptions("", "", max_ranks=64, steps=2, overlap=True, parameters={})
    machine = Machine(1e-6, 1e9, 1e9)
    sources = dict.fromkeys(asdict(machine), "given")
    report = make_report(open_alone(config, str(parts), threads=1), options, machine, sources)
    assert report["laws"] is None
    assert [p["ranks"] for p in report["points"]] == list(range(1, 9))
    two = report["points"][1]
    assert two["bytes"]["states told"] > 0
    assert two["bytes_busiest"] >= two["bytes_per_rank"]


def test_formula(session):
    counts = count(session, [1, 4], np.arange(3))[0]
    setting = Setting(session.config, 3, exchanges(session), gradient_bytes(session), overlap=True)
    machine = Machine(latency=1e-6, bandwidth=1e9, flops=1e9, overhead=1e-3, plan_root=1e-9)
    alone, four = (predict(counted_demand(counts[size]), setting, machine) for size in (1, 4))
    assert alone["step_seconds"] == alone["seconds"]["compute"] + 1e-3
    assert alone["bytes_per_rank"] == 0
    assert four["seconds"]["memory"] == pytest.approx(3e-6 + four["bytes_peak"]["memory"] / 1e9)
    assert four["seconds"]["all-reduce"] == pytest.approx(1.5 * setting.gradient_bytes / 1e9 + 4e-6)
    assert four["step_seconds"] == pytest.approx(max(sum(four[s].values()) for s in ("seconds", "plan_seconds")))
    slow = predict(counted_demand(counts[4]), setting, Machine(1e-6, 1e9, 1e12, plan_overhead=1.0))
    assert slow["bound"] == "planning"
    assert slow["step_seconds"] == sum(slow["plan_seconds"].values())


SMALL = ("--data.synthetic_events=3000", "--train.batch_size=100", "--model.memory_dim=8", "--model.time_dim=8",
         "--model.embed_dim=8", "--comm.threads=1")  # fmt: skip


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [1, 2])
def test_scale_writes_report_and_picture(jobs, tmp_path, ranks):
    out, picture = tmp_path / "scale.json", tmp_path / "scale.png"
    drawn = [f"--plot={picture}"] if find_spec("matplotlib") else []
    given = ["--flops=1e10", "--max_ranks=200", "--steps=4"]
    if ranks == 1:
        given += ["--efficiency=0.5", "--overhead=1e-3", "--plan_root=1e-6", "--plan_overhead=1e-3"]
    result = jobs(ranks, "bench", "scale", *SMALL, *given, f"--out={out}", *drawn)
    report = json.loads(out.read_text())
    points = report["points"]
    assert [p["ranks"] for p in points] == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 200]
    assert [p["counted"] for p in points] == [True] * 11 + [False] * 2
    assert report["steps_counted"] == 4
    assert report["laws"]["fitted"] == [8, 16, 32, 64]
    assert report["assumptions"]
    sources = {name: parameter["source"] for name, parameter in report["machine"].items()}
    assert sources["flops"] == "given"
    assert sources["overhead"] == ("measured" if ranks > 1 else "given")
    assert sources["latency"] == ("measured" if ranks > 1 else "assumed")
    for point in points:
        assert set(point["bytes"]) | {"all-reduce"} == set(report["widths"])
        assert point["step_seconds"] > 0
        assert point["bytes_per_rank"] == pytest.approx(sum(point["bytes"].values()))
    assert result.stdout.count("extrapolated") == 2
    if drawn:
        assert picture.stat().st_size > 10_000


@pytest.mark.launcher
@pytest.mark.parametrize("kind", ["static", "snapshots"])
def test_scale_simulates_steps_of_other_kinds(jobs, tmp_path, kind):
    out, picture = tmp_path / "scale.json", tmp_path / "scale.png"
    drawn = [f"--plot={picture}"] if find_spec("matplotlib") else []
    job = [f"--kind={kind}", "--comm.threads=1", "--steps=2"]
    jobs(1, "bench", "scale", *job, "--max_ranks=4", f"--out={out}", *drawn)
    points = json.loads(out.read_text())["points"]
    assert [(p["ranks"], p["counted"]) for p in points] == [(1, True), (2, True), (4, True)]
    assert points[0]["bytes_per_rank"] == 0 < points[1]["bytes_per_rank"] <= points[1]["bytes_busiest"]
    for point in points:
        assert point["seconds"]["compute"] > 0
        front, behind = sum(point["seconds"].values()), sum(point["plan_seconds"].values())
        assert point["step_seconds"] == pytest.approx(max(front, behind))


@pytest.mark.launcher
def test_scale_simulates_one_rank_of_a_graph_that_is_made_up(jobs, tmp_path):
    out = tmp_path / "scale.json"
    graph = ["--kind=static", "--nodes=20000", "--edges=200000", "--width=8"]
    job = ["--train.batch_size=20", "--per_rank=true", "--max_ranks=8", "--steps=2", "--comm.threads=1"]
    result = jobs(1, "bench", "scale", *graph, *job, f"--out={out}")
    points = json.loads(out.read_text())["points"]
    assert [(p["ranks"], p["batch_size"]) for p in points] == [(2, 40), (4, 80), (8, 160)]
    assert points[0]["bytes_per_rank"] < points[2]["bytes_per_rank"]
    assert "20,000 nodes and 200,000 edges, made up, batch 20, 2 steps counted" in result.stdout
    assert "over 2 ranks" in result.stdout


def test_epochs_are_cut_into_batches_as_in_training(comm, mpi_tmp_path):
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph, num_events=300) and None)
    parts, config = make_parts(comm, graph, mpi_tmp_path / "parts"), make_config(sampling__chunks=10)
    session, training = open_session(comm, parts, config), open_session(comm, parts, config)
    trainer = Trainer(session, mpi_tmp_path, lambda *_, **__: None, StopRequest())
    firsts = []
    for number in range(3):
        timed = epoch._epoch(session, trainer, number)
        training.start_epoch(number)
        firsts.append(int(session.batches["train"].sizes[0]))
        assert session.batches["train"].sizes.tolist() == training.batches["train"].sizes.tolist()
        assert timed["seconds"] > 0
    assert len(set(firsts)) > 1
    trainer.close()


@pytest.mark.launcher
@pytest.mark.parametrize("words", [[], ["scale"], ["sample"]])
def test_help_of_every_word(jobs, words):
    result = jobs(1, "bench", *words, "--help")
    assert ("--max_ranks" in result.stdout) == (words == ["scale"])
    assert ("--peer" in result.stdout) == (words == [])
    assert ("--fanouts" in result.stdout) == (words == ["sample"])


@pytest.mark.launcher
@pytest.mark.parametrize(
    ("ranks", "words", "message"),
    [
        (1, ["scale", "--bandwidth=0"], "--bandwidth must be positive"),
        (1, ["scale", "--model.layers=2"], "the cost model knows model.layers 1 only, got 2"),
        (1, ["scale", "--copy=1e9"], "--copy says nothing in the cost model of kind temporal"),
        (1, ["scale", "--speed=2"], "--speed says nothing in the cost model of kind temporal"),
        (1, ["scale", "--kind=static", "--flops=1e9"], "--flops says nothing in the cost model of kind static"),
        (1, ["scale", "--kind=static", "--nodes=100"], "--nodes and --edges are the sizes of a graph: give both"),
        (1, ["scale", "--kind=static", "--comm.sampler_ranks=1"], "leave comm.sampler_ranks 0"),
        (2, ["epoch", "--peer=pyg"], "on one rank, not on 2"),
        (1, ["epoch", "--peer=pyg", "--train.precision=float64"], "is timed in float32"),
        (1, ["--kind", "static"], "for graphs of --kind temporal, not static: run python -m hpcgnn.bench sage"),
        (
            1,
            ["snapshots", "--recipe=gcn"],
            "for graphs of --kind snapshots, not static: run python -m hpcgnn.bench sage",
        ),
        (2, ["sample", "--threads=0"], "--threads must be at least 1, got 0"),
        (1, ["sample", "--nodes=100"], "--batch_size not above --nodes"),
        (1, ["sample", "--fanouts", "5", "0"], "fanout must be in"),
        (2, ["scores", "--scores=1"], "--scores must be at least 2, got 1"),
    ],
)
def test_wrong_options(jobs, ranks, words, message):
    result = jobs(ranks, "bench", *words, check=False)
    assert result.returncode == 2
    assert message in result.stderr


def test_power_law_graph():
    indptr, src = neighbors.power_law_graph(1000, 50_000, 0.5, 3)
    assert (indptr[0], indptr[-1], len(indptr), len(src)) == (0, 50_000, 1001, 50_000)
    assert (src.min(), src.max()) == (0, 999)
    # By the Zipf law the k most popular of n nodes have about sqrt(k / n) of the edges, in any order of the nodes.
    degree = np.diff(indptr)
    assert np.sort(degree)[-100:].sum() == pytest.approx(50_000 * np.sqrt(0.1), rel=0.1)
    assert np.abs(np.corrcoef(np.arange(1000), degree)[0, 1]) < 0.1
    again = neighbors.power_law_graph(1000, 50_000, 0.5, 3)
    assert all(map(np.array_equal, again, (indptr, src)))


@pytest.mark.launcher
def test_sample_reports_rates(jobs, tmp_path):
    out = tmp_path / "sample.json"
    small = ["--nodes=2000", "--edges=20000", "--batch_size=50", "--batches=3", "--repeat=2", "--fanouts", "4", "-1"]
    result = jobs(1, "bench", "sample", *small, f"--out={out}", "--mode=replace", "--weighted", "--hashed")
    report = json.loads(out.read_text())
    assert report["options"]["fanouts"] == [4, -1]
    assert report["edges_per_batch"] > 50 * 4
    assert 50 < report["nodes_per_batch"] <= 2000
    assert all(0 < rate["median"] <= rate["best"] for rate in report["edges_per_second"].values())
    assert "batch by batch" in result.stdout


def test_exact_metrics_beside_those_of_scikit_learn(comm, tmp_path, capsys):
    """Shares of ranks are uneven."""
    out = tmp_path / "scores.json"
    assert scores.main(World(CommConfig(device="cpu"), comm), ["--scores=1001", "--peer=sklearn", f"--out={out}"]) == 0
    if comm.rank == 0:
        report, printed = json.loads(out.read_text()), capsys.readouterr().out
        assert [report[name] for name in ("ap", "auc")] == pytest.approx(
            [report["peer"][name] for name in ("ap", "auc")]
        )
        assert (report["ranks"], len(report["mib"])) == (comm.size, comm.size)
        assert f"1,001 scores on {comm.size} ranks" in printed
        assert "scikit-learn" in printed


@pytest.mark.launcher
def test_peer_takes_the_same_epoch(jobs, tmp_path):
    out = tmp_path / "bench.json"
    result = jobs(1, "bench", *SMALL, "--repeat=1", "--peer=pyg", f"--out={out}")
    assert json.loads(out.read_text())["pyg_epoch_seconds"] > 0
    assert "times as long" in result.stdout
