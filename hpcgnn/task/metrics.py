"""Metrics over a whole split, exact on any number of ranks: counts or sums over ranks, never metrics averaged.

``METRICS`` has all of them. Each is computed from scores of a kind: pairs against negatives, ranks, ranks by query,
classes, several labels per node, weights of classes at times, or numbers. The number of ranks changes no bit of a
metric of the same scores, and no rank gathers the scores of other ranks. b events of this rank, k negatives an event, n
rows of this rank, c classes.
Scores are compared in float32, so that equal pairs stay tied whatever the order of additions that led to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from hpcgnn.choices import Part
from hpcgnn.comm.exchange import exchange_columns
from hpcgnn.comm.together import together
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.task.levels import ap_auc, exact_sum, rounded

PAIRS, RANKS, QUERIES, CLASSES, LABELS, NUMBERS = "pairs", "ranks", "queries", "classes", "labels", "numbers"
LABEL_COLUMNS, POOL, WEIGHTS, SOURCES = "label columns", "pool", "weights of classes", "edges of sources"
Values = np.ndarray | torch.Tensor
INDUCTIVE, PER_SNAPSHOT, PER_BATCH = "inductive_", "_per_snapshot", "_per_batch"  # of names
NEW_ENDS = {"new_old_": 1, "new_new_": 2}  # how names of metrics of events with so many new ends begin
TOP_K, UNITS = "_topk", "_units"


class PairScores:
    """Collective to create. Scores of this rank's pairs, positive [b], and of negatives, of any shape."""

    def __init__(self, positive: np.ndarray, negative: np.ndarray, world: World):
        """Raises DistributedError for a score that is not finite."""
        self._scores, self._world = (rounded(positive), rounded(negative)), world
        check_finite(all(np.isfinite(scores).all() for scores in self._scores), world)

    @cached_property
    def ap_auc(self) -> tuple[float, float]:
        """Collective. Average precision and ROC AUC; NaN without pairs, or negatives."""
        return ap_auc(*self._scores, self._world)


class PoolScores(PairScores):
    """Collective to create. Scores of this rank's pairs, positive [b], and of its share of the negatives of a whole
    split, which all pairs are compared with."""

    def __init__(self, positive: np.ndarray, negative: np.ndarray, world: World):
        """Raises DistributedError for a score that is not finite."""
        super().__init__(positive, negative, world)
        best = world.allgather(np.sort(self._scores[1])[-MOST_IN_POOL:])
        self._best = np.sort(np.concatenate(best))[::-1]

    def hits(self, most: int) -> float:
        """Collective. Compute the share of pairs that score higher than the ``most``-th best negative, as the evaluator
        of Hu et al. (Open graph benchmark, 2020) does; 1 where there are fewer negatives, NaN without pairs."""
        count = self._world.total(len(self._scores[0]))
        lowest = self._best[most - 1] if len(self._best) >= most else -np.inf
        return self._world.total(int((self._scores[0] > lowest).sum())) / count if count else math.nan


class PairRanks:
    """Collective to create. PairRanks [n] of this rank's pairs among their negatives."""

    def __init__(self, rank: np.ndarray, world: World):
        """Raises DistributedError for a rank that is NaN."""
        check_finite(np.isfinite(rank).all(), world)
        self.rank, self._world = rank, world

    def mean(self, values: np.ndarray) -> float:
        """Collective. Average a column of numbers over all ranks, rounded once; NaN where there are none."""
        count, total = self._world.total(len(values)), exact_sum(values, self._world)
        return total / count if count else math.nan


class BestEdges:
    """Collective to create. The best edges of sources: the ones of the highest score, with their ranks among their
    negatives (You et al., ROLAND, 2022). mean: over snapshots, of the mean over sources of 1 / rank; NaN without edges.
    """

    def __init__(self, score: np.ndarray, rank: np.ndarray, number: np.ndarray, source: np.ndarray, world: World):
        """score, rank, number, source [s]: of the edges, with their snapshots and the global ids of their sources."""
        columns = exchange_columns([score, rank, number, source], source % world.size, world.channel())
        order = np.lexsort((columns[1], -columns[0], columns[2], columns[3]))
        _, rank, number, source = (column[order] for column in columns)
        is_best = np.ones(len(order), bool)
        is_best[1:] = (np.diff(number) != 0) | (np.diff(source) != 0)
        number, reciprocal = number[is_best], 1 / rank[is_best]
        last = int(world.reduce_array(np.array([number.max(initial=-1)]), "max")[0])
        sources = world.reduce_array(np.bincount(number, minlength=last + 1))
        total, snapshots = exact_sum(reciprocal / sources[number], world), int((sources > 0).sum())
        self.mean = total / snapshots if snapshots else math.nan


