"""Batch normalization of static graphs: that of torch over all nodes, on any number of ranks, and resumed."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from graph_batches import input_rows, random_graph, sample_batch
from mpi4py import MPI
from static_runs import make_static_parts, open_graph_trainer, static_config, typed, whole_and_stopped
from test_full_graph import assert_whole_is_sampled, learn, learnable_rows, ring, tiny
from test_graph_training import assert_same_records
from torch.nn import functional

from hpcgnn.loop import checkpoint
from hpcgnn.static.config import GraphModelConfig
from hpcgnn.static.model.models import GraphSizes, make_model
from hpcgnn.static.predict import predict_nodes

NORMED = {
    "train__full_graph": True, "model__norm": "batch", "model__linear_skip": True, "model__input_layer": True,
    "model__output_layer": "activated",
}  # fmt: skip
# A bias before batch normalization has no gradient, and Adam divides what rounding leaves of it by its size.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def rows_of(path):
    """Features, labels, split, and the adjacency with loops, normalized by the degrees of both ends."""
    with h5py.File(path) as file:
        nodes, edges = file["nodes/node"], file["edges/node.meets.node"]
        matrix = torch.eye(len(nodes["label"]), dtype=torch.float64)
        ends = [torch.from_numpy(edges[name][:]).long() for name in ("dst", "src")]
        matrix.index_put_(tuple(ends), torch.ones(len(ends[0]), dtype=torch.float64), accumulate=True)
        feat, label, split = (torch.from_numpy(nodes[name][:]) for name in ("feat", "label", "split"))
    scale = matrix.sum(1).rsqrt()
    return feat.double(), label.long(), split, scale[:, None] * matrix * scale


class Tuned(torch.nn.Module):
    """Two convolutions with skips, the batch normalization of torch and both linear layers, in plain torch."""

    def __init__(self, weights: dict[str, torch.Tensor]):
        super().__init__()
        self.p = torch.nn.ParameterDict({name.replace(".", "_"): value.clone() for name, value in weights.items()})
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(8, dtype=torch.float64) for _ in range(2))

    def forward(self, adjacency, rows):
        p = self.p
        rows = functional.linear(rows, p["input_products_0_weight"], p["input_products_0_bias"])
        for number, norm in enumerate(self.norms):
            around = functional.linear(adjacency @ rows, p[f"layers_{number}_product_weight"])
            own = rows @ p[f"skips_{number}_weight"][0] + p[f"skips_{number}_bias"]
            rows = torch.relu(norm(around + p[f"layers_{number}_product_bias"] + own))
        return functional.linear(rows, p["output_weight"], p["output_bias"])


def test_training_and_outputs_are_those_of_torch(comm, mpi_tmp_path):
    """Three epochs of Adam; then outputs by the running statistics."""
    parts = make_static_parts(comm, ring, mpi_tmp_path, method="metis")
    config = static_config(**NORMED, model__kind="gcn", model__dropout=0.0, train__lr=0.02)
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, config)
    session = trainer.session
    feat, label, split, adjacency = rows_of(mpi_tmp_path / "graph.h5")
    model = Tuned({name: value for name, value in session.model.named_parameters() if "norm" not in name})
    optimizer, losses, train = torch.optim.Adam(model.parameters(), 0.02), [], split == 0
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(functional.cross_entropy(model(adjacency, feat)[train], label[train]))
        losses[-1].backward()
        optimizer.step()
    assert learn(trainer, 3)[:3] == pytest.approx([loss.item() for loss in losses], rel=1e-9)
    nodes = predict_nodes(session)
    expected = model.eval()(adjacency, feat).detach().numpy()
    np.testing.assert_allclose(nodes.columns["output"], expected[nodes.row], rtol=1e-8, atol=1e-10)


CASES = {
    "typed": (typed, {}), "attention": (typed, {"model__kind": "rgat", "model__layers": 3}),
    "outputs by a layer": (typed, {"model__output_layer": "none", "model__input_layer": False}),
    "ring": (ring, {"model__kind": "gcn"}), "tiny": (tiny, {"model__kind": "gat"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_ranks_give_one_answer(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path, parts=4)
    config = static_config(**NORMED | changes | {"model__input_dropout": 0.2})
    found, alone = (open_graph_trainer(each, parts, mpi_tmp_path, config) for each in (comm, MPI.COMM_SELF))
    assert learn(found) == pytest.approx(learn(alone), rel=1e-9, nan_ok=True)
    torch.testing.assert_close(found.flat.parameter.detach(), alone.flat.parameter.detach(), **CLOSE)
    torch.testing.assert_close(learnable_rows(found.session), learnable_rows(alone.session), **CLOSE)
    buffers = [checkpoint.buffers_of(trainer.session.model) for trainer in (found, alone)]
    torch.testing.assert_close(*buffers, **CLOSE)
    assert sum("variance" in name for name in buffers[0]) == config.model.layers - (config.model.output_layer == "none")


@pytest.mark.parametrize("changes", [{}, {"model__kind": "rgat"}, {"model__linear_skip": True, "model__norm": "layer"}])
def test_linear_layers_at_both_ends_give_what_sampling_gives(comm, mpi_tmp_path, changes):
    """Dropout of their rows is keyed by nodes, too."""
    parts = make_static_parts(comm, typed, mpi_tmp_path)
    ends = {"model__input_layer": True, "model__output_layer": "activated", "model__dropout": 0.3}
    assert_whole_is_sampled(comm, parts, mpi_tmp_path, ends | changes)


def test_a_run_resumes_with_its_running_statistics(comm, mpi_tmp_path):
    parts = make_static_parts(comm, ring, mpi_tmp_path)
    config = static_config(**NORMED, train__epochs=4, train__lr=0.05)
    trainer, whole, broken = whole_and_stopped(comm, parts, mpi_tmp_path, config, 3)
    second = open_graph_trainer(comm, parts, broken, config)
    second.resume()
    assert 0 < second.progress.global_step < 4
    second.run()
    buffers = [checkpoint.buffers_of(each.session.model) for each in (second, trainer)]
    torch.testing.assert_close(*buffers, rtol=0, atol=0)
    assert any((value != value.round()).any() for value in buffers[0].values())
    torch.testing.assert_close(second.flat.parameter, trainer.flat.parameter, rtol=0, atol=0)
    if comm.rank == 0:
        assert_same_records(broken, whole)


@pytest.mark.serial
def test_mini_batches_have_no_moments_of_all_nodes():
    """Refused in training; in evaluation rows are normalized one by one."""
    with pytest.raises(ValueError, match=r"model.norm batch takes means over all nodes: set train.full_graph true"):
        static_config(model__norm="batch")
    graph = random_graph(np.random.default_rng(1), (30,), ((0, 0),), 4)
    model = make_model(GraphModelConfig(kind="gcn", layers=2, hidden=4, norm="batch"), GraphSizes((5,), ((0, 0),), 3))
    batch = sample_batch(graph, [np.arange(6)], (3, 2))
    rows = input_rows(graph, batch, [torch.randn(30, 5)])
    with pytest.raises(ValueError, match=r"model.norm batch is of all nodes, not of a mini-batch"):
        model(batch, rows)
    assert torch.isfinite(model.eval()(batch, rows)[0]).all()


@pytest.mark.serial
@pytest.mark.parametrize("keys", [{"norm": "batch"}, {"input_layer": True}, {"output_layer": "activated"}])
@pytest.mark.parametrize("other", [{"residual": True}, {"kind": "gcn2"}, {"kind": "han"}, {"kind": "lightgcn"}])
def test_models_of_other_parts_are_refused(keys, other):
    with pytest.raises(ValueError, match=r"does not go with model\.|own residual|nothing between its layers"):
        GraphModelConfig(layers=2, **keys, **other)
