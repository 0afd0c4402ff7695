"""Metrics equal scikit-learn's or a plain loop's over all rows, however the rows lie on ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score

import hpcgnn
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.task.metrics import (
    QUERIES,
    PairRanks,
    QueryRanks,
    class_metrics,
    link_metrics,
    measured,
    ranking_metrics,
    ranks_of,
    regression_metrics,
    two_class_metrics,
)


@pytest.fixture
def world(comm):
    return World(CommConfig(device="cpu", threads=1), comm)


def share(world, count: int) -> np.ndarray:
    """This rank's rows of ``count``: uneven, none on rank 1."""
    owner = np.random.default_rng(5).integers(0, world.size, count)
    return np.flatnonzero(np.where(owner == 1, 0, owner) == world.rank)


@pytest.mark.parametrize("levels", [3, 1_000_000])
@pytest.mark.parametrize("k", [1, 20])
def test_ranks_against_sorting(levels, k):
    """The mean place of the positive over all orders of equal scores."""
    rng = np.random.default_rng(k)
    positive, negative = rng.integers(0, levels, 50) / 8, rng.integers(0, levels, (50, k)) / 8
    for score, others, rank in zip(positive, negative, ranks_of(positive, negative), strict=True):
        line = np.sort(np.append(others, score))[::-1]
        assert rank == 1 + np.flatnonzero(line == score).mean()


def test_ranks_of_equal_scores():
    """A tie counts half, equality is that of float32, and a score that is no number gives none."""
    third = 1 / 3
    assert ranks_of(np.array([1.0]), np.array([[1.0, 1.0, 1.0]])) == [2.5]
    assert ranks_of(np.array([third]), np.array([[np.nextafter(third, 1), 0.2, 0.9]])) == [2.5]
    assert ranks_of(np.array([0.5]), np.array([[0.1, 0.2]])) == [1]
    assert np.isnan(ranks_of(np.array([math.nan, 1, math.inf]), np.array([[0.0], [math.nan], [0]]))).all()
    assert ranks_of(np.empty(0), np.empty((0, 3))).shape == (0,)
    assert np.isnan(ranks_of(np.ones(2), np.empty((2, 0)))).all()


def test_ranking_metrics(world):
    """Over all rows, to rounding."""
    rng = np.random.default_rng(2)
    ranks, inductive = 1 + rng.integers(0, 60, 1000) / 2, rng.random(1000) < 0.2
    mine = share(world, 1000)
    result = ranking_metrics(ranks[mine], world, inductive[mine])
    for prefix, chosen in (("", ranks), ("inductive_", ranks[inductive])):
        assert result[prefix + "mrr"] == pytest.approx(math.fsum(1 / chosen) / len(chosen), rel=1e-14)
        assert result[prefix + "hits@10"] == (chosen <= 10).sum() / len(chosen)


def test_no_rows(world):
    """NaN, on all ranks."""
    none, nobody = np.empty(0), np.empty(0, bool)
    results = [
        ranking_metrics(none, world, nobody),
        link_metrics(none, np.empty((0, 2)), world, nobody),
        class_metrics(np.empty((0, 2)), none.astype(np.int64), world),
        class_metrics(np.empty((0, 4)), none.astype(np.int64), world),
        regression_metrics(none, none, world),
    ]
    assert all(math.isnan(value) for result in results for value in result.values())


def test_scores_that_are_no_numbers(world):
    """One rank's NaN is everybody's error."""
    value = np.full(3, math.nan if world.rank == world.size - 1 else 1.0)
    for call in (
        lambda: ranking_metrics(value, world),
        lambda: link_metrics(value, np.ones((3, 1)), world),
        lambda: class_metrics(value[:, None], np.zeros(3, np.int64), world),
        lambda: regression_metrics(value, np.ones(3), world),
    ):
        with pytest.raises(DistributedError, match="not finite"):
            call()


def alone() -> World:
    """A world in which this rank holds all rows."""
    return World.alone(CommConfig(device="cpu", threads=1))


