"""GIN: outputs are those of PyTorch Geometric's GINConv and GINEConv, sampled or whole, on any number of ranks."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from static_runs import make_static_parts, open_graph_session, static_config
from test_edge_features import WIDTH, featured
from test_edge_weights import outputs
from test_graph_training import run_both
from torch import nn

GIN = {"model__kind": "gin"}
CASES = {
    "rows": {}, "features": {"model__edge_features": True},
    "both": {"model__edge_features": True, "model__edge_weights": True},
}  # fmt: skip


def by_pyg(layers, rows, index, feature, weight) -> torch.Tensor:
    """Outputs of layers by GINConv, or with features by GINEConv, whose messages a weight multiplies."""
    geometric = pytest.importorskip("torch_geometric.nn")
    for number, layer in enumerate(layers):
        products = nn.Sequential(layer.widen, nn.ReLU(), layer.product)
        new = deepcopy(products)  # a convolution of PyTorch Geometric draws the weights of its products anew
        if layer.edge is None:
            conv, options = geometric.GINConv(new, eps=layer.eps.item()), {}
        else:
            conv = geometric.GINEConv(new, eps=layer.eps.item(), edge_dim=WIDTH)
            conv.lin, options = layer.edge, {"edge_attr": feature}
            if weight is not None:
                conv.register_message_forward_hook(lambda _, __, messages: messages * weight.unsqueeze(1))
        conv.nn = products
        rows = conv(rows, index, **options)
        rows = torch.relu(rows) if number + 1 < len(layers) else rows
    return rows.detach()


@pytest.mark.parametrize(("case", "precision"), [("rows", "float32"), ("features", "float32"), ("both", "float64")])
def test_outputs_are_those_of_pyg(comm, mpi_tmp_path, case, precision):
    parts = make_static_parts(comm, featured, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(train__precision=precision, **GIN, **CASES[case]))
    for number, layer in enumerate(session.model.layers):
        layer.eps.data.fill_(0.25 + number)
    found = outputs(session)
    if comm.rank == 0:
        _, feat, edges = featured(mpi_tmp_path / "again.h5")
        (columns,) = edges.values()
        index = torch.from_numpy(np.stack([columns["src"], columns["dst"]]))
        given = feat, columns["feat"], columns["weight"]
        rows, feature, weight = (torch.from_numpy(values).to(found.dtype) for values in given)
        expected = by_pyg(session.model.layers, rows, index, feature, weight if case == "both" else None)
        close = {"rtol": 1e-9, "atol": 1e-11} if precision == "float64" else {"rtol": 1e-6, "atol": 2e-6}
        torch.testing.assert_close(found, expected, **close)
    session.close()


@pytest.mark.parametrize("full_graph", [False, True])
def test_training_is_the_same_on_any_number_of_ranks(comm, mpi_tmp_path, full_graph):
    parts = make_static_parts(comm, featured, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(train__full_graph=full_graph, **GIN, **CASES["both"]))
