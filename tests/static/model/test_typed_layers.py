"""Modules of PyTorch Geometric with layers, by model.class_path: trained on the whole graph and computed exactly, they
give what plain PyTorch Geometric gives, on any number of ranks."""

from __future__ import annotations

import copy

import h5py
import numpy as np
import pytest
import torch
from link_graphs import pair_split, shop
from places import REPOSITORY
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, plain, static_config
from test_edge_index import whole as whole_of_one_type
from test_edge_index_dict import whole, written
from test_full_graph import learnable_rows
from test_graph_links import BUYS, link_config
from test_graph_training import run_both
from test_sampled_predictions import by_row
from torch import nn
from torch.nn import functional

from hpcgnn.comm.world import DistributedError
from hpcgnn.static.exact import exact_outputs
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.inference import infer
from hpcgnn.static.predict import predict_nodes

geometric = pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric")
EXAMPLE = {"model__class_path": "typed_layers.TypedLayers"}
SMALL = {"eval__nodes_per_pass": 17}
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


class InOrder(nn.Module):
    """Calls its layers one after the other."""

    def forward(self, x_dict, edge_index_dict):
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict)
        return x_dict


def convolutions(relations, width, make=None):
    make = make or (lambda name: geometric.SAGEConv((-1, -1), width))
    return geometric.HeteroConv({name: make(name) for name in relations}, aggr="sum")


class WeighedLayer(nn.Module):
    """Messages times weights and a function of the features of edges; widths of types differ if ``wide``."""

    def __init__(self, relations, width, wide=0):
        super().__init__()
        self.layer = convolutions(
            relations, width, lambda name: geometric.GraphConv((-1, -1), width + wide * (name[2] == "author"))
        )
        self.edge = nn.Linear(2, 1)

    def forward(self, x_dict, edge_index_dict, edge_weight_dict, edge_attr_dict):
        weight = {
            name: of * self.edge(edge_attr_dict[name]).squeeze(1) if name in edge_attr_dict else of
            for name, of in edge_weight_dict.items()
        }
        return self.layer(x_dict, edge_index_dict, edge_weight_dict=weight)


class Weighed(nn.Module):
    """The first layer reads weights and features of edges, the second one neither, and leaves out all but papers."""

    def __init__(self, config, sizes):
        super().__init__()
        to_papers = [name for name in sizes.metadata[1] if name[2] == "paper"]
        first = WeighedLayer(sizes.metadata[1], config.hidden, wide=3)
        self.layers = nn.ModuleList([first, Without(to_papers, sizes.outputs)])

    def forward(self, x_dict, edge_index_dict, edge_weight_dict, edge_attr_dict):
        rows = self.layers[0](x_dict, edge_index_dict, edge_weight_dict, edge_attr_dict)
        return self.layers[1](rows, edge_index_dict)


class Without(nn.Module):
    """A layer without parameters for values of edges."""

    def __init__(self, relations, width):
        super().__init__()
        self.layer = convolutions(relations, width)

    def forward(self, x_dict, edge_index_dict):
        return self.layer(x_dict, edge_index_dict)


class OneType(nn.Module):
    """Layers of a graph of one type."""

    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        widths = [in_channels, hidden_channels, out_channels]
        self.layers = nn.ModuleList(geometric.GATConv(*widths[at : at + 2]) for at in (0, 1))

    def forward(self, x, edge_index):
        for layer in self.layers:
            x = layer(x, edge_index)
        return x


class Adding(InOrder):
    """A forward that does more than its layers, though not in the beginning."""

    def __init__(self, out_channels, metadata):
        super().__init__()
        self.layers = nn.ModuleList([convolutions(metadata[1], out_channels)])
        self.share = nn.Parameter(torch.zeros(1))

    def forward(self, x_dict, edge_index_dict):
        return {name: rows + self.share for name, rows in super().forward(x_dict, edge_index_dict).items()}


class Centered(InOrder):
    """Takes the mean over all nodes from the rows."""

    class Layer(nn.Module):
        def __init__(self, relations, width):
            super().__init__()
            self.convolution = convolutions(relations, width)

        def forward(self, x_dict, edge_index_dict):
            return self.convolution({name: rows - rows.mean(0) for name, rows in x_dict.items()}, edge_index_dict)

    def __init__(self, out_channels, metadata):
        super().__init__()
        self.layers = nn.ModuleList([self.Layer(metadata[1], out_channels)])


