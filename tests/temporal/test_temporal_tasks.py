"""Labels of temporal events: one answer on any number of ranks, losses by hand, frozen parts, weights from another
run, what is refused; embeddings of nodes."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from mpi4py import MPI
from run_commands import asked
from sklearn.metrics import f1_score, roc_auc_score
from training_runs import (
    bipartite,
    homogeneous,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    open_trainer,
    train_steps,
)

from data_tools.convert import main as convert
from hpcgnn.comm.world import DistributedError
from hpcgnn.loop import checkpoint
from hpcgnn.loop.answer_file import write_answers
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.question_file import read_times
from hpcgnn.loop.session import Session, split_metrics
from hpcgnn.loop.source_times import TimeUnit
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal.config import TemporalConfig, TemporalTaskConfig
from hpcgnn.temporal.predict import (
    answer_nodes,
    embed_all,
    read_nodes,
    read_pairs,
    score_pairs,
)

RICH = {"edge_width": 3, "node_width": 4}


def labeled(path: Path, labels: str, make=bipartite, num_events=360, **options) -> Path:
    """A small graph file with a column of labels: "binary" (few ones), "three" (a fifth missing) or "numbers" (some
    NaN)."""
    make(path, num_events=num_events, **options)
    rng = np.random.default_rng(11)
    with h5py.File(path, "r+") as file:
        (edges,) = file["edges"].values()
        activity = np.bincount(edges["src"][()])[edges["src"][()]] / num_events
        values = {
            "binary": (rng.random(num_events) < 4 * activity).astype(np.int64),
            "three": np.where(rng.random(num_events) < 0.2, -1, edges["dst"][()] % 3),
            "numbers": np.where(rng.random(num_events) < 0.2, np.nan, activity - rng.random(num_events)),
        }[labels]
        edges.create_dataset("label", data=values)
    return path


@pytest.fixture
def parts(comm, mpi_tmp_path):
    """A callable: a partition set of a labeled graph, by name."""

    def make(labels: str, name="parts", num_parts=8, method="random", **options) -> Path:
        path = mpi_tmp_path / f"{labels}.h5"
        if not comm.bcast(path.exists()):
            on_rank_0(comm, lambda: labeled(path, labels, **options) and None)
        if not comm.bcast((mpi_tmp_path / name).exists()):
            make_parts(comm, path, mpi_tmp_path / name, num_parts, method)
        return mpi_tmp_path / name

    return make


def task_config(kind: str, **changes) -> TemporalConfig:
    return make_config(**{"train__batch_size": 30, "task__kind": kind} | changes)


@dataclass
class Epoch:
    """One epoch's training, then validation."""

    losses: list[float]
    parameters: dict[str, np.ndarray]
    metrics: dict[str, float]
    trained: dict[str, float]


def weights_of(session: Session) -> dict[str, np.ndarray]:
    return {name: value.detach().cpu().numpy().copy() for name, value in session.model.named_parameters()}


def run_epoch(comm, parts: Path, config: TemporalConfig, steps: int | None = None) -> Epoch:
    """Collective."""
    trainer = open_trainer(comm, parts, config)
    trainer.start()
    session = trainer.session
    with session.plans("train", 0) as plans:
        losses = [trainer.train_step(plan)[0] for plan in plans if steps is None or plan.step < steps]
    metrics = split_metrics(session, "val", session.scores("val"))
    trained = trainer._scores.metrics() if config.train.train_metrics else {}
    trainer.close()
    return Epoch(losses, weights_of(session), metrics, trained)


def assert_same(one: Epoch, other: Epoch) -> None:
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-9)
    for name, value in one.parameters.items():
        np.testing.assert_allclose(value, other.parameters[name], rtol=1e-7, atol=1e-9, err_msg=name)
    assert one.metrics == pytest.approx(other.metrics, rel=1e-9)
    assert one.trained == pytest.approx(other.trained, rel=1e-6)


