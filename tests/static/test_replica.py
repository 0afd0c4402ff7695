"""The edges in memory that a machine's ranks share: the copy is the whole graph, samples are those of the owners'
lists, and no hop exchanges anything."""

from __future__ import annotations

import mmap
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from link_graphs import friends, shop
from mpi4py import MPI
from static_runs import APART, chances, make_static_parts, open_graph_session, plain, static_config, typed
from test_graph_training import run_both

from hpcgnn.comm.shared import MachineRows, free_memory
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.config import check_resumable
from hpcgnn.graph.partition import open_graph_partition
from hpcgnn.graph.splits import SPLITS
from hpcgnn.static.sampling import replica
from hpcgnn.static.sampling.neighbors import NeighborSampler
from hpcgnn.static.sampling.replica import Replica, topology_bytes

LINKS = {"task__kind": "link", "train__batch_size": 24}
CASES = {
    "uniform": (typed, {}),
    "replace": (typed, {"sampling__strategy": "replace"}),
    "labor": (typed, {"sampling__strategy": "labor"}),
    "full": (typed, {"sampling__fanouts": [-1, -1]}),
    "fanout of a relation": (typed, {"sampling__relation_fanouts": {"paper.cites.paper": [5, 0]}}),
    "one type": (plain, {}),
    "one type, labor": (plain, {"sampling__strategy": "labor"}),
    "one type, weighted": (chances, {"sampling__strategy": "weighted", "sampling__weight_column": "chance"}),
    "copies of rows": (plain, {"features__cache_ratio": 0.2, **APART}),
    "links": (friends, LINKS),
    "links, labor": (friends, LINKS | {"sampling__strategy": "labor"}),
    "links of several relations": (shop, LINKS | {"sampling__strategy": "replace"}),
}


def make_world(comm, ranks_per_machine: int = 0) -> World:
    """Collective."""
    return World(CommConfig(device="cpu", threads=1, ranks_per_machine=ranks_per_machine), comm)


