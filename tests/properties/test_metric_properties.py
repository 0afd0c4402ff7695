"""Metrics of generated scores, with ties and extreme numbers, on any ranks: scikit-learn's, or those of plain loops."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from same_verdict import same_verdict
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score

from hpcgnn.comm.world import DistributedError, World
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.snapshots.link_goal import measure_drawn
from hpcgnn.task import levels, metrics
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.task.ranking import Candidates

# Some scores of each example are equal, in float32 at least.
SCORES = st.sampled_from([0.0, -0.0, 0.5, 1.0, 1 / 3, math.nextafter(1 / 3, 1), 1e-45, -3e38, 3e38]) | st.floats(
    width=32, allow_nan=False, allow_infinity=False
)
# Such as a model in float64 may have.
WILD = st.sampled_from([math.nan, math.inf, -math.inf, 1e39, -1e300])
RANKS = st.integers(0, 11)
AT_ONCE = st.sampled_from([1, 2, 5, levels.AT_ONCE])


def rows_of(world: World, ranks: list[int]) -> np.ndarray:
    """Choose this rank's rows of all that are numbered for some ranks."""
    return np.flatnonzero(np.array(ranks, int) % world.size == world.rank)


@st.composite
def pairs(draw, fewest: int = 0):
    """Rows of (score, k scores of negatives, inductive?, rank), and k."""
    k = draw(st.integers(fewest, 4) | st.just(15))
    row = st.tuples(SCORES, st.lists(SCORES, min_size=k, max_size=k), st.booleans(), RANKS)
    return draw(st.lists(row, max_size=12)), k


def columns(rows, k: int):
    """Positive [b], negative [b, k], inductive [b] and the rank [b] of each row."""
    positive, negative, inductive, ranks = zip(*rows, strict=True) if rows else ([], [], [], [])
    return np.array(positive), np.array(negative).reshape(len(rows), k), np.array(inductive, bool), ranks


def same(values, expected) -> None:
    """Compare floats to rounding; NaN is NaN."""
    np.testing.assert_allclose(values, expected, rtol=1e-11, atol=1e-14)


def ap_auc(positive: np.ndarray, negative: np.ndarray) -> tuple[float, float]:
    """Average precision and AUC, by scikit-learn."""
    if not positive.size or not negative.size:
        return math.nan, math.nan
    scores = np.concatenate([positive.ravel(), negative.ravel()]).astype(np.float32).astype(float)
    labels = np.arange(len(scores)) < positive.size
    return average_precision_score(labels, scores), roc_auc_score(labels, scores)


def rank_of(score: float, others: np.ndarray) -> float:
    """The mean place of a score among others, over all orders of equal ones."""
    line = np.sort(np.append(others, score).astype(np.float32))[::-1]
    return 1 + np.flatnonzero(line == np.float32(score)).mean()


@given(rows=st.lists(st.tuples(st.floats(-1e300, 1e300), RANKS), max_size=40), at_once=AT_ONCE)
@example([(1e300, 0), (1.0, 1), (-1e300, 2)], 1)
@example([(5e-324, 0), (-1e-310, 1)], 1)
def test_sums_are_rounded_once(comm, world, rows, at_once):
    values, own = np.array([value for value, _ in rows]), rows_of(world, [rank for _, rank in rows])
    with same_verdict(comm), pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "AT_ONCE", at_once)
        assert levels.exact_sum(values[own], world) == math.fsum(values)


@given(drawn=pairs(), at_once=AT_ONCE)
def test_links(comm, world, drawn, at_once):
    """The scores are counted in pieces of any size."""
    positive, negative, inductive, ranks = columns(*drawn)
    own = rows_of(world, ranks)
    with same_verdict(comm), pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "AT_ONCE", at_once)
        result = metrics.link_metrics(positive[own], negative[own], world, inductive[own])
        expected = [*ap_auc(positive, negative), *ap_auc(positive[inductive], negative[inductive])]
        same([result[name] for name in ("ap", "auc", "inductive_ap", "inductive_auc")], expected)


