"""Numbers of nodes: learned alike on any number of ranks; predictions give the errors that evaluation reports."""

from __future__ import annotations

import numpy as np
import pytest
from random_graphs import write_graph
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, reference_run, static_config
from training_runs import on_rank_0

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.session import split_metrics
from hpcgnn.static.predict import predict_nodes

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


@pytest.mark.parametrize("loss", ["mse", "mae"])
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
