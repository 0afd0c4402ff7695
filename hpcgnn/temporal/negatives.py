"""Negative destinations, keyed by event: the same on any number of ranks and any partition set.

The owner of a source has all events of its pairs, and answers when they met before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hpcgnn import native
from hpcgnn.comm.exchange import Channel, ask, exchange_columns
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.graph.directory import NodeDirectory, check_drawn
from hpcgnn.native import Random, Stream
from hpcgnn.task.negatives import NEGATIVES, NegativeDraw, UniformDraw, draw_negatives, list_ends
from hpcgnn.temporal.batches import Batches
from hpcgnn.temporal.graph import EDGE_TYPE, Events, TemporalPartition

UNIFORM = "uniform"
DRAWN_AT_ONCE = 1 << 22  # negatives, about, of a rank


@dataclass(frozen=True, slots=True)
class Negatives:
    """Negative pairs of events. dst [n, k] int64: global ids; src [n, k], or None: the event's own source. count [n]:
    the number of the k, the first ones, that count for each event, None: all. met_share: the share of all ranks'
    negatives that are pairs that met before, None where pairs are not chosen by that."""

    dst: np.ndarray
    src: np.ndarray | None = None
    count: np.ndarray | None = None
    met_share: float | None = None

    @property
    def per_event(self) -> int:
        """k."""
        return self.dst.shape[1]

    def counts(self, events: slice) -> np.ndarray | None:
        """Return how many negatives count for each of some of the events; None: all."""
        return None if self.count is None else self.count[events]

    def at(self, events: slice, columns: slice = slice(None)) -> Negatives:
        """Return the negatives of some of the events, such as the events of one step; columns: some of each event's."""
        src = None if self.src is None else self.src[events, columns]
        return Negatives(self.dst[events, columns], src, self.counts(events))

    def stretch(self, step: int, channel: Channel) -> tuple[Negatives, int]:
        """Return the negatives of a stretch of steps, here of all, and the place of its first event, here 0."""
        return self, 0

    def whole(self) -> Negatives:
        """Return the negatives of all events."""
        return self


def no_negatives(batches: Batches) -> Negatives:
    """Make the negatives of events that have none."""
    return Negatives(np.empty((len(batches.events), 0), np.int64))


@dataclass(frozen=True, slots=True)
class AllOthers:
    """Negatives that are every node of the destination's type in a pool of N nodes, except true destinations, in order
    of flat row id. Each step makes its negatives when it is planned, as [n, k] may be large.

    true_of [n]: for each event the number of its list of true nodes; indptr [l + 1]: the lists, of which events may
    share one; first, size [l]: place in the pool and number of the nodes of the list's type. key [p]: for every true
    node its list times N + 1, plus the negatives before it, increasing. per_event: k, the largest number of negatives
    of any event of the split, the same on all ranks.
    """

    pool: NodeDirectory
    true_of: np.ndarray
    indptr: np.ndarray
    first: np.ndarray
    size: np.ndarray
    key: np.ndarray
    per_event: int

    @classmethod
    def but(
        cls, pool: NodeDirectory, true_of: np.ndarray, sizes: np.ndarray, place: np.ndarray, per_event: int,
        first: np.ndarray | int = 0, size: np.ndarray | int | None = None,
    ) -> AllOthers:  # fmt: skip
        """Make the negatives from the lists' ``sizes`` [l] and the true nodes' places [p] in the pool, list by list and
        increasing. first, size [l]: the range of places of each list; default: the whole pool."""
        indptr = np.concatenate(([0], np.cumsum(sizes)))
        number = np.repeat(np.arange(len(sizes)), sizes)
        first, size = (np.broadcast_to(v, len(sizes)) for v in (first, pool.size if size is None else size))
        before = place - first[number] - (np.arange(len(place)) - indptr[number])
        return cls(pool, true_of, indptr, first, size, number * (pool.size + 1) + before, per_event)

    def counts(self, events: slice) -> np.ndarray:
        """Count the negatives of some of the events, int64."""
        lists = self.true_of[events]
        return self.size[lists] - (self.indptr[lists + 1] - self.indptr[lists])

    def at(self, events: slice, columns: slice, channel: Channel) -> Negatives:
        """Collective. Return the negatives of some of the events; columns: some of each event's, on all ranks alike,
        and no others are made or fetched. Behind an event's last one stands any node."""
        first, last, _ = columns.indices(self.per_event)
        lists, column = self.true_of[events, None], np.arange(first, last)
        # Negative c comes behind the true nodes that have at most c negatives before them.
        true = np.searchsorted(self.key, lists * (self.pool.size + 1) + column, side="right") - self.indptr[lists]
        place = self.first[lists] + np.minimum(column + true, self.size[lists] - 1)
        low, high = (place.min(), place.max() + 1) if place.size else (0, 0)
        nodes = self.pool.over(channel).lookup(np.arange(low, high))
        return Negatives(nodes[place - low], count=self.counts(events))


