"""Parts for nodes that come one after the other, the nodes with most edges first, streamed several times.

The methods are linear deterministic greedy (Stanton and Kliot, "Streaming graph partitioning for large distributed
graphs", 2012) and Fennel (Tsourakakis et al., "FENNEL: streaming graph partitioning for massive scale graphs", 2014).
Several passes: Nishimura and Ugander, "Restreaming graph partitioning", 2013.

The ranks take turns, slab by slab in the order of the rows. In a *round* every rank has one slab: all ranks read their
slabs and request the parts of the neighbors together. Then one rank after the other assigns its rows, and sends the
others the parts of its rows and the new loads of the parts. m rows of a rank, k rows that a slab is about, C
constraints, P parts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from data_tools.partition.layout import part_ties
from data_tools.partition.spool import Adjacency, RowGraph
from hpcgnn.native import parts as native_parts
from hpcgnn.native.parts import PartLoads, StreamNodes

CAPACITY = 1.03  # a part takes so much of the mean of every constraint while nodes are assigned
LIMIT = 1.04  # and may have so much at the end
EVENING_PASSES = 30  # at most, after those that assign
GAMMA = 1.5  # Fennel's: its price grows with the square root of the load


@dataclasses.dataclass(frozen=True, slots=True)
class Slab:
    """A rank's slab in a round, empty where it has none left: its rows first .. stop - 1.

    rows: the slab's rows and their neighbors, increasing (None: all rows of the graph); part: of each of these rows;
    own, and the neighbors of the adjacency: places among these rows.
    """

    first: int
    stop: int
    rows: np.ndarray | None  # [k]
    part: np.ndarray  # [k] int32
    own: np.ndarray  # [stop - first]
    adjacency: Adjacency


def open_slab(graph: RowGraph, number: int, part: np.ndarray) -> Slab:
    """Collective. Open this rank's slab in a round; part [m] of its rows, which the slab of one process shares."""
    slabs, starts = graph.slabs, graph.slabs.local_starts
    first, stop = (int(starts[min(number + side, len(starts) - 1)]) for side in (0, 1))
    indptr, neighbor, tie = graph.slab(first, stop)
    if slabs.team.size == 1:
        return Slab(first, stop, None, part, np.arange(first, stop), (indptr, neighbor, tie))
    begin = slabs.starts[min(slabs.team.rank + number * slabs.team.size, slabs.num_slabs)]
    rows, place = np.unique(np.r_[begin + np.arange(stop - first), neighbor], return_inverse=True)
    own, neighbor = np.split(place, [stop - first])
    return Slab(first, stop, rows, slabs.lookup(part, rows), own, (indptr, neighbor, tie))


@dataclasses.dataclass(slots=True)
class NodeStream:
    """Rows under assignment. weights [m, C], part [m] int32 of this rank's rows; loads: of all."""

    graph: RowGraph
    weights: np.ndarray
    part: np.ndarray
    loads: PartLoads

    def run(self, kernel: Callable, step: int = 1) -> int:
        """Collective. Pass over all rows once by a kernel of `native_parts`, step -1: the last first; returns the sum
        of the numbers that the kernel returned, 0 for none."""
        slabs, total = self.graph.slabs, 0
        size = slabs.team.size
        for number in range(slabs.num_rounds)[::step]:
            slab = open_slab(self.graph, number, self.part)
            for rank in range(size)[::step]:
                if rank + number * size < slabs.num_slabs:
                    total += self.take_turn(kernel, slab, rank, int(slabs.starts[rank + number * size]))
            del slab  # before the next one is there
        return total

    def take_turn(self, kernel: Callable, slab: Slab, rank: int, begin: int) -> int:
        """Collective. Let one rank assign the rows of its slab, from ``begin`` on, and send their parts to the
        others."""
        team, result = self.graph.slabs.team, None
        if team.rank == rank:
            nodes = StreamNodes(slab.own, self.weights[slab.first : slab.stop], slab.adjacency)
            moves = kernel(nodes, self.loads, slab.part) or 0
            self.part[slab.first : slab.stop] = slab.part[slab.own]
            result = self.part[slab.first : slab.stop], self.loads.loads, moves
        part, loads, moves = team.broadcast(result, rank)
        self.loads.loads[:] = loads
        if slab.rows is not None:
            low, high = np.searchsorted(slab.rows, [begin, begin + len(part)])
            slab.part[low:high] = part[slab.rows[low:high] - begin]
        return moves


def stream(graph: RowGraph, weights: np.ndarray, num_parts: int, rule: str, passes: int) -> np.ndarray:
    """Collective. Assign the rows by a rule, ldg or fennel; returns the part [m] int32 of this rank's rows; weights [m,
    C] int64.

    Every pass except the first uses the parts that the pass before chose for the nodes that are still to come. At last,
    nodes leave the parts that are over LIMIT. The same on any number of ranks.
    """
    total = graph.slabs.team.sum(weights.sum(axis=0))
    if not total.any():
        return np.zeros(len(weights), np.int32)
    weights, capacity = weights[:, total > 0], CAPACITY * total[total > 0] / num_parts
    num_nodes = max(1, int(graph.slabs.starts[-1]))
    # What a part that is filled to its capacity costs a node, in ties: gamma m / n (load / mean) ** (gamma - 1).
    price = GAMMA * graph.total_ties / num_nodes * math.sqrt(CAPACITY)
    loads = PartLoads(np.zeros((num_parts, len(capacity))), capacity, rule, price)
    under_way = NodeStream(graph, np.ascontiguousarray(weights), np.full(len(weights), -1, np.int32), loads)
    for _ in range(passes):
        loads.loads[:] = 0
        under_way.run(native_parts.stream_parts)
    under_way.loads = dataclasses.replace(loads, capacity=LIMIT / CAPACITY * capacity)
    for _ in range(EVENING_PASSES):
        is_even = (loads.loads / under_way.loads.capacity <= 1).all()
        if is_even or under_way.run(native_parts.even_parts, -1) == 0:
            break
    return under_way.part


def ties_of_parts(graph: RowGraph, part: np.ndarray, num_parts: int) -> np.ndarray:
    """Collective. Add up the weight [P, P] of the ties between parts; part [m] of this rank's rows."""
    ties = np.zeros((num_parts, num_parts), np.int64)
    for number in range(graph.slabs.num_rounds):
        slab = open_slab(graph, number, part)
        indptr, neighbor, tie = slab.adjacency
        own = np.repeat(slab.part[slab.own], np.diff(indptr))
        ties += part_ties(own, slab.part[neighbor], tie, num_parts)
        del slab, indptr, neighbor, tie, own  # before the next one is there
    return graph.slabs.team.sum(ties)