@given(drawn=pairs(), num_pieces=st.integers(1, 4))
def test_ranks_and_their_means(comm, world, drawn, num_pieces):
    rows, k = drawn
    positive, negative, inductive, ranks = columns(rows, k)
    expected = np.array([rank_of(*row) for row in zip(positive, negative, strict=True)])
    placed, standing = metrics.ranks_of(positive, negative), metrics.Standing(positive)
    for piece in np.array_split(negative, num_pieces, axis=1):
        standing.add(piece)
    assert np.array_equal(standing.ranks(), placed, equal_nan=True)
    if k == 0:
        assert np.isnan(placed).all()
        return
    assert np.array_equal(placed, expected)
    own = rows_of(world, ranks)
    with same_verdict(comm):
        result = metrics.ranking_metrics(placed[own], world, inductive[own])
        for prefix, some in (("", expected), ("inductive_", expected[inductive])):
            mean = np.mean([1 / some, some <= 10], axis=1) if len(some) else [math.nan] * 2
            same([result[f"{prefix}mrr"], result[f"{prefix}hits@10"]], mean)


@given(rows=st.lists(st.tuples(st.integers(2, 60), st.integers(0, 2), RANKS), max_size=60))
def test_means_of_ranks(comm, world, rows):
    """Around the places that count as hits; of queries with more answers than these, too."""
    place, query = np.array([row[0] / 2 for row in rows]), np.array([row[1] for row in rows], int)
    own, at_owner = rows_of(world, [row[2] for row in rows]), query % world.size == world.rank
    with same_verdict(comm):
        hits = metrics.ranking_metrics(place[own], world, place[own] > 5)
        same(hits["hits@10"], np.mean(place <= 10) if rows else math.nan)
        same(hits["inductive_hits@10"], np.mean(place[place > 5] <= 10) if (place > 5).any() else math.nan)
        mean = [np.mean(1 / place), *(np.mean(place <= most) for most in (1, 3, 10))] if rows else [math.nan] * 4
        same([hits[name] for name in ("mrr", "hits@1", "hits@3", "hits@10")], mean)
        full = metrics.measured(metrics.QUERIES, metrics.QueryRanks(place[at_owner], query[at_owner], world))
        recall, gain = [], []
        for asked in sorted(set(query.tolist())):
            places = place[query == asked]
            recall.append(np.mean(places <= 20))
            ideal = sum(1 / math.log2(2 + number) for number in range(min(20, len(places))))
            gain.append(sum(1 / math.log2(1 + at) for at in places if at <= 20) / ideal)
        same(list(full.values()), [np.mean(recall), np.mean(gain)] if rows else [math.nan] * 2)


def drawn(positive, negative, number, source, snapshots, world) -> dict[str, float]:
    """The metrics of links between these snapshots."""
    scores = {"positive": positive, "negative": negative, "number": number, "source": source}
    return measure_drawn(scores, SimpleNamespace(targets=[snapshots]), world)


def best_edges(positive, placed, number, source) -> float:
    """The mean over snapshots of the mean over sources of 1 / the place of a source's edge with the highest score."""
    by_snapshot: dict[int, dict[int, tuple]] = {}
    for score, place, snapshot, node in zip(positive, placed, number, source, strict=True):
        best = by_snapshot.setdefault(snapshot, {})
        best[node] = min(best.get(node, (math.inf, 0)), (-score, place))
    means = [np.mean([1 / place for _, place in best.values()]) for best in by_snapshot.values()]
    return np.mean(means) if means else math.nan


TWELVE = st.lists(st.integers(0, 3), min_size=12, max_size=12)


@given(rows=pairs(1), groups=TWELVE, sources=TWELVE)
def test_means_over_snapshots(comm, world, rows, groups, sources):
    positive, negative, _, ranks = columns(*rows)
    number, source = (np.array(of)[: len(positive)] for of in (groups, sources))
    own = rows_of(world, ranks)
    with same_verdict(comm):
        result = drawn(positive[own], negative[own], number[own], source[own], range(4), world)
        by_group = np.array([ap_auc(positive[number == group], negative[number == group]) for group in range(4)])
        with warnings.catch_warnings(action="ignore"):  # where no group has pairs
            means = np.nanmean(by_group, axis=0)
        placed = [rank_of(*row) for row in zip(positive, negative, strict=True)]
        mrr = np.mean(1 / np.array(placed)) if placed else math.nan
        names = ("ap", "auc", "mrr", "ap_per_snapshot", "auc_per_snapshot")
        same([result[name] for name in names], [*ap_auc(positive, negative), mrr, *means])
        same(result["mrr_best_edge"], best_edges(positive, placed, number, source))