# name: (labels, options of the graph, task.kind, changes of the configuration)
CASES = {
    "node": ("binary", {}, "node", {"task__balance_classes": True, "train__train_metrics": True}),
    "node of a homogeneous graph": ("three", {"make": homogeneous}, "node", {"task__class_weights": [1.0, 0.5, 2.0]}),
    "node, messages of embeddings": (
        "binary", {}, "node", {"model__message_from": "embedding", "model__readout": "identity"},
    ),
    "edge": ("three", RICH, "edge", {"train__train_metrics": True, "task__balance_classes": True}),
    "edge, update at user": ("three", RICH, "edge", {"memory__update_at": "user"}),
    "edge without memory": ("binary", RICH, "edge", {"memory__updater": "none", "model__layers": 2}),
    "numbers": ("numbers", RICH, "edge_regression", {"train__train_metrics": True, "sampling__strategy": "uniform"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_ranks_do_not_change_the_answer(comm, parts, case):
    """Losses, weights and metrics, with another partition set on one rank."""
    labels, options, kind, changes = CASES[case]
    config = task_config(kind, **changes)
    found = run_epoch(comm, parts(labels, **options), config)
    other = parts(labels, "other", 4, "metis", **options)
    assert np.isfinite(list(found.metrics.values())).all()
    if comm.rank == 0:
        assert_same(found, run_epoch(MPI.COMM_SELF, other, config))


@pytest.mark.several_ranks
def test_batches_smaller_than_the_number_of_ranks(comm, parts):
    config = task_config("node", train__batch_size=2)
    path = parts("binary", num_events=60)
    found = run_epoch(comm, path, config)
    if comm.rank == 0:
        assert_same(found, run_epoch(MPI.COMM_SELF, path, config))


def expected_loss(kind: str, output: np.ndarray, label: np.ndarray, weights) -> float:
    """Summed, in plain NumPy."""
    if kind == "edge_regression":
        known = ~np.isnan(label)
        return ((output[known, 0] - label[known]) ** 2).sum()
    known = label >= 0
    shifted = output[known] - output[known].max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    weights = np.ones(output.shape[1]) if weights is None else np.asarray(weights)
    return -(weights[label[known]] * logs[np.arange(known.sum()), label[known]]).sum()


@pytest.mark.parametrize(
    ("labels", "kind", "changes"),
    [("binary", "node", {}), ("three", "edge", {"task__class_weights": [1.0, 0.0, 3.0]}),
     ("binary", "edge", {"task__balance_classes": True}), ("numbers", "edge_regression", {})],
)  # fmt: skip
def test_loss_by_hand(comm, parts, labels, kind, changes):
    """Head, weights and missing labels, from the embeddings; divided by all events of the global batch."""
    path = parts(labels, **RICH)
    trainer = open_trainer(comm, path, task_config(kind, model__dropout=0.0, **changes))
    session, weights = trainer.session, changes.get("task__class_weights")
    if "task__balance_classes" in changes:
        label = np.concatenate(comm.allgather(session.batches["train"].events.columns["label"]))
        weights = len(label) / (2 * np.bincount(label))
    with session.plans("train", 0) as plans:
        for plan in plans:
            if plan.step == 3:
                break
            rows = session.task.embed(plan).numpy()
            rows = rows[0] if kind == "node" else np.concatenate([rows[0], rows[1], plan.event_feature.numpy()], axis=1)
            head = {name: p.detach().numpy() for name, p in session.model.decoder.named_parameters()}
            hidden = np.maximum(0, rows @ head["hidden.weight"].T + head["hidden.bias"])
            output = hidden @ head["out.weight"].T + head["out.bias"]
            mine = expected_loss(kind, output, plan.columns["label"].numpy(), weights)
            loss, *_ = trainer.train_step(plan)
            assert loss == pytest.approx(comm.allreduce(mine) / plan.batch_size, rel=1e-9)
    trainer.close()


@pytest.mark.parametrize(("labels", "kind"), [("binary", "node"), ("three", "edge"), ("numbers", "edge_regression")])
def test_metrics_leave_out_missing_labels(comm, parts, labels, kind):
    session = open_session(comm, parts(labels), task_config(kind))
    collected = session.scores("val")
    found = split_metrics(session, "val", collected)
    output = np.concatenate(comm.allgather(collected.columns()["output"]))
    label = np.concatenate(comm.allgather(collected.columns()["label"]))
    known = ~np.isnan(label) if kind == "edge_regression" else label >= 0
    output, label = output[known], label[known]
    if kind == "node":
        assert list(found) == ["accuracy", "macro_f1", "ap", "auc"]
        assert session.goal.monitored() == "auc"
        margin = (output[:, 1] - output[:, 0]).astype(np.float32)
        assert found["auc"] == pytest.approx(roc_auc_score(label, margin))
    elif kind == "edge":
        assert found["macro_f1"] == pytest.approx(f1_score(label, output.argmax(axis=1), average="macro"))
        assert found["accuracy"] == pytest.approx((label == output.argmax(axis=1)).mean())
    else:
        assert found["mse"] == pytest.approx(((output[:, 0] - label) ** 2).mean())


NOT_KNOWN = """
files: {events: {path: events.csv}}
nodes: [{type: a}]
edges:
  - {relation: a.meets.a, file: events, src: src, dst: dst, time: time,
     columns: {label: {column: gain, dtype: float32, fill: .nan}}}
"""


def test_numbers_that_a_source_leaves_out(comm, mpi_tmp_path):
    """Empty cells of a csv file are in no loss and no metric: the error of the validation set over the others."""
    rng = np.random.default_rng(0)
    gain = np.where(rng.random(300) < 0.4, np.nan, rng.standard_normal(300)).astype(np.float32)

    def write():
        ends = rng.integers(0, 20, (300, 2))
        rows = (
            f"{u},{v},{t},{'' if np.isnan(x) else x}\n" for t, ((u, v), x) in enumerate(zip(ends, gain, strict=True))
        )
        (mpi_tmp_path / "events.csv").write_text("src,dst,time,gain\n" + "".join(rows))
        (mpi_tmp_path / "spec.yaml").write_text(NOT_KNOWN)
        assert convert(["--spec", str(mpi_tmp_path / "spec.yaml"), str(mpi_tmp_path / "g.h5")]) == 0

    on_rank_0(comm, write)
    make_parts(comm, mpi_tmp_path / "g.h5", mpi_tmp_path / "p", 4, "random")
    found = run_epoch(comm, mpi_tmp_path / "p", task_config("edge_regression"))
    assert np.isfinite(found.losses).all()
    session = open_session(comm, mpi_tmp_path / "p", task_config("edge_regression"))
    collected = session.scores("val")
    columns = {name: np.concatenate(comm.allgather(value)) for name, value in collected.columns().items()}
    label = columns["label"]
    validation = gain[210:255]
    np.testing.assert_array_equal(np.sort(label[~np.isnan(label)]), np.sort(validation[~np.isnan(validation)]))
    error = np.nanmean((columns["output"][:, 0] - label) ** 2)
    assert split_metrics(session, "val", collected)["mse"] == pytest.approx(error)


def test_the_lowest_error_is_best(comm, parts, mpi_tmp_path):
    """Through the whole loop, which ends with the best epoch's test."""
    config = task_config("edge_regression", train__epochs=3, train__lr=0.05)
    session, logged = open_session(comm, parts("numbers"), config), []
    on_rank_0(comm, lambda: (mpi_tmp_path / "run").mkdir())
    trainer = Trainer(session, mpi_tmp_path / "run", lambda text, **_: logged.append(text), StopRequest())
    trainer.start()
    assert trainer.run() == 0
    trainer.close()
    errors = [float(line.split("val mse ")[1].split(",")[0]) for line in logged if "val mse" in line]
    assert trainer.progress.best_epoch == int(np.argmin(errors))
    assert trainer.progress.best_metric == pytest.approx(-min(errors), abs=1e-4)


def test_a_run_goes_on_within_an_epoch(comm, parts, finished, mpi_tmp_path):
    """Frozen parts and training scores come from the checkpoint; the run that the weights came from may be gone."""
    changes = {"task__freeze": True, "train__train_metrics": True, "train__epochs": 2}
    config = task_config("node", train__init=str(finished), **changes)
    whole = run_epoch(comm, parts("binary"), config)
    folder = mpi_tmp_path / "stopped"
    on_rank_0(comm, folder.mkdir)
    first = open_trainer(comm, parts("binary"), config, folder)
    first.start()
    train_steps(first, 0, 4)
    first._save(first.session.memory.saved())
    first.close()
    config = task_config("node", train__init="/gone", **changes)
    second = Trainer(open_session(comm, parts("binary", "other", 4), config), folder, first.log, StopRequest())
    second.resume()
    assert second.progress.step == 4
    losses = train_steps(second, 4)
    np.testing.assert_allclose(losses, whole.losses[4:], rtol=1e-9)
    assert second._scores.metrics() == pytest.approx(whole.trained, rel=1e-6)
    second.close()


@pytest.fixture
def finished(comm, parts, mpi_tmp_path) -> Path:
    """The folder of a run of link prediction, one epoch."""
    folder = mpi_tmp_path / "link"
    on_rank_0(comm, folder.mkdir)
    config = make_config(train__batch_size=30, train__epochs=1)
    trainer = open_trainer(comm, parts("binary"), config, folder)
    trainer.run()
    trainer.close()
    return folder


@pytest.mark.parametrize("update_at", ["owner", "user"])
def test_frozen_parts_stay_as_another_run_left_them(comm, parts, finished, update_at):
    before = checkpoint.load_weights(checkpoint.find_best(finished / "checkpoints"))
    config = task_config("node", train__init=str(finished), task__freeze=True, memory__update_at=update_at)
    found = run_epoch(comm, parts("binary"), config)
    for name, value in found.parameters.items():
        if not name.startswith("decoder."):
            assert np.array_equal(value, before[name].numpy()), name
    untrained = run_epoch(comm, parts("binary"), config, steps=0)
    changed = [
        name for name, value in found.parameters.items() if not np.array_equal(value, untrained.parameters[name])
    ]
    assert changed == ["decoder.hidden.weight", "decoder.hidden.bias", "decoder.out.weight", "decoder.out.bias"]
    other = parts("binary", "other", 4)
    if comm.rank == 0:
        assert_same(found, run_epoch(MPI.COMM_SELF, other, config))


def test_all_weights_move_without_freeze(comm, parts, finished):
    before = checkpoint.load_weights(checkpoint.find_best(finished / "checkpoints"))
    config = task_config("edge", train__init=str(finished))
    start = run_epoch(comm, parts("binary"), config, steps=0).parameters
    end = run_epoch(comm, parts("binary"), config, steps=2).parameters
    body = [name for name in start if not name.startswith("decoder.")]
    assert all(np.array_equal(start[name], before[name].numpy()) for name in body)
    assert all(not np.array_equal(start[name], end[name]) for name in start if "embedding" in name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"memory__dim": 6, "task__freeze": True}, "do not fit, and task.freeze would leave them untrained"),
     ({"memory__dim": 7, "model__time_dim": 5, "model__hidden": 10}, "none of its weights fits"),
     ({"train__init": "/nowhere"}, "train.init /nowhere: no best checkpoint there")],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(comm, parts, finished, changes, message):
    config = task_config("node", **{"train__init": str(finished)} | changes)
    trainer = open_trainer(comm, parts("binary"), config)
    with pytest.raises(DistributedError, match=message):
        trainer.start()
    trainer.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [({"kind": "nodes"}, "task.kind must be one of link, node, edge, edge_regression"),
     ({"kind": "node", "classes": 1}, "task.classes must be 0"),
     ({"class_weights": [1.0, 2.0]}, "task.kind link has no classes"),
     ({"kind": "edge", "class_weights": [1.0], "balance_classes": True}, "use one"),
     ({"kind": "edge", "class_weights": [1.0, -1.0]}, "must not be negative"),
     ({"kind": "edge", "class_weights": [1.0], "classes": 3}, "has 1 numbers for task.classes = 3")],
)  # fmt: skip
def test_contradictions_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        TemporalTaskConfig(**values)


