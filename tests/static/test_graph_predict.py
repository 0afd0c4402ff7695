"""Predictions and evaluation of runs on static graphs: the same on any number of ranks, by original ids, in order."""

from __future__ import annotations

import csv
import json
import tracemalloc
from dataclasses import replace

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from mpi4py import MPI
from pyarrow import parquet
from run_commands import asked, run
from static_runs import make_static_parts, open_graph_session, plain, static_config, typed
from training_runs import on_rank_0

from hpcgnn import config as configuration
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.graph.book import Book
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.kinds import KINDS
from hpcgnn.loop import answer_file
from hpcgnn.loop.answer_file import AnswerColumns, TextColumn, best_classes, class_columns, write_answers
from hpcgnn.native import Relabel
from hpcgnn.static.inference import full_block, infer, last_rows
from hpcgnn.static.model.blocks import rows_of
from hpcgnn.static.predict import predict_nodes
from hpcgnn.static.sampling.edges import EdgeColumns

OPTIONS = ["--kind=static", "--train.epochs=2", "--train.precision=float64", "--sampling.fanouts=[3,2]",
           "--model.layers=2", "--model.hidden=8", "--train.batch_size=32", "--eval.exact=true",
           "--comm.threads=1"]  # fmt: skip


def with_ids(path):
    """The typed graph, its papers named by text in another order than their rows'."""
    typed(path)
    with h5py.File(path, "r+") as file:
        count = file["nodes/paper"].attrs["num_nodes"]
        file["nodes/paper/id"] = np.array([f"P{(7 * row) % count}ä".encode() for row in range(count)])


def read_csv(path) -> tuple[list[str], list[str], np.ndarray]:
    """Heading, ids, and the numbers beside them."""
    with open(path, newline="") as file:
        heading, *rows = csv.reader(file)
    return heading, [row[0] for row in rows], np.array([row[1:] for row in rows], float)


def read_parquet(path) -> tuple[list[str], list[str], np.ndarray]:
    """The same of a parquet file, one row group a slab."""
    file = parquet.ParquetFile(path)
    assert file.num_row_groups == 3
    heading, (nodes, *columns) = file.schema.names, file.read().to_pydict().values()
    return heading, nodes, np.array(columns, float).T


@pytest.mark.serial
def test_a_chunk_costs_what_it_holds():
    """Not what the rank holds, whatever the number of chunks."""
    num_nodes = 1 << 20
    book = Book(np.array([[0, 5], [5, num_nodes]]), 1, ("few", "many"))
    partition = GraphPartition(
        book, "", 0, (), np.arange(num_nodes), np.array([0, 5, num_nodes]), ({}, {}), (None, None), (), ()
    )
    relabel = [Relabel(5), Relabel(num_nodes - 5)]
    tracemalloc.start()
    try:
        block, ids = full_block(partition, 3, 9, relabel, [], EdgeColumns(partition, [], torch.float32))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert block.num_dst == (2, 4)
    assert np.concatenate(ids).tolist() == [3, 4, 5, 6, 7, 8]
    assert peak < num_nodes


