"""Baselines, which predict by a rule and need no training, and their table. One runs in the place of a model, on the
same batches, negatives and metrics: a temporal model must beat it.

b events, k negatives, n pairs, S steps, e events of this rank.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hpcgnn.choices import Part
from hpcgnn.comm.together import together
from hpcgnn.comm.world import DistributedError
from hpcgnn.graph.splits import SPLITS, place_of_split
from hpcgnn.loop.own_metrics import own_functions
from hpcgnn.loop.session import Session, scored_splits, split_metrics
from hpcgnn.task.metrics import gains_of
from hpcgnn.temporal.batches import Batches, event_times
from hpcgnn.temporal.class_baselines import (
    Rule,
    class_metrics_of,
    predict_last_label,
    predict_majority_of_contacts,
    predict_most_frequent,
)
from hpcgnn.temporal.graph import Events
from hpcgnn.temporal.negatives import AnyNegatives, PairHistory, edge_types_of, events_of_destinations, of_step
from hpcgnn.temporal.node_labels import PROPERTY


class Baseline:
    """Scores pairs of nodes by the events before a batch; the larger the score, the likelier the event.

    A subclass has ``score_pairs``, and ``start`` where steps need something that is made once for a split. graph: this
    rank's part of the data, a TemporalGraph, of which ``partition``, ``splits``, ``world`` and ``channel`` are used;
    config: the section ``baseline``.
    """

    def __init__(self, graph: Any, config: Any):
        """Exchanges nothing: ranks may fail here, each for itself. Raises ValueError."""
        self.graph, self.config = graph, config
        self._batches: Batches | None = None
        self._num_types = max(1, len(graph.partition.edge_types)) if config.by_relation else 1
        self._edge_type: np.ndarray | int = 0

    def meetings(self, events: Events | None = None) -> PairHistory:
        """Group events by pair, or, with ``baseline.by_relation``, by pair and edge type. events: whose sources this
        rank owns; None: all of the partition."""
        partition = self.graph.partition
        events = partition.events if events is None else events
        if self._num_types > 1:
            events = replace(events, dst=events.dst * self._num_types + edge_types_of(events))
        return PairHistory(partition, self.graph.channel, events)

    def key(self, dst: np.ndarray) -> np.ndarray:
        """Return the keys that ``meetings`` has for destinations [n] of the pairs that are scored."""
        return dst * self._num_types + self._edge_type if self._num_types > 1 else dst

    def start(self, batches: Batches) -> None:
        """Collective. Prepare for the steps of a split, before the first of them is scored."""

    def score_pairs(self, src: np.ndarray, dst: np.ndarray, time: np.ndarray, before: int, step: int) -> np.ndarray:
        """Collective. Score pairs at times, by the events of earlier batches, with row ids below ``before``. src, dst
        [n]: global ids of any owner; time [n] int64; step: of the split that was started last. Returns [n] floats, the
        same on any number of ranks."""
        raise NotImplementedError

    def score(
        self, batches: Batches, step: int, negatives: AnyNegatives, columns: slice = slice(None)
    ) -> tuple[np.ndarray, np.ndarray]:
        """Collective. Score a step's events and their negatives: positive [b] and negative [b, k].

        negatives: of all events of ``batches``, of which ``columns`` are looked at.
        """
        if batches is not self._batches:
            self._batches = batches
            self.start(batches)
        at = batches.at(step)
        events, some = batches.events.take(at), of_step(negatives, batches, step, columns, self.graph.channel)
        dst = np.concatenate([events.dst[:, None], some.dst], axis=1)
        src, time = (np.repeat(column[:, None], dst.shape[1], axis=1) for column in (events.src, events.time))
        if some.src is not None:
            src[:, 1:] = some.src
        self._edge_type = np.repeat(edge_types_of(events), dst.shape[1])
        before = int(batches.first_row[step])
        scores = self.score_pairs(src.ravel(), dst.ravel(), time.ravel(), before, step).reshape(dst.shape)
        return scores[:, 0], scores[:, 1:]


class EdgeBank(Baseline):
    """Scores 1 for pairs that met before, in a window of time if there is one, else 0 (Poursafaei et al., Toward
    better evaluation for dynamic link prediction, NeurIPS 2022).

    ``baseline.window_ratio``: share of the events or of the time of training that the window covers; default: the share
    of all events that is the test's. oldest: collective, of (EdgeBank, ends [S]): the oldest time in the window of each
    step, from the number of events before it; None: there is no window.
    """

    def __init__(self, graph: Any, config: Any, oldest: Callable[..., np.ndarray] | None = None):
        """Raises ValueError for a share outside (0, 1]."""
        super().__init__(graph, config)
        test_begin, end = (int(bound) for bound in graph.splits.bounds[2:])
        self.share = config.window_ratio or (end - test_begin) / max(1, end)
        if oldest and not 0 < self.share <= 1:
            raise ValueError(
                f"EdgeBank's window needs a share of events in (0, 1], got {self.share}; is the test empty?"
            )
        self._oldest, self._window_begin = oldest, np.empty(0, np.int64)
        self.history = self.meetings()

    def start(self, batches: Batches) -> None:
        """Collective. Find where the window of every step begins."""
        if self._oldest:
            self._window_begin = self._oldest(self, batches.first_row)

    def score_pairs(self, src: np.ndarray, dst: np.ndarray, time: np.ndarray, before: int, step: int) -> np.ndarray:
        """Collective. Score pairs 1 or 0, float32 [n]."""
        row, last = self.history.last_before(src, self.key(dst), np.full(len(src), before))
        has_met = row >= 0
        if self._oldest:
            has_met &= last >= self._window_begin[step]
        return has_met.astype(np.float32)


def oldest_of_newest_events(bank: EdgeBank, ends: np.ndarray) -> np.ndarray:
    """Collective. Find the first time of the newest share of the events with rows below ``ends`` [S]. It is the
    quantile of their times, interpolated and rounded up to a whole time, as in the authors' code and DyGLib."""
    position = np.round((1 - bank.share) * np.maximum(ends - 1, 0), 6)  # 17.000000000000004 is row 17
    low, high = np.floor(position).astype(np.int64), np.ceil(position).astype(np.int64)
    times = event_times(bank.graph.partition, np.concatenate([low, high]), bank.graph.world).reshape(2, -1)
    return times[0] + np.ceil((position - low) * (times[1] - times[0])).astype(np.int64)