def test_freeze_needs_a_run_to_start_from():
    with pytest.raises(ValueError, match=r"name the run that the rest comes from with train\.init"):
        task_config("node", task__freeze=True)


@pytest.mark.parametrize("changes", [{"task__decoder": "pair"}, {"eval__negative_kind": "all"}])
def test_what_belongs_to_links_is_refused(changes):
    with pytest.raises(ValueError, match=r"task\.kind is node"):
        task_config("node", **changes)


@pytest.mark.parametrize(
    ("labels", "changes", "message"),
    [("binary", {"task__classes": 2, "task__class_weights": [1.0, 2.0, 3.0]}, "has 3 numbers"),
     ("three", {"task__classes": 2}, "label 2 is no class; .* below task.classes = 2"),
     ("three", {"task__class_weights": [1.0, 2.0]}, "has 2 numbers, the labels have 3 classes"),
     ("numbers", {}, "is no class; .* numbers are for task.kind edge_regression"),
     ("binary", {"train__monitor": "mse"}, "train.monitor must be one of accuracy, macro_f1, ap, auc here, got 'mse'")],
)  # fmt: skip
def test_labels_that_cannot_be_used_are_refused(comm, parts, labels, changes, message):
    path = parts(labels)
    with pytest.raises((DistributedError, ValueError), match=message):
        open_trainer(comm, path, task_config("node", **changes))