@pytest.mark.parametrize("embeddings", [False, True])
@pytest.mark.parametrize("name", ["nodes.csv", "nodes.npz", "nodes.parquet"])
def test_a_file_is_the_same_on_any_number_of_ranks(comm, mpi_tmp_path, tmp_path, monkeypatch, name, embeddings):
    """In slabs of a few nodes, and what is in it is what inference says."""
    monkeypatch.setattr(answer_file, "SLAB", 50)
    parts = make_static_parts(comm, with_ids, mpi_tmp_path)
    config = static_config(model__residual=True, model__hidden=4)

    def write(communicator, path):
        session = open_graph_session(communicator, parts, config)
        write_answers(str(path), predict_nodes(session, embeddings), session.world)
        return session

    write(comm, mpi_tmp_path / name)
    alone = write(MPI.COMM_SELF, tmp_path / name)
    if comm.rank:
        return
    outputs, rows, order = infer(alone), last_rows(alone, hops=2), np.argsort(alone.partition.flat_row[:120])
    values = (rows if embeddings else outputs)[:120][torch.from_numpy(order)].numpy()
    classes = outputs[:120].argmax(dim=1).numpy()[order]
    ids, column = [f"P{(7 * row) % 120}ä" for row in range(120)], "embedding" if embeddings else "output"
    for path in (mpi_tmp_path / name, tmp_path / name):
        if name.endswith(".npz"):
            found = np.load(path)
            assert list(found) == ["node", "class", column]
            assert found["node"].tolist() == ids
            found = np.column_stack([found["class"], found[column]])
        else:
            heading, nodes, found = read_parquet(path) if name.endswith(".parquet") else read_csv(path)
            assert heading == ["node", "class", *(f"{column}_{place}" for place in range(values.shape[1]))]
            assert nodes == ids
        assert np.array_equal(found[:, 0], classes)
        np.testing.assert_allclose(found[:, 1:], values, rtol=1e-9, atol=1e-12)


