"""Nodes in blocks on the ranks of a team: who has which, and sums and values that go from one rank to another. Sorted
keys, runs of rows and hashes, which all of this is made of, are here too.

N nodes of all types numbered together, R ranks, n nodes of a rank's block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_tools.source.segments import mix
from data_tools.team import Team
from hpcgnn.graph.book import BlockOwnership


@dataclass(frozen=True, slots=True)
class NodeBlocks:
    """Which rank has which nodes: rank r has starts[r] .. starts[r + 1] - 1."""

    team: Team
    starts: np.ndarray  # [R + 1] int64

    @classmethod
    def even(cls, team: Team, num_nodes: int) -> NodeBlocks:
        """Make blocks of nearly equal length."""
        return cls(team, BlockOwnership.even(num_nodes, team.size).starts)

    @classmethod
    def on_rank_0(cls, team: Team, num_nodes: int) -> NodeBlocks:
        """Put all nodes on rank 0."""
        return cls(team, np.r_[0, np.full(team.size, num_nodes)])

    @property
    def own(self) -> range:
        """The nodes of this rank."""
        return range(int(self.starts[self.team.rank]), int(self.starts[self.team.rank + 1]))

    def rank_of(self, nodes: np.ndarray) -> np.ndarray:
        """Find the rank [k] that has each node."""
        return np.searchsorted(self.starts, nodes, side="right") - 1

    def lookup(self, values: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Collective. Look up the values [k, ...] of nodes [k] of any rank; values [n, ...] of this rank's nodes."""
        if self.team.size == 1:
            return values[nodes]
        distinct, place = np.unique(nodes, return_inverse=True)
        counts = np.diff(np.searchsorted(distinct, self.starts))
        requested, num_requested = self.team.exchange(distinct, counts)
        return self.team.exchange(values[requested - self.own.start], num_requested)[0][place]

    def add_up(self, nodes: np.ndarray, amounts: np.ndarray | int, totals: np.ndarray) -> None:
        """Collective. Add amounts [k], or one number, of nodes [k] of any rank to the totals [n] of their ranks, in
        place."""
        if self.team.size == 1:
            np.add.at(totals, nodes, amounts)
            return
        nodes, sums = add_duplicates(nodes, np.broadcast_to(amounts, len(nodes)))
        counts = np.diff(np.searchsorted(nodes, self.starts))
        received, _ = self.team.exchange(nodes, counts)
        np.add.at(totals, received - self.own.start, self.team.exchange(sums, counts)[0])

    def deal(self, values: np.ndarray, to: NodeBlocks) -> np.ndarray:
        """Collective. Exchange values [n, ...] of this rank's nodes for the values of the nodes that it has in other
        blocks of the same nodes."""
        cuts = np.clip(to.starts, self.own.start, self.own.stop)
        return self.team.exchange(values, np.diff(cuts))[0]


def distinct(keys: np.ndarray) -> np.ndarray:
    """Sort keys [n] in place, and return each once."""
    keys.sort()  # numpy.unique hashes integers that it need not count, which takes ten times longer
    return keys[np.r_[True, keys[1:] != keys[:-1]][: len(keys)]]


def add_duplicates(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort keys [n] and add up the counts [n] of equal ones."""
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]][: len(keys)])
    return keys[first], (np.add.reduceat(counts, first) if len(first) else counts)


def run_starts(indptr: np.ndarray, limit: int) -> np.ndarray:
    """Find the first row of every run of a CSR with indptr [N + 1], and the end N: [B + 1] int64. A run has at most
    ``limit`` entries, or is one row."""
    starts, num_rows = [0], len(indptr) - 1
    while starts[-1] < num_rows:
        stop = int(np.searchsorted(indptr, indptr[starts[-1]] + limit, side="right")) - 1
        starts.append(min(max(stop, starts[-1] + 1), num_rows))
    return np.array(starts, np.int64)


def splitmix64(values: np.ndarray) -> np.ndarray:
    """Mix uint64 values [n] by the splitmix64 finaliser (Steele, Lea and Flood, 2014)."""
    return mix(values + np.uint64(0x9E3779B97F4A7C15))
