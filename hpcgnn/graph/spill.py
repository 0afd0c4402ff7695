"""Spills the roots of a step that exceed a rank's share to other ranks, by a rule that all ranks can compute.

S steps, R ranks.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.comm.world import World


def spill_targets(counts: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Apply the rule to counts [S, R] of events by owner, and sizes [S] of the steps.

    Returns capacity [S], surplus_start [S, R] (number of the rank's first surplus event within its step) and room_end
    [S, R] (a surplus event numbered j goes to the first rank whose room_end is above j).
    """
    size = counts.shape[1]
    capacity = -(-sizes // size)
    surplus = np.maximum(counts - capacity[:, None], 0)
    room = np.maximum(capacity[:, None] - counts, 0)
    return capacity, np.cumsum(surplus, axis=1) - surplus, np.cumsum(room, axis=1)


def spill(step: np.ndarray, sizes: np.ndarray, world: World) -> np.ndarray:
    """Collective. Say which rank [n] handles each of this rank's roots, whose steps ``step`` [n] increase: this rank up
    to its capacity, then others by the rule."""
    own_counts = np.bincount(step, minlength=len(sizes)).astype(np.int64)
    capacity, surplus_start, room_end = spill_targets(world.allgather_array(own_counts).T, sizes)
    place = np.arange(len(step)) - (np.cumsum(own_counts) - own_counts)[step]
    surplus = np.flatnonzero(place >= capacity[step])
    at = step[surplus]
    number = surplus_start[at, world.rank] + place[surplus] - capacity[at]
    target = np.full(len(step), world.rank)
    target[surplus] = (room_end[at] <= number[:, None]).sum(axis=1)
    return target
