"""How good a partition is: cut, balance and replication, for the parts and for the ranks that take blocks of them.

P parts; of R ranks, rank r takes the parts r P // R .. (r + 1) P // R - 1. Of a snapshot graph, edges cut and rows
exchanged are added up over its snapshots; E rows of edges, each in the snapshots first .. last; N nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import h5py
import numpy as np

from data_tools.partition.layout import Layout
from data_tools.partition.source import Relation, Source, endpoint_slabs
from data_tools.partition.weights import columns_of

ROUNDING = 1e-4  # of the stored measures
HALO_BYTES = 256 << 20  # of the table of (node, group) pairs that halo_size fills at once


def relation_pairs(source: Source, relation: Relation, layout: Layout) -> np.ndarray:
    """Edges of a relation by part of src and part of dst [P, P] int64."""
    num_parts = layout.num_parts
    counts = np.zeros(num_parts * num_parts, np.int64)
    for _, src, dst in endpoint_slabs(source, relation):
        pairs = layout.part[src].astype(np.int64) * num_parts + layout.part[dst]
        counts += np.bincount(pairs, minlength=len(counts))
    return counts.reshape(num_parts, num_parts)


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of the parts by constraint, and by what single nodes weigh."""

    asked: tuple[str, ...]  # columns that the partition was to balance
    by_part: dict[str, np.ndarray]  # [P] int64
    heaviest: dict[str, int]  # node

    def balance(self, names: Iterable[str], rank: np.ndarray, num_ranks: int) -> dict[str, float]:
        """Heaviest rank over the mean, with the ranks [P] of the parts."""
        sums = {name: np.bincount(rank, weights=self.by_part[name], minlength=num_ranks) for name in names}
        return {name: round(float(load.max() / load.mean()), 4) if load.any() else 1.0 for name, load in sums.items()}

    def ideal(self, rank: np.ndarray, num_ranks: int) -> dict[str, float]:
        """What balance could be at best: nodes are whole, and ranks take whole parts."""
        ragged = float(np.bincount(rank, minlength=num_ranks).max()) * num_ranks / len(rank)
        found = {}
        for name in self.asked:
            mean = self.by_part[name].sum() / num_ranks
            unit = max(self.heaviest[name], np.ceil(mean)) / mean if mean else 1.0
            found[name] = round(max(ragged, float(unit)), 4)
        return found


def measure_loads(source: Source, layout: Layout, balance: tuple[str, ...], weigh: Callable) -> Loads:
    """Loads by the constraints asked for, by nodes, and by events or edges; weigh(source, balance): `node_weights`."""
    always = ("nodes", "events" if source.kind == "temporal" else "edges")
    weights = weigh(source, tuple(dict.fromkeys((*balance, *always))))
    by_part = {}
    for name, weight in weights.items():
        by_part[name] = np.zeros(layout.num_parts, np.int64)
        np.add.at(by_part[name], layout.part, weight)
    heaviest = {name: int(weight.max(initial=0)) for name, weight in weights.items()}
    return Loads(tuple(columns_of(source, balance)), by_part, heaviest)


def rank_of_parts(num_parts: int, num_ranks: int) -> np.ndarray:
    """Rank [P] that takes each part."""
    first_part = np.arange(num_ranks + 1) * num_parts // num_ranks
    return np.searchsorted(first_part, np.arange(num_parts), side="right") - 1


def measures(pairs: np.ndarray, loads: Loads, num_ranks: int) -> dict:
    """Quality when ``num_ranks`` ranks take contiguous runs of the parts of pairs [P, P].

    balance: of the constraints asked for; ideal: what it could be at best; further: balance of what was not asked for.
    """
    rank = rank_of_parts(len(pairs), num_ranks)
    total, cut = int(pairs.sum()), int(pairs[rank[:, None] != rank[None, :]].sum())
    return {
        "ranks": num_ranks,
        "cut": cut,
        "cut_fraction": round(cut / max(1, total), 6),
        "replication": round((total + cut) / max(1, total), 6),
        "balance": loads.balance(loads.asked, rank, num_ranks),
        "ideal": loads.ideal(rank, num_ranks),
        "further": loads.balance((name for name in loads.by_part if name not in loads.asked), rank, num_ranks),
    }


def measure(source: Source, layout: Layout, balance: tuple[str, ...], weigh: Callable) -> dict:
    """Quality of a layout, as `told`."""

    def halo(num_ranks: int) -> int:
        rank = rank_of_parts(layout.num_parts, num_ranks)[layout.part]
        return halo_size(source, rank, num_ranks, both_ends=source.kind == "temporal")

    pairs = [relation_pairs(source, relation, layout) for relation in source.relations]
    return told(source, pairs, measure_loads(source, layout, balance, weigh), layout.num_parts, halo)


