"""Modules with forward(x_dict, edge_index_dict), by model.class_path: outputs are those of plain PyTorch Geometric, on
any number of ranks."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from link_graphs import shop
from places import REPOSITORY
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, static_config, typed
from test_graph_links import BUYS, link_config
from test_graph_training import run_both
from test_sampled_predictions import by_row
from torch import nn

from hpcgnn.comm.world import DistributedError
from hpcgnn.static.sampled import sampled_outputs

geometric = pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric")
ALL = {"sampling__fanouts": [-1, -1]}
EXAMPLE = {"model__class_path": "typed_module.TypedSAGE"}


class Layered(nn.Module):
    """Two layers of a convolution for each relation, which also has weights or features of edges if ``further``."""

    def __init__(self, hidden_channels, out_channels, metadata):
        super().__init__()
        self.layers = nn.ModuleList(
            geometric.HeteroConv({name: geometric.SAGEConv((-1, -1), width) for name in metadata[1]}, aggr="sum")
            for width in (hidden_channels, out_channels)
        )

    def forward(self, x_dict, edge_index_dict):
        rows = {name: torch.relu(rows) for name, rows in self.layers[0](x_dict, edge_index_dict).items()}
        return self.layers[1](rows, edge_index_dict)


class Weighing(nn.Module):
    """One layer that reads weights and features of edges; made by its configuration."""

    def __init__(self, config, sizes):
        super().__init__()
        kinds = {relation: geometric.GraphConv((-1, -1), sizes.outputs) for relation in sizes.metadata[1]}
        self.layer, self.edge = geometric.HeteroConv(kinds), nn.Linear(2, 1)

    def forward(self, x_dict, edge_index_dict, edge_weight_dict, edge_attr_dict):
        weight = {
            name: weight * self.edge(edge_attr_dict[name]).squeeze(1) if name in edge_attr_dict else weight
            for name, weight in edge_weight_dict.items()
        }
        return self.layer(x_dict, edge_index_dict, edge_weight_dict=weight)


class OneType(Layered):
    def forward(self, x_dict, edge_index_dict):
        return super().forward(x_dict, edge_index_dict)["paper"]


class OtherType(Layered):
    def forward(self, x_dict, edge_index_dict):
        return {"venue": super().forward(x_dict, edge_index_dict)["venue"]}


class Unused(Layered):
    def forward(self, x_dict, edge_index_dict):
        return x_dict


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    """The folder of the example on Python's path."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples" / "further"))


def written(path):
    """A typed graph without loops whose nodes all have features, and whose edges all have weights, some features."""
    typed(path)
    rng = np.random.default_rng(5)
    with h5py.File(path, "r+") as file:
        cites = file["edges/paper.cites.paper"]
        cites["src"][:] = np.where(cites["src"][:] == cites["dst"][:], (cites["dst"][:] + 1) % 120, cites["src"][:])
        file["nodes/author/feat"] = rng.standard_normal((70, 3)).astype(np.float32)
        for number, edges in enumerate(file["edges"].values()):
            count = len(edges["src"])
            if "weight" in edges:
                del edges["weight"]
            edges["weight"] = rng.uniform(0.5, 2, count).astype(np.float32)
            if number % 2 == 0:
                edges["feat"] = rng.standard_normal((count, 2)).astype(np.float32)
    return path


def whole(path):
    """Features, edges, weights and features of edges of the whole graph, as PyTorch Geometric has them."""
    with h5py.File(path) as file:
        nodes = {name: torch.from_numpy(group["feat"][:]).double() for name, group in file["nodes"].items()}
        tables = {tuple(name.split(".")): group for name, group in file["edges"].items()}
        edges, columns = {}, {"weight": {}, "feat": {}}
        for name, group in tables.items():
            edges[name] = torch.from_numpy(np.stack([group["src"][:], group["dst"][:]]).astype(np.int64))
            for column in columns:
                if column in group:
                    columns[column][name] = torch.from_numpy(group[column][:]).double()
    return nodes, edges, columns["weight"], columns["feat"]


@pytest.mark.parametrize("path", [f"{__name__}.Layered", "typed_module.TypedSAGE"])
def test_outputs_with_all_neighbors_are_those_of_the_whole_graph(comm, mpi_tmp_path, path):
    parts = make_static_parts(comm, written, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(model__class_path=path, **ALL))
    found = by_row(session, sampled_outputs(session))
    if comm.rank == 0:
        nodes, edges, *_ = whole(mpi_tmp_path / "graph.h5")
        expected = session.model.module(nodes, edges)["paper"].detach().numpy()
        np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-9, atol=1e-11)
    session.close()


