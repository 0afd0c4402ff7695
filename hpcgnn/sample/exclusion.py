"""Edges that a step must not see: sampling from lists without them.

T nodes with their lists, m edges, x edges left out of a relation.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np

from hpcgnn.native import Random, Stream
from hpcgnn.sample.permutation import permute_back


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

    Which places of the pool are a step's seeds the epoch's permutation tells, run backwards; every rank looks for these
    among its own in-edges, so nothing is sent.
    """

    def __init__(
        self, edges: dict[int, tuple[np.ndarray, np.ndarray]], total: int, batch_size: int,
        stream: Stream = Stream.NEIGHBOR,
    ):  # fmt: skip
        """edges: by relation, positions [x] among this rank's in-edges and the place [x] in the pool, of ``total``
        seeds, of the seed they go with; stream: of the draws that leave them out."""
        self.edges: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for relation, (position, place) in edges.items():
            order = np.lexsort((position, place))
            self.edges[relation] = position[order], place[order]
        self.total, self._batch_size, self._stream = total, batch_size, stream
        self._shuffle: Random | None = None
        self._seeds: tuple[int, np.ndarray] | None = None

    def among(self, edges: dict[int, tuple[np.ndarray, np.ndarray]]) -> Exclusion:
        """The same seeds in other lists: edges as in ``__init__``, in order of place, then position."""
        other = copy.copy(self)
        other.edges = edges
        return other

    def start_epoch(self, shuffle: Random | None) -> None:
        """The key of the epoch's order of seeds; None: they are not shuffled."""
        self._shuffle, self._seeds = shuffle, None

    def at(self, relation: int, random: Random) -> np.ndarray:
        """Positions, increasing, among the relation's in-edges at this rank, of a step as the key of its draws names
        it; none in other streams."""
        if random.stream != self._stream or relation not in self.edges:
            return np.empty(0, np.int64)
        position, place = self.edges[relation]
        seeds = self._seeds_of(random.step)
        first, last = (np.searchsorted(place, seeds, side=side) for side in ("left", "right"))
        count = last - first
        index = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())
        return np.unique(position[index])

    def _seeds_of(self, step: int) -> np.ndarray:
        """Places, increasing, of a step's seeds; those of the last step asked for are kept."""
        known = self._seeds
        if known is None or known[0] != step:
            first = step * self._batch_size
            places = np.arange(first, min(first + self._batch_size, self.total))
            if self._shuffle is not None:
                places = np.sort(permute_back(places, self.total, self._shuffle))
            self._seeds = known = step, places
        return known[1]


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
