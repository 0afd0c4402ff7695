"""Edges that come with a sample: along out-edges, with row ids and columns, and all those among the sampled nodes. Runs
on edges along out-edges."""

from __future__ import annotations

from collections import Counter

import h5py
import numpy as np
import pytest
import torch
from link_graphs import facts, friends, shop
from mpi4py import MPI
from random_graphs import random_static, static_edges, write_columns, write_graph
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, plain, static_config
from test_edge_labels import PAYS, numbers, payments
from test_graph_links import BUYS, FACTS, FRIENDS, link_config
from test_graph_loader import FANOUTS, open_graph, union
from test_graph_training import assert_same_records, resume_both, run_both

from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph import files
from hpcgnn.static.graph import StaticGraph, induced_subgraph
from hpcgnn.static.loader import NeighborLoader

COLUMNS = {"edge_columns": ("feat", "weight")}
TOPOLOGIES = ["sharded", "replicated"]


def weighted(path):
    """Three types, four relations with features and weights, one without edges."""
    return random_static(path, 5, sizes=(40, 20, 9), num_edges=220)


def one_type(path):
    """One type, parallel edges and loops."""
    rng = np.random.default_rng(6)
    nodes = {"node": {"feat": rng.standard_normal((60, 2))}}
    return write_graph(path, nodes, {("node", "meets", "node"): static_edges(rng, 60, 60, 400)}, "static")


def read_graph(path) -> tuple[dict, dict]:
    """Columns of the nodes by type, and of the edges by the three names of the relation."""
    with h5py.File(path) as file:
        read = lambda group: {name: column[()] for name, column in group.items()}  # noqa: E731
        nodes = {name: read(file["nodes"][name]) for name in files.node_types(file)}
        return nodes, {files.split_relation(name): read(file["edges"][name]) for name in files.relations(file)}


def turn(edges: dict) -> dict:
    """Every edge the other way."""
    return {
        (dst, rel, src): columns | {"src": columns["dst"], "dst": columns["src"]}
        for (src, rel, dst), columns in edges.items()
    }


def turned(make):
    """The graph with every edge the other way."""

    def write(path):
        make(path.with_name("straight.h5"))
        nodes, edges = read_graph(path.with_name("straight.h5"))
        return write_graph(path, nodes, turn(edges), "static")

    return write


def with_pairs(make, relation: str, of_turned: bool):
    """The graph with a further relation, "pairs". It leads back and is empty; of_turned: it has the edges to learn, and
    all other edges are turned, also their copies without a split."""

    def write(path):
        make(path.with_name("straight.h5"))
        nodes, edges = read_graph(path.with_name("straight.h5"))
        (src, _, dst), columns = files.split_relation(relation), edges[files.split_relation(relation)]
        if of_turned:
            edges = turn(edges | {files.split_relation(relation): {k: v for k, v in columns.items() if k != "split"}})
            edges[src, "pairs", dst] = columns
        else:
            edges[dst, "pairs", src] = {"src": np.empty(0, np.int64), "dst": np.empty(0, np.int64)}
        return write_graph(path, nodes, edges, "static")

    return write


def graph_rows(folder) -> list[dict[str, np.ndarray]]:
    """Columns of every relation in the graph file."""
    with h5py.File(folder / "graph.h5") as file:
        return [{name: c[()] for name, c in file["edges"][r].items()} for r in files.relations(file)]


def open_directed(comm, parts, direction: str) -> StaticGraph:
    """Collective."""
    return StaticGraph(
        parts, World(CommConfig(device="cpu", threads=1), comm), dtype=torch.float64, direction=direction
    )  # fmt: skip


def loaded(comm, graph: StaticGraph, **options) -> list:
    """Collective. Batches of an epoch, with seeds of the first type."""
    seeds = graph.types[0], np.ones(graph.num_nodes(0), bool)
    return list(NeighborLoader(graph, seeds, FANOUTS, 13, shuffle=True, **options))


