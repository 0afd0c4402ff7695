"""Commands of the benchmarks: predictions of the cost model, reports, options, peers."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from mpi4py import MPI
from training_runs import bipartite, make_config, make_parts, on_rank_0, open_session

from hpcgnn.bench import epoch, neighbors, scores
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.trainer import Trainer

SMALL = ("--data.synthetic_events=3000", "--train.batch_size=100", "--memory.dim=8", "--model.time_dim=8",
         "--model.hidden=8", "--comm.threads=1")  # fmt: skip


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [1, 2])
def test_scale_writes_report_and_picture(jobs, tmp_path, ranks):
    out, picture = tmp_path / "scale.json", tmp_path / "scale.html"
    bipartite(tmp_path / "graph.h5")
    parts = make_parts(MPI.COMM_SELF, tmp_path / "graph.h5", tmp_path / "parts", parts=8)
    given = [f"--data.path={parts}", "--train.batch_size=40", "--copy=1e10", "--max_ranks=40", "--steps=2"]
    result = jobs(ranks, "bench", "scale", *SMALL, *given, f"--out={out}", f"--plot={picture}")
    report = json.loads(out.read_text())
    points = report["points"]
    assert [p["ranks"] for p in points] == [1, 2, 4, 8, 16, 32, 40]
    assert [p["counted"] for p in points] == [True] * 4 + [False] * 3
    assert report["steps_counted"] == 2
    assert report["assumptions"]
    sources = {name: parameter["source"] for name, parameter in report["machine"].items()}
    network = "measured" if ranks > 1 else "assumed"
    assert sources == {"latency": network, "bandwidth": network, "copy": "given", "speed": "measured"}
    for point in points:
        assert point["step_seconds"] > 0
        assert point["epoch_seconds"] == pytest.approx(13 * point["step_seconds"])
        assert point["bytes_per_rank"] == pytest.approx(sum(point["bytes"].values()))
    for point in points[1:]:
        assert {"exchange", "write-back", "plan"} <= point["bytes"].keys()
        parts = ("exchange", "write-back", "gradient sum")
        assert point["seconds"].keys() >= {"compute", *(f"{part} messages" for part in parts)}
    assert result.stdout.count("extrapolated") == 3
    page = picture.read_text()
    assert page.count("<svg") == page.count('class="card"') == 3
    assert page.count("<circle") == 7 * 5  # five curves of seven points


@pytest.mark.launcher
def test_sampling_is_timed(jobs):
    shown = jobs(1, "bench", "sample", "--num_nodes=2000", "--num_edges=10000", "--batch_size=100").stdout
    assert "2,000 nodes, 10,000 edges, largest in-degree" in shown
    assert len(re.findall(r"^.{20} +[\d.]+ +[\d.]+$", shown, re.MULTILINE)) >= 2


@pytest.mark.launcher
@pytest.mark.parametrize("kind", ["static", "snapshots"])
def test_scale_simulates_steps_of_other_kinds(jobs, tmp_path, kind):
    out, picture = tmp_path / "scale.json", tmp_path / "scale.html"
    job = [f"--kind={kind}", "--comm.threads=1", "--steps=2"]
    jobs(1, "bench", "scale", *job, "--max_ranks=4", f"--out={out}", f"--plot={picture}")
    points = json.loads(out.read_text())["points"]
    assert [(p["ranks"], p["counted"]) for p in points] == [(1, True), (2, True), (4, True)]
    assert points[0]["bytes_per_rank"] == 0 < points[1]["bytes_per_rank"] <= points[1]["bytes_busiest"]
    for point in points:
        assert point["seconds"]["compute"] > 0
        front, behind = sum(point["seconds"].values()), sum(point["plan_seconds"].values())
        assert point["step_seconds"] == pytest.approx(max(front, behind))


@pytest.mark.launcher
@pytest.mark.parametrize(("kind", "edges"), [("static", "edges"), ("temporal", "events")])
def test_scale_simulates_one_rank_of_a_graph_that_is_made_up(jobs, tmp_path, kind, edges):
    out = tmp_path / "scale.json"
    graph = [f"--kind={kind}", "--num_nodes=20000", "--num_edges=200000", "--width=8"]
    job = ["--train.batch_size=20", "--per_rank=true", "--max_ranks=8", "--steps=2", "--comm.threads=1"]
    result = jobs(1, "bench", "scale", *graph, *job, f"--out={out}")
    points = json.loads(out.read_text())["points"]
    assert [(p["ranks"], p["batch_size"]) for p in points] == [(2, 40), (4, 80), (8, 160)]
    assert points[0]["bytes_per_rank"] < points[2]["bytes_per_rank"]
    assert f"20,000 nodes and 200,000 {edges}, made up, batch 20, 2 steps counted" in result.stdout
    assert "over 2 ranks" in result.stdout


def test_epochs_are_cut_into_batches_as_in_training(comm, mpi_tmp_path):
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph, num_events=300) and None)
    parts, config = make_parts(comm, graph, mpi_tmp_path / "parts"), make_config(sampling__random_chunks=10)
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
@pytest.mark.parametrize("words", [["epoch"], ["scale"], ["sample"]])
def test_help_of_every_word(jobs, words):
    result = jobs(1, "bench", *words, "--help")
    assert ("--max_ranks" in result.stdout) == (words == ["scale"])
    assert ("--peer" in result.stdout) == (words == ["epoch"])
    assert ("--fanouts" in result.stdout) == (words == ["sample"])


@pytest.mark.launcher
@pytest.mark.parametrize(
    ("ranks", "words", "message"),
    [
        (1, ["scale", "--bandwidth=0"], "--bandwidth must be positive"),
        (1, ["scale", "--steps=0"], "--max_ranks and --steps must be at least 1"),
        (1, ["scale", "--train.parallel_epochs=2"], "leave comm.sampling_servers 0, comm.time_groups and"),
        (
            1,
            ["scale", "--kind=static", "--num_nodes=100"],
            "--num_nodes and --num_edges are the sizes of a graph: give both",
        ),
        (1, ["scale", "--kind=static", "--comm.sampling_servers=1"], "leave comm.sampling_servers 0"),
        (2, ["epoch", "--peer=pyg"], "on one rank, not on 2"),
        (1, ["epoch", "--peer=pyg", "--train.precision=float64"], "is timed in float32"),
        (1, ["--kind", "static"], "for graphs of --kind temporal, not static: run hpcgnn bench sage"),
        (
            1,
            ["snapshots", "--recipe=gcn"],
            "for graphs of --kind snapshots, not static: run hpcgnn bench sage",
        ),
        (2, ["sample", "--threads=0"], "--threads must be at least 1, got 0"),
        (1, ["sample", "--num_nodes=100"], "--batch_size not above --num_nodes"),
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
    small = [
        "--num_nodes=2000",
        "--num_edges=20000",
        "--batch_size=50",
        "--batches=3",
        "--repeat=2",
        "--fanouts",
        "4",
        "-1",
    ]
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
