"""Metrics over a whole split, exact on any number of ranks: counts or sums over ranks, never metrics averaged.

The number of ranks changes no bit of a metric of the same scores, and no rank gathers those of others. b events of this
rank, k negatives an event, n rows of this rank, c classes. Scores are compared in float32, so that equal pairs stay
tied whatever the order of additions that led to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from hpcgnn.comm.world import DistributedError, World
from hpcgnn.task.levels import ap_auc, exact_sum, rounded

NAMES = ("ap", "auc", "inductive_ap", "inductive_auc")
RANKING_NAMES = ("mrr", "hits@10", "inductive_mrr", "inductive_hits@10")
DRAWN_NAMES = ("ap", "auc", "mrr", "snapshot_ap", "snapshot_auc")
BINARY_NAMES = ("auc", "ap")
MULTICLASS_NAMES = ("accuracy", "macro_f1")
MULTILABEL_NAMES = ("micro_f1_known", "macro_f1_known", "micro_f1", "macro_f1")
REGRESSION_NAMES = ("mse", "mae", "rmse")
UNIT_NAMES = ("mse", "mae_units", "rmse_units", "mae", "rmse")
LOWER_IS_BETTER = UNIT_NAMES
HITS = 10


def link_metrics(positive: np.ndarray, negative: np.ndarray, inductive: np.ndarray, world: World) -> dict[str, float]:
    """Collective. Compute average precision and ROC AUC of events against negatives, over all events and over the
    inductive ones.

    positive [b], negative [b, k]: scores of this rank's events; inductive [b] bool. NaN where there is no such event.
    """
    positive, negative = rounded(positive), rounded(negative)
    check_finite(np.isfinite(positive).all() and np.isfinite(negative).all(), world)
    values = [*ap_auc(positive, negative, world), *ap_auc(positive[inductive], negative[inductive], world)]
    return dict(zip(NAMES, values, strict=True))


class Standing:
    """The places of b events among their negatives, whose scores may come in pieces: two counts an event are kept.

    count [b]: negatives of each event, the first ones; None: all that come.
    """

    def __init__(self, positive: np.ndarray, count: np.ndarray | None = None):
        """positive [b]: scores of the events."""
        self._positive, self._count = rounded(positive)[:, None], count
        self._usable = np.isfinite(self._positive[:, 0])
        self._better = np.zeros((2, len(positive)), np.int64)  # negatives above, and those at least level
        self._seen = 0

    def add(self, negative: np.ndarray) -> None:
        """Take the scores [b, k] of further negatives of every event."""
        negative, first = rounded(negative), self._seen
        self._seen += negative.shape[1]
        self._usable &= np.isfinite(negative).all(axis=1)
        better = negative > self._positive, negative >= self._positive
        if self._count is not None:
            counts = np.arange(first, self._seen) < self._count[:, None]
            better = better[0] & counts, better[1] & counts
        self._better += [each.sum(axis=1) for each in better]

    def ranks(self) -> np.ndarray:
        """Return the rank of every event among the negatives so far, float64 [b]; see ``ranks_of``."""
        return np.where(self._usable & (self._seen > 0), 1 + 0.5 * self._better.sum(axis=0), math.nan)


def ranks_of(positive: np.ndarray, negative: np.ndarray, count: np.ndarray | None = None) -> np.ndarray:
    """Rank every event among its negatives, float64 [b], from scores [b] and [b, k]: 1 + the mean of two counts of
    negatives, those that score higher and those that score at least as high. A tie counts half, as TGB's evaluator has
    it, and so does the rank 1 of an event that has none of the k. NaN where a score is not finite, and where k is 0.
    count [b]: negatives of each, the first ones; None: all k.
    """
    standing = Standing(positive, count)
    standing.add(negative)
    return standing.ranks()


def ranking_metrics(ranks: np.ndarray, inductive: np.ndarray, world: World) -> dict[str, float]:
    """Collective. Compute mean reciprocal rank and hits@10 from the ranks [b] of this rank's events, over all events
    and over the inductive ones [b] bool; NaN where there is no such event.

    Raises DistributedError for a rank that is NaN.
    """
    check_finite(np.isfinite(ranks).all(), world)
    values = []
    for some_ranks in (ranks, ranks[inductive]):
        count = world.total(len(some_ranks))
        sums = exact_sum(1 / some_ranks, world), exact_sum(some_ranks <= HITS, world)
        values += [total / count if count else math.nan for total in sums]
    return dict(zip(RANKING_NAMES, values, strict=True))


def drawn_metrics(scores: dict[str, np.ndarray], batches: Any, world: World) -> dict[str, float]:
    """Collective. Compute the metrics of DRAWN_NAMES of links between snapshots: average precision and ROC AUC over all
    pairs, the mean reciprocal rank of positives among their negatives, and means over snapshots of the first two.

    scores: positive [s], negative [s, k] and number [s], the snapshots that this rank's pairs are predicted from; the
    batches list those of all ranks. Raises DistributedError for a score that is not finite.
    """
    positive, negative = (rounded(scores[name]) for name in ("positive", "negative"))
    check_finite(np.isfinite(positive).all() and np.isfinite(negative).all(), world)
    ap, auc = ap_auc(positive, negative, world)
    mrr = ranking_metrics(ranks_of(positive, negative), np.zeros(len(positive), bool), world)["mrr"]
    by_snapshot = []
    for number in sorted(number for targets in batches.targets for number in targets):
        here = scores["number"] == number
        by_snapshot.append(ap_auc(positive[here], negative[here], world))
    values = [ap, auc, mrr, *(mean_known(column) for column in zip(*by_snapshot, strict=True))]
    return dict(zip(DRAWN_NAMES, values, strict=True))


def mean_known(values: Iterable[float]) -> float:
    """Average the values that are no NaN; NaN where all are."""
    numbers = [float(value) for value in values if not math.isnan(value)]
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def classification_metrics(scores: np.ndarray, labels: np.ndarray, world: World) -> dict[str, float]:
    """Collective. Compute metrics of labels [n] in [0, c) from scores [n] (of class 1, two classes) or [n, c].

    Two classes: ``auc`` and ``ap`` of class 1 (NaN when only one class occurs); more: ``accuracy`` and ``macro_f1``
    over the classes that occur among labels or predictions.
    """
    margin = scores[:, 1] - scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 2 else scores
    # What float32 has no number for would be equal to all others of the kind.
    check_finite(np.isfinite(rounded(margin)).all(), world)
    if scores.ndim == 2 and scores.shape[1] > 2:
        return _multiclass(rounded(scores).argmax(axis=1), labels, scores.shape[1], world)
    ap, auc = ap_auc(margin[labels == 1], margin[labels == 0], world)
    return {"auc": auc, "ap": ap}


def node_metrics(output: np.ndarray, labels: np.ndarray, world: World) -> dict[str, float]:
    """Collective. Compute metrics of labels [n] in [0, c) from outputs [n, c]: ``accuracy``, which is also the micro F1
    of one label a node, and ``macro_f1``; of two classes ``auc`` and ``ap`` too. NaN without nodes.

    Labels [n, c] of 0 and 1 have ``micro_f1`` and ``macro_f1`` of the classes with outputs above 0, and before them
    ``micro_f1_known`` and ``macro_f1_known`` of as many classes, those with the highest outputs, as the node has labels
    (Perozzi et al., DeepWalk, 2014).
    """
    check_finite(np.isfinite(rounded(output)).all(), world)
    if labels.ndim == 2:
        output, labels = rounded(output), labels == 1
        place = np.argsort(np.argsort(-output, axis=1, kind="stable"), axis=1)
        as_many, above_zero = place < labels.sum(axis=1, keepdims=True), output > 0
        return dict(zip(MULTILABEL_NAMES, [*_f1(as_many, labels, world), *_f1(above_zero, labels, world)], strict=True))
    metrics = _multiclass(rounded(output).argmax(axis=1), labels, output.shape[1], world)
    return metrics | (classification_metrics(output, labels, world) if output.shape[1] == 2 else {})


def regression_metrics(predicted: np.ndarray, target: np.ndarray, world: World, scale: float = 1.0) -> dict[str, float]:
    """Collective. Compute ``mse``, ``mae`` and ``rmse`` over all numbers of predictions and targets, both [n] or [n,
    D]; NaN when there is none. scale: what the source's numbers were divided by; where it is not 1, ``mae_units`` and
    ``rmse_units`` are errors in the source's units."""
    check_finite(np.isfinite(predicted).all(), world)
    error = (predicted.astype(np.float64) - target.astype(np.float64)).ravel()
    count = world.total(error.size)
    squares, absolutes = exact_sum(error**2, world), exact_sum(np.abs(error), world)
    mean, absolute = (total / count if count else math.nan for total in (squares, absolutes))
    metrics = {"mse": mean, "mae": absolute, "rmse": math.sqrt(mean)}
    if scale == 1:
        return metrics
    metrics |= {f"{name}_units": scale * metrics[name] for name in ("mae", "rmse")}
    return {name: metrics[name] for name in UNIT_NAMES}


