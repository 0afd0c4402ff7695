"""Models that reach far: GCNII, and features propagated before training (SIGN, SSGC), as PyTorch Geometric and plain
products compute them, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from static_runs import make_static_parts, open_graph_session, static_config
from test_edge_features import featured
from test_edge_weights import outputs
from test_graph_training import run_both

from hpcgnn.comm.world import DistributedError

DEEP = {"model__kind": "gcn2", "model__initial_ratio": 0.3, "model__identity_decay": 0.7}
ALL = {"model__kind": "mlp", "sampling__fanouts": [0, 0], "features__hops": 3, "features__normalize": True}
MEAN = ALL | {"features__hop_rows": "mean", "features__own_ratio": 0.25}
CASES = {
    "gcn2": DEEP, "gcn2 weighted": DEEP | {"model__edge_weights": True}, "all hops": ALL, "mean of hops": MEAN,
    "weighted mean": MEAN | {"model__kind": "gcn", "sampling__fanouts": [-1, -1], "model__edge_weights": True},
}  # fmt: skip


def propagation(index: np.ndarray, weight: np.ndarray, nodes: int) -> np.ndarray:
    """The matrix of a hop: weights of edges, loops of weight 1, each over the root of the product of both degrees."""
    matrix = np.eye(nodes)
    np.add.at(matrix, (index[1], index[0]), weight)
    root = 1 / np.sqrt(matrix.sum(1))
    return root[:, None] * matrix * root


def plain(session, feat: np.ndarray, hop: np.ndarray) -> np.ndarray:
    """Outputs of the session's weights by dense products in NumPy."""
    config, model = session.config, session.model
    if config.model.kind == "gcn2":
        pairs = [model.input.products[0], model.output]
        (first, start), (last, end) = ((p.weight.detach().numpy().T, p.bias.detach().numpy()) for p in pairs)
        rows = kept = np.maximum(feat @ first + start, 0)
        for number, layer in enumerate(model.layers):
            beta = np.log(0.7 / (number + 1) + 1)
            mixed = 0.7 * hop @ rows + 0.3 * kept
            rows = np.maximum((1 - beta) * mixed + beta * mixed @ layer.weight.detach().numpy(), 0)
        return rows @ last + end
    rows = feat / np.abs(feat).sum(1, keepdims=True)
    hops = [np.linalg.matrix_power(hop, power) @ rows for power in (1, 2, 3)]
    rows = np.hstack([rows, *hops]) if config.features.hop_rows == "all" else 0.75 * sum(hops) / 3 + 0.25 * rows
    for number, layer in enumerate(model.layers):
        if config.model.kind == "mlp":
            rows = rows @ layer.own.weight[0].detach().numpy() + layer.own.bias.detach().numpy()
        else:
            rows = hop @ rows @ layer.product.weight.detach().numpy().T + layer.product.bias.detach().numpy()
        rows = np.maximum(rows, 0) if number == 0 else rows
    return rows


def open_case(comm, folder, **overrides):
    parts = make_static_parts(comm, featured, folder)
    return parts, static_config(train__precision="float64", **overrides)


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_dense_products(comm, mpi_tmp_path, case):
    parts, config = open_case(comm, mpi_tmp_path, **CASES[case])
    session = open_graph_session(comm, parts, config)
    found = outputs(session)
    if comm.rank == 0:
        _, feat, edges = featured(mpi_tmp_path / "again.h5")
        (columns,) = edges.values()
        index = np.stack([columns["src"], columns["dst"]])
        weight = columns["weight"] if config.model.edge_weights else np.ones(len(index[0]))
        expected = plain(session, feat.astype(np.float64), propagation(index, weight, len(feat)))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-11)
    session.close()


@pytest.mark.parametrize("weighted", [False, True])
def test_layers_are_those_of_pyg(comm, mpi_tmp_path, weighted):
    """GCN2Conv, in float32."""
    nn = pytest.importorskip("torch_geometric.nn")
    parts = make_static_parts(comm, featured, mpi_tmp_path)
    config = static_config(train__precision="float32", model__edge_weights=weighted, **DEEP)
    session = open_graph_session(comm, parts, config)
    found = outputs(session)
    if comm.rank == 0:
        _, feat, edges = featured(mpi_tmp_path / "again.h5")
        (columns,) = edges.values()
        index = torch.from_numpy(np.stack([columns["src"], columns["dst"]]))
        weight = torch.from_numpy(columns["weight"]).float() if weighted else None
        with torch.no_grad():
            rows = kept = torch.relu(session.model.input.products[0](torch.from_numpy(feat)))
            for number, layer in enumerate(session.model.layers):
                conv = nn.GCN2Conv(rows.shape[1], alpha=0.3, theta=0.7, layer=number + 1)
                conv.weight1.data = layer.weight.data
                rows = torch.relu(conv(rows.clone(), kept.clone(), index, weight))
            torch.testing.assert_close(found, session.model.output(rows), rtol=1e-5, atol=2e-6)
    session.close()


TRAINED = {
    "gcn2": DEEP | {"model__dropout": 0.5, "model__input_dropout": 0.2},
    "gcn2 whole": DEEP | {"train__full_graph": True},
    "mean of hops": MEAN | {"model__dropout": 0.5}, "all hops whole": ALL | {"train__full_graph": True},
    "all hops dropped": ALL | {"model__input_dropout": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("case", TRAINED)
def test_training_is_the_same_on_any_number_of_ranks(comm, mpi_tmp_path, case):
    parts, config = open_case(comm, mpi_tmp_path, **TRAINED[case])
    run_both(comm, parts, mpi_tmp_path, config)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({**DEEP, "model__residual": True}, "model.kind gcn2 has its own residual"),
        ({**ALL, "features__hops": -1}, "features.hops must be at least 0"),
        ({**ALL, "features__storage": "file"}, "features.storage file: propagated features lie in memory"),
        ({**ALL, "features__own_ratio": 0.5}, "features.own_ratio needs features.hops and features.hop_rows mean"),
        ({**ALL, "task__kind": "link"}, "features.hops: propagated features would hold the edges that are learned"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        static_config(**overrides)


def test_features_of_typed_graphs_are_not_propagated(comm, mpi_tmp_path):
    parts = make_static_parts(comm, lambda path: featured(path, (2, 2)), mpi_tmp_path)
    with pytest.raises(DistributedError, match=r"features\.hops is for graphs of one node type and one relation"):
        open_graph_session(comm, parts, static_config(**ALL))
