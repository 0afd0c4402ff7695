"""Graphs of many relations, most of which lead to few nodes: draws are those of a walk relation by relation, and memory
is that of nodes and edges."""

from __future__ import annotations

from collections import defaultdict

import h5py
import numpy as np
import pytest
from random_graphs import write_graph
from static_runs import make_static_parts, open_graph_session
from test_graph_links import link_config
from test_neighbors import below

from hpcgnn import NeighborLoader, StaticGraph
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph import files
from hpcgnn.graph.partition import InEdges
from hpcgnn.native import Random, Stream

NUM_RELATIONS, FANOUTS = 60, [3, 2]
BARE = {number: [0, 2] for number in range(0, NUM_RELATIONS, 7)}  # fanouts of relations that the first hop leaves out


def many(path):
    """Two types; a third of the relations has no edges, some lead to one node, some have parallel edges."""
    rng, sizes = np.random.default_rng(5), {"a": 40, "b": 25}
    nodes = {
        "a": {"split": rng.choice([0, 0, 1], 40).astype(np.int8), "label": np.zeros(40, int)},
        "b": {"id": np.arange(25)},
    }
    edges = {}
    for number in range(NUM_RELATIONS):
        src, dst = rng.choice(["a", "b"], 2)
        count = int(rng.choice([0, 1, 12, 60]))
        columns = {
            "src": rng.integers(0, sizes[src], count),
            "dst": rng.integers(0, sizes[dst], count) // (1 + number % 3),
        }
        if number % 5 == 0:
            columns["dst"][:] = number % 20
        edges[src, f"r{number}", dst] = columns
    return write_graph(path, nodes, edges, "static")


def walk(edges: dict[int, list[int]], node: int, fanout: int, key: Random) -> list[int]:
    """Sources drawn for a node with this flat row id, by Floyd's algorithm in plain Python."""
    sources, chosen = edges.get(node, []), []
    if fanout < 0 or len(sources) <= fanout:
        return sources
    for slot in range(fanout):
        last = len(sources) - fanout + slot
        choice = below(key, node, slot, last + 1)
        chosen.append(last if choice in chosen else choice)
    return [sources[place] for place in sorted(chosen)]


def read_lists(path, base: dict[str, int]) -> list[dict[int, list[int]]]:
    """In-edges by relation, then flat row id of the destination, in order of row: flat row ids of the sources."""
    found = []
    with h5py.File(path) as file:
        for name in files.relations(file):
            (src, _, dst), lists = files.split_relation(name), defaultdict(list)
            ends = (file["edges"][name][end][()] for end in ("src", "dst"))
            for source, target in zip(*ends, strict=True):
                lists[base[dst] + int(target)].append(base[src] + int(source))
            found.append(lists)
    return found


@pytest.mark.parametrize("topology", ["sharded", "replicated"])
def test_draws_are_those_of_a_walk_by_relation(comm, mpi_tmp_path, topology):
    """Bit for bit, with fanouts of relations, on any number of ranks."""
    parts = make_static_parts(comm, many, mpi_tmp_path)
    graph = StaticGraph(parts, World(CommConfig(device="cpu", threads=1), comm))
    names = graph.relations
    fanouts = [[BARE.get(number, FANOUTS)[hop] for number in range(len(names))] for hop in range(2)]
    lists = read_lists(mpi_tmp_path / "graph.h5", dict(zip(graph.types, (0, 40), strict=True)))
    loader = NeighborLoader(
        graph, "train", FANOUTS, 8, relation_fanouts={names[number]: of for number, of in BARE.items()}, seed=9,
        topology=topology,
    )  # fmt: skip
    num_edges = 0
    for step, batch in enumerate(loader):
        flat = [rows.numpy() + first for rows, first in zip(batch.n_id, (0, 40), strict=True)]
        for hop, block in enumerate(reversed(batch.batch.blocks)):
            assert [edges.relation for edges in block.relations] == np.flatnonzero(fanouts[hop]).tolist()
            for edges in block.relations:
                number, indptr = edges.relation, edges.indptr.tolist()
                assert len(indptr) == block.num_dst[edges.dst_type] + 1
                sources = flat[edges.src_type][edges.source.numpy()].tolist()
                key = Random(9, Stream.NEIGHBOR, step, 0, hop, number)
                for place, node in enumerate(flat[edges.dst_type][: block.num_dst[edges.dst_type]].tolist()):
                    drawn = sources[indptr[place] : indptr[place + 1]]
                    assert drawn == walk(lists[number], node, fanouts[hop][number], key)
                num_edges += len(sources)
    assert comm.allreduce(num_edges) > 1000
    graph.close()


