"""Moments of columns are those of NumPy over the rows of all ranks, without missing numbers; constants have 1."""

from __future__ import annotations

import numpy as np

from hpcgnn.comm.world import CommConfig, World
from hpcgnn.task.moments import moments


def test_moments_are_those_of_all_ranks_rows(comm):
    rng = np.random.default_rng(3)
    rows = rng.normal(1e6, 2.0, (90, 3))
    rows[rng.random((90, 3)) < 0.2] = np.nan
    rows[:, 2] = 0.1  # whose sums are rounded
    own = np.array_split(rows, comm.size)[comm.rank]
    world = World(CommConfig(device="cpu", threads=1, watchdog_seconds=0), comm)
    mean, deviation = moments(lambda: np.array_split(own, 4), 3, world)
    world.close()
    np.testing.assert_allclose(mean, np.nanmean(rows, axis=0), rtol=1e-12)
    np.testing.assert_allclose(deviation[:2], np.nanstd(rows[:, :2], axis=0), rtol=1e-9)
    assert deviation[2] == 1
