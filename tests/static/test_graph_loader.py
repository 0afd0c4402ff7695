"""The loader of a training loop of one's own: the same batches on any number of ranks, new ones every epoch, as PyG's
data too, by a sampler of one's own too."""

from __future__ import annotations

import importlib.util
from collections import Counter

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from random_graphs import write_graph
from static_runs import make_static_parts, plain, typed

from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.static.batches import NeighborBatch
from hpcgnn.static.config import FeatureConfig
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.loader import NeighborLoader, own_rows
from hpcgnn.static.sampling.neighbors import NeighborSampler

FANOUTS = [3, 2]


class FirstNeighbors(NeighborSampler):
    """The first ``fanout`` in-neighbors in order of edge row."""

    def draw(self, lists, nodes, fanout, random):
        indptr = lists.indptr
        count = np.minimum(indptr[nodes + 1] - indptr[nodes], fanout)
        offsets = np.concatenate(([0], np.cumsum(count)))
        return offsets, np.repeat(indptr[nodes] - offsets[:-1], count) + np.arange(offsets[-1])


@pytest.fixture(params=[typed, plain], ids=["typed", "plain"])
def parts(comm, mpi_tmp_path, request):
    """A typed graph, and one of one type, in 8 parts."""
    return make_static_parts(comm, request.param, mpi_tmp_path)


@pytest.fixture
def plain_parts(comm, mpi_tmp_path):
    """A graph of one type in 8 parts."""
    return make_static_parts(comm, plain, mpi_tmp_path)


@pytest.fixture
def typed_parts(comm, mpi_tmp_path):
    """A typed graph in 8 parts."""
    return make_static_parts(comm, typed, mpi_tmp_path)


def open_graph(comm, parts, features: FeatureConfig | None = None, ranks_per_machine: int = 0) -> StaticGraph:
    """Collective."""
    world = World(CommConfig(device="cpu", threads=1, ranks_per_machine=ranks_per_machine), comm)
    return StaticGraph(parts, world, features, torch.float64)


def describe(batches: list[NeighborBatch]) -> set:
    """Every seed of a step, its label and input row, and what its hops sampled (of a batch's blocks the last is the
    seeds' own)."""
    found = set()
    for step, batch in enumerate(batches):
        neighbors = [[] for _ in batch.seeds]
        for relation in batch.batch.blocks[-1].relations:
            if relation.dst_type == batch.seed_type:
                source = batch.n_id[relation.src_type][relation.source].tolist()
                for seed in range(len(batch.seeds)):
                    begin, end = relation.indptr[seed : seed + 2].tolist()
                    neighbors[seed].append((relation.relation, *source[begin:end]))
        rows = batch.x[batch.seed_type][: len(batch.seeds)]
        found |= {
            (step, seed, label, place, *row, *sampled)
            for seed, label, place, row, sampled in zip(
                batch.seeds.tolist(), batch.y.tolist(), batch.input_id.tolist(), rows.tolist(), neighbors, strict=True
            )
        }
    return found


def union(comm, found: set) -> set:
    """Collective. Of all ranks, with no element twice."""
    everyone = comm.allgather(found)
    assert sum(map(len, everyone)) == len(set().union(*everyone))
    return set().union(*everyone)


@pytest.mark.parametrize("topology", ["sharded", "replicated"])
@pytest.mark.parametrize("case", ["uniform", "labor", "own", "copies"])
def test_batches_of_all_ranks_are_those_of_one(comm, parts, case, topology):
    """In two epochs, with plans ahead, two of them in flight, and without; with copies of hot rows; by a sampler of
    one's own."""
    options = {"strategy": "labor"} if case == "labor" else {"sampler": FirstNeighbors} if case == "own" else {}
    features = FeatureConfig(cache_ratio=0.3) if case == "copies" else None

    def epochs(communicator, prefetch: int) -> list[set]:
        graph = open_graph(communicator, parts, features, ranks_per_machine=1 if case == "copies" else 0)
        loader = NeighborLoader(
            graph, "train", FANOUTS, 16, prefetch=prefetch, in_flight=max(1, prefetch - 1), seed=4, topology=topology,
            **options,
        )  # fmt: skip
        found = [union(communicator, describe(list(loader))) for _ in range(2)]
        graph.close()
        return found

    found = epochs(comm, 0)
    assert found == epochs(comm, 3) == epochs(MPI.COMM_SELF, 0)
    assert found[0] != found[1]


