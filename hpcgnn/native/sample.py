"""Sampling of temporal histories (T-CSR). N roots, K slots."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.native.dispatch import check_index, empty_like, on_cuda, planning_backend
from hpcgnn.native.random import Random

NO_LIMIT = np.iinfo(np.int64).max


def sample_recent(graph, nodes, times, fanout: int, event_limit: int = NO_LIMIT, since=None, threads: int = 1):
    """The newest ``fanout`` history entries strictly before each root's time and of events below ``event_limit``.

    graph: (indptr [n + 1], time [m], event [m]) int64, a T-CSR. nodes, times: [N] int64; since [N] int64: no entry
    before that time either, None: no lower bound. Returns positions [N, fanout] int64, increasing, valid first, padded
    with -1, and count [N] int32.
    """
    positions, count = _sample_buffers(graph, nodes, fanout)
    kernels, execution = planning_backend(nodes, threads)
    kernels.sample_recent(*graph, nodes, times, since, event_limit, positions, count, execution)
    return positions, count


def sample_uniform(
    graph, nodes, times, identity, fanout: int, random: Random, *, replace=False, event_limit=NO_LIMIT, since=None,
    threads=1,
):  # fmt: skip
    """Sample ``fanout`` entries of each history, uniformly; ``identity`` [N] int64 keys the draws of each root."""
    positions, count = _sample_buffers(graph, nodes, fanout)
    kernels, execution = planning_backend(nodes, threads)
    key = random.native()
    roots = (nodes, times, since, identity)
    kernels.sample_uniform(*graph, *roots, event_limit, replace, key, positions, count, execution)
    return positions, count


def decay_keep(positions, count, remote, age, half_life: int, random: Random, identity, threads: int = 1) -> None:
    """Drop sampled neighbors in other parts the likelier, the older they are (boundary decay, StarryGL); in place.

    positions [N, K], count [N] as the samplers return them: survivors move to the front in order. remote [N, K] bool
    or uint8; age [N, K] int64. A remote slot is kept with probability 2^-min(32, age // half_life), drawn by
    ``random``, ``identity`` [N] and its place in the row.
    """
    if half_life < 1:
        raise ValueError(f"half_life must be at least 1, got {half_life}")
    kernels, execution = planning_backend(positions, threads)
    flags = remote.view(torch.uint8 if on_cuda(remote) else np.uint8)
    kernels.decay_keep(flags, age, identity, half_life, random.native(), positions, count, execution)


def temporal_reply(other, time, feature, positions, times, threads: int = 1):
    """The sampled neighbors at positions [N, K] of a history: (other, dt, feature), each [N, K] int64.

    other, time [m] int64, feature [m] int64 or None (then None comes back); times [N] of the roots. dt = the root's
    time - the entry's. Padding (-1) gives -1, 0 and -1.
    """
    if on_cuda(positions):
        check_index("temporal_reply", positions, len(other), least=-1)
    kernels, execution = planning_backend(positions, threads)
    reply = [empty_like(positions, positions.shape, "int64") for _ in range(2)]
    reply.append(None if feature is None else empty_like(positions, positions.shape, "int64"))
    kernels.temporal_reply(other, time, feature, positions, times, *reply, execution)
    return tuple(reply)


def _sample_buffers(graph, nodes, fanout: int):
    if fanout < 1:
        raise ValueError(f"fanout must be at least 1, got {fanout}")
    if on_cuda(nodes):
        check_index("sampling of histories", nodes, len(graph[0]) - 1, least=0)
    return empty_like(nodes, (len(nodes), fanout), "int64"), empty_like(nodes, len(nodes), "int32")
