"""A finished run evaluated by another protocol has the metrics of a run that had this protocol from the start."""

from __future__ import annotations

import json

import numpy as np
import pytest
from link_graphs import facts
from random_graphs import write_graph
from run_commands import run_caught
from snapshot_runs import random_graph, write_parts
from static_runs import make_static_parts

SMALL = ["--train.epochs=1", "--train.precision=float64", "--comm.threads=1", "--train.log_every=0"]
STATIC = [*SMALL, "--kind=static", "--model.layers=1", "--sampling.fanouts=[3]", "--model.hidden=4"]
LINKS = [*STATIC, "--task.kind=link", "--task.decoder=distmult"]
SNAPSHOTS = [*SMALL, "--kind=snapshots", "--task.kind=link", "--model.hidden=4", "--inputs.degrees=log",
             "--data.val_snapshots=2", "--data.test_snapshots=2"]  # fmt: skip
CASES = {
    "exact links": ("facts", LINKS, ["--eval.exact=true"], "exact"),
    "sampled links of an exact run": ("facts", [*LINKS, "--eval.exact=true"], ["--eval.exact=false"], "exact"),
    "ranks": ("facts", LINKS, ["--eval.ranking=filtered"], "ranking"),
    "more negatives": ("facts", LINKS, ["--eval.negatives=7", "--eval.batch_size=9"], "negatives"),
    "negatives of a run with ranks": ("facts", [*LINKS, "--eval.ranking=filtered"],
                                      ["--eval.ranking=drawn", "--eval.negatives=3"], "ranking"),
    "exact labels": ("labels", STATIC, ["--eval.exact=true"], "exact"),
    "other fanouts": ("labels", STATIC, ["--sampling.eval_fanouts=[1]"], "eval_fanouts"),
    "fanouts of an exact run": ("labels", [*STATIC, "--eval.exact=true"],
                                ["--eval.exact=false", "--sampling.eval_fanouts=[1]"], "eval_fanouts"),
    "all neighbors, sampled": ("facts", LINKS, ["--sampling.eval_fanouts=[-1]"], "eval_fanouts"),
    "negatives on snapshots": ("snapshots", SNAPSHOTS, ["--eval.negatives=5"], "negatives"),
    "ranks on snapshots": ("snapshots", SNAPSHOTS, ["--eval.ranking=filtered"], "ranking"),
}  # fmt: skip
REFUSED = {
    "no such key": ("snapshots", SNAPSHOTS, ["--eval.exact=true"],
                    "--eval.exact is not for runs on snapshots graphs, which have --eval.negatives, --eval.ranking"),
    "no negatives": ("labels", STATIC, ["--eval.negatives=5"], "--eval.negatives is for task.kind link, this run has"),
    "negatives of ranks": ("facts", [*LINKS, "--eval.ranking=filtered"], ["--eval.negatives=5"],
                           "eval.ranking filtered ranks among all nodes: leave it out, or add --eval.ranking drawn"),
    "fanouts of an exact run": ("labels", [*STATIC, "--eval.exact=true"], ["--sampling.eval_fanouts=[2]"],
                                "eval_fanouts: eval.exact scores with all neighbors: leave it out, or add --eval.exact "
                                "false"),
    "fanouts of a whole graph": ("labels", [*STATIC, "--train.full_graph=true"], ["--sampling.eval_fanouts=[2]"],
                                 "--sampling.eval_fanouts: train.full_graph scores with all neighbors: leave it out"),
    "fanouts of other layers": ("labels", STATIC, ["--sampling.eval_fanouts=[2, 2]"],
                                "sampling.eval_fanouts needs 1 numbers, one a layer, got [2, 2]"),
    "fanouts of snapshots": ("snapshots", SNAPSHOTS, ["--sampling.eval_fanouts=[2]"],
                             "--sampling.eval_fanouts is not for runs on snapshots graphs: leave it out"),
    "sampled ranks": ("facts", LINKS, ["--eval.ranking=filtered", "--eval.exact=false"],
                      "--eval.exact false: eval.ranking filtered always scores with all neighbors"),
}  # fmt: skip


def labels(path):
    rng = np.random.default_rng(1)
    columns = {"feat": rng.standard_normal((60, 3)).astype(np.float32), "label": rng.integers(0, 3, 60),
               "split": rng.integers(0, 3, 60).astype(np.int8)}  # fmt: skip
    ends = {"src": rng.integers(0, 60, 300), "dst": rng.integers(0, 60, 300)}
    return write_graph(path, {"node": columns}, {("node", "to", "node"): ends}, "static")


def parts_of(comm, name: str, folder):
    if name == "snapshots":
        return write_parts(comm, folder, random_graph(5, 18, 9, 30), 4)
    return make_static_parts(comm, {"facts": facts, "labels": labels}[name], folder)


def succeed(*command: str) -> str:
    """Collective. What a command prints, on rank 0."""
    ended = run_caught(*command)
    assert ended is None or ended.returncode == 0, ended.stderr
    return "" if ended is None else ended.stdout.splitlines()[-1]


@pytest.mark.parametrize("case", CASES)
def test_metrics_are_those_of_a_run_with_the_protocol(comm, mpi_tmp_path, case):
    graph, options, protocol, shown = CASES[case]
    parts, first, second = parts_of(comm, graph, mpi_tmp_path), mpi_tmp_path / "one", mpi_tmp_path / "other"
    there = [f"--data.path={parts}"]
    succeed("train", *options, *there, f"--output.dir={first}")
    written = ["--eval.ranking=" if word == "--eval.ranking=drawn" else word for word in protocol]
    succeed("train", *options, *written, *there, f"--output.dir={second}")
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    plain, asked = succeed("evaluate", str(first)), succeed("evaluate", str(first), *protocol)
    expected = succeed("evaluate", str(second))
    if comm.rank:
        return
    plain, asked, expected = map(json.loads, (plain, asked, expected))
    metrics = {name for name in expected if name.startswith("test_")}
    assert len(metrics) > 0
    assert {name: asked[name] for name in metrics} == pytest.approx(
        {name: expected[name] for name in metrics}, rel=1e-9
    )
    assert any(plain.get(name) != asked[name] for name in metrics)
    assert shown in asked
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("case", REFUSED)
def test_protocols_that_change_nothing_are_refused(comm, mpi_tmp_path, case):
    graph, options, protocol, message = REFUSED[case]
    parts = parts_of(comm, graph, mpi_tmp_path)
    succeed("train", *options, f"--data.path={parts}", f"--output.dir={mpi_tmp_path / 'run'}")
    ended = run_caught("evaluate", str(mpi_tmp_path / "run"), *protocol)
    if ended is not None:
        assert ended.returncode == 2
        assert message in ended.stderr
