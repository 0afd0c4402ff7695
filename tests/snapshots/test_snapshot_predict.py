"""Outputs at the last snapshots: those that the test scored, the same on any number of ranks."""

import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from run_commands import asked, asked_for
from snapshot_runs import make_config, make_parts, open_session, random_graph, write_parts
from test_snapshot_labels import LABELS, labeled_graph
from training_runs import on_rank_0

from hpcgnn.comm.world import DistributedError, World
from hpcgnn.loop import checkpoint
from hpcgnn.loop.checkpoint_writer import load
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.links import best_answers
from hpcgnn.loop.logs import RunLog
from hpcgnn.loop.session import split_metrics
from hpcgnn.loop.trainer import Trainer
from hpcgnn.snapshots.model import MODELS
from hpcgnn.snapshots.model.frame import SequenceModel
from hpcgnn.snapshots.predict import answer, check, forecast, forecast_nodes, links_of, read_pairs, score_pairs
from hpcgnn.snapshots.session import follow

KINDS = {"carried": {}, "windows": {"sampling__window_size": 3}, "state of all": {"model__kind": "evolvegcn_o"}}


def trained(comm, parts, folder, config):
    """Collective. The folder of a finished run's best checkpoint."""
    session = open_session(comm, parts, config)
    trainer = Trainer(session, folder, RunLog(folder / "log", comm.rank), StopRequest())
    trainer.start()
    trainer.run()
    trainer.close()
    return checkpoint.find_best(folder / "checkpoints")


def opened(comm, parts, config, best):
    """Collective. A session with a checkpoint."""
    session = open_session(comm, parts, config)
    load(session, best)
    return session


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_that_were_scored(comm, mpi_tmp_path, kind):
    parts = make_parts(comm, mpi_tmp_path)
    config = make_config(inputs__lags=2, train__batch_size=3, train__log_every=0, **KINDS[kind])
    best = comm.bcast(trained(comm, parts, mpi_tmp_path, config))
    nodes = forecast_nodes(opened(comm, parts, config, best), 3)
    alone = forecast_nodes(opened(World.alone().mpi, parts, config, best), 3)
    mine = np.isin(alone.row, nodes.row)
    for name, column in alone.columns.items():
        assert np.allclose(nodes.columns[name], column[mine], rtol=1e-9)

    session = opened(comm, parts, config, best)
    for split in ("val", "test"):
        metrics = split_metrics(session, split, session.scores(split))
    if comm.rank == 0:  # what the checkpoint holds is what the run itself went on with
        lines = [json.loads(line) for line in (mpi_tmp_path / "metrics.jsonl").read_text().splitlines()]
        *epochs, last = lines
        assert last["val_mse"] == pytest.approx(epochs[last["epoch"]]["val_mse"], rel=1e-9)
    errors = []
    for number, rows in forecast(opened(comm, parts, config, best)):
        if number in session.loaders["test"].snapshots:
            errors.append(rows[:, 0].numpy() - session.partition.series["target"][:, number + 1])
    squares = comm.allreduce(sum(float((error.astype(np.float64) ** 2).sum()) for error in errors))
    count = comm.allreduce(sum(len(error) for error in errors))
    assert squares / count == pytest.approx(metrics["mse"], rel=1e-9)