def oldest_of_fixed_length(bank: EdgeBank, ends: np.ndarray) -> np.ndarray:
    """Collective. Find the first time of windows that end with the newest event with a row below ``ends`` [S]. A
    window's length is the share of the time from the first to the last training event (``EdgeBankPredictor`` of TGB,
    Huang et al., Temporal graph benchmark, 2023)."""
    train_end = int(bank.graph.splits.bounds[1])
    rows = np.concatenate([np.maximum(ends - 1, 0), [0, train_end - 1]])
    *newest, first, last = event_times(bank.graph.partition, rows, bank.graph.world)
    # A whole time: float64 holds no nanoseconds since 1970. 14.999999999999998 of 100 is 15.
    length = math.floor(round(bank.share * float(last - first), 6))
    return np.array(newest, np.int64) - length


def oldest_of_mean_interval(bank: EdgeBank, ends: np.ndarray) -> np.ndarray:
    """Collective. Find the first time of windows that end with the newest event with a row below ``ends`` [S]. A
    window is as long as the mean over all pairs so far of a pair's mean time between its events, 0 for a pair with one
    event (``repeat_interval`` of DyGLib)."""
    world, history = bank.graph.world, bank.history
    sums = np.concatenate(([0.0], np.cumsum(history.interval_changes())))[np.searchsorted(history.events.row, ends)]
    mean = world.reduce_array(sums) / np.maximum(_pairs_before(bank, ends), 1)
    newest = event_times(bank.graph.partition, np.maximum(ends - 1, 0), world)
    return newest - np.floor(np.round(mean, 6)).astype(np.int64)


def _pairs_before(bank: EdgeBank, ends: np.ndarray) -> np.ndarray:
    """Collective. Count the different pairs of the events with rows below ``ends`` [S]."""
    return bank.graph.world.reduce_array(np.searchsorted(np.sort(bank.history.first_events()[:, 0]), ends))


class RepeatedPairs(EdgeBank):
    """EdgeBank of pairs with at least the mean number of events of a pair so far, scored 1, all others 0 (Poursafaei et
    al., 2022; ``repeat_threshold`` of DyGLib)."""

    def start(self, batches: Batches) -> None:
        """Collective. Count the pairs before every step."""
        self._numbers, self._num_pairs = self.history.numbers(), _pairs_before(self, batches.first_row)

    def score_pairs(self, src: np.ndarray, dst: np.ndarray, time: np.ndarray, before: int, step: int) -> np.ndarray:
        """Collective. Score pairs 1 or 0, float32 [n]."""
        count = self.history.at_last(src, self.key(dst), np.full(len(src), before), [self._numbers], 0)[:, 0]
        return ((count > 0) & (count * self._num_pairs[step] >= before)).astype(np.float32)