class Normed(OneType):
    """GCN, which divides by degrees of neighbors."""

    def __init__(self, in_channels, out_channels):
        nn.Module.__init__(self)
        self.layers = nn.ModuleList([geometric.GCNConv(in_channels, out_channels)])


class Narrow(InOrder):
    """Fewer outputs than classes."""

    def __init__(self, out_channels, metadata):
        super().__init__()
        self.layers = nn.ModuleList([convolutions(metadata[1], out_channels - 1)])


class Plain(InOrder):
    """Layers that take rows alone."""

    def __init__(self, in_channels, out_channels, metadata):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(in_channels["paper"], out_channels)])


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    """The folder of the example on Python's path."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples" / "further"))


def own(name: str) -> dict:
    return {"model__class_path": f"{__name__}.{name}"}


WEIGHED = own("Weighed") | {"model__edge_weights": True, "model__edge_features": True}
CASES = {"layers": EXAMPLE | {"model__layers": 3, "sampling__fanouts": [2, 2, 2]}, "edge columns": WEIGHED}


@pytest.mark.parametrize("case", CASES)
def test_exact_outputs_are_those_of_the_whole_graph(comm, mpi_tmp_path, case):
    """In evaluation, in predictions, and after training by sampled neighbors."""
    parts = make_static_parts(comm, written, mpi_tmp_path)
    trainer = open_graph_trainer(
        comm, parts, mpi_tmp_path, static_config(**CASES[case], **SMALL, eval__exact=True, train__epochs=1)
    )
    trainer.run()
    session = trainer.session
    found = by_row(session, infer(session))
    outputs = predict_nodes(session).slab("output", 0, session.world)
    scored = comm.gather(session.scores("val").columns()["output"])
    if comm.rank == 0:
        values = whole(mpi_tmp_path / "graph.h5")[: 4 if case == "edge columns" else 2]
        expected = session.model.module(*values)["paper"].detach().numpy()
        np.testing.assert_allclose(found[: len(expected)], expected, **CLOSE)
        np.testing.assert_allclose(outputs, expected, **CLOSE)
        lines = {tuple(row) for row in np.round(expected, 8)}
        assert all(tuple(row) in lines for row in np.round(np.concatenate(scored), 8))
    session.close()


@pytest.mark.parametrize("case", CASES)
def test_full_graph_training_is_full_batch_training(comm, mpi_tmp_path, case):
    """Losses of three epochs, and predictions after them, are those of a loop in plain PyTorch Geometric."""
    parts = make_static_parts(comm, written, mpi_tmp_path)
    config = static_config(**CASES[case], train__full_graph=True)
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, config)
    session, losses = trainer.session, []
    module = copy.deepcopy(session.model.module)
    for epoch in range(3):
        trainer.start_epoch(epoch)
        with session.plans("train", epoch) as plans:
            losses += [trainer.train_step(plan)[0] for plan in plans]
    found = by_row(session, infer(session))
    if comm.rank == 0:
        values = whole(mpi_tmp_path / "graph.h5")[: 4 if case == "edge columns" else 2]
        with h5py.File(mpi_tmp_path / "graph.h5") as file:
            paper = file["nodes/paper"]
            rows, label = torch.from_numpy(np.flatnonzero(paper["split"][:] == 0)), torch.from_numpy(paper["label"][:])
        optimizer, expected = torch.optim.Adam(module.parameters(), lr=config.train.lr), []
        for _ in range(3):
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(*values)["paper"][rows], label[rows])
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
        np.testing.assert_allclose(losses, expected, rtol=1e-9)
        outputs = module(*values)["paper"].detach().numpy()
        np.testing.assert_allclose(found[: len(outputs)], outputs, rtol=1e-7, atol=1e-9)
    session.close()


@pytest.mark.parametrize("full_graph", [False, True])
def test_layers_of_one_type(comm, mpi_tmp_path, full_graph):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    changes = {"train__full_graph": True} if full_graph else {"eval__exact": True}
    session = open_graph_session(comm, parts, static_config(**own("OneType"), **changes, **SMALL))
    found = by_row(session, infer(session))
    if comm.rank == 0:
        expected = session.model.module(*whole_of_one_type(mpi_tmp_path / "again.h5")).detach().numpy()
        np.testing.assert_allclose(found, expected, **CLOSE)
    session.close()


@pytest.mark.parametrize("full_graph", [False, True])
def test_rows_before_the_last_layer_are_embeddings(comm, mpi_tmp_path, full_graph):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    changes = {"train__full_graph": True} if full_graph else {}
    session = open_graph_session(comm, parts, static_config(**own("OneType"), **changes, **SMALL))
    found = predict_nodes(session, embeddings=True).slab("embedding", 0, session.world)
    if comm.rank == 0:
        rows, edges = whole_of_one_type(mpi_tmp_path / "again.h5")
        np.testing.assert_allclose(found, session.model.module.layers[0](rows, edges).detach().numpy(), **CLOSE)
    session.model.module.embedding_hops = 2  # as the class may say
    again = predict_nodes(session, embeddings=True).slab("embedding", 0, session.world)
    outputs = predict_nodes(session).slab("output", 0, session.world)
    if comm.rank == 0:
        np.testing.assert_allclose(again, outputs, **CLOSE)
    session.close()


def bought(path):
    """The edges of the shop that carry messages: none of a pair that is held out."""
    with h5py.File(path) as file:
        item = torch.from_numpy(file["nodes/item/feat"][:]).double()
        edges = {}
        for name, group in file["edges"].items():
            pair = np.stack([group["src"][:], group["dst"][:]]).astype(np.int64)
            users, items = (pair[1], pair[0]) if name == "item.sold_to.user" else pair
            stays = pair_split(users, 100 + items) == 0 if "user" in name else slice(None)
            edges[tuple(name.split("."))] = torch.from_numpy(pair[:, stays])
    return item, edges


@pytest.mark.parametrize("full_graph", [False, True])
def test_links(comm, mpi_tmp_path, full_graph):
    """Training and ranks among all nodes are those of one rank, outputs those of plain PyTorch Geometric."""
    parts = make_static_parts(comm, shop, mpi_tmp_path)
    config = link_config(task__relation=BUYS, **EXAMPLE, eval__ranking="destinations", train__full_graph=full_graph)
    run_both(comm, parts, mpi_tmp_path, config)
    session = open_graph_session(comm, parts, config)
    found, users = by_row(session, infer(session)), learnable_rows(session)
    if comm.rank == 0:
        item, edges = bought(mpi_tmp_path / "graph.h5")
        (of_users,) = users.values()
        expected = session.model.module({"user": of_users, "item": item}, edges)
        types = session.partition.types
        np.testing.assert_allclose(found, torch.cat([expected[name] for name in types]).detach().numpy(), **CLOSE)
    session.close()


def test_a_model_of_a_loop(comm, mpi_tmp_path):
    parts = make_static_parts(comm, written, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config())
    config = static_config(**EXAMPLE).model
    graph = StaticGraph(parts, session.world, dtype=torch.float64)
    model = graph.make_model(config, 3)
    found = exact_outputs(graph, model, nodes_per_pass=30)["paper"]
    rows, values = (session.world.gather_rows(a) for a in (graph.nodes("paper"), found.numpy()))
    if comm.rank == 0:
        expected = model.module(*whole(mpi_tmp_path / "graph.h5")[:2])["paper"].detach().numpy()
        np.testing.assert_allclose(values[np.argsort(rows)], expected, **CLOSE)
    graph.close()
    session.close()


MORE = "number 0 computes a node's row from more than .* degrees of neighbors or means over all nodes"


@pytest.mark.parametrize(("make", "name", "reason"), [
    (written, "Adding", "Adding has a forward that is not its layers one after the other: do in layers what it adds"),
    (written, "Centered", MORE),
    (plain, "Normed", MORE),
    (written, "Narrow", "last one returns rows of 2 columns for paper, not 3 columns"),
    (written, "Plain", r"cannot be called one by one as layer\(x_dict, edge_index_dict\): .*Error"),
])  # fmt: skip
def test_layers_that_would_give_something_else_are_refused(comm, mpi_tmp_path, make, name, reason):
    parts = make_static_parts(comm, make, mpi_tmp_path)
    with pytest.raises(DistributedError, match=f"layer by layer, .*{reason}"):
        open_graph_session(comm, parts, static_config(**own(name), train__full_graph=True))


def test_fewer_fanouts_than_layers_are_refused(comm, mpi_tmp_path):
    parts = make_static_parts(comm, written, mpi_tmp_path)
    config = static_config(**EXAMPLE, model__layers=3, eval__exact=True)
    with pytest.raises(
        DistributedError, match=r"has 3 layers, but sampling.fanouts 2 numbers: give one number a layer"
    ):
        open_graph_session(comm, parts, config)
