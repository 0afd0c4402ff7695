"""Runs from Python are the runs of the commands: the same metrics, answers and errors, on any number of ranks."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from static_runs import plain
from training_runs import homogeneous, on_rank_0

import hpcgnn
from data_tools.snapshots import command as snapshots
from hpcgnn import evaluate, predict, train
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.runs import words

SMALL = {
    "train": {"epochs": 2, "batch_size": 64, "precision": "float64"}, "model.hidden": 16, "model.layers": 2,
    "sampling.fanouts": [5, 5], "comm.device": "cpu",
}  # fmt: skip


def command(main, *argv: str) -> str:
    """Collective. What a command prints on rank 0."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(World(CommConfig(device="cpu"), compares=False), list(argv)) == 0
    return printed.getvalue()


@pytest.fixture
def graph(comm, mpi_tmp_path) -> Path:
    """A graph file of nodes with labels and words as ids."""
    path = mpi_tmp_path / "papers.h5"

    def make() -> None:
        plain(path)
        with h5py.File(path, "r+") as file:
            file["nodes/node/id"] = np.array([f"node {row}".encode() for row in range(150)])

    on_rank_0(comm, make)
    return path


def test_a_run_is_the_commands_run(comm, mpi_tmp_path, graph):
    run = hpcgnn.fit(graph, "sage", SMALL, folder=mpi_tmp_path / "run", quiet=True)
    parts = str(graph.with_name("papers-parts"))
    command(
        train.main, "--recipe", "sage", "--data.path", parts, "--output.dir", str(mpi_tmp_path / "other"), *words(SMALL)
    )
    metrics = run.metrics()
    lines = [json.loads(line) for line in (mpi_tmp_path / "other" / "metrics.jsonl").read_text().splitlines()]
    assert list(metrics["kind"]) == [line["kind"] for line in lines] == ["epoch", "epoch", "test"]
    for name in ("loss", "val_accuracy", "test_accuracy"):
        np.testing.assert_allclose(metrics[name].dropna(), [line[name] for line in lines if name in line], rtol=1e-9)
    assert run.config.model.hidden == 16
    assert repr(run) == f"Run('{mpi_tmp_path / 'run'}')"
    scores = run.evaluate()
    printed = command(evaluate.main, str(run.folder))
    assert comm.rank or scores == json.loads(printed)
    assert scores["test_accuracy"] == pytest.approx(metrics["test_accuracy"].iloc[-1], rel=1e-12)


def test_answers_are_the_commands_answers(comm, mpi_tmp_path, graph):
    """All nodes, and embeddings; on rank 0 alone."""
    run = hpcgnn.fit(graph, "sage", SMALL, folder=mpi_tmp_path / "run", quiet=True)
    out = mpi_tmp_path / "answers.csv"
    command(predict.main, str(run.folder), "--out", str(out), "--probabilities")
    answers = hpcgnn.load_run(run.folder).predict(probabilities=True)
    embedded = run.embeddings()
    if comm.rank:
        assert answers is embedded is None
    else:
        expected = pd.read_csv(out)
        pd.testing.assert_frame_equal(answers, expected, check_dtype=False, rtol=1e-12)
        assert answers.attrs["hpcgnn"] == json.loads((mpi_tmp_path / "answers.csv.json").read_text())
        assert embedded["embedding"].shape == (len(expected), 16)
        assert list(embedded["node"]) == list(expected["node"])
    assert not list(run.folder.glob(".answers-*"))


def test_answers_on_a_graph_file(comm, mpi_tmp_path, graph):
    """Another graph may be a graph file, which is partitioned once, or its partition set."""
    run = hpcgnn.fit(graph, "sage", SMALL, folder=mpi_tmp_path / "run", quiet=True)
    other = mpi_tmp_path / "other.h5"
    on_rank_0(comm, lambda: shutil.copy(graph, other) and None)
    answers, scores, rows = run.predict(data=other), run.evaluate(data=other), run.embeddings(data=other)
    again = run.predict(data=mpi_tmp_path / "other-parts")
    assert scores["test_accuracy"] == run.evaluate()["test_accuracy"]
    if comm.rank == 0:
        pd.testing.assert_frame_equal(answers, again)
        assert list(answers["node"]) == list(rows["node"])
    for ask in (run.predict, run.evaluate, run.embeddings):
        with pytest.raises(DistributedError, match=r"nothing.h5: no such file or folder; expected a graph file"):
            ask(data=mpi_tmp_path / "nothing.h5")