def test_a_graph_without_labels_is_refused(comm, mpi_tmp_path):
    path = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(path, num_events=60) and None)
    with pytest.raises(DistributedError, match=r"user\.takes\.item has no column label: convert the source again"):
        open_session(comm, make_parts(comm, path, mpi_tmp_path / "parts", 4), task_config("edge_regression"))


# ---------------------------------------------------------------------------------------------------------------------
# embeddings


def write_nodes(comm, path: Path, header: str, rows: list[tuple]) -> Path:
    """Collective. A nodes file, by rank 0."""
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    on_rank_0(comm, lambda: path.write_text("\n".join(lines) + "\n") and None)
    return path


def end_of_graph(comm, parts: Path, config: TemporalConfig) -> Session:
    """Collective. Memory of all events, with the weights that a run starts with."""
    session = open_session(comm, parts, config)
    for split in ("train", "val", "test"):
        session.scores(split)
    return session


def answered(session: Session, nodes) -> np.ndarray | None:
    """Collective. The embeddings of nodes, on rank 0."""
    return answer_nodes(session, nodes, True).slab("embedding", 0, session.world)


def read_columns(path) -> dict[str, list[str]]:
    """Columns of a CSV file."""
    with open(path, newline="") as file:
        heading, *rows = csv.reader(file)
    return dict(zip(heading, map(list, zip(*rows, strict=True)), strict=True))