class QueryRanks(PairRanks):
    """Collective to create. Ranks of answers, grouped by the queries of this rank, each at the owner of its query."""

    def __init__(self, rank: np.ndarray, query: np.ndarray, world: World):
        """rank, query [n]: of the right answers."""
        order = np.lexsort((rank, query))  # so that sums over a query's answers do not depend on who scored them
        super().__init__(rank[order], world)
        _, self._query, self._count = np.unique(query[order], return_inverse=True, return_counts=True)

    def recall(self, most: int) -> np.ndarray:
        """Compute every query's share of answers with a rank up to ``most``."""
        return np.bincount(self._query[self.rank <= most], minlength=len(self._count)) / self._count

    def gain(self, most: int) -> np.ndarray:
        """Compute every query's normalized discounted cumulative gain of ranks up to ``most``."""
        top = self.rank <= most
        gain = np.bincount(self._query[top], 1 / np.log2(1 + self.rank[top]), len(self._count))
        return gain / np.cumsum(1 / np.log2(2 + np.arange(most)))[np.minimum(self._count, most) - 1]


class ClassCounts:
    """Collective to create. Numbers of rows for which each of c classes is the label, is predicted, and both; on all
    ranks."""

    def __init__(self, counts: list[np.ndarray], world: World):
        """counts [3, c]: how often it is both, a label, and predicted, on this rank."""
        self._hits, self._known, self._chosen = world.reduce_array(np.stack(counts).astype(np.int64))

    @property
    def accuracy(self) -> float:
        """Share of the labels that are predicted; NaN without labels."""
        return float(self._hits.sum() / self._known.sum()) if self._known.any() else math.nan

    @property
    def micro_f1(self) -> float:
        """F1 of all decisions taken together; NaN where nothing is a label or predicted."""
        either = (self._known + self._chosen).sum()
        return float(2 * self._hits.sum() / either) if either else math.nan

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that are labels or predicted; NaN without any."""
        either = self._known + self._chosen
        return float((2 * self._hits[either > 0] / either[either > 0]).mean()) if either.any() else math.nan


class LabelColumns:
    """Collective to create. Means over labels of average precision and ROC AUC, over labels that some rows have and
    some rows lack; NaN without such labels."""

    def __init__(self, output: np.ndarray, labels: np.ndarray, world: World):
        """output [n, c]: finite scores; labels [n, c]: 1, 0, or below 0 where unknown, which is left out."""
        pairs = zip(output.T, labels.T, strict=True)
        by_label = [ap_auc(scores[label == 1], scores[label == 0], world) for scores, label in pairs]
        self.ap, self.auc = (mean_known(values) for values in zip(*by_label, strict=True))


class TimedGains:
    """Gains [n] of this rank's forecasts. counts [T]: forecasts of all ranks at each of T times; time [n]: places of
    the forecasts' times in ``counts``."""

    def __init__(self, gain: np.ndarray, time: np.ndarray, counts: np.ndarray, world: World):
        self._share, self._times, self._world = gain / counts[time], int((counts > 0).sum()), world

    @property
    def mean(self) -> float:
        """Collective. Average over times the mean gain of each; NaN without times."""
        total = exact_sum(self._share, self._world)
        return total / self._times if self._times else math.nan


class Errors:
    """Collective to create. Differences of predicted numbers and targets, of any shape."""

    def __init__(self, predicted: np.ndarray, target: np.ndarray, world: World):
        """Raises DistributedError for a prediction that is not finite."""
        check_finite(np.isfinite(predicted).all(), world)
        error = (predicted.astype(np.float64) - target.astype(np.float64)).ravel()
        count = world.total(error.size)
        sums = exact_sum(error**2, world), exact_sum(np.abs(error), world)
        self.square, self.absolute = (total / count if count else math.nan for total in sums)


@dataclass(frozen=True)
class MetricPart(Part):
    """A metric. make: collective, computes it from scores, an object of this module; ``of``: the kinds of scores that
    have it. lower_is_better: as for errors; unit: the power of the target's unit that it comes in, 0: none."""

    make: Callable[[Any], float]
    of: tuple[str, ...] = ()
    lower_is_better: bool = False
    unit: int = 0


