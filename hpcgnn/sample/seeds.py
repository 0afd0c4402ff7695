"""Seeds of static graphs: which nodes or edges a split has, how an epoch shuffles them, and which rank handles which.

s seeds of this rank, S steps, R ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.graph.spill import exchange_columns, spill
from hpcgnn.native import Random
from hpcgnn.sample.directory import places_of
from hpcgnn.sample.permutation import permute


@dataclass(frozen=True, slots=True)
class SeedPool:
    """A split's seeds at their owners: place [s] among all ``total`` of them in order of row id; columns [s, ...] by
    name, among them the global ids int64 of their nodes."""

    name: str
    place: np.ndarray
    total: int
    columns: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class SeedBatches:
    """The batches of an epoch as this rank handles them: columns [s, ...] by name and position [s] in the epoch, step
    by step (indptr [S + 1]), within a step in order of position; sizes [S]: seeds of all ranks."""

    name: str
    columns: dict[str, np.ndarray]
    position: np.ndarray
    indptr: np.ndarray
    sizes: np.ndarray

    @property
    def num_steps(self) -> int:
        """S, the same on all ranks."""
        return len(self.sizes)

    def at(self, step: int) -> slice:
        """This rank's seeds of a step."""
        return slice(int(self.indptr[step]), int(self.indptr[step + 1]))


def make_pool(
    name: str, keys: np.ndarray, num_keys: int, columns: dict[str, np.ndarray], world: World, channel: Channel
) -> SeedPool:
    """Collective. The pool of seeds with unique keys [s] in [0, num_keys), such as their row ids."""
    place, total = places_of(keys, num_keys, world, channel)
    return SeedPool(name, place, total, columns)


def make_seed_batches(
    pool: SeedPool, batch_size: int, shuffle: Random | None, world: World, channel: Channel, drop_last: bool = False
) -> SeedBatches:
    """Collective. Batches of consecutive places, or of places shuffled by a random key. Seeds go to their owners up to
    ceil(batch / R) a step, the rest where there is room (``spill``)."""
    position = pool.place if shuffle is None else permute(pool.place, pool.total, shuffle)
    edges = np.append(np.arange(0, pool.total, batch_size, dtype=np.int64), pool.total)
    if drop_last and len(edges) > 1 and edges[-1] - edges[-2] < batch_size:
        edges = edges[:-1]
    order = np.argsort(position, kind="stable")
    order = order[position[order] < edges[-1]]
    names, position = list(pool.columns), position[order]
    columns, sizes = [column[order] for column in pool.columns.values()], np.diff(edges)
    if world.size > 1:
        target = spill(position // batch_size, sizes, world)
        *columns, position = exchange_columns([*columns, position], target, channel)
        order = np.argsort(position, kind="stable")
        columns, position = [column[order] for column in columns], position[order]
    indptr = np.searchsorted(position // batch_size, np.arange(len(sizes) + 1))
    return SeedBatches(pool.name, dict(zip(names, columns, strict=True)), position, indptr, sizes)
