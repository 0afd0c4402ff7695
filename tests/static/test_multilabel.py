"""Nodes with several labels, or with a number: learning them gives one answer on any number of ranks, metrics are
scikit-learn's; predictions give the errors that evaluation reports."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from random_graphs import write_graph
from selection import long_but
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, reference_run, static_config
from torch.nn.functional import binary_cross_entropy_with_logits
from training_runs import on_rank_0

from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop.session import split_metrics
from hpcgnn.static.inference import infer
from hpcgnn.static.predict import predict_nodes
from hpcgnn.task.labels import has_label, node_labels
from hpcgnn.task.metrics import class_metric_names, class_metrics

CLASSES = 4


def several(path, largest: int = 1):
    """150 nodes with up to four labels each, some with none, a tenth of unknown ones, and single unknown labels."""
    rng = np.random.default_rng(2)
    label = rng.integers(0, largest + 1, (150, CLASSES))
    label[rng.random(150) < 0.1] = -1
    label[rng.random((150, CLASSES)) < 0.1] = -1
    feat = np.maximum(label, 0) + rng.standard_normal((150, CLASSES))
    nodes = {
        "node": {"feat": feat.astype(np.float32), "label": label, "split": rng.integers(0, 3, 150).astype(np.int8)}
    }
    edges = {"src": rng.integers(0, 150, 600), "dst": rng.integers(0, 150, 600)}
    return write_graph(path, nodes, {("node", "meets", "node"): edges}, "static")


@pytest.mark.parametrize("exact", [False, True])
def test_labels_are_learned_with_one_answer(comm, mpi_tmp_path, exact):
    """Losses and metrics of all ranks are those of each rank alone, and get better."""
    parts = make_static_parts(comm, several, mpi_tmp_path)
    config = static_config(eval__exact=exact, train__lr=0.05, model__dropout=0.0)
    found = []
    for communicator in (comm, MPI.COMM_SELF):
        trainer = open_graph_trainer(communicator, parts, mpi_tmp_path, config)
        session, losses = trainer.session, []
        for epoch in range(4):
            trainer.start_epoch(epoch)
            with session.plans("train", epoch) as plans:
                losses += [trainer.train_step(plan)[0] for plan in plans]
        found.append(losses + list(split_metrics(session, "test", session.scores("test")).values()))
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert session.goal.metric_names() == class_metric_names(5, several=True)
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3])
    assert "4 classes, several a node" in session.goal.describe()


@pytest.mark.parametrize("weights", [[], [1.0, 2.0, 0.0, 0.5]])
def test_the_loss_is_a_mean_over_nodes_and_classes(comm, mpi_tmp_path, weights):
    """Of each node, its unknown labels count 0."""
    parts = make_static_parts(comm, several, mpi_tmp_path)
    config = static_config(
        sampling__fanouts=[-1, -1], model__dropout=0.0, train__batch_size=1000, task__class_weights=weights
    )
    session = open_graph_session(comm, parts, config)
    pool, output = session.goal.pools["train"], infer(session)
    place = pool.columns["id"] - session.partition.book.of_type(0).starts[comm.rank]
    label = torch.from_numpy(pool.columns["label"]).double()
    weight = (label >= 0) * torch.tensor(weights or [1.0], dtype=torch.float64)
    loss = binary_cross_entropy_with_logits(output[place], label.clamp(min=0), reduction="none")
    expected = (loss * weight).sum() / CLASSES / pool.total
    plan = session.loaders["train"].samplers[0].plan(session.batches["train"], 0, 0)
    found = session.world.total(float(session.task.train(plan)))
    assert found == pytest.approx(session.world.total(float(expected)), rel=1e-9)


def test_predictions_name_no_class(comm, mpi_tmp_path):
    session = open_graph_session(comm, make_static_parts(comm, several, mpi_tmp_path), static_config())
    columns = predict_nodes(session).columns
    assert list(columns) == ["node", "output"]
    assert columns["output"].shape[1] == CLASSES


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("unknown", [-1, np.nan])
def test_unknown_labels_are_left_out_one_by_one(comm, mpi_tmp_path, unknown, exact):
    """Metrics of a run are scikit-learn's for each label, of the nodes whose label is known."""

    def make(path):
        several(path)
        with h5py.File(path, "r+") as file:
            nodes = file["nodes/node"]
            label = nodes["label"][()].astype(float)
            del nodes["label"]
            label[label == -1] = unknown
            label[:, 3] = np.where(label[:, 3] == 1, 1, unknown)  # nobody is known to lack it
            nodes["label"] = label if np.isnan(unknown) else label.astype(np.int64)

    parts = make_static_parts(comm, make, mpi_tmp_path)
    config = static_config(sampling__fanouts=[-1, -1], model__dropout=0.0, eval__exact=exact)
    session = open_graph_session(comm, parts, config)
    found = split_metrics(session, "test", session.scores("test"))
    output = predict_nodes(session).slab("output", 0, session.world)
    if comm.rank:
        return
    with h5py.File(parts.parent / "graph.h5") as file:
        label, split = (file[f"nodes/node/{name}"][()] for name in ("label", "split"))
    count = int((~(label >= 0) & (label >= 0).any(axis=1, keepdims=True)).sum())
    assert f"{count} single labels are unknown" in session.goal.describe()
    assert list(found) == list(class_metric_names(CLASSES, several=True))
    output, label = output[split == 2].astype(np.float32), label[split == 2]
    known = [column >= 0 for column in label.T]
    for name, score in (("macro_ap", average_precision_score), ("macro_auc", roc_auc_score)):
        each = [score(label[known[at], at], output[known[at], at]) for at in range(3)]
        assert found[name] == pytest.approx(np.mean(each), rel=1e-9)
    flat = label >= 0
    assert found["micro_f1"] == pytest.approx(f1_score(label[flat], output[flat] > 0), rel=1e-9)
    chosen = np.zeros(label.shape, bool)
    for row, values in enumerate(output):
        best = sorted(np.flatnonzero(flat[row]), key=lambda at: -values[at])
        chosen[row, best[: int((label[row] == 1).sum())]] = True
    assert found["micro_f1_topk"] == pytest.approx(f1_score(label[flat], chosen[flat]), rel=1e-9)