MOST_IN_POOL = 100  # negatives that PoolScores keeps, as many as the largest of its metrics needs


def _hits_in_pool(most: int) -> MetricPart:
    text = f"share of pairs with a score above the given negative of place {most}"
    return MetricPart(lambda s: s.hits(most), text, (POOL,))


def _hits(most: int) -> MetricPart:
    return MetricPart(lambda s: s.mean(s.rank <= most), f"share of right answers with a rank up to {most}", (RANKS,))


METRICS = {
    "ap": MetricPart(lambda s: s.ap_auc[0], "average precision", (PAIRS,)),
    "auc": MetricPart(lambda s: s.ap_auc[1], "area under the ROC curve", (PAIRS,)),
    "mrr": MetricPart(lambda s: s.mean(1 / s.rank), "mean reciprocal rank", (RANKS,)),
    "mrr_best_edge": MetricPart(
        lambda s: s.mean, "mean reciprocal rank of the best edge of each source, mean over snapshots", (SOURCES,)
    ),
    "hits@1": _hits(1),
    "hits@3": _hits(3),
    "hits@10": _hits(10),
    "hits@20": _hits_in_pool(20),
    "hits@50": _hits_in_pool(50),
    "hits@100": _hits_in_pool(100),
    "recall@20": MetricPart(lambda s: s.mean(s.recall(20)), "share of the right answers in the best 20", (QUERIES,)),
    "ndcg@20": MetricPart(lambda s: s.mean(s.gain(20)), "normalized gain (NDCG) of the best 20 answers", (QUERIES,)),
    "accuracy": MetricPart(lambda s: s.accuracy, "share of correct classes (micro F1 of single labels)", (CLASSES,)),
    "micro_f1": MetricPart(lambda s: s.micro_f1, "F1 of all yes or no decisions together", (LABELS,)),
    "macro_f1": MetricPart(lambda s: s.macro_f1, "mean of the F1 of all classes that occur", (CLASSES, LABELS)),
    "macro_ap": MetricPart(lambda s: s.ap, "mean of the average precision of all labels", (LABEL_COLUMNS,)),
    "macro_auc": MetricPart(lambda s: s.auc, "mean of the area under the ROC curve of all labels", (LABEL_COLUMNS,)),
    "ndcg@10": MetricPart(lambda s: s.mean, "mean over times of the NDCG of the best 10 classes", (WEIGHTS,)),
    "mse": MetricPart(lambda s: s.square, "mean squared error", (NUMBERS,), True, 2),
    "mae": MetricPart(lambda s: s.absolute, "mean absolute error", (NUMBERS,), True, 1),
    "rmse": MetricPart(lambda s: math.sqrt(s.square), "root of the mean squared error", (NUMBERS,), True, 1),
}


def names_of(kind: str) -> tuple[str, ...]:
    """Names of the metrics of a kind of scores, in the table's order."""
    return tuple(name for name, row in METRICS.items() if kind in row.of)


def measured(kind: str, scores: Any, form: str = "{}") -> dict[str, float]:
    """Collective. Compute all metrics of a kind of scores; form: what becomes of their names."""
    return {form.format(name): METRICS[name].make(scores) for name in names_of(kind)}


def is_lower_better(name: str) -> bool:
    """Whether the lowest value of a metric is the best."""
    row = METRICS.get(name.removesuffix(UNITS))
    return row is not None and row.lower_is_better


def array_of(values: Values) -> np.ndarray:
    """Return values as an array on the host, bfloat16 as float32."""
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return values.float().numpy() if values.dtype == torch.bfloat16 else values.numpy()


def link_metrics(positive: Values, negative: Values, world: World, inductive: Values | None = None) -> dict[str, float]:
    """Collective. Compute ap and auc of pairs against negatives, over all events and, where it is given, over the
    inductive ones [b] bool.

    positive [b], negative [b, k]: scores of this rank's events, as arrays or tensors. NaN where there is no such event.
    Raises DistributedError for a score that is not finite.
    """
    positive, negative = array_of(positive), array_of(negative)
    result = measured(PAIRS, PairScores(positive, negative, world))
    if inductive is not None:
        inductive = array_of(inductive)
        result |= measured(PAIRS, PairScores(positive[inductive], negative[inductive], world), INDUCTIVE + "{}")
    return result


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


