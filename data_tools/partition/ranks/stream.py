"""Linear deterministic greedy and Fennel with the graph on several ranks: the answer of `partition.methods.streaming`.

The ranks take turns, slab by slab in the order of the rows. In a *round* every rank has one slab: all read theirs and
ask for the parts of its neighbours together; then one after the other assigns its rows, and tells the others which
parts they went to and what the parts hold now.
n rows of a rank, m of a slab, C constraints, P parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from data_tools.partition.methods.streaming import CAPACITY, EVENING_PASSES, LIMIT, fennel_price, new_numbers
from data_tools.partition.ranks.spool import RowGraph
from hpcgnn.native import parts as native_parts
from hpcgnn.native.parts import PartLoads, StreamNodes


class Slab:
    """Collective to create. A rank's slab in a round, none where it has none left: rows begin .. end - 1, whose
    neighbours are numbered by their place in ``known``: all rows [k] that it is about, with their parts [k]."""

    def __init__(self, graph: RowGraph, index: int, part: np.ndarray):
        slabs, own = graph.slabs, graph.slabs.local_starts
        self.first, self.stop = (int(own[min(index + side, len(own) - 1)]) for side in (0, 1))
        rows, (self.indptr, neighbor, self.tie) = graph.graph.slab(self.first, self.stop)
        self.known, place = np.unique(np.r_[rows, neighbor], return_inverse=True)
        self.own, self.neighbor = place[: len(rows)], place[len(rows) :]
        self.part = slabs.lookup(part, self.known)

    def nodes(self, weights: np.ndarray) -> StreamNodes:
        """For the kernels; weights [n, C] of the rank's rows."""
        return StreamNodes(self.own, weights[self.first : self.stop], (self.indptr, self.neighbor, self.tie))

    def learn(self, begin: int, part: np.ndarray) -> None:
        """Parts [m] of the rows from ``begin`` on."""
        low, high = np.searchsorted(self.known, [begin, begin + len(part)])
        self.part[low:high] = part[self.known[low:high] - begin]


@dataclasses.dataclass(slots=True)
class Stream:
    """Rows under assignment. weights [n, C], part [n] int32 of this rank's rows; loads: of all."""

    graph: RowGraph
    weights: np.ndarray
    part: np.ndarray
    loads: PartLoads

    def run(self, kernel: Callable, step: int = 1) -> int:
        """Collective. One pass over all rows by a kernel of `native_parts`, step -1: the last first; returns the sum of
        what it returned, which may be nothing."""
        slabs, total = self.graph.slabs, 0
        size = slabs.team.size
        for index in range(-(-slabs.num_slabs // size))[::step]:
            slab = Slab(self.graph, index, self.part)
            for rank in range(size)[::step]:
                if rank + index * size < slabs.num_slabs:
                    total += self.turn(kernel, slab, rank, int(slabs.starts[rank + index * size]))
            del slab  # before the next one is there
        return total

    def turn(self, kernel: Callable, slab: Slab, rank: int, begin: int) -> int:
        """Collective. One rank assigns the rows of its slab, from ``begin`` on, and tells the others."""
        team, told = self.graph.slabs.team, None
        if team.rank == rank:
            result = kernel(slab.nodes(self.weights), self.loads, slab.part)
            self.part[slab.first : slab.stop] = slab.part[slab.own]
            told = self.part[slab.first : slab.stop], self.loads.loads, result or 0
        part, loads, result = team.broadcast(told, rank)
        self.loads.loads[:] = loads
        slab.learn(begin, part)
        return result

    def is_even(self) -> bool:
        """Whether no part is above its capacity."""
        return bool((self.loads.loads / self.loads.capacity <= 1).all())


def stream_rows(graph: RowGraph, weights: np.ndarray, num_parts: int, rule: str, passes: int) -> np.ndarray:
    """Collective. As `stream`: part [n] int32 of this rank's rows; weights [n, C] int64."""
    team = graph.slabs.team
    total = team.sum(weights.sum(axis=0))
    if not total.any():
        return np.zeros(len(weights), np.int32)
    weights, capacity = weights[:, total > 0], CAPACITY * total[total > 0] / num_parts
    price = fennel_price(graph.total_ties, int(graph.slabs.starts[-1]))
    loads = PartLoads(np.zeros((num_parts, len(capacity))), capacity, rule, price)
    stream = Stream(graph, np.ascontiguousarray(weights), np.full(len(weights), -1, np.int32), loads)
    for _ in range(passes):
        stream.loads.loads[:] = 0
        stream.run(native_parts.stream_parts)
    stream.loads = dataclasses.replace(loads, capacity=LIMIT / CAPACITY * capacity)
    for _ in range(EVENING_PASSES):
        if stream.is_even() or stream.run(native_parts.even_parts, -1) == 0:
            break
    return stream.part


def part_numbers(graph: RowGraph, part: np.ndarray, num_parts: int, seed: int) -> np.ndarray:
    """Collective. New numbers [P] of parts, consecutive ones near, as `order_streamed` gives them; part [n] of this
    rank's rows."""
    slabs, team = graph.slabs, graph.slabs.team
    ties = np.zeros(num_parts * num_parts, np.int64)
    for index in range(-(-slabs.num_slabs // team.size)):
        slab = Slab(graph, index, part)
        own = np.repeat(slab.part[slab.own].astype(np.int64), np.diff(slab.indptr))
        cells = own * num_parts + slab.part[slab.neighbor]
        ties += np.bincount(cells, weights=slab.tie, minlength=len(ties)).astype(np.int64)
    return new_numbers(team.sum(ties).reshape(num_parts, num_parts), seed)
