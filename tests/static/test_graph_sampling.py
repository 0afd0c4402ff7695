"""Seeds, shuffles and blocks of static graphs, on any number of ranks, against the graph itself."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from static_runs import make_static_parts, open_graph_session, plain, static_config, typed

from hpcgnn.comm.world import DistributedError
from hpcgnn.graph import files
from hpcgnn.graph.directory import permute, permute_back
from hpcgnn.native import Random, Stream
from hpcgnn.static.plan import GraphSampler
from hpcgnn.static.sampling.draw import BlockSampler
from hpcgnn.static.sampling.neighbors import NeighborSampler


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 4097])
def test_a_permutation_hits_every_place_once(size):
    places = permute(np.arange(size), size, Random(3, Stream.SHUFFLE, epoch=2))
    assert np.array_equal(np.sort(places), np.arange(size))
    assert np.array_equal(permute_back(places, size, Random(3, Stream.SHUFFLE, epoch=2)), np.arange(size))
    assert size < 64 or not np.array_equal(places, permute(np.arange(size), size, Random(3, Stream.SHUFFLE, epoch=3)))


def test_a_permutation_is_even():
    """Where the first of 8 places goes, over 4,000 keys: chi-square with 7 degrees of freedom."""
    counts = np.zeros(8)
    for seed in range(4000):
        counts[permute(np.zeros(1, np.int64), 8, Random(seed, Stream.SHUFFLE))[0]] += 1
    assert ((counts - 500) ** 2 / 500).sum() < 24.3  # 0.1 %


@pytest.fixture
def session(comm, mpi_tmp_path):
    """A session on a typed graph."""
    return open_graph_session(comm, make_static_parts(comm, typed, mpi_tmp_path), static_config())


def read_graph(path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Edges by relation."""
    with h5py.File(path) as file:
        return {
            name: (file["edges"][name]["src"][()], file["edges"][name]["dst"][()]) for name in files.relations(file)
        }


def test_every_seed_is_in_one_batch_of_one_rank(comm, session):
    for epoch in (0, 1):
        session.start_epoch(epoch)
        batches = session.batches["train"]
        position = np.concatenate(comm.allgather(batches.position))
        assert np.array_equal(np.sort(position), np.arange(session.goal.pools["train"].total))
        for step in range(batches.num_steps):
            sizes = comm.allgather(batches.at(step).stop - batches.at(step).start)
            assert sum(sizes) == batches.sizes[step]
            assert max(sizes) <= -(-int(batches.sizes[step]) // comm.size)


def test_blocks_hold_edges_of_the_graph_and_as_many_as_asked_for(comm, session, mpi_tmp_path):
    graph = read_graph(mpi_tmp_path / "graph.h5")
    base = session.partition.book.type_base()
    for step in range(session.batches["train"].num_steps):
        plan = session.loaders["train"].samplers[0].plan(session.batches["train"], 0, step)
        rows = [identity.numpy() - base[kind] for kind, identity in enumerate(plan.batch.identity)]
        for block, fanout in zip(plan.batch.blocks, (2, 3), strict=True):
            for adjacency in block.relations:
                src, dst = graph[session.partition.relations[adjacency.relation].name]
                degree = np.bincount(dst, minlength=base[-1])
                target = rows[adjacency.dst_type][: block.num_dst[adjacency.dst_type]]
                count = np.diff(adjacency.indptr.numpy())
                assert np.array_equal(count, np.minimum(degree[target], fanout))
                pairs = set(zip(src.tolist(), dst.tolist(), strict=True))
                found = zip(rows[adjacency.src_type][adjacency.source.numpy()], np.repeat(target, count), strict=True)
                assert all((int(a), int(b)) in pairs for a, b in found)


def test_degrees_are_those_of_the_whole_graph(comm, session, mpi_tmp_path):
    graph, base = read_graph(mpi_tmp_path / "graph.h5"), session.partition.book.type_base()
    degree = np.zeros(base[-1], np.int64)
    for relation in session.partition.relations:
        np.add.at(degree, graph[relation.name][1] + base[relation.dst_type], 1)
    sampling, seed = session.config.sampling, session.config.train.seed
    draw = BlockSampler(NeighborSampler(session.partition, sampling.strategy, session.graph.channel), sampling, seed)
    channels = session.graph.channel, session.graph.channel
    sampler = GraphSampler(session.graph.rows, draw, session.goal.roots, seed, *channels, session.world.device)
    plan = sampler.plan(session.batches["train"], 0, 0)
    for identity, found in zip(plan.batch.identity, plan.batch.degree, strict=True):
        assert np.array_equal(found.numpy(), degree[identity.numpy()])


def test_edges_are_told_of_by_the_host_alone(comm, session):
    """Of one rank: with more ranks each holds some edges."""
    neighbors = NeighborSampler(session.partition, "uniform", session.graph.channel, with_edges=True)
    several = f"{comm.size} ranks hold the graph, a device can plan for one"
    assert neighbors.needs_host == ("blocks tell of their edges" if comm.size == 1 else several)


def negative(path):
    """A graph with a weight below 0."""
    plain(path)
    with h5py.File(path, "r+") as file:
        file["edges/node.meets.node/weight"][7] = -1
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [(typed, "relation paper.cites.paper has no column weight"),
     (negative, "weighted: relation node.meets.node, row 7, has weight -1.0, which must be finite and at least 0")],
)  # fmt: skip
def test_weights_that_cannot_be_are_refused_on_all_ranks(comm, mpi_tmp_path, make, message):
    parts = make_static_parts(comm, make, mpi_tmp_path)
    with pytest.raises(DistributedError, match=message):
        open_graph_session(comm, parts, static_config(sampling__strategy="weighted"))