@pytest.mark.parametrize("values", [2, 30, 1 << 40])
@pytest.mark.parametrize("k", [1, 7])
def test_links(world, values, k):
    """With many ties, some, and none; not a bit of it depends on the number of ranks."""
    rng = np.random.default_rng(k)
    positive = (rng.integers(0, values, 300) / values + 0.1).astype(np.float32)
    negative = (rng.integers(0, values, (300, k)) / values).astype(np.float32)
    inductive, mine = rng.random(300) < 0.3, share(world, 300)
    result = link_metrics(positive[mine], negative[mine], world, inductive[mine])
    assert result == link_metrics(positive, negative, alone(), inductive)
    for prefix, chosen in (("", np.ones(300, bool)), ("inductive_", inductive)):
        scores = np.concatenate([positive[chosen], negative[chosen].ravel()])
        labels = np.arange(len(scores)) < chosen.sum()
        assert result[prefix + "ap"] == pytest.approx(average_precision_score(labels, scores), rel=1e-12)
        assert result[prefix + "auc"] == pytest.approx(roc_auc_score(labels, scores), rel=1e-12)


def test_links_without_inductive_ones_or_negatives(world):
    """NaN for those only."""
    result = link_metrics(np.ones(2), np.zeros((2, 3)), world, np.zeros(2, bool))
    assert [result[name] for name in ("ap", "auc")] == [1, 1]
    assert math.isnan(result["inductive_ap"])
    assert math.isnan(result["inductive_auc"])
    assert all(map(math.isnan, link_metrics(np.ones(2), np.empty((2, 0)), world, np.ones(2, bool)).values()))


@pytest.mark.parametrize("values", [2, 30, 1 << 40])
def test_two_classes(world, values):
    """With ties; not a bit of it depends on the number of ranks."""
    rng = np.random.default_rng(3)
    scores, labels = (rng.integers(0, values, (400, 2)) / values).astype(np.float32), rng.integers(0, 2, 400)
    margin = scores[:, 1] - scores[:, 0]
    mine = share(world, 400)
    result = class_metrics(scores[mine], labels[mine], world)
    assert result == class_metrics(scores, labels, alone())
    assert result["auc"] == pytest.approx(roc_auc_score(labels, margin), rel=1e-12)
    assert result["ap"] == pytest.approx(average_precision_score(labels, margin), rel=1e-12)


@pytest.mark.parametrize("label", [0, 1])
def test_one_of_two_classes(world, label):
    """Neither metric of pairs says anything then."""
    result = two_class_metrics(np.arange(8.0).reshape(4, 2), np.full(4, label), world)
    assert list(result) == ["ap", "auc"]
    assert all(map(math.isnan, result.values()))


def test_many_classes(world):
    """A class that never occurs does not count."""
    rng = np.random.default_rng(4)
    scores, labels = rng.standard_normal((300, 6)), rng.integers(0, 5, 300)
    scores[:, 5] -= 100
    mine = share(world, 300)
    result = class_metrics(scores[mine], labels[mine], world)
    predicted = scores.argmax(axis=1)
    assert result["accuracy"] == accuracy_score(labels, predicted)
    assert result["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"), rel=1e-12)


@pytest.mark.parametrize("shape", [(500,), (100, 3)])
def test_regression(world, shape):
    rng = np.random.default_rng(6)
    predicted, target = rng.standard_normal(shape), 1e3 * rng.standard_normal(shape)
    mine = share(world, len(target))
    result = regression_metrics(predicted[mine], target[mine], world)
    error = (predicted - target).ravel()
    assert result["mse"] == pytest.approx(math.fsum(error**2) / error.size, rel=1e-13)
    assert result["mae"] == pytest.approx(math.fsum(abs(error)) / error.size, rel=1e-13)
    assert result["rmse"] == pytest.approx(math.sqrt(math.fsum(error**2) / error.size), rel=1e-13)
    scaled = regression_metrics(predicted[mine], target[mine], world, 70.0)
    units = regression_metrics(70 * predicted[mine], 70 * target[mine], world)
    assert scaled == result | {f"{name}_units": pytest.approx(units[name], rel=1e-12) for name in result}


