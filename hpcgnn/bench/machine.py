"""Measures what a machine gives: its network by exchanges, its memory by a copy."""

from __future__ import annotations

import time

import numpy as np
import torch

from hpcgnn.comm.world import World

# Where one rank can measure no network: a common 100 Gb/s fabric.
ASSUMED = {"latency": 2e-6, "bandwidth": 12.5e9}
SMALL_BYTES, LARGE_BYTES, COPIED_BYTES = 8, 1 << 22, 1 << 26
REPEATS = 20


def measure_network(world: World) -> dict[str, float]:
    """Collective, on two ranks or more. Measure latency and bandwidth of a rank in exchanges of all with all."""
    peers = world.size - 1
    small, large = (_exchange_seconds(world, nbytes) for nbytes in (SMALL_BYTES, LARGE_BYTES))
    return {"latency": small / peers, "bandwidth": peers * LARGE_BYTES / max(large - small, 1e-9)}


def _exchange_seconds(world: World, nbytes: int) -> float:
    channel, counts = world.channel(), np.full(world.size, nbytes, np.int64)
    rows, seconds = torch.zeros((world.size * nbytes, 1), dtype=torch.uint8), []
    for _ in range(REPEATS):
        world.barrier()
        begin = time.perf_counter()
        channel.rows(rows, counts, counts)
        seconds.append(time.perf_counter() - begin)
    channel.close()
    return float(world.reduce_array(np.array([np.median(seconds)]), "max")[0])


def measure_copy() -> float:
    """Measure the bytes per second that a thread copies from memory to memory."""
    rows, out, seconds = np.ones(COPIED_BYTES, np.uint8), np.empty(COPIED_BYTES, np.uint8), []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        out[:] = rows
        seconds.append(time.perf_counter() - begin)
    return COPIED_BYTES / float(np.median(seconds))