@pytest.mark.parametrize("kind", ["tgcn", "gconv_lstm", "evolvegcn_o", "evolvegcn_h"])
def test_answers_need_the_weights_and_the_graph_alone(comm, mpi_tmp_path, kind):
    """Validation, test and forecast from a state that is carried on are those of one pass over all snapshots by the
    best weights, one snapshot a step: nothing is left of the weights, or of the sample of neighbors, that the state
    was formed by as they were learned."""
    parts = make_parts(comm, mpi_tmp_path)
    changes = {"train__batch_size": 3, "train__log_every": 0, "train__lr": 0.05, "sampling__halo_ratio": 0.6}
    config = make_config(inputs__lags=2, model__kind=kind, model__hidden=8, **changes)
    best = comm.bcast(trained(comm, parts, mpi_tmp_path, config))
    told = json.loads((mpi_tmp_path / "metrics.jsonl").read_text().splitlines()[-1]) if comm.rank == 0 else None
    told, nodes = comm.bcast(told), forecast_nodes(opened(comm, parts, config, best), 2)

    session = opened(comm, parts, config, best)
    session.memory.reset()
    target, squares, outputs = session.partition.series["target"], {"val": [], "test": []}, {}
    for number in range(session.loaders["train"].snapshots.start, session.partition.num_snapshots):
        ((_, rows),) = follow(session, range(number, number + 1))
        outputs[number] = rows[:, 0].numpy()
        for split in squares:
            if number in session.loaders[split].snapshots:
                squares[split] += [*(outputs[number] - target[:, number + 1]) ** 2]
    for split, errors in squares.items():
        mean = comm.allreduce(float(np.sum(errors))) / comm.allreduce(len(errors))
        assert told[f"{split}_mse"] == pytest.approx(mean, rel=1e-9)
    order = np.argsort(session.partition.flat_row)
    for number in (12, 13):
        assert np.allclose(nodes.columns[f"snapshot_{number + 1}"], outputs[number][order], rtol=1e-9, atol=1e-12)
    session.close()


def test_what_was_scaled_is_told_in_the_units_of_the_source(comm, mpi_tmp_path):
    """The same graph with and without the attribute ``scale``: predictions are so many times as large, and errors in
    units are told, logged and monitored; nothing else changes."""
    config, found = make_config(train__epochs=1, train__monitor="mse", inputs__lags=2), []
    for scale in (None, 70.0):
        folder = mpi_tmp_path / str(scale)
        if comm.rank == 0:
            folder.mkdir()
        graph = random_graph(5, 24, 9, 20)
        graph.attributes["target"] = {} if scale is None else {"scale": scale}
        parts = write_parts(comm, folder, graph, parts=4)
        best = comm.bcast(trained(comm, parts, folder, config))
        nodes = forecast_nodes(opened(comm, parts, config, best), 2)
        told = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1]) if comm.rank == 0 else None
        found.append((nodes.columns, comm.bcast(told), (folder / "log" / "rank-0.log").read_text()))
        config.train.monitor = "rmse_units"
    (plain, one, _), (scaled, other, log) = found
    for name in ("snapshot_8", "snapshot_9"):
        assert np.allclose(scaled[name], 70 * plain[name], rtol=1e-9)
    for split in ("val", "test"):
        assert all(other[f"{split}_{name}"] == pytest.approx(one[f"{split}_{name}"]) for name in ("mse", "mae", "rmse"))
        assert other[f"{split}_rmse_units"] == pytest.approx(70 * one[f"{split}_rmse"], rel=1e-9)
    assert "test_mae_units" not in one
    assert f"test rmse_units {other['test_rmse_units']:.4f}" in log


def test_runs_on_parts_of_the_nodes_predict_all_snapshots(comm, mpi_tmp_path):
    """What they have trained on, too: as it was scored."""
    graph = labeled_graph()
    changes = {**LABELS, "task__kind": "node", "task__target": "color", "data__split_by": "nodes", "task__horizon": 0}
    config = make_config(**changes)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    scores = session.scores("test").columns()["output"]
    nodes = forecast_nodes(session, session.partition.num_snapshots)
    mine = np.isin(nodes.row, session.partition.flat_row[session.goal._split == 2])
    known = mine & (graph.nodes["color"][nodes.row] >= 0)
    rows = [nodes.columns[f"snapshot_{number}"][known] for number in session.loaders["test"].snapshots]
    found, expected = (np.sort(np.concatenate(values).ravel()) for values in (rows, [scores]))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(DistributedError, match=r"--snapshots must be 1 to .* from the first of training on"):
        forecast_nodes(session, 100)
    session.close()


def test_more_snapshots_than_there_are_is_refused(comm, mpi_tmp_path):
    session = open_session(comm, make_parts(comm, mpi_tmp_path), make_config(inputs__lags=2))
    with pytest.raises(DistributedError, match="--snapshots must be 1 to"):
        forecast_nodes(session, 100)


