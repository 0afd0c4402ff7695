"""Samples neighbors that are no newer than the seeds they are drawn for.

Times are int64 *ticks*: the user's integers, or the bits of floating numbers in an order that is the numbers' order. A
node is drawn for in a *context*, [time] or [time, number of the seed]; the last value and the node key the draws. n
local nodes of a type, m in-edges of a relation at this rank, Q pairs of a relation and a node to
draw for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.directory import mixed
from hpcgnn.graph.partition import WEIGHT, GraphPartition, InEdges
from hpcgnn.native import Random
from hpcgnn.static.config import FULL, RECENT
from hpcgnn.static.sampling.neighbors import Exclusion, NeighborSampler
from hpcgnn.static.sampling.pairs import InLists, Pairs

KEY = "sampling.time_column"
TIME = ".time"  # column of ticks: of nodes, of edges that carry messages, and of seeds
SEED_TIME = ".seed_time"  # of edges as seeds, which lack the time of their source node
NO_LIMIT = np.iinfo(np.int64).max  # the time of a seed that sees all neighbors
FIRST_TIME = np.iinfo(np.int64).min  # the time of an edge that all seeds see
IDENTITY_BITS = 48  # of what keys draws


def with_times(partition: GraphPartition, column: str, world: World, channel: Channel) -> GraphPartition:
    """Collective. Add the column TIME to nodes and edges. The time of an edge is that of its own ``column``, or of its
    source node; where both have the column, the later one. Edges with a column of their own have SEED_TIME too.

    Raises DistributedError where no relation has times, and for a time that is no finite number.
    """
    with together(world, "read the times"):
        of_nodes = [_read_nodes(partition, kind, column) for kind in range(len(partition.types))]
        own = [_read_edges(partition, number, column) for number in range(len(partition.relations))]
        _check_timed(partition, column)
    local = np.zeros(partition.num_nodes, np.int64)
    for kind, time in enumerate(of_nodes):
        local[partition.of_type(kind)] = 0 if time is None else time
    edges = []
    for relation, lists, time in zip(partition.relations, partition.edges, own, strict=True):
        columns = {} if time is None else {TIME: time, SEED_TIME: time}
        if of_nodes[relation.src_type] is not None:
            unique, inverse = np.unique(lists.src, return_inverse=True)
            (pulled,) = Route.plan(partition.book, unique, channel).pull(torch.from_numpy(local))
            of_source = pulled.numpy()[inverse]
            columns[TIME] = of_source if time is None else np.maximum(time, of_source)
        edges.append(replace(lists, columns=lists.columns | columns))
    nodes = tuple(
        columns if time is None else columns | {TIME: time}
        for columns, time in zip(partition.columns, of_nodes, strict=True)
    )
    return replace(partition, columns=nodes, edges=tuple(edges))


def describe_times(partition: GraphPartition, column: str) -> str:
    """Say by what the edges of each relation are timed."""
    texts = {
        (True, True): "its edges and their sources, the later of both", (True, False): "its edges",
        (False, True): "the sources of its edges", (False, False): "nothing, not restricted",
    }  # fmt: skip
    return "; ".join(
        f"{relation.name} by {texts[column in edges.columns, column in partition.columns[relation.src_type]]}"
        for relation, edges in zip(partition.relations, partition.edges, strict=True)
    )


def check_seed_time(columns: Collection[str], column: str, of: str, remedy: str = "") -> None:
    """Raise ValueError where seeds have no ``column`` of times; columns: all names; of: the name of their type or
    relation."""
    if column and column not in columns:
        there = ", ".join(sorted(name for name in columns if not name.startswith("."))) or "none"
        raise ValueError(f"{KEY}: {of}, from which the seeds are, has no column {column}; it has {there}{remedy}")


def as_ticks(partition: GraphPartition, column: str, values: np.ndarray) -> np.ndarray:
    """Convert finite numbers to ticks of the graph's ``column``. Fractions are rounded down where the graph has
    integers, which changes no comparison."""
    if is_floating(partition, column):
        bits = (values.astype(np.float64) + 0.0).view(np.int64)  # + 0.0: -0.0 equals 0.0
        return bits ^ ((bits >> 63) & NO_LIMIT)
    return (np.floor(values) if values.dtype.kind == "f" else values).astype(np.int64)


def is_floating(partition: GraphPartition, column: str) -> bool:
    """Say whether some of the graph's times are floating numbers; then all are compared as float64."""
    tables = [*partition.columns, *(edges.columns for edges in partition.edges)]
    return any(columns[column].dtype.kind == "f" for columns in tables if column in columns)


def zone_of_times(partition: GraphPartition, column: str) -> str:
    """Return the zone of the dates that all of the graph's times come from; empty where some come from none."""
    attributes = partition.column_attributes.items()
    zones = {str(found.get("zone", "")) for place, found in attributes if place.rpartition("/")[2] == column}
    if "" in zones or not zones or is_floating(partition, column):
        return ""
    return zones.pop() if len(zones) == 1 else "UTC"


