"""METIS with several constraints, the graph it is given, and what is done to its answer."""

import numpy as np
import pytest
from random_graphs import random_graph

from data_tools.graph.source import open_source
from data_tools.partition import pair_graph
from data_tools.partition.assignment import spread_idle
from data_tools.partition.blocks import add_duplicates
from data_tools.partition.layout import order_parts, part_ties
from data_tools.partition.methods.metis import metis_partition
from data_tools.partition.methods.rebalance import TARGET, load_limits, part_distance, rebalance
from data_tools.partition.methods.swap_nodes import swap_nodes
from data_tools.partition.pair_graph import PairGraph, build_pair_graph
from data_tools.partition.quality import headline, unmet
from data_tools.partition.weights import node_weights

pytestmark = pytest.mark.serial


def graph_of(low, high, num_nodes, weight=None) -> PairGraph:
    """A pair graph from edges low < high."""
    low, high = np.asarray(low, np.int64), np.asarray(high, np.int64)
    counts = np.ones(len(low), np.int64) if weight is None else weight
    keys = np.r_[low * num_nodes + high, high * num_nodes + low]
    keys, counts = add_duplicates(keys, np.r_[counts, counts])
    node, neighbor = np.divmod(keys, num_nodes)
    return PairGraph(np.searchsorted(node, np.arange(num_nodes + 1)), neighbor, counts)


def grid(height: int, width: int) -> PairGraph:
    """A grid of height x width nodes."""
    node = np.arange(height * width).reshape(height, width)
    low = np.r_[node[:, :-1].ravel(), node[:-1].ravel()]
    high = np.r_[node[:, 1:].ravel(), node[1:].ravel()]
    return graph_of(low, high, height * width)


def clusters(num_clusters: int, size: int) -> tuple[PairGraph, np.ndarray]:
    """A ring of dense clusters with single ties between neighbors; the cluster of every node [N]."""
    cluster = np.repeat(np.arange(num_clusters), size)
    low, high = np.triu_indices(num_clusters * size, 1)
    inside = cluster[low] == cluster[high]
    first = np.arange(num_clusters - 1) * size
    return graph_of(np.r_[low[inside], first], np.r_[high[inside], first + size], len(cluster)), cluster


def cut_of(graph: PairGraph, part: np.ndarray) -> int:
    """Weight of the edges between parts."""
    own = np.repeat(part, graph.degrees())
    return int(graph.weight[own != part[graph.neighbor]].sum()) // 2


def imbalance(part: np.ndarray, weight: np.ndarray, num_parts: int) -> float:
    """Heaviest part over the mean."""
    loads = np.bincount(part, weights=weight, minlength=num_parts)
    return loads.max() / loads.mean()


def corner_problem():
    """4,000 grid nodes, 400 of them, in one corner, for training: the graph and weights (node, train, degree)."""
    graph = grid(50, 80)
    train = np.zeros((50, 80), np.int64)
    train[:20, :20] = 1
    return graph, np.stack([np.ones(4000, np.int64), train.ravel(), graph.degrees()], axis=1)


def test_one_constraint_piles_training_nodes_up_and_three_do_not():
    graph, weights = corner_problem()
    one = metis_partition(graph, 4, weights[:, :1])
    three = metis_partition(graph, 4, weights)
    assert imbalance(one, weights[:, 0], 4) < 1.04
    assert imbalance(one, weights[:, 1], 4) > 2
    for column in range(3):
        assert imbalance(three, weights[:, column], 4) < 1.08
    assert cut_of(graph, one) < cut_of(graph, three)


@pytest.mark.parametrize("objective", ["cut", "volume"])
def test_every_objective_balances_and_is_reproducible(objective):
    graph, weights = corner_problem()
    first = metis_partition(graph, 6, weights[:, :2], seed=3, objective=objective)
    second = metis_partition(graph, 6, weights[:, :2], seed=3, objective=objective)
    np.testing.assert_array_equal(first, second)
    assert first.dtype == np.int32
    assert sorted(np.unique(first)) == list(range(6))
    assert imbalance(first, weights[:, 0], 6) < 1.15
    assert cut_of(graph, first) < 1200


