"""GATv2: outputs are those of PyTorch Geometric's GATv2Conv, with and without features of edges."""

from __future__ import annotations

import pytest
import torch
from static_runs import make_static_parts, open_graph_session, static_config
from test_edge_features import WIDTH, featured, graph  # noqa: F401
from test_edge_weights import outputs
from test_graph_training import run_both

GATV2 = {"model__kind": "gatv2"}
FEATURES = {"model__edge_features": True}
CASES = {
    "rows": {}, "without loops": {"model__self_loop": False}, "features": FEATURES | {"model__heads": 4},
    "features without loops": FEATURES | {"model__self_loop": False},
}  # fmt: skip


def by_pyg(model, config, rows, index, feature) -> torch.Tensor:
    """Outputs of a model's weights by GATv2Conv."""
    geometric = pytest.importorskip("torch_geometric.nn")
    for number, layer in enumerate(model.layers):
        (heads, width), last = layer.attention.shape, number + 1 == len(model.layers)
        edge_dim = WIDTH if config.edge_features else None
        conv = geometric.GATv2Conv(
            rows.shape[1], width, heads, concat=not last, edge_dim=edge_dim, add_self_loops=config.self_loop
        ).double()
        conv.lin_l, conv.lin_r, conv.bias, conv.att.data = layer.source, layer.target, layer.bias, layer.attention[None]
        if edge_dim:
            conv.lin_edge.weight.data = layer.edge.t()
        rows = conv(rows, index, feature if edge_dim else None)
        rows = rows if last else torch.relu(rows)
    return rows.detach()


@pytest.mark.parametrize("full_graph", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_pyg(comm, mpi_tmp_path, graph, case, full_graph):  # noqa: F811
    """With biases that are not 0, as they start."""
    parts = make_static_parts(comm, featured, mpi_tmp_path)
    config = static_config(train__full_graph=full_graph, **GATV2, **CASES[case])
    session = open_graph_session(comm, parts, config)
    for layer in session.model.layers:
        for bias in (layer.source.bias, layer.target.bias, layer.bias):
            bias.data.copy_(torch.linspace(-1, 1, len(bias)))
    found = outputs(session)
    if comm.rank == 0:
        expected = by_pyg(session.model, config.model, *graph[:3])
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    session.close()


@pytest.mark.parametrize(
    "changes", [{}, {"train__full_graph": True}, {"model__residual": True, "model__norm": "layer"}]
)
def test_training_is_the_same_on_any_number_of_ranks(comm, mpi_tmp_path, changes):
    parts = make_static_parts(comm, featured, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(**GATV2, **FEATURES, **changes))


def test_edge_weights_are_refused():
    with pytest.raises(ValueError, match=r"for model\.kind .*, not for gatv2: .* feat, and set model\.edge_features"):
        static_config(model__edge_weights=True, **GATV2)