def _read_nodes(partition: GraphPartition, kind: int, column: str) -> np.ndarray | None:
    rows = partition.flat_row[partition.of_type(kind)] - partition.book.type_base()[kind]
    return _read(partition, partition.columns[kind], column, f"node type {partition.types[kind]}", rows)


def _read_edges(partition: GraphPartition, number: int, column: str) -> np.ndarray | None:
    edges, name = partition.edges[number], partition.relations[number].name
    return _read(partition, edges.columns, column, f"relation {name}", edges.row)


def _read(
    partition: GraphPartition, columns: dict[str, np.ndarray], column: str, name: str, rows: np.ndarray
) -> np.ndarray | None:
    """Read ticks; None without the column. Raises ValueError."""
    if column not in columns:
        return None
    values = columns[column]
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise ValueError(f"{KEY}: column {column} of {name} must hold one number a row, not {values.dtype}")
    ticks = as_ticks(partition, column, values)
    strange = np.flatnonzero(~np.isfinite(values)) if values.dtype.kind == "f" else np.flatnonzero(
        _is_inexact(partition, column, values)
    )  # fmt: skip
    if len(strange):
        raise ValueError(
            f"{KEY}: column {column} of {name}, row {rows[strange[0]]}, has {values[strange[0]]}: times must be finite "
            "numbers, and integers that 64 bits hold, or, where others are floating numbers, 53 bits: mend the source"
        )
    return ticks


def _is_inexact(partition: GraphPartition, column: str, values: np.ndarray) -> np.ndarray:
    """Mark integers [n] that the type of times does not hold."""
    if is_floating(partition, column):
        return np.abs(values.astype(np.float64)) > 1 << 53
    return values > NO_LIMIT if values.dtype.kind == "u" else np.zeros(len(values), bool)


def _check_timed(partition: GraphPartition, column: str) -> None:
    """Raise ValueError where neither edges nor their sources have times."""
    kinds = {relation.src_type for relation in partition.relations}
    tables = [partition.columns[kind] for kind in kinds] + [edges.columns for edges in partition.edges]
    if all(column not in columns for columns in tables):
        there = {name for columns in tables for name in columns}.union(*partition.unread)
        raise ValueError(
            f"{KEY}: no relation and none of their source nodes has a column {column}; there are "
            f"{', '.join(sorted(there)) or 'none'}"
        )