@pytest.mark.serial
def test_hidden_rows_are_written_where_they_are_asked_for_alone():
    """They would pass for what is predicted of pairs."""
    asked = asked_for()
    for kind in ("link", "edge", "edge_regression"):
        with pytest.raises(
            ValueError, match=f"this run has task.kind {kind}: give one of --pairs, --top_k and --embeddings"
        ):
            check(asked, make_config(task__kind=kind))
    asked.embeddings = True
    for config in (make_config(task__kind="link"), make_config()):
        assert check(asked, config) is config


NAMED = {
    "numbers": ({"task__horizon": 2}, ["snapshot_12", "snapshot_13"]),
    "steps": (
        {"task__forecast_steps": 2},
        ["snapshot_11_from_10", "snapshot_12_from_10", "snapshot_12_from_11", "snapshot_13_from_11"],
    ),
    "classes": (
        {"task__kind": "node", "task__target": "label"},
        ["class_11", "class_id_11", "snapshot_11", "class_12", "class_id_12", "snapshot_12"],
    ),
    "links": ({"task__kind": "link"}, ["embedding_10", "embedding_11"]),
}


@pytest.mark.parametrize("case", NAMED)
def test_columns_say_what_they_are_of(comm, mpi_tmp_path, case):
    """A forecast is named after the snapshot that it is for, hidden rows after their own."""
    changes, expected = NAMED[case]
    graph = labeled_graph()
    graph.attributes["label"] = {"names": json.dumps(["red", "green", "blue"])}
    graph.nodes["type"] = np.arange(40) % 2
    graph.attributes["type"] = {"names": json.dumps(["pump", "valve"])}
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), make_config(**changes))
    nodes = forecast_nodes(session, 2, embeddings=case == "links")
    outputs = dict(forecast(session))[11].numpy()
    session.close()
    assert list(nodes.columns) == ["node", "type", *expected]
    assert nodes.columns["type"].tolist() == [["pump", "valve"][row % 2] for row in nodes.row]
    if case == "classes":
        words = np.array(["red", "green", "blue"])[nodes.columns["snapshot_12"].argmax(axis=1)]
        assert nodes.columns["class_12"].tolist() == words.tolist()
    if case == "steps":
        assert nodes.columns["snapshot_13_from_11"].shape == (len(outputs),)


@pytest.mark.parametrize("case", ["steps", "classes", "links"])
def test_snapshots_at_dates_are_named_by_them(comm, mpi_tmp_path, case):
    """In the zone of the source, also after the last snapshot; or by numbers, where these are asked for."""
    changes, numbers = NAMED[case]
    graph = labeled_graph()
    graph.clock = {"first": 1704063600, "step": 86400, "zone": "Europe/Berlin"}
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), make_config(**changes))
    dates = [re.sub(r"1[0-3]", lambda number: f"2024-01-{1 + int(number[0])}T00:00:00+01:00", n) for n in numbers]
    if case == "classes":
        dates, numbers = ([name for name in names if "class_id" not in name] for names in (dates, numbers))
    embeddings = session.config.task.kind == "link"
    assert [*forecast_nodes(session, 2, embeddings=embeddings).columns][1:] == dates
    assert [*forecast_nodes(session, 2, embeddings=embeddings, times="numbers").columns][1:] == numbers


@pytest.mark.parametrize("kind", MODELS)
def test_embeddings_are_what_the_output_layer_reads(comm, mpi_tmp_path, kind):
    """Times its weights, by hand, they are the outputs of each snapshot; on one rank, too."""
    parts = make_parts(comm, mpi_tmp_path, nodes=24)
    windows = {"sampling__window_size": 3, "node_embedding__dim": 2}
    changes = windows if MODELS[kind].windowed else {"train__batch_size": 3}
    config = make_config(inputs__lags=2, model__kind=kind, model__hidden=8, **changes)
    found = []
    for communicator, embeddings in ((comm, False), (comm, True), (World.alone().mpi, True)):
        session = open_session(communicator, parts, config)
        weight, bias = (part.detach().numpy() for part in session.model.output.parameters())
        found.append(forecast_nodes(session, 2, embeddings=embeddings))
        session.close()
    outputs, rows, alone = found
    assert list(rows.columns) == ["node", "embedding_12", "embedding_13"]
    for number in (12, 13):
        here = rows.columns[f"embedding_{number}"]
        expected = here @ weight.T + bias
        np.testing.assert_allclose(outputs.columns[f"snapshot_{number + 1}"], expected[:, 0], rtol=1e-9, atol=1e-12)
        whole = alone.columns[f"embedding_{number}"][np.searchsorted(alone.row, rows.row)]
        np.testing.assert_allclose(here, whole, rtol=1e-9, atol=1e-12)
        assert np.ptp(alone.columns[f"embedding_{number}"] @ weight.T) > 0