HIDDEN = {
    "sage": (plain, {}),
    "gcn, whole": (plain, {"model__kind": "gcn", "train__full_graph": True}),
    "gat": (plain, {"model__kind": "gat"}),
    "rgcn": (typed, {"model__kind": "rgcn", "model__norm": "layer"}),
    "rgat, three layers": (typed, {"model__kind": "rgat", "model__layers": 3, "sampling__fanouts": [2, 2, 2]}),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_embeddings_are_what_the_output_layer_takes(comm, mpi_tmp_path, case):
    """The last layer makes of them the outputs."""
    make, changes = HIDDEN[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(**{"model__dropout": 0.0} | changes))
    found, taken = predict_nodes(session, True), []
    layer = session.model.layers[-1]
    layer.register_forward_pre_hook(lambda _, inputs: taken.append((inputs[0], rows_of(inputs[1]))))
    infer(session)
    assert found.columns["embedding"].shape[1] == 8
    own = [block.own(rows)[:, :8].numpy() for block, rows in taken]
    if session.partition.book.size == 1:
        expected = np.concatenate(own)[session.partition.of_type(session.goal.node_type)]
        order = np.argsort(session.partition.flat_row[session.partition.of_type(session.goal.node_type)])
        if "whole" not in case:
            np.testing.assert_allclose(found.columns["embedding"], expected[order], rtol=1e-9, atol=1e-12)
    alone = predict_nodes(open_graph_session(MPI.COMM_SELF, parts, session.config), True)
    rows = alone.columns["embedding"][np.searchsorted(alone.row, found.row)]
    np.testing.assert_allclose(found.columns["embedding"], rows, rtol=1e-9, atol=1e-12)


LINEAR = {
    "output layer": (typed, {"model__kind": "rgat", "model__output_layer": "linear"}),
    "whole, activated": (plain, {"model__output_layer": "activated", "train__full_graph": True}),
    "residual": (plain, {"model__residual": True, "model__norm": "layer"}),
    "gcn2": (plain, {"model__kind": "gcn2"}),
    "han": (typed, {"model__kind": "han", "train__full_graph": True}),
}


@pytest.mark.parametrize("case", LINEAR)
def test_a_linear_output_takes_the_embeddings(comm, mpi_tmp_path, case):
    make, changes = LINEAR[case]
    config = static_config(**{"model__dropout": 0.0} | changes)
    session = open_graph_session(comm, make_static_parts(comm, make, mpi_tmp_path), config)
    embeddings, outputs = (predict_nodes(session, is_hidden).columns for is_hidden in (True, False))
    output = session.model.output
    logits = embeddings["embedding"] @ output.weight.detach().numpy().T + output.bias.detach().numpy()
    np.testing.assert_allclose(logits, outputs["output"], rtol=1e-9, atol=1e-12)
    assert embeddings["embedding"].shape[1] == 8


@pytest.mark.parametrize("embeddings", [False, True])
def test_nodes_of_a_file(comm, mpi_tmp_path, embeddings):
    """The rows of all nodes' answers that the file names, in its order, repeated where it repeats them."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config())
    everyone, rows = predict_nodes(session, embeddings), [7, 3, 149, 3, 20]
    answers = asked(lambda path: predict_nodes(session, embeddings, path=path), node=rows)
    for name in everyone.columns:
        whole, some = (table.slab(name, 0, session.world) for table in (everyone, answers))
        if comm.rank == 0:
            np.testing.assert_array_equal(some, whole[rows])
    with pytest.raises(DistributedError, match=r"questions.csv: row 2: node '150' is no node of this graph"):
        asked(lambda path: predict_nodes(session, path=path), node=[1, 150])


def test_classes_that_were_words_are_words(comm, mpi_tmp_path):
    def make(path):
        plain(path)
        with h5py.File(path, "r+") as file:
            file["nodes/node/label"].attrs["names"] = json.dumps(["cat", "dog", "é", "owl"])

    session = open_graph_session(comm, make_static_parts(comm, make, mpi_tmp_path), static_config())
    columns = predict_nodes(session).columns
    assert list(columns) == ["node", "class", "class_id", "output"]
    assert np.array_equal(columns["class_id"], columns["output"].argmax(axis=1))
    assert columns["class"].tolist() == [["cat", "dog", "é", "owl"][number] for number in columns["class_id"]]


def test_models_without_embeddings_are_refused(comm, mpi_tmp_path):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(model__layers=1, sampling__fanouts=[3]))
    with pytest.raises(DistributedError, match=r"model\.kind sage of one layer has no rows between"):
        predict_nodes(session, True)
    bare = static_config(model__kind="lightgcn", model__dropout=0.0, node_embedding__types=["node"])
    with pytest.raises(DistributedError, match=r"model\.kind lightgcn has no output layer, so no rows before it"):
        predict_nodes(open_graph_session(comm, parts, bare), True)
    session.config.model = replace(session.config.model, class_path="own.Model")
    del session.model.embedding_hops
    with pytest.raises(DistributedError, match=r"class_path own\.Model does not say by embedding_hops after how"):
        predict_nodes(session, True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a graph, its parts, and a run on them in this process."""
    folder = tmp_path_factory.mktemp("static")
    parts = make_static_parts(MPI.COMM_SELF, with_ids, folder)
    assert run([["train", *OPTIONS, f"--data.path={parts}", f"--output.dir={folder / 'run'}"]]) == 0
    return folder


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [1, 3])
def test_commands_agree_with_the_run_and_with_each_other(jobs, finished, tmp_path, capsys, ranks):
    folder, out = str(finished / "run"), tmp_path / "deep" / "nodes.npz"
    commands = [["evaluate", folder], ["predict", folder, f"--out={out}"]]
    if ranks == 1:
        assert run(commands) == 0
        printed = capsys.readouterr().out
    else:
        printed = "".join(jobs(ranks, *command).stdout for command in commands)
    (found,) = (json.loads(line) for line in printed.splitlines() if line.startswith("{"))
    lines = [json.loads(line) for line in (finished / "run" / "metrics.jsonl").read_text().splitlines()]
    (own,) = (line for line in lines if line["kind"] == "test")
    scores = {name: value for name, value in own.items() if name.startswith(("val_", "test_"))}
    assert {name: found[name] for name in scores} == pytest.approx(scores, rel=1e-9)
    with h5py.File(finished / "graph.h5") as file:
        label, split = (file["nodes/paper"][name][()] for name in ("label", "split"))
    right = np.load(out)["class"] == label
    assert found["test_accuracy"] == pytest.approx(right[split == 2].mean(), rel=1e-12)
    assert found["val_accuracy"] == pytest.approx(right[split == 1].mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("static", ["--pairs=pairs.csv"], "--pairs is for runs that learned edges; this one predicts labels of all"),
        ("static", ["--snapshots=2"], "--snapshots is for runs on snapshots: leave it out"),
        ("temporal", ["--snapshots=2"], "--snapshots is for runs on snapshots: leave it out"),
        (
            "snapshots",
            ["--pairs=pairs.csv"],
            "--pairs is for runs on links or edges",
        ),
        ("snapshots", ["--top_k=3"], "--top_k is for runs on links, and for classes, which this command does not"),
        ("temporal", ["--embeddings", "--top_k=3"], "--top_k is for runs on links, and for classes, which this"),
        ("temporal", ["--embeddings", "--probabilities"], "--probabilities is for classes"),
        ("static", ["--embeddings", "--top_k=3"], "--top_k is for runs on links, and for classes, which this"),
        ("static", ["--top_k=3", "--new_only"], "are for --top_k of runs on links: here it chooses classes"),
        ("snapshots", ["--probabilities"], "--probabilities is for classes"),
        ("temporal", ["--nodes=nodes.csv", "--probabilities"], "--probabilities is for classes"),
        ("temporal", ["--top_k=-2"], "give one of --pairs, --nodes and --top_k"),
        ("temporal", ["--top_k=2", "--sources=a.csv", "--destinations=b.csv"], "give --sources, for their best"),
        ("temporal", ["--pairs=pairs.csv", "--new_only"], "are for --top_k: leave them out"),
        ("temporal", ["--embeddings", "--pairs=pairs.csv"], "--embeddings are of nodes: give --nodes, not --pairs"),
        ("temporal", [], "give one of --pairs, --nodes and --top_k"),
    ],
)
def test_options_of_the_other_kind_are_refused(comm, mpi_tmp_path, capsys, kind, options, message):
    on_rank_0(comm, lambda: configuration.save(KINDS[kind].config(), {}, mpi_tmp_path / "config.yaml"))
    assert run([["predict", str(mpi_tmp_path), *options, f"--out={mpi_tmp_path / 'out.csv'}"]]) == 2
    assert comm.rank or message in capsys.readouterr().err
    assert not (mpi_tmp_path / "out.csv").exists()


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("name", ["out", "out.txt", "out.csv.gz"])
def test_formats_that_are_none_are_refused_before_any_work(comm, mpi_tmp_path, capsys, kind, name):
    on_rank_0(comm, lambda: configuration.save(KINDS[kind].config(), {}, mpi_tmp_path / "config.yaml"))
    assert run([["predict", str(mpi_tmp_path), "--nodes=nodes.csv", f"--out={mpi_tmp_path / name}"]]) == 2
    expected = f"{name}: the suffix sets the format, and must be one of .csv, .npz, .parquet"
    assert comm.rank or expected in capsys.readouterr().err
    assert not (mpi_tmp_path / name).exists()