def test_questions_in_memory(comm, mpi_tmp_path):
    """A data frame and a dictionary are the file that they make."""
    config = {"train.epochs": 1, "train.precision": "float64", "memory.dim": 8, "model.hidden": 8, "comm.device": "cpu"}
    on_rank_0(comm, lambda: homogeneous(mpi_tmp_path / "events.h5"))
    run = hpcgnn.fit(mpi_tmp_path / "events.h5", "tgn", config, folder=mpi_tmp_path / "run", quiet=True)
    pairs = {"src": [1003, 1009, 1003], "dst": [1006, 1012, 1000]}
    file, out = mpi_tmp_path / "pairs.csv", mpi_tmp_path / "scores.csv"
    on_rank_0(comm, lambda: pd.DataFrame(pairs).to_csv(file, index=False))
    command(predict.main, str(run.folder), "--pairs", str(file), "--out", str(out))
    answers = [run.predict(pairs=table) for table in (pairs, pd.DataFrame(pairs), file)]
    best = run.predict(top_k=2, sources={"src": [1003]})
    every, some = run.embeddings(), run.embeddings({"node": [1009, 1003]})
    if comm.rank == 0:
        assert list(every["node"]) == [1000 + 3 * row for row in range(30)]
        np.testing.assert_allclose(some["embedding"], every["embedding"][[3, 1]], rtol=1e-9, atol=1e-12)
        expected = pd.read_csv(out)
        for answer in answers:
            pd.testing.assert_frame_equal(answer, expected, check_dtype=False, rtol=1e-12)
        assert list(best["src"]) == [1003, 1003]
        assert list(best["place"]) == [1, 2]


@pytest.mark.serial
def test_the_callers_settings_stay(mpi_tmp_path, graph):
    """Random numbers of a notebook are the same with and without calls in between, errors included."""
    torch.manual_seed(5)
    expected = [torch.rand(3) for _ in range(4)]
    torch.manual_seed(5)
    torch.set_num_threads(2)
    precision = torch.get_float32_matmul_precision()
    found = [torch.rand(3)]
    config = {**SMALL, "train": {"epochs": 1, "matmul": "float32"}, "comm.threads": 1}
    run = hpcgnn.fit(graph, "sage", config, folder=mpi_tmp_path / "run", quiet=True)
    found.append(torch.rand(3))
    run.evaluate()
    with pytest.raises(DistributedError, match="no option"):
        run.evaluate({"eval.none": 1})
    found.append(torch.rand(3))
    run.predict()
    found.append(torch.rand(3))
    assert all(map(torch.equal, found, expected))
    assert torch.get_num_threads() == 2
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize("zone", [None, "America/New_York"])
def test_times_of_questions_are_dates_as_in_the_graph(comm, mpi_tmp_path, zone):
    """Of pandas and Arrow, with a time zone or not, and as text; the same as the seconds that the graph has."""
    days = pd.date_range("2024-01-01", periods=200, freq="D", tz=zone)
    rng = np.random.default_rng(2)
    events = pd.DataFrame({"src": rng.integers(0, 9, 200), "dst": rng.integers(10, 19, 200), "when": days})
    on_rank_0(comm, lambda: hpcgnn.from_edges(events, mpi_tmp_path / "events.h5", time="when") and None)
    config = {"train.epochs": 1, "train.precision": "float64", "memory.dim": 8, "model.hidden": 8, "comm.device": "cpu"}
    run = hpcgnn.fit(mpi_tmp_path / "events.h5", "tgn", config, folder=mpi_tmp_path / "run", quiet=True)
    asked = events.iloc[[120, 190, 150]].rename(columns={"when": "time"})
    seconds = [int(day.timestamp()) for day in asked["time"]]
    text = mpi_tmp_path / "pairs.csv"
    on_rank_0(comm, lambda: asked.to_csv(text, index=False))
    arrow = pa.table({name: pa.array(asked[name]) for name in asked})
    answers = [run.predict(pairs=table) for table in (asked.assign(time=seconds), asked, arrow, text)]
    if comm.rank == 0:
        assert [day.timestamp() for day in answers[0]["time"]] == seconds
        assert str(answers[0]["time"].dt.tz) == (zone or "UTC")
        for answer in answers[1:]:
            pd.testing.assert_frame_equal(answer, answers[0], check_dtype=False, rtol=1e-12)


