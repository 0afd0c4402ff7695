"""Modules with forward(x, edge_index), by model.class_path: outputs are those of the module over the whole graph, on
any number of ranks."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from link_graphs import friends
from run_commands import asked
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, plain, static_config, typed
from test_edge_features import featured
from test_graph_links import FRIENDS, link_config
from test_graph_training import run_both
from test_sampled_predictions import by_row
from torch import nn

from hpcgnn.comm.world import DistributedError
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.launch import abort
from hpcgnn.static.predict import read_pairs, score_pairs
from hpcgnn.static.sampled import sampled_outputs

geometric = pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric")
ALL = {"sampling__fanouts": [-1, -1]}
SAGE = {"model__class_path": "torch_geometric.nn.GraphSAGE"}


class Weighted(nn.Module):
    """Two layers that add up neighbors, times the weights of the edges, and products of the features of the edges."""

    def __init__(self, config, sizes):
        super().__init__()
        widths = [sizes.inputs[0], config.hidden, sizes.outputs]
        self.first, self.second = (nn.Linear(*widths[at : at + 2]) for at in (0, 1))
        self.edge = nn.Linear(3, widths[0])

    def forward(self, x, edge_index, edge_weight, edge_attr=None, batch_size=None):
        messages = (x[edge_index[0]] + self.edge(edge_attr)) * edge_weight.unsqueeze(1)
        rows = torch.relu(self.first(x.index_add(0, edge_index[1], messages)))
        return self.second(rows.index_add(0, edge_index[1], rows[edge_index[0]]))[:batch_size]


class Pooled(nn.Module):
    """Returns one row for all nodes."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.product = nn.Linear(in_channels, out_channels)

    def forward(self, x, edge_index):
        return self.product(x).mean(0, keepdim=True)


class Dropping(Pooled):
    """Draws from torch's generator."""

    def forward(self, x, edge_index):
        return nn.functional.dropout(self.product(x), 0.5, self.training)


class Needy(Pooled):
    """Has a parameter that nothing fills."""

    def forward(self, x, edge_index, edge_attr):
        return self.product(x)


class Lost(nn.Module):
    """Wants a batch of PyTorch Geometric."""

    def __init__(self, config, sizes):
        super().__init__()
        self.product = nn.Linear(sizes.inputs[0], sizes.outputs)

    def forward(self, data, options):
        return self.product(data.x)


def whole(path, make=plain):
    """Features and edges of a graph that ``make`` writes."""
    import h5py

    with h5py.File(make(path) or path) as file:
        (edges,) = file["edges"].values()
        index = torch.from_numpy(np.stack([edges["src"][:], edges["dst"][:]]).astype(np.int64))
        return torch.from_numpy(file["nodes/node/feat"][:]).double(), index


@pytest.mark.parametrize("convolution", ["GraphSAGE", "GAT"])
def test_outputs_are_those_of_the_whole_graph(comm, mpi_tmp_path, convolution):
    """Predictions of all nodes, and scores of evaluation."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config = static_config(model__class_path=f"torch_geometric.nn.{convolution}", **ALL)
    session = open_graph_session(comm, parts, config)
    found = by_row(session, sampled_outputs(session))
    scored = [session.scores(split).columns()["output"] for split in SPLITS[1:]]
    scored = [np.concatenate(pieces) for pieces in zip(*comm.allgather(scored), strict=True)]
    if comm.rank == 0:
        expected = session.model.module(*whole(mpi_tmp_path / "again.h5")).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
        lines = {tuple(row) for row in np.round(expected, 9)}
        assert all(tuple(row) in lines for split in scored for row in np.round(split, 9))
    session.close()


def test_weights_and_features_of_edges_arrive(comm, mpi_tmp_path):
    parts = make_static_parts(comm, featured, mpi_tmp_path)
    config = static_config(
        model__class_path=f"{__name__}.Weighted", model__edge_weights=True, model__edge_features=True, **ALL
    )
    session = open_graph_session(comm, parts, config)
    found = by_row(session, sampled_outputs(session))
    if comm.rank == 0:
        _, feat, edges = featured(mpi_tmp_path / "again.h5")
        (columns,) = edges.values()
        index = torch.from_numpy(np.stack([columns["src"], columns["dst"]]))
        weight, feature = (torch.from_numpy(columns[name]).double() for name in ("weight", "feat"))
        expected = session.model.module(torch.from_numpy(feat).double(), index, weight, feature)
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-9, atol=1e-11)
    session.close()


@pytest.mark.parametrize("fanouts", [[3, 2], [-1, -1]])
def test_training_is_the_same_on_any_number_of_ranks(comm, mpi_tmp_path, fanouts):
    """Sampled neighbors, too: a node has the draw of each hop that reaches it, whatever else its rank has."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(**SAGE, sampling__fanouts=fanouts))


