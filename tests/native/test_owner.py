"""Owners and local rows of ids against plain NumPy."""

import numpy as np
import pytest

from hpcgnn import native

pytestmark = pytest.mark.serial


def random_blocks(rng, num_blocks, num_ranks, num_ids):
    """Blocks of ids below num_ids, some of them empty."""
    start = np.sort(rng.integers(0, num_ids, num_blocks))
    start[-2:] = start[-1]
    start[0] = 0
    return start, rng.integers(0, num_ranks, num_blocks), rng.integers(0, 1 << 40, num_blocks)


def reference_locate(ids, blocks):
    start, rank, local = blocks
    block = np.searchsorted(start, ids, side="right") - 1
    return rank[block], ids - start[block] + local[block]


BLOCKS = pytest.mark.parametrize(("num_blocks", "num_ranks"), [(1, 1), (2, 3), (3, 2), (13, 4), (64, 64)])


@BLOCKS
@pytest.mark.parametrize("size", [0, 1, 800])
def test_locate_equals_reference(size, num_blocks, num_ranks):
    rng = np.random.default_rng(num_blocks + size)
    blocks, ids = random_blocks(rng, num_blocks, num_ranks, 1000), rng.integers(0, 1000, size)
    owner, local = reference_locate(ids, blocks)
    assert all(map(np.array_equal, native.locate(ids, blocks), (owner, local)))
    order, in_order, counts = native.locate_by_owner(ids, blocks, num_ranks)
    assert np.array_equal(order, np.argsort(owner, kind="stable"))
    assert np.array_equal(native.order_of_ranks(owner, num_ranks), order)
    assert np.array_equal(in_order, local[order])
    assert np.array_equal(counts, np.bincount(owner, minlength=num_ranks))


@BLOCKS
@pytest.mark.parametrize("size", [0, 1, 800])
def test_unique_by_owner_equals_reference(size, num_blocks, num_ranks):
    rng = np.random.default_rng(num_blocks + size)
    blocks, ids = random_blocks(rng, num_blocks, num_ranks, 1000), rng.integers(-1, 1000, size)
    expected = np.array(list(dict.fromkeys(ids[ids >= 0].tolist())), np.int64)
    owner, local = reference_locate(expected, blocks)
    order = np.argsort(owner, kind="stable")
    unique, inverse, mine, counts = native.unique_by_owner(ids, blocks, num_ranks)
    assert np.array_equal(unique, expected[order])
    assert np.array_equal(mine, local[order])
    assert np.array_equal(counts, np.bincount(owner, minlength=num_ranks))
    assert np.array_equal(unique[inverse[ids >= 0]], ids[ids >= 0])
    assert (inverse[ids < 0] == -1).all()


def test_owners_beyond_the_counts_are_refused():
    blocks = np.array([0, 5]), np.array([0, 2]), np.array([0, 0])
    for sort in (native.locate_by_owner, native.unique_by_owner):
        with pytest.raises(ValueError, match="ranks of blocks"):
            sort(np.arange(9), blocks, 2)


def test_ranges_of_any_order_and_length():
    values, rng = np.arange(100, 150), np.random.default_rng(1)
    begin = rng.integers(0, 51, 30)
    length = rng.integers(0, 51 - begin)
    expected = [value for at, count in zip(begin, length, strict=True) for value in range(100 + at, 100 + at + count)]
    assert native.gather_ranges(values, begin, length).tolist() == expected
    assert native.gather_ranges(values, begin[:0], length[:0]).tolist() == []


@pytest.mark.parametrize(("begin", "length"), [([-1], [2]), ([3], [3]), ([6], [0]), ([2, 1], [-1, 2])])
def test_ranges_outside_are_refused(begin, length):
    with pytest.raises(ValueError, match=r"ranges must lie within|must not be negative"):
        native.gather_ranges(np.arange(5), np.array(begin), np.array(length))


def test_more_ids_than_places_are_refused():
    """Places are 32-bit numbers. The memory is only set aside."""
    blocks = (np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
    for sort in (native.locate_by_owner, native.unique_by_owner):
        with pytest.raises(ValueError, match=r"2\^31"):
            sort(np.empty(1 << 31, np.int64), blocks, 1)
