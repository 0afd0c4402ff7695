"""Draws from lists without some of their edges are distributed as from lists that never had them, and those of degrees
around the fanout are as likely as they should be: chi-square tests."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_neighbors import KEY, assert_chi_square

from hpcgnn.graph.directory import epoch_shuffle
from hpcgnn.native import Random, Stream, sample_neighbors
from hpcgnn.static.sampling import replica
from hpcgnn.static.sampling.neighbors import Exclusion, HiddenEdges, splice, without
from hpcgnn.static.sampling.pairs import InLists
from hpcgnn.static.sampling.replica import SharedExclusion

pytestmark = pytest.mark.serial

TRIALS = 20_000
START = np.zeros(1, np.int64)  # of the edges of the only relation


def lists_of(degree: int, weights: np.ndarray | None = None) -> InLists:
    """TRIALS nodes with lists alike; sources of their own."""
    rows = np.arange(TRIALS)
    weight = None if weights is None else np.tile(weights, TRIALS).astype(np.uint32)
    return InLists(np.arange(TRIALS + 1) * degree, rows + (1 << 33), weight, np.arange(TRIALS * degree) << 7)


def draw(lists: InLists, fanout: int, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Of every node."""
    return sample_neighbors(
        lists.indptr, np.arange(TRIALS), lists.identity, fanout, KEY, mode=mode, weight=lists.weight,
        source_identity=lists.source_identity,
    )  # fmt: skip


def subset_chances(weights: list[int], fanout: int) -> dict[int, float]:
    """Chance of every subset, by its bits, of successive draws."""
    chances: dict[int, float] = {}
    for order in itertools.permutations(range(len(weights)), fanout):
        left, chance = sum(weights), 1.0
        for entry in order:
            chance *= weights[entry] / left if left else 0.0
            left -= weights[entry]
        code = sum(1 << entry for entry in order)
        chances[code] = chances.get(code, 0.0) + chance
    return {code: chance for code, chance in chances.items() if chance > 0}


def check_subsets(ranks: np.ndarray, chances: dict[int, float]) -> None:
    """ranks [TRIALS, fanout]."""
    codes = sorted(chances)
    observed = np.bincount((1 << ranks).sum(axis=1), minlength=codes[-1] + 1)[codes]
    assert observed.sum() == len(ranks)
    assert_chi_square(observed, np.array([chances[code] for code in codes]) * len(ranks), len(codes) - 1)


@pytest.mark.parametrize(("mode", "weights"), [("uniform", None), ("labor", None), ("uniform", [4, 1, 9, 2, 3, 5, 7])])
@pytest.mark.parametrize("lost", [(0,), (6,), (1, 4), (0, 2, 5)])
def test_subsets_of_what_is_left_are_as_likely_as_without_the_lost(mode, weights, lost):
    degree, fanout = 7, 3
    weights = None if weights is None else np.array(weights)
    lists = lists_of(degree, weights)
    gone = (lists.indptr[:-1, None] + np.array(lost)).ravel()
    kept, position = without(lists, np.arange(TRIALS), gone)
    offsets, places = draw(kept, fanout, mode)
    assert (np.diff(offsets) == fanout).all()
    ranks = (position[places].reshape(TRIALS, fanout) - lists.indptr[:-1, None]).astype(np.int64)
    assert not np.isin(ranks, lost).any()
    left = [0 if entry in lost else 1 if weights is None else int(weights[entry]) for entry in range(degree)]
    check_subsets(ranks, subset_chances(left, fanout))


def test_lists_that_lose_nothing_draw_as_before():
    """Nodes with and without lost edges in one answer."""
    lists, touched = lists_of(7), np.arange(TRIALS) % 3 == 0
    kept, position = without(lists, np.flatnonzero(touched), lists.indptr[:-1][touched] + 2)
    of_kept = sample_neighbors(kept.indptr, np.arange(touched.sum()), kept.identity, 3, KEY)
    others = sample_neighbors(lists.indptr, np.flatnonzero(~touched), lists.identity, 3, KEY)
    offsets, positions = splice(touched, others, (of_kept[0], position[of_kept[1]]))
    plain = sample_neighbors(lists.indptr, np.arange(TRIALS), lists.identity, 3, KEY)
    assert np.array_equal(offsets, plain[0])
    assert np.array_equal(positions.reshape(-1, 3)[~touched], plain[1].reshape(-1, 3)[~touched])
    assert not np.isin(positions, lists.indptr[:-1][touched] + 2).any()


