"""Baselines, which score pairs by a rule and need no training, and their table. One runs in the place of a model, on
the same batches, negatives and metrics: a temporal model must beat it.

b events, k negatives, n pairs, S steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hpcgnn.choices import Part
from hpcgnn.comm.together import together
from hpcgnn.loop.own_metrics import own_functions
from hpcgnn.loop.session import Session, split_metrics
from hpcgnn.temporal.batches import Batches, event_times
from hpcgnn.temporal.negatives import AnyNegatives, PairHistory, of_step


class Baseline:
    """Scores pairs of nodes by the events before a batch; the larger the score, the likelier the event.

    A subclass has ``score_pairs``, and ``start`` where steps need something that is made once for a split. graph: this
    rank's part of the data, a TemporalGraph, of which ``partition``, ``splits``, ``world`` and ``channel`` are used;
    share: ``baseline.window_ratio``, 0: the default of the baseline.
    """

    def __init__(self, graph: Any, share: float = 0.0):
        """Exchanges nothing: ranks may fail here, each for itself. Raises ValueError."""
        self.graph, self.share = graph, share
        self._batches: Batches | None = None

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
        before = int(batches.first_row[step])
        scores = self.score_pairs(src.ravel(), dst.ravel(), time.ravel(), before, step).reshape(dst.shape)
        return scores[:, 0], scores[:, 1:]


class EdgeBank(Baseline):
    """Scores 1 for pairs that met before, in a window of time if there is one, else 0 (Poursafaei et al., Toward
    better evaluation for dynamic link prediction, NeurIPS 2022).

    share: of the events or of the time of training that the window covers; default: the share of all events that is the
    test's. oldest: collective, of (graph, share, ends [S]): the oldest time in the window of each step, from the number
    of events before it; None: there is no window.
    """

    def __init__(self, graph: Any, share: float = 0.0, oldest: Callable[..., np.ndarray] | None = None):
        """Raises ValueError for a share outside (0, 1]."""
        test_begin, end = (int(bound) for bound in graph.splits.bounds[2:])
        super().__init__(graph, share or (end - test_begin) / max(1, end))
        if oldest and not 0 < self.share <= 1:
            raise ValueError(
                f"EdgeBank's window needs a share of events in (0, 1], got {self.share}; is the test empty?"
            )
        self._oldest, self._window_begin = oldest, np.empty(0, np.int64)
        self._history = PairHistory(graph.partition, graph.channel)

    def start(self, batches: Batches) -> None:
        """Collective. Find where the window of every step begins."""
        if self._oldest:
            self._window_begin = self._oldest(self.graph, self.share, batches.first_row)

    def score_pairs(self, src: np.ndarray, dst: np.ndarray, time: np.ndarray, before: int, step: int) -> np.ndarray:
        """Collective. Score pairs 1 or 0, float32 [n]."""
        row, last = self._history.last_before(src, dst, np.full(len(src), before))
        has_met = row >= 0
        if self._oldest:
            has_met &= last >= self._window_begin[step]
        return has_met.astype(np.float32)


def oldest_of_newest_events(graph: Any, share: float, ends: np.ndarray) -> np.ndarray:
    """Collective. Find the first time of the newest share of the events with rows below ``ends`` [S]. It is the
    quantile of their times, interpolated and rounded up to a whole time, as in the authors' code and DyGLib."""
    position = np.round((1 - share) * np.maximum(ends - 1, 0), 6)  # 17.000000000000004 is row 17
    low, high = np.floor(position).astype(np.int64), np.ceil(position).astype(np.int64)
    times = event_times(graph.partition, np.concatenate([low, high]), graph.world).reshape(2, -1)
    return times[0] + np.ceil((position - low) * (times[1] - times[0])).astype(np.int64)


def oldest_of_fixed_length(graph: Any, share: float, ends: np.ndarray) -> np.ndarray:
    """Collective. Find the first time of windows that end with the newest event with a row below ``ends`` [S]. A
    window's length is ``share`` of the time from the first to the last training event (``EdgeBankPredictor`` of TGB,
    Huang et al., Temporal graph benchmark, 2023)."""
    train_end = int(graph.splits.bounds[1])
    rows = np.concatenate([np.maximum(ends - 1, 0), [0, train_end - 1]])
    *newest, first, last = event_times(graph.partition, rows, graph.world)
    # A whole time: float64 holds no nanoseconds since 1970. 14.999999999999998 of 100 is 15.
    length = math.floor(round(share * float(last - first), 6))
    return np.array(newest, np.int64) - length


@dataclass(frozen=True)
class BaselinePart(Part):
    """A baseline. make: of a graph and ``baseline.window_ratio``; None: the model is evaluated."""

    make: Callable[[Any, float], Baseline] | None


BASELINES = {
    "": BaselinePart(None, "the model"),
    "unlimited": BaselinePart(
        EdgeBank, "EdgeBank, which predicts every pair with an earlier event (Poursafaei et al., 2022)"
    ),
    "time_window": BaselinePart(
        partial(EdgeBank, oldest=oldest_of_newest_events),
        "EdgeBank over the newest baseline.window_ratio of the events so far (DyGLib)",
    ),
    "fixed_window": BaselinePart(
        partial(EdgeBank, oldest=oldest_of_fixed_length),
        "EdgeBank over a window as long as baseline.window_ratio of the training time (TGB)",
    ),
}


def baseline_metrics(
    session: Session, config: Any, at: Callable[[str, int], None] | None = None
) -> dict[str, float]:  # fmt: skip
    """Collective. Compute the metrics of validation and test, named as a model's. config: the section ``baseline``;
    ``at(split, step)``, in place of the watchdog's, is called before every step."""
    at, make = at or session.watchdog.at, BASELINES[config.kind].make
    assert make is not None
    with together(session.world, "baseline"):
        own_functions(session.config.train.metrics, session.goal.metric_names())  # refused before anything is scored
        baseline = make(session.graph, config.window_ratio)
    values: dict[str, float] = {}
    for split in ("val", "test"):
        collected = session.goal.collector()
        for step in range(session.batches[split].num_steps):
            at(split, step)
            for columns, is_last in _scores(session, baseline, split, step):
                collected.take(columns, is_last)
        metrics = split_metrics(session, split, collected)
        values |= {f"{split}_{name}": value for name, value in metrics.items()}
    return values


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
