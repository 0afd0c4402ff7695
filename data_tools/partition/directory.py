"""Values of nodes that lie in blocks on the ranks, to be looked up by any rank.

N nodes of all types numbered together, R ranks; rank r keeps the values of block r.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_tools.team import Team
from hpcgnn.graph.book import BlockOwnership


@dataclass(frozen=True, slots=True)
class Directory:
    """values [n, ...] of this rank's block of the nodes."""

    team: Team
    blocks: BlockOwnership
    values: np.ndarray

    @property
    def first(self) -> int:
        """The first node of this rank's block."""
        return int(self.blocks.starts[self.team.rank])

    def lookup(self, nodes: np.ndarray) -> np.ndarray:
        """Collective. Values [k, ...] of nodes [k] of any rank."""
        wanted, place = np.unique(nodes, return_inverse=True)
        counts = np.diff(np.searchsorted(wanted, self.blocks.starts))
        asked, num_asked = self.team.exchange(wanted, counts)
        answers, _ = self.team.exchange(self.values[asked - self.first], num_asked)
        return answers[place]


def add_up(team: Team, blocks: BlockOwnership, nodes: np.ndarray, amounts: np.ndarray, totals: np.ndarray) -> None:
    """Collective. Add amounts [k, C] of nodes [k] to totals [n, C] of the blocks they are in, in place."""
    order = np.argsort(nodes, kind="stable")
    distinct, first = np.unique(nodes[order], return_index=True)
    sums = np.add.reduceat(amounts[order], first, axis=0) if len(first) else amounts[:0]
    counts = np.diff(np.searchsorted(distinct, blocks.starts))
    here, _ = team.exchange(distinct, counts)
    added, _ = team.exchange(sums, counts)
    np.add.at(totals, here - blocks.starts[team.rank], added)
