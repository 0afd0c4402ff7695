"""What a layout of a snapshot graph costs in its snapshots: edges cut and rows exchanged, added up over them.

E rows of edges, each in the snapshots first .. last; N nodes, P parts.
"""

from __future__ import annotations

from collections.abc import Callable

import h5py
import numpy as np

from data_tools.part_layout import Layout
from data_tools.partition_source import Source
from data_tools.quality import measure, rank_of_parts


def measure_layout(source: Source, layout: Layout, balance: tuple[str, ...], weigh: Callable) -> dict:
    """Quality of a layout of any graph, as `measure` tells it, and of snapshots as `measure_snapshots` does."""
    quality = measure(source, layout, balance, weigh)
    if source.kind == "snapshots":
        measure_snapshots(source, layout, quality)
    return quality


def measure_snapshots(source: Source, layout: Layout, quality: dict) -> None:
    """Adds to the quality ``snapshots``, as `count_cut` and `halo_rows` tell of the parts, and ``halo_rows`` of every
    run on fewer ranks."""
    (relation,) = source.relations
    group = source.edges(relation)
    src, dst = (group[name][:].astype(np.int64) for name in ("src", "dst"))
    first, last = stamps(group)
    part = layout.part
    cut = count_cut(part[src] != part[dst], first, last)
    rows = halo_rows(src, part[src], part[dst], first, last)
    quality["snapshots"] = {**source.snapshots, **cut, "halo_rows": rows}
    for run in quality["runs"]:
        rank = rank_of_parts(layout.num_parts, run["ranks"])[part]
        run["halo_rows"] = halo_rows(src, rank[src], rank[dst], first, last)


def stamps(group: h5py.Group) -> tuple[np.ndarray, np.ndarray]:
    """First and last snapshot of every row of a relation [E], int64."""
    first = group["first"][:].astype(np.int64)
    return first, group["last"][:].astype(np.int64) if "last" in group else first


def count_cut(cut: np.ndarray, first: np.ndarray, last: np.ndarray) -> dict[str, int]:
    """edges, and how many of them are cut, in all snapshots; cut [E] bool."""
    stays = last - first + 1
    return {"edges": int(stays.sum()), "cut": int(stays[cut].sum())}


def halo_rows(src: np.ndarray, owner: np.ndarray, taker: np.ndarray, first: np.ndarray, last: np.ndarray) -> int:
    """Rows that one exchange in every snapshot brings: one for every node, snapshot and other part that the node has an
    edge to. src [E]; owner, taker [E]: parts of both ends."""
    cut = np.flatnonzero(owner != taker)
    key = src[cut] * (int(taker.max(initial=0)) + 1) + taker[cut]
    return union_length(key, first[cut], last[cut])


def union_length(key: np.ndarray, first: np.ndarray, last: np.ndarray) -> int:
    """Snapshots that intervals first .. last [E] cover, those of equal keys together, added up over the keys."""
    if not len(key):
        return 0
    order = np.lexsort((first, key))
    key, first, last = key[order], first[order], last[order]
    new = np.r_[True, key[1:] != key[:-1]]
    base = np.cumsum(new) * (int(last.max()) + 2)  # larger for later keys: maxima do not reach into them
    reached = np.r_[-1, np.maximum.accumulate(last + base)[:-1]] - base
    begin = np.maximum(first - 1, np.where(new, -1, reached))
    return int(np.maximum(0, last - begin).sum())