def test_metrics_are_those_of_one_rank(comm):
    """With a class that nobody has or gets; and nothing to measure."""
    world = World(CommConfig(device="cpu", threads=1), comm)
    rng = np.random.default_rng(7)
    output, labels = rng.standard_normal((200, 5)), rng.integers(0, 2, (200, 5))
    output[:, 4], labels[:, 4] = -9, 0
    mine = slice(200 * comm.rank // comm.size, 200 * (comm.rank + 1) // comm.size)
    found = class_metrics(output[mine], labels[mine], world)
    known = np.zeros_like(labels)
    for row, count in enumerate(labels.sum(axis=1)):
        known[row, np.argsort(-output[row])[:count]] = 1
    for suffix, chosen in (("", output > 0), ("_topk", known)):
        assert found["micro_f1" + suffix] == pytest.approx(f1_score(labels, chosen, average="micro"), rel=1e-12)
        macro = f1_score(labels[:, :4], chosen[:, :4], average="macro")
        assert found["macro_f1" + suffix] == pytest.approx(macro, rel=1e-12)
    assert np.isnan(list(class_metrics(output[:0], labels[:0], world).values())).all()


def test_labels_that_cannot_be_used_are_refused(comm, mpi_tmp_path):
    parts = make_static_parts(comm, lambda path: several(path, largest=2), mpi_tmp_path)
    with pytest.raises(DistributedError, match=r"labels in rows are 0 and 1, found 2"):
        open_graph_session(comm, parts, static_config())
    columns = {"label": np.array([[0, 1], [1, -1]]), "split": np.zeros(2)}
    with pytest.raises(ValueError, match=r"labels of 2 columns, but task.classes = 3"):
        node_labels(columns, "node", 3)
    assert has_label(node_labels(columns, "node", 2)[0]).tolist() == [True, True]
    columns["label"] = np.array([[np.nan, np.nan], [0.5, 1]])
    with pytest.raises(ValueError, match=r"labels in rows are 0 and 1, found 0\.5"):
        node_labels(columns, "node", 2)
    columns["label"][1, 0] = 0
    labels = node_labels(columns, "node", 2)[0]
    assert labels.tolist() == [[-1, -1], [0, 1]]
    assert has_label(labels).tolist() == [False, True]


NODES, EDGES = 120, 700


def prices(path, label=None):
    """Houses, whose price is a sum of their features and the mean of their neighbors' features; some are not known."""
    rng = np.random.default_rng(1)
    feat = rng.standard_normal((NODES, 4)).astype(np.float32)
    src, dst = rng.integers(0, NODES, (2, EDGES))
    degree = np.maximum(np.bincount(dst, minlength=NODES), 1)
    around = np.zeros((NODES, 4))
    np.add.at(around, dst, feat[src])
    price = feat.sum(axis=1) + (around / degree[:, None]).sum(axis=1)
    price[rng.random(NODES) < 0.1] = np.nan
    columns = {
        "feat": feat,
        "label": price if label is None else label,
        "split": (np.arange(NODES) % 4 % 3).astype(np.int8),
    }
    write_graph(path, {"house": columns}, {("house", "near", "house"): {"src": src, "dst": dst}}, "static")
    return price, columns["split"]


CONFIG = {
    "task__kind": "regression", "model__dropout": 0.0, "train__lr": 0.02, "train__epochs": 25, "eval__exact": True,
    "sampling__fanouts": [-1, -1],
}  # fmt: skip


@pytest.mark.parametrize("loss", long_but(["mse", "mae"], "mse".__eq__))
@pytest.mark.parametrize("full_graph", [False, True])
def test_numbers_are_learned_alike_on_any_number_of_ranks(comm, mpi_tmp_path, tmp_path, loss, full_graph):
    parts = make_static_parts(comm, prices, mpi_tmp_path)
    config = static_config(
        **{**CONFIG, "train__full_graph": full_graph, "task__loss": loss, "train__train_metrics": True}
    )
    on_rank_0(comm, lambda: [(mpi_tmp_path / name).mkdir() for name in ("run", "alone-0")] and None)
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path / "run", config)
    trainer.start()
    trainer.run()
    session = trainer.session
    metrics = split_metrics(session, "test", session.scores("test"))
    answers = predict_nodes(session)
    output, node = (answers.slab(name, 0, session.world) for name in ("output", "node"))
    if comm.rank:
        return
    price, split = prices(tmp_path / "again.h5")
    tested = (split == 2) & ~np.isnan(price)
    assert node.tolist() == list(range(NODES))
    error = output[tested] - price[tested]
    assert metrics["mse"] == pytest.approx(np.mean(error**2), rel=1e-9)
    assert metrics["mae"] == pytest.approx(np.mean(np.abs(error)), rel=1e-9)
    assert metrics["mse"] < 0.3 * np.var(price[tested])
    alone = reference_run(parts, mpi_tmp_path, config)
    np.testing.assert_allclose(trainer.flat.parameter.detach(), alone.flat.parameter.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (np.ones((NODES, 2)), "must be one number a node"),
        (np.full(NODES, np.inf), "has an infinite number"),
    ],
)
def test_what_is_no_number_is_refused(comm, mpi_tmp_path, label, message):
    parts = make_static_parts(comm, lambda path: prices(path, label), mpi_tmp_path)
    with pytest.raises(DistributedError, match=message):
        open_graph_session(comm, parts, static_config(**CONFIG))


def test_numbers_are_no_classes(comm, mpi_tmp_path):
    parts = make_static_parts(comm, prices, mpi_tmp_path)
    with pytest.raises(DistributedError, match=r"numbers are for task\.kind regression"):
        open_graph_session(comm, parts, static_config())
