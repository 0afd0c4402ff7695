"""Neighbors drawn in a way of the user's: by a column of the edges, and by a class of a program."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_graphs import write_graph
from static_runs import chances, make_static_parts, open_graph_session, plain, static_config

from hpcgnn import NeighborLoader, StaticGraph
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.static.config import GraphSamplingConfig

CHANCES = np.array([0, 1, 2, 3, 4, 10])
NUM_USERS = 2000
BY_CHANCE = {"sampling__strategy": "weighted", "sampling__weight_column": "chance"}


def shelves(path):
    """Six items lead to every user, with the same chances; weights are the other way round."""
    nodes = {"user": {"label": np.zeros(NUM_USERS, int)}, "item": {"feat": np.eye(6)}}
    edges = {
        "src": np.tile(np.arange(6), NUM_USERS), "dst": np.repeat(np.arange(NUM_USERS), 6),
        "chance": np.tile(CHANCES, NUM_USERS), "weight": np.tile(CHANCES[::-1], NUM_USERS).astype(np.float32),
    }  # fmt: skip
    return write_graph(path, nodes, {("item", "suits", "user"): edges}, "static")


def open_graph(comm, parts) -> StaticGraph:
    """Collective."""
    return StaticGraph(parts, World(CommConfig(device="cpu", threads=1), comm), dtype=torch.float64)


def loader_of(graph: StaticGraph, **options) -> NeighborLoader:
    """Collective."""
    return NeighborLoader(graph, ("user", np.ones(NUM_USERS, bool)), [1], 500, strategy="weighted", **options)


@pytest.mark.parametrize("topology", ["sharded", "replicated"])
def test_edges_are_drawn_as_often_as_their_column_says(comm, mpi_tmp_path, topology):
    """Two loaders of one graph, by two columns: chi-square of the drawn items with 4 degrees of freedom."""
    graph = open_graph(comm, make_static_parts(comm, shelves, mpi_tmp_path))
    for column, expected in {"chance": CHANCES, "weight": CHANCES[::-1]}.items():
        count = np.zeros(6, np.int64)
        for batch in loader_of(graph, topology=topology, weight_column=column):
            (edges,) = batch.batch.blocks[-1].relations
            count += np.bincount(batch.n_id[1][edges.source].numpy(), minlength=6)
        count = comm.allreduce(count)
        assert count.sum() == NUM_USERS
        assert count[expected == 0] == 0
        wanted = (NUM_USERS * expected / expected.sum())[expected > 0]
        assert ((count[expected > 0] - wanted) ** 2 / wanted).sum() < 20  # more once in 2,000 graphs
    graph.close()


def renamed(path):
    """The chances as the weight."""
    return chances(path, "weight")


@pytest.mark.parametrize("topology", ["sharded", "replicated"])
def test_a_run_draws_by_its_column(comm, mpi_tmp_path, topology):
    """The same neighbors as in a graph whose weight that column is, while messages are multiplied by the weight."""
    pieces = []
    for make, changes in ((chances, BY_CHANCE), (renamed, {"sampling__strategy": "weighted"})):
        parts = make_static_parts(comm, make, mpi_tmp_path / make.__name__)
        config = static_config(**changes, sampling__topology=topology, model__edge_weights=True)
        session = open_graph_session(comm, parts, config)
        session.start_epoch(0)
        with session.plans("train", 0) as plans:
            blocks = [block for plan in plans for block in plan.batch.blocks]
        pieces.append([(r.source, r.indptr, r.weight) for block in blocks for r in block.relations])
        session.close()
    for (source, indptr, weight), (other_source, other_indptr, chance) in zip(*pieces, strict=True):
        assert torch.equal(source, other_source)
        assert torch.equal(indptr, other_indptr)
        assert not len(weight) or not torch.equal(weight, chance)


@pytest.mark.parametrize(
    ("make", "column", "message"),
    [
        (chances, "odds", "relation node.meets.node has no column odds"),
        (plain, "chance", "relation node.meets.node has no column chance"),
        (chances, "row", "relation node.meets.node has no column row"),
    ],
)
def test_columns_that_no_edge_has_are_refused(comm, mpi_tmp_path, make, column, message):
    parts = make_static_parts(comm, make, mpi_tmp_path)
    with pytest.raises(DistributedError, match=message):
        open_graph_session(comm, parts, static_config(**BY_CHANCE | {"sampling__weight_column": column}))
    with pytest.raises(DistributedError, match=message):
        NeighborLoader(open_graph(comm, parts), "train", [2], 8, strategy="weighted", weight_column=column)


@pytest.mark.serial
def test_a_column_without_effect_is_refused():
    with pytest.raises(ValueError, match=r"weight_column chance is for sampling.strategy weighted, not uniform"):
        GraphSamplingConfig(weight_column="chance")