def test_means_of_ranks_are_rounded_once(world):
    """What a rank's sum would lose, and what the order of a query's seeds would change, is in neither."""
    values = np.array([1.0, 2.0**-53, 2.0**-53])
    own = values[np.minimum(np.arange(3), world.size - 1) == world.rank]
    assert PairRanks(own, world).mean(own) == math.fsum(values) / 3
    rng = np.random.default_rng(4)
    ranks, query = rng.integers(1, 20, 60).astype(float), np.repeat(np.arange(3), 20)
    found = set()
    for _ in range(20):
        order = rng.permutation(60)
        mine = order[query[order] % world.size == world.rank]
        found.add(tuple(measured(QUERIES, QueryRanks(ranks[mine], query[mine], world)).values()))
    assert len(found) == 1


def test_public_functions_take_tensors(world):
    """Not a bit differs from arrays; bfloat16 too, which NumPy lacks."""
    rng = np.random.default_rng(8)
    mine, output, label = share(world, 90), rng.standard_normal((90, 3)).astype(np.float32), rng.integers(0, 3, 90)
    output, label, chosen = output[mine], label[mine], mine % 2 == 0
    score, others = output[:, 0], output[:, 1:]
    tensors = [torch.from_numpy(values) for values in (output, label, score, others)]
    tensors[0].requires_grad_()
    assert hpcgnn.class_metrics(*tensors[:2], world) == class_metrics(output, label, world)
    assert hpcgnn.regression_metrics(*tensors[2:0:-1], world) == regression_metrics(score, label, world)
    expected = link_metrics(score, others, world, chosen)
    assert hpcgnn.link_metrics(*tensors[2:], world, torch.from_numpy(chosen)) == expected
    ranks = hpcgnn.ranks_of(*tensors[2:])
    assert np.array_equal(ranks, ranks_of(score, others))
    expected = ranking_metrics(ranks, world, chosen)
    assert hpcgnn.ranking_metrics(torch.from_numpy(ranks), world, torch.from_numpy(chosen)) == expected
    narrow = tensors[0].bfloat16()
    assert hpcgnn.class_metrics(narrow, tensors[1], world) == class_metrics(
        narrow.detach().float().numpy(), label, world
    )


def test_queries_whose_answers_lie_on_several_ranks(world):
    """Recall and normalized gain of every query, by plain loops over its answers."""
    rng = np.random.default_rng(9)
    query, rank = rng.integers(0, 15, 200), rng.integers(1, 60, 200)
    mine = np.arange(200)[world.rank :: world.size]
    result = hpcgnn.query_metrics(torch.from_numpy(rank[mine]), query[mine], world)
    recalls, gains = [], []
    for number in np.unique(query):
        places = rank[query == number]
        recalls.append(np.mean(places <= 20))
        best = sum(1 / math.log2(1 + place) for place in range(1, min(20, len(places)) + 1))
        gains.append(sum(1 / math.log2(1 + place) for place in places if place <= 20) / best)
    assert result == {"recall@20": pytest.approx(np.mean(recalls)), "ndcg@20": pytest.approx(np.mean(gains))}
    assert result == hpcgnn.query_metrics(rank, query, alone())


def test_pairs_against_one_pool(world):
    rng = np.random.default_rng(10)
    positive, negative = rng.standard_normal(80) + 1, rng.standard_normal(300)
    own, pool = share(world, 80), share(world, 300)
    result = hpcgnn.pool_metrics(torch.from_numpy(positive[own]), torch.from_numpy(negative[pool]), world)
    for most in (20, 50, 100):
        assert result[f"hits@{most}"] == np.mean(positive > np.sort(negative)[-most])
    labels, scores = np.arange(380) < 80, np.concatenate([positive, negative])
    assert result["auc"] == pytest.approx(roc_auc_score(labels, scores), rel=1e-6)
    assert result["ap"] == pytest.approx(average_precision_score(labels, scores), rel=1e-6)


@pytest.mark.parametrize("strange", [-1, 3])
def test_labels_of_no_class(world, strange):
    label = np.where(share(world, 40) == 0, strange, 1)
    with pytest.raises(DistributedError, match=f"a label is {strange}, and outputs have 3 classes: leave out rows"):
        class_metrics(np.zeros((len(label), 3)), label, world)
