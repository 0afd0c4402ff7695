"""Graphs of many relations, most of which lead to few nodes: draws are those of a walk relation by relation, and memory
is that of nodes and edges."""

from __future__ import annotations

from collections import defaultdict

import h5py
import numpy as np
import pytest
from random_graphs import write_graph
from static_runs import make_static_parts
from test_neighbors import below

from hpcgnn import NeighborLoader, StaticGraph
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph import files
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
