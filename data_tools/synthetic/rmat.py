"""A seeded static graph (node, to, node) by the recursive matrix model: Chakrabarti, Zhan and Faloutsos, "R-MAT: A
recursive model for graph mining", 2004.

A link falls into one of the four quarters of the adjacency matrix with probabilities a, b, c, d, then into a quarter of
that, and so on. The places in the matrix are numbered anew, so that row ids tell nothing; a node's class is the stretch
of the matrix that it comes from. Drawn in blocks as `data_tools.synthetic.static`, and in as little memory.
"""

from __future__ import annotations

import json
import math
import os

import h5py
import numpy as np

from data_tools.synthetic.static import LINK_BLOCK, LINKS, SIGNAL, TABLES, blocks, write_node_columns
from data_tools.synthetic.tables import random_stream, write_nodes
from hpcgnn.graph import files

QUARTERS = (0.57, 0.19, 0.19, 0.05)  # a, b, c, d as in Graph500
FACTOR = 0x9E3779B97F4A7C15  # odd: multiplying by it permutes the numbers below a power of two


def place_to_row(place: np.ndarray, levels: int) -> np.ndarray:
    """Row ids [n] of the nodes at some places of the matrix, both int64 below 2 ** levels: a permutation."""
    mask, shift = np.uint64((1 << levels) - 1), np.uint64((levels + 1) // 2)
    mixed = place.astype(np.uint64) * np.uint64(FACTOR) & mask
    return ((mixed ^ (mixed >> shift)) * np.uint64(FACTOR) & mask).astype(np.int64)


def row_to_place(row: np.ndarray, levels: int) -> np.ndarray:
    """The inverse of place_to_row."""
    mask, shift = np.uint64((1 << levels) - 1), np.uint64((levels + 1) // 2)
    inverse = np.uint64(pow(FACTOR, -1, 1 << 64))
    mixed = row.astype(np.uint64) * inverse & mask
    return ((mixed ^ (mixed >> shift)) * inverse & mask).astype(np.int64)


def draw_places(count: int, levels: int, quarters: tuple[float, ...], rng: np.random.Generator) -> np.ndarray:
    """Places [2, count] int64 of both ends of links."""
    ends = np.zeros((2, count), np.int64)
    first, second, third = np.cumsum(quarters)[:3]
    for _ in range(levels):
        uniform = rng.random(count, dtype=np.float32)
        low = uniform >= second  # c or d: the lower half
        ends[0] = 2 * ends[0] + low
        ends[1] = 2 * ends[1] + np.where(low, uniform >= third, uniform >= first)
    return ends


def write_links(group: h5py.Group, num_edges: int, levels: int, quarters: tuple[float, ...], seed: int) -> None:
    """Draw and write the links, each in both directions, one after the other; none joins a node to itself."""
    src, dst = (files.create_column(group, name, num_edges, (), np.int64) for name in ("src", "dst"))
    for block, (start, stop) in enumerate(blocks(num_edges // 2, LINK_BLOCK)):
        first, second = draw_places(stop - start, levels, quarters, random_stream(seed, LINKS + block))
        second = np.where(second == first, second ^ 1, second)
        first, second = place_to_row(first, levels), place_to_row(second, levels)
        src[2 * start : 2 * stop] = np.stack([first, second], axis=1).ravel()
        dst[2 * start : 2 * stop] = np.stack([second, first], axis=1).ravel()


def check_sizes(num_nodes: int, num_edges: int, quarters: tuple[float, ...], others: tuple[int, ...]) -> None:
    """ValueError for sizes and probabilities that cannot be."""
    if num_nodes < 2 or num_nodes & (num_nodes - 1) or min(num_edges, *others) < 0 or num_edges % 2:
        raise ValueError(
            f"nodes={num_nodes}, edges={num_edges}: an R-MAT graph has a power of two of nodes (2, 4, 8, ...), an even "
            "number of edges (both directions count) and at least 0 of everything else"
        )
    if len(quarters) != 4 or min(quarters) < 0 or not math.isclose(sum(quarters), 1, abs_tol=1e-6):
        raise ValueError(f"quarters={','.join(map(str, quarters))}: expected four probabilities a,b,c,d that sum to 1")


def synthesize_rmat(
    path: str | os.PathLike,
    num_nodes: int,
    num_edges: int,
    seed: int,
    width: int = 100,
    num_classes: int = 47,
    quarters: tuple[float, ...] = QUARTERS,
) -> None:
    """Write a static graph file: node type node (id, feat, label, split), relation node.to.node in both directions.

    num_nodes: a power of two; ``num_edges`` counts both directions and is even; ``id`` of row r is 1000 + 3 r; links
    may repeat. Raises ValueError for sizes and probabilities that cannot be.
    """
    check_sizes(num_nodes, num_edges, quarters, (width, seed, num_classes - 1))
    levels = num_nodes.bit_length() - 1
    centre = SIGNAL * random_stream(seed, TABLES).standard_normal((num_classes, width), dtype=np.float32)
    given = f"nodes={num_nodes} edges={num_edges} seed={seed} features={width} classes={num_classes}"
    sources = [f"synthetic rmat {given} quarters={','.join(map(str, quarters))}"]
    with files.writing(path, files.GRAPH, kind="static", sources=json.dumps(sources)) as file:
        labels = row_to_place(np.arange(num_nodes), levels) * num_classes >> levels
        write_node_columns(write_nodes(file, "node", 0, num_nodes), labels, centre, seed)
        group = file.create_group("edges/" + files.relation_name("node", "to", "node"))
        group.attrs["num_edges"], group.attrs["relation_id"] = num_edges, 0
        write_links(group, num_edges, levels, quarters, seed)