def test_a_sampler_of_ones_own_decides(comm, plain_parts, mpi_tmp_path):
    with h5py.File(mpi_tmp_path / "graph.h5") as file:
        src, dst = (file["edges/node.meets.node"][name][()] for name in ("src", "dst"))
    loader = NeighborLoader(open_graph(comm, plain_parts), "test", FANOUTS, 16, sampler=FirstNeighbors)
    for batch in loader:
        (relation,) = batch.batch.blocks[-1].relations
        source = batch.n_id[0][relation.source].numpy()
        for number, seed in enumerate(batch.seeds.tolist()):
            found = source[relation.indptr[number] : relation.indptr[number + 1]]
            assert np.array_equal(found, src[dst == seed][: FANOUTS[0]])


def test_epochs_repeat_by_number_and_seed(comm, parts):
    graph = open_graph(comm, parts)
    loader = NeighborLoader(graph, "train", FANOUTS, 16, prefetch=2)
    first, second = describe(list(loader)), describe(list(loader))
    loader.set_epoch(0)
    for _ in loader:  # an iteration left behind, then another one
        break
    assert describe(list(loader)) == second
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(0)
    assert describe(list(loader)) == first
    assert list(iterator) == []  # the later one ended it
    other = NeighborLoader(graph, "train", FANOUTS, 16, seed=1)
    assert union(comm, describe(list(other))) != union(comm, first)


def test_a_closed_graph_ends_what_is_under_way(comm, plain_parts):
    graph = open_graph(comm, plain_parts)
    loaders = [NeighborLoader(graph, "train", FANOUTS, 16, prefetch=2, topology="replicated") for _ in range(2)]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    graph.close()
    assert [list(iterator) for iterator in iterators] == [[], []]


