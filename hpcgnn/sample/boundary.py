"""Boundary node sampling (Wan et al., BNS-GCN, 2022): a training step sees a random share of the ghosts.

g ghosts, m requests for this rank's rows. A ghost is taken or left for all who would see it, by its row id: its owner
and its users know without asking, and the choice is the same on any number of ranks. Messages of those taken count as
much more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.native import EdgeLists, Random, Stream
from hpcgnn.nn.neighborhood import Edges, Neighborhood
from hpcgnn.sample.snapshot_blocks import Block

RESOLUTION = 1 << 24


@dataclass(frozen=True, slots=True)
class Boundary:
    """share of the ghosts that is taken; flat_row [n] row ids of this rank's nodes."""

    share: float
    seed: int
    flat_row: np.ndarray

    def sample(self, block: Block, epoch: int, step: int, number: int) -> Block:
        """The block of a snapshot as one step sees it; collective calls are not needed."""
        random = Random(self.seed, Stream.BOUNDARY, (step << 16) + number, epoch)
        assert block.route is not None
        wanted = self._taken(random, block.ghost_row)
        requested = self._taken(random, self.flat_row[block.route.requests.cpu().numpy()])
        route = block.route.restrict(wanted, requested)
        return Block(self._reduce(block.neighborhood, wanted), route, block.ghost[wanted], block.ghost_row[wanted])

    def _taken(self, random: Random, rows: np.ndarray) -> np.ndarray:
        """Which of the nodes with row ids [k] are taken, bool."""
        return native.random_integers(random, rows, 1, RESOLUTION)[:, 0] < round(self.share * RESOLUTION)

    def _reduce(self, whole: Neighborhood, taken: np.ndarray) -> Neighborhood:
        """Edges from the ghosts taken alone, their weights divided by the share."""
        lists, weight = whole.ghost.lists, whole.ghost.weight
        mask = torch.from_numpy(taken).to(lists.source.device)
        kept = mask[lists.source]
        below = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
        place = (mask.cumsum(0) - 1)[lists.source[kept]]
        if weight is None:
            weight = torch.ones_like(whole.degree[:1]).expand(len(lists.source))
        reduced = EdgeLists(below[lists.indptr], place, int(mask.sum()))
        ghost = Edges(reduced, weight[kept] / self.share, whole.ghost.rows)
        degree, looped = whole.ghost_degree[mask], whole.ghost_looped[mask]
        return replace(whole, ghost=ghost, ghost_degree=degree, ghost_looped=looped, _operators={}, _merged=None)
