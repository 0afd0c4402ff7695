"""Quality of a partition: cut, balance and replication, for the parts and for the ranks that take blocks of them.

P parts; of R ranks, rank r takes the parts r P // R .. (r + 1) P // R - 1. Of a snapshot graph, edges cut and rows
exchanged are added up over its snapshots; E rows of edges, each in the snapshots first .. last; N nodes, n of them in a
rank's block. A *halo key* is node * P + part: the node has an edge into that part, and is in another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_tools.graph.source import EdgeType, Outline, stamps
from data_tools.partition.blocks import NodeBlocks, distinct
from data_tools.partition.layout import PartLayout
from data_tools.partition.pair_graph import MERGE_AT_LEAST
from data_tools.team import Team

ROUNDING = 1e-4  # of the stored measures
HALO_BYTES = 256 << 20  # of memory for halo keys
HALO_KEY_BYTES = 24  # of memory for one, while they are made distinct


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of the parts by constraint, and the weight of the heaviest node."""

    balanced: tuple[str, ...]  # columns that the partition was to balance
    by_part: dict[str, np.ndarray]  # [P] int64
    heaviest: dict[str, int]  # node

    def balance(self, names: Iterable[str], rank: np.ndarray, num_ranks: int) -> dict[str, float]:
        """Compute the heaviest rank over the mean, with the ranks [P] of the parts."""
        sums = {name: np.bincount(rank, weights=self.by_part[name], minlength=num_ranks) for name in names}
        return {name: round(float(load.max() / load.mean()), 4) if load.any() else 1.0 for name, load in sums.items()}

    def ideal(self, rank: np.ndarray, num_ranks: int) -> dict[str, float]:
        """Compute the best balance that is possible, as nodes are whole and ranks take whole parts."""
        ragged = float(np.bincount(rank, minlength=num_ranks).max()) * num_ranks / len(rank)
        bounds = {}
        for name in self.balanced:
            mean = self.by_part[name].sum() / num_ranks
            unit = max(self.heaviest[name], np.ceil(mean)) / mean if mean else 1.0
            bounds[name] = round(max(ragged, float(unit)), 4)
        return bounds


def measure_loads(
    team: Team, weights: dict[str, np.ndarray], part: np.ndarray, num_parts: int, balanced: list[str]
) -> Loads:
    """Collective. Measure the loads by all columns of weights [n]; part [n] of this rank's block; balanced: columns to
    balance."""
    by_part, heaviest = {}, {}
    for name, weight in weights.items():
        load = np.zeros(num_parts, np.int64)
        np.add.at(load, part, weight)
        by_part[name] = team.sum(load)
        heaviest[name] = int(team.largest(np.array([weight.max(initial=0)], np.int64))[0])
    return Loads(tuple(balanced), by_part, heaviest)


def rank_of_parts(num_parts: int, num_ranks: int) -> np.ndarray:
    """Find the rank [P] that takes each part."""
    first_part = np.arange(num_ranks + 1) * num_parts // num_ranks
    return np.searchsorted(first_part, np.arange(num_parts), side="right") - 1


def measures(pairs: np.ndarray, loads: Loads, num_ranks: int) -> dict:
    """Compute the quality when ``num_ranks`` ranks take blocks of consecutive parts, from pairs [P, P] of
    edges.

    balance: of the constraints asked for; ideal: the best balance that is possible; further: balance of the other
    constraints.
    """
    rank = rank_of_parts(len(pairs), num_ranks)
    total, cut = int(pairs.sum()), int(pairs[rank[:, None] != rank[None, :]].sum())
    return {
        "ranks": num_ranks,
        "cut": cut,
        "cut_fraction": round(cut / max(1, total), 6),
        "replication": round((total + cut) / max(1, total), 6),
        "balance": loads.balance(loads.balanced, rank, num_ranks),
        "ideal": loads.ideal(rank, num_ranks),
        "further": loads.balance((name for name in loads.by_part if name not in loads.balanced), rank, num_ranks),
    }