@st.composite
def labeled(draw):
    """Rows of (outputs of classes, label, rank), and the number of classes."""
    classes = draw(st.integers(2, 5))
    row = st.tuples(st.lists(SCORES, min_size=classes, max_size=classes), st.integers(0, classes - 1), RANKS)
    return draw(st.lists(row, max_size=12)), classes


@given(drawn=labeled())
@example(drawn=([([3e38, -3e38], 0, 0), ([0.0, 1.0], 1, 1)], 2))
def test_classes(comm, world, drawn):
    rows, classes = drawn
    output, label, ranks = zip(*rows, strict=True) if rows else ([], [], [])
    output, label = np.array(output).reshape(-1, classes), np.array(label, int)
    own = rows_of(world, ranks)
    with np.errstate(over="ignore"):
        margin = np.subtract(*output.T[::-1]).astype(np.float32) if classes == 2 else np.zeros(1)
    if not np.isfinite(margin).all():
        with same_verdict(comm), pytest.raises(DistributedError, match="not finite"):
            metrics.class_metrics(output[own], label[own], world)
        return
    with same_verdict(comm):
        result = metrics.class_metrics(output[own], label[own], world)
        if not rows:
            assert all(map(math.isnan, result.values()))
            return
        predicted = output.astype(np.float32).argmax(axis=1)
        same(result["accuracy"], accuracy_score(label, predicted))
        same(result["macro_f1"], f1_score(label, predicted, average="macro"))
        if classes == 2:
            same([result["ap"], result["auc"]], ap_auc(margin[label == 1], margin[label == 0]))


@given(
    rows=st.lists(
        st.tuples(st.lists(st.tuples(SCORES, st.booleans()), min_size=3, max_size=3), RANKS), min_size=1, max_size=12
    )
)
def test_several_labels(comm, world, rows):
    """Of as many classes as a node has labels, those with the highest outputs, the first ones of equal outputs."""
    output = np.array([[score for score, _ in row] for row, _ in rows])
    labels = np.array([[label for _, label in row] for row, _ in rows])
    own = rows_of(world, [rank for _, rank in rows])
    known = np.zeros_like(labels)
    for row, (scores, count) in enumerate(zip(output.astype(np.float32), labels.sum(axis=1), strict=True)):
        known[row, sorted(range(3), key=lambda place: -scores[place])[:count]] = True
    with same_verdict(comm):
        result = metrics.class_metrics(output[own], labels[own].astype(np.int64), world)
        for suffix, chosen in (("_topk", known), ("", output.astype(np.float32) > 0)):
            some = (chosen | labels).any(axis=0)
            for kind in ("micro", "macro"):  # scikit-learn takes a single column for two classes, which "binary" undoes
                average = kind if some.sum() > 1 else "binary"
                pair = [rows[:, some].squeeze() if some.sum() == 1 else rows[:, some] for rows in (labels, chosen)]
                expected = f1_score(*map(np.atleast_1d, pair), average=average) if some.any() else math.nan
                same(result[f"{kind}_f1{suffix}"], expected)


@given(rows=st.lists(st.tuples(SCORES, SCORES, RANKS), max_size=12), scale=st.sampled_from([1.0, 70.0, 0.125]))
def test_numbers(comm, world, rows, scale):
    predicted, target, ranks = zip(*rows, strict=True) if rows else ([], [], [])
    predicted, target, own = np.array(predicted), np.array(target), rows_of(world, ranks)
    with same_verdict(comm):
        result = metrics.regression_metrics(predicted[own], target[own], world, scale)
        error = predicted - target
        mse, mae = (np.mean(error**2), np.mean(abs(error))) if rows else (math.nan, math.nan)
        same([result["mse"], result["mae"], result["rmse"]], [mse, mae, math.sqrt(mse)])
        if scale != 1:
            scaled = [scale**2 * mse, scale * mae, scale * math.sqrt(mse)]
            same([result[f"{name}_units"] for name in ("mse", "mae", "rmse")], scaled)