@dataclass(frozen=True, slots=True)
class TimeOrder:
    """The in-edges of all relations in order of list, then time. order [m]: positions of the edges in the usual order;
    place [m]: the inverse; time [m]: their times, increasing within a list; is_timed [L]: relations with times."""

    order: np.ndarray
    place: np.ndarray
    time: np.ndarray
    is_timed: np.ndarray

    @classmethod
    def of(cls, edges: tuple[InEdges, ...], lists: InLists) -> TimeOrder:
        """Sort edges by their column TIME; equal times, and edges without it, stay in the usual order."""
        time = np.concatenate([each.columns.get(TIME, np.full(len(each.src), FIRST_TIME)) for each in edges])
        order = np.lexsort((time, np.repeat(np.arange(len(lists.identity)), np.diff(lists.indptr))))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return cls(order, place, time[order], np.array([TIME in each.columns for each in edges]))

    def end(self, begin: np.ndarray, end: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Find the end [Q] of the edges of each list, from begin to end, that are at most as new as its time: a binary
        search in all lists at the same time."""
        low, high = begin.copy(), end.copy()
        while len(left := np.flatnonzero(low < high)):
            middle = (low[left] + high[left]) // 2
            is_allowed = self.time[middle] <= times[left]
            low[left[is_allowed]] = middle[is_allowed] + 1
            high[left[~is_allowed]] = middle[~is_allowed]
        return low


class TimedNeighbors(NeighborSampler):
    """Samples, for nodes in contexts, neighbors over edges that are at most as new as the time of the context; the
    allowed edges of a node are the first of its list."""

    def __init__(
        self, partition: GraphPartition, mode: str, channel: Channel, threads: int = 1, with_edges: bool = False,
        excluded: Exclusion | None = None, weight: str = WEIGHT,
    ):  # fmt: skip
        """Relations without a column TIME are not restricted, and with "recent" are drawn from uniformly."""
        super().__init__(partition, mode, channel, threads, with_edges, excluded, weight=weight)
        self._newest = mode == RECENT
        self.mode = "uniform" if self._newest else self.mode
        lists = self.lists.of_pairs
        self._order = order = TimeOrder.of(partition.edges, lists)
        columns = [None if column is None else column[order.order] for column in (lists.weight, lists.source_identity)]
        self._timed = InLists(lists.indptr, lists.identity, *columns)

    @property
    def alone(self) -> bool:
        """Whether a batch is one native call: never, as nodes have contexts."""
        return False

    @property
    def needs_host(self) -> str:
        """Why only the host can draw."""
        return "seeds have times or separate neighbors"

    def _sample(
        self, rows: Any, context: np.ndarray | None, fanouts: list[int], random: Random,
        bounds: np.ndarray | None = None,
    ) -> tuple[Pairs, Any, Any, Any]:  # fmt: skip
        pairs = self.lists.find(rows, fanouts, bounds)
        lists, lost = self._spans(pairs, context), np.sort(self._order.place[self._lost(random)])
        numbers = np.arange(0, 2 * len(pairs.pair), 2)
        if self._newest:
            drawn = self._draw_without(self._draw_newest, lists, numbers, pairs.relation, fanouts, random, lost)
        else:
            drawn_from = self._drawn_from(lists, lost)
            *drawn, _ = native.sample_lists(
                drawn_from, numbers, fanouts, random, relation=pairs.relation, **self._keys(True)
            )  # fmt: skip
        return pairs, drawn[0], *self._edges_at(self._order.order[drawn[1]])

    def _spans(self, pairs: Pairs, context: Any) -> InLists:
        """Make lists in which row 2 i has the allowed edges of pair i; the rows between are not drawn from. context
        [N, W]: of the nodes."""
        lists, of_pairs = self._timed, context if pairs.place is None else context[pairs.place]
        begin, end = lists.indptr[pairs.pair], lists.indptr[pairs.pair + 1]
        end = self._order.end(begin, end, of_pairs[:, 0])
        identity = mixed(lists.identity[pairs.pair], of_pairs[:, -1]) >> np.uint64(64 - IDENTITY_BITS)
        return replace(
            lists, indptr=_interleaved(begin, end, lists.indptr[-1]), identity=np.repeat(identity.view(np.int64), 2)
        )

    def _draw_newest(
        self, lists: InLists, rows: np.ndarray, relation: Any, fanouts: list[int], random: Random
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take the last edges of each list, as many as the fanout; of relations without times, draw."""
        numbers = np.zeros(len(rows), np.int64) if relation is None else relation
        begin, end, fanout = lists.indptr[rows], lists.indptr[rows + 1], np.array(fanouts)[numbers]
        is_cut = self._order.is_timed[numbers] & (fanout != FULL)
        begin = np.where(is_cut, np.maximum(begin, end - fanout), begin)
        identity = np.repeat(lists.identity[rows], 2)
        last = replace(lists, indptr=_interleaved(begin, end, lists.indptr[-1]), identity=identity)
        return self._draw_pairs(last, np.arange(0, 2 * len(rows), 2), relation, fanouts, random)

    def degrees(self, frontier: list[np.ndarray], contexts: list[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Collective. Count the allowed in-edges, or sum their weights, of nodes in contexts, over all relations, as
        ``GraphPartition.in_degree`` does: [D] by type."""
        sizes, book, nodes = [len(ids) for ids in frontier], self.partition.book, np.concatenate(frontier)
        owner, local = book.locate(nodes)
        order = np.argsort(owner, kind="stable")
        want = np.bincount(owner, minlength=book.size)
        serve = self._channel.counts(want)
        request, context = self._exchange(local[order], np.concatenate(contexts)[order], want, serve)
        pairs = self.lists.find(request, [FULL] * len(self.partition.relations))
        place = np.arange(len(request)) if pairs.place is None else pairs.place
        counted = np.bincount(place, self._sums(self._spans(pairs, context).indptr[:-1]), len(request))
        degree = np.empty(len(nodes), np.float64 if self.partition.weighs else np.int64)
        degree[order] = self._channel.array(counted.astype(degree.dtype), serve, want)
        return tuple(np.split(degree, np.cumsum(sizes)[:-1]))

    def _sums(self, spans: np.ndarray) -> np.ndarray:
        """Return the length, or the sum of the weights, of every second span between places [2 Q]."""
        length = spans[1::2] - spans[::2]
        if not self.partition.weighs:
            return length
        weights = [edges.columns.get(WEIGHT, np.ones(len(edges.src))) for edges in self.partition.edges]
        weight = np.append(np.concatenate(weights)[self._order.order], 0).astype(np.float64)
        return np.where(length > 0, np.add.reduceat(weight, spans)[::2] if len(spans) else 0, 0)


def _interleaved(begin: np.ndarray, end: np.ndarray, last: Any) -> np.ndarray:
    """Make offsets [2 D + 1] in which every second row is from begin [D] to end [D]; last: number of all edges."""
    return np.append(np.column_stack([begin, end]).ravel(), last).astype(np.int64)