class LocalGlobal(Baseline):
    """Scores the destinations that the source met before by the time since then, and below them the other ones by
    ``others``: the time since their last event as a destination (the combination of local and global recency of Cornell
    et al., On the power of heuristics in temporal graphs, 2025), their number of events as destinations, or alike.

    A score is a whole number of times up to 2^53 apart; beyond that, as with nanoseconds of more than 104 days, times
    that are nearly equal tie.
    """

    def __init__(self, graph: Any, config: Any, others: str = ""):
        """others: "recency", "number", or empty: they are all alike."""
        super().__init__(graph, config)
        self._others = others
        self._pairs = self.meetings()

    def start(self, batches: Batches) -> None:
        """Collective. Measure the time of all events, and collect the events of destinations."""
        self._span = _span(self.graph) + 1
        if self._others:
            self._destinations = _destinations(self)
            self._numbers = self._destinations.numbers()

    def score_pairs(self, src: np.ndarray, dst: np.ndarray, time: np.ndarray, before: int, step: int) -> np.ndarray:
        """Collective. Score pairs by minus the time since they met, or below every such score, float64 [n]."""
        ends, key = np.full(len(src), before), self.key(dst)
        row, last = self._pairs.last_before(src, key, ends)
        below = np.zeros(len(src), np.int64)
        if self._others == "recency":
            row_of_other, last_of_other = self._destinations.last_before(dst, key, ends)
            below = np.where(row_of_other >= 0, last_of_other - time, -self._span)
        elif self._others == "number":
            numbers = self._destinations.at_last(dst, key, ends, [self._numbers], 0)[:, 0]
            below = numbers - self.graph.partition.num_events
        return np.where(row >= 0, last - time, below - self._span).astype(np.float64)


class LabelForecast:
    """Forecasts the labels of nodes at times by the labels of the node before. most: the number of labels that it
    averages, None: ``baseline.window``."""

    def __init__(self, graph: Any, config: Any, most: int | None = None):
        self.window = most or config.window


class DecayedSum(Baseline):
    """Scores by the logarithm of a sum over earlier events, whose weights decay: exp(-rate * (now - then)).

    A subclass chooses the events and the clock. The logarithm keeps weights apart that float64 would round to 0.
    """

    history: PairHistory
    rate: float
    lowest: float

    def count_from(self, clock: np.ndarray) -> None:
        """Sum the weights up to every event of ``history`` [e], whose times are ``clock`` [e] int64."""
        sums = np.log(self.history.decayed_sums(clock, self.rate))
        # The bits of the logarithm: both columns travel as integers, as times in float64 would be rounded.
        self._columns = [clock, sums.view(np.int64)]

    def score_at(self, first: np.ndarray, second: np.ndarray, before: int, now: np.ndarray) -> np.ndarray:
        """Collective. Score pairs (first, second) [n] of ``history`` when the clock shows ``now`` [n], float64;
        ``lowest`` without an earlier event."""
        clock, sums = self.history.at_last(first, second, np.full(len(first), before), self._columns, -1).T
        score = np.ascontiguousarray(sums).view(np.float64) - self.rate * (now - clock)
        return np.where(clock >= 0, score, self.lowest)


class PairDecay(DecayedSum):
    """Sums over the events of the pair, each of which loses the factor e in every ``baseline.decay_time``; by default
    the mean time between two successive training events of a pair."""

    def __init__(self, graph: Any, config: Any):
        super().__init__(graph, config)
        self.history = self.meetings()

    def start(self, batches: Batches) -> None:
        """Collective. Sum the weights. Raises DistributedError where no pair has two training events, and
        ``baseline.decay_time`` is not set."""
        self.rate = 1 / (self.config.decay_time or self._mean_interval())
        self.lowest = -self.rate * _span(self.graph) - 1
        self._first = int(event_times(self.graph.partition, np.zeros(1, np.int64), self.graph.world)[0])
        self.count_from(self.history.events.time - self._first)

    def _mean_interval(self) -> float:
        """Collective. Average the time between two successive training events of a pair."""
        world = self.graph.world
        gaps = self.history.intervals(int(self.graph.splits.bounds[1]))
        time, count = world.total(float(gaps.sum(dtype=np.float64))), world.total(len(gaps))
        if time == 0:
            message = (
                "baseline.kind pair_decay: no pair has training events at two times, so there is no mean time between "
                "them: set baseline.decay_time"
            )
            raise DistributedError(message, user_error=True)
        return time / count

    def score_pairs(self, src: np.ndarray, dst: np.ndarray, time: np.ndarray, before: int, step: int) -> np.ndarray:
        """Collective. Score pairs by the logarithm of their sum, float64 [n]."""
        return self.score_at(src, self.key(dst), before, time - self._first)


