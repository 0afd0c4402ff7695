"""Graphs whose numbers of nodes have no room in 32 bits, or whose pairs of nodes have none in 64."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hpcgnn.graph.book import BlockOwnership, Book
from hpcgnn.graph.partition import GraphPartition, InEdges, Relation
from hpcgnn.static.sampling.neighbors import NeighborSampler
from hpcgnn.static.sampling.seeds import _match
from hpcgnn.task.known_edges import KnownAnswers

pytestmark = pytest.mark.serial
WORLD = SimpleNamespace(total=lambda value: value)


def share_of(starts: list[int], rank: int, edges: InEdges, flat_row: np.ndarray) -> GraphPartition:
    """A rank's share of nodes of one type, and of a relation among them."""
    book = Book(np.array([starts]), len(starts) - 1, ("node",))
    relation = Relation("node.meets.node", 0, 0, len(edges.src))
    type_start = np.array([0, len(flat_row)])
    return GraphPartition(book, "", rank, (relation,), flat_row, type_start, ({},), (None,), (edges,), ())


def test_reverses_are_exact_among_very_many_nodes():
    """Local rows tell destinations apart where the products of global ids would meet, modulo 2^64."""
    num_nodes, rng = 1 << 40, np.random.default_rng(2)
    first = num_nodes - 6
    src, row = first + rng.integers(0, 6, 30), np.arange(30)
    dst = np.sort(rng.integers(0, 6, 30))
    indptr = np.searchsorted(dst, np.arange(7))
    partition = share_of([0, first, num_nodes], 1, InEdges(indptr, src, row, {}), np.arange(6))
    pairs = list(zip(src.tolist(), (first + dst).tolist(), strict=True))
    moved = [np.array(column) for column in zip(*[(v, u) for u, v in pairs], strict=True)]
    found = _match(partition, 0, [*moved, row, np.zeros(30, int), row], WORLD)
    assert found.num_matched == 30
    assert [pairs[at] for at in found.groups.position] == [pairs[place] for place in found.place]
    assert sorted(found.groups.position) == sorted(found.place) == list(range(30))


def test_known_edges_of_very_many_nodes_are_found():
    """Their pairs pass 2^63."""
    count = 1 << 62
    query, node = np.repeat([5, 7, 11, 13], 2), np.tile([1, count - 1], 4)
    known = KnownAnswers(BlockOwnership(np.array([0, count])), 0, query, np.zeros(8, int), node)
    asked = np.repeat([5, 7, 9, 11, 13], 3), np.tile([1, 2, count - 1], 5)
    expected = np.tile([True, False, True], 5) & (asked[0] != 9)
    np.testing.assert_array_equal(known._hold_here(asked[0], np.zeros(15, int), asked[1]), expected)


@pytest.mark.parametrize(("num_nodes", "at_once"), [((1 << 31) - 1, True), (1 << 31, False)])
def test_nodes_beyond_an_int_are_drawn_hop_by_hop(num_nodes, at_once):
    """A batch in one call has no room for their rows."""
    edges = InEdges(np.zeros(1, int), np.empty(0, int), np.empty(0, int), {})
    partition = share_of([0, num_nodes], 0, edges, np.broadcast_to(np.int64(0), num_nodes))
    sampler = NeighborSampler(partition, "uniform", SimpleNamespace(size=1, rank=0), lists=[])
    assert sampler.alone is at_once
