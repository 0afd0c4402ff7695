"""A seeded static graph with the node types and relations of IGB-Heterogeneous, as the preset igbh makes them.

Nodes of all types have a class, and a weight (Zipf). A link chooses both ends by weight, mostly within one class.
Features are the center of the class with noise; papers have the class as their label. With 100,000 papers, the numbers
of nodes and citations are the ones of IGBH-tiny (feature_fetching.py of github.com/mlcommons/inference, 390a8cb, and
the README of github.com/IllinoisGraphBenchmark/IGB-Datasets); the numbers of the other edges are chosen. The graph is
drawn in blocks, as `data_tools.synthetic.static`, and in as little memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import h5py
import numpy as np

from data_tools.source.rewrite import create_table
from data_tools.source.systems.igbh import CITES, RELATIONS, TYPES
from data_tools.synthetic.static import (
    EXPONENT,
    LINK_BLOCK,
    LINKS,
    NODE_BLOCK,
    NODES,
    SAME_CLASS,
    SHIFT,
    SIGNAL,
    TABLES,
    Population,
)
from data_tools.synthetic.tables import draw_from, random_stream, write_nodes, zipf_cdf
from hpcgnn.graph import files

TINY_NODES = dict(zip(TYPES, (100_000, 357_041, 8_738, 84_220, 8_101, 398), strict=True))
TINY_EDGES = dict(zip(RELATIONS, (447_416, 450_000, 320_000, 700_000, 55_000, 7_000), strict=True))
WIDTH, CLASSES = 1024, 2983
FRACTIONS = (0.6, 0.2, 0.2)  # train, val, test, as IGB's loader has them
TABLE = 1 << 32  # distance of the random streams of two tables


def make_population(num_nodes: int, share: np.ndarray, center: np.ndarray, seed: int, number: int) -> Population:
    """Draw the tables of the node type ``number``; share [C]: cumulative sizes of the classes."""
    rng = random_stream(seed, TABLES + 1 + number)
    label = draw_from(share, rng.random(num_nodes)).astype(np.int64)
    order = np.argsort(label, kind="stable")
    start = np.searchsorted(label[order], np.arange(len(share) + 1))
    return Population(label, order, zipf_cdf(num_nodes, EXPONENT, SHIFT, rng), start, center)


def draw_links(
    source: Population, target: Population, seed: int, number: int, num_links: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Draw the links of the relation ``number`` block by block: both ends [n]. Within one type, no link joins a node to
    itself."""
    low = np.concatenate([[0.0], target.cumulative])
    for block, (start, stop) in enumerate(files.slabs(num_links, 1, LINK_BLOCK)):
        rng, count = random_stream(seed, LINKS + number * TABLE + block), stop - start
        first = source.order[draw_from(source.cumulative, rng.random(count))]
        kind = source.label[first]
        is_inside = (rng.random(count) < SAME_CLASS) & (target.start[kind] < target.start[kind + 1])
        bottom = np.where(is_inside, low[target.start[kind]], 0.0)
        top = np.where(is_inside, low[target.start[kind + 1]], 1.0)
        second = draw_from(target.cumulative, bottom + (top - bottom) * rng.random(count))
        if source is target:
            second = np.where(target.order[second] == first, (second + 1) % len(target.order), second)
        yield first, target.order[second]


def write_type(group: h5py.Group, population: Population, seed: int, number: int) -> None:
    """Draw and write the features of the node type ``number``, and labels and split of the first one, the papers."""
    label, center = population.label, population.center
    num_nodes, width = len(label), center.shape[1]
    if number == 0:
        files.create_column(group, "label", num_nodes, (), np.int64)[:] = label
        split = draw_from(np.cumsum(FRACTIONS), random_stream(seed, TABLES + TABLE).random(num_nodes))
        files.create_column(group, "split", num_nodes, (), np.int8)[:] = split
    if width == 0:
        return
    feat = files.create_column(group, "feat", num_nodes, (width,), np.float32)
    for block, (start, stop) in enumerate(files.slabs(num_nodes, 1, NODE_BLOCK)):
        rng = random_stream(seed, NODES + number * TABLE + block)
        noise = rng.standard_normal((stop - start, width), dtype=np.float32)
        feat[start:stop] = center[label[start:stop]] + noise


def write_relation(file: h5py.File, name: str, blocks: Iterator[tuple[np.ndarray, np.ndarray]], counts) -> None:
    """Write citations in both directions, with a self-loop at every paper; other relations with their reverse. counts:
    links, and papers."""
    num_links, num_papers = counts
    source, relation, target = name.split("__")
    names = [files.relation_name(source, relation, target), files.relation_name(target, f"rev_{relation}", source)]
    ends = []
    for full_name in names[: 1 if name == CITES else 2]:
        num_edges = 2 * num_links + num_papers if name == CITES else num_links
        group = create_table(file, "edges", full_name, num_edges, len(file["edges"]) if "edges" in file else 0)
        ends.append([files.create_column(group, end, num_edges, (), np.int64) for end in ("src", "dst")])
    place = 0
    for first, second in blocks:
        if name == CITES:
            pair = np.stack([first, second], axis=1)
            first, second = pair.ravel(), pair[:, ::-1].ravel()
        for (src, dst), (one, other) in zip(ends, ((first, second), (second, first)), strict=False):
            src[place : place + len(one)], dst[place : place + len(one)] = one, other
        place += len(first)
    for start, stop in files.slabs(num_papers if name == CITES else 0, 1, LINK_BLOCK):
        for end in ends[0]:
            end[place + start : place + stop] = np.arange(start, stop)


def synthesize_igbh(
    path: str | os.PathLike, num_papers: int, seed: int, width: int = WIDTH, num_classes: int = CLASSES
) -> str:
    """Write a static graph file with the schema of IGB-Heterogeneous; returns a text about it. ``id`` of row r is 1000
    + 3 r. Raises ValueError for sizes that cannot be."""
    if num_papers < 2 or num_classes < 1 or min(width, seed) < 0:
        raise ValueError(
            f"papers={num_papers}, features={width}, classes={num_classes}, seed={seed}: at least two papers and one "
            "class are needed, the others are at least 0"
        )
    scale = num_papers / TINY_NODES["paper"]
    num_nodes = {name: max(2, round(scale * count)) for name, count in TINY_NODES.items()}
    num_links = {name: max(1, round(scale * count)) for name, count in TINY_EDGES.items()}
    rng = random_stream(seed, TABLES)
    share = np.cumsum(rng.uniform(1, 4, num_classes))
    center = SIGNAL * rng.standard_normal((num_classes, width), dtype=np.float32)
    populations = {
        name: make_population(count, share / share[-1], center, seed, number)
        for number, (name, count) in enumerate(num_nodes.items())
    }
    arguments = f"papers={num_papers} seed={seed} features={width} classes={num_classes}"
    with files.writing(path, files.GRAPH, kind="static", sources=json.dumps([f"synthetic igbh {arguments}"])) as file:
        for number, (name, population) in enumerate(populations.items()):
            write_type(write_nodes(file, name, number, num_nodes[name]), population, seed, number)
        for number, name in enumerate(RELATIONS):
            source, _, target = name.split("__")
            blocks = draw_links(populations[source], populations[target], seed, number, num_links[name])
            write_relation(file, name, blocks, (num_links[name], num_papers))
        num_edges = sum(int(group.attrs["num_edges"]) for group in file["edges"].values())
    return f"{path}: {sum(num_nodes.values())} nodes, {num_edges} edges, {width} features, {num_classes} classes"