class PopTrack(DecayedSum):
    """Sums over the events with the destination, each of which is multiplied by ``baseline.batch_decay`` after every
    batch (Daniluk and Dabrowski, Temporal graph models fail to capture global temporal dynamics, 2023).

    Every split begins a batch. Batches of earlier splits are as long as the longest of the scored one.
    """

    def start(self, batches: Batches) -> None:
        """Collective. Number the batches, and sum the weights."""
        self.rate = -math.log(self.config.batch_decay)
        self.history = _destinations(self)
        size, bounds = int(batches.sizes.max(initial=1)), self.graph.splits.bounds
        earlier = [np.arange(bounds[i], bounds[i + 1], size) for i in range(SPLITS.index(batches.name))]
        begins = np.concatenate([*earlier, batches.first_row])
        self._first_batch = len(begins) - batches.num_steps
        self.lowest = -self.rate * len(begins) - 1
        self.count_from(np.searchsorted(begins, self.history.events.row, side="right") - 1)

    def score_pairs(self, src: np.ndarray, dst: np.ndarray, time: np.ndarray, before: int, step: int) -> np.ndarray:
        """Collective. Score pairs by the logarithm of the sum of their destination, float64 [n]."""
        return self.score_at(dst, self.key(dst), before, np.full(len(dst), self._first_batch + step))


def _destinations(rule: Baseline) -> PairHistory:
    """Collective. Group all ranks' events by destination, at its owner: as events of pairs of the destination twice."""
    return rule.meetings(events_of_destinations(rule.graph.partition, rule.graph.channel))


def _span(graph: Any) -> int:
    """Collective. Measure the time from the first to the last event."""
    first, last = event_times(graph.partition, np.array([0, graph.partition.num_events - 1]), graph.world).tolist()
    return last - first


@dataclass(frozen=True)
class BaselinePart(Part):
    """A baseline. make: of a graph and the section ``baseline``; None: the model is evaluated, or classes are predicted
    by ``rule``. options: the keys of the section that it reads; tasks: values of ``task.kind`` that it is for."""

    make: Callable[[Any, Any], Baseline | LabelForecast] | None
    options: tuple[str, ...] = ()
    rule: Rule | None = None
    tasks: tuple[str, ...] = ("link",)


BASELINES = {
    "": BaselinePart(None, "the model"),
    "unlimited": BaselinePart(
        EdgeBank, "EdgeBank, which predicts every pair with an earlier event (Poursafaei et al., 2022)"
    ),
    "time_window": BaselinePart(
        partial(EdgeBank, oldest=oldest_of_newest_events),
        "EdgeBank over the newest baseline.window_ratio of the events so far (DyGLib)", ("window_ratio",),
    ),
    "fixed_window": BaselinePart(
        partial(EdgeBank, oldest=oldest_of_fixed_length),
        "EdgeBank over a window as long as baseline.window_ratio of the training time (TGB)", ("window_ratio",),
    ),
    "repeat_interval": BaselinePart(
        partial(EdgeBank, oldest=oldest_of_mean_interval),
        "EdgeBank over a window as long as the mean time between a pair's events (DyGLib)",
    ),
    "repeat_threshold": BaselinePart(
        RepeatedPairs, "EdgeBank of pairs with at least the mean number of events of a pair (DyGLib)"
    ),
    "pair_recency": BaselinePart(LocalGlobal, "time since the last event of the pair"),
    "pair_decay": BaselinePart(
        PairDecay, "sum over the pair's events, which decay by the factor e in baseline.decay_time", ("decay_time",)
    ),
    "poptrack": BaselinePart(
        PopTrack,
        "number of events of the destination, decayed by baseline.batch_decay after every batch (Daniluk and "
        "Dabrowski, PopTrack, 2023)", ("batch_decay",),
    ),
    "local_global": BaselinePart(
        partial(LocalGlobal, others="recency"),
        "time since the last event of the pair, then of the destination (Cornell et al., 2025)",
    ),
    "local_popular": BaselinePart(
        partial(LocalGlobal, others="number"),
        "time since the last event of the pair, then number of events of the destination",
    ),
    "persistent_forecast": BaselinePart(
        partial(LabelForecast, most=1), "last label of the node (task.kind node_property; TGB)", tasks=(PROPERTY,)
    ),
    "moving_average": BaselinePart(
        LabelForecast, "moving average of the last baseline.window labels of the node (task.kind node_property; TGB)",
        ("window",), tasks=(PROPERTY,),
    ),
    "most_frequent": BaselinePart(
        None, "the most frequent class of training", rule=predict_most_frequent, tasks=("node", "node_class")
    ),
    "contact_majority": BaselinePart(
        None, "the most frequent known class among the nodes of a node's events, each event counted",
        rule=predict_majority_of_contacts, tasks=("node_class",),
    ),
    "last_label": BaselinePart(
        None, "the last known label of the event's source (persistent forecast of TGB)", rule=predict_last_label,
        tasks=("node",),
    ),
}  # fmt: skip


