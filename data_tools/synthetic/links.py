"""A seeded graph of users and items whose links are worth predicting, split, with the same links the other way.

Users and items are in groups. A link is of one of a few kinds and leads mostly from a group of users to the group of
items that goes with the kind. Both ends are chosen by weight (Zipf). The graph is drawn as a whole, in memory.
"""

from __future__ import annotations

import json
import os

import numpy as np

from data_tools.source.rewrite import create_table, write_column
from data_tools.synthetic.tables import draw_from, random_stream, write_nodes, zipf_cdf
from hpcgnn.graph import files

GROUPS, KINDS = 8, 3
WITHIN = 0.85  # links that lead where their kind says
EXPONENT, SHIFT = 0.6, 5.0  # weight of rank r: (r + SHIFT) ** -EXPONENT
FRACTIONS = (0.8, 0.1, 0.1)  # train, val, test


def draw_links(num_users: int, num_items: int, count: int, seed: int) -> dict[str, np.ndarray]:
    """Draw at most ``count`` links, one for a user and an item: src, dst, rel (its kind) and split."""
    rng = random_stream(seed, 0)
    user_group, item_group = rng.integers(0, GROUPS, num_users), rng.integers(0, GROUPS, num_items)
    src = draw_from(zipf_cdf(num_users, EXPONENT, SHIFT, rng), rng.random(count))
    kind = rng.integers(0, KINDS, count)
    is_within, any_group = rng.random(count) < WITHIN, rng.integers(0, GROUPS, count)
    item_groups = np.where(is_within, (user_group[src] + kind) % GROUPS, any_group)
    dst = np.empty(count, np.int64)
    for group in range(GROUPS):
        chosen, members = np.flatnonzero(item_groups == group), np.flatnonzero(item_group == group)
        members = members if len(members) else np.arange(num_items)
        dst[chosen] = members[draw_from(zipf_cdf(len(members), EXPONENT, SHIFT, rng), rng.random(len(chosen)))]
    _, first = np.unique(src * num_items + dst, return_index=True)
    first.sort()
    split = draw_from(np.cumsum(FRACTIONS), rng.random(len(first))).astype(np.int8)
    return {"src": src[first], "dst": dst[first], "rel": kind[first].astype(np.int32), "split": split}


def synthesize_links(path: str | os.PathLike, num_users: int, num_items: int, num_links: int, seed: int) -> None:
    """Write a static graph file: node types user and item (id), relations user.likes.item (src, dst, rel, split) and
    item.liked_by.user (src, dst). Raises ValueError for sizes that cannot be."""
    if min(num_users, num_items) < 1 or min(num_links, seed) < 0:
        raise ValueError(
            f"users={num_users}, items={num_items}, links={num_links}, seed={seed}: users and items must be at least "
            "1, the others at least 0"
        )
    links = draw_links(num_users, num_items, num_links, seed)
    arguments = f"synthetic links users={num_users} items={num_items} links={num_links} seed={seed}"
    with files.writing(path, files.GRAPH, kind="static", sources=json.dumps([arguments])) as file:
        write_nodes(file, "user", 0, num_users)
        write_nodes(file, "item", 1, num_items)
        relations = {"user.likes.item": links, "item.liked_by.user": {"src": links["dst"], "dst": links["src"]}}
        for number, (name, columns) in enumerate(relations.items()):
            group = create_table(file, "edges", name, len(links["src"]), number)
            for column, values in columns.items():
                write_column(group, column, values)
