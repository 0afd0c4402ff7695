"""Labels of temporal events: one answer on any number of ranks, losses by hand, frozen parts, weights from another
run, what is refused; embeddings of nodes."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from sklearn.metrics import f1_score, roc_auc_score
from training_runs import bipartite, homogeneous, make_config, make_parts, on_rank_0, open_session, train_steps

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop import checkpoint
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.session import Session, split_metrics
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal.config import RunConfig, TaskConfig
from hpcgnn.temporal.predict import AskedPairs, embed_nodes, read_nodes, score_pairs, write_embeddings

RICH = {"edge_width": 3, "node_width": 4}


def labelled(path: Path, labels: str, make=bipartite, num_events=360, **options) -> Path:
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
    """A callable: a partition set of a labelled graph, by name."""

    def make(labels: str, name="parts", num_parts=8, method="random", **options) -> Path:
        path = mpi_tmp_path / f"{labels}.h5"
        if not comm.bcast(path.exists()):
            on_rank_0(comm, lambda: labelled(path, labels, **options) and None)
        if not comm.bcast((mpi_tmp_path / name).exists()):
            make_parts(comm, path, mpi_tmp_path / name, num_parts, method)
        return mpi_tmp_path / name

    return make


def task_config(kind: str, **changes) -> RunConfig:
    return make_config(**{"train__batch_size": 30, "task__kind": kind} | changes)


@dataclass
class Epoch:
    """One epoch's training, then validation."""

    losses: list[float]
    parameters: dict[str, np.ndarray]
    metrics: dict[str, float]
    trained: dict[str, float]


def open_trainer(comm, parts: Path, config: RunConfig) -> Trainer:
    """Collective."""
    return Trainer(open_session(comm, parts, config), Path("unused"), lambda *_, **__: None, StopRequest())


def weights_of(session: Session) -> dict[str, np.ndarray]:
    return {name: value.detach().cpu().numpy().copy() for name, value in session.model.named_parameters()}


def run_epoch(comm, parts: Path, config: RunConfig, steps: int | None = None) -> Epoch:
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
        "binary", {}, "node", {"model__message_from": "embedding", "model__embedding": "identity"},
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
            loss, _ = trainer.train_step(plan)
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
        assert list(found) == ["auc", "ap"]
        margin = (output[:, 1] - output[:, 0]).astype(np.float32)
        assert found["auc"] == pytest.approx(roc_auc_score(label, margin))
    elif kind == "edge":
        assert found["macro_f1"] == pytest.approx(f1_score(label, output.argmax(axis=1), average="macro"))
        assert found["accuracy"] == pytest.approx((label == output.argmax(axis=1)).mean())
    else:
        assert found["mse"] == pytest.approx(((output[:, 0] - label) ** 2).mean())


def test_the_lowest_error_is_best(comm, parts, mpi_tmp_path):
    """Through the whole loop, which ends with the best epoch's test."""
    config = task_config("edge_regression", train__epochs=3, train__lr=0.05)
    session, logged = open_session(comm, parts("numbers"), config), []
    on_rank_0(comm, lambda: (mpi_tmp_path / "run").mkdir())
    trainer = Trainer(session, mpi_tmp_path / "run", lambda text, **_: logged.append(text), StopRequest())
    trainer.start()
    assert trainer.run() == 0
    trainer.close()
    errors = [float(line.split("val MSE ")[1].split(",")[0]) for line in logged if "val MSE" in line]
    assert trainer.progress.best_epoch == int(np.argmin(errors))
    assert trainer.progress.best_metric == pytest.approx(-min(errors), abs=1e-4)


def test_a_run_goes_on_within_an_epoch(comm, parts, finished, mpi_tmp_path):
    """Frozen parts and training scores come from the checkpoint; the run that the weights came from may be gone."""
    changes = {"task__freeze": True, "train__train_metrics": True, "train__epochs": 2}
    config = task_config("node", task__init=str(finished), **changes)
    whole = run_epoch(comm, parts("binary"), config)
    folder = mpi_tmp_path / "stopped"
    on_rank_0(comm, folder.mkdir)
    first = Trainer(open_session(comm, parts("binary"), config), folder, lambda *_, **__: None, StopRequest())
    first.start()
    train_steps(first, 0, 4)
    first._save(first.session.memory.saved())
    first.close()
    config = task_config("node", task__init="/gone", **changes)
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
    trainer = Trainer(open_session(comm, parts("binary"), config), folder, lambda *_, **__: None, StopRequest())
    trainer.run()
    trainer.close()
    return folder


@pytest.mark.parametrize("update_at", ["owner", "user"])
def test_frozen_parts_stay_as_another_run_left_them(comm, parts, finished, update_at):
    before = checkpoint.load_weights(checkpoint.find_best(finished / "checkpoints"))
    config = task_config("node", task__init=str(finished), task__freeze=True, memory__update_at=update_at)
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
    config = task_config("edge", task__init=str(finished))
    start = run_epoch(comm, parts("binary"), config, steps=0).parameters
    end = run_epoch(comm, parts("binary"), config, steps=2).parameters
    body = [name for name in start if not name.startswith("decoder.")]
    assert all(np.array_equal(start[name], before[name].numpy()) for name in body)
    assert all(not np.array_equal(start[name], end[name]) for name in start if "embedding" in name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"model__memory_dim": 6, "task__freeze": True}, "do not fit, and task.freeze would leave them untrained"),
     ({"model__memory_dim": 7, "model__time_dim": 5, "model__embed_dim": 10}, "none of its weights fits"),
     ({"task__init": "/nowhere"}, "task.init /nowhere: no best checkpoint there")],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(comm, parts, finished, changes, message):
    config = task_config("node", **{"task__init": str(finished)} | changes)
    trainer = open_trainer(comm, parts("binary"), config)
    with pytest.raises(DistributedError, match=message):
        trainer.start()
    trainer.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [({"kind": "nodes"}, "task.kind must be one of link, node, edge, edge_regression"),
     ({"kind": "node", "classes": 1}, "task.classes must be 0"),
     ({"kind": "node", "freeze": True}, "name the run that the rest comes from with task.init"),
     ({"class_weights": [1.0, 2.0]}, "task.kind link has no classes"),
     ({"kind": "edge", "class_weights": [1.0], "balance_classes": True}, "use one"),
     ({"kind": "edge", "class_weights": [1.0, -1.0]}, "must not be negative"),
     ({"kind": "edge", "class_weights": [1.0], "classes": 3}, "has 1 numbers for task.classes = 3")],
)  # fmt: skip
def test_contradictions_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        TaskConfig(**values)


