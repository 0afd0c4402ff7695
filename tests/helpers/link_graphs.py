"""Small static graphs whose edges are split, for tests of link prediction."""

from __future__ import annotations

import numpy as np
from random_graphs import write_graph

SETS = np.array([0, 0, 0, 1, 2, -1], np.int8)


def pair_split(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Sets of edges, the same for all edges between two nodes, whatever the direction."""
    low, high = np.minimum(src, dst), np.maximum(src, dst)
    return SETS[(low * 7 + high * 13 + low * high) % len(SETS)]


def friends(path, num_nodes: int = 60, num_pairs: int = 150, seed: int = 6):
    """One relation stored in both directions, rows shuffled; loops and parallel edges."""
    rng = np.random.default_rng(seed)
    one, other = (rng.integers(0, num_nodes, num_pairs) // (1 + rng.integers(0, 3, num_pairs)) for _ in range(2))
    order = rng.permutation(2 * num_pairs)
    src, dst = np.r_[one, other][order], np.r_[other, one][order]
    feat = rng.standard_normal((num_nodes, 4)).astype(np.float32)
    columns = {"src": src, "dst": dst, "split": pair_split(src, dst)}
    return write_graph(path, {"node": {"feat": feat}}, {("node", "meets", "node"): columns}, "static")


def shop(path, seed: int = 7):
    """Users without features buy items; the same edges lead back in another order, without a split; parallel edges, and
    a relation of items that is no reverse."""
    rng = np.random.default_rng(seed)
    users, items, count = 40, 30, 160
    src, dst = rng.integers(0, users, count), rng.integers(0, items, count) // 2
    order = rng.permutation(count)
    nodes = {
        "user": {"id": np.arange(users)},
        "item": {"feat": rng.standard_normal((items, 3)).astype(np.float32)},
    }
    edges = {
        ("user", "buys", "item"): {"src": src, "dst": dst, "split": pair_split(src, 100 + dst)},
        ("item", "sold_to", "user"): {"src": dst[order], "dst": src[order]},
        ("item", "like", "item"): {"src": rng.integers(0, items, 90), "dst": rng.integers(0, items, 90)},
    }
    return write_graph(path, nodes, edges, "static")


def facts(path, num_nodes: int = 50, num_edges: int = 200, seed: int = 8):
    """Entities without features, edges of four types that are not stored the other way."""
    rng = np.random.default_rng(seed)
    columns = {
        "src": rng.integers(0, num_nodes, num_edges),
        "dst": rng.integers(0, num_nodes, num_edges),
        "rel": rng.integers(0, 4, num_edges),
        "split": rng.choice(SETS, num_edges),
    }
    nodes = {"entity": {"id": np.arange(num_nodes)}}
    return write_graph(path, nodes, {("entity", "fact", "entity"): columns}, "static")