def test_many_classes_take_no_table_of_pairs(comm, world):
    """Of 2^13 classes it would have half a GiB."""
    labels = np.arange(comm.rank, 1 << 13, comm.size)
    counts = [np.bincount(x, minlength=1 << 13) for x in (labels[labels % 2 == 0], labels, labels // 2 * 2)]
    tracemalloc.start()
    found = metrics.measured(metrics.CLASSES, metrics.ClassCounts(counts, world))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == {"accuracy": 0.5, "macro_f1": pytest.approx(1 / 3)}
    assert peak < 1 << 22


@pytest.mark.filterwarnings("error")
@given(value=WILD, place=st.integers(0, 3), ranks=st.lists(RANKS, min_size=4, max_size=4), at=st.integers(0, 1))
@example(value=1e39, place=2, ranks=[0] * 4, at=1)
def test_a_score_that_is_no_number_is_an_error_of_all(comm, world, value, place, ranks, at):
    """So is one that float32, in which scores are compared, has no number for: without NumPy's warning."""
    scores, own, label = np.ones((4, 3)), rows_of(world, ranks), np.array([0, 1, 0, 1])
    scores[place, at] = value
    mine = scores[own]
    calls = {
        "links": lambda: metrics.link_metrics(mine[:, at], np.zeros((len(own), 1)), world),
        "negatives": lambda: metrics.link_metrics(np.zeros(len(own)), mine, world),
        "ranks": lambda: metrics.ranking_metrics(metrics.ranks_of(np.zeros(len(own)), mine), world),
        "groups": lambda: drawn(np.zeros(len(own)), mine, *np.zeros((2, len(own)), int), [0], world),
        "two classes": lambda: metrics.two_class_metrics(mine[:, :2], label[own], world),
        "classes": lambda: metrics.class_metrics(mine, label[own], world),
        "several labels": lambda: metrics.class_metrics(mine, np.ones((len(own), 3), int), world),
    }
    if not math.isfinite(value):
        calls["numbers"] = lambda: metrics.regression_metrics(mine[:, at], np.ones(len(own)), world)
    for name, call in calls.items():
        with same_verdict(comm), pytest.raises(DistributedError, match="not finite"):
            print(name, call())


class Table:
    """A decoder whose scores are sums of products, and of the edge's type."""

    def all_pairs(self, rows, embeddings, relation, reverse):
        """Scores [Q, c]."""
        return rows @ embeddings.T + relation[:, None] * embeddings.sum(1)


NODES, TYPES = 7, 2
VECTORS = st.lists(st.tuples(*[st.integers(-2, 2)] * 2), min_size=NODES, max_size=NODES)
EDGES = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, TYPES - 1), st.integers(0, NODES - 1)), max_size=12, unique=True
)


@given(vectors=VECTORS, known=EDGES, seeds=EDGES, ends=st.lists(st.integers(0, NODES), min_size=11, max_size=11))
def test_ranks_among_all_nodes(comm, world, vectors, known, seeds, ends):
    """Known answers are passed by, and equal scores count half."""
    table = torch.tensor(vectors, dtype=torch.float64)
    starts = np.array([0, *sorted(ends[: world.size - 1]), NODES])
    first, stop = starts[world.rank], starts[world.rank + 1]
    edges = np.array([edge for edge in known if first <= edge[2] < stop], np.int64).reshape(-1, 3)
    query, kind, answer = np.array(seeds, np.int64).reshape(-1, 3).T
    with same_verdict(comm):
        answers = KnownAnswers(BlockOwnership(starts), world.rank, *edges.T)
        candidates = Candidates(answers, int(np.diff(starts).max()), reverse=False)
        candidates._chunk = 3
        rank = candidates.ranks(Table(), table[first:stop], table[query], query, kind, answer, world)
        expected = []
        for source, type_, target in seeds:
            score = ((table[source] + type_) * table).sum(1).tolist()
            others = [score[node] for node in range(NODES) if node != target and (source, type_, node) not in known]
            expected.append(rank_of(score[target], np.array(others)))
        assert rank.tolist() == expected