@pytest.mark.parametrize("fanout", [3, 5])
@pytest.mark.parametrize("surplus", [-1, 0, 1, 2])
@pytest.mark.parametrize("mode", ["uniform", "weighted", "labor"])
def test_degrees_around_the_fanout(mode, surplus, fanout):
    """All entries up to the fanout; one or two more: every subset as likely as it should be."""
    degree = fanout + surplus
    weights = np.arange(1, degree + 1) if mode == "weighted" else None
    offsets, positions = draw(lists_of(degree, weights), fanout, "labor" if mode == "labor" else "uniform")
    assert (np.diff(offsets) == min(degree, fanout)).all()
    if surplus <= 0:
        assert np.array_equal(positions, np.arange(TRIALS * degree))
        return
    ranks = positions.reshape(TRIALS, fanout) - np.arange(TRIALS)[:, None] * degree
    check_subsets(ranks, subset_chances([1] * degree if weights is None else weights.tolist(), fanout))


def one_by_one(total: int) -> HiddenEdges:
    """Edges that are seeds without copies."""
    return HiddenEdges.of(*[np.arange(total)] * 4)


@pytest.mark.parametrize("kind", [Exclusion, SharedExclusion])
def test_a_step_hides_all_edges_of_its_seeds_groups(kind):
    """Groups without seeds or edges hide nothing, and an edge many times over costs no more than once."""
    position, edge_group = np.arange(8), np.array([3, 0, 3, 1, 0, 5, 3, 6])
    place, seed_group = np.arange(7), np.array([3, 3, 0, 4, 6, 0, 3])
    exclusion = kind({0: HiddenEdges.of(position, edge_group, place, seed_group)}, 7, 2)
    found = [exclusion.at(START, Random(0, Stream.NEIGHBOR, step)).tolist() for step in range(4)]
    assert found == [[0, 2, 6], [1, 4], [1, 4, 7], [0, 2, 6]]
    many = HiddenEdges.of(np.arange(1 << 16), *[np.zeros(1 << 16, int), np.arange(1 << 16), np.zeros(1 << 16, int)])
    assert sum(array.nbytes for array in many.arrays) < 32 << 16


@pytest.mark.parametrize("kind", [Exclusion, SharedExclusion])
def test_threads_that_plan_different_steps_share_an_exclusion(monkeypatch, kind):
    """Each gets the edges of its own step, whenever the others look for theirs."""
    total, batch_size = 110, 20
    exclusion = kind({0: one_by_one(total)}, total, batch_size)
    exclusion.start_epoch(None)
    others = itertools.cycle(range(total // batch_size + 1))
    searchsorted = np.searchsorted

    def search_while_others_plan(*arguments, **options):
        with monkeypatch.context() as once:
            once.setattr(np, "searchsorted", searchsorted)
            exclusion.at(START, Random(0, Stream.NEIGHBOR, next(others)))
        return searchsorted(*arguments, **options)

    monkeypatch.setattr(np, "searchsorted", search_while_others_plan)
    for step in range(total // batch_size + 1):
        positions = exclusion.at(START, Random(0, Stream.NEIGHBOR, step))
        assert positions.tolist() == list(range(step * batch_size, min((step + 1) * batch_size, total)))


def test_threads_in_turns_keep_the_seeds_of_their_steps(monkeypatch):
    """A hop of one thread does not make another thread find its seeds anew."""
    calls, back = [], replica.permute_back
    monkeypatch.setattr(replica, "permute_back", lambda *arguments: (calls.append(1), back(*arguments))[1])
    exclusion = SharedExclusion({0: one_by_one(110)}, 110, 20)
    exclusion.start_epoch(epoch_shuffle(3, 0))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as another:
        for hop in range(4):
            for step, thread in enumerate((one, another)):
                key = Random(0, Stream.NEIGHBOR, step, hop=hop)
                assert len(thread.submit(exclusion.at, START, key).result(60)) == 20
    assert len(calls) == 2