def test_consecutive_parts_are_neighbors():
    graph, _ = clusters(8, 12)
    part = metis_partition(graph, 8, np.ones((96, 1), np.int64))
    runs = [cut_of(graph, part * ranks // 8) for ranks in (2, 4, 8)]
    assert runs[0] == 1
    assert runs[1] <= 4
    assert runs[2] == 7


def test_a_constraint_without_weight_is_left_out():
    graph = grid(10, 10)
    weights = np.stack([np.ones(100, np.int64), np.zeros(100, np.int64)], axis=1)
    np.testing.assert_array_equal(metis_partition(graph, 4, weights), metis_partition(graph, 4, weights[:, :1]))
    assert imbalance(metis_partition(graph, 4, weights[:, 1:]), weights[:, 0], 4) < 1.1


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
def test_one_part_takes_all(num_nodes):
    graph = graph_of([], [], num_nodes)
    np.testing.assert_array_equal(metis_partition(graph, 1, np.ones((num_nodes, 1), np.int64)), np.zeros(num_nodes))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("merge_at", [1, 50, 1 << 20])
def test_the_pair_graph_counts_events(tmp_path, monkeypatch, seed, merge_at):
    monkeypatch.setattr(pair_graph, "MERGE_AT_LEAST", merge_at)
    monkeypatch.setattr("data_tools.graph.source.SLAB_BYTES", 160)
    source = open_source(random_graph(tmp_path / "g.h5", seed, num_edges=80))
    expected: dict = {}
    with source.file:
        graph = build_pair_graph(source)
        for relation in source.relations:
            bases = [node_type.base for node_type in (relation.src_type, relation.dst_type)]
            ends = (source.edges(relation)[name][:] + base for name, base in zip(("src", "dst"), bases, strict=True))
            for u, v in zip(*(column.tolist() for column in ends), strict=True):
                if u != v:
                    expected[u, v] = expected.get((u, v), 0) + 1
                    expected[v, u] = expected.get((v, u), 0) + 1
    own = np.repeat(np.arange(graph.num_nodes), graph.degrees())
    found = dict(zip(zip(own.tolist(), graph.neighbor.tolist(), strict=True), graph.weight.tolist(), strict=True))
    assert found == expected
    assert len(found) == len(graph.neighbor)


@pytest.mark.parametrize("seed", range(4))
def test_node_weights_equal_a_plain_count(tmp_path, seed):
    source = open_source(random_graph(tmp_path / "g.h5", seed, num_edges=80))
    with source.file:
        found = node_weights(source, ("nodes", "events", "degree", "train", "time"))
        total = sum(relation.num_edges for relation in source.relations)
        events, train = np.zeros((2, source.num_nodes), np.int64)
        last = train_time(source, round(0.7 * total))
        for relation in source.relations:
            bases = [node_type.base for node_type in (relation.src_type, relation.dst_type)]
            columns = (source.edges(relation)[name][:].tolist() for name in ("src", "dst", "time"))
            for u, v, time in zip(*columns, strict=True):
                for node in {u + bases[0], v + bases[1]}:
                    events[node] += 1
                    train[node] += time <= last
    np.testing.assert_array_equal(found["events"], events)
    np.testing.assert_array_equal(found["train"], train)
    np.testing.assert_array_equal(sum(found[f"time{quarter}"] for quarter in range(4)), events)
    assert found["nodes"].tolist() == [1] * len(events)
    assert list(found) == ["nodes", "events", "degree", "train", "time0", "time1", "time2", "time3"]


def train_time(source, count):
    """Time of the count-th event of all relations."""
    return np.sort(np.concatenate([source.edges(relation)["time"][:] for relation in source.relations]))[count - 1]


@pytest.mark.parametrize("seed", range(5))
def test_rebalancing_brings_parts_down_to_the_target(seed):
    rng = np.random.default_rng(seed)
    graph = grid(30, 30)
    weights = np.stack([np.ones(900, np.int64), rng.integers(1, 4, 900)], axis=1)
    skewed = np.minimum(metis_partition(graph, 8, weights), 5)
    part = rebalance(graph, skewed, weights, 8)
    for column in range(2):
        assert imbalance(part, weights[:, column], 8) <= TARGET + 1e-9
    assert imbalance(skewed, weights[:, 0], 8) > 2


def test_rebalancing_keeps_the_balance_and_cuts_less():
    graph, cluster = clusters(4, 25)
    part = cluster.astype(np.int32)
    np.testing.assert_array_equal(rebalance(graph, part, np.ones((100, 1), np.int64), 4), part)
    graph = grid(20, 20)
    weights = np.ones((400, 1), np.int64)
    part = metis_partition(graph, 4, weights)
    assert cut_of(graph, rebalance(graph, part, weights, 4)) <= cut_of(graph, part)


def test_rebalancing_cannot_split_a_node_and_parts_its_heaviest_ones():
    graph = grid(20, 20)
    weights = np.ones((400, 1), np.int64)
    weights[[7, 8]] = 1000
    part = np.arange(400) // 100
    moved = rebalance(graph, part, weights, 4)
    assert moved[7] != moved[8]
    assert np.bincount(moved, weights=weights[:, 0]).max() <= TARGET * 1000


def test_exchanges_go_on_where_no_single_move_helps():
    part, loads = np.array([0, 0, 1, 1], np.int32), np.array([[1.2], [0.8]])
    weights = np.array([[0.7], [0.5], [0.5], [0.3]])
    assert swap_nodes(part, weights, loads, np.full((2, 1), 1.0)) == 1
    np.testing.assert_allclose(loads, 1.0)
    np.testing.assert_allclose(np.bincount(part, weights=weights[:, 0]), 1.0)


def test_what_giants_leave_is_shared_evenly_among_runs_of_parts():
    weights = np.array([[3.0, 1.0]] + [[0.5, 0.7]] * 10)
    weights = weights / weights.sum(axis=0) * 8
    giant = (weights > 1).any(axis=1)
    part = np.zeros(11, np.int32)
    limits = load_limits(part, weights, giant, 8, 1.0)
    np.testing.assert_allclose(limits[:, 0], [3, 0.5, 0.5, 0.5, *[0.875] * 4])
    np.testing.assert_allclose(limits[:, 1], 1)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8, 11])