@dataclass(frozen=True, slots=True)
class EdgeSlab:
    """Edges [k] by both ends: nodes, and their parts. rows: positions of the edges among the rows that the rank reads
    from ``start`` on, None: all of these rows."""

    start: int
    src: np.ndarray
    dst: np.ndarray
    src_part: np.ndarray
    dst_part: np.ndarray
    rows: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """The rows that the measures are taken from: of a source whose edges a rank reads if their destination lies in its
    parts ``own``, and the layout of their nodes."""

    team: Team
    source: Outline
    layout: PartLayout
    own: range

    def edges(self, relation: EdgeType) -> Iterator[EdgeSlab]:
        """Yield slabs of a relation's edges; every edge comes on one rank."""
        for start, src, dst in self.source.ends(relation):
            slab = EdgeSlab(start, src, dst, self.layout.part[src], self.layout.part[dst])
            if self.team.size > 1:
                rows = np.flatnonzero((slab.dst_part >= self.own.start) & (slab.dst_part < self.own.stop))
                slab = EdgeSlab(start, src[rows], dst[rows], slab.src_part[rows], slab.dst_part[rows], rows)
            yield slab

    def send_by_node(self, nodes: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
        """Collective. Send columns [k] to the ranks that have nodes [k] in blocks of equal length."""
        return self.team.send(NodeBlocks.even(self.team, self.source.num_nodes).rank_of(nodes), *columns)

    def part_pairs(self, relation: EdgeType) -> np.ndarray:
        """Collective. Count the edges of a relation by part of src and part of dst [P, P] int64."""
        num_parts = self.layout.num_parts
        counts = np.zeros(num_parts * num_parts, np.int64)
        for slab in self.edges(relation):
            cells = slab.src_part.astype(np.int64) * num_parts + slab.dst_part
            counts += np.bincount(cells, minlength=len(counts))
        return self.team.sum(counts).reshape(num_parts, num_parts)


def measure(measured: Measured, loads: Loads) -> dict:
    """Collective. Measure the quality of a layout: the measures for P ranks and, under ``runs``, for 1, 2, 4, ... ranks
    that take blocks of consecutive parts.

    volume (of temporal graphs): (node, foreign rank) pairs with events either way. Other graphs have halo: remote
    sources of in-edges, summed over parts, which is the volume of communication. They also have replication: rows of
    the parts with their halo, over nodes; relations: cut of each. Snapshot graphs also have ``snapshots``, the results
    of `count_cut` and `halo_rows` for the parts, and ``halo_rows`` of every number of ranks.
    """
    source, num_parts = measured.source, measured.layout.num_parts
    pairs = [measured.part_pairs(relation) for relation in source.relations]
    total = sum(pairs, np.zeros((num_parts, num_parts), np.int64))
    temporal = source.kind == "temporal"
    sizes = [*(1 << power for power in range(num_parts.bit_length())), num_parts]
    num_cut = (2 if temporal else 1) * int(total.sum() - np.trace(total))
    halos = halo_sizes(measured, sizes, num_cut, temporal)

    def of(num_ranks: int) -> dict:
        values, count = measures(total, loads, num_ranks), halos[num_ranks]
        if temporal:
            return {**values, "volume": count}
        replication = round((source.num_nodes + count) / max(1, source.num_nodes), 6)
        return {**values, "replication": replication, "halo": count}

    runs = [of(size) for size in sizes[:-1]]
    if temporal:
        return {**of(num_parts), "events": int(total.sum()), "runs": runs}
    cut = {
        relation.name: int(counts.sum() - np.trace(counts))
        for relation, counts in zip(source.relations, pairs, strict=True)
    }
    quality = {**of(num_parts), "nodes": source.num_nodes, "edges": int(total.sum()), "relations": cut, "runs": runs}
    if source.kind == "snapshots":
        measure_snapshots(measured, quality)
    return quality


def most_halo_keys(num_nodes: int, num_cut: int, num_parts: int) -> int:
    """Bound the number of (node, foreign part) pairs by the ends of cut edges."""
    return min(num_cut, num_nodes * (num_parts - 1))


def halo_sizes(measured: Measured, sizes: list[int], num_cut: int, both_ends: bool) -> dict[int, int]:
    """Collective. Count the (node, foreign rank) pairs with an edge from the node to the rank, for several numbers of
    ranks that take blocks of consecutive parts. both_ends: edges lead both ways.

    A share of the nodes after the other, so that their keys fit into HALO_BYTES.
    """
    num_keys = most_halo_keys(measured.source.num_nodes, num_cut, measured.layout.num_parts)
    shares = 1 + HALO_KEY_BYTES * num_keys // measured.team.size // HALO_BYTES
    halos = dict.fromkeys(sizes, 0)
    for share in range(shares):
        keys = halo_keys(measured, both_ends, (share, shares))
        for size in halos:
            halos[size] += halo_of(measured, keys, size)
    return halos


def halo_keys(measured: Measured, both_ends: bool, share: tuple[int, int]) -> np.ndarray:
    """Collective. Find the distinct halo keys [k] int64, increasing, of nodes in this rank's block whose number is s
    modulo S for a share (s, S)."""
    num_parts = measured.layout.num_parts
    tables, pending = [np.empty(0, np.int64)], 0
    for relation in measured.source.relations:
        for slab in measured.edges(relation):
            cut = slab.src_part != slab.dst_part
            keys = slab.src[cut] * num_parts + slab.dst_part[cut]
            if both_ends:
                keys = np.r_[keys, slab.dst[cut] * num_parts + slab.src_part[cut]]
            if share[1] > 1:
                keys = keys[keys // num_parts % share[1] == share[0]]
            tables.append(distinct(keys))
            pending += len(tables[-1])
            if pending > max(MERGE_AT_LEAST, len(tables[0])):
                tables, pending = [distinct(np.concatenate(tables))], 0
    keys = np.concatenate(tables)
    del tables
    keys = distinct(keys)
    if measured.team.size > 1:
        keys = distinct(*measured.send_by_node(keys // num_parts, keys))
    return keys


def halo_of(measured: Measured, keys: np.ndarray, num_ranks: int) -> int:
    """Collective. Count the (node, foreign rank) pairs of halo keys [k] where ``num_ranks`` ranks take blocks of
    consecutive parts."""
    num_parts = measured.layout.num_parts
    rank = rank_of_parts(num_parts, num_ranks)
    node, taker = np.divmod(keys, num_parts)
    taker = rank[taker]
    foreign = taker != rank[measured.layout.part[node]]
    node, taker = node[foreign], taker[foreign]
    # Keys increase, and so does the rank with the part.
    new = np.ones(len(node), bool)
    new[1:] = (node[1:] != node[:-1]) | (taker[1:] != taker[:-1])
    return int(measured.team.sum(np.array([new.sum()], np.int64))[0])


def unmet(quality: dict, target: float) -> list[str]:
    """Describe, in one line each, the constraints that are farther from their ideal than the target, and the ideals
    that are as far from even. A line has the reason and the largest number of parts that would do."""
    missed, uneven, even_ranks = [], [], 1
    for result in (quality, *(run for run in reversed(quality["runs"]) if 1 < run["ranks"] < quality["ranks"])):
        ranks, ideals = result["ranks"], result.get("ideal", {})
        where = f"among {ranks} {'parts' if result is quality else 'ranks'}"
        for name, value in result["balance"].items():
            ideal = ideals.get(name, 1.0)
            if value > target * ideal + ROUNDING:
                missed.append((f"balance of {name} {where} is {value:.3f}", f"the best possible, {ideal:.3f}"))
            elif ideal > target:
                uneven.append(f"balance of {name} {where} is {value:.3f} and cannot be below {ideal:.3f}")
        if even_ranks == 1 and max(ideals.values(), default=1.0) <= target:
            even_ranks = ranks
    lines = []
    if missed:
        lines.append(
            f"{missed[0][0]}{others(missed)}, above {target} times {missed[0][1]}: what moves and exchanges of nodes "
            "gain here they lose in other constraints; ask for fewer of these or fewer parts, or another method"
        )
    if uneven:
        advice = f"--parts {even_ranks} can be even" if even_ranks > 1 else "no number of parts above 1 can be even"
        if even_ranks == quality["ranks"]:
            advice = f"among these {even_ranks} parts it can be even, among fewer ranks not"
        lines.append(
            f"{uneven[0]}{others(uneven)}: a single node weighs that much of the mean, or there are too few units for "
            f"this number of parts; {advice}"
        )
    return lines


def others(cases: list) -> str:
    """Write the number of cases after the first one."""
    return f" (and {len(cases) - 1} more such measures)" if len(cases) > 1 else ""


def summary(quality: dict) -> str:
    """Render the measures as a table for the terminal."""
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


MOST_RELATIONS = 10  # that are named, those with most edges cut


def headline(quality: dict) -> str:
    """Render the sizes of the graph, the number of parts, and the cut of each relation where there are several."""
    if "events" in quality:
        return f"{quality['events']} events in {quality['ranks']} parts"
    text = f"{quality['nodes']} nodes and {quality['edges']} edges in {quality['ranks']} parts"
    relations = sorted(quality["relations"].items(), key=lambda item: -item[1])
    for name, cut in relations[:MOST_RELATIONS] if len(relations) > 1 else ():
        text += f"\n  {name}: {cut} edges cut"
    if len(relations) > MOST_RELATIONS:
        text += (
            f"\n  and {sum(cut for _, cut in relations[MOST_RELATIONS:])} of {len(relations) - MOST_RELATIONS} others"
        )
    if "snapshots" in quality:
        sums = quality["snapshots"]
        text += (
            f"\n  {sums['num_snapshots']} snapshots of {sums['edges']} edges in all, {sums['cut']} of them cut; "
            f"{sums['halo_rows']} rows in one exchange of every snapshot"
        )
    if "cache" in quality:
        cache = quality["cache"]
        text += (
            f"\n  expected accesses: {cache['local']:.4f} local, {cache['ranked']:.4f} remote within the cache ranking"
        )
    return text


def measure_snapshots(measured: Measured, quality: dict) -> None:
    """Collective. Add to the quality ``snapshots``, and ``halo_rows`` of every number of ranks."""
    (relation,) = measured.source.relations
    source: Any = measured.source  # has the edges in one file
    group, num_parts = source.edges(relation), measured.layout.num_parts
    counts = {"edges": 0, "cut": 0}
    pieces = [[np.empty(0, np.int64)] * 5]
    for slab in measured.edges(relation):
        stop = slab.start + len(slab.src) if slab.rows is None else slab.start + int(slab.rows.max(initial=-1)) + 1
        first, last = stamps(group, slab.start, stop)
        if slab.rows is not None:
            first, last = first[slab.rows], last[slab.rows]
        cut = slab.src_part != slab.dst_part
        for name, value in count_cut(cut, first, last).items():
            counts[name] += value
        pieces.append([column[cut] for column in (slab.src, slab.src_part, slab.dst_part, first, last)])
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    src, owner, taker, first, last = measured.send_by_node(columns[0], *columns)
    sums = measured.team.sum(np.array(list(counts.values()), np.int64)).tolist()

    def rows(num_ranks: int) -> int:
        rank = rank_of_parts(num_parts, num_ranks)
        count = halo_rows(src, rank[owner], rank[taker], first, last)
        return int(measured.team.sum(np.array([count], np.int64))[0])

    totals = dict(zip(counts, sums, strict=True))
    quality["snapshots"] = {
        "num_snapshots": measured.source.facts["num_snapshots"], **totals, "halo_rows": rows(num_parts),
    }  # fmt: skip
    for run in quality["runs"]:
        run["halo_rows"] = rows(run["ranks"])


def count_cut(cut: np.ndarray, first: np.ndarray, last: np.ndarray) -> dict[str, int]:
    """Count the edges, and how many of them are cut, in all snapshots; cut [E] bool."""
    stays = last - first + 1
    return {"edges": int(stays.sum()), "cut": int(stays[cut].sum())}


def halo_rows(src: np.ndarray, owner: np.ndarray, taker: np.ndarray, first: np.ndarray, last: np.ndarray) -> int:
    """Count the rows that one exchange in every snapshot brings: one for every node, snapshot and other part that the
    node has an edge to. src [E]; owner, taker [E]: parts of both ends."""
    cut = np.flatnonzero(owner != taker)
    key = src[cut] * (int(taker.max(initial=0)) + 1) + taker[cut]
    return union_length(key, first[cut], last[cut])


def union_length(key: np.ndarray, first: np.ndarray, last: np.ndarray) -> int:
    """Add up the snapshots that intervals first .. last [E] cover, intervals of equal keys together, over the keys."""
    if not len(key):
        return 0
    order = np.lexsort((first, key))
    key, first, last = key[order], first[order], last[order]
    new = np.r_[True, key[1:] != key[:-1]]
    base = np.cumsum(new) * (int(last.max()) + 2)  # larger for later keys: maxima do not reach into them
    reached = np.r_[-1, np.maximum.accumulate(last + base)[:-1]] - base
    begin = np.maximum(first - 1, np.where(new, -1, reached))
    return int(np.maximum(0, last - begin).sum())