def parts_of(plan) -> list[torch.Tensor]:
    """All that was sampled for a step."""
    adjacency = [tensor for block in plan.batch.blocks for r in block.relations for tensor in (r.indptr, r.source)]
    return [*adjacency, *plan.roots, *plan.batch.identity, *plan.batch.degree]


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_samples_are_those_of_the_owners(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    sharded = open_graph_session(comm, parts, static_config(**changes))
    replicated = open_graph_session(comm, parts, static_config(**changes, sampling__topology="replicated"))
    assert replicated.loaders["train"].replica is not None
    for epoch in (0, 1):
        for session in (sharded, replicated):
            session.start_epoch(epoch)
        for split in SPLITS:
            with sharded.plans(split, epoch) as asked, replicated.plans(split, epoch) as drawn:
                for one, other in zip(asked, drawn, strict=True):
                    assert all(map(torch.equal, parts_of(one), parts_of(other)))
    replicated.close()


def test_no_hop_exchanges_anything(comm, mpi_tmp_path):
    session = open_graph_session(
        comm, make_static_parts(comm, typed, mpi_tmp_path), static_config(sampling__topology="replicated")
    )
    before = session.sent_bytes()
    session.loaders["train"].samplers[0].input_ids(session.batches["train"], 0, 0)
    assert session.sent_bytes() == before
    session.close()


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", ["uniform", "links"])
def test_runs_give_one_answer(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(**changes, sampling__topology="replicated"))


@pytest.mark.parametrize("ranks_per_machine", [0, 1, 2])
def test_the_copy_is_the_whole_graph(comm, mpi_tmp_path, ranks_per_machine):
    """However many ranks a machine has."""
    parts, world = make_static_parts(comm, typed, mpi_tmp_path), make_world(comm, ranks_per_machine)
    mine, whole = (open_graph_partition(parts, *place) for place in ((comm.rank, comm.size), (0, 1)))
    copy = Replica(mine, "uniform", world, world.channel())
    assert 0 <= copy.num_bytes - topology_bytes(mine, "uniform", world) < 24  # the 0 of two offsets, and alignment
    assert np.array_equal(copy.partition.flat_row, whole.flat_row)
    assert np.array_equal(copy.partition.type_start, whole.type_start)
    lists = copy.sampler(NeighborSampler, 1).lists
    pairs = lists.find(np.arange(len(whole.flat_row)), [1] * len(whole.relations))
    indptr = lists.of_pairs.indptr
    found = {
        (relation, place): lists.source[indptr[pair] : indptr[pair + 1]].tolist()
        for pair, place, relation in zip(pairs.pair, pairs.place, pairs.relation.tolist(), strict=True)
    }
    expected = {
        (number, node + whole.type_start[relation.dst_type]): edges.src[first:last].tolist()
        for number, (relation, edges) in enumerate(zip(whole.relations, whole.edges, strict=True))
        for node, (first, last) in enumerate(pairwise(edges.indptr)) if last > first
    }  # fmt: skip
    assert found == expected
    assert np.array_equal(lists.of_pairs.identity[pairs.pair], whole.flat_row[pairs.place])
    del lists, pairs, indptr
    copy.close()


@pytest.mark.parametrize("ranks_per_machine", [0, 1, 2])
def test_rows_of_all_ranks_in_order(comm, ranks_per_machine):
    """Of several types, none at all too, in messages of three bytes between machines; not to be written."""
    rng = np.random.default_rng(comm.rank)
    pieces = [
        rng.integers(0, 1 << 40, 5 * comm.rank), rng.random((7, 3)).astype(np.float32), np.empty(0, np.int64),
        np.full(3, comm.rank, np.uint8), rng.integers(0, 9, 4),
    ]  # fmt: skip
    shared = MachineRows(make_world(comm, ranks_per_machine), pieces, max_bytes=3)
    for found, everyone in zip(shared.arrays, zip(*comm.allgather(pieces), strict=True), strict=True):
        assert found.dtype == everyone[0].dtype
        assert np.array_equal(found, np.concatenate(everyone))
        assert not found.flags.writeable
    del found
    shared.close()


def test_a_resumed_run_may_have_another_topology():
    old = static_config()
    check_resumable(old, static_config(sampling__topology="replicated"))
    with pytest.raises(ValueError, match=r"sampling.direction \(in -> out\)"):
        check_resumable(old, static_config(sampling__direction="out"))


def mapped_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def test_memory_is_given_back(comm):
    """Or taken again: malloc, which may serve a single rank, may keep what is freed."""
    world, rows, before = make_world(comm), np.zeros(1 << 26, np.uint8), mapped_bytes()
    for _ in range(4):
        MachineRows(world, [rows]).close()
    assert mapped_bytes() < before + 2 * comm.size * len(rows)


@pytest.mark.several_ranks
def test_auto_is_by_size(comm, mpi_tmp_path, monkeypatch):
    parts, world = make_static_parts(comm, plain, mpi_tmp_path), make_world(comm)
    mine = open_graph_partition(parts, comm.rank, comm.size)
    needed = topology_bytes(mine, "uniform", world)
    assert free_memory(world) > 0
    for free, kind in ((4 * needed, "replicated"), (4 * needed - 1, "sharded")):
        monkeypatch.setattr(replica, "free_memory", lambda _, free=free: free)
        session = open_graph_session(comm, parts, static_config(sampling__topology="auto"))
        found = [line for line in session.describe() if line.startswith("topology")]
        assert len(found) == 1
        assert found[0].startswith(f"topology {kind}: ")
        session.close()


def test_too_large_a_copy_is_refused(comm):
    with pytest.raises(DistributedError, match=f"no shared memory of {1 << 50} bytes"):
        MachineRows(make_world(MPI.COMM_SELF), [np.broadcast_to(np.uint8(0), 1 << 50)])
