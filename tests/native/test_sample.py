"""Temporal samplers, their thinning and replies, against plain NumPy."""

import itertools

import numpy as np
import pytest

from hpcgnn import native
from hpcgnn.native import Random, Stream

pytestmark = pytest.mark.serial


def random_history(rng, num_nodes=40, num_entries=600):
    """A T-CSR with equal times and empty nodes: (indptr, time, event)."""
    owner = np.sort(rng.integers(0, num_nodes - 5, num_entries))
    event = np.empty(num_entries, np.int64)
    indptr = np.searchsorted(owner, np.arange(num_nodes + 1))
    for begin, end in itertools.pairwise(indptr):
        event[begin:end] = np.sort(rng.choice(10 * num_entries, end - begin, replace=False))
    return indptr.astype(np.int64), event // 7, event


def reference_visible(graph, node, time, limit, since=-1):
    indptr, times, events = graph
    window = np.arange(indptr[node], indptr[node + 1])
    return window[(times[window] < time) & (times[window] >= since) & (events[window] < limit)]


def random_since(rng, times, windowed):
    """Lower bounds around the times, some of them above (an empty window); all -1 stands for None."""
    since = times - rng.integers(-20, 300, len(times)) if windowed else np.full(len(times), -1)
    return since, since if windowed else None


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("limit", [native.NO_LIMIT, 3000])
def test_sample_recent_equals_reference(limit, windowed):
    rng = np.random.default_rng(0)
    graph = random_history(rng)
    nodes, times = rng.integers(0, 40, 200), rng.integers(0, 900, 200)
    since, argument = random_since(rng, times, windowed)
    positions, count = native.sample_recent(graph, nodes, times, 7, limit, argument)
    for i in range(200):
        expected = reference_visible(graph, nodes[i], times[i], limit, since[i])[-7:]
        assert positions[i, : count[i]].tolist() == expected.tolist()
        assert (positions[i, count[i] :] == -1).all()
    threaded = native.sample_recent(graph, nodes, times, 7, limit, argument, threads=2)
    assert all(map(np.array_equal, threaded, (positions, count)))


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_sample_uniform_stays_in_the_visible_history_and_is_keyed(replace, windowed):
    rng = np.random.default_rng(1)
    graph = random_history(rng)
    nodes, times, identity = rng.integers(0, 40, 300), rng.integers(0, 900, 300), rng.permutation(300)
    since, argument = random_since(rng, times, windowed)
    key = Random(seed=3, stream=Stream.SAMPLE, step=5)
    positions, count = native.sample_uniform(graph, nodes, times, identity, 5, key, replace=replace, since=argument)
    for i in range(300):
        visible = reference_visible(graph, nodes[i], times[i], native.NO_LIMIT, since[i])
        chosen = positions[i, : count[i]]
        assert set(chosen) <= set(visible)
        assert count[i] == (5 if replace and len(visible) else min(5, len(visible)))
        assert replace or len(set(chosen)) == count[i]
    order = rng.permutation(300)
    shuffled, _ = native.sample_uniform(
        graph, nodes[order], times[order], identity[order], 5, key,
        replace=replace, since=since[order] if windowed else None, threads=2,
    )  # fmt: skip
    assert np.array_equal(shuffled, positions[order])


def test_samplers_take_no_roots_and_refuse_a_since_of_another_length():
    graph, empty = random_history(np.random.default_rng(2)), np.empty(0, np.int64)
    key = Random(3, Stream.SAMPLE)
    assert native.sample_recent(graph, empty, empty, 4, since=empty)[0].shape == (0, 4)
    assert native.sample_uniform(graph, empty, empty, empty, 4, key, since=empty)[0].shape == (0, 4)
    with pytest.raises(ValueError, match="fanout must be at least 1, got 0"):
        native.sample_recent(graph, np.zeros(2, np.int64), np.zeros(2, np.int64), 0)
    with pytest.raises(ValueError, match="since"):
        native.sample_recent(graph, np.zeros(2, np.int64), np.zeros(2, np.int64), 4, since=np.zeros(1, np.int64))


