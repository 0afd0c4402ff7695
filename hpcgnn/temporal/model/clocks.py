"""Clocks and counts of pairs of nodes, which decoder ``clocks`` reads: times since the last events of a pair and of
both of its nodes, how many there were, and sums of them that decay.

They are functions of the events before, and so part of a step's plan, without gradients. Each owner has the events of
its sources, and of its destinations. e events of this rank, n pairs, S time scales, F numbers of a pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.temporal.batches import Splits, shown
from hpcgnn.temporal.graph import Events, TemporalPartition
from hpcgnn.temporal.negatives import PairHistory, events_of_destinations

QUANTILES = (0.25, 0.5, 0.75, 0.9)  # of the times between events of a pair, which are the time scales
COLUMNS = 3  # of an event, before its sums: its time, the time of the event before, its number


def num_clocks(num_scales: int) -> int:
    """Return F for S time scales: three tables of S + 4 numbers, and three numbers of pair and source together."""
    return 3 * (num_scales + 4) + 3


def time_scales(partition: TemporalPartition, splits: Splits, world: World, channel: Channel) -> list[float]:
    """Collective. Return quantiles of the times between successive training events of a pair, in the graph's unit of
    time; of hidden nodes none. They are at least 1, and all 1 where no pair has two events."""
    events = shown(partition.events, splits, partition, channel)
    gaps = np.sort(PairHistory(partition, channel, events).intervals(int(splits.bounds[1])))
    needed = np.ceil(np.array(QUANTILES) * world.total(len(gaps)))
    # Halving: no rank has all times. The smallest number with enough times up to it.
    low, high = np.zeros(len(QUANTILES), np.int64), np.full(len(QUANTILES), 1 << 62)
    while (low < high).any():
        middle = low + (high - low) // 2
        is_enough = world.reduce_array(np.searchsorted(gaps, middle, side="right")) >= needed
        low, high = np.where(is_enough, low, middle + 1), np.where(is_enough, middle, high)
    return np.maximum(low, 1).astype(float).tolist()


class Clocks:
    """Computes the numbers of pairs, by the events of all ranks. Collective to create and to use.

    Of the pair, of the destination's events as a destination and of the source's as a source, there are S + 4 numbers
    each: whether there is an event (0 or 1), the logarithms of 1 plus the time since the last one and since the one
    before it (0 without), and of 1 plus their number, and for each time scale the logarithm of 1 plus a sum over them,
    each of which loses the factor e in every scale. Times are in units of the smallest scale. Then follow the logarithm
    of 1 plus the number of the source's events since the last one of the pair (0 without), whether there are none, and
    the pair's share of the source's events.
    """

    def __init__(
        self, partition: TemporalPartition, channel: Channel, scales: Sequence[float], events: Events | None = None
    ):  # fmt: skip
        """scales: S times above 0; events: of this rank's sources, in order of row; None: those of the partition."""
        events = partition.events if events is None else events
        sources = Events(events.row, events.src, events.src, events.time, {})
        self._scales, self.width = np.array(scales, np.float64), num_clocks(len(scales))
        destinations = events_of_destinations(partition, channel, events)
        pair, source, destination = (PairHistory(partition, channel, of) for of in (events, sources, destinations))
        number = source.numbers()
        self._tables = {
            "pair": (pair, [*self._columns(pair), number]), "source": (source, self._columns(source)),
            "destination": (destination, self._columns(destination)),
        }  # fmt: skip

    def _columns(self, history: PairHistory) -> list[np.ndarray]:
        """Make int64 columns [e] of a history's events: COLUMNS, and the bits of S sums, which travel as integers."""
        time = history.events.time
        sums = [history.decayed_sums(time, 1 / scale).view(np.int64) for scale in self._scales]
        return [time, history.times_before(), history.numbers(), *sums]

    def at(self, src: np.ndarray, dst: np.ndarray, time: np.ndarray, limit: int) -> np.ndarray:
        """Collective. Compute the numbers of pairs by events with earlier times and row ids below ``limit``: float64
        [k b, F]. src [b], or [k, b] where pairs have sources of their own, dst [k, b]: global ids; time [b] int64."""
        times = np.broadcast_to(time, dst.shape).ravel()
        sources = np.broadcast_to(src, dst.shape).ravel()
        # A source that all k pairs of an event have is looked for once.
        source = self._find("source", src.ravel(), src.ravel(), np.broadcast_to(time, src.shape).ravel(), limit)
        source = np.tile(source, (dst.size // max(1, src.size), 1))
        dst, time = dst.ravel(), times
        pair = self._find("pair", sources, dst, time, limit)
        destination = self._find("destination", dst, dst, time, limit)
        met, last = pair[:, 2], pair[:, -1]
        since = np.where(met > 0, source[:, 2] - last, 0)
        together = [np.log1p(since), (met > 0) & (since == 0), met / np.maximum(source[:, 2], 1)]
        tables = [self._numbers(table[:, : COLUMNS + len(self._scales)], time) for table in (pair, destination, source)]
        return np.column_stack([*tables, *together])

    def _find(self, name: str, first: np.ndarray, second: np.ndarray, time: np.ndarray, limit: int) -> np.ndarray:
        """Collective. Find the columns of the last events before, int64 [n, .]; 0 without."""
        history, columns = self._tables[name]
        return history.at_last(first, second, np.full(len(first), limit), columns, 0, time)

    def _numbers(self, table: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Compute S + 4 numbers [n, .] from the columns of last events [n, COLUMNS + S]."""
        last, second, number = table.T[:COLUMNS]
        sums = np.ascontiguousarray(table[:, COLUMNS:]).view(np.float64)
        age = np.where(number > 0, time - last, 0)
        ages = np.stack([age, np.where(number > 1, time - second, 0)], axis=1) / self._scales.min()
        decayed = sums * np.exp(-age[:, None] / self._scales)
        return np.column_stack([number > 0, np.log1p(ages), np.log1p(number), np.log1p(decayed)])