def test_weights_and_features_of_edges_arrive(comm, mpi_tmp_path):
    parts = make_static_parts(comm, written, mpi_tmp_path)
    config = static_config(
        model__class_path=f"{__name__}.Weighing", model__edge_weights=True, model__edge_features=True, **ALL
    )
    session = open_graph_session(comm, parts, config)
    found = by_row(session, sampled_outputs(session))
    if comm.rank == 0:
        expected = session.model.module(*whole(mpi_tmp_path / "graph.h5"))["paper"].detach().numpy()
        np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-9, atol=1e-11)
    session.close()


def convolved(layer, block, sources: dict, destinations: dict, relations: list) -> dict:
    """The sum over relations of the layer's convolutions on the edges of a block, a bipartite graph for each."""
    new: dict = {}
    for of in block.relations:
        name, degree = relations[of.relation], torch.diff(of.indptr)
        index = torch.stack([of.source, torch.repeat_interleave(torch.arange(len(degree)), degree)])
        new.setdefault(name[2], []).append(layer.convs[name]((sources[name[0]], destinations[name[2]]), index))
    return {name: torch.stack(pieces).sum(0) for name, pieces in new.items()}


def by_blocks(module: Layered, blocks, rows: dict, types: list, relations: list) -> dict:
    """Outputs of seeds: their own draw in both layers, the draw of the second hop in the first layer of neighbors."""
    inner, outer = blocks

    def first(number_of: tuple) -> dict:
        return {name: rows[name][:count] for name, count in zip(types, number_of, strict=True)}

    neighbors = convolved(module.layers[0], inner, rows, first(inner.num_dst), relations)
    seeds = convolved(module.layers[0], outer, first(outer.num_src), first(outer.num_dst), relations)
    hidden = [{name: torch.relu(of_type) for name, of_type in of.items()} for of in (neighbors, seeds)]
    return convolved(module.layers[1], outer, *hidden, relations)


def test_outputs_of_a_sampled_batch_are_those_of_its_layers(comm, mpi_tmp_path):
    parts = make_static_parts(comm, written, mpi_tmp_path)
    config = static_config(model__class_path=f"{__name__}.Layered", sampling__fanouts=[3, 2])
    session = open_graph_session(comm, parts, config)
    nodes = comm.bcast(whole(mpi_tmp_path / "graph.h5")[0] if comm.rank == 0 else None)
    types = list(session.partition.types)
    relations = [tuple(relation.name.split(".")) for relation in session.partition.relations]
    base, paper = session.partition.book.type_base(), types.index("paper")
    with session.plans("train", 0) as plans:
        for plan in plans:
            found = session.task.outputs(plan)[paper]
            flat = plan.batch.identity
            rows = {name: nodes[name][flat[kind] - int(base[kind])] for kind, name in enumerate(types)}
            expected = by_blocks(session.model.module, plan.batch.blocks, rows, types, relations)["paper"]
            torch.testing.assert_close(found[plan.roots[0]], expected[plan.roots[0]], rtol=1e-9, atol=1e-11)
    session.close()


@pytest.mark.parametrize("fanouts", [[3, 2], [-1, -1]])
def test_training_is_the_same_on_any_number_of_ranks(comm, mpi_tmp_path, fanouts):
    """Of a graph with a type without features, whose rows are learned."""
    parts = make_static_parts(comm, typed, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(**EXAMPLE, sampling__fanouts=fanouts))


def test_links(comm, mpi_tmp_path):
    parts = make_static_parts(comm, shop, mpi_tmp_path)
    config = link_config(task__relation=BUYS, model__class_path="typed_module.TypedSAGE")
    run_both(comm, parts, mpi_tmp_path, config)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"model__edge_weights": True}, "the forward of typed_module.TypedSAGE has no parameter edge_weight_dict"),
    ({"train__full_graph": True}, r"layer by layer, .*\.TypedSAGE has no torch.nn.ModuleList layers"),
    ({"model__class_path": f"{__name__}.Weighing"}, "nothing fills edge_weight_dict of its .* model.edge_weights true"),
    ({"model__class_path": f"{__name__}.Unused"}, r"Unused: forward does not use layers\.0\..*: leave this part out"),
])  # fmt: skip
def test_what_does_not_go_with_dictionaries_is_refused(comm, mpi_tmp_path, changes, reason):
    parts = make_static_parts(comm, written, mpi_tmp_path)
    with pytest.raises(DistributedError, match=reason):
        open_graph_session(comm, parts, static_config(**EXAMPLE | changes))


@pytest.mark.serial
@pytest.mark.parametrize(("name", "found"), [("OneType", r"\[\d+, 3\]"), ("OtherType", "NoneType")])
def test_results_of_another_form_are_refused(comm, mpi_tmp_path, name, found):
    parts = make_static_parts(comm, written, mpi_tmp_path)
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, static_config(model__class_path=f"{__name__}.{name}"))
    with pytest.raises(TypeError, match=f"must return a dictionary with a row for each node of paper, not {found}"):
        trainer.run()