def test_a_baseline_takes_the_place_of_a_model_with_features(comm, mpi_tmp_path):
    """It reads no features of events: metrics are those of a run of the baseline."""
    on_rank_0(comm, lambda: homogeneous(mpi_tmp_path / "events.h5", edge_width=2))
    config = {"train.epochs": 1, "memory.dim": 8, "model.hidden": 8, "comm.device": "cpu"}
    run = hpcgnn.fit(mpi_tmp_path / "events.h5", "tgn", config, folder=mpi_tmp_path / "run", quiet=True)
    bank = hpcgnn.fit(mpi_tmp_path / "events.h5", "edgebank", folder=mpi_tmp_path / "bank", quiet=True)
    scores, metrics = run.evaluate({"baseline.kind": "unlimited"}), bank.metrics().iloc[-1]
    assert comm.rank or scores["baseline"] == "unlimited"
    assert comm.rank or scores["test_ap"] == pytest.approx(metrics["test_ap"], rel=1e-12)


def test_a_run_goes_on(comm, mpi_tmp_path, graph):
    run = hpcgnn.fit(graph, "sage", SMALL, folder=mpi_tmp_path / "run", quiet=True)
    whole = hpcgnn.fit(graph, "sage", {**SMALL, "train.epochs": 3}, folder=mpi_tmp_path / "whole", quiet=True)
    run.resume({"train.epochs": 3}, quiet=True)
    losses = [each.metrics()["loss"].dropna().to_numpy() for each in (run, whole)]
    np.testing.assert_allclose(*losses, rtol=1e-9)


def test_a_graph_file_is_partitioned_once(comm, mpi_tmp_path, graph):
    one_epoch = {**SMALL, "train": {"epochs": 1}}
    hpcgnn.fit(graph, "sage", one_epoch, folder=mpi_tmp_path / "one", quiet=True)
    book = graph.with_name("papers-parts") / "book.h5"
    before = book.stat().st_mtime_ns
    hpcgnn.fit(graph, config=one_epoch, folder=mpi_tmp_path / "two", quiet=True)  # the graph has the kind
    assert book.stat().st_mtime_ns == before

    def change() -> None:
        with h5py.File(graph, "r+") as file:
            file["nodes/node/feat"][0] = 9

    on_rank_0(comm, change)
    with pytest.raises(DistributedError, match=r"papers-parts has the partition set of another graph .* remove"):
        hpcgnn.fit(graph, "sage", one_epoch, folder=mpi_tmp_path / "three", quiet=True)


@pytest.mark.parametrize(("data", "config", "reason"), [
    ("nothing.h5", {}, r"nothing.h5: no such file or folder; expected a graph file, or the folder of a partition set"),
    (".", {}, r"book.h5: no such file, so no partition set is there; make one: hpcgnn partition GRAPH.h5"),
    ("", {"train.epoch": 1}, "no option --train.epoch; did you mean --train.epochs"),
    ("", {"each": "train.seed=0,1"}, "config: 'each' is no key of the configuration, such as 'train.epochs'"),
    ("", {"train.epochs": [object()]}, "train.epochs: .* is of type object; expected text, a number, a list or"),
])  # fmt: skip
def test_wrong_values_are_named(mpi_tmp_path, data, config, reason):
    with pytest.raises((DistributedError, ValueError), match=reason):
        hpcgnn.fit(mpi_tmp_path / data if data else "", "sage", config, folder=mpi_tmp_path / "run", quiet=True)


@pytest.mark.serial
def test_values_become_a_command_line():
    values = {
        "train": {"lr": 0.1, "resume": False}, "sampling.fanouts": [10, -1], "data.path": Path("parts"),
        "sampling": {"relation_fanouts": {"a.b.c": [1]}}, "model.class_path": pd.DataFrame, "train.seed": np.int64(3),
    }  # fmt: skip
    assert words(values) == [
        "--train.lr=0.1", "--train.resume=false", "--sampling.fanouts=[10, -1]", "--data.path=parts",
        '--sampling.relation_fanouts={"a.b.c": [1]}', "--model.class_path=pandas.DataFrame", "--train.seed=3",
    ]  # fmt: skip
    nested = {"train.metrics": [words], "sampling.fanouts": np.array([3, 4]), "sampling": {"a": [np.int64(5)]}}
    assert words(nested) == [
        '--train.metrics=["hpcgnn.runs.words"]', "--sampling.fanouts=[3, 4]", "--sampling.a=[5]",
    ]  # fmt: skip