def test_embeddings_are_what_scoring_uses_on_any_number_of_ranks(comm, parts, mpi_tmp_path):
    """Decoded pair by pair they are the scores of the pairs; more nodes than a batch holds, and repeated ones."""
    config, path = make_config(train__batch_size=30), parts("binary")
    users, items = [1000 + 3 * (i % 40) for i in range(50)], [1000 + 3 * (i % 15) for i in range(50)]
    rows = [(u, "user", 10**10 + u) for u in users] + [
        (i, "item", 10**10 + u) for u, i in zip(users, items, strict=True)
    ]
    file = write_nodes(comm, mpi_tmp_path / "nodes.csv", "node,type,time", rows)
    session = end_of_graph(comm, path, config)
    embedding = answered(session, read_nodes(session, str(file)))
    pairs = asked(partial(read_pairs, session), src=users, dst=items, time=10**10 + np.array(users))
    scores = score_pairs(session, pairs).slab("score", 0, session.world)
    other = parts("binary", "other", 4)
    if comm.rank > 0:
        assert embedding is None
        return
    source, destination = torch.from_numpy(embedding).view(2, 50, -1)
    decoded = torch.sigmoid(session.model.decode_pairs(source, destination[None])[0]).detach().numpy()
    np.testing.assert_allclose(decoded, scores, rtol=1e-9)
    alone = end_of_graph(MPI.COMM_SELF, other, config)
    np.testing.assert_allclose(embedding, answered(alone, read_nodes(alone, str(file))), rtol=1e-9, atol=1e-12)