def test_links(comm, mpi_tmp_path):
    """Training is that of one rank; scores of pairs are products of the module's rows over the whole graph."""
    parts = make_static_parts(comm, friends, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, link_config(task__relation=FRIENDS, **SAGE))
    session = open_graph_session(comm, parts, link_config(task__relation=FRIENDS, **SAGE, **ALL))
    src, dst = [0, 1, 2, 3, 4], [5, 4, 3, 9, 0]
    score = score_pairs(session, asked(partial(read_pairs, session), src=src, dst=dst)).slab("score", 0, session.world)
    found = by_row(session, sampled_outputs(session))
    if comm.rank == 0:
        np.testing.assert_allclose(score, (found[src] * found[dst]).sum(1), rtol=1e-9)
    session.close()


@pytest.mark.parametrize(("make", "changes", "reason"), [
    (typed, SAGE, "one node type and one relation, .* 3 and 5: write forward.x_dict, edge_index_dict."),
    (plain, {"model__class_path": f"{__name__}.Needy"}, "nothing fills edge_attr .*: set model.edge_features true"),
    (plain, {**SAGE, "eval__exact": True}, r"layer by layer, .*\.GraphSAGE has no torch.nn.ModuleList layers"),
    (plain, {**SAGE, "train__full_graph": True}, r"GraphSAGE has no .* layers, .* maps \(x, edge_index\) to x"),
    (plain, {"model__class_path": f"{__name__}.Pooled", "model__edge_weights": True}, "has no parameter edge_weight"),
])  # fmt: skip
def test_what_does_not_go_with_edge_index_is_refused(comm, mpi_tmp_path, make, changes, reason):
    parts = make_static_parts(comm, make, mpi_tmp_path)
    with pytest.raises(DistributedError, match=reason):
        open_graph_session(comm, parts, static_config(**changes))


@pytest.mark.serial
def test_draws_are_refused(comm, mpi_tmp_path):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, static_config(model__class_path=f"{__name__}.Dropping"))
    with pytest.raises(DistributedError, match=r"Dropping draws from torch's generator .*first training step"):
        trainer.run()


@pytest.mark.serial
@pytest.mark.parametrize(("name", "words"), [
    ("Pooled", r"must return a tensor with a row for each node, not \[1, 4\]"),
    ("Lost", "'Batch' object has no attribute 'x'"),
])  # fmt: skip
def test_a_slip_in_forward_names_the_page(comm, mpi_tmp_path, capsys, name, words):
    """After its traceback: a TypeError, or any other one, of a class with whatever forward."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config = static_config(model__class_path=f"{__name__}.{name}")
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, config)
    with pytest.raises((TypeError, AttributeError), match=words) as caught:
        trainer.run()
    abort(None, 1, caught.value)
    line = f"model.class_path '{__name__}.{name}': docs/own_model.md lists its methods, their arguments and results"
    assert line in capsys.readouterr().err.splitlines()
