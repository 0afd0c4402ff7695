"""EdgeBank: a pair is expected to meet when it met before. The baseline that a temporal model must beat, run in
its place on the same batches, negatives and metrics.

Poursafaei et al., Towards better evaluation for dynamic link prediction, NeurIPS 2022. b events, k negatives, S steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hpcgnn.choices import check_choice
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.loop.launch import EXIT_DONE, EXIT_REQUEUE, StopRequest
from hpcgnn.loop.logs import MetricsFile, RunLog
from hpcgnn.loop.session import Session, split_metrics
from hpcgnn.loop.trainer import Stopped, headline
from hpcgnn.temporal.batches import Batches, Splits, event_times
from hpcgnn.temporal.eval_config import BASELINES, BaselineConfig
from hpcgnn.temporal.graph import TemporalPartition
from hpcgnn.temporal.negatives import AnyNegatives, PairHistory, of_step


class EdgeBank:
    """Scores 1 for pairs in memory, else 0. Memory knows the events before the batch's first one.

    kind:
        unlimited: it keeps every pair.
        time_window: it keeps the pairs of the newest ``share`` of the events it knows (quantile of their times; as the
            authors' code and DyGLib).
        fixed_window: it keeps the pairs of the newest events; the window ends with the newest event it knows, and is as
            long as ``share`` of the time from the first to the last training event (``EdgeBankPredictor`` of TGB, Huang
            et al., Temporal graph benchmark, 2023).

    share: default: the share of all events that is the test's. earlier_in_batch: memory knows the earlier events of the
    batch too, which the published baselines do not.
    """

    def __init__(
        self,
        kind: str,
        partition: TemporalPartition,
        splits: Splits,
        world: World,
        channel: Channel,
        share: float | None = None,
        earlier_in_batch: bool = False,
    ):
        """Raises ValueError for an unknown kind or a share outside (0, 1]."""
        check_choice("the kind of EdgeBank", kind, BASELINES)
        train_end, test_begin, end = (int(bound) for bound in splits.bounds[1:])
        share = (end - test_begin) / max(1, end) if share is None else share
        if kind != "unlimited" and not 0 < share <= 1:
            raise ValueError(f"EdgeBank's window needs a share of events in (0, 1], got {share}; is the test empty?")
        self._kind, self._share, self._train_end, self._in_batch = kind, share, train_end, earlier_in_batch
        self._partition, self._world, self._channel = partition, world, channel
        self._history = PairHistory(partition, channel)
        self._window_begin: dict[str, np.ndarray] = {}

    def score(
        self, batches: Batches, step: int, negatives: AnyNegatives, columns: slice = slice(None)
    ) -> tuple[np.ndarray, np.ndarray]:
        """Collective. Score a step's events and their negatives: positive [b] and negative [b, k] float32.

        negatives: of all events of ``batches``, of which ``columns`` are looked at.
        """
        if batches.name not in self._window_begin:
            self._window_begin[batches.name] = self._window_begins(batches)
        at = batches.at(step)
        events, some = batches.events.take(at), of_step(negatives, batches, step, columns, self._channel)
        dst = np.concatenate([events.dst[:, None], some.dst], axis=1)
        src = np.repeat(events.src[:, None], dst.shape[1], axis=1)
        if some.src is not None:
            src[:, 1:] = some.src
        before = events.row if self._in_batch else np.full(len(events), batches.first_row[step])
        before = np.repeat(before, dst.shape[1])
        row, time = self._history.last_before(src.ravel(), dst.ravel(), before)
        has_met = (row >= 0) & (time >= self._window_begin[batches.name][step])
        scores = has_met.astype(np.float32).reshape(dst.shape)
        return scores[:, 0], scores[:, 1:]

    def _window_begins(self, batches: Batches) -> np.ndarray:
        """Collective. Find the oldest time that memory keeps in every step, [S] int64."""
        if self._kind == "unlimited":
            return np.full(batches.num_steps, np.iinfo(np.int64).min)
        if self._kind == "time_window":
            return self._newest_share(batches.first_row)
        rows = np.concatenate([np.maximum(batches.first_row - 1, 0), [0, self._train_end - 1]])
        *newest, first, last = event_times(self._partition, rows, self._world)
        # A whole time: float64 holds no nanoseconds since 1970. 14.999999999999998 of 100 is 15.
        length = math.floor(round(self._share * float(last - first), 6))
        return np.array(newest, np.int64) - length

    def _newest_share(self, ends: np.ndarray) -> np.ndarray:
        """Collective. Find the first time of the newest share of the events with rows below ``ends`` [S]: the quantile
        of their times, interpolated and rounded up to a whole time."""
        position = np.round((1 - self._share) * np.maximum(ends - 1, 0), 6)  # 17.000000000000004 is row 17
        low, high = np.floor(position).astype(np.int64), np.ceil(position).astype(np.int64)
        times = event_times(self._partition, np.concatenate([low, high]), self._world).reshape(2, -1)
        return times[0] + np.ceil((position - low) * (times[1] - times[0])).astype(np.int64)


def run_baseline(session: Session, folder: Path, log: RunLog, stop: StopRequest) -> int:
    """Collective. Write the metrics of validation and test as one line of kind "test" in metrics.jsonl; returns the
    exit code. A run that is asked to leave keeps nothing, and begins anew."""
    config = session.config.baseline

    def at(split: str, step: int) -> None:
        session.watchdog.at(split, step)
        if session.world.any(stop.requested):
            raise Stopped

    try:
        values = baseline_metrics(session, config, at)
    except Stopped:
        log("asked to leave: a baseline has no checkpoint to go on from")
        return EXIT_REQUEUE
    with together(session.world, "write metrics.jsonl"):
        if session.world.rank == 0:
            metrics = MetricsFile(folder / "metrics.jsonl")
            metrics.write("test", baseline=config.kind, **values)
            metrics.position()
    log(f"EdgeBank, {config.kind}: {headline('test', values)}")
    return EXIT_DONE


def baseline_metrics(
    session: Session, config: BaselineConfig, at: Callable[[str, int], None] | None = None
) -> dict[str, float]:
    """Collective. Compute the metrics of validation and test, named as a model's; ``at(split, step)``, in place of the
    watchdog's, is told of every step."""
    at = at or session.watchdog.at
    with together(session.world, "baseline"):
        splits, channel = session.graph.splits, session.graph.channel
        bank = EdgeBank(config.kind, session.partition, splits, session.world, channel, config.share or None)
    values: dict[str, float] = {}
    for split in ("val", "test"):
        collected = session.goal.collector()
        for step in range(session.batches[split].num_steps):
            at(split, step)
            for columns, is_last in _scores(session, bank, split, step):
                collected.take(columns, is_last)
        metrics = split_metrics(session, split, collected)
        values |= {f"{split}_{name}": value for name, value in metrics.items()}
    return values


def _scores(session: Session, bank: EdgeBank, split: str, step: int) -> Iterator[tuple[dict[str, np.ndarray], bool]]:
    """Collective. Score a step's events [b] and their negatives, a few columns [b, k] at a time; yields the scores by
    name, and whether they are the last."""
    batches, negatives, chunk = session.batches[split], session.loaders[split].negatives(0), session.config.eval.chunk
    count = negatives.counts(batches.at(step))
    counts = {} if count is None else {"count": count}
    firsts = range(0, max(1, negatives.per_event), chunk)
    for first in firsts:
        positive, negative = bank.score(batches, step, negatives, slice(first, first + chunk))
        yield {"positive": positive, "negative": negative} | counts, first == firsts[-1]