@pytest.mark.serial
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_probabilities_are_named_by_their_classes(tmp_path, suffix):
    """Also by text with commas, quotes and spaces; classes without a name by their number."""
    classes, probability = ['red, "dark"', "blå"], np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]])
    columns = {"node": np.arange(2), "probability": probability, "output": probability}
    path = tmp_path / f"answers.{suffix}"
    write_answers(str(path), AnswerColumns(np.arange(2), 2, columns, classes), World.alone())
    frame = pd.read_csv(path) if suffix == "csv" else pd.read_parquet(path)
    names = ["probability_" + name for name in (*classes, "2")]
    assert list(frame) == ["node", *names, "output_0", "output_1", "output_2"]
    assert np.array_equal(frame[names], probability)


@pytest.mark.serial
def test_columns_of_classes():
    output = np.array([[0.0, 2.0, 1.0], [3.0, -1.0, 0.0]])
    named = class_columns(output, ["cat", "dog"], probabilities=True)
    assert named["class"].tolist() == ["dog", "cat"]
    assert named["class_id"].tolist() == [1, 0]
    expected = torch.from_numpy(output).softmax(1).numpy()
    np.testing.assert_allclose(named["probability"], expected, rtol=1e-12)
    several = class_columns(output, [], probabilities=True, several=True)
    np.testing.assert_allclose(several["probability"], torch.from_numpy(output).sigmoid().numpy(), rtol=1e-12)
    assert list(several) == ["probability"]
    assert class_columns(output, [])["output"] is output


