"""Relabeling, winners and index transposes against plain Python and NumPy."""

import numpy as np
import pytest

from data_tools.memory import status_bytes
from hpcgnn import native
from hpcgnn.comm.memory import give_back
from hpcgnn.native import Relabel

pytestmark = pytest.mark.serial


def test_unique_relabel_equals_reference():
    rng = np.random.default_rng(2)
    for size in (0, 1, 1000, 10, 9000, 1000):
        ids = rng.integers(-1, 300, size) * (1 << 33)
        unique, inverse = native.unique_relabel(ids)
        expected = list(dict.fromkeys(ids[ids >= 0].tolist()))
        assert unique.tolist() == expected
        assert np.array_equal(unique[inverse[ids >= 0]], ids[ids >= 0])
        assert (inverse[ids < 0] == -1).all()


@pytest.mark.parametrize("operation", ["relabel", "by owner"])
def test_memory_of_a_large_call_is_given_back(operation):
    ids = np.random.default_rng(1).permutation(4_000_000)
    blocks = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    give_back()
    before = status_bytes("VmRSS")
    if operation == "relabel":
        native.unique_relabel(ids)
    else:
        native.unique_by_owner(ids, blocks, 1)
    give_back()  # what malloc keeps of the arrays that were returned
    assert status_bytes("VmRSS") - before < 100 << 20  # the table alone takes 128 MiB


def test_last_event_has_one_winner_a_node():
    rng = np.random.default_rng(3)
    nodes, events = rng.integers(0, 50, 400), rng.integers(0, 100, 400)
    winner = native.last_event(nodes, events)
    assert sorted(nodes[winner]) == sorted(set(nodes.tolist()))
    for node, event in zip(nodes[winner], events[winner], strict=True):
        assert event == events[nodes == node].max()


def test_transpose_index_round_trip():
    rng = np.random.default_rng(4)
    index = rng.integers(-1, 20, 200).astype(np.int32)
    indptr, order = native.transpose_index(index, 20)
    for target in range(20):
        assert order[indptr[target] : indptr[target + 1]].tolist() == np.flatnonzero(index == target).tolist()


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(("num_nodes", "size"), [(1, 5), (50, 200), (5000, 3000), (100_000, 3000)])
def test_relabel_equals_a_dictionary(num_nodes, size, dense):
    rng, relabel = np.random.default_rng(num_nodes), Relabel(num_nodes, dense)
    for _ in range(4):
        relabel.begin()
        places: dict[int, int] = {}
        for length in (0, 1, size // 3, size):
            ids = np.where(rng.random(length) < 0.1, -1, rng.integers(0, num_nodes, length))
            position = relabel.add(ids)
            expected = [-1 if i < 0 else places.setdefault(int(i), len(places)) for i in ids]
            assert position.dtype == np.int32
            assert position.tolist() == expected
            assert relabel.unique.tolist() == list(places)


@pytest.mark.parametrize("dense", [False, True])
def test_relabel_views_outlive_growth_and_ids_are_checked(dense):
    relabel = Relabel(1000, dense)
    relabel.add(np.array([7, 3]))
    early = relabel.unique
    relabel.add(np.arange(1000))
    assert early.tolist() == [7, 3]
    with pytest.raises(ValueError, match="id 1000 is not below 1000"):
        relabel.add(np.array([2, 1000]))
    del relabel
    assert early.tolist() == [7, 3]


@pytest.mark.parametrize("shape", [(0,), (1,), (40_000,), (7, 5000)])
def test_unique_sorted_equals_numpy(shape):
    ids = np.random.default_rng(5).integers(0, 900, shape) * (1 << 40)
    for given in (ids, ids.T):
        unique, place = native.unique_sorted(given)
        expected, inverse = np.unique(given, return_inverse=True)
        assert np.array_equal(unique, expected)
        assert np.array_equal(place, inverse.reshape(given.shape))
        assert unique.dtype == place.dtype == np.int64
