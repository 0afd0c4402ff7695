"""Losses that compare a pair with its negatives, against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hpcgnn.task.config import TaskConfig
from hpcgnn.task.losses import LOSSES, make_loss

pytestmark = pytest.mark.serial


def bpr(pair: float, negatives: list[float]) -> float:
    return float(np.mean([math.log1p(math.exp(other - pair)) for other in negatives])) if negatives else 0.0


def ccl(pair: float, negatives: list[float]) -> float:
    against = np.mean([max(0.0, other - 0.4) for other in negatives]) if negatives else 0.0
    return 1 - pair + 7.5 * float(against)


CASES = {
    "bpr": (bpr, TaskConfig(loss="bpr")),
    "ccl": (ccl, TaskConfig(loss="ccl", decoder="cosine", margin=0.4, negative_weight=7.5)),
}


@pytest.mark.parametrize("name", CASES)
def test_against_a_loop_over_pairs(name):
    """Pairs with all, some and no negatives, and the gradients by differences."""
    rng, (plain, task) = np.random.default_rng(4), CASES[name]
    positive, negative = rng.uniform(-1, 1, 6), rng.uniform(-1, 1, (5, 6))
    is_negative = rng.random((5, 6)) < 0.6
    is_negative[:, 0], is_negative[:, 1] = True, False
    given = torch.from_numpy(positive).requires_grad_()
    scores = torch.from_numpy(negative).requires_grad_()
    loss = make_loss(task)(given, scores.masked_fill(torch.from_numpy(~is_negative), -math.inf))
    expected = sum(plain(positive[n], negative[is_negative[:, n], n].tolist()) for n in range(6))
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    loss.backward()
    assert torch.isfinite(given.grad).all()
    assert (scores.grad[torch.from_numpy(~is_negative)] == 0).all()
    step = 1e-6
    for at in range(6):
        others = negative[is_negative[:, at], at].tolist()
        slope = (plain(positive[at] + step, others) - plain(positive[at] - step, others)) / (2 * step)
        assert given.grad[at].item() == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_cosines_are_asked_for():
    assert LOSSES["ccl"].of_cosines
    for keys, named in (
        ({}, "task.decoder cosine with task.temperature 1, got dot and 1"),
        ({"decoder": "cosine", "temperature": 0.5, "margin": 0.5}, "got cosine and 0.5"),
        ({"decoder": "cosine"}, "a task.margin below 1, such as 0.8, got 1"),
    ):
        with pytest.raises(ValueError, match=named):
            TaskConfig(loss="ccl", **keys)
    with pytest.raises(ValueError, match=r"task.negative_weight: task.loss margin does not read it; use task.loss ccl"):
        TaskConfig(loss="margin", negative_weight=2.0)
