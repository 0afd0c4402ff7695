"""Sampling servers beside a loop of the user: the batches of all loaders are those that the trainers alone draw, bit by
bit; what ends the loop ends the servers. S servers and T trainers are the ranks there are."""

from __future__ import annotations

import dataclasses
import gc
import importlib

import numpy as np
import pytest
import torch
from link_graphs import friends, shop
from mpi4py import MPI
from places import REPOSITORY
from static_runs import chances, make_static_parts, plain, typed

from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.static.config import FeatureConfig
from hpcgnn.static.link_loader import LinkNeighborLoader
from hpcgnn.static.loader import NeighborLoader
from hpcgnn.static.sampling.neighbors import NeighborSampler
from hpcgnn.static.servers import loop as servers
from hpcgnn.static.servers.loop import beside_servers

pytestmark = pytest.mark.several_ranks


class LastNeighbors(NeighborSampler):
    """The last ``fanout`` in-neighbors in order of edge row."""

    def draw(self, lists, nodes, fanout, random):
        last, degree = lists.indptr[nodes + 1], np.diff(lists.indptr)[nodes]
        count = np.minimum(degree, fanout)
        offsets = np.concatenate(([0], np.cumsum(count)))
        return offsets, np.repeat(last - count - offsets[:-1], count) + np.arange(offsets[-1])


def flat(value) -> list:
    """All numbers of a batch, in order."""
    if isinstance(value, torch.Tensor):
        return [value.numpy()]
    if dataclasses.is_dataclass(value):
        return flat([getattr(value, field.name) for field in dataclasses.fields(value)])
    if hasattr(value, "to_dict"):
        return flat(value.to_dict())
    if isinstance(value, dict):
        return [item for name, of in value.items() for item in [name, *flat(of)]]
    if isinstance(value, list | tuple):
        return [item for of in value for item in flat(of)]
    return [value]


def run(comm, samplers: int, parts, loop, features=None, direction="in", **options):
    """Collective. The loop's result at trainers."""
    config = CommConfig(device="cpu", threads=1, sampling_servers=samplers, **options)
    return beside_servers(loop, parts, World(config, comm), features, torch.float64, direction=direction)


def check(comm, turn: int, parts, loop, direction="in", **options) -> None:
    """Collective. Trainers have the same batches with servers as without. The number of servers goes round."""
    samplers = 1 + turn % (comm.size - 1)
    found = run(comm, samplers, parts, loop, direction=direction, **options)
    part = comm.Split(comm.rank >= comm.size - samplers, comm.rank)
    if comm.rank < comm.size - samplers:
        expected = run(part, 0, parts, loop, direction=direction)
        assert len(found) == len(expected) > 0
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
            assert not isinstance(one, np.ndarray) or one.dtype == other.dtype
    else:
        assert found is None
    part.Free()


def batches(*loaders) -> list:
    return flat([list(loader) for loader in loaders])


