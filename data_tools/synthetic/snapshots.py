"""A seeded snapshot graph with links that come and go, and a number of every node that spreads along them.

Nodes lie on a ring of communities; a link, once there, stays for a while. target of the next snapshot: partly a node's
own, partly its neighbors' mean, and noise: whoever looks at neighbors can tell more of it.
"""

from __future__ import annotations

import itertools
import os

import numpy as np

from data_tools.snapshots.graph import SnapshotGraph, write_snapshots
from data_tools.synthetic.tables import ID_START, ID_STEP, random_stream

DEGREE, STAY = 4, 8.0  # links of a node at a time; snapshots that a link stays, on average
OWN, NEIGHBORS, NOISE = 0.35, 0.6, 0.3
NEAR = 6  # links reach so far along the ring, mostly
FAR = 0.1  # links to any node
STRUCTURE, VALUES = 0, 1  # numbers of the random streams


def draw_links(num_nodes: int, num_snapshots: int, seed: int) -> tuple[np.ndarray, ...]:
    """Draw src, dst, first and last of the links, each in both directions."""
    rng = random_stream(seed, STRUCTURE)
    count = max(1, int(num_nodes * DEGREE / 2 * (num_snapshots + STAY) / STAY))
    first = rng.integers(-int(STAY), num_snapshots, count)
    last = np.minimum(first + rng.geometric(1 / STAY, count) - 1, num_snapshots - 1)
    src = rng.integers(0, num_nodes, count)
    step = rng.integers(1, NEAR + 1, count)
    far = rng.random(count) < FAR
    dst = np.where(far, rng.integers(0, num_nodes, count), (src + step) % num_nodes)
    valid = (last >= 0) & (src != dst)
    src, dst, first, last = (column[valid] for column in (src, dst, np.maximum(first, 0), last))
    return np.r_[src, dst], np.r_[dst, src], np.r_[first, first], np.r_[last, last]


def spread(graph: SnapshotGraph, seed: int) -> np.ndarray:
    """Compute the numbers of the nodes [N, S] float32."""
    rng = random_stream(seed, VALUES)
    values = np.empty((graph.num_nodes, graph.num_snapshots))
    values[:, 0] = rng.standard_normal(graph.num_nodes)
    by_first = np.argsort(graph.first, kind="stable")
    begins = np.searchsorted(graph.first[by_first], np.arange(graph.num_snapshots + 1))
    there = by_first[:0]
    assert graph.last is not None
    for number, (begin, end) in enumerate(itertools.pairwise(begins[:-1])):
        stayed = there[graph.last[there] >= number]
        there = np.sort(np.concatenate([stayed, by_first[begin:end]]))
        src, dst = graph.src[there], graph.dst[there]
        degree = np.bincount(dst, minlength=graph.num_nodes)
        around = np.bincount(dst, values[src, number], graph.num_nodes) / np.maximum(degree, 1)
        noise = NOISE * rng.standard_normal(graph.num_nodes)
        values[:, number + 1] = OWN * values[:, number] + NEIGHBORS * around + noise
    return values.astype(np.float32)


def synthesize_snapshots(path: str | os.PathLike, num_nodes: int, num_snapshots: int, seed: int) -> str:
    """Write a snapshot graph file with column ``target`` of every snapshot; returns a line on it. ``id`` of row r is
    1000 + 3 r. Raises ValueError for sizes that cannot be."""
    if num_nodes < 2 or num_snapshots < 1 or seed < 0:
        raise ValueError(f"nodes={num_nodes}, snapshots={num_snapshots}, seed={seed}: at least 2, 1 and 0 are needed")
    src, dst, first, last = draw_links(num_nodes, num_snapshots, seed)
    graph = SnapshotGraph(num_nodes, num_snapshots, src, dst, first, last)
    graph.id = ID_START + ID_STEP * np.arange(num_nodes)
    graph.series["target"] = spread(graph, seed)
    name = f"synthetic snapshots nodes={num_nodes} snapshots={num_snapshots} seed={seed}"
    return write_snapshots(path, graph, [name], name)