def ranks_of(positive: Values, negative: Values, count: np.ndarray | None = None) -> np.ndarray:
    """Rank every event among its negatives, float64 [b], from scores [b] and [b, k]. A rank is 1 + the mean of two
    counts of negatives: the ones with a higher score, and the ones with at least the same score. A tie counts half, as
    in TGB's evaluator, which also gives rank 1 to an event without negatives among the k. NaN where a score is not
    finite, and where k is 0. count [b]: negatives of each, the first ones; None: all k.
    """
    standing = Standing(array_of(positive), count)
    standing.add(array_of(negative))
    return standing.ranks()


def ranking_metrics(ranks: Values, world: World, inductive: Values | None = None) -> dict[str, float]:
    """Collective. Compute mrr and hits@k of the ranks [b] of ``ranks_of`` at this rank, over all events and, where it
    is given, over the inductive ones [b] bool; NaN where there is no such event.

    Raises DistributedError for a rank that is NaN.
    """
    ranks = array_of(ranks)
    result = measured(RANKS, PairRanks(ranks, world))
    if inductive is not None:
        inductive = array_of(inductive)
        result |= measured(RANKS, PairRanks(ranks[inductive], world), INDUCTIVE + "{}")
    return result


def query_metrics(ranks: Values, query: Values, world: World) -> dict[str, float]:
    """Collective. Compute recall@20 and ndcg@20, means over the queries of all ranks; NaN without queries.

    ranks [n]: places, from 1, of right answers among all candidates of their query without its other right answers;
    query [n]: integers, at least 0. Answers to a query may be at several ranks. Raises DistributedError for a rank
    that is NaN.
    """
    rank, number = array_of(ranks).astype(np.float64), array_of(query).astype(np.int64)
    rank, number = exchange_columns([rank, number], number % world.size, world.channel())
    return measured(QUERIES, QueryRanks(rank, number, world))


def gains_of(output: Values, label: Values, most: int = 10) -> np.ndarray:
    """Compute the normalized discounted cumulative gain of each row's ``most`` highest outputs [n, c], float64 [n]: the
    gain of a class is its weight in ``label`` [n, c], at least 0. Classes with equal outputs share their discounts, and
    a row without a weight has gain 0, as in ``ndcg_score`` of scikit-learn, which TGB's evaluator calls. NaN where an
    output is not finite."""
    output, label = rounded(array_of(output)), array_of(label).astype(np.float64)
    classes, usable = output.shape[1], np.isfinite(output).all(axis=1)
    discount = np.where(np.arange(classes) < most, 1 / np.log2(2 + np.arange(classes)), 0)
    order = np.argsort(-output, axis=1, kind="stable")
    ranked, place = np.take_along_axis(output, order, axis=1), np.arange(classes)
    differs = ranked[:, 1:] != ranked[:, :-1]
    ends = np.ones((len(output), 1), bool)
    first = np.maximum.accumulate(np.where(np.hstack([ends, differs]), place, 0), axis=1)
    stop = np.where(np.hstack([differs, ends]), place + 1, classes)
    stop = np.minimum.accumulate(stop[:, ::-1], axis=1)[:, ::-1]
    sums = np.concatenate(([0], np.cumsum(discount)))
    gain = (np.take_along_axis(label, order, axis=1) * (sums[stop] - sums[first]) / (stop - first)).sum(axis=1)
    best = -np.sort(-label, axis=1) @ discount
    return np.where(usable, np.divide(gain, best, out=np.zeros(len(gain)), where=best > 0), math.nan)


def gain_metrics(gain: np.ndarray, time: np.ndarray, counts: np.ndarray, world: World) -> dict[str, float]:
    """Collective. Compute ndcg@10 of gains [n] of ``gains_of``, the mean over times of the mean of each. time [n]:
    places in counts [T], the numbers of forecasts of all ranks; NaN without any. Raises DistributedError for a gain
    that is NaN."""
    check_finite(np.isfinite(gain).all(), world)
    return measured(WEIGHTS, TimedGains(gain, time, counts, world))


def pool_metrics(positive: Values, negative: Values, world: World) -> dict[str, float]:
    """Collective. Compute hits@20, hits@50, hits@100, ap and auc of pairs [b], all compared with the same pool of
    negatives, of which each rank gives its share [m]; NaN without pairs. Raises DistributedError for a score that is
    not finite."""
    pool = PoolScores(array_of(positive), array_of(negative), world)
    return measured(POOL, pool) | measured(PAIRS, pool)