OPTIONS = {
    "plain": (plain, {}),
    "in flight": (typed, {"in_flight": 2, "prefetch": 3}),
    "foreground": (plain, {"prefetch": 0}),
    "replicated": (typed, {"topology": "replicated"}),
    "labor": (plain, {"strategy": "labor"}),
    "weighted": (chances, {"strategy": "weighted", "weight_column": "chance"}),
    "edges": (plain, {"edge_columns": ["weight"], "with_edge_ids": True}),
    "induced": (typed, {"subgraph_type": "induced"}),
    "induced from copies": (plain, {"subgraph_type": "induced", "topology": "replicated", "with_edge_ids": True}),
    "class": (plain, {"sampler": LastNeighbors}),
    "columns": (typed, {"node_columns": ["label"], "relation_fanouts": {"venue.prints.paper": [0, 2]}}),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_batches_of_nodes_are_the_same(comm, mpi_tmp_path, case):
    """Of training in two epochs, and of all nodes of a split."""
    make, options = OPTIONS[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)

    def loop(graph):
        train = NeighborLoader(graph, "train", [3, 2], 30, **options)
        test = NeighborLoader(graph, "test", [2, 2], 20, **options)
        return batches(train, test, train)

    check(comm, list(OPTIONS).index(case), parts, loop)


@pytest.mark.parametrize("as_data", ["pyg", "hetero"])
def test_batches_of_pyg_are_the_same(comm, mpi_tmp_path, as_data):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    parts = make_static_parts(comm, plain, mpi_tmp_path)

    def loop(graph):
        options = {"as_data": as_data, "edge_columns": ["weight"], "by_hop": as_data == "pyg"}
        return batches(NeighborLoader(graph, "train", [3, 2], 30, **options))

    check(comm, len(as_data), parts, loop)


def chosen_edges(graph, relation: str) -> dict:
    number = graph.partition.relations[graph.partition.relation_of(relation)].num_edges
    return {
        "split": (relation, "train"),
        "held out": (relation, "val"),
        "mask": (relation, np.arange(number) % 3 == 0),
        "rows": (relation, graph.edges(relation)[::2]),
        "pairs": (relation, np.array([[0, 1, 2, 3], [4, 5, 6, 2]])),
    }


@pytest.mark.parametrize(("make", "direction"), [(friends, "in"), (shop, "in"), (shop, "out")])
@pytest.mark.parametrize("options", [{}, {"topology": "replicated", "in_flight": 2, "prefetch": 2}], ids=["", "copies"])
def test_batches_of_edges_are_the_same(comm, mpi_tmp_path, make, direction, options):
    """Steps of training leave out their seeds, copies and reverses, whichever way seeds are chosen."""
    parts = make_static_parts(comm, make, mpi_tmp_path, out_edges=True)
    relation = "node.meets.node" if make is friends else "user.buys.item"

    def loop(graph):
        found = []
        for name, edges in chosen_edges(graph, relation).items():
            drawn = {"neg_sampling": "triplet", "strict": True} if name == "split" else {"neg_sampling": "binary"}
            loader = LinkNeighborLoader(
                graph, edges, [3, -1], 20, shuffle=name in ("split", "mask"), **drawn, **options
            )
            found += batches(loader, loader)
        return found

    check(comm, len(options) + (make is shop), parts, loop, direction)


@pytest.mark.parametrize("wire", ["", "float16"])
def test_servers_that_hold_the_features_send_them(comm, mpi_tmp_path, wire):
    parts = make_static_parts(comm, typed, mpi_tmp_path)

    def loop(graph):
        if graph.servers is not None:
            assert not any("feature" in rows.tables for rows in graph.rows)
        return batches(NeighborLoader(graph, "train", [3, 2], 30))

    if wire:
        found = run(comm, 1, parts, loop, FeatureConfig(wire=wire), server_features=True)
        assert found or comm.rank == comm.size - 1
    else:
        check(comm, 1, parts, loop, server_features=True)


def test_loaders_come_and_go(comm, mpi_tmp_path):
    """Side by side, in the middle of an epoch, and one after the other on the same lanes."""
    parts = make_static_parts(comm, friends, mpi_tmp_path)
    relation, lanes = "node.meets.node", []

    def loop(graph):
        options = {"in_flight": 2, "prefetch": 2}
        one = LinkNeighborLoader(graph, (relation, "train"), [3, 2], 20, **options)
        other = NeighborLoader(graph, ("node", np.ones(60, bool)), [2], 9, shuffle=True, **options)
        found = flat([pair for pair, _ in zip(zip(one, other, strict=False), range(3), strict=False)])
        found += flat([next(iter(one)), list(other), next(iter(one))])
        for size in (10, 20, 30):
            loader = LinkNeighborLoader(graph, (relation, "train"), [3, 2], size, topology="replicated", **options)
            found += flat(next(iter(loader)))
            if size == 20:
                loader.close()
            del loader
            gc.collect()
        if graph.servers is not None:
            lanes.append(len(graph.servers._crew.lanes))
        return found

    check(comm, 1, parts, loop)
    assert set(lanes) <= {7}  # of the announcements, of two loaders, and of those one after the other


@pytest.mark.parametrize("how", ["returns", "exits", "error"])
def test_servers_end_with_the_loop(comm, mpi_tmp_path, how):
    """In the middle of an epoch, whose next steps are requested already."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)

    def loop(graph):
        loader = NeighborLoader(graph, "train", [3, 2], 8)
        for batch in loader:
            if how == "returns":
                return len(batch.x)
            if how == "exits":
                raise SystemExit(3)
            NeighborLoader(graph, "train", [3, 2], 0)
        return None

    if how == "returns":
        assert run(comm, 1, parts, loop) == (1 if comm.rank < comm.size - 1 else None)
    elif how == "exits":
        with pytest.raises(SystemExit) as caught:
            run(comm, 1, parts, loop)
        assert caught.value.code == 3
    else:
        with pytest.raises(DistributedError, match="batch_size must be at least 1"):
            run(comm, 1, parts, loop)


def test_a_loader_that_servers_cannot_make_is_refused_and_the_loop_goes_on(comm, mpi_tmp_path, monkeypatch):
    parts, make = make_static_parts(comm, plain, mpi_tmp_path), servers.make_draw

    def refuse(graph, options, *arguments):
        if options.seed == 5:
            raise DistributedError("no room for the edges", user_error=True)
        return make(graph, options, *arguments)

    monkeypatch.setattr(servers, "make_draw", refuse)

    def loop(graph):
        first = len(list(NeighborLoader(graph, "train", [3, 2], 30)))
        with pytest.raises(DistributedError, match="no room for the edges"):
            NeighborLoader(graph, "train", [3, 2], 30, seed=5)
        return first, len(list(NeighborLoader(graph, "train", [3, 2], 30, seed=6)))

    assert run(comm, 1, parts, loop) in ((3, 3), (4, 4), None)


class Local:
    """Makes a class that no other rank finds."""

    def make(self):
        class Hidden(NeighborSampler):
            pass

        return Hidden


@pytest.mark.parametrize(("options", "reason"), [
    ({"disjoint": True}, "disjoint: the owners of nodes draw: leave it out, or comm.sampling_servers 0"),
    ({"sampler": Local().make()}, "sampler: .*Hidden.*: define the class in a module"),
])  # fmt: skip
def test_options_that_need_the_owners_are_refused(comm, mpi_tmp_path, options, reason):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    with pytest.raises(DistributedError, match=reason):
        run(comm, 1, parts, lambda graph: NeighborLoader(graph, "train", [3, 2], 30, **options))


def test_a_set_that_cannot_be_opened_is_refused_on_both_sides(comm, mpi_tmp_path):
    with pytest.raises(DistributedError, match=r"book\.h5"):
        run(comm, 1, mpi_tmp_path, lambda graph: None)
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    with pytest.raises(DistributedError, match="hold no features: leave out cache_ratio of features"):
        run(comm, 1, parts, lambda graph: None, FeatureConfig(cache_ratio=0.1), server_features=True)
    with pytest.raises(DistributedError, match=f"sampling_servers {comm.size} leaves no trainer"):
        run(comm, comm.size, parts, lambda graph: None)


def test_servers_draw(comm, mpi_tmp_path, monkeypatch):
    """And trainers do not."""
    parts, drawn = make_static_parts(comm, typed, mpi_tmp_path), []
    ask = NeighborSampler.ask
    monkeypatch.setattr(NeighborSampler, "ask", lambda *given: drawn.append(1) or ask(*given))
    run(comm, 1, parts, lambda graph: list(NeighborLoader(graph, "train", [3, 2], 30)) and None)
    assert bool(drawn) == (comm.rank == comm.size - 1)


def test_server_loop(comm, mpi_tmp_path, monkeypatch):
    """The example learns what it learns on its trainers alone."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples" / "further"))
    loop = importlib.import_module("server_loop").loop
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    found = run(comm, 1, parts, loop)
    alone = run(MPI.COMM_SELF, 0, parts, loop)
    assert found == (None if comm.rank == comm.size - 1 else pytest.approx(alone, rel=1e-9))
    assert alone[-1] < alone[0]