def test_data_path_of_config_is_data(mpi_tmp_path, graph):
    """The graph has the kind, and a graph file is partitioned."""
    config = {**SMALL, "train": {"epochs": 1}}
    run = hpcgnn.fit(config={**config, "data": {"path": graph}}, folder=mpi_tmp_path / "run", quiet=True)
    assert run.config.KIND == "static"
    assert run.config.data.path == str(graph.with_name("papers-parts"))
    with pytest.raises(ValueError, match="recipe 'tgn' is for temporal graphs"):
        hpcgnn.fit(recipe="tgn", config={"data.path": graph})
    with pytest.raises(ValueError, match="leave out one of them"):
        hpcgnn.fit(graph, config={"data.path": graph})
    with pytest.raises(DistributedError, match=r"^nodes: row 2: node 'x' is no node of this graph"):
        run.predict(nodes={"node": ["node 1", "x"]})


def test_a_kind_that_the_data_has_not_is_refused(mpi_tmp_path, graph):
    for given, reason in (
        ({"recipe": "tgn"}, "recipe 'tgn' is for temporal graphs"),
        ({"kind": "snapshots"}, "kind 'sn"),
        ({"config": {"kind": "snapshots"}}, "kind 'sn"),
        ({"kind": "static", "config": {"kind": "snapshots"}}, "kind is static, and kind of config snapshots: leave"),
    ):
        with pytest.raises(ValueError, match=reason):
            hpcgnn.fit(graph, **given)


def test_a_run_file_is_a_configuration(mpi_tmp_path):
    """With its kind, which chooses the built-in graph."""
    config = {"kind": "static", **SMALL, "train": {"epochs": 1}, "data": {"synthetic_nodes": 100}}
    assert hpcgnn.fit(config=config, folder=mpi_tmp_path / "run", quiet=True).config.KIND == "static"


@pytest.mark.serial
def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config.yaml: no such file; is .* a run folder"):
        hpcgnn.load_run(tmp_path)


def test_questions_that_are_no_tables_are_refused_on_all_ranks(mpi_tmp_path):
    with pytest.raises(ValueError, match="nodes: expected a file, a data frame, or arrays by name"):
        hpcgnn.Run(mpi_tmp_path).predict(nodes=5)


WORDS = np.array(["low", "high"])[np.arange(60) % 2]
LEARNED = {
    "nodes": (False, {"kind": "static", "task.kind": "regression"}, "label of node"),
    "edges": (False, {"kind": "static", "task.kind": "edge_regression"}, "label of node.to.node"),
    "events": (True, {"task.kind": "edge_regression"}, "label of node.to.node"),
    "edges of snapshots": (
        True,
        {"kind": "snapshots", "task.kind": "edge_regression", "task.target": "label"},
        "label",
    ),
}


@pytest.mark.parametrize("case", LEARNED)
def test_words_are_no_numbers_to_predict(comm, mpi_tmp_path, case):
    """Numbers that stand for them would be learned, and tell nothing."""
    has_times, config, name = LEARNED[case]
    path = mpi_tmp_path / "graph.h5"

    def make() -> None:
        ends = {"src": np.arange(60) % 20, "dst": np.arange(60) * 7 % 20}
        edges = ends | {"label": WORDS} | ({"time": np.arange(60)} if has_times else {"split": np.arange(60) % 3})
        nodes = {"label": WORDS[:20], "split": np.arange(20) % 3, "feat": np.ones(20)}
        hpcgnn.from_edges(edges, path, None if has_times else nodes)
        if "snapshots" in case:
            events = shutil.move(path, mpi_tmp_path / "events.h5")
            assert snapshots.main(["windows", str(events), str(path), "--length=10", "--keep"]) == 0

    on_rank_0(comm, make)
    with pytest.raises(DistributedError, match=rf"{name} was made of words, such as '(low|high)', which are classes"):
        hpcgnn.fit(path, config={"comm.device": "cpu", **config}, folder=mpi_tmp_path / "run", quiet=True)