@pytest.mark.parametrize("changes", [{"model__decoder": "pair"}, {"eval__negatives": "all"}])
def test_what_belongs_to_links_is_refused(changes):
    with pytest.raises(ValueError, match=r"task\.kind is node"):
        task_config("node", **changes)


@pytest.mark.parametrize(
    ("labels", "changes", "message"),
    [("binary", {"task__classes": 2, "task__class_weights": [1.0, 2.0, 3.0]}, "has 3 numbers"),
     ("three", {"task__classes": 2}, "label 2 is no class; .* below task.classes = 2"),
     ("three", {"task__class_weights": [1.0, 2.0]}, "has 2 numbers, the labels have 3 classes"),
     ("numbers", {}, "is no class; .* numbers are for task.kind edge_regression"),
     ("binary", {"train__monitor": "mse"}, "train.monitor must be one of auc, ap here, got 'mse'")],
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


def end_of_graph(comm, parts: Path, config: RunConfig) -> Session:
    """Collective. Memory of all events, with the weights that a run starts with."""
    session = open_session(comm, parts, config)
    for split in ("train", "val", "test"):
        session.scores(split)
    return session


def test_embeddings_are_what_scoring_uses_on_any_number_of_ranks(comm, parts, mpi_tmp_path):
    """Decoded pair by pair they are the scores of the pairs; more nodes than a batch holds, and repeated ones."""
    config, path = make_config(train__batch_size=30), parts("binary")
    users, items = [1000 + 3 * (i % 40) for i in range(50)], [1000 + 3 * (i % 15) for i in range(50)]
    rows = [(u, "user", 10**10 + u) for u in users] + [
        (i, "item", 10**10 + u) for u, i in zip(users, items, strict=True)
    ]
    file = write_nodes(comm, mpi_tmp_path / "nodes.csv", "node,type,time", rows)
    session = end_of_graph(comm, path, config)
    types = session.partition.book.node_types
    embedding = embed_nodes(session, read_nodes(str(file), types, 0))
    pairs = AskedPairs("", list(map(str, users)), list(map(str, items)), 10**10 + np.array(users))
    scores = score_pairs(session, pairs)
    other = parts("binary", "other", 4)
    if comm.rank > 0:
        assert embedding is None
        return
    source, destination = torch.from_numpy(embedding).view(2, 50, -1)
    decoded = torch.sigmoid(session.model.decode_pairs(source, destination[None])[0]).detach().numpy()
    np.testing.assert_allclose(decoded, scores, rtol=1e-9)
    alone = end_of_graph(MPI.COMM_SELF, other, config)
    np.testing.assert_allclose(embedding, embed_nodes(alone, read_nodes(str(file), types, 0)), rtol=1e-9, atol=1e-12)


def test_embeddings_are_written_with_original_ids(tmp_path):
    (tmp_path / "nodes.csv").write_text("node,type,time\n7,user,5\n 9 ,item,\n")
    nodes, embedding = read_nodes(str(tmp_path / "nodes.csv"), ("user", "item"), 4), np.array([[0.1, 2], [3, 4]])
    write_embeddings(str(tmp_path / "out.csv"), nodes, embedding)
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["node", "type", "time", "embedding_0", "embedding_1"], ["7", "user", "5", "0.1", "2.0"],
                    ["9", "item", "5", "3.0", "4.0"]]  # fmt: skip
    write_embeddings(str(tmp_path / "out.npz"), nodes, embedding)
    with np.load(tmp_path / "out.npz") as found:
        assert found["node"].tolist() == [7, 9]
        assert found["type"].tolist() == ["user", "item"]
        assert found["time"].tolist() == [5, 5]
        assert np.array_equal(found["embedding"], embedding)


@pytest.mark.parametrize(
    ("text", "types", "message"),
    [("node\n1\n", ("user", "item"), "no column type; it has node"),
     ("id\n1\n", ("user",), "no column node; it has id"),
     ("node,type\n1,page\n", ("user", "item"), "row 1: type 'page' is none of this graph's: user, item"),
     ("node,time\n1,3\n", ("user",), "row 1: time 3 is not after the graph's last event"),
     ("node,time\n1\n", ("user",), "row 1: 2 fields expected")],
)  # fmt: skip
def test_bad_nodes_are_refused(tmp_path, text, types, message):
    (tmp_path / "nodes.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_nodes(str(tmp_path / "nodes.csv"), types, 4)


def test_unknown_nodes_are_refused(comm, parts, mpi_tmp_path):
    file = write_nodes(comm, mpi_tmp_path / "nodes.csv", "node,type", [(1000, "user"), (1001, "item")])
    session = open_session(comm, parts("binary"), make_config())
    with pytest.raises(DistributedError, match="row 2: node '1001' is no item of this graph"):
        embed_nodes(session, read_nodes(str(file), session.partition.book.node_types, 0))
