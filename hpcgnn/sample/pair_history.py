"""When pairs of nodes met: the owner of a source knows all events of its pairs, and answers for them."""

from __future__ import annotations

import numpy as np

from hpcgnn.comm.exchange import Channel
from hpcgnn.store.partition import TemporalPartition


class PairHistory:
    """The events of this rank, grouped by (source, destination). e own events, p own pairs.

    A pair's events lie one after the other in order of event row, so that the last one before a row is found by two
    binary searches.
    """

    def __init__(self, partition: TemporalPartition, channel: Channel):
        events = partition.events
        self._book, self._channel, self._events = partition.book, channel, events
        self._pairs, pair = np.unique(
            self._pair_key(partition.book.locate(events.src)[1], events.dst), return_inverse=True
        )
        self._order = np.argsort(pair, kind="stable")
        self._begin = np.searchsorted(pair[self._order], np.arange(len(self._pairs)))
        self._place = self._place_key(pair, np.arange(len(events)))[self._order]

    def first_events(self) -> np.ndarray:
        """Row, source and destination of the first event of every own pair, [p, 3] int64 (global ids)."""
        first, events = self._order[self._begin], self._events
        return np.stack([events.row[first], events.src[first], events.dst[first]], axis=1)

    def last_before(self, src: np.ndarray, dst: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collective. Row and time [n] of the last event of each pair (global ids [n]) with a row below ``before`` [n];
        row -1 where there is none. One request and one reply."""
        owner, local = self._book.locate(src)
        order = np.argsort(owner, kind="stable")
        send = np.bincount(owner, minlength=self._channel.size).astype(np.int64)
        receive = self._channel.counts(send)
        asked = self._channel.array(np.stack([local, dst, before], axis=1)[order], send, receive)
        answer = np.empty((len(src), 2), np.int64)
        answer[order] = self._channel.array(self._answer(*asked.T), receive, send)
        return answer[:, 0], answer[:, 1]

    def _answer(self, local: np.ndarray, dst: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Row and time [m, 2] of the last events; row -1 where there is none."""
        answer = np.full((len(local), 2), -1, np.int64)
        if len(self._pairs) == 0:
            return answer
        key = self._pair_key(local, dst)
        pair = np.minimum(np.searchsorted(self._pairs, key), len(self._pairs) - 1)
        asked = np.flatnonzero(self._pairs[pair] == key)
        position = np.searchsorted(self._events.row, before[asked])
        last = np.searchsorted(self._place, self._place_key(pair[asked], position)) - 1
        found = last >= self._begin[pair[asked]]
        event = self._order[last[found]]
        answer[asked[found]] = np.column_stack([self._events.row[event], self._events.time[event]])
        return answer

    def _pair_key(self, local: np.ndarray, dst: np.ndarray) -> np.ndarray:
        return local * self._book.num_nodes + dst

    def _place_key(self, pair: np.ndarray, position: np.ndarray) -> np.ndarray:
        return pair * (len(self._events) + 1) + position
