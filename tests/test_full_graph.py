"""Passes over whole static graphs: sampling with all neighbours in one batch, on any number of ranks, killed and resumed;
what travels is what the partition says."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from random_graphs import write_graph
from static_runs import (
    bare,
    make_static_parts,
    open_graph_session,
    open_graph_trainer,
    plain,
    static_config,
    typed,
    whole_and_stopped,
)
from test_graph_training import BASIS_ROWS, assert_same_records
from test_multilabel import several

from data_tools.partition import partition
from hpcgnn.comm.world import DistributedError
from hpcgnn.run.graph_predict import predict_nodes
from hpcgnn.run.scoring import split_metrics
from hpcgnn.store.graph_partition import open_graph_partition
from training_runs import on_rank_0

EPOCHS = 3
SAMPLED = {"sampling__mode": "full", "eval__exact": True, "train__batch_size": 10_000}
DROPOUT = {"model__dropout": 0.3, "model__input_dropout": 0.2}


def ring(path):
    """A ring of 200 nodes with short and a few long ways, and 10 nodes alone: parts of it have deep, border and outer
    nodes. Labels of few nodes, in one stretch of the ring."""
    rng = np.random.default_rng(1)
    near = np.arange(200)
    src = np.concatenate([(near + step) % 200 for step in (1, 2, -1, 3)] + [rng.integers(0, 200, 10)])
    dst = np.concatenate([np.tile(near, 4), rng.integers(0, 200, 10)])
    label = rng.integers(0, 3, 210)
    split = np.full(210, -1, np.int8)
    split[:60] = rng.choice([0, 0, 1, 2], 60)
    feat = rng.standard_normal((210, 4)) + label[:, None]
    nodes = {"node": {"feat": feat.astype(np.float32), "label": label, "split": split}}
    return write_graph(path, nodes, {("node", "meets", "node"): {"src": src, "dst": dst}}, "static")


def tiny(path):
    """Three nodes, one of them alone: of four ranks, one has no node."""
    nodes = {"node": {"feat": np.eye(3, dtype=np.float32), "label": np.array([0, 1, 0]), "split": np.array([0, 1, 2], np.int8)}}
    edges = {"src": np.array([1, 0, 1]), "dst": np.array([0, 1, 1])}
    return write_graph(path, nodes, {("node", "meets", "node"): edges}, "static")


def learn(trainer, epochs: int = EPOCHS) -> list[float]:
    """Collective. Losses of the steps of some epochs, and validation's metrics after them."""
    session, losses = trainer.session, []
    for epoch in range(epochs):
        trainer.start_epoch(epoch)
        with session.plans("train", epoch) as plans:
            losses += [trainer.train_step(plan)[0] for plan in plans]
    return losses + list(split_metrics(session, "val", session.scores("val")).values())


def learnable_rows(session) -> dict[int, torch.Tensor]:
    """Collective. All learnable rows by type, in order of row in the graph file."""
    found = {}
    for kind, table in session.memory.tables.items():
        mine = session.partition.flat_row[session.partition.of_type(kind)], table.weight.numpy()
        row, weight = (np.concatenate(pieces) for pieces in zip(*session.world.allgather(mine), strict=True))
        found[kind] = torch.from_numpy(weight[np.argsort(row)])
    return found


def assert_whole_is_sampled(comm, parts, folder, changes) -> None:
    """Collective. The run over the whole graph on all ranks is the sampled run of this rank alone."""
    found = open_graph_trainer(comm, parts, folder, static_config(**changes, sampling__mode="whole"))
    layers = changes.get("model__layers", 2)
    sampled = static_config(**changes, **SAMPLED, sampling__fanouts=[-1] * layers)
    reference = open_graph_trainer(MPI.COMM_SELF, parts, folder, sampled)
    assert learn(found) == pytest.approx(learn(reference), rel=1e-9, nan_ok=True)
    close = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(found.flat.parameter.detach(), reference.flat.parameter.detach(), **close)
    torch.testing.assert_close(learnable_rows(found.session), learnable_rows(reference.session), **close)


TYPED = {
    "sage": {},
    "rgcn": {"model__kind": "rgcn", "model__bases": 2},
    "low memory": {"model__kind": "rgcn", "model__low_memory": True},
    "rgat": {"model__kind": "rgat", "model__layers": 3},
    "residual": {"model__residual": True, "model__norm": "layer", "model__feed_forward": 2},
    "residual rgat": {"model__kind": "rgat", "model__residual": True, "model__norm": "layer"},
    "embeddings of all": {"embedding__types": ["paper", "author"], "embedding__optimizer": "adagrad"},
}


@pytest.mark.parametrize("case", TYPED)
def test_of_a_typed_graph_whole_is_sampled(comm, mpi_tmp_path, case):
    parts = make_static_parts(comm, typed, mpi_tmp_path)
    assert_whole_is_sampled(comm, parts, mpi_tmp_path, DROPOUT | TYPED[case])


PLAIN = {
    "sage": {},
    "sage without input dropout": {"model__input_dropout": 0.0, "model__layers": 3},
    "sum": {"model__aggregator": "sum", "features__normalize": True},
    "max": {"model__aggregator": "max", "model__activation": "gelu", "model__norm": "layer"},
    "gcn": {"model__kind": "gcn", "model__layers": 3},
    "gcn without loops": {"model__kind": "gcn", "model__self_loop": False},
    "gat": {"model__kind": "gat"},
    "residual gat": {"model__kind": "gat", "model__residual": True, "model__norm": "layer"},
    "residual": {"model__residual": True, "model__feed_forward": 1},
    "embeddings": {"embedding__types": ["node"]},
}


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("make", [plain, ring])
def test_of_a_graph_of_one_type_whole_is_sampled(comm, mpi_tmp_path, case, make):
    method = "metis" if make is ring else "random"
    parts = make_static_parts(comm, make, mpi_tmp_path, method=method)
    assert_whole_is_sampled(comm, parts, mpi_tmp_path, DROPOUT | PLAIN[case])


@pytest.mark.parametrize("case", ["rows of bases", "several labels", "tiny", "out"])
def test_of_other_graphs_too(comm, mpi_tmp_path, case):
    changes, options = {}, {}
    if case == "rows of bases":
        make, changes = bare, BASIS_ROWS
    elif case == "out":
        make, changes, options = typed, {"sampling__direction": "out"}, {"out_edges": True}
    else:
        make = several if case == "several labels" else tiny
    parts = make_static_parts(comm, make, mpi_tmp_path, parts=4, **options)
    assert_whole_is_sampled(comm, parts, mpi_tmp_path, changes)