def edges_of_seeds(batches: list) -> set:
    """By step and seed the edges of the seeds' hop: relation, neighbor, and what else is told of them."""
    found = set()
    for step, batch in enumerate(batches):
        told = [[] for _ in batch.seeds]
        for relation in batch.batch.blocks[-1].relations:
            if relation.dst_type != batch.seed_type:
                continue
            columns = [batch.n_id[relation.src_type][relation.source]]
            columns += [] if relation.edge is None else [relation.edge, *relation.columns.values()]
            for seed in range(len(batch.seeds)):
                mine = slice(*relation.indptr[seed : seed + 2].tolist())
                told[seed].append((relation.relation, *(str(column[mine].tolist()) for column in columns)))
        found |= {(step, seed, *rest) for seed, rest in zip(batch.seeds.tolist(), told, strict=True)}
    return found


@pytest.mark.parametrize("mode", ["uniform", "weighted", "labor"])
@pytest.mark.parametrize("make", [weighted, one_type])
def test_out_edges_are_the_in_edges_of_the_turned_graph(comm, mpi_tmp_path, make, mode):
    """Neighbors, weights and columns; on all ranks and on one, by the owners and in shared memory."""
    parts = make_static_parts(comm, make, mpi_tmp_path / "straight", out_edges=True)
    reverse = make_static_parts(comm, turned(make), mpi_tmp_path / "turned")
    found = []
    for who, folder, direction, topology in (
        (MPI.COMM_SELF, reverse, "in", "auto"), (comm, parts, "out", "sharded"), (comm, parts, "out", "replicated"),
    ):  # fmt: skip
        graph = open_directed(who, folder, direction)
        found.append(union(who, edges_of_seeds(loaded(who, graph, strategy=mode, topology=topology, **COLUMNS))))
        graph.close()
    assert found[0] == found[1] == found[2]


@pytest.mark.several_ranks
def test_runs_along_out_edges_give_one_answer(comm, mpi_tmp_path):
    parts = make_static_parts(comm, plain, mpi_tmp_path, out_edges=True)
    run_both(comm, parts, mpi_tmp_path, static_config(sampling__direction="out", model__kind="gcn"))


def dated(path):
    """Edges have times."""
    facts(path)
    with h5py.File(path, "r+") as file:
        write_columns(file["edges"][FACTS], {"time": np.random.default_rng(3).integers(0, 50, 200)})


STRICT = {"task__strict": True, "task__negative_ends": "both", "task__negatives": 2, "train__train_metrics": True}
QUERIES = {"task__loss": "k_vs_all", "task__negative_ends": "both", "model__kind": "none", "model__layers": 0,
           "sampling__fanouts": []}  # fmt: skip
