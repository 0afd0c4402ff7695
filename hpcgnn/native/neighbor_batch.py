"""Static neighbor sampling of a whole batch, or of a hop of many relations, in one call, on the CPU. n rows, m entries.

NumPy only; all of it releases the GIL.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from hpcgnn.native.build import _native
from hpcgnn.native.neighbors import MODES, checked_draws, checked_fanouts
from hpcgnn.native.random import Random
from hpcgnn.native.relabel import Relabel


def sample_layers(
    indptr, src, seeds, identity, fanouts, random: Random, relabel: Relabel, *, mode="uniform", weight=None,
    with_positions=False, threads=1,
):  # fmt: skip
    """A whole batch in one call: per hop (offsets [F + 1] int64, source [E] int32, positions [E] int64 or None).

    One node type, one relation, all of it here: indptr [n + 1], src [m], identity [n] int64, ``relabel`` of n nodes.
    The frontier of a hop, F nodes, is all unique nodes so far, the distinct seeds first. source is the place of each
    neighbor among the unique nodes after the hop, in the end ``relabel.unique``. Equal, bit for bit, to
    ``sample_neighbors`` with ``random.hop`` one more each hop, followed by ``relabel.add(src[positions])``; for mode
    and weight see there. Threads with a Relabel each may sample a batch each.
    """
    fanouts = [checked_draws(fanout, mode, weight, len(src))[0] for fanout in fanouts]
    if fanouts:
        replace(random, hop=random.hop + len(fanouts) - 1)  # refuses more hops than the counter has room for
    drawn_from = (indptr, src, identity, weight, MODES.get(mode, 0), seeds, fanouts, with_positions, random.native())
    return _native.sample_layers(*drawn_from, relabel._native, threads)


def find_pairs(pairs, nodes, fanouts: list[int], bounds=None):
    """Find the pairs of a relation and a node that has such edges, for nodes [N] int64 in G groups.

    pairs: (first [n + 1], list [P], relation [P]) int64, where node i has the pairs first[i] to first[i + 1], in order
    of relation. fanouts: by relation; pairs of relations with fanout 0 are left out. bounds [G + 1] int64: of the
    groups among the nodes; None: one group. Returns list [Q] int64, place [Q] int64 among the nodes, and relation [Q]
    int32, in order of group, then relation, then place. The work is that of nodes and pairs, and of all relations once
    for a group with nodes. Raises ValueError for a node or relation that does not exist.
    """
    return _native.find_pairs(*pairs, nodes, _one_group(nodes, bounds), np.array(fanouts, np.int32))


def _one_group(nodes, bounds):
    return np.array([0, len(nodes)]) if bounds is None else bounds


@dataclass(frozen=True, slots=True)
class DrawnFrom:
    """In-edge lists that draws are made from: indptr, identity, weight and source_identity as `sample_neighbors` takes
    them. source [m] int64: what ``source`` of the draws has; None: they have none. lost [x] int64: positions of entries
    that are not drawn, increasing."""

    indptr: np.ndarray
    identity: np.ndarray
    weight: np.ndarray | None = None
    source_identity: np.ndarray | None = None
    source: np.ndarray | None = None
    lost: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def arguments(
        self, fanout: int | list[int], mode: str, random: Random, with_positions: bool, threads: int
    ) -> tuple:
        """Return what the kernels take. Raises ValueError as `sample_neighbors`."""
        fanouts, kernel_mode = checked_fanouts(
            fanout, mode, self.weight, self.source_identity, int(self.indptr[-1])
        )  # fmt: skip
        arrays = self.identity, self.source_identity, self.source, self.lost
        return (self.indptr, self.weight, kernel_mode, *arrays, with_positions, random.native(), threads, fanouts)


def sample_lists(
    drawn_from: DrawnFrom, lists, fanouts: list[int], random: Random, *, relation=None, mode="uniform",
    with_positions=True, threads=1,
):  # fmt: skip
    """Draw from the rows with the numbers ``lists`` [N]; relation [N] int32: of each, or None for one relation.

    Returns offsets [N + 1] int64, positions [E] int64 or None, and source [E] int64 at these positions or None. The
    same draws as ``sample_neighbors`` makes in rows that lack the lost entries. fanouts: by relation.
    """
    fanout = fanouts[0] if relation is None else fanouts
    return _native.sample_lists(
        *drawn_from.arguments(fanout, mode, random, with_positions, threads), lists, relation
    )  # fmt: skip


def sample_pairs(
    drawn_from: DrawnFrom, pairs, nodes, fanouts: list[int], random: Random, *, bounds=None, mode="uniform",
    with_positions=True, threads=1,
):  # fmt: skip
    """Find the pairs of nodes as ``find_pairs``, and draw from their lists as ``sample_lists``.

    Returns ((place, relation), (offsets, positions, source)) without the pairs of which nothing is drawn.
    """
    arguments = drawn_from.arguments(fanouts, mode, random, with_positions, threads)
    (_, *found), drawn = _native.sample_pairs(*arguments, *pairs, nodes, _one_group(nodes, bounds))
    return found, drawn