def test_embeddings_of_all_nodes_are_those_of_a_file_of_all(comm, parts, mpi_tmp_path):
    """In order of type and row, after the last event; batches hold fewer nodes than there are."""
    rows = [(1000 + 3 * row, kind, "") for kind, count in (("user", 40), ("item", 15)) for row in range(count)]
    file = write_nodes(comm, mpi_tmp_path / "nodes.csv", "node,type,time", rows)
    session = end_of_graph(comm, parts("binary"), make_config(train__batch_size=30))
    expected, found = answer_nodes(session, read_nodes(session, str(file)), True), embed_all(session)
    assert list(found.columns) == ["node", "type", "time", "embedding"]
    for name in found.columns:
        every, asked_for = (answers.slab(name, 0, session.world) for answers in (found, expected))
        if comm.rank == 0 and name == "embedding":
            np.testing.assert_allclose(every, asked_for, rtol=1e-9, atol=1e-12)
        elif comm.rank == 0:
            assert list(map(str, every)) == list(map(str, asked_for))


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_embeddings_are_written_with_original_ids(comm, parts, mpi_tmp_path, suffix):
    """In the order of the file, with the same numbers in every format."""
    file = write_nodes(
        comm, mpi_tmp_path / "nodes.csv", "node,type,time", [(1003, "user", 400), (" 1006 ", "item", "")]
    )
    session = end_of_graph(comm, parts("binary"), make_config())
    answers, out = answer_nodes(session, read_nodes(session, str(file)), True), str(mpi_tmp_path / f"out.{suffix}")
    embedding = answers.slab("embedding", 0, session.world)
    write_answers(out, answers, session.world)
    if comm.rank:
        return
    if suffix == "npz":
        with np.load(out) as file:
            table = {name: values.tolist() for name, values in file.items()}
        assert np.array_equal(table.pop("embedding"), embedding)
    else:
        lines = pq.read_table(out).to_pydict() if suffix == "parquet" else read_columns(out)
        table, vectors = dict(list(lines.items())[:3]), dict(list(lines.items())[3:])
        assert list(vectors) == [f"embedding_{place}" for place in range(embedding.shape[1])]
        assert np.array_equal(np.array(list(vectors.values()), float).T, embedding)
    with h5py.File(mpi_tmp_path / "binary.h5") as file:
        (edges,) = file["edges"].values()
        last = int(edges["time"][-1])
    expected = {"node": [1003, 1006], "type": ["user", "item"], "time": [400, last + 1]}
    assert table == (
        {name: list(map(str, values)) for name, values in expected.items()} if suffix == "csv" else expected
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [("node\n1\n", "no column type; it has node"), ("id,type\n1,user\n", "no column node; it has id, type"),
     ("node,type\n1000,user\n1,page\n", "row 2: type 'page' is none of this graph's: user, item"),
     ("node,type\n1000,user\n1001,item\n1,user\n", r"row 2: node '1001' is no item of this graph \(2 such rows\)"),
     ("node,type,time\n1000,user,soon\n", "row 1: time 'soon' is not an integer")],
)  # fmt: skip
def test_bad_nodes_are_refused(comm, parts, mpi_tmp_path, text, message):
    on_rank_0(comm, lambda: (mpi_tmp_path / "nodes.csv").write_text(text) and None)
    session = open_session(comm, parts("binary"), make_config())
    with pytest.raises(DistributedError, match=message):
        read_nodes(session, str(mpi_tmp_path / "nodes.csv"))


# ---------------------------------------------------------------------------------------------------------------------
# times of the source


@pytest.mark.parametrize(
    ("time", "scale", "stored"),
    [("18", 1, 18), ("18.0", 1, 18), ("18.5", 1000.0, 18500), ("18", 1000.0, 18000), ("", 1000.0, 17001),
     ("120", 1 / 60, 2), ("18000", 0.001, 18)],
)  # fmt: skip
def test_times_are_those_of_the_source(time, scale, stored):
    times = read_times("nodes.csv", 1, pa.array([time]), 17001, TimeUnit(scale))
    assert times.tolist() == [stored]
    if time:
        assert TimeUnit(scale).shown(times) == pytest.approx([float(time)])


