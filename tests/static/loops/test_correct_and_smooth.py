"""Correct and Smooth against PyTorch Geometric, on any number of ranks; it reads training labels alone."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from static_runs import make_static_parts, open_graph_session, plain, static_config, typed
from torch_geometric.nn import CorrectAndSmooth

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.session import split_metrics
from hpcgnn.static.inference import infer
from hpcgnn.static.predict import predict_nodes

OF_PAPERS = ["paper.cites.paper", "author.writes.paper"]
CASES = {
    "plain": (plain, {}), "weighted": (plain, {"model__kind": "sage", "model__edge_weights": True}),
    "typed": (typed, {}), "chosen": (typed, {"eval__smooth_relations": OF_PAPERS, "eval__smooth_alpha": 0.6}),
    "whole": (typed, {"train__full_graph": True, "sampling__fanouts": []}),
}  # fmt: skip


def config_of(**changes):
    usual = {"eval__correct_and_smooth": True, "eval__exact": True, "eval__smooth_steps": 5, "eval__correct_alpha": 0.7}
    return static_config(**usual | changes)


def of_pyg(path, config, shares: torch.Tensor) -> torch.Tensor:
    """Shares [n, C] of all nodes of a graph file, type by type; only rows of the labeled type are not 0."""
    with h5py.File(path) as file:
        types = sorted(file["nodes"], key=lambda name: file[f"nodes/{name}"].attrs["type_id"])
        sizes = [file[f"nodes/{name}"].attrs["num_nodes"] for name in types]
        start = dict(zip(types, np.cumsum([0, *sizes]), strict=False))
        ends, weights = [], []
        for name in config.eval.smooth_relations or file["edges"]:
            src, _, dst = name.split(".")
            edges = file[f"edges/{name}"]
            ends.append(np.stack([edges["src"][:] + start[src], edges["dst"][:] + start[dst]]))
            weights.append(edges["weight"][:] if config.model.edge_weights else np.ones(len(edges["src"])))
        (labeled,) = (name for name in types if "label" in file[f"nodes/{name}"])
        label, split = (torch.from_numpy(file[f"nodes/{labeled}/{name}"][:]) for name in ("label", "split"))
    index, weight = torch.from_numpy(np.concatenate(ends, 1)), torch.from_numpy(np.concatenate(weights)).double()
    degree = torch.zeros(len(shares), dtype=torch.float64).index_add(0, index[1], weight)
    scale = torch.where(degree > 0, degree, 1.0 if not config.model.edge_weights else torch.inf).rsqrt()
    weight = weight * scale[index[0]] * scale[index[1]]
    train = torch.zeros(len(shares), dtype=torch.bool)
    train[start[labeled] : start[labeled] + len(split)] = split == 0
    steps, options = config.eval.smooth_steps, config.eval
    reference = CorrectAndSmooth(steps, options.correct_alpha, steps, options.smooth_alpha)
    return reference(shares, label.long()[split == 0], train, index, weight)


def softmax_of_papers(session, outputs):
    """Shares of the nodes of the labeled type, zeros elsewhere."""
    nodes, shares = session.partition.of_type(session.goal.node_type), torch.zeros_like(outputs)
    shares[nodes] = outputs[nodes].softmax(1)
    return shares


@pytest.mark.parametrize("case", CASES)
def test_shares_are_those_of_pyg(comm, mpi_tmp_path, case):
    """Of all nodes on any number of ranks; and the metrics and predictions are made of them."""
    make, changes = CASES[case]
    parts, config = make_static_parts(comm, make, mpi_tmp_path), config_of(**changes)
    session, alone = (open_graph_session(each, parts, config) for each in (comm, MPI.COMM_SELF))
    found, correct, alone.goal.correct = infer(session).exp(), alone.goal.correct, None
    raw = infer(alone)
    order = np.argsort(alone.partition.flat_row)
    shares = of_pyg(mpi_tmp_path / "graph.h5", config, softmax_of_papers(alone, raw)[order])
    np.testing.assert_allclose(found, shares[session.partition.flat_row], rtol=1e-9, atol=1e-12)
    assert (correct(raw).argmax(1) != raw.argmax(1)).any()
    nodes, pool = predict_nodes(session), alone.goal.pools["val"]
    first = int(alone.partition.type_start[alone.goal.node_type])
    rows = alone.partition.flat_row[pool.columns["id"]]
    accuracy = (shares[rows].argmax(1).numpy() == pool.columns["label"]).mean()
    assert split_metrics(session, "val", session.scores("val"))["accuracy"] == pytest.approx(accuracy, abs=1e-12)
    np.testing.assert_array_equal(nodes.columns["class"], shares[first + nodes.row].argmax(1))


def other_labels(path):
    """The plain graph, whose labels of validation and test are others."""
    with h5py.File(plain(path), "r+") as file:
        label, split = file["nodes/node/label"][:], file["nodes/node/split"][:]
        file["nodes/node/label"][...] = np.where(split > 0, 3 - label, label)
    return path


def test_only_training_labels_are_read(comm, mpi_tmp_path):
    found = []
    for make in (plain, other_labels):
        session = open_graph_session(comm, make_static_parts(comm, make, mpi_tmp_path / make.__name__), config_of())
        found.append(infer(session))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_what_does_not_go_with_it_is_refused(comm, mpi_tmp_path):
    for changes, message in (
        ({"eval__exact": False}, "needs the outputs of all nodes"), ({"eval__train_split": True}, "eval.train_split"),
        ({"task__kind": "regression"}, "is for task.kind node"), ({"eval__smooth_steps": 0}, "at least 1"),
        ({"eval__smooth_alpha": 1.0}, "between 0 and 1"),
        ({"baseline__kind": "label_propagation"}, "leave out eval.correct_and_smooth"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            config_of(**changes)
    parts = make_static_parts(comm, typed, mpi_tmp_path)
    with pytest.raises(DistributedError, match=r"eval.smooth_relations: no relation paper.likes.paper; the graph has"):
        open_graph_session(comm, parts, config_of(eval__smooth_relations=["paper.likes.paper"]))