def told(
    source: Source, pairs: list[np.ndarray], loads: Loads, num_parts: int, halo: Callable[[int], int]
) -> dict:  # fmt: skip
    """Quality from the edges of every relation by part of src and of dst [P, P], and from the number of (node, foreign
    rank) pairs when so many ranks take runs of parts: the measures for P ranks and, under ``runs``, for 1, 2, 4, ...

    volume (of temporal graphs): pairs with events either way. Of others, halo: remote sources of in-edges, summed over
    parts, which is the volume of communication; replication: rows that the parts hold with their halo, over nodes;
    relations: cut of each.
    """
    total = sum(pairs, np.zeros((num_parts, num_parts), np.int64))
    temporal = source.kind == "temporal"

    def of(num_ranks: int) -> dict:
        found, count = measures(total, loads, num_ranks), halo(num_ranks)
        if temporal:
            return {**found, "volume": count}
        replication = round((source.num_nodes + count) / max(1, source.num_nodes), 6)
        return {**found, "replication": replication, "halo": count}

    runs = [of(1 << power) for power in range(num_parts.bit_length())]
    if temporal:
        return {**of(num_parts), "events": int(total.sum()), "runs": runs}
    cut = {
        relation.name: int(counts.sum() - np.trace(counts))
        for relation, counts in zip(source.relations, pairs, strict=True)
    }
    return {**of(num_parts), "nodes": source.num_nodes, "edges": int(total.sum()), "relations": cut, "runs": runs}


def halo_size(source: Source, group: np.ndarray, num_groups: int, both_ends: bool = False) -> int:
    """Number of (node, foreign group) pairs such that an edge leads from the node into the group; group [N].

    both_ends: edges lead both ways.
    """
    if num_groups == 1:
        return 0
    width = max(1, min(num_groups, HALO_BYTES // max(1, source.num_nodes)))
    count = 0
    for first in range(0, num_groups, width):
        reached = np.zeros(source.num_nodes * width, bool)
        for relation in source.relations:
            for _, src, dst in endpoint_slabs(source, relation):
                for node, other in ((src, dst), (dst, src)) if both_ends else ((src, dst),):
                    into = group[other] - first
                    chosen = (into >= 0) & (into < width) & (group[node] != group[other])
                    reached[node[chosen] * width + into[chosen]] = True
        count += int(np.count_nonzero(reached))
    return count


def unmet(quality: dict, target: float) -> list[str]:
    """One line for every constraint that is farther from its ideal than the target, and for every one whose ideal is
    that far from even, telling why."""
    lines = []
    for found in (quality, *(run for run in quality["runs"] if 1 < run["ranks"] < quality["ranks"])):
        for name, value in found["balance"].items():
            ideal, ranks = found.get("ideal", {}).get(name, 1.0), found["ranks"]
            where = f"balance of {name} among {ranks} {'parts' if found is quality else 'ranks'} is {value:.3f}"
            if value > target * ideal + ROUNDING:
                lines.append(
                    f"{where}, above {target} times the best possible, {ideal:.3f}: what moves and exchanges of nodes "
                    "gain here they lose in other constraints; ask for fewer of these or fewer parts, or another method"
                )
            elif ideal > target:
                lines.append(
                    f"{where} and cannot be below {ideal:.3f}: a single node weighs that much of the mean, or there "
                    "are too few units for so many; ask for fewer parts"
                )
    return lines


def summary(quality: dict) -> str:
    """The measures as a table for the terminal."""
    lines = [headline(quality)]
    rows = [*quality["runs"]]
    if rows[-1]["ranks"] != quality["ranks"]:
        rows.append(quality)
    columns = {name: "balance" for name in quality["balance"]} | {
        name: "further" for name in quality.get("further", {})
    }
    traffic = "halo" if "halo" in quality else "volume"
    wide = max(10, 2 + max(map(len, columns), default=0))
    lines.append("".join(f"{title:>10}" for title in ("ranks", "cut", "fraction", traffic, "replic.")))
    lines[-1] += "".join(f"{name:>{wide}}" for name in columns)
    for row in rows:
        values = [row["ranks"], row["cut"], f"{row['cut_fraction']:.4f}", row[traffic], f"{row['replication']:.4f}"]
        lines.append("".join(f"{value:>10}" for value in values))
        lines[-1] += "".join(f"{row[kind][name]:>{wide}.3f}" for name, kind in columns.items())
    return "\n".join(lines)


def headline(quality: dict) -> str:
    """What was cut into how many parts, and how the cut divides over relations where there are several."""
    if "events" in quality:
        return f"{quality['events']} events in {quality['ranks']} parts"
    text = f"{quality['nodes']} nodes and {quality['edges']} edges in {quality['ranks']} parts"
    for name, cut in quality["relations"].items() if len(quality["relations"]) > 1 else ():
        text += f"\n  {name}: {cut} edges cut"
    if "snapshots" in quality:
        found = quality["snapshots"]
        text += (
            f"\n  {found['num_snapshots']} snapshots of {found['edges']} edges in all, {found['cut']} of them cut; "
            f"{found['halo_rows']} rows in one exchange of every snapshot"
        )
    if "cache" in quality:
        cache = quality["cache"]
        text += (
            f"\n  expected accesses: {cache['local']:.4f} local, {cache['ranked']:.4f} remote within the cache ranking"
        )
    return text


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
