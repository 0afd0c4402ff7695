"""Move nodes to the part whose training seeds reach them most likely: the idea of graphlearn-for-pytorch's
FrequencyPartitioner, with bounded loads.

N nodes of all types numbered together, P parts, C constraints, n nodes still to be placed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from data_tools.graph.source import Source
from data_tools.partition.access import access_by_part, learned_relation, seed_nodes
from data_tools.partition.methods.rebalance import TARGET
from data_tools.partition.weights import in_split


def hotness_parts(source: Source, part: np.ndarray, weights: np.ndarray, options: Any) -> np.ndarray:
    """Compute the part per node [N] int32, balanced by weights [N, C]; nodes that seeds lie at stay in the parts [N]
    they are in. ValueError without a split."""
    fixed = in_split(source, "train") if learned_relation(source) is None else seed_nodes(source)
    access = np.empty((options.parts, source.num_nodes), np.float32)
    for index, row in access_by_part(source, part, range(options.parts), options.fanouts, options.batch_size):
        access[index] = row
    return HotPlacement(access, part, fixed, weights).run()


class HotPlacement:
    """Nodes bid for the part that reaches them most likely; a part takes the nodes that would lose most elsewhere,
    until a load is at TARGET of the mean. A refused node bids again.

    access [P, N] float32, home [N] the part of a node before, fixed [N] bool nodes that stay, weights [N, C].
    """

    def __init__(self, access: np.ndarray, home: np.ndarray, fixed: np.ndarray, weights: np.ndarray):
        self.access, self.home, self.weights = access, home, weights[:, weights.sum(axis=0) > 0].astype(np.float64)
        num_parts = len(access)
        self.limit = TARGET * self.weights.sum(axis=0) / num_parts
        self.open = np.ones(num_parts, bool)
        self.part = np.where(fixed, home, -1).astype(np.int32)
        self.loads = np.zeros((num_parts, self.weights.shape[1]))
        np.add.at(self.loads, home[fixed], self.weights[fixed])

    def run(self) -> np.ndarray:
        """Place all nodes; returns the part per node [N] int32."""
        # A few heavy nodes would block what comes after them, so they choose first.
        self.place_one_by_one((self.part < 0) & (self.weights > self.limit / 2).any(axis=1))
        waiting = np.flatnonzero(self.part < 0)
        while len(waiting) and self.open.any():
            favorite, lead = self.favorites(waiting)
            for goal in map(int, np.flatnonzero(self.open)):
                chosen = np.flatnonzero(favorite == goal)
                self.accept(goal, waiting[chosen[np.argsort(-lead[chosen], kind="stable")]])
            waiting = waiting[self.part[waiting] < 0]
        self.place_one_by_one(self.part < 0)
        return self.part

    def favorites(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the open part [n] that reaches each node most likely (its home where none does better), and by how much
        more than any other [n]."""
        best = np.full(len(nodes), -1)
        first, second = np.full(len(nodes), -1.0, np.float32), np.full(len(nodes), -1.0, np.float32)
        for index in np.flatnonzero(self.open):
            probability = self.access[index, nodes]
            better = (probability > first) | ((probability == first) & (self.home[nodes] == index))
            second = np.where(better, first, np.maximum(second, probability))
            best[better], first[better] = index, probability[better]
        return best, first - second

    def accept(self, goal: int, nodes: np.ndarray) -> None:
        """Give part ``goal`` the first of its bidders [n]; if any do not fit, it is closed."""
        added = np.cumsum(self.weights[nodes], axis=0)
        fits = ((self.loads[goal] + added <= self.limit) | (added == 0)).all(axis=1)
        count = int(fits.sum())  # loads only grow, so those that fit come first
        self.part[nodes[:count]] = goal
        if count:
            self.loads[goal] += added[count - 1]
        self.open[goal] = count == len(nodes)

    def place_one_by_one(self, chosen: np.ndarray) -> None:
        """Place nodes (mask [N]) where they are likeliest among the parts with room, else in the lightest part."""
        for node in np.flatnonzero(chosen):
            loads = (self.loads + self.weights[node]) / self.limit
            fits = np.flatnonzero((loads <= 1).all(axis=1))
            order = np.lexsort((fits != self.home[node], -self.access[fits, node]))
            goal = fits[order[0]] if len(fits) else np.argmin(loads.max(axis=1, initial=0))
            self.part[node] = goal
            self.loads[goal] += self.weights[node]
