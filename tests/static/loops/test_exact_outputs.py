"""Outputs of all nodes, layer by layer, in a training loop: the same as of plain torch and PyTorch Geometric on the
whole graph."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from random_graphs import write_graph
from static_runs import bare, make_static_parts, plain, typed
from torch.nn.functional import relu

from hpcgnn import FeatureConfig, GraphModelConfig, StaticGraph, exact_outputs
from hpcgnn.comm.world import CommConfig, DistributedError, World

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def open_graph(comm, parts, dtype=torch.float64, **options) -> StaticGraph:
    """Collective."""
    return StaticGraph(parts, World(CommConfig(device="cpu", threads=1), comm), dtype=dtype, **options)


def columns_of(folder, name: str) -> dict[str, torch.Tensor]:
    with h5py.File(folder / "graph.h5") as file:
        return {key: torch.from_numpy(column[()]) for key, column in file[name].items()}


def relations_of(folder) -> dict[tuple[str, str, str], torch.Tensor]:
    with h5py.File(folder / "graph.h5") as file:
        names = list(file["edges"])
    edges = {name: columns_of(folder, f"edges/{name}") for name in names}
    return {tuple(name.split(".")): torch.stack([of["src"], of["dst"]]) for name, of in edges.items()}


def assert_same(graph: StaticGraph, outputs, expected, tolerance: float) -> None:
    """This rank's rows are the rows of the whole graph at its nodes."""
    assert set(outputs) == set(expected)
    for name, rows in outputs.items():
        wanted = expected[name][torch.from_numpy(graph.nodes(name))]
        np.testing.assert_allclose(rows.numpy(), wanted.detach().numpy(), rtol=tolerance, atol=tolerance)


def mean_of_neighbors(rows, edge_index, num_nodes: int):
    """By one sum over the edges."""
    source, destination = edge_index
    total = rows.new_zeros(num_nodes, rows.shape[1]).index_add(0, destination, rows[source])
    count = torch.bincount(destination, minlength=num_nodes).clamp(min=1)
    return total / count[:, None]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("storage", ["device", "file"])
def test_layers_of_pyg(comm, mpi_tmp_path, dtype, storage):
    """GraphSAGE, graph attention with features of edges, and a GCN by the degrees in the whole graph."""
    nn = pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric")
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    torch.manual_seed(1)
    sage, gat, gcn = nn.SAGEConv(6, 8), nn.GATConv(8, 4, heads=2, edge_dim=1), nn.GCNConv(8, 3, add_self_loops=False)
    summed = nn.SimpleConv(aggr="sum")
    for module in (sage, gat, gcn):
        module.to(dtype).eval()

    def third(x, data):
        scale = (data.degree + 1).to(dtype).rsqrt()[:, None]
        rows = gcn.lin(x) * scale
        return (summed(rows, data.edge_index) + rows) * scale + gcn.bias

    layers = [
        lambda x, data: sage(x, data.edge_index).relu(),
        lambda x, data: gat(x, data.edge_index, data.edge_weight[:, None])[: data.batch_size],
        third,
    ]
    graph = open_graph(comm, parts, dtype, features=FeatureConfig(storage=storage))
    outputs = exact_outputs(graph, layers, "pyg", edge_columns=["weight"], nodes_per_pass=17)
    edges, x = columns_of(mpi_tmp_path, "edges/node.meets.node"), columns_of(mpi_tmp_path, "nodes/node")["feat"]
    edge_index = torch.stack([edges["src"], edges["dst"]])
    whole = gat(sage(x.to(dtype), edge_index).relu(), edge_index, edges["weight"].to(dtype)[:, None])
    loops = torch.arange(len(x)).expand(2, -1)
    assert_same(graph, outputs, {"node": gcn(whole, torch.cat([edge_index, loops], 1))}, TOLERANCE[dtype])


@pytest.mark.parametrize("direction", ["in", "out"])
def test_layers_over_blocks(comm, mpi_tmp_path, direction):
    """Functions of rows and blocks, along in-edges and out-edges."""
    parts = make_static_parts(comm, plain, mpi_tmp_path, out_edges=direction == "out")
    weight = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)

    def layer(x, batch):
        (block,), (rows,) = batch.batch.blocks, x
        (edges,) = block.relations
        degree = edges.indptr.diff()
        destination = torch.repeat_interleave(torch.arange(len(degree)), degree)
        own = block.own(rows)
        return own + mean_of_neighbors(rows, (edges.source, destination), len(own))

    graph = open_graph(comm, parts, direction=direction)
    outputs = exact_outputs(graph, [lambda x, batch: [x[0] @ weight], layer, layer], nodes_per_pass=40)
    edges, x = columns_of(mpi_tmp_path, "edges/node.meets.node"), columns_of(mpi_tmp_path, "nodes/node")["feat"]
    ends = (edges["src"], edges["dst"]) if direction == "in" else (edges["dst"], edges["src"])
    rows = x.to(torch.float64) @ weight
    for _ in range(2):
        rows = rows + mean_of_neighbors(rows, ends, len(rows))
    assert_same(graph, outputs, {"node": rows}, 1e-12)


