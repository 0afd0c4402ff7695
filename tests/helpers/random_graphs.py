"""Small random temporal graph files with all that is rare: loops, multi-edges, lone nodes, empty types, relations."""

from __future__ import annotations

import numpy as np

from hpcgnn.graph import files


def write_graph(path, node_columns: dict, edges: dict, kind: str = "temporal"):
    """Write a graph file.

    node_columns: type -> columns, the first one gives num_nodes; edges: (src, rel, dst) -> columns.
    """
    with files.writing(path, files.GRAPH, kind=kind, sources="[]") as file:
        nodes, relations = file.create_group("nodes"), file.create_group("edges")
        for type_id, (name, columns) in enumerate(node_columns.items()):
            group = nodes.create_group(name)
            group.attrs["num_nodes"], group.attrs["type_id"] = len(next(iter(columns.values()))), type_id
            write_columns(group, columns)
        for relation_id, (names, columns) in enumerate(edges.items()):
            group = relations.create_group(files.relation_name(*names))
            group.attrs["num_edges"], group.attrs["relation_id"] = len(columns["src"]), relation_id
            write_columns(group, columns)
    return path


def write_columns(group, columns: dict) -> None:
    """Write the columns of one group."""
    for name, values in columns.items():
        files.create_column(group, name, len(values), values.shape[1:], values.dtype)[:] = values


def random_edges(rng: np.random.Generator, num_src: int, num_dst: int, num_edges: int) -> dict:
    """Columns of a relation: many ties in time, many repeated pairs."""
    num_edges = num_edges if num_src and num_dst else 0
    return {
        "src": rng.integers(0, max(1, num_src), num_edges) // 2,
        "dst": rng.integers(0, max(1, num_dst), num_edges),
        "time": np.sort(rng.integers(0, 20, num_edges)),
        "feat": rng.standard_normal((num_edges, 3)).astype(np.float32),
        "tag": np.array([b"t%d" % value for value in rng.integers(0, 5, num_edges)], "S4"),
    }


def random_graph(path, seed: int, sizes: tuple[int, ...] = (9, 7, 0), num_edges: int = 40):
    """A graph of three types (sizes of a, b and c) and two relations: a.meets.a with self-loops, and a.likes.b."""
    rng = np.random.default_rng(seed)
    nodes = {
        name: {"id": 1000 + 3 * np.arange(size), "feat": rng.standard_normal((size, 2))}
        for name, size in zip("abc", sizes, strict=True)
    }
    edges = {
        ("a", "meets", "a"): random_edges(rng, sizes[0], sizes[0], num_edges),
        ("a", "likes", "b"): random_edges(rng, sizes[0], sizes[1], num_edges // 2),
    }
    return write_graph(path, nodes, edges)


def random_links(path, seed: int, num_edges: int = 200):
    """A static graph of 50 users and 20 items whose edges are to be learned: user.likes.item with a split, its reverse,
    and user.knows.user without one."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 50, num_edges) * rng.integers(0, 50, num_edges) // 50, rng.integers(0, 20, num_edges)
    split = rng.choice(3, num_edges, p=[0.7, 0.1, 0.2]).astype(np.int8)
    nodes = {"user": {"id": np.arange(50)}, "item": {"id": np.arange(20)}}
    edges = {
        ("user", "likes", "item"): {"src": user, "dst": item, "split": split},
        ("item", "liked_by", "user"): {"src": item, "dst": user, "split": split},
        ("user", "knows", "user"): static_edges(rng, 50, 50, 40),
    }
    return write_graph(path, nodes, edges, "static")


def static_edges(rng: np.random.Generator, num_src: int, num_dst: int, num_edges: int) -> dict:
    """Columns of a static relation: repeated edges, and few destinations with many in-edges."""
    num_edges = num_edges if num_src and num_dst else 0
    return {
        "src": rng.integers(0, max(1, num_src), num_edges),
        "dst": (rng.random(num_edges) ** 3 * num_dst).astype(np.int64),
        "weight": rng.integers(1, 9, num_edges).astype(np.uint32),
        "feat": rng.standard_normal((num_edges, 3)).astype(np.float32),
    }


def random_static(path, seed: int, sizes: tuple[int, ...] = (30, 12, 0), num_edges: int = 90):
    """A static graph of three types (sizes of a, b and c) and four relations: a.cites.a with self-loops, a.likes.b,
    b.of.c, and a.shuns.b without edges. Types a and b have a split, c has not."""
    rng = np.random.default_rng(seed)
    nodes = {
        "a": {"feat": rng.standard_normal((sizes[0], 2)), "split": rng.integers(0, 3, sizes[0]).astype(np.int8)},
        "b": {"id": 1000 + 3 * np.arange(sizes[1]), "split": rng.integers(0, 3, sizes[1])},
        "c": {"label": rng.integers(0, 5, sizes[2])},
    }
    edges = {
        ("a", "cites", "a"): static_edges(rng, sizes[0], sizes[0], num_edges),
        ("a", "likes", "b"): static_edges(rng, sizes[0], sizes[1], num_edges // 2),
        ("b", "of", "c"): static_edges(rng, sizes[1], sizes[2], num_edges // 3),
        ("a", "shuns", "b"): static_edges(rng, 0, 0, 0),
    }
    return write_graph(path, nodes, edges, "static")


def grouped(path, num_groups=40, size=50, seed=0, train=0.3):
    """Users and items in groups with few edges between groups; training users are piled up in the first groups."""
    rng = np.random.default_rng(seed)
    num_users, num_items, num_edges = num_groups * size, num_groups * size // 2, num_groups * size * 8
    group = rng.integers(0, num_groups, num_edges)
    other = np.where(rng.random(num_edges) < 0.1, rng.integers(0, num_groups, num_edges), group)
    user, item = rng.integers(0, size, num_edges), rng.integers(0, size // 2, num_edges)
    src, dst = group * size + user, other * (size // 2) + item
    shuffled, items = rng.permutation(num_users), rng.permutation(num_items)
    split = np.full(num_users, 2, np.int8)
    split[: int(train * num_users)] = 0
    nodes = {"user": {"split": split[np.argsort(shuffled)]}, "item": {"id": np.arange(num_items)}}
    edges = {
        ("user", "buys", "item"): {"src": shuffled[src], "dst": items[dst]},
        ("item", "sold_to", "user"): {"src": items[dst], "dst": shuffled[src]},
    }
    return write_graph(path, nodes, edges, "static")