def baseline_metrics(
    session: Session, config: Any, at: Callable[[str, int], None] | None = None
) -> dict[str, float]:  # fmt: skip
    """Collective. Compute the metrics of all scored splits, named as a model's. config: the section ``baseline``;
    ``at(split, step)``, in place of the watchdog's, is called before every step."""
    at, make, rule = at or session.watchdog.at, BASELINES[config.kind].make, BASELINES[config.kind].rule
    if rule is not None:
        return class_metrics_of(session, rule, at)
    assert make is not None
    with together(session.world, "baseline"):
        own_functions(session.config.train.metrics, session.goal.metric_names())  # refused before anything is scored
        baseline = make(session.graph, config)
    if isinstance(baseline, LabelForecast):
        return _forecast_metrics(session, baseline, at)
    values: dict[str, float] = {}
    for split, prefix in scored_splits(session).items():
        collected = session.goal.collector()
        for step in range(session.batches[split].num_steps):
            at(split, step)
            for columns, is_last in _scores(session, baseline, split, step):
                collected.take(columns, is_last)
        metrics = split_metrics(session, split, collected)
        values |= {f"{prefix}_{name}": value for name, value in metrics.items()}
    return values


def _forecast_metrics(session: Session, baseline: LabelForecast, at: Callable[[str, int], None]) -> dict[str, float]:
    """Collective. Compute the metrics of forecasts of all scored splits."""
    labels, names = session.goal.labels, scored_splits(session)
    collected = {name: session.goal.collector() for name in names}
    groups = labels.forecasts(baseline.window)
    # As many rounds on every rank: each of them may be the last.
    for number in itertools.count():
        group = next(groups, None)
        if not session.world.any(group is not None):
            break
        at("forecasts", number)
        chosen, forecast = (np.empty(0, np.int64), np.empty((0, labels.num_classes))) if group is None else group
        gain, split = gains_of(forecast, labels.dense(chosen)), labels.split[labels.time[chosen]]
        for name in names:
            is_of = split == place_of_split(name)
            collected[name].take({"gain": gain[is_of], "time": labels.time[chosen][is_of]})
    metrics = {name: split_metrics(session, name, collected[name]) for name in names}
    return {f"{prefix}_{key}": value for name, prefix in names.items() for key, value in metrics[name].items()}


def _scores(
    session: Session, baseline: Baseline, split: str, step: int
) -> Iterator[tuple[dict[str, np.ndarray], bool]]:  # fmt: skip
    """Collective. Score a step's events [b] and their negatives, a few columns [b, k] at a time; yields the scores by
    name, and whether they are the last."""
    batches, negatives, chunk = (
        session.batches[split],
        session.loaders[split].negatives(0),
        session.config.eval.negatives_per_pass,
    )
    count = negatives.counts(batches.at(step))
    counts = {} if count is None else {"count": count}
    firsts = range(0, max(1, negatives.per_event), chunk)
    for first in firsts:
        positive, negative = baseline.score(batches, step, negatives, slice(first, first + chunk))
        yield {"positive": positive, "negative": negative} | counts, first == firsts[-1]
