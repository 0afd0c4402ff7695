"""Whole batches in one call against hop-by-hop calls."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from test_neighbors import KEY, MODES_AND_WEIGHTS, random_graph

from hpcgnn.native import (
    DrawnFrom,
    Relabel,
    find_pairs,
    sample_layers,
    sample_lists,
    sample_neighbors,
    sample_pairs,
)

pytestmark = pytest.mark.serial


def hop_by_hop(indptr, src, seeds, identity, fanouts, relabel, mode, weight):
    relabel.begin()
    relabel.add(seeds)
    layers = []
    for hop, fanout in enumerate(fanouts):
        offsets, positions = sample_neighbors(
            indptr, relabel.unique.copy(), identity, fanout, replace(KEY, hop=KEY.hop + hop),
            mode=mode, weight=weight, source_identity=identity[src],
        )  # fmt: skip
        layers.append((offsets, relabel.add(src[positions]), positions))
    return layers


@pytest.mark.parametrize(("mode", "weighted"), MODES_AND_WEIGHTS)
@pytest.mark.parametrize("fanouts", [[], [15, 10, 5], [3, -1], [70, 2]])
def test_layers_equal_hop_by_hop_calls(fanouts, mode, weighted):
    rng = np.random.default_rng(11)
    indptr, src, identity, weight = random_graph(rng, num_nodes=3000)
    weight = weight if weighted else None
    reference = Relabel(3000)
    for dense, threads in itertools.product([False, True], [1, 3]):
        relabel = Relabel(3000, dense)
        for seeds in (rng.integers(0, 3000, 400), np.empty(0, np.int64), rng.integers(0, 3000, 30)):
            expected = hop_by_hop(indptr, src, seeds, identity, fanouts, reference, mode, weight)
            options = {"mode": mode, "weight": weight, "threads": threads}
            layers = sample_layers(indptr, src, seeds, identity, fanouts, KEY, relabel, with_positions=True, **options)
            assert [[a.dtype for a in layer] for layer in layers] == [[np.int64, np.int32, np.int64]] * len(fanouts)
            for mine, theirs in zip(layers, expected, strict=True):
                assert all(map(np.array_equal, mine, theirs))
            assert np.array_equal(relabel.unique, reference.unique)
            bare = sample_layers(indptr, src, seeds, identity, fanouts, KEY, relabel, **options)
            for mine, theirs in zip(bare, expected, strict=True):
                assert mine[2] is None
                assert all(map(np.array_equal, mine[:2], theirs[:2]))


def test_python_threads_sample_batches_of_their_own():
    rng = np.random.default_rng(12)
    indptr, src, identity, _ = random_graph(rng, num_nodes=3000)
    seeds = [rng.choice(3000, 100, replace=False) for _ in range(24)]

    def sample(numbers):
        relabel = Relabel(3000)
        return [sample_layers(indptr, src, seeds[i], identity, [5, 5], replace(KEY, step=i), relabel) for i in numbers]

    alone = sample(range(24))
    with ThreadPoolExecutor(3) as pool:
        shared = list(pool.map(sample, [range(i, 24, 3) for i in range(3)]))
    for i in range(24):
        for mine, theirs in zip(shared[i % 3][i // 3], alone[i], strict=True):
            assert all(map(np.array_equal, mine[:2], theirs[:2]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": np.array([4])}, r"seed 4 is not in \[0, 4\)"),
        ({"seeds": np.array([0, -1])}, "seed -1 is not in"),
        ({"src": np.array([0, 1, 2, 9])}, "source 9 is not in"),
        ({"relabel": Relabel(5)}, "a relabeling of n nodes"),
        ({"fanouts": [2, 0]}, "fanout must be in"),
        ({"fanouts": [1] * 16}, "random hop"),
        ({"weight": np.ones(3, np.uint32)}, "weights must be as many"),
    ],
)
def test_wrong_batches(change, message):
    given = {
        "indptr": np.arange(5), "src": np.arange(4), "seeds": np.arange(4), "identity": np.arange(4),
        "fanouts": [2, 2], "random": KEY, "relabel": Relabel(4),
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        sample_layers(**given | change)


NODES, RELATIONS, FANOUTS = 60, 7, [3, 0, -1, 70, 3, 9, 1]


def random_pairs(rng):
    """Lists of pairs, relation after relation, some of them long; the lists and relations of every node."""
    node, relation = (axis.ravel() for axis in np.meshgrid(np.arange(NODES), np.arange(RELATIONS)))
    chosen = rng.random(len(node)) < 0.6
    node, relation = node[chosen], relation[chosen]
    degree = rng.choice([1, 2, 8, 9, 30, 200], len(node))
    indptr = np.concatenate(([0], np.cumsum(degree)))
    order = np.argsort(node, kind="stable")
    first = np.searchsorted(node[order], np.arange(NODES + 1))
    return indptr, node, relation, (first, order, relation[order])


def expected_pairs(node, relation, nodes, fanouts, bounds):
    """Of every group: relation by relation, the place of every node that has the pair."""
    list_of = {pair: number for number, pair in enumerate(zip(node.tolist(), relation.tolist(), strict=True))}
    return [
        (list_of[int(nodes[place]), number], place, number)
        for begin, end in itertools.pairwise(bounds)
        for number in range(RELATIONS)
        for place in range(begin, end)
        if fanouts[number] and (int(nodes[place]), number) in list_of
    ]


@pytest.mark.parametrize("bounds", [None, [0, 5, 5, 40]])
def test_pairs_of_nodes_are_in_order_of_group_relation_and_place(bounds):
    rng = np.random.default_rng(13)
    _, node, relation, pairs = random_pairs(rng)
    nodes = rng.integers(0, NODES, 40)  # some of them twice
    found = find_pairs(pairs, nodes, FANOUTS, None if bounds is None else np.array(bounds))
    assert [column.dtype for column in found] == [np.int64, np.int64, np.int32]
    expected = expected_pairs(node, relation, nodes, FANOUTS, bounds or [0, 40])
    assert np.column_stack(found).tolist() == [list(each) for each in expected]
    assert [len(column) for column in find_pairs(pairs, nodes[:0], FANOUTS)] == [0, 0, 0]


def without_lost(indptr, lost, *columns):
    """The lists without entries that are lost, and where each entry that stays was."""
    stays = ~np.isin(np.arange(indptr[-1]), lost)
    below = np.concatenate(([0], np.cumsum(stays)))
    return below[indptr], np.flatnonzero(stays), [None if column is None else column[stays] for column in columns]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.6, 1.0])
@pytest.mark.parametrize(("mode", "weighted"), MODES_AND_WEIGHTS)
def test_lost_entries_are_as_if_they_were_not_there(mode, weighted, share):
    rng = np.random.default_rng(14)
    indptr, node, _, pairs = random_pairs(rng)
    identity, source = node + (1 << 40), rng.integers(0, 1 << 40, indptr[-1])
    weight = rng.integers(0, 4, indptr[-1]).astype(np.uint32) if weighted else None
    source_identity = rng.integers(0, 1 << 40, indptr[-1])
    lost = np.flatnonzero(rng.random(indptr[-1]) < share)
    fewer, position, columns = without_lost(indptr, lost, weight, source_identity)
    drawn_from = DrawnFrom(indptr, identity, weight, source_identity, source, lost)
    nodes = rng.permutation(NODES)[:40]
    lists, place, numbers = find_pairs(pairs, nodes, FANOUTS)
    offsets, drawn = sample_neighbors(
        fewer, lists, identity, FANOUTS, KEY, mode=mode, weight=columns[0], source_identity=columns[1],
        relation=numbers,
    )  # fmt: skip
    one = sample_neighbors(fewer, lists, identity, 9, KEY, mode=mode, weight=columns[0], source_identity=columns[1])
    for threads in (1, 3):
        options = {"mode": mode, "threads": threads}
        mine = sample_lists(drawn_from, lists, FANOUTS, KEY, relation=numbers, **options)
        assert all(map(np.array_equal, mine, (offsets, position[drawn], source[position[drawn]])))
        bare = replace(drawn_from, source=None)
        without = sample_lists(bare, lists, FANOUTS, KEY, relation=numbers, with_positions=False, **options)
        assert np.array_equal(without[0], offsets)
        assert without[1:] == (None, None)
        mine = sample_lists(drawn_from, lists, [9], KEY, **options)
        assert all(map(np.array_equal, mine, (one[0], position[one[1]], source[position[one[1]]])))
        found, mine = sample_pairs(drawn_from, pairs, nodes, FANOUTS, KEY, **options)
        filled = np.diff(offsets) > 0
        assert all(map(np.array_equal, found, (place[filled], numbers[filled])))
        assert np.array_equal(mine[0], np.append(offsets[:-1][filled], offsets[-1]))
        assert all(map(np.array_equal, mine[1:], (position[drawn], source[position[drawn]])))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pairs, _: find_pairs(pairs, np.array([0, NODES]), FANOUTS), f"node {NODES} is not in"),
        (lambda pairs, _: find_pairs(pairs, np.arange(NODES), FANOUTS[:2]), r"relation . is not in \[0, 2\)"),
        (lambda pairs, _: find_pairs(pairs, np.arange(3), FANOUTS, np.array([0, 4])), "bounds"),
        (lambda _, lists: sample_lists(lists, np.array([0, -1]), [2], KEY), "list -1 is not in"),
        (
            lambda _, lists: sample_lists(lists, np.array([0]), [2], KEY, relation=np.array([1], np.int32)),
            "relation 1 is not in",
        ),
        (lambda _, lists: sample_lists(lists, np.array([0]), [0], KEY), "fanout must be in"),
        (lambda _, lists: sample_lists(lists, np.array([0]), [2], KEY, mode="labor"), "labor needs source_identity"),
    ],
)
def test_what_does_not_exist_is_refused(call, message):
    indptr, node, _, pairs = random_pairs(np.random.default_rng(15))
    with pytest.raises(ValueError, match=message):
        call(pairs, DrawnFrom(indptr, node))