@pytest.mark.parametrize(
    ("time", "scale", "message"),
    [("18.0005", 1000.0, "time '18.0005' is not a number that times the graph's time_scale, 1000, is an integer"),
     ("18.5", 1, "row 3: time '18.5' is not an integer"), ("nan", 1000.0, "time 'nan' is not a number that times"),
     ("1e30", 1, "time 1e30 does not fit 64 bits"), ("1e999999999", 1, "is not an integer")],
)  # fmt: skip
def test_times_between_those_of_the_graph_are_refused(time, scale, message):
    with pytest.raises(ValueError, match=message):
        read_times("pairs.csv", 2, pa.array(["5", time, time]), 17, TimeUnit(scale))


@pytest.mark.parametrize(
    ("word", "zone", "scale", "expected"),
    [("2024-01-01", "UTC", 1, 1704067200), ("2024-01-01 01:00:00.5+0100", "UTC", 1000.0, 1704067200500),
     ("2024-07-01T00:00", "Europe/Berlin", 1, 1719784800), ("2024-07-01T00:00Z", "Europe/Berlin", 1, 1719792000),
     ("2024-01-01", "", 1, "is a date, and the times of this graph are not known to come from dates: give numbers"),
     ("2024-01-01T00:00:00.5", "UTC", 1, "is not a time of the graph, whose unit is 1 s"),
     ("2024-13-01", "UTC", 1, "is not an integer, and no date in ISO 8601"),
     ("2024-03-31T02:30", "Europe/Berlin", 1, "no date in ISO 8601")],
)  # fmt: skip
def test_dates_are_times_where_the_graph_has_dates(word, zone, scale, expected):
    if isinstance(expected, int):
        times = read_times("pairs.csv", 1, pa.array([word, "5"]), 0, TimeUnit(scale, zone))
        assert times.tolist() == [expected, 5 * scale]
        return
    with pytest.raises(ValueError, match=rf"pairs.csv: row 2: time '{word}' {expected}|{expected}"):
        read_times("pairs.csv", 1, pa.array(["5", word]), 0, TimeUnit(scale, zone))