@dataclass(frozen=True, slots=True)
class NegativePool:
    """The nodes that negatives are drawn from, in order of flat row id, and so type by type: the nodes of type t are at
    places starts[t] .. starts[t + 1] - 1. types [r]: node types of destinations by edge type, of which a negative has
    that of its event's destination; None: all nodes of the pool stand in for any destination."""

    nodes: NodeDirectory
    starts: np.ndarray
    types: np.ndarray | None

    def ranges(self, edge_types: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first place and the number of the nodes that stand in for destinations of edge types [e]."""
        if self.types is None:
            return np.zeros(len(edge_types), np.int64), np.full(len(edge_types), self.nodes.size)
        kinds = self.types[edge_types]
        return self.starts[kinds], self.starts[kinds + 1] - self.starts[kinds]


def edge_types_of(events: Events) -> np.ndarray:
    """Return the edge types of events [e], 0 where there is one."""
    return events.columns.get(EDGE_TYPE, np.zeros(len(events), np.int64))


def _by_row(events: Events) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and edge types of events [e], in order of row."""
    order = np.argsort(events.row, kind="stable")
    return events.row[order], edge_types_of(events)[order]


def negative_pool(
    kind: str, destinations: np.ndarray, partition: TemporalPartition, world: World, channel: Channel
) -> NegativePool:
    """Collective. Collect the nodes that negatives are drawn from: unique ``destinations`` (global ids, any rank), or
    all nodes. Raises DistributedError for a single node, of all or of a type of destinations: no event would have a
    negative."""
    if kind == "all":
        local = np.arange(partition.num_nodes)
    else:
        local = Route.plan(partition.book, np.unique(destinations), channel).served.numpy()
    ids, book = partition.book.local_to_global(channel.rank), partition.book
    nodes = NodeDirectory(world, channel, partition.flat_row[local], ids[local], book.num_nodes)
    check_drawn("nodes that negatives are drawn from", nodes.size, "set task.negative_pool destinations")
    kinds = np.searchsorted(book.type_base()[1:], partition.flat_row[local], side="right")
    counts = world.reduce_array(np.bincount(kinds, minlength=len(book.node_types)).astype(np.int64))
    is_typed = len(partition.relations) > 1 and np.count_nonzero(counts) > 1
    types = partition.type_of_ends("dst") if is_typed else None
    single = [f" of type {book.node_types[t]}" for t in np.unique(types) if counts[t] == 1] if types is not None else []
    if single or nodes.size == 1:
        what, remedy = "destinations of events", "set task.negative_pool all"
        if kind == "all":
            what, remedy = "nodes of the graph", "link prediction needs at least two nodes"
        of = single[0] if single else ""
        message = f"no negatives: they are drawn from the {what}{of}, and there is only one: {remedy}"
        raise DistributedError(message, user_error=True)
    return NegativePool(nodes, np.concatenate(([0], np.cumsum(counts))), types)


class TypedDraw(NegativeDraw):
    """All nodes of the destination's type alike."""

    redraws = False

    def __init__(self, pool: NegativePool, rows: np.ndarray | None = None, edge_types: np.ndarray | None = None):
        """rows, edge_types [n]: of the events that it draws for, in order of row; None: see ``of``."""
        super().__init__(pool.nodes)
        none = np.empty(0, np.int64)
        self._typed, self._rows = pool, none if rows is None else rows
        self._first, self._size = pool.ranges(none if edge_types is None else edge_types)

    def of(self, events: Events) -> TypedDraw:
        """Return what draws for events."""
        return TypedDraw(self._typed, *_by_row(events))

    def draw(self, random: Random, rows: np.ndarray, count: int) -> np.ndarray:
        return self._draw(random, rows, count, 0)

    def draw_others(self, random: Random, rows: np.ndarray, count: int) -> np.ndarray:
        return self._draw(random, rows, count, 1)

    def _draw(self, random: Random, rows: np.ndarray, count: int, left_out: int) -> np.ndarray:
        place, places = np.searchsorted(self._rows, rows), np.empty((len(rows), count), np.int64)
        first, size = self._first[place], self._size[place]
        for begin in np.unique(first):
            chosen = np.flatnonzero(first == begin)
            choices = max(1, int(size[chosen[0]]) - left_out)
            places[chosen] = begin + native.random_integers(random, rows[chosen], count, choices)
        return places


class TypedEndsDraw(TypedDraw):
    """Nodes of the destination's type by training events of any relation that end there."""

    redraws = True

    def __init__(self, pool: NegativePool, ends: dict[int, NegativeDraw], rows=None, edge_types=None):
        """ends: what draws among the ends of one type, as places in the pool, by the first place of the type."""
        super().__init__(pool, rows, edge_types)
        self._ends = ends

    def over(self, channel: Channel) -> TypedEndsDraw:
        twin = super().over(channel)
        twin._ends = {first: draw.over(channel) for first, draw in self._ends.items()}
        return twin

    def of(self, events: Events) -> TypedEndsDraw:
        """Return what draws for events."""
        return TypedEndsDraw(self._typed, self._ends, *_by_row(events))

    def draw(self, random: Random, rows: np.ndarray, count: int) -> np.ndarray:
        first, places = self._first[np.searchsorted(self._rows, rows)], np.empty((len(rows), count), np.int64)
        # All ranks take the types in one order: each draw is collective.
        for begin, draw in self._ends.items():
            chosen = np.flatnonzero(first == begin)
            places[chosen] = draw.draw(random, rows[chosen], count)
        return places


def uniform_draw(pool: NegativePool) -> NegativeDraw:
    """Draw nodes alike, of the destination's type where the pool has several."""
    return UniformDraw(pool.nodes) if pool.types is None else TypedDraw(pool)


def split_draws(
    pool_kind: str, kind: str, batches: Batches, partition: TemporalPartition, world: World, channel: Channel
) -> NegativeDraw:
    """Collective. Choose how the negatives of a split are drawn: in training by ``kind``, from destinations of training
    events if the pool is one of destinations."""
    training, events = batches.name == "train", batches.events
    shown = events if training else partition.events
    pool, book, own = negative_pool(pool_kind, shown.dst, partition, world, channel), partition.book, partition.flat_row
    if not training or kind == UNIFORM:
        return uniform_draw(pool)
    make, listed = NEGATIVES[kind].make, (partition.num_events, book, own, world, channel)
    if pool.types is None:
        return make(pool.nodes, partial(list_ends, pool.nodes, events.row, events.dst, *listed))
    first, ends = pool.ranges(edge_types_of(events))[0], {}
    for begin in np.unique(pool.starts[pool.types]).tolist():
        rows, dst = (column[first == begin] for column in (events.row, events.dst))
        ends[begin] = make(pool.nodes, partial(list_ends, pool.nodes, rows, dst, *listed))
    return TypedEndsDraw(pool, ends)


class RandomNegatives:
    """Negatives that are drawn from a pool, for a stretch of steps at a time: the same steps on all ranks. The draw is
    a function of the random key and the event, and never the event's destination."""

    def __init__(self, batches: Batches, draws: NegativeDraw, per_event: int, random: Random):
        """draws: from the pool; per_event: k above 0; random: their key."""
        self.per_event, self._batches, self._draws, self._random = per_event, batches, draws, random
        numbers = per_event * -(-int(batches.sizes.max(initial=1)) // draws.pool.num_ranks)  # of a step and rank
        self._num_steps = max(1, DRAWN_AT_ONCE // numbers)
        self._number, self._drawn = -1, no_negatives(batches)

    def counts(self, events: slice) -> None:
        """Return None: all negatives of some of the events count."""

    def stretch(self, step: int, channel: Channel) -> tuple[Negatives, int]:
        """Collective. Return the negatives of the events of the stretch that has a step, and the place of the first of
        these events among all. Steps are requested in one order on all ranks. channel: for the lookup in the pool."""
        number, indptr = step // self._num_steps, self._batches.indptr
        first, last = np.minimum(np.array([number, number + 1]) * self._num_steps, len(indptr) - 1)
        events = slice(int(indptr[first]), int(indptr[last]))
        # All ranks come to a new stretch at the same step: the lookup in the pool is collective.
        if number != self._number:
            self._number, self._drawn = number, self._draw(events, self._draws.over(channel))
        return self._drawn, events.start

    def whole(self) -> Negatives:
        """Collective. Return the negatives of all events."""
        return self._draw(slice(None), self._draws)

    def _draw(self, events: slice, draws: NegativeDraw) -> Negatives:
        rows, own, key = self._batches.events.row[events], self._batches.events.dst[None, events], self._random
        return Negatives(draw_negatives([draws], [key], rows, self.per_event, own, replace(key, hop=1))[0])


def random_negatives(
    batches: Batches, draws: NegativeDraw, per_event: int, seed: int, epoch: int = 0
) -> RandomNegatives | Negatives:
    """Draw nodes from a pool, except each event's destination, for the events' own sources: in training others in every
    epoch."""
    if per_event == 0 or draws.pool.size == 0:
        return no_negatives(batches)
    if isinstance(draws, TypedDraw):
        draws = draws.of(batches.events)
    key = Random(seed, Stream.NEGATIVE, epoch=epoch) if batches.name == "train" else Random(seed, Stream.EVAL_NEGATIVE)
    return RandomNegatives(batches, draws, per_event, key)


AnyNegatives = Negatives | RandomNegatives | AllOthers


def of_step(negatives: AnyNegatives, batches: Batches, step: int, columns: slice, channel: Channel) -> Negatives:
    """Collective. Return the negatives of this rank's events of a step; columns: some of each event's, on all ranks
    alike; channel: over which a pool is asked."""
    events = batches.at(step)
    if isinstance(negatives, AllOthers):
        return negatives.at(events, columns, channel)
    drawn, first = negatives.stretch(step, channel)
    return drawn.at(slice(events.start - first, events.stop - first), columns)


def events_of_destinations(partition: TemporalPartition, channel: Channel, events: Events | None = None) -> Events:
    """Collective. Bring this rank the events whose destination it owns, which is their source here, too. events: of
    this rank's sources; None: those of the partition."""
    events = partition.events if events is None else events
    owner, _ = partition.book.locate(events.dst)
    typed = [EDGE_TYPE] if EDGE_TYPE in events.columns else []
    columns = [events.row, events.dst, events.time, *(events.columns[name] for name in typed)]
    row, dst, time, *kinds = exchange_columns(columns, owner, channel)
    return Events(row, dst, dst, time, dict(zip(typed, kinds, strict=True))).take(np.argsort(row, kind="stable"))


class PairHistory:
    """The events of this rank, grouped by (source, destination). e own events, p own pairs.

    A pair's events lie one after the other in order of event row, so that the last one before a row is found by two
    binary searches.
    """

    def __init__(self, partition: TemporalPartition, channel: Channel, events: Events | None = None):
        """events: in order of row, whose sources this rank owns; None: those of the partition."""
        events = partition.events if events is None else events
        self._book, self._channel, self.events = partition.book, channel, events
        self._destinations, met = np.unique(events.dst, return_inverse=True)
        self._pairs, pair = np.unique(self._pair_key(partition.book.locate(events.src)[1], met), return_inverse=True)
        self._order = np.argsort(pair, kind="stable")
        self._begin = np.searchsorted(pair[self._order], np.arange(len(self._pairs)))
        self._place = self._place_key(pair, np.arange(len(events)))[self._order]

    def first_events(self) -> np.ndarray:
        """Return row, source and destination of the first event of every own pair, [p, 3] int64 (global ids)."""
        first, events = self._order[self._begin], self.events
        return np.stack([events.row[first], events.src[first], events.dst[first]], axis=1)

    def numbers(self) -> np.ndarray:
        """Number every own event among the events of its pair, from 1, int64 [e]."""
        return self._by_event(np.arange(len(self._order)) - self._firsts() + 1)

    def intervals(self, end: int) -> np.ndarray:
        """Return the times between successive events of own pairs, of rows below ``end``, int64."""
        row, time = self.events.row[self._order], self.events.time[self._order]
        later = np.flatnonzero((np.arange(len(row)) > self._firsts()) & (row < end))
        return time[later] - time[later - 1]

    def times_before(self) -> np.ndarray:
        """Return the time of the event before every own event in its pair, int64 [e]; of a first one any time."""
        return self._by_event(np.roll(self.events.time[self._order], 1))

    def interval_changes(self) -> np.ndarray:
        """Compute by how much every own event changes its pair's mean time between events, 0 before the second one:
        float64 [e]."""
        time, first = self.events.time[self._order], self._firsts()
        number = np.arange(len(time)) - first
        mean = (time - time[first]) / np.maximum(number, 1)
        change = mean.copy()
        change[1:] -= np.where(number[1:] > 1, mean[:-1], 0)
        return self._by_event(change)

    def decayed_sums(self, clock: np.ndarray, rate: float) -> np.ndarray:
        """Sum exp(-rate * (clock - earlier clock)) over the pair's events up to every own event, float64 [e]. clock [e]
        int64 never decreases within a pair.

        A sum over twice as many events is made of two sums, so that the order of additions depends on nothing but the
        number of the event.
        """
        clock, sums, step = clock[self._order], np.ones(len(clock)), 1
        number = np.arange(len(clock)) - self._firsts()
        while step <= number.max(initial=0):
            late = np.flatnonzero(number >= step)
            sums[late] += sums[late - step] * np.exp(-rate * (clock[late] - clock[late - step]))
            step *= 2
        return self._by_event(sums)

    def last_before(self, src: np.ndarray, dst: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collective. Find row and time [n] of the last event of each pair (global ids [n]) with a row below ``before``
        [n]; row -1 where there is none. One request and one reply."""
        answer = self.at_last(src, dst, before, [self.events.row, self.events.time], -1)
        return answer[:, 0], answer[:, 1]

    def at_last(
        self, src: np.ndarray, dst: np.ndarray, before: np.ndarray, columns: list[np.ndarray], missing: int,
        time: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Collective. Find the values of w columns [e] int64 of own events at the last event of each pair (global ids
        [n]) with a row below ``before`` [n] and, if given, a time before ``time`` [n]: int64 [n, w], ``missing`` where
        there is none. One request and one reply."""
        owner, local = self._book.locate(src)
        keys = [local, dst, before] if time is None else [local, dst, before, time]

        def answer(asked: np.ndarray) -> np.ndarray:
            event = self._find(*asked.T)
            exists, out = event >= 0, np.full((len(asked), len(columns)), missing, np.int64)
            out[exists] = np.column_stack([column[event[exists]] for column in columns])
            return out

        return ask(np.column_stack(keys), owner, self._channel, answer)

    def _find(
        self, local: np.ndarray, dst: np.ndarray, before: np.ndarray, time: np.ndarray | None = None
    ) -> np.ndarray:  # fmt: skip
        """Find which own events [m] are the last ones; -1 where there is none."""
        event = np.full(len(local), -1, np.int64)
        if len(self._pairs) == 0:
            return event
        met = np.minimum(np.searchsorted(self._destinations, dst), len(self._destinations) - 1)
        key = self._pair_key(local, met)
        pair = np.minimum(np.searchsorted(self._pairs, key), len(self._pairs) - 1)
        exists = np.flatnonzero((self._destinations[met] == dst) & (self._pairs[pair] == key))
        position = np.searchsorted(self.events.row, before[exists])
        if time is not None:  # which never decreases with the row
            position = np.minimum(position, np.searchsorted(self.events.time, time[exists]))
        last = np.searchsorted(self._place, self._place_key(pair[exists], position)) - 1
        has_met = last >= self._begin[pair[exists]]
        event[exists[has_met]] = self._order[last[has_met]]
        return event

    def _firsts(self) -> np.ndarray:
        """Return the place of the first event of every event's pair, in the order of pairs, int64 [e]."""
        return np.repeat(self._begin, np.diff(np.append(self._begin, len(self._order))))

    def _by_event(self, values: np.ndarray) -> np.ndarray:
        """Bring values [e] from the order of pairs into the order of events."""
        out = np.empty_like(values)
        out[self._order] = values
        return out

    def _pair_key(self, local: np.ndarray, met: np.ndarray) -> np.ndarray:
        """Make the keys [m] of pairs of a local source and the number of a destination among those of this rank's
        events; with global ids in place of these numbers, keys would pass 2^63 at 3 * 10^9 nodes."""
        return local * len(self._destinations) + met

    def _place_key(self, pair: np.ndarray, position: np.ndarray) -> np.ndarray:
        return pair * (len(self.events) + 1) + position