LATER = {"task__decoder": "distmult", "eval__ranking": "filtered", "eval__message_edges": "train_val"}
ON_EDGES = {
    "sampled": (facts, FACTS, STRICT | {"task__decoder": "complex", "model__kind": "rgat"}),
    "all neighbors": (friends, FRIENDS, STRICT | {"task__decoder": "mlp", "sampling__fanouts": [-1, -1]}),
    "ranks": (facts, FACTS, LATER | {"model__kind": "rgcn"}),
    "queries": (facts, FACTS, QUERIES | {"task__decoder": "complex", "eval__ranking": "filtered"}),
    "times": (dated, FACTS, {"sampling__time_column": "time", "sampling__strategy": "recent", "eval__negatives": 3}),
    "two types": (shop, BUYS, {"task__decoder": "mlp", "eval__ranking": "destinations"}),
    "classes": (payments, PAYS, {"task__kind": "edge", "task__edge_columns": ["amount", "tags"]}),
    "numbers": (numbers, PAYS, {"task__kind": "edge_regression", "eval__exact": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", ON_EDGES)
def test_runs_on_edges_along_out_edges_are_those_on_the_turned_graph(comm, mpi_tmp_path, case):
    """Of the same pairs: losses, metrics and weights. There, what steps leave out are the reverses of the pairs."""
    make, relation, changes = ON_EDGES[case]
    src, rel, dst = files.split_relation(relation)
    pairs, back = (files.relation_name(*ends) for ends in ((src, "pairs", dst), (dst, rel, src)))
    none = [0] * len(changes.get("sampling__fanouts", FANOUTS))
    unfollowed = {files.relation_name(dst, "pairs", src): none}
    ways = {
        "out": {"task__relation": relation, "task__reverse": "none", "sampling__relation_fanouts": unfollowed},
        "in": {"task__relation": pairs, "task__reverse": back, "sampling__relation_fanouts": {pairs: none}},
    }
    weights = []
    for way, settings in ways.items():
        folder = mpi_tmp_path / way
        parts = make_static_parts(comm, with_pairs(make, relation, way == "in"), folder, out_edges=True)
        config = link_config(**changes, **settings, sampling__direction=way)
        trainer = open_graph_trainer(comm, parts, folder, config)
        trainer.start()
        trainer.run()
        weights.append(trainer.flat.parameter.detach())
    torch.testing.assert_close(*weights, rtol=1e-9, atol=1e-12)
    if comm.rank == 0:
        assert_same_records(mpi_tmp_path / "out", mpi_tmp_path / "in")


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", ON_EDGES)
def test_runs_on_edges_along_out_edges_give_one_answer(comm, mpi_tmp_path, case):
    make, relation, changes = ON_EDGES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path, out_edges=True)
    config = link_config(**changes, task__relation=relation, sampling__direction="out")
    run_both(comm, parts, mpi_tmp_path, config)


@pytest.mark.parametrize("case", ["sampled", "numbers"])
def test_a_stopped_run_on_edges_along_out_edges_resumes_exactly(comm, mpi_tmp_path, case):
    make, _, changes = ON_EDGES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path, out_edges=True)
    resume_both(comm, parts, mpi_tmp_path, link_config(**changes, sampling__direction="out"))


def test_out_edges_must_be_stored(comm, mpi_tmp_path):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    with pytest.raises(DistributedError, match="no out-edges are stored; partition again with --out_edges"):
        open_graph_session(comm, parts, static_config(sampling__direction="out"))
    with pytest.raises(DistributedError, match="direction must be one of in, out, got 'up'"):
        open_directed(comm, parts, "up")


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
@pytest.mark.parametrize("make", [weighted, one_type])
def test_rows_and_columns_are_those_of_the_graph(comm, mpi_tmp_path, make, subgraph_type, topology):
    """Of every edge of every block; induced subgraphs hold all edges among their nodes."""
    graph = open_graph(comm, make_static_parts(comm, make, mpi_tmp_path))
    rows = graph_rows(mpi_tmp_path)
    for batch in loaded(comm, graph, subgraph_type=subgraph_type, topology=topology, strategy="weighted", **COLUMNS):
        for block in batch.batch.blocks:
            for relation in block.relations:
                known, edge = rows[relation.relation], relation.edge.numpy()
                dst = np.repeat(np.arange(len(relation.indptr) - 1), np.diff(relation.indptr))
                assert np.array_equal(batch.n_id[relation.src_type][relation.source].numpy(), known["src"][edge])
                assert np.array_equal(batch.n_id[relation.dst_type].numpy()[dst], known["dst"][edge])
                assert list(relation.columns) == ["feat", "weight"]
                assert all(np.array_equal(c.numpy(), known[name][edge]) for name, c in relation.columns.items())
                if subgraph_type == "induced":
                    src, dst = (batch.n_id[kind].numpy() for kind in (relation.src_type, relation.dst_type))
                    inside = np.isin(known["src"], src) & np.isin(known["dst"], dst)
                    assert np.array_equal(np.sort(edge), np.flatnonzero(inside))
    graph.close()


def test_runs_with_columns_of_edges(comm, mpi_tmp_path):
    """For models of one's own: in the blocks of all splits."""
    parts, config = make_static_parts(comm, plain, mpi_tmp_path), static_config(sampling__edge_columns=["weight"])
    session, (known,) = open_graph_session(comm, parts, config), graph_rows(mpi_tmp_path)
    for split in ("train", "val"):
        with session.plans(split, 0) as plans:
            for plan in plans:
                for relation in (relation for block in plan.batch.blocks for relation in block.relations):
                    assert np.array_equal(relation.columns["weight"].numpy(), known["weight"][relation.edge])
    with pytest.raises(DistributedError, match="no relation has a column length"):
        open_graph_session(comm, parts, static_config(sampling__edge_columns=["length"]))


@pytest.mark.parametrize("topology", ["sharded", "replicated"])
def test_induced_subgraphs_are_the_same_from_several_threads(comm, mpi_tmp_path, topology):
    graph = open_graph(comm, make_static_parts(comm, weighted, mpi_tmp_path))
    options = {"with_edge_ids": True, "subgraph_type": "induced", "prefetch": 2, "topology": topology}
    one, two = (edges_of_seeds(loaded(comm, graph, in_flight=number, **options)) for number in (1, 2))
    assert one == two


@pytest.mark.several_ranks
def test_edges_of_all_ranks_are_those_of_one(comm, mpi_tmp_path):
    parts = make_static_parts(comm, weighted, mpi_tmp_path)
    for options in ({"with_edge_ids": True, "strategy": "replace"}, COLUMNS):
        found = [union(who, edges_of_seeds(loaded(who, open_graph(who, parts), prefetch=2, **options)))
                 for who in (comm, MPI.COMM_SELF)]  # fmt: skip
        assert found[0] == found[1]


def test_induced_subgraph_of_given_nodes(comm, mpi_tmp_path):
    """Each rank names nodes of its own, of any rank; one names none."""
    graph = open_graph(comm, make_static_parts(comm, weighted, mpi_tmp_path))
    rng = np.random.default_rng(comm.rank)
    chosen = {"a": rng.choice(40, 15, replace=False), "b": rng.choice(20, 9, replace=False)} if comm.rank != 1 else {}
    block = induced_subgraph(graph, chosen)
    nodes = [chosen.get(name, np.empty(0, np.int64)) for name in graph.types]
    assert block.num_src == block.num_dst == tuple(map(len, nodes))
    for relation, known in zip(block.relations, graph_rows(mpi_tmp_path), strict=True):
        src, dst = nodes[relation.src_type], nodes[relation.dst_type]
        inside = np.isin(known["src"], src) & np.isin(known["dst"], dst)
        assert np.array_equal(np.sort(relation.edge.numpy()), np.flatnonzero(inside))
        pairs = zip(src[relation.source], np.repeat(dst, np.diff(relation.indptr)), strict=True)
        assert Counter(pairs) == Counter(zip(known["src"][inside], known["dst"][inside], strict=True))
    for wrong, message in (
        ({"a": [3, 3]}, "some a is named twice"),
        ({"b": [20]}, "b 20 is not a node"),
        ({"x": [0]}, "no node type 'x'"),
    ):
        with pytest.raises(DistributedError, match=message):
            induced_subgraph(graph, wrong)


def test_a_model_runs_on_induced_subgraphs(comm, mpi_tmp_path):
    """As PyTorch Geometric's data, too: every edge among the nodes once."""
    graph = open_graph(comm, make_static_parts(comm, one_type, mpi_tmp_path))
    for data in loaded(comm, graph, subgraph_type="induced", as_data="pyg", **COLUMNS):
        (known,) = graph_rows(mpi_tmp_path)
        inside = np.isin(known["src"], data.n_id) & np.isin(known["dst"], data.n_id)
        assert np.array_equal(np.sort(data.e_id.numpy()), np.flatnonzero(inside))
        assert np.array_equal(data.n_id[data.edge_index].numpy(), np.stack([known["src"], known["dst"]])[:, data.e_id])
        assert np.array_equal(data.edge_attr.numpy(), known["feat"][data.e_id])
        assert np.array_equal(data.edge_weight.numpy(), known["weight"][data.e_id])
        assert data.validate()


def test_data_along_out_edges_keeps_their_direction(comm, mpi_tmp_path):
    parts = make_static_parts(comm, weighted, mpi_tmp_path, out_edges=True)
    for data in loaded(comm, open_directed(comm, parts, "out"), as_data="pyg", with_edge_ids=True):
        assert data.validate()
        for name, known in zip(data.edge_types, graph_rows(mpi_tmp_path), strict=True):
            src, dst = (data[kind].n_id[at] for kind, at in zip(name[::2], data[name].edge_index, strict=True))
            assert np.array_equal(src, known["src"][data[name].e_id])
            assert np.array_equal(dst, known["dst"][data[name].e_id])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_columns": ("length",)}, "no relation has a column length; there are weight"),
        ({"subgraph_type": "bidirectional"}, "subgraph_type must be one of directional, induced"),
    ],
)
def test_what_cannot_be_told_of_edges_is_refused(comm, mpi_tmp_path, changes, message):
    graph = open_graph(comm, make_static_parts(comm, plain, mpi_tmp_path))
    with pytest.raises(DistributedError, match=message):
        NeighborLoader(graph, "train", FANOUTS, 8, **changes)