def test_a_graph_of_scaled_times_answers_in_those_of_its_source(comm, mpi_tmp_path):
    """With the scores of the graph of the same stored times."""

    def write(scale: float) -> None:
        bipartite(mpi_tmp_path / f"graph-{scale}.h5", num_events=300)
        with h5py.File(mpi_tmp_path / f"graph-{scale}.h5", "r+") as file:
            (edges,) = file["edges"].values()
            edges.attrs["time_scale"] = scale

    tables = []
    for scale in (1, 1000.0):
        on_rank_0(comm, lambda scale=scale: write(scale))
        parts = make_parts(comm, mpi_tmp_path / f"graph-{scale}.h5", mpi_tmp_path / f"parts-{scale}", 4)
        session = open_session(comm, parts, make_config())
        assert session.partition.time_scale == scale
        time = [9500, 9000] if scale == 1 else [9.5, "9"]
        pairs = asked(partial(read_pairs, session), src=[1000, 1003], dst=[1000, 1006], time=time)
        answers = score_pairs(session, pairs)
        tables.append({name: answers.slab(name, 0, session.world) for name in ("time", "score")})
    if comm.rank == 0:
        assert tables[0]["time"].tolist() == [9500, 9000]
        assert tables[1]["time"].tolist() == [9.5, 9.0]
        assert np.array_equal(tables[0]["score"], tables[1]["score"])


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_a_graph_of_dates_answers_in_dates(comm, mpi_tmp_path, suffix):
    """Of pairs and nodes, in the zone of the source, to the millisecond; or in numbers, where these are asked for."""

    def write() -> None:
        bipartite(mpi_tmp_path / "graph.h5", num_events=300)
        with h5py.File(mpi_tmp_path / "graph.h5", "r+") as file:
            (edges,) = file["edges"].values()
            edges.attrs.update({"time_scale": 1000.0, "dates": True, "zone": "Europe/Berlin"})

    on_rank_0(comm, write)
    session = open_session(comm, make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts", 4), make_config())
    columns = {"time": ["1970-01-01T00:00:09.5Z", "9"]}
    pairs = asked(partial(read_pairs, session), src=[1000, 1003], dst=[1000, 1006], **columns)
    nodes = asked(partial(read_nodes, session), node=[1000, 1003], type=["user", "item"], **columns)
    expected = ["1970-01-01T01:00:09.500+01:00", "1970-01-01T01:00:09.000+01:00"]
    for answers in (score_pairs(session, pairs), answer_nodes(session, nodes, True)):
        write_answers(str(mpi_tmp_path / f"out.{suffix}"), answers, session.world)
        if comm.rank:
            continue
        if suffix == "csv":
            found = read_columns(str(mpi_tmp_path / "out.csv"))["time"]
        elif suffix == "npz":
            found = np.load(mpi_tmp_path / "out.npz")["time"].tolist()
        else:
            dates = pq.read_table(mpi_tmp_path / "out.parquet")["time"].to_pylist()
            found = [date.isoformat(timespec="milliseconds") for date in dates]
        assert found == expected
    numbers = (score_pairs(session, pairs, times="numbers"), answer_nodes(session, nodes, True, times="numbers"))
    for answers in numbers:
        found = answers.slab("time", 0, session.world)
        assert found is None or found.tolist() == [9.5, 9.0]


# ---------------------------------------------------------------------------------------------------------------------
# labels of what may happen next


@pytest.mark.parametrize(
    ("kind", "labels", "columns"),
    [("edge", "three", ["class", "output"]), ("node", "binary", ["class", "output"]),
     ("edge_regression", "numbers", ["output"])],
)  # fmt: skip
def test_labels_are_those_of_evaluation(comm, parts, mpi_tmp_path, kind, labels, columns):
    """Events of the last batch, asked about by what they are, just before they happen; and one process says the same
    as several."""
    config = task_config(kind, sampling__in_batch_neighbors=False)
    tables = []
    for communicator, path in ((comm, parts(labels, **RICH)), (MPI.COMM_SELF, parts(labels, "other", 4, **RICH))):
        session = open_session(communicator, path, config)
        loader = session.loaders["test"]
        for split in ("train", "val"):
            session.scores(split)
        with loader.plans(0, scored=True) as plans:
            first = next(iter(plans))
            expected = session.world.gather_rows(session.task.score(first).arrays()["output"])
            rows = session.world.gather_rows(first.event_row)
        with h5py.File(mpi_tmp_path / f"{labels}.h5") as file:
            ((name, edges),) = file["edges"].items()
            src_type, _, dst_type = name.split(".")
            count = int(session.world.total(first.num_events))
            begin = int(loader.batches.first_row[0])
            events = slice(begin, begin + count)
            ids = [file["nodes"][end]["id"][()][edges[column][events]] for end, column in
                   ((src_type, "src"), (dst_type, "dst"))]  # fmt: skip
            time, feature = edges["time"][events], edges["feat"][events]
        src, dst = ids
        object.__setattr__(session.partition, "num_events", begin)  # nothing of the batch has happened
        if kind == "node":
            nodes = asked(partial(read_nodes, session), node=src, type=[src_type] * count, time=time)
            answers = answer_nodes(session, nodes, False)
        else:
            features = {f"feat_{place}": values.tolist() for place, values in enumerate(feature.T)}
            pairs = asked(partial(read_pairs, session), src=src, dst=dst, time=time, **features)
            answers = score_pairs(session, pairs)
        assert [name for name in answers.columns if name in ("class", "output", "score")] == columns
        tables.append({name: answers.slab(name, 0, session.world) for name in answers.columns})
        if session.world.rank == 0:
            output, order = tables[-1]["output"], np.argsort(rows)
            np.testing.assert_allclose(output.reshape(count, -1), expected[order], rtol=1e-9, atol=1e-12)
            if "class" in columns:
                assert np.array_equal(tables[-1]["class"], expected[order].argmax(axis=1))
    if comm.rank == 0:
        np.testing.assert_allclose(tables[0]["output"], tables[1]["output"], rtol=1e-9, atol=1e-12)