class Nameless(SequenceModel):
    """A model whose last layer has another name."""

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.last = torch.nn.Linear(sizes.inputs, sizes.outputs)

    def forward(self, frames, state):
        """As in SequenceModel."""
        return [self.last(frame.inputs) for frame in frames], dict(state)


def test_models_without_an_output_layer_are_refused(comm, mpi_tmp_path):
    config = make_config(inputs__lags=2, model__class_path=f"{__name__}.Nameless")
    session = open_session(comm, make_parts(comm, mpi_tmp_path, nodes=24), config)
    with pytest.raises(DistributedError, match=r"--embeddings: model.class_path .*Nameless has no module output, its"):
        forecast_nodes(session, 1, embeddings=True)
    session.close()


def test_best_edge_types_are_those_of_all_scores(comm, mpi_tmp_path):
    """Each pair as a link of each type, by scores that are asked for one by one."""
    graph = random_graph(5, 18, 9, 30)
    graph.edges["rel"] = np.random.default_rng(1).integers(0, 3, len(graph.src))
    graph.edge_attributes["rel"] = {"names": json.dumps(["red", "green", "blue"])}
    config = make_config(task__kind="link", inputs__degrees="log", task__decoder="distmult")
    parts, given, out = write_parts(comm, mpi_tmp_path, graph, 4), mpi_tmp_path / "p.csv", mpi_tmp_path / "best.npz"
    src, dst = [1, 5, 17, 4], [2, 5, 0, 3]
    on_rank_0(comm, lambda: given.write_text("src,dst\n1,2\n5,5\n17,0\n4,3\n") and None)
    session = open_session(comm, parts, config)
    answer(session, asked_for(pairs=str(given), top_k=2, out=str(out)))
    session.close()
    session = open_session(comm, parts, config)
    every = {"src": np.repeat(src, 3), "dst": np.repeat(dst, 3), "rel": [*range(3)] * 4}
    scores = score_pairs(session, asked(partial(read_pairs, session), **every)).slab("score", 0, session.world)
    session.close()
    if comm.rank:
        return
    found, scores = np.load(out), scores.reshape(4, 3)
    order = np.argsort(-scores, axis=1)[:, :2]
    assert found["rel"].tolist() == [["red", "green", "blue"][kind] for kind in order.ravel()]
    assert [found["src"].tolist(), found["dst"].tolist()] == [np.repeat(src, 2).tolist(), np.repeat(dst, 2).tolist()]
    np.testing.assert_allclose(found["score"], np.take_along_axis(scores, order, 1).ravel(), rtol=1e-9)


LINKS = {
    "links": {"task__decoder": "mlp"}, "types of links": {"task__decoder": "distmult", "task__negative_ends": "pair"},
}  # fmt: skip