NUM_NODES, NUM_EDGES, NUM_TYPES = 2000, 3000, 250


def sparse_facts(path):
    """Facts of many types."""
    rng = np.random.default_rng(2)
    ends = {end: rng.integers(0, NUM_NODES, NUM_EDGES) for end in ("src", "dst")}
    columns = {**ends, "rel": np.arange(NUM_EDGES) % NUM_TYPES, "split": rng.choice([0, 0, 0, 1], NUM_EDGES)}
    return write_graph(
        path, {"entity": {"id": np.arange(NUM_NODES)}}, {("entity", "fact", "entity"): columns}, "static"
    )


@pytest.mark.serial
def test_memory_is_that_of_nodes_and_edges(comm, mpi_tmp_path):
    """Not of nodes times relations, which is 4 MB a direction: the graph, the lists of the sampler, and a block."""
    parts = make_static_parts(comm, sparse_facts, mpi_tmp_path, parts=2)
    session = open_graph_session(comm, parts, link_config(task__message_edges="both", model__kind="rgcn"))
    loader, directions = session.loaders["train"], 2
    neighbors = loader.draw._neighbors
    assert len(neighbors.partition.relations) == directions * NUM_TYPES
    most = 16 * 8 * (NUM_NODES + directions * NUM_EDGES)
    assert sum(column.nbytes for column in neighbors.lists.columns) < most
    assert (
        sum(array.nbytes for edges in neighbors.partition.edges for array in (edges.starts, edges.src, edges.row))
        < most
    )
    assert sum(edges.nodes.nbytes for edges in neighbors.partition.edges) < most
    session.start_epoch(0)
    block = loader.samplers[0].plan(session.batches["train"], 0, 0).batch.blocks[0]
    edges = block.relations
    size = sum(tensor.nbytes for tensor in (edges.destination, edges.indptr, edges.source))
    assert size < 8 * (2 + 3 * len(edges.source))
    session.close()


@pytest.mark.serial
def test_edges_of_few_nodes_are_those_of_all():
    """Every view of the edges, with the nodes that have some and with all."""
    rng = np.random.default_rng(3)
    dst = np.sort(rng.choice([2, 3, 11, 40, 49], 30))
    columns = rng.integers(0, 99, 30), np.arange(30), {"time": rng.integers(0, 9, 30)}
    full = InEdges(np.searchsorted(dst, np.arange(51)), *columns)
    few, mask = full.compact(), rng.random(30) < 0.5
    assert few.nodes.tolist() == [2, 3, 11, 40, 49]
    for one, other in ((few, full), (few.take(mask), full.take(mask)), (few.degrees_only(), full.degrees_only())):
        assert np.array_equal(one.indptr, other.indptr)
        assert one.num_nodes == 50
        for begin, end in ((0, 50), (3, 12), (4, 11), (50, 50)):
            (starts, places), (expected, same) = one.between(begin, end), other.between(begin, end)
            assert np.array_equal(starts, expected)
            assert places == same or starts[-1] == 0
        assert np.array_equal(np.column_stack(one.filled()), np.column_stack(other.filled()))
    assert np.array_equal(few.dst, dst)
    assert np.array_equal(few.take(mask).dst, dst[mask])
    assert full.compact().compact() is not full
    assert InEdges(np.arange(51), *[np.zeros(50, int)] * 2, {}).compact().nodes is None
