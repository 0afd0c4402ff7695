"""Neighbors drawn in a way of the user's: by a column of the edges, and by a class of a program."""

from __future__ import annotations

from itertools import pairwise

import h5py
import numpy as np
import pytest
import torch
from places import REPOSITORY
from random_graphs import write_graph
from static_runs import chances, make_static_parts, open_graph_session, plain, static_config
from test_graph_training import run_both
from test_sampler_ranks import check_answer

from hpcgnn import LinkNeighborLoader, NeighborLoader, NeighborSampler, StaticGraph
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.native import Random, Stream
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


HEAVIEST = {"sampling__strategy": "weighted", "sampling__class_path": "own_sampler.HeaviestNeighbors"}


@pytest.fixture
def examples(monkeypatch):
    """The folder of the class on Python's path."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples"))
    import own_sampler

    return own_sampler


def heaviest(folder, fanout: int) -> dict[int, list[int]]:
    """The sources of every node's heaviest in-edges, by sorting them."""
    with h5py.File(folder / "graph.h5") as file:
        src, dst, weight = (file["edges/node.meets.node"][name][()] for name in ("src", "dst", "weight"))
    found = {}
    for node in range(150):
        rows = np.flatnonzero(dst == node)
        found[node] = src[sorted(rows, key=lambda row: (-weight[row], row))[:fanout]].tolist()
    return found


def check_heaviest(blocks, rows, fanouts, folder) -> None:
    """rows: of the innermost nodes in the graph file."""
    for block, fanout in zip(blocks, reversed(fanouts), strict=True):
        (edges,) = block.relations
        expected, source = heaviest(folder, fanout), rows[edges.source].tolist()
        for place, (begin, end) in enumerate(pairwise(edges.indptr.tolist())):
            assert source[begin:end] == expected[int(rows[place])]


@pytest.mark.parametrize("topology", ["sharded", "replicated"])
def test_a_class_draws_in_loops_and_runs(comm, mpi_tmp_path, examples, topology):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    graph = open_graph(comm, parts)
    options = {"strategy": "weighted", "sampler": examples.HeaviestNeighbors, "topology": topology}
    for batch in NeighborLoader(graph, "train", [3, 2], 16, **options):
        check_heaviest(batch.batch.blocks, batch.n_id[0], [3, 2], mpi_tmp_path)
    graph.close()
    session = open_graph_session(comm, parts, static_config(**HEAVIEST, sampling__topology=topology))
    for split in ("train", "test"):
        with session.plans(split, 1) as plans:
            for plan in plans:
                check_heaviest(plan.batch.blocks, plan.batch.identity[0], [3, 2], mpi_tmp_path)
    session.close()


def test_runs_give_one_answer(comm, mpi_tmp_path, examples):
    """And the class is recorded with the run."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config = static_config(**HEAVIEST, train__epochs=1)
    run_both(comm, parts, mpi_tmp_path, config)
    assert config.to_dict()["sampling"]["class_path"] == "own_sampler.HeaviestNeighbors"


@pytest.mark.several_ranks
def test_sampling_servers_draw_so_too(comm, mpi_tmp_path, examples):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    check_answer(comm, comm.size // 2, parts, mpi_tmp_path, static_config(**HEAVIEST, train__epochs=1))


class Everything(NeighborSampler):
    """Draws from the lists, without the edges of a step."""

    def draw(self, lists, nodes, fanout, random):
        return super().draw(lists, nodes, -1, random)


class SampleOnly(NeighborSampler):
    """Has the method of another way, which nothing calls."""

    def sample(self, relation, nodes, fanout, random):
        return np.arange(len(nodes) + 1), np.zeros(len(nodes), np.int64)


class Narrow(NeighborSampler):
    def draw(self, lists, nodes, fanout):
        return super().draw(lists, nodes, fanout, None)


class Foreign(NeighborSampler):
    """Every node has the first edge of all."""

    def draw(self, lists, nodes, fanout, random):
        return np.arange(len(nodes) + 1), np.zeros(len(nodes), np.int64)


def test_steps_leave_out_their_edges(comm, mpi_tmp_path):
    """A class that writes ``draw`` gets lists without the seeds of the step."""
    graph = open_graph(comm, make_static_parts(comm, plain, mpi_tmp_path))
    mask = np.ones(1800, bool)
    loader = LinkNeighborLoader(graph, ("node.meets.node", mask), [-1], 300, sampler=Everything)
    usual = LinkNeighborLoader(graph, ("node.meets.node", mask), [-1], 300)
    for batch, expected in zip(loader, usual, strict=True):
        for edges, other in zip(batch.batch.blocks[0].relations, expected.batch.blocks[0].relations, strict=True):
            assert torch.equal(batch.n_id[0][edges.source], expected.n_id[0][other.source])
    with pytest.raises(DistributedError, match="its method sample would never be called: draw is called with"):
        NeighborLoader(graph, "train", [2], 64, sampler=SampleOnly)
    graph.close()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.Class", "sampling.class_path 'nowhere.Class': No module named 'nowhere'"),
        (f"{__name__}.Missing", "has no attribute 'Missing'"),
        (f"{__name__}.shelves", "shelves' is no subclass of hpcgnn.NeighborSampler"),
        ("torch.nn.Linear", "Linear' is no subclass of hpcgnn.NeighborSampler"),
        (f"{__name__}.SampleOnly", "SampleOnly': its method sample would never be called: draw is called with"),
        (f"{__name__}.Narrow", r"Narrow': draw is called with \(lists, nodes, fanout, random\): too many positional"),
    ],
)
def test_classes_that_cannot_draw_are_refused(comm, mpi_tmp_path, path, message):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    with pytest.raises(DistributedError, match=message):
        open_graph_session(comm, parts, static_config(sampling__class_path=path))


def test_edges_of_other_nodes_are_refused(comm, mpi_tmp_path):
    graph = open_graph(comm, make_static_parts(comm, plain, mpi_tmp_path))
    with pytest.raises(DistributedError, match=r"sampler is no subclass of hpcgnn.NeighborSampler"):
        NeighborLoader(graph, "train", [2], 64, sampler=Foreign(graph.partition, "uniform", graph.channel))
    sampler = Foreign(graph.partition, "uniform", graph.channel)
    with pytest.raises(ValueError, match=r"Foreign drew neighbors of 5 nodes of relation node.meets.node that are not"):
        sampler._sample(np.arange(5), None, [2], Random(0, Stream.NEIGHBOR))


@pytest.mark.serial
def test_full_graph_training_draws_nothing():
    with pytest.raises(ValueError, match=r"leave out sampling.class_path, or train.full_graph"):
        static_config(sampling__class_path="a.B", train__full_graph=True)
