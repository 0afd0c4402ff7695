"""Edge weights multiply messages: outputs are those of PyTorch Geometric's layers, sampled or whole, on any number of
ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_graphs import write_graph
from static_runs import make_static_parts, open_graph_session, static_config
from test_graph_training import run_both

from hpcgnn.comm.world import DistributedError
from hpcgnn.static.inference import infer

NODES, EDGES = 60, 240


def weighted(path, relations: int = 1, seed: int = 2, least: float = 0.0):
    """One node type; weights from 0 on, some of them 0; of several relations the last has none."""
    rng = np.random.default_rng(seed)
    feat = rng.standard_normal((NODES, 5)).astype(np.float32)
    split = rng.choice([0, 0, 1, 2], NODES).astype(np.int8)
    nodes = {"node": {"feat": feat, "label": rng.integers(0, 3, NODES), "split": split}}
    edges = {}
    for number in range(relations):
        dst = rng.integers(0, NODES - 5, EDGES)  # no loops: PyTorch Geometric adds none where there is one
        columns = {"src": (dst + rng.integers(1, NODES, EDGES)) % NODES, "dst": dst}
        if number == 0 or number + 1 < relations:
            columns["weight"] = np.where(rng.random(EDGES) < 0.1, least, rng.random(EDGES) * 3)
        edges["node", f"r{number}", "node"] = columns
    return write_graph(path, nodes, edges, "static"), feat, edges


@pytest.fixture
def graph(tmp_path):
    """Features and edges of the graph with one relation, as tensors."""
    _, feat, edges = weighted(tmp_path / "g.h5")
    (columns,) = edges.values()
    index = torch.from_numpy(np.stack([columns["src"], columns["dst"]]))
    return torch.from_numpy(feat).double(), index, torch.from_numpy(columns["weight"]).double()


def outputs(session) -> torch.Tensor | None:
    """Collective. Outputs of all nodes in order of the graph file, on rank 0."""
    rows, values = (
        session.world.gather_rows(session.partition.flat_row),
        session.world.gather_rows(infer(session).numpy()),
    )
    return None if rows is None else torch.from_numpy(values[np.argsort(rows)])


MODELS = {
    "gcn": {"model__kind": "gcn"}, "gcn without loops": {"model__kind": "gcn", "model__self_loop": False},
    "mean": {"model__kind": "sage"}, "sum": {"model__kind": "sage", "model__aggregator": "sum"},
}  # fmt: skip


def by_pyg(session, rows, index, weight) -> torch.Tensor:
    """Outputs of the session's weights by PyTorch Geometric's GCNConv, and by its aggregations of weighted messages."""
    nn = pytest.importorskip("torch_geometric.nn")
    model, config = session.model, session.config.model
    for number, layer in enumerate(model.layers):
        product = layer.product
        if config.kind == "gcn":
            conv = nn.GCNConv(*reversed(product.weight.shape), add_self_loops=config.self_loop).double()
            conv.lin.weight.data, conv.bias.data = product.weight.data, product.bias.data
            rows = conv(rows, index, weight)
        else:
            total = nn.SimpleConv(aggr="sum")(rows, index, weight)
            if config.aggregator == "mean":
                share = torch.zeros(len(rows)).double().index_add_(0, index[1], weight)
                total = total / torch.where(share > 0, share, 1.0).unsqueeze(1)
            rows = product(torch.cat([rows, total], 1))
        rows = torch.relu(rows) if number + 1 < len(model.layers) else rows
    return rows.detach()


@pytest.mark.parametrize("full_graph", [False, True])
@pytest.mark.parametrize("case", MODELS)
def test_outputs_are_those_of_pyg(comm, mpi_tmp_path, graph, case, full_graph):
    parts = make_static_parts(comm, weighted, mpi_tmp_path)
    config = static_config(model__edge_weights=True, train__full_graph=full_graph, **MODELS[case])
    session = open_graph_session(comm, parts, config)
    found = outputs(session)
    if comm.rank == 0:
        torch.testing.assert_close(found, by_pyg(session, *graph), rtol=1e-9, atol=1e-11)
    session.close()


@pytest.mark.parametrize("case", [*MODELS, "rgcn"])
def test_training_is_the_same_on_any_number_of_ranks(comm, mpi_tmp_path, case):
    relations, changes = (3, {"model__kind": "rgcn"}) if case == "rgcn" else (1, MODELS[case])
    parts = make_static_parts(comm, lambda path: weighted(path, relations), mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(model__edge_weights=True, **changes))


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "rgcn"])
def test_all_neighbors_as_a_sample_give_the_exact_outputs(comm, mpi_tmp_path, kind):
    """Scores of evaluation with fanouts of all neighbors are those of exact inference."""
    relations = 3 if kind == "rgcn" else 1
    parts, scores = make_static_parts(comm, lambda path: weighted(path, relations), mpi_tmp_path), []
    for exact in (False, True):
        config = static_config(
            model__edge_weights=True, model__kind=kind, sampling__fanouts=[-1, -1], eval__exact=exact
        )  # fmt: skip
        session = open_graph_session(comm, parts, config)
        columns = session.scores("test").columns()
        scores.append(np.sort(np.concatenate(comm.allgather(columns["output"].ravel()))))
        session.close()
    np.testing.assert_allclose(*scores, rtol=1e-9)


@pytest.mark.parametrize("aggregator", ["mean", "sum"])
def test_weights_of_relations_are_those_of_dense_matrices(comm, mpi_tmp_path, aggregator):
    """RGCN: a matrix of weights for each relation, divided by its sums of rows for a mean; missing weights are 1."""
    parts = make_static_parts(comm, lambda path: weighted(path, 3), mpi_tmp_path)
    changes = {"model__kind": "rgcn", "model__bases": 2, "model__aggregator": aggregator}
    session = open_graph_session(comm, parts, static_config(model__edge_weights=True, **changes))
    found = outputs(session)
    if comm.rank == 0:
        _, feat, edges = weighted(mpi_tmp_path / "again.h5", 3)
        rows = torch.from_numpy(feat).double()
        for number, layer in enumerate(session.model.layers):
            matrices = torch.einsum("rb,bio->rio", layer.weights.coefficients, layer.weights.matrices)
            total = rows @ layer.own.weight[0] + layer.own.bias
            for columns, matrix in zip(edges.values(), matrices, strict=True):
                dense = np.zeros((NODES, NODES))
                np.add.at(dense, (columns["dst"], columns["src"]), columns.get("weight", 1.0))
                sums = dense.sum(1, keepdims=True) if aggregator == "mean" else 1.0
                total = total + torch.from_numpy(dense / np.where(sums == 0, 1.0, sums)) @ rows @ matrix
            rows = torch.relu(total) if number == 0 else total
        torch.testing.assert_close(found, rows.detach(), rtol=1e-9, atol=1e-11)
    session.close()


def test_weights_below_0_are_refused(comm, mpi_tmp_path):
    parts = make_static_parts(comm, lambda path: weighted(path, least=-1.0), mpi_tmp_path)
    with pytest.raises(DistributedError, match=r"model\.edge_weights: relation node\.r0\.node, .* has weight -1\.0"):
        open_graph_session(comm, parts, static_config(model__edge_weights=True))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model__kind": "gat"},
            "for model.kind sage or gcn or lightgcn or gin or gcn2 or rgcn, with aggregator mean or sum, not for gat",
        ),
        ({"model__aggregator": "max"}, "with aggregator mean or sum"),
        ({"comm__sampling_servers": 1}, "model.edge_weights: sampling servers send no edge columns"),
        ({"train__cuda_graphs": "on"}, "CUDA graphs do not work with model.edge_weights"),
    ],
)
def test_what_does_not_go_with_weights_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        static_config(model__edge_weights=True, **changes)
