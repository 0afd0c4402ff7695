"""Features of edges enter messages: outputs are those of PyTorch Geometric's layers, sampled or whole, on any number of
ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_graphs import write_graph
from static_runs import make_static_parts, open_graph_session, plain, static_config
from test_edge_weights import outputs
from test_graph_training import run_both
from torch import nn

from hpcgnn.comm.world import DistributedError
from hpcgnn.static.model.blocks import rows_of
from hpcgnn.static.model.models import GraphModel

NODES, EDGES, WIDTH = 60, 240, 3


def featured(path, widths=(WIDTH,), seed: int = 2):
    """One node type; relations whose edges have features of some widths, 0: none; the first one's labels follow from
    them."""
    rng = np.random.default_rng(seed)
    feat = rng.standard_normal((NODES, 5)).astype(np.float32)
    edges, total = {}, np.zeros(NODES)
    for number, width in enumerate(widths):
        dst = rng.integers(0, NODES - 5, EDGES)  # no loops: PyTorch Geometric removes them; five nodes without edges
        columns = {"src": (dst + rng.integers(1, NODES, EDGES)) % NODES, "dst": dst}
        if width:
            columns["feat"] = rng.standard_normal((EDGES, width)).astype(np.float32)
        if number == 0:
            columns["weight"] = rng.uniform(0.5, 2, EDGES)
            np.add.at(total, dst, columns["feat"][:, 0])
        edges["node", f"r{number}", "node"] = columns
    label = (total > np.median(total)).astype(np.int64)
    nodes = {"node": {"feat": feat, "label": label, "split": rng.choice([0, 0, 1, 2], NODES).astype(np.int8)}}
    return write_graph(path, nodes, edges, "static"), feat, edges


@pytest.fixture
def graph(tmp_path):
    """Features of nodes, edges, and features and weights of edges of the graph with one relation, as tensors."""
    _, feat, edges = featured(tmp_path / "g.h5")
    (columns,) = edges.values()
    index = torch.from_numpy(np.stack([columns["src"], columns["dst"]]))
    return torch.from_numpy(feat).double(), index, *(torch.from_numpy(columns[n]).double() for n in ("feat", "weight"))


MODELS = {
    "gat": {"model__kind": "gat", "model__heads": 2},
    "gat without loops": {"model__kind": "gat", "model__self_loop": False},
    "mean": {"model__kind": "sage"}, "sum": {"model__kind": "sage", "model__aggregator": "sum"},
    "max": {"model__kind": "sage", "model__aggregator": "max"},
    "weighted mean": {"model__kind": "sage", "model__edge_weights": True},
}  # fmt: skip


def by_pyg(session, rows, index, feature, weight) -> torch.Tensor:
    """Outputs of the session's weights by PyTorch Geometric's GATConv, and by its aggregations of messages that are the
    rows of neighbors and the features of edges side by side."""
    geometric = pytest.importorskip("torch_geometric.nn")
    model, config = session.model, session.config.model
    for number, layer in enumerate(model.layers):
        last = number + 1 == len(model.layers)
        if config.kind == "gat":
            rows = gat_by_pyg(geometric, layer, not last, config.self_loop)(rows, index, feature)
        else:
            messages = torch.cat([rows[index[0]], feature], 1)
            factor = weight.unsqueeze(1) if config.edge_weights else torch.ones(len(messages), 1).double()
            if config.aggregator == "max":
                around = geometric.MaxAggregation()(messages, index[1], dim_size=len(rows))
            else:
                around = geometric.SumAggregation()(messages * factor, index[1], dim_size=len(rows))
            if config.aggregator == "mean":
                share = geometric.SumAggregation()(factor, index[1], dim_size=len(rows))
                around = around / torch.where(share > 0, share, 1.0)
            neighbors, edges = around.split([rows.shape[1], WIDTH], 1)
            rows = layer.product(torch.cat([rows, neighbors], 1)) + layer.edge(edges)
        rows = rows if last else torch.relu(rows)
    return rows.detach()


def gat_by_pyg(geometric, layer, concat: bool, loops: bool):
    """GATConv with a layer's weights. Its scores of edges are a product of two of its matrices, which is one here."""
    heads, width = layer.source.shape
    conv = geometric.GATConv(
        layer.weight.shape[0], width, heads, concat=concat, edge_dim=WIDTH, add_self_loops=loops, fill_value="mean"
    ).double()
    with torch.no_grad():
        conv.lin.weight.copy_(layer.weight.t())
        conv.att_src.copy_(layer.source[None])
        conv.att_dst.copy_(layer.target[None])
        conv.bias.copy_(layer.bias)
        conv.att_edge.zero_()
        conv.lin_edge.weight.zero_()
        for head in range(heads):  # the first column of a head carries its score
            conv.att_edge[0, head, 0] = 1
            conv.lin_edge.weight[head * width] = layer.edge[:, head]
    return conv


