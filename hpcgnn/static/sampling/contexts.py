"""Draws blocks in which each seed, or each time of seeds, has neighbors of its own.

A node is in a batch once for each *context* that needs it: the time of a seed, or the seed itself in disjoint batches.
s seeds of this rank, C contexts, U nodes so far of a type, counted once for each of their contexts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hpcgnn import native
from hpcgnn.native import Random
from hpcgnn.static.config import GraphSamplingConfig
from hpcgnn.static.sampling.draw import BlockSampler, Drawn, Groups, Steps
from hpcgnn.static.sampling.neighbors import Sampled
from hpcgnn.static.sampling.seeds import SeedBatches
from hpcgnn.static.sampling.times import NO_LIMIT, TIME, TimedNeighbors

MOST_PAIRS = 1 << 62  # of a context and a node


class ContextSampler(BlockSampler):
    """Draws blocks of pairs of a context and a node. Seeds of the same time share a context, unless ``disjoint``: then
    every seed has a separate one, and with ``apart`` every negative too, which then is a pair of two new nodes."""

    def __init__(
        self, neighbors: TimedNeighbors, config: GraphSamplingConfig, seed: int, disjoint: bool, apart: bool,
        with_degree: bool,
    ):  # fmt: skip
        """with_degree: draws count the in-edges of their nodes, too."""
        super().__init__(neighbors, config, seed)
        self._disjoint, self._apart, self._with_degree = disjoint, apart, with_degree
        self._sizes = np.maximum(1, np.diff(self._base))
        self._contexts, self._numbers = np.empty((0, 1), np.int64), [np.empty(0, np.int64)]
        self._of_edges = np.empty(0, np.int64)  # numbers of the contexts of the edges of a hop

    def _make_relabel(self) -> list[Any]:
        return [native.Relabel(MOST_PAIRS, dense=False) for _ in self._base[1:]]

    def draw(self, steps: Steps, step: int, stride: int = 1) -> Drawn:
        """Collective. Draw the blocks of a step."""
        groups = steps.groups(step)
        self._contexts, self._numbers = self._find_contexts(steps.batches, step, groups)
        drawn = self.draw_groups(groups, steps.epoch, step, steps.training)
        numbers = self._of_nodes()
        degree: Any = ()
        if self._with_degree:
            neighbors: Any = self._neighbors
            degree = neighbors.degrees(drawn.input_ids, [self._contexts[number] for number in numbers])
        return replace(drawn, seed_number=tuple(numbers), degree=degree)

    def _find_contexts(self, batches: SeedBatches, step: int, groups: Groups) -> tuple[np.ndarray, list[np.ndarray]]:
        """Find the contexts [C, W] of a step's seeds, and for the nodes of each group the numbers of their contexts."""
        seeds = batches.at(step)
        position = batches.position[seeds]
        count = len(position)
        times = batches.columns[TIME][seeds] if TIME in batches.columns else np.full(count, NO_LIMIT)
        widths = [len(ids) // max(1, count) for _, ids in groups]
        if not self._disjoint:
            unique, number = np.unique(times, return_inverse=True)
            return unique[:, None], [np.repeat(number, width) for width in widths]
        further = widths[-1] * self._apart
        place = np.concatenate([np.zeros((count, 1), np.int64), 1 + np.tile(np.arange(further), (count, 1))], axis=1)
        key = position[:, None] * (1 + further) + place  # the first column for the seeds, the others for negatives
        rows = np.column_stack([np.repeat(times, 1 + further), key.ravel()]).reshape(*key.shape, 2)
        contexts = np.concatenate([rows[:, 0], rows[:, 1:].reshape(-1, 2)])
        number = np.arange(count)
        own = [np.repeat(number, width) for width in widths]
        return contexts, [*own[:2], *([count + np.arange(count * further)] * len(own[2:]) if further else own[2:])]

    def _of_nodes(self) -> list[np.ndarray]:
        """List the numbers of the contexts of the nodes so far, by type."""
        return [relabel.unique // size for relabel, size in zip(self._relabel, self._sizes, strict=True)]

    def _places(self, groups: Groups) -> list[Any]:
        return [
            self._index(self._relabel[kind].add(self._pairs(kind, number, ids)))
            for (kind, ids), number in zip(groups, self._numbers, strict=True)
        ]

    def _ask(self, frontier: list[Any], fanouts: list[int], random: Random) -> Sampled:
        contexts = [self._contexts[number] for number in self._of_nodes()]
        return self._neighbors.ask(frontier, fanouts, random, contexts)

    def _add(self, sampled: Sampled) -> Any:
        if sampled.relation is None:
            number = self._of_nodes()[self._relations[0].dst_type]
        else:
            number = np.concatenate(self._of_nodes())[sampled.place]
        self._of_edges = np.repeat(number, np.diff(sampled.indptr))
        return super()._add(sampled)

    def _add_of_type(self, kind: int, sampled: Sampled, chosen: Any) -> Any:
        return self._relabel[kind].add(self._pairs(kind, self._of_edges[chosen], sampled.source[chosen]))

    def _pairs(self, kind: int, number: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Number pairs of a context and a node of a type."""
        return number * self._sizes[kind] + (ids - self._base[kind])

    def _unique_ids(self) -> list[Any]:
        return [
            relabel.unique % size + first
            for relabel, size, first in zip(self._relabel, self._sizes, self._base, strict=False)
        ]
