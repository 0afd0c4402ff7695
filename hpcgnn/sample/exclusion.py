"""Edges that a step must not see: sampling from lists without them.

T nodes with their lists, m edges, x edges left out of a relation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.native import Random, Stream
from hpcgnn.sample.permutation import permute


@dataclass(frozen=True, slots=True)
class InLists:
    """What neighbours are drawn from: indptr [T + 1], identity [T] flat row ids of the nodes; by edge weight [m] uint32
    and source_identity [m], or None."""

    indptr: np.ndarray
    identity: np.ndarray
    weight: np.ndarray | None
    source_identity: np.ndarray | None


class Exclusion:
    """The edges that a step of training leaves out: those that are its seeds on any rank, and their reverses.

    Every rank knows for its own in-edges which step of the epoch they are seeds of, so nothing is sent.
    """

    def __init__(self, edges: dict[int, tuple[np.ndarray, np.ndarray]], total: int, batch_size: int):
        """edges: by relation, positions [x] among this rank's in-edges and the place [x] in the pool, of ``total``
        seeds, of the seed they go with."""
        self._edges, self._total, self._batch_size = edges, total, batch_size
        self._by_step: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def start_epoch(self, shuffle: Random) -> None:
        """Order them by the epoch's steps."""
        for relation, (position, place) in self._edges.items():
            step = permute(place, self._total, shuffle) // self._batch_size
            order = np.lexsort((position, step))
            self._by_step[relation] = step[order], position[order]

    def at(self, relation: int, random: Random) -> np.ndarray:
        """Positions, increasing, among the relation's in-edges at this rank, of a step as the key of its draws names
        it; none outside training."""
        if random.stream != Stream.NEIGHBOR or relation not in self._by_step:
            return np.empty(0, np.int64)
        step, position = self._by_step[relation]
        first, last = np.searchsorted(step, (random.step, random.step + 1))
        return np.unique(position[first:last])


def without(lists: InLists, nodes: np.ndarray, lost: np.ndarray) -> tuple[InLists, np.ndarray]:
    """The lists of nodes [T] without the edges at positions ``lost``, and for each of their edges its position in the
    lists it comes from."""
    degree = np.diff(lists.indptr)[nodes]
    begin = np.cumsum(degree) - degree
    position = np.repeat(lists.indptr[nodes] - begin, degree) + np.arange(degree.sum())
    kept = ~np.isin(position, lost)
    indptr = np.concatenate(([0], np.cumsum(kept)))[np.append(begin, len(kept))]
    position = position[kept]
    columns = [None if column is None else column[position] for column in (lists.weight, lists.source_identity)]
    return InLists(indptr, lists.identity[nodes], *columns), position


def splice(touched: np.ndarray, others, those) -> tuple[np.ndarray, np.ndarray]:
    """Two ragged answers, (offsets, values), as one: ``those`` for nodes where touched [N], else ``others``."""
    counts = np.empty(len(touched), np.int64)
    counts[touched], counts[~touched] = np.diff(those[0]), np.diff(others[0])
    values, from_those = np.empty(counts.sum(), np.int64), np.repeat(touched, counts)
    values[from_those], values[~from_those] = those[1], others[1]
    return np.concatenate(([0], np.cumsum(counts))), values