@pytest.mark.parametrize("full_graph", [False, True])
@pytest.mark.parametrize("case", MODELS)
def test_outputs_are_those_of_pyg(comm, mpi_tmp_path, graph, case, full_graph):
    parts = make_static_parts(comm, featured, mpi_tmp_path)
    config = static_config(model__edge_features=True, train__full_graph=full_graph, **MODELS[case])
    session = open_graph_session(comm, parts, config)
    found = outputs(session)
    if comm.rank == 0:
        torch.testing.assert_close(found, by_pyg(session, *graph), rtol=1e-9, atol=1e-11)
    session.close()


TYPED = {
    "sage": {"model__kind": "sage"}, "rgcn": {"model__kind": "rgcn"},
    "rgat": {"model__kind": "rgat", "model__heads": 2},
    "low memory": {"model__kind": "rgcn", "model__low_memory": True},
}  # fmt: skip


@pytest.mark.parametrize("case", TYPED)
def test_relations_are_their_layers_added_up(comm, mpi_tmp_path, case):
    """Features of several widths, and none: the first layer's outputs, relation by relation in dense torch."""
    widths = (WIDTH, 0, 1)
    parts = make_static_parts(comm, lambda path: featured(path, widths), mpi_tmp_path)
    _, feat, edges = featured(mpi_tmp_path / f"own-{comm.rank}.h5", widths)
    config = static_config(model__edge_features=True, model__layers=1, sampling__fanouts=[-1], **TYPED[case])
    session = open_graph_session(comm, parts, config)
    found, (layer,) = outputs(session), session.model.layers
    if comm.rank == 0:
        rows, weights = torch.from_numpy(feat).double(), layer.weights()
        total = layer.own.weight[0] if layer.own.weight is not None else None
        expected = layer.own.bias + (0 if total is None else rows @ total)
        for number, columns in enumerate(edges.values()):
            src, dst = (torch.from_numpy(columns[end]) for end in ("src", "dst"))
            feature = torch.zeros(EDGES, WIDTH).double()
            if "feat" in columns:
                feature[:, : widths[number]] = torch.from_numpy(columns["feat"])
            for node in range(NODES):
                chosen = dst == node
                if not chosen.any():
                    continue
                near, around = rows[src[chosen]], feature[chosen]
                if case == "rgat":
                    values = (near @ weights[number]).view(len(near), 2, -1)
                    score = (values * layer.source[number]).sum(2)
                    score = score + ((rows[node] @ weights[number]).view(2, -1) * layer.target[number]).sum(1)
                    share = nn.functional.leaky_relu(score + around @ layer.edge[number], 0.2).softmax(0)
                    expected[node] = expected[node] + (share[:, :, None] * values).sum(0).mean(0)
                else:
                    message = near.mean(0) @ weights[number] + around.mean(0) @ layer.edge[number]
                    expected[node] = expected[node] + message
        torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=1e-11)
    session.close()


@pytest.mark.parametrize("case", ["mean", "gat", "rgat"])
def test_training_is_the_same_on_any_number_of_ranks(comm, mpi_tmp_path, case):
    """And learns labels that only features of edges decide."""
    changes = (MODELS | TYPED)[case]
    parts = make_static_parts(comm, lambda path: featured(path, (WIDTH, 0)[: 1 + (case == "rgat")]), mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(model__edge_features=True, **changes))


class EdgeRows(GraphModel):
    """A class of the user's own that adds up a column of the edges."""

    embedding_hops = 0

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.product = nn.Linear(sizes.inputs[0] + 1, sizes.outputs)

    def first(self, batch, inputs):
        return rows_of(inputs[0])

    def step(self, number, batch, block, rows):
        edges = block.relations[0] if block.relations else None
        total = rows.new_zeros(block.num_dst[0])
        if edges is not None:
            total = total.index_add(0, block.lists.destination, edges.columns["weight"].to(rows.dtype))
        return self.product(torch.cat([block.own(rows), total.unsqueeze(1)], 1))


@pytest.mark.parametrize("full_graph", [False, True])
def test_columns_for_a_class_of_the_users_own(comm, mpi_tmp_path, graph, full_graph):
    """Exact outputs, which predictions are, have the columns of all edges."""
    parts = make_static_parts(comm, featured, mpi_tmp_path)
    config = static_config(
        model__class_path=f"{EdgeRows.__module__}.EdgeRows", model__layers=1, sampling__fanouts=[2],
        sampling__edge_columns=["weight"], train__full_graph=full_graph,
    )  # fmt: skip
    session = open_graph_session(comm, parts, config)
    found, model = outputs(session), session.model
    if comm.rank == 0:
        rows, index, _, weight = graph
        total = torch.zeros(NODES).double().index_add(0, index[1], weight)
        expected = model.product(torch.cat([rows, total.unsqueeze(1)], 1))
        torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=1e-11)
    session.close()


@pytest.mark.parametrize(("changes", "reason"), [
    ({"model__kind": "gcn"}, "model.edge_features is for model.kind sage, gin, gat, gatv2, rgcn, rgat, not gcn"),
    ({}, "model.edge_features: no relation has a column feat; there are weight"),
])  # fmt: skip
def test_features_that_no_model_reads_are_refused(comm, mpi_tmp_path, changes, reason):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    with pytest.raises((DistributedError, ValueError), match=reason):
        open_graph_session(comm, parts, static_config(model__edge_features=True, **changes))
