"""Where every node goes: from a part per node to global ids.

N nodes of all types numbered together, P parts. Global ids are contiguous by (node type, part).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_tools.partition_source import Source


@dataclass(frozen=True, slots=True)
class Layout:
    """An assignment of all nodes to P parts and the global ids that follow from it."""

    num_parts: int
    part: np.ndarray  # [N] int32
    global_id: np.ndarray  # [N] int64
    offsets: tuple[np.ndarray, ...]  # per type [P + 1] int64, absolute
    rows: tuple[np.ndarray, ...]  # per type [N_type] int64: row ids by (part, row)

    def local_bases(self, part: int) -> np.ndarray:
        """First local index [T + 1] of each type within a part, types concatenated."""
        sizes = [offsets[part + 1] - offsets[part] for offsets in self.offsets]
        return np.r_[0, np.cumsum(sizes, dtype=np.int64)]


def make_layout(source: Source, part: np.ndarray, num_parts: int) -> Layout:
    """Number the nodes of a source globally for an assignment ``part`` [N]."""
    global_id = np.empty(source.num_nodes, np.int64)
    offsets, rows = [], []
    for node_type in source.types:
        mine = part[node_type.base : node_type.base + node_type.num_nodes]
        order = np.argsort(mine, kind="stable")
        sizes = np.bincount(mine, minlength=num_parts)
        offsets.append(node_type.base + np.r_[0, np.cumsum(sizes)].astype(np.int64))
        rows.append(order.astype(np.int64))
        global_id[node_type.base + order] = node_type.base + np.arange(node_type.num_nodes)
    return Layout(num_parts, part.astype(np.int32), global_id, tuple(offsets), tuple(rows))
