"""Assignment of nodes to parts against plain loops."""

import numpy as np
import pytest

from hpcgnn.native.parts import PartLoads, PartProblem, StreamNodes, balance_parts, even_parts, stream_parts

pytestmark = pytest.mark.serial


def random_nodes(rng, num_nodes: int, num_constraints: int):
    """All nodes of a random graph in random order, as the kernel takes them."""
    degree = rng.integers(0, 9, num_nodes)
    indptr = np.r_[0, np.cumsum(degree)]
    neighbor, tie = rng.integers(0, num_nodes, indptr[-1]), rng.integers(1, 4, indptr[-1])
    weight = rng.integers(0, 3, (num_nodes, num_constraints))
    return StreamNodes(rng.permutation(num_nodes), weight, (indptr, neighbor, tie))


def rows_of(nodes: StreamNodes):
    """(node, weight, ties by neighbor) of every row."""
    indptr, neighbor, tie = nodes.adjacency
    for row, node in enumerate(nodes.node):
        own = slice(indptr[row], indptr[row + 1])
        yield node, nodes.weight[row], list(zip(neighbor[own], tie[own], strict=True))


def plain_stream(nodes: StreamNodes, loads: PartLoads, part: np.ndarray) -> None:
    """What stream_parts does, in plain Python."""
    for node, weight, adjacent in rows_of(nodes):
        held = weight > 0
        ties = np.zeros(len(loads.loads))
        for other, tie in adjacent:
            if part[other] >= 0:
                ties[part[other]] += tie
        before = np.max(np.where(held, loads.loads / loads.capacity, 0), axis=1)
        after = np.max(np.where(held, (loads.loads + weight) / loads.capacity, 0), axis=1)
        score = ties * (1 - before) if loads.rule == "ldg" else ties - loads.price * np.sqrt(before)
        room = np.flatnonzero(after <= 1)
        order = np.lexsort((room, before[room], -score[room]))
        part[node] = room[order[0]] if len(room) else np.argmin(after)
        loads.loads[part[node]] += weight


@pytest.mark.parametrize("rule", ["ldg", "fennel"])
@pytest.mark.parametrize("seed", range(4))
def test_stream_parts_equals_plain_loops(rule, seed):
    rng = np.random.default_rng(seed)
    nodes = random_nodes(rng, 200, 1 + seed)
    capacity = (0.98 + 0.03 * seed) * nodes.weight.sum(axis=0) / 7  # with and without room for all
    found, expected = np.full(200, -1, np.int32), np.full(200, -1, np.int32)
    for _ in range(3):
        loads = [PartLoads(np.zeros((7, 1 + seed)), capacity, rule, 1.7) for _ in range(2)]
        stream_parts(nodes, loads[0], found)
        plain_stream(nodes, loads[1], expected)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(loads[0].loads, loads[1].loads)


def excess(loads: PartLoads) -> float:
    """Sum of the squared excesses over all capacities."""
    return float((np.maximum(loads.loads / loads.capacity - 1, 0) ** 2).sum())


@pytest.mark.parametrize("seed", range(4))
def test_even_parts_lowers_the_excess_until_all_fit(seed):
    rng = np.random.default_rng(seed)
    nodes = random_nodes(rng, 2000, 2)
    part = np.minimum(rng.integers(0, 9, 2000), 4).astype(np.int32)  # the last part has half of all
    weight = np.empty_like(nodes.weight)
    weight[nodes.node] = nodes.weight
    loads = PartLoads(np.zeros((5, 2)), 1.02 * weight.sum(axis=0) / 5)
    np.add.at(loads.loads, part, weight)
    while True:
        before, old = excess(loads), part.copy()
        moved = even_parts(nodes, loads, part)
        assert moved >= (part != old).sum()
        if not moved:
            break
        assert excess(loads) < before
    expected = np.zeros((5, 2))
    np.add.at(expected, part, weight)
    np.testing.assert_array_equal(loads.loads, expected)
    assert excess(loads) == 0
    assert even_parts(nodes, loads, part) == 0


def test_indices_out_of_range_are_refused():
    part, loads = np.zeros(3, np.int32), PartLoads(np.zeros((2, 1)), np.ones(1))
    nodes = StreamNodes(np.arange(3), np.ones((3, 1)), (np.array([0, 1, 1, 1]), np.array([3]), np.array([1])))
    with pytest.raises(ValueError, match="out of range"):
        stream_parts(nodes, loads, part)


def plain_balance(problem: PartProblem, penalty: float, part: np.ndarray, loads: np.ndarray) -> int:
    """What balance_parts does for all nodes in their order, in plain Python."""
    moves = 0
    for node in range(len(part)):
        home, own = part[node], slice(problem.indptr[node], problem.indptr[node + 1])
        ties = np.bincount(part[problem.neighbor[own]], problem.tie[own], minlength=len(loads))
        added = [over(problem, loads, to, problem.weight[node]) for to in range(len(loads))]
        relief = -over(problem, loads, home, -problem.weight[node])
        cost = ties @ problem.distance
        change = cost - cost[home] + max(0, penalty) * (np.array(added) - relief)
        allowed = [to != home and (penalty >= 0 or added[to] <= relief) for to in range(len(loads))]
        change = np.where(allowed, change, 0)
        to = int(np.argmin(change))
        if change[to] < -1e-9:
            loads[home] -= problem.weight[node]
            loads[to] += problem.weight[node]
            part[node] = to
            moves += 1
    return moves


def over(problem: PartProblem, loads: np.ndarray, part: int, weight: np.ndarray) -> float:
    """By how much the squared excesses of a part grow with the weight."""
    before, after = (np.maximum(0, load - problem.limit[part]) ** 2 for load in (loads[part], loads[part] + weight))
    return float((after - before).sum())


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.5])
def test_balance_parts_equals_plain_loops(penalty):
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 90, (300, 2))
    pairs = np.concatenate([pairs, pairs[:, ::-1]])
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    indptr = np.searchsorted(pairs[:, 0], np.arange(91)).astype(np.int64)
    weight = rng.integers(1, 4, (90, 2)).astype(float)
    limit = np.broadcast_to(np.ceil(weight.sum(0) / 5), (5, 2)).copy()
    tie, distance = rng.integers(0, 4, len(pairs)), 1.0 - np.eye(5)
    problem = PartProblem(indptr, np.ascontiguousarray(pairs[:, 1]), tie, distance, weight, limit)
    part = rng.integers(0, 5, 90).astype(np.int32)
    loads = np.zeros((5, 2))
    np.add.at(loads, part, weight)
    expected, expected_loads = part.copy(), loads.copy()
    moves = balance_parts(problem, np.arange(90), penalty, part, loads)
    assert moves == plain_balance(problem, penalty, expected, expected_loads)
    assert moves > 0
    assert np.array_equal(part, expected)
    assert np.array_equal(loads, expected_loads)
