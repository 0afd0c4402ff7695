"""Draws negatives: nodes that take the place of ends of edges, and the table of ways to draw them.

Drawn nodes are a function of the random key, the edges' row ids and the graph, the same on any number of ranks. s edges
of this rank, n of them; k negatives an edge; e ends of an edge that are drawn together, 1 or 2; N nodes of a pool.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.choices import Part
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import World
from hpcgnn.graph.book import Book
from hpcgnn.graph.directory import Directory, NodeDirectory, check_drawn
from hpcgnn.native import Random

TRIES = 16  # draws of a negative that must not be an edge, as many as the key of random numbers counts

Chosen = np.ndarray | slice  # some of the edges
Self = TypeVar("Self", bound="NegativeDraw")


class NegativeDraw(ABC):
    """A way to draw nodes of a pool for edges. Collective to create and to use. Subclasses define ``draw``."""

    redraws = True  # an edge's own end is drawn again by ``draw``; if not, once, evenly among all other nodes

    def __init__(self, pool: NodeDirectory, ends: Callable[[], Directory] | Any = None):
        """pool: the N nodes; ends: makes the list of the replaced ends of all training edges, see ``list_ends``."""
        self.pool = pool

    def over(self: Self, channel: Channel) -> Self:
        """Return a twin for another thread, which communicates over ``channel``."""
        twin = copy.copy(self)
        twin.pool = self.pool.over(channel)
        return twin

    @abstractmethod
    def draw(self, random: Random, rows: np.ndarray, count: int) -> np.ndarray:
        """Collective. Draw places [n, count] int64 in [0, N) for edges by row id [n]: a function of key and rows."""

    def draw_others(self, random: Random, rows: np.ndarray, count: int) -> np.ndarray:
        """Draw places [n, count] int64 that are evenly distributed over all nodes but one, numbered without that one,
        for edges by row id [n]."""
        return native.random_integers(random, rows, count, max(1, self.pool.size - 1))


def draw_negatives(
    draws: Sequence[NegativeDraw], keys: Sequence[Random], rows: np.ndarray, count: int, own: np.ndarray, again: Random,
    is_edge: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:  # fmt: skip
    """Collective. Draw global ids [e, s, count] that take the place of the ends ``own`` [e, s] of edges by row id [s];
    never all own ends of an edge together.

    draws [e]: one for each end, over one pool, which has at least two nodes. keys [e]: their random keys, whose ``hop``
    counts tries; again: key of the draws in place of own ends. is_edge(edges [n], nodes [e, n]): collective, marks the
    drawn nodes that make a known edge, [n] bool. Such nodes are drawn again, but the last of TRIES stays even if it
    makes an edge.
    """
    pool = draws[0].pool

    def places(chosen: Chosen, attempt: int) -> np.ndarray:
        pairs = zip(draws, keys, strict=True)
        return np.stack([draw.draw(replace(key, hop=attempt), rows[chosen], count) for draw, key in pairs])

    def is_refused(edges: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        is_own = (nodes == own[:, edges]).all(axis=0)
        return is_own if is_edge is None else is_own | is_edge(edges, nodes)

    place = places(slice(None), 0)
    drawn = pool.lookup(place)
    if is_edge is not None or any(draw.redraws for draw in draws):
        if _redraw(drawn, lambda edges, attempt: pool.lookup(places(edges, attempt)), is_refused, pool.channel):
            return drawn
        place = places(slice(None), TRIES - 1)  # an own end that is left is of the last try
    row, slot = np.nonzero((drawn == own[:, :, None]).all(axis=0))
    unique, number = np.unique(row, return_inverse=True)
    other = draws[0].draw_others(again, rows[unique], count)[number, slot]
    # Numbered without the own end, so that every other node is as likely as if that had not been there.
    drawn[0, row, slot] = pool.lookup(other + (other >= place[0, row, slot]))
    return drawn


def _redraw(
    drawn: np.ndarray, draw: Callable[[np.ndarray, int], np.ndarray],
    is_refused: Callable[[np.ndarray, np.ndarray], np.ndarray], channel: Channel,
) -> bool:  # fmt: skip
    """Collective. Replace refused nodes among those drawn [e, s, k], at most TRIES - 1 times. Returns whether none is
    left on any rank; False also if the last draws were not looked at."""
    edge, slot = (index.ravel() for index in np.indices(drawn.shape[-2:]))
    for attempt in range(1, TRIES):
        bad = is_refused(edge, drawn[:, edge, slot])
        # A rank with none to draw again goes on as long as any rank has some: draws are collective.
        if channel.counts(np.full(channel.size, bad.sum())).sum() == 0:
            return True
        edge, slot = edge[bad], slot[bad]
        again, place = np.unique(edge, return_inverse=True)
        drawn[:, edge, slot] = draw(again, attempt)[:, place, slot]
    return False


class UniformDraw(NegativeDraw):
    """All nodes of the pool alike."""

    redraws = False

    def draw(self, random: Random, rows: np.ndarray, count: int) -> np.ndarray:
        return native.random_integers(random, rows, count, self.pool.size)


class DegreeDraw(NegativeDraw):
    """A node as often as training edges end there: draws an edge, all alike, and takes its end."""

    def __init__(self, pool: NodeDirectory, ends: Callable[[], Directory]):
        """Raises DistributedError for more edges than can be drawn from."""
        super().__init__(pool, ends)
        self._ends = ends()
        check_drawn("edges whose ends are drawn", self._ends.size, "set task.negative_kind uniform")

    def over(self, channel: Channel) -> DegreeDraw:
        twin = super().over(channel)
        twin._ends = self._ends.over(channel)
        return twin

    def draw(self, random: Random, rows: np.ndarray, count: int) -> np.ndarray:
        edges = native.random_integers(random, rows, count, max(1, self._ends.size))
        return self._ends.rows(edges)[..., 0]


@dataclass(frozen=True)
class NegativePart(Part):
    """A way to draw negatives. make: collective, of the pool and of what lists the ends of training edges in it."""

    make: Callable[[NodeDirectory, Callable[[], Directory]], NegativeDraw]


NEGATIVES = {
    "uniform": NegativePart(UniformDraw, "all nodes with equal probability"),
    "degree": NegativePart(
        DegreeDraw, "nodes in proportion to their training edges at that end (Lerer et al., PyTorch-BigGraph, 2019)"
    ),
}


def list_ends(
    pool: NodeDirectory, rows: np.ndarray, nodes: np.ndarray, num_rows: int, book: Book, flat_row: np.ndarray,
    world: World, channel: Channel,
) -> Directory:  # fmt: skip
    """Collective. List the ends of edges in order of row id, as places [., 1] in the pool, which has all of them.

    rows, nodes [m]: of this rank's edges, row ids below ``num_rows``, and global ids of the ends; flat_row: row ids of
    this rank's nodes.
    """
    unique, inverse = np.unique(nodes, return_inverse=True)
    (flat_rows,) = Route.plan(book, unique, channel).pull(torch.tensor(flat_row))
    places = pool.find(flat_rows.numpy())[inverse]
    return Directory(world, channel, rows, places[:, None], num_rows)