def test_layers_of_several_types(comm, mpi_tmp_path):
    """A HeteroConv, whose types differ from layer to layer; x gives the rows of a type without features."""
    nn = pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric")
    parts = make_static_parts(comm, typed, mpi_tmp_path)
    names, types = relations_of(mpi_tmp_path), ("paper", "author", "venue")
    widths = {"paper": 5, "author": 4, "venue": 2}
    torch.manual_seed(2)
    to_papers = [name for name in names if name[2] == "paper"]
    first = nn.HeteroConv({name: nn.SAGEConv((widths[name[0]], widths[name[2]]), 6) for name in names})
    last = nn.HeteroConv({name: nn.SAGEConv((6, 6), 3) for name in to_papers})
    first.double(), last.double()
    learned = torch.rand(70, 4, dtype=torch.float64)
    x = {name: columns_of(mpi_tmp_path, f"nodes/{name}")["feat"].double() for name in ("paper", "venue")}
    x["author"] = learned
    graph = open_graph(comm, parts)
    layers = [lambda x, data, conv=conv: conv(x, data.edge_index_dict) for conv in (first, last)]
    own = {"author": learned[torch.from_numpy(graph.nodes("author"))]}
    outputs = exact_outputs(graph, layers, "pyg", x=own, nodes_per_pass=20)
    hidden = first({name: x[name] for name in types}, names)
    assert_same(graph, outputs, last(hidden, names), 1e-12)


@pytest.mark.parametrize("kind", ["sage", "gat", "rgcn", "none"])
def test_built_in_models(comm, mpi_tmp_path, kind):
    """The same as their ``forward`` on one block with the whole graph, on one rank, with rows for types without."""
    parts = make_static_parts(comm, bare if kind in ("rgcn", "none") else plain, mpi_tmp_path)
    layers = 0 if kind == "none" else 2
    config = GraphModelConfig(kind=kind, layers=layers, hidden=8, heads=2, dropout=0.3)

    def outputs(who) -> dict[str, np.ndarray]:
        graph = open_graph(who, parts)
        x = None
        if graph.widths[0] == 0:
            x = {name: torch.from_numpy(np.cos(graph.nodes(name)[:, None] * np.arange(1, 9))) for name in graph.types}
        rows = exact_outputs(graph, graph.make_model(config, 3, seed=4), x=x, nodes_per_pass=30)
        return {
            name: dict(zip(graph.nodes(name).tolist(), of_type.tolist(), strict=True)) for name, of_type in rows.items()
        }

    found, alone = outputs(comm), outputs(MPI.COMM_SELF)
    for name, rows in found.items():
        for node, row in rows.items():
            np.testing.assert_allclose(row, alone[name][node], rtol=1e-12, atol=1e-12)
    if kind == "sage":
        graph = open_graph(MPI.COMM_SELF, parts)
        model = graph.make_model(config, 3, seed=4).eval()
        edges, x = columns_of(mpi_tmp_path, "edges/node.meets.node"), columns_of(mpi_tmp_path, "nodes/node")["feat"]
        rows = x.double()
        for number, layer in enumerate(model.layers):
            near = mean_of_neighbors(rows, (edges["src"], edges["dst"]), len(rows))
            rows = torch.nn.functional.linear(torch.cat([rows, near], 1), *layer.parameters())
            rows = relu(rows) if number == 0 else rows
        found_rows = [alone["node"][node] for node in graph.nodes("node")]
        assert_same(graph, {"node": torch.tensor(found_rows, dtype=torch.float64)}, {"node": rows}, 1e-12)


def ring(path):
    """Nodes without features."""
    nodes = {"node": {"label": np.zeros(9, int), "split": np.zeros(9, np.int8)}}
    edges = {"src": np.arange(9), "dst": np.roll(np.arange(9), 1)}
    return write_graph(path, nodes, {("node", "next", "node"): edges}, "static")


def test_what_is_refused(comm, mpi_tmp_path):
    graph = open_graph(comm, make_static_parts(comm, ring, mpi_tmp_path, parts=4))
    model = graph.make_model(GraphModelConfig(layers=1, hidden=4), 2)
    count = len(graph.nodes("node"))

    class Louder(type(model)):
        def forward(self, batch, inputs):
            return [2 * rows for rows in super().forward(batch, inputs)]

    rows = {"node": torch.ones(count, 4, dtype=torch.float64)}
    for layers, options, message in [
        (model, {}, "node type node has no features"),
        (torch.nn.Linear(2, 2), {}, "Linear lacks num_hops, first, step, last of hpcgnn.GraphModel"),
        (Louder(model.config, model.sizes), {}, "Louder has another forward"),
        (model, {"as_data": "pyg", "x": rows}, "as_data 'pyg' is for functions"),
        ([], {"x": {"node": torch.ones(count + 1, 4)}}, r"at this rank, got rows of shape \(\d+, 4\)"),
        ([], {"x": {"author": torch.ones(1, 4)}}, "no node type 'author'"),
        ([], {"relations": ["a.b.c"]}, "no relation a.b.c"),
        ([], {"edge_columns": ["age"]}, "no relation has a column age"),
        ([], {"nodes_per_pass": 0}, "nodes_per_pass must be at least 1, got 0"),
        ([lambda x, batch: [x[0][1:]]], {"x": rows, "relations": []}, r"layer 0 has \d+ rows for \d+ nodes of node"),
    ]:
        with pytest.raises(DistributedError, match=message):
            exact_outputs(graph, layers, **options)