@pytest.mark.serial
def test_the_most_probable_classes_are_rows():
    """Of equal ones the lower number first; no more than there are; of several snapshots, each in its columns."""
    names = TextColumn(pa.chunked_array([["ann", "bob"]]), 3)
    shares = np.array([[0.25, 0.25, 0.5], [0.125, 0.75, 0.125]])
    columns = {"node": names, "class_4": np.array(["b", "b"]), "class_id_4": np.zeros(2), "probability_4": shares}
    answers = AnswerColumns(np.array([3, 8]), 9, columns | {"probability_5": shares[::-1]})
    found = best_classes(answers, ["a", "b"], 2)
    assert (found.row.tolist(), found.total) == ([6, 7, 16, 17], 18)
    table = {name: list(column[:] if name == "node" else column) for name, column in found.columns.items()}
    assert table == {
        "node": ["ann", "ann", "bob", "bob"], "place": [1, 2, 1, 2],
        "class_4": ["2", "a", "b", "a"], "class_id_4": [2, 0, 1, 0], "probability_4": [0.5, 0.25, 0.75, 0.125],
        "class_5": ["b", "a", "2", "a"], "class_id_5": [1, 0, 2, 0], "probability_5": [0.75, 0.125, 0.5, 0.25],
    }  # fmt: skip
    assert best_classes(answers, [], 7).total == 27


@pytest.mark.serial
@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_the_most_probable_classes_have_dates_in_their_zone(tmp_path, suffix):
    time, shares = np.array([1_720_000_000], "M8[s]"), np.array([[0.25, 0.75]])
    answers = AnswerColumns(np.array([0]), 1, {"time": time, "probability": shares}, zone="Europe/Berlin")
    out = tmp_path / f"best.{suffix}"
    write_answers(str(out), best_classes(answers, [], 2), World.alone())
    if suffix == "csv":
        assert out.read_text().splitlines()[1] == "2024-07-03T11:46:40+02:00,1,1,0.75"
    elif suffix == "npz":
        assert np.load(out)["time"].tolist() == ["2024-07-03T11:46:40+02:00"] * 2
    else:
        assert [each.isoformat() for each in pd.read_parquet(out)["time"]] == ["2024-07-03T11:46:40+02:00"] * 2


@pytest.mark.serial
@pytest.mark.parametrize(("kind", "options", "words"), [
    ("node", [], "class and outputs"), ("node", ["--probabilities"], "class and probabilities"),
    ("node", ["--top_k=2"], "best classes"), ("regression", [], "outputs"),
    ("node", ["--embeddings"], "class and rows before the output layer"),
])  # fmt: skip
def test_the_command_prints_which_columns_it_wrote(comm, tmp_path, capsys, kind, options, words):
    parts = make_static_parts(comm, plain, tmp_path)
    train = ["train", "--kind=static", f"--task.kind={kind}", "--train.epochs=1", "--model.layers=2",
             "--sampling.fanouts=[3,3]", "--model.hidden=4", "--comm.threads=1", f"--data.path={parts}",
             f"--output.dir={tmp_path / 'run'}"]  # fmt: skip
    assert run([train]) == 0
    capsys.readouterr()
    assert run([["predict", str(tmp_path / "run"), "--nodes=", *options, f"--out={tmp_path / 'out.csv'}"]]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(" 300 best classes" if options == ["--top_k=2"] else f" nodes, their {words}")
