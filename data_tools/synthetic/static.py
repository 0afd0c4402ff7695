"""A seeded static graph (node, to, node) with a power law of degrees, and labels worth learning.

Every node has a class and a weight (Zipf); a link chooses both ends by weight, mostly within one class. Features are
the center of the class with enough noise that neighbors help. The graph is drawn in blocks, each with its own random
stream, so memory is bounded by a block and a few numbers per node. The result depends on the arguments alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import h5py
import numpy as np

from data_tools.source.rewrite import create_table
from data_tools.synthetic.tables import draw_from, random_stream, write_nodes, zipf_cdf
from hpcgnn.graph import files

# Nodes and links are drawn in blocks of these sizes: part of the definition of the graph.
NODE_BLOCK, LINK_BLOCK = 1 << 14, 1 << 18
EXPONENT, SHIFT = 0.7, 10.0  # weight of rank r: (r + SHIFT) ** -EXPONENT, which makes degrees fall with exponent 2.4
SAME_CLASS = 0.6  # links that stay in the class of their source for sure
SIGNAL = 0.12  # standard deviation of a class's center, where that of the noise is 1
FRACTIONS = (0.1, 0.05, 0.85)  # train, val, test
TABLES, NODES, LINKS, EDGES = 0, 1 << 40, 2 << 40, 3 << 40  # numbers of the random streams


@dataclass(frozen=True, slots=True)
class Population:
    """The tables behind the graph (N nodes, C classes, D width)."""

    label: np.ndarray  # [N] int64
    order: np.ndarray  # [N] int64, nodes by class
    cumulative: np.ndarray  # [N] float64, of the weights in that order, ending in 1
    start: np.ndarray  # [C + 1] int64 into order
    center: np.ndarray  # [C, D] float32


def make_population(num_nodes: int, num_classes: int, width: int, seed: int) -> Population:
    """Draw the tables. Classes differ in size by up to a factor of four."""
    rng = random_stream(seed, TABLES)
    share = np.cumsum(rng.uniform(1, 4, num_classes))
    label = draw_from(share / share[-1], rng.random(num_nodes)).astype(np.int64)
    order = np.argsort(label, kind="stable")
    cumulative = zipf_cdf(num_nodes, EXPONENT, SHIFT, rng)
    center = SIGNAL * rng.standard_normal((num_classes, width), dtype=np.float32)
    start = np.searchsorted(label[order], np.arange(num_classes + 1))
    return Population(label, order, cumulative, start, center)


def draw_links(population: Population, seed: int, count: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw both ends [count] of the links of a block; no link joins a node to itself. Links may repeat."""
    rng = random_stream(seed, LINKS + block)
    low = np.concatenate([[0.0], population.cumulative])
    first = draw_from(population.cumulative, rng.random(count))
    kind = population.label[population.order[first]]
    inside = rng.random(count) < SAME_CLASS
    bottom = np.where(inside, low[population.start[kind]], 0.0)
    top = np.where(inside, low[population.start[kind + 1]], 1.0)
    second = draw_from(population.cumulative, bottom + (top - bottom) * rng.random(count))
    second = np.where(second == first, (second + 1) % len(population.order), second)
    return population.order[first], population.order[second]


def write_node_columns(group: h5py.Group, labels: np.ndarray, center: np.ndarray, seed: int) -> None:
    """Draw and write features, labels [N] and the split; center [C, D] of the features of a class."""
    num_nodes, width = len(labels), center.shape[1]
    feat = files.create_column(group, "feat", num_nodes, (width,), np.float32) if width else None
    label = files.create_column(group, "label", num_nodes, (), np.int64)
    split = files.create_column(group, "split", num_nodes, (), np.int8)
    for block, (start, stop) in enumerate(files.slabs(num_nodes, 1, NODE_BLOCK)):
        rng = random_stream(seed, NODES + block)
        label[start:stop] = labels[start:stop]
        split[start:stop] = draw_from(np.cumsum(FRACTIONS), rng.random(stop - start))
        if feat is not None:
            noise = rng.standard_normal((stop - start, width), dtype=np.float32)
            feat[start:stop] = center[labels[start:stop]] + noise


def write_links(file: h5py.File, num_edges: int, draw: Callable[[int, int], tuple[np.ndarray, ...]]) -> h5py.Group:
    """Draw and write the relation node.to.node, every link in both directions, one after the other, and return it;
    ``draw(count, block)`` gives both ends [count] of the links of a block."""
    group = create_table(file, "edges", files.relation_name("node", "to", "node"), num_edges, 0)
    src, dst = (files.create_column(group, name, num_edges, (), np.int64) for name in ("src", "dst"))
    for block, (start, stop) in enumerate(files.slabs(num_edges // 2, 1, LINK_BLOCK)):
        first, second = draw(stop - start, block)
        src[2 * start : 2 * stop] = np.stack([first, second], axis=1).ravel()
        dst[2 * start : 2 * stop] = np.stack([second, first], axis=1).ravel()
    return group


def write_edge_columns(group: h5py.Group, num_edges: int, width: int, weights: bool, seed: int) -> None:
    """Draw and write what both directions of a link have: features of a width, and weights from 0.5 to 2."""
    feat = files.create_column(group, "feat", num_edges, (width,), np.float32) if width else None
    weight = files.create_column(group, "weight", num_edges, (), np.float32) if weights else None
    for block, (start, stop) in enumerate(files.slabs(num_edges // 2, 1, LINK_BLOCK)):
        rng, count = random_stream(seed, EDGES + block), stop - start
        drawn = rng.uniform(0.5, 2, count).astype(np.float32)  # also without a column: the features are the same then
        if weight is not None:
            weight[2 * start : 2 * stop] = drawn.repeat(2)
        if feat is not None:
            feat[2 * start : 2 * stop] = rng.standard_normal((count, width), dtype=np.float32).repeat(2, axis=0)


def synthesize_static(
    path: str | os.PathLike, num_nodes: int, num_edges: int, seed: int, width: int = 100, num_classes: int = 47,
    edge_width: int = 0, weights: bool = False,
) -> None:  # fmt: skip
    """Write a static graph file: node type node (id, feat, label, split), relation node.to.node in both directions; its
    edges have features of ``edge_width`` and, if asked for, a weight, neither of which tells anything of the labels.

    ``num_edges`` counts both directions and is even; ``id`` of row r is 1000 + 3 r. Raises ValueError for sizes that
    cannot be.
    """
    if num_nodes < 2 or num_classes < 1 or min(num_edges, width, edge_width, seed) < 0 or num_edges % 2:
        raise ValueError(
            f"nodes={num_nodes}, edges={num_edges}, features={width}, edge_features={edge_width}, "
            f"classes={num_classes}, seed={seed}: at least two nodes and one class are needed, edges must be even "
            "(both directions count), the others at least 0"
        )
    population = make_population(num_nodes, num_classes, width, seed)
    arguments = f"nodes={num_nodes} edges={num_edges} seed={seed} features={width} classes={num_classes}"
    if edge_width or weights:
        arguments += f" edge_features={edge_width} weights={weights}"
    with files.writing(path, files.GRAPH, kind="static", sources=json.dumps([f"synthetic static {arguments}"])) as file:
        write_node_columns(write_nodes(file, "node", 0, num_nodes), population.label, population.center, seed)
        edges = write_links(file, num_edges, partial(draw_links, population, seed))
        if edge_width or weights:
            write_edge_columns(edges, num_edges, edge_width, weights, seed)
