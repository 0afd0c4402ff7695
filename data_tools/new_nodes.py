"""Chooses parts for the nodes that new events bring into a temporal partition set.

P parts, N nodes of the grown graph, the types one after the other, E new events in order. A part has two loads: its
nodes, and the entries of their histories, where a self-loop is one entry. Loads are in means of a part.
"""

from __future__ import annotations

import numpy as np

IMBALANCE = 1.1  # means: the load up to which a part takes new nodes that meet a node of the part


def place_nodes(
    part: np.ndarray, src: np.ndarray, dst: np.ndarray, entries: np.ndarray, imbalance: float = IMBALANCE
) -> np.ndarray:  # fmt: skip
    """Choose the part [N] int32 of every node. part [N]: of the set's nodes, -1 for new ones; src, dst [E]: ends of the
    new events; entries [P]: of the set's histories.

    A new node goes to the part of the first node that it meets, unless the part would have more than ``imbalance`` of
    a load; then to the part whose larger load is smallest, as do two new nodes that meet, and new nodes without events.
    """
    part, num_parts, num_nodes = part.astype(np.int32), len(entries), len(part)
    weight = np.bincount(src, minlength=num_nodes) + np.bincount(dst[src != dst], minlength=num_nodes)
    mean = np.array([num_nodes, entries.sum() + weight.sum()]) / num_parts
    old = part >= 0
    held = np.stack([np.bincount(part[old], minlength=num_parts), np.bincount(part[old], weight[old], num_parts)])
    held[1] += entries
    loads, own = held / mean[:, None], np.stack([np.ones(num_nodes), weight]) / mean[:, None]
    is_new = (part[src] < 0) | (part[dst] < 0)
    alone = np.flatnonzero(~old & (weight == 0))
    for pair in [*zip(src[is_new].tolist(), dst[is_new].tolist(), strict=True), *((node, node) for node in alone)]:
        nodes = [node for node in dict.fromkeys(pair) if part[node] < 0]
        chosen, added = max(part[node] for node in pair), own[:, nodes].sum(axis=1)
        if nodes and (chosen < 0 or (loads[:, chosen] + added > imbalance).any()):
            chosen = loads.max(axis=0).argmin()
        part[nodes] = chosen
        loads[:, chosen] += added
    return part