def drawn_metrics(positive: np.ndarray, negative: np.ndarray, world: World) -> dict[str, float]:
    """Collective. Compute the metrics of pairs against negatives and of their ranks among the negatives, from scores
    [b] and [b, k]; NaN without pairs. Raises DistributedError for a score that is not finite."""
    return link_metrics(positive, negative, world) | ranking_metrics(ranks_of(positive, negative), world)


def mean_known(values: Iterable[float]) -> float:
    """Average the values that are no NaN; NaN where all are."""
    numbers = [float(value) for value in values if not math.isnan(value)]
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def class_metrics(output: Values, labels: Values, world: World) -> dict[str, float]:
    """Collective. Compute accuracy and macro_f1 of labels [n] in [0, c) from outputs [n, c], and with two classes also
    ap and auc of class 1 against class 0. NaN without labels. Both are arrays or tensors of this rank's rows.

    For labels [n, c] of 0 and 1, below 0 where unknown and left out, the metrics count the classes with outputs above 0
    as predicted. Before them, ``..._topk`` metrics predict the highest outputs of a node, one for each of its labels
    (Perozzi et al., DeepWalk, 2014). After them come the means over labels of metrics of their scores.

    Raises DistributedError for an output that is not finite, and for labels [n] of no class.
    """
    output, labels = array_of(output), array_of(labels)
    # What float32 has no number for would be equal to all others of the kind.
    compared, classes = rounded(output), output.shape[1]
    check_finite(np.isfinite(compared).all(), world)
    if labels.ndim == 2:
        has, scores = labels == 1, np.where(labels >= 0, compared, -np.inf)
        place = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
        top = place < has.sum(axis=1, keepdims=True)
        as_many, above_zero = (
            ClassCounts([where.sum(axis=0) for where in (chosen & has, has, chosen)], world)
            for chosen in (top, scores > 0)
        )
        decisions = measured(LABELS, as_many, "{}" + TOP_K) | measured(LABELS, above_zero)
        return decisions | measured(LABEL_COLUMNS, LabelColumns(compared, labels, world))
    with together(world, "compute metrics of classes"):
        if len(strange := labels[(labels < 0) | (labels >= classes)]):
            raise ValueError(
                f"a label is {strange[0]}, and outputs have {classes} classes: leave out rows without a label"
            )
    predicted = compared.argmax(axis=1)
    counted = labels[predicted == labels], labels, predicted
    counts = ClassCounts([np.bincount(found.astype(np.int64), minlength=classes) for found in counted], world)
    return measured(CLASSES, counts) | (two_class_metrics(output, labels, world) if classes == 2 else {})


def two_class_metrics(output: np.ndarray, labels: np.ndarray, world: World) -> dict[str, float]:
    """Collective. Compute the metrics of rows of class 1 against rows of class 0, scored by the difference of their two
    outputs [n, 2]; NaN when only one class occurs."""
    margin = output[:, 1] - output[:, 0]
    return measured(PAIRS, PairScores(margin[labels == 1], margin[labels == 0], world))


def class_metric_names(classes: int, several: bool = False) -> tuple[str, ...]:
    """Names of what ``class_metrics`` computes; several: labels a node."""
    if several:
        return (*(name + TOP_K for name in names_of(LABELS)), *names_of(LABELS), *names_of(LABEL_COLUMNS))
    return names_of(CLASSES) + (names_of(PAIRS) if classes == 2 else ())


def regression_metrics(predicted: Values, target: Values, world: World, scale: float = 1.0) -> dict[str, float]:
    """Collective. Compute the errors over all numbers of predictions and targets, both [n] or [n, D]; NaN when there is
    none. scale: what the source's numbers were divided by; where it is not 1, errors in the source's units too, as
    ``..._units``."""
    metrics = measured(NUMBERS, Errors(array_of(predicted), array_of(target), world))
    if scale != 1:
        metrics |= {name + UNITS: scale ** METRICS[name].unit * metrics[name] for name in names_of(NUMBERS)}
    return metrics


def regression_metric_names(scale: float = 1.0) -> tuple[str, ...]:
    """Names of what ``regression_metrics`` computes."""
    return names_of(NUMBERS) + (() if scale == 1 else tuple(name + UNITS for name in names_of(NUMBERS)))


def check_finite(finite: bool | np.bool_, world: World) -> None:
    """Collective. Raise DistributedError on all ranks where the scores of any rank are not finite."""
    if world.any(not finite):
        raise DistributedError("a score is not finite: the model has diverged; lower train.lr", user_error=False)
