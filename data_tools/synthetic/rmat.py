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
from functools import partial

import numpy as np

from data_tools.synthetic.static import LINKS, SIGNAL, TABLES, write_links, write_node_columns
from data_tools.synthetic.tables import random_stream, write_nodes
from hpcgnn.graph import files

QUARTERS = (0.57, 0.19, 0.19, 0.05)  # a, b, c, d as in Graph500
FACTOR = 0x9E3779B97F4A7C15  # odd: multiplying by it permutes the numbers below a power of two
INVERSE = pow(FACTOR, -1, 1 << 64)


def permute(numbers: np.ndarray, levels: int, factor: int) -> np.ndarray:
    """Permute int64 numbers [n] below 2 ** levels: FACTOR leads from places of the matrix to row ids, INVERSE back."""
    mask, shift = np.uint64((1 << levels) - 1), np.uint64((levels + 1) // 2)
    mixed = numbers.astype(np.uint64) * np.uint64(factor) & mask
    return ((mixed ^ (mixed >> shift)) * np.uint64(factor) & mask).astype(np.int64)


def draw_places(count: int, levels: int, quarters: tuple[float, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw the places [2, count] int64 of both ends of links."""
    ends = np.zeros((2, count), np.int64)
    first, second, third = np.cumsum(quarters)[:3]
    for _ in range(levels):
        uniform = rng.random(count, dtype=np.float32)
        low = uniform >= second  # c or d: the lower half
        ends[0] = 2 * ends[0] + low
        ends[1] = 2 * ends[1] + np.where(low, uniform >= third, uniform >= first)
    return ends


def draw_links(levels: int, quarters: tuple[float, ...], seed: int, count: int, block: int) -> tuple[np.ndarray, ...]:
    """Draw the links of a block: row ids [count] of both ends; none joins a node to itself."""
    first, second = draw_places(count, levels, quarters, random_stream(seed, LINKS + block))
    second = np.where(second == first, second ^ 1, second)
    return permute(first, levels, FACTOR), permute(second, levels, FACTOR)


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
    least = min(num_edges, width, seed, num_classes - 1)
    if num_nodes < 2 or num_nodes & (num_nodes - 1) or least < 0 or num_edges % 2:
        raise ValueError(
            f"nodes={num_nodes}, edges={num_edges}: an R-MAT graph has a power of two of nodes (2, 4, 8, ...), an even "
            "number of edges (both directions count) and at least 0 of everything else"
        )
    if len(quarters) != 4 or min(quarters) < 0 or not math.isclose(sum(quarters), 1, abs_tol=1e-6):
        raise ValueError(f"quarters={','.join(map(str, quarters))}: expected four probabilities a,b,c,d that sum to 1")
    levels = num_nodes.bit_length() - 1
    center = SIGNAL * random_stream(seed, TABLES).standard_normal((num_classes, width), dtype=np.float32)
    arguments = f"nodes={num_nodes} edges={num_edges} seed={seed} features={width} classes={num_classes}"
    sources = [f"synthetic rmat {arguments} quarters={','.join(map(str, quarters))}"]
    with files.writing(path, files.GRAPH, kind="static", sources=json.dumps(sources)) as file:
        labels = permute(np.arange(num_nodes), levels, INVERSE) * num_classes >> levels
        write_node_columns(write_nodes(file, "node", 0, num_nodes), labels, center, seed)
        write_links(file, num_edges, partial(draw_links, levels, quarters, seed))
