"""The highest scores of each query, found by blocks of candidates: those of a full sort, ties and all."""

import math

import numpy as np
import pytest
import torch

from hpcgnn.task.ranking import BLOCK, _is_finite, _reaching

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 1000])
@pytest.mark.parametrize("count", [1, 3, 20, 2000])
@pytest.mark.parametrize("values", ["all different", "many equal", "all equal"])
def test_the_highest_are_those_of_a_sort(size, count, values):
    rng = np.random.default_rng(size + count)
    score = {"all different": rng.permuted(np.tile(np.arange(size), (7, 1)), axis=1), "all equal": np.ones((7, size)),
             "many equal": rng.integers(0, 9, (7, size))}[values].astype(np.float32)  # fmt: skip
    score[rng.random(score.shape) < 0.2] = -np.inf
    query, place = (part.numpy() for part in _reaching(torch.from_numpy(score), count))
    for number in range(7):
        found = place[query == number]
        ranked = np.sort(score[number][score[number] > -np.inf])[::-1]
        needed = np.flatnonzero(score[number] >= ranked[:count].min()) if len(ranked) else []
        assert len(set(found.tolist())) == len(found)
        assert (score[number, found] > -np.inf).all()
        if len(ranked) > count:
            assert set(np.asarray(needed).tolist()) <= set(found.tolist())
        else:
            assert len(found) == len(ranked)


def test_few_of_many_are_looked_at():
    score = torch.randn(50, 40_000, generator=torch.Generator().manual_seed(1))
    assert len(_reaching(score, 20)[0]) < 50 * 40


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_score_that_is_not_finite_is_noticed(value):
    score = torch.zeros(3, 100)
    assert _is_finite(score)
    assert _is_finite(score[:, :0])
    score[1, 70] = value
    assert not _is_finite(score)