def check_finite(finite: bool | np.bool_, world: World) -> None:
    """Collective. Raise DistributedError on all ranks where the scores of any rank are not finite."""
    if world.any(not finite):
        raise DistributedError("a score is not finite: the model has diverged; lower train.lr", user_error=False)


def _f1(chosen: np.ndarray, labels: np.ndarray, world: World) -> tuple[float, float]:
    """Collective. Compute F1 of all chosen classes [n, c], and its mean over the classes that are chosen or labels."""
    hits, either = (chosen & labels).sum(axis=0), chosen.sum(axis=0) + labels.sum(axis=0)
    hits, either = world.reduce_array(np.stack([hits, either]).astype(np.int64))
    if not either.any():
        return math.nan, math.nan
    return float(2 * hits.sum() / either.sum()), float((2 * hits[either > 0] / either[either > 0]).mean())


def _multiclass(predicted: np.ndarray, labels: np.ndarray, classes: int, world: World) -> dict[str, float]:
    counted = labels[predicted == labels], labels, predicted
    hits, known, chosen = world.reduce_array(
        np.stack([np.bincount(numbers.astype(np.int64), minlength=classes) for numbers in counted])
    )
    total, occurrences = known.sum(), known + chosen
    if total == 0:
        return {"accuracy": math.nan, "macro_f1": math.nan}
    f1 = 2 * hits[occurrences > 0] / occurrences[occurrences > 0]
    return {"accuracy": float(hits.sum() / total), "macro_f1": float(f1.mean())}