@pytest.mark.parametrize(("degree", "fanout"), [(2, 1), (4, 3), (7, 3), (11, 10), (40, 10)])
def test_sample_uniform_without_replacement_is_uniform(degree, fanout):
    """Chi-square of the entries' frequencies inside a window of ``degree`` entries, with 3 before and 2 after it."""
    trials = 40_000
    graph = (np.array([0, degree + 5]), np.arange(degree + 5), np.arange(degree + 5))
    zeros = np.zeros(trials, np.int64)
    key = Random(seed=11, stream=Stream.SAMPLE)
    positions, _ = native.sample_uniform(
        graph, zeros, zeros + degree + 3, np.arange(trials), fanout, key, since=zeros + 3
    )
    assert positions.min() >= 3
    assert positions.max() < degree + 3
    observed = np.bincount(positions.ravel() - 3, minlength=degree)
    expected = trials * fanout / degree
    # Entries of one trial are correlated: the variance of a count is trials * f/d * (1 - f/d).
    z = (observed - expected) / np.sqrt(expected * (1 - fanout / degree))
    chi_square = float((z**2).sum() * (degree - 1) / degree)
    assert chi_square < (degree - 1) + 5 * np.sqrt(2 * (degree - 1)) + 5


def decay_case(rng, size, fanout=9):
    """(positions, count, remote, age, identity) of rows of every length."""
    count = rng.integers(0, fanout + 1, size).astype(np.int32)
    positions = np.where(np.arange(fanout) < count[:, None], rng.integers(0, 1000, (size, fanout)), -1)
    remote, age = rng.random((size, fanout)) < 0.7, rng.integers(0, 400, (size, fanout))
    return positions, count, remote, age, rng.integers(0, 1 << 48, size)


@pytest.mark.parametrize("half_life", [1, 100, 1 << 62])
@pytest.mark.parametrize("size", [0, 1, 300])
def test_decay_keep_equals_reference(size, half_life):
    positions, count, remote, age, identity = decay_case(np.random.default_rng(5), size)
    key = Random(seed=9, stream=Stream.DECAY, step=4)
    # Of all 32-bit words only 0 is rejected for this bound, and the others are lowered by one.
    word = native.random_integers(key, identity, 9, (1 << 32) - 1) + 1
    keep = ~remote | (word < (1 << 32) >> np.minimum(32, age // half_life))
    expected = [row[:n][kept[:n]].tolist() for row, n, kept in zip(positions, count, keep, strict=True)]
    mine, mine_count = positions.copy(), count.copy()
    native.decay_keep(mine, mine_count, remote, age, half_life, key, identity)
    assert mine_count.tolist() == [len(row) for row in expected]
    assert mine.tolist() == [row + [-1] * (9 - len(row)) for row in expected]
    order = np.random.default_rng(6).permutation(size)
    arrays = [array[order].copy() for array in (positions, count, remote.view(np.uint8), age)]
    native.decay_keep(*arrays, half_life, key, identity[order], threads=2)
    assert np.array_equal(arrays[0], mine[order])
    assert np.array_equal(arrays[1], mine_count[order])


def test_decay_keep_halves_once_a_half_life():
    trials, ages = 100_000, np.arange(6) * 10 + 9
    positions, count = np.zeros((trials, 6), np.int64), np.full(trials, 6, np.int32)
    positions += np.arange(6)
    remote, age = np.ones_like(positions, dtype=bool), np.broadcast_to(ages, positions.shape).copy()
    native.decay_keep(positions, count, remote, age, 10, Random(1, Stream.DECAY), np.arange(trials))
    kept = np.bincount(positions[positions >= 0], minlength=6)
    expected = 0.5 ** np.arange(6)
    assert kept[0] == trials
    assert (np.abs(kept - trials * expected) <= 5 * np.sqrt(trials * expected * (1 - expected))).all()


def test_decay_keep_refuses_a_half_life_of_zero():
    case = decay_case(np.random.default_rng(0), 3)
    with pytest.raises(ValueError, match="half_life must be at least 1, got 0"):
        native.decay_keep(*case[:4], 0, Random(0, Stream.DECAY), case[4])


@pytest.mark.parametrize("with_feature", [False, True])
@pytest.mark.parametrize("size", [0, 1, 500])
def test_temporal_reply_equals_reference(size, with_feature):
    rng = np.random.default_rng(7)
    other, time, feature = rng.integers(0, 1 << 40, (3, 300))
    positions, times = rng.integers(-1, 300, (size, 6)), rng.integers(0, 1 << 40, size)
    mine = native.temporal_reply(other, time, feature if with_feature else None, positions, times)
    valid = positions >= 0
    assert np.array_equal(mine[0], np.where(valid, other[positions], -1))
    assert np.array_equal(mine[1], np.where(valid, times[:, None] - time[positions], 0))
    assert np.array_equal(mine[2], np.where(valid, feature[positions], -1)) if with_feature else mine[2] is None


def test_temporal_reply_of_an_empty_history_is_padding():
    empty, positions = np.empty(0, np.int64), np.full((3, 2), -1)
    other, dt, feature = native.temporal_reply(empty, empty, empty, positions, np.arange(3))
    assert (other == -1).all()
    assert (dt == 0).all()
    assert (feature == -1).all()