@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("given", ["src", "dst"])
def test_best_links_are_those_of_all_pairs(comm, mpi_tmp_path, case, given):
    """Each pair of nodes is scored; sorted by hand, known links left out by hand, the best are the best."""
    graph, typed = random_graph(5, 18, 9, 30), "distmult" in str(LINKS[case])
    graph.edges["rel"] = np.random.default_rng(1).integers(0, 2, len(graph.src))
    graph.id = np.array([f"n{7 * row % 18}".encode() for row in range(18)])
    config = make_config(task__kind="link", inputs__degrees="log", **LINKS[case])
    parts = write_parts(comm, mpi_tmp_path, graph, 4)
    session = open_session(comm, parts, config)
    every = [(s, d) for s in range(18) for d in range(18)]
    names = [name.decode() for name in graph.id]
    src, dst = ([names[pair[end]] for pair in every] for end in (0, 1))
    types = {"rel": [1] * len(every)} if typed else {}
    pairs = asked(partial(read_pairs, session), src=src, dst=dst, **types)
    scores = score_pairs(session, pairs).slab("score", 0, session.world)
    session.close()
    session = open_session(comm, parts, config)
    likely = score_pairs(session, pairs, probabilities=True).slab("probability", 0, session.world)
    queries = mpi_tmp_path / "queries.csv"
    lines = [f"{given},rel", *(f"{name},1" for name in names)] if typed else [given, *names]
    on_rank_0(comm, lambda: queries.write_text("\n".join(lines) + "\n") and None)
    session.close()
    session = open_session(comm, parts, config)  # a forecast leaves the state after the last snapshot
    found = best_answers(links_of(session, given, "all"), 4, str(queries))
    table = {name: found.slab(name, 0, session.world) for name in found.columns}
    session.close()
    if comm.rank:
        return
    np.testing.assert_allclose(likely, torch.from_numpy(scores).sigmoid(), rtol=1e-9)
    last = graph.first == 8
    known = set(zip(graph.src[last & ((graph.edges["rel"] == 1) | (not typed))].tolist(),
                    graph.dst[last & ((graph.edges["rel"] == 1) | (not typed))].tolist(), strict=True))  # fmt: skip
    matrix = scores.reshape(18, 18).copy()
    for pair in known:
        matrix[pair] = -np.inf
    np.fill_diagonal(matrix, -np.inf)  # the query itself is no answer
    matrix = matrix if given == "src" else matrix.T
    best = np.argsort(-matrix, axis=1, kind="stable")[:, :4]
    other = "dst" if given == "src" else "src"
    np.testing.assert_allclose(table["score"], np.take_along_axis(matrix, best, 1).ravel(), rtol=1e-6)
    assert table[other].tolist() == [names[node] for row in best for node in row]


@pytest.mark.parametrize("kind", ["edge", "edge_regression"])
def test_pairs_have_the_labels_that_the_test_scored(comm, mpi_tmp_path, kind):
    """The edges of the last snapshot that is scored, asked for as pairs on a graph that ends before it."""
    graph = labeled_graph()
    target = "color" if kind == "edge" else "weight"
    rng = np.random.default_rng(3)
    graph.edges["color"] = rng.integers(0, 3, len(graph.src))
    graph.edge_attributes["color"] = {"names": json.dumps(["red", "green", "blue"])}
    graph.edges.setdefault("weight", rng.uniform(0.5, 2, len(graph.src)).astype(np.float32))
    config = make_config(task__kind=kind, task__target=target, task__horizon=1, inputs__degrees="log")
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph, 4), config)
    rows = np.flatnonzero(graph.first == graph.num_snapshots - 1)
    pairs = asked(partial(read_pairs, session), src=graph.src[rows], dst=graph.dst[rows])
    answers = score_pairs(session, pairs, probabilities=True)
    session.memory.reset()
    outputs = dict(forecast(session))[graph.num_snapshots - 1]
    everyone = by_row(session, outputs)
    if comm.rank == 0:
        head = session.model.head
        ends = torch.cat([everyone[graph.src[rows]], everyone[graph.dst[rows]]], 1)
        expected = head.out(torch.relu(head.hidden(ends))).detach().numpy()
    table = {name: answers.slab(name, 0, session.world) for name in answers.columns}
    session.close()
    if comm.rank:
        return
    if kind == "edge":
        assert table["class"].tolist() == [["red", "green", "blue"][c] for c in expected.argmax(1)]
        np.testing.assert_allclose(table["probability"], torch.from_numpy(expected).softmax(1), rtol=1e-9)
    else:
        np.testing.assert_allclose(table["output"], expected[:, 0], rtol=1e-9)


def by_row(session, rows):
    """Collective. Rows of all nodes in order of the graph file, on rank 0."""
    places, values = (session.world.gather_rows(part) for part in (session.partition.flat_row, rows.numpy()))
    return None if places is None else torch.from_numpy(values[np.argsort(places)])