def test_far_parts_are_those_that_more_numbers_of_ranks_divide(num_parts):
    distance = part_distance(num_parts)
    np.testing.assert_array_equal(distance, distance.T)
    np.testing.assert_array_equal(distance == 0, np.eye(num_parts, dtype=bool))
    if num_parts == 8:
        assert distance[0].tolist() == [0, 1, 2, 2, 3, 3, 3, 3]


def test_idle_nodes_fill_the_emptiest_parts():
    part = np.array([0, 0, 0, 0, 1, 2, 2, 0, 0, 0, 0, 0], np.int32)
    idle = np.arange(12) >= 7
    filled = spread_idle(part, idle, 4)
    np.testing.assert_array_equal(filled[:7], part[:7])
    assert np.bincount(filled, minlength=4).tolist() == [4, 3, 3, 2]
    np.testing.assert_array_equal(spread_idle(part, np.zeros(12, bool), 4), part)


@pytest.mark.parametrize("num_parts", [2, 3, 7, 8])
def test_parts_are_ordered_so_that_neighbors_follow_each_other(num_parts):
    graph, cluster = clusters(num_parts, 6)
    shuffled = np.random.default_rng(num_parts).permutation(num_parts)[cluster].astype(np.int32)
    ordered = order_parts(graph, shuffled, num_parts, seed=0)
    assert len(np.unique(ordered)) == num_parts
    half = num_parts // 2
    own = np.repeat(ordered, graph.degrees())
    assert part_ties(own, ordered[graph.neighbor], graph.weight, num_parts)[:half, half:].sum() <= 2


def test_many_relations_are_summed_up():
    """In order of their cut; ten are named."""
    relations = {f"a.r{number}.b": number for number in range(14)}
    text = headline({"nodes": 5, "edges": 91, "ranks": 2, "relations": relations}).splitlines()
    assert text[1:] == [*(f"  a.r{cut}.b: {cut} edges cut" for cut in range(13, 3, -1)), "  and 6 of 4 others"]


@pytest.mark.parametrize(
    ("ideals", "advice"),
    [({4: 1.5, 2: 1.3}, "no number of parts above 1 can be even"), ({4: 1.5, 2: 1.0}, "--parts 2 can be even"),
     ({4: 1.0, 2: 1.3}, "among these 4 parts it can be even, among fewer ranks not")],
)  # fmt: skip
def test_advice_on_what_cannot_be_even(ideals, advice):
    """One heavy node; no advice names the number of parts that there is."""
    four, two = ({"ranks": n, "balance": {"events": ideal}, "ideal": {"events": ideal}} for n, ideal in ideals.items())
    (line,) = unmet(four | {"runs": [four, two]}, 1.1)
    assert line.endswith(advice)