@pytest.mark.parametrize("drop_last", [False, True])
def test_steps_and_their_sizes(comm, plain_parts, drop_last):
    graph = open_graph(comm, plain_parts)
    total = comm.allreduce(int((graph.partition.columns[0]["split"] == 0).sum()))
    loader = NeighborLoader(graph, "train", FANOUTS, 16, drop_last=drop_last)
    batches = list(loader)
    sizes = [sum(comm.allgather(len(batch.seeds))) for batch in batches]
    assert sizes == [batch.batch_size for batch in batches]
    assert len(loader) == len(sizes)
    assert sizes == [16] * (total // 16) + [total % 16] * (not drop_last)


def test_nodes_of_ones_choice(comm, typed_parts):
    """By mask of all nodes and by own rows; without shuffling a mask in order of row, a list in its own, rank after
    rank; input_id is the place in either; a type without labels and features."""
    graph = open_graph(comm, typed_parts)
    mine = graph.nodes("author")
    chosen = mine[mine % 3 == 0]
    listed = chosen[::-1].copy()
    everyone = {False: np.arange(70), True: np.concatenate(comm.allgather(listed))}
    for given in (torch.arange(70) % 3 == 0, torch.from_numpy(listed)):
        is_list = given.dtype != torch.bool
        batches = list(NeighborLoader(graph, ("author", given), FANOUTS, 8))
        expected = everyone[True] if is_list else np.arange(0, 70, 3)
        for number, batch in enumerate(batches):
            assert np.array_equal(everyone[is_list][np.asarray(batch.input_id)], np.asarray(batch.seeds))
            seeds = np.concatenate(comm.allgather(batch.seeds.numpy()))
            assert set(seeds) == set(expected[8 * number : 8 * (number + 1)])
            if comm.size == 1:
                assert np.array_equal(seeds, expected[8 * number : 8 * (number + 1)])
        assert all(batch.y is None and batch.x[1] is None and not batch.batch.training for batch in batches)
    assert NeighborLoader(graph, ("paper", "val"), FANOUTS, 8).seed_type == 0


@pytest.mark.several_ranks
def test_ranks_without_seeds_know_the_widths(comm, typed_parts):
    """Batches of one seed: a lazy layer gets its width from any batch, and gradients are those of one rank."""

    def train(communicator) -> torch.Tensor:
        graph = open_graph(communicator, typed_parts)
        loader = NeighborLoader(graph, "train", FANOUTS, 1)
        torch.manual_seed(0)
        lazy, gradient = torch.nn.LazyLinear(3, dtype=torch.float64), 0.0
        for _, batch in zip(range(5), loader, strict=False):
            assert tuple(0 if x is None else x.shape[1] for x in batch.x) == graph.widths == (5, 0, 2)
            lazy(batch.x[0][: len(batch.seeds)]).square().sum().backward()
        gradient = lazy.weight.grad.numpy()
        return graph.world.reduce_array(gradient)

    np.testing.assert_allclose(train(comm), train(MPI.COMM_SELF), rtol=1e-12)


def test_data_of_one_type(comm, plain_parts, mpi_tmp_path):
    graph = open_graph(comm, plain_parts)
    with h5py.File(mpi_tmp_path / "graph.h5") as file:
        src, dst = (file["edges/node.meets.node"][name][()] for name in ("src", "dst"))
        pairs = Counter(zip(src.tolist(), dst.tolist(), strict=True))
        feat, label = file["nodes/node/feat"][()], file["nodes/node/label"][()]
    plainly = NeighborLoader(graph, "train", FANOUTS, 16)
    for batch, data in zip(plainly, NeighborLoader(graph, "train", FANOUTS, 16, as_data="pyg"), strict=True):
        assert data.validate()
        assert data.batch_size == len(batch.seeds)
        assert data.num_seeds == batch.batch_size
        assert torch.equal(data.n_id[: data.batch_size], batch.seeds)
        assert np.array_equal(data.x.numpy(), feat[data.n_id])
        assert np.array_equal(data.y.numpy(), label[batch.seeds])
        found = [tuple(pair) for pair in data.n_id[data.edge_index].T.tolist()]
        assert Counter(found) <= pairs
        layered = {tuple(pair) for edges, _ in data.adjs for pair in data.n_id[edges].T.tolist()}
        assert layered == set(found)
        sizes = [size for _, size in data.adjs]
        assert sizes == [(block.num_src[0], block.num_dst[0]) for block in batch.batch.blocks]
        assert sizes[0][0] == data.num_nodes


def test_columns_of_all_nodes(comm, plain_parts, mpi_tmp_path):
    """Labels as y of all nodes, the seeds first, and in HeteroData of a graph of one type."""
    graph = open_graph(comm, plain_parts)
    with h5py.File(mpi_tmp_path / "graph.h5") as file:
        label, split = file["nodes/node/label"][()], file["nodes/node/split"][()]
    loader = NeighborLoader(graph, "train", FANOUTS, 16, as_data="hetero", node_columns=["label", "split"])
    plainly = NeighborLoader(graph, "train", FANOUTS, 16)
    for batch, data in zip(plainly, loader, strict=True):
        assert data.validate()
        assert (data.node_types, data.edge_types) == (["node"], [("node", "meets", "node")])
        assert data.input_type == "node"
        store = data["node"]
        assert np.array_equal(store.y.numpy(), label[store.n_id])
        assert np.array_equal(store.split.numpy(), split[store.n_id])
        assert torch.equal(store.y[: store.batch_size], batch.y)


def parallel(path):
    """Node 1 leads to node 0 three times, node 2 once."""
    nodes = {"node": {"feat": np.arange(5.0)[:, None], "label": np.zeros(5, int), "split": np.zeros(5, np.int8)}}
    edges = {"src": np.array([1, 1, 1, 2, 3, 4]), "dst": np.array([0, 0, 0, 0, 1, 2])}
    return write_graph(path, nodes, {("node", "meets", "node"): edges}, "static")


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("kind", ["directional", "induced"])
def test_data_has_every_parallel_edge(comm, mpi_tmp_path, with_ids, kind):
    """As PyTorch Geometric's loader has: the mean over the in-neighbors 1, 1, 1, 2 is 1.25; ids change nothing."""
    graph = open_graph(comm, make_static_parts(comm, parallel, mpi_tmp_path, parts=4))
    mask = torch.arange(5) == 0
    (data,) = NeighborLoader(
        graph, ("node", mask), [-1, -1], 1, as_data="pyg", with_edge_ids=with_ids, subgraph_type=kind
    )
    assert ("e_id" in data) == with_ids
    if data.batch_size:
        (source, destination), n_id = data.edge_index, data.n_id
        assert sorted(n_id[source[destination == 0]].tolist()) == [1, 1, 1, 2]
        assert data.x[source[destination == 0]].mean() == 1.25
        assert sorted(zip(n_id[source].tolist(), n_id[destination].tolist(), strict=True)) == [
            (1, 0), (1, 0), (1, 0), (2, 0), *([(3, 1), (4, 2)])
        ]  # fmt: skip


def test_data_of_a_hop_without_neighbors(comm, plain_parts):
    """Its edges are none."""
    for data in NeighborLoader(open_graph(comm, plain_parts), "train", [3, 0], 16, as_data="pyg"):
        assert data.validate()
        (none, sizes), _ = data.adjs
        assert none.shape == (2, 0)
        assert sizes[0] == sizes[1] == data.num_nodes


def test_data_of_several_types(comm, typed_parts):
    graph = open_graph(comm, typed_parts)
    plainly = NeighborLoader(graph, "train", FANOUTS, 16)
    for batch, data in zip(plainly, NeighborLoader(graph, "train", FANOUTS, 16, as_data="pyg"), strict=True):
        assert data.validate()
        assert data["paper"].batch_size == len(batch.seeds)
        assert torch.equal(data["paper"].y, batch.y)
        assert "x" not in data["author"]
        assert data["author"].num_nodes == len(batch.n_id[1])
        assert [".".join(name) for name in data.edge_types] == list(graph.relations)
        for name in data.edge_types:
            pieces = [adjs[name][0] for adjs in data.adjs]
            expected = torch.unique(torch.cat(pieces, dim=1), dim=1)
            assert torch.equal(torch.unique(data[name].edge_index, dim=1), expected)
            assert data[name].edge_index.shape[1] >= max(piece.shape[1] for piece in pieces)


def test_data_of_a_relation_that_is_not_followed_has_no_edges(comm, typed_parts, monkeypatch):
    """A fanout of 0 leaves the relation, without edges; without torch-geometric there is no such data."""
    relation, options = "author.writes.paper", {"batch_size": 16, "as_data": "pyg"}
    graph = open_graph(comm, typed_parts)
    loader = NeighborLoader(graph, "train", FANOUTS, relation_fanouts={relation: [0, 0]}, **options)
    for data in loader:
        assert data[tuple(relation.split("."))].edge_index.shape == (2, 0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DistributedError, match="as_data 'pyg' needs torch-geometric: pip install torch-geometric"):
        NeighborLoader(graph, "train", FANOUTS, **options)


@pytest.mark.parametrize(
    ("given", "changes", "message"),
    [
        ("all", {}, "train, val, test, got 'all'"),
        (("writer", "train"), {}, "no node type 'writer'"),
        (("author", "train"), {}, "input_nodes author has no column label"),
        (("venue", np.array([77])), {}, "venue 77 is not at this rank"),
        (("author", np.array([True] * 69)), {}, "an entry for each of all 70 author, by row, got 69"),
        (("author", np.ones((1, 70), bool)), {}, "in one dimension, got bool of shape .1, 70."),
        (("author", np.array([[1, 2]])), {}, "in one dimension, got int64 of shape .1, 2."),
        (("author", np.array([1.5])), {}, "by a mask or by integers, in one dimension, got float64"),
        ("train", {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ("train", {"as_data": "dgl"}, "as_data must be one of '', 'pyg', 'hetero', got 'dgl'"),
        ("train", {"relation_fanouts": {"a.b.c": [1, 1]}}, "no relation a.b.c"),
        ("train", {"node_columns": ["age"]}, "no node type has a column age; there are id, label, split"),
        ("train", {"strategy": "best"}, "sampling.strategy"),
        ("train", {"strategy": "whole"}, "sampling.strategy"),
    ],
)
def test_what_cannot_be_loaded_is_refused(comm, typed_parts, given, changes, message):
    graph = open_graph(comm, typed_parts)
    with pytest.raises(DistributedError, match=message):
        NeighborLoader(graph, given, FANOUTS, **({"batch_size": 8} | changes))


@pytest.mark.parametrize(
    ("name", "as_data", "message"),
    [
        ("id", "", r"column id of node type node has no numbers, but .*: leave it out, and look it up .* by n_id"),
        *((name, "pyg", f"node_columns: {name} has another meaning in PyTorch Geometric's Data: rename the column")
          for name in ("x", "y", "batch", "num_nodes", "n_id", "num_seeds", "edge_index", "edge_feat", "keys")),
    ],
)  # fmt: skip
def test_columns_without_numbers_or_with_a_name_of_data_are_refused(comm, mpi_tmp_path, name, as_data, message):
    def write(path):
        nodes = {"split": np.zeros(9, np.int8), "label": np.arange(9), "time": np.arange(9)}
        nodes[name] = np.array([b"a%d" % row for row in range(9)]) if name == "id" else np.arange(9.0)
        edges = {"src": np.arange(9), "dst": np.arange(9)[::-1].copy()}
        return write_graph(path, {"node": nodes}, {("node", "meets", "node"): edges}, "static")

    graph = open_graph(comm, make_static_parts(comm, write, mpi_tmp_path))
    with pytest.raises(DistributedError, match=message):
        NeighborLoader(graph, "train", [2], 4, node_columns=[name], as_data=as_data)
    loader = NeighborLoader(graph, "train", [2], 4, node_columns=["time"], as_data="")
    assert all((batch.columns[0]["time"] == batch.n_id[0]).all() for batch in loader)


@pytest.mark.serial
def test_nodes_are_named_once():
    own = np.array([4, 7, 9])
    assert own_rows(own, np.array([9, 4]), 10, "input_nodes", "venue", "").tolist() == [9, 4]
    with pytest.raises(ValueError, match="input_nodes: some venue is named twice"):
        own_rows(own, np.array([9, 4, 9]), 10, "input_nodes", "venue", "")
