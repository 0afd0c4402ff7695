"""Draws and writes for all synthetic graphs: nodes with ids, random streams, rows by cumulative weights."""

from __future__ import annotations

import h5py
import numpy as np

from data_tools.source.rewrite import create_table
from hpcgnn.graph import files

ID_START, ID_STEP = 1000, 3


def random_stream(seed: int, number: int) -> np.random.Generator:
    """Make the random stream ``number`` of a seed; both are at least 0."""
    return np.random.Generator(np.random.Philox(key=[seed, number]))


def draw_from(cdf: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Draw rows [n] by inverse transform of uniform numbers [n]; cdf: cumulative probabilities."""
    return np.minimum(np.searchsorted(cdf, uniform, side="right"), len(cdf) - 1)


def write_nodes(file: h5py.File, name: str, type_id: int, num_nodes: int) -> h5py.Group:
    """Write one node type; the ids differ from the row ids, so that mixing them up shows."""
    group = create_table(file, "nodes", name, num_nodes, type_id)
    ids = files.create_column(group, "id", num_nodes, (), np.int64)
    for start, stop in files.slabs(num_nodes, 8):
        ids[start:stop] = ID_START + ID_STEP * np.arange(start, stop)
    return group


def zipf_cdf(size: int, exponent: float, shift: float, rng: np.random.Generator) -> np.ndarray:
    """Compute the cumulative probabilities [size] of a Zipf law, (rank + shift) ** -exponent, whose ranks are dealt to
    rows at random."""
    cumulative = np.cumsum(rng.permutation((np.arange(size) + shift) ** -exponent))
    return cumulative / cumulative[-1]
