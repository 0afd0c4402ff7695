"""How good a partition is: cut, balance and replication, for the parts and for the ranks that take runs of them.

P parts; of R ranks, rank r takes the parts r P // R .. (r + 1) P // R - 1.
"""

from __future__ import annotations

import numpy as np

from data_tools.node_weights import node_weights
from data_tools.part_layout import Layout
from data_tools.partition_source import Relation, Source, endpoint_slabs

HALO_BYTES = 256 << 20  # of the table of (node, group) pairs that halo_size fills at once


def pair_counts(source: Source, layout: Layout) -> np.ndarray:
    """Events by part of src and part of dst [P, P] int64, over all relations."""
    counts = np.zeros((layout.num_parts, layout.num_parts), np.int64)
    for relation in source.relations:
        counts += relation_pairs(source, relation, layout)
    return counts


def relation_pairs(source: Source, relation: Relation, layout: Layout) -> np.ndarray:
    """Edges of a relation by part of src and part of dst [P, P] int64."""
    num_parts = layout.num_parts
    counts = np.zeros(num_parts * num_parts, np.int64)
    for _, src, dst in endpoint_slabs(source, relation):
        pairs = layout.part[src].astype(np.int64) * num_parts + layout.part[dst]
        counts += np.bincount(pairs, minlength=len(counts))
    return counts.reshape(num_parts, num_parts)


def part_loads(weights: dict[str, np.ndarray], part: np.ndarray, num_parts: int) -> dict[str, np.ndarray]:
    """Load of every part [P] int64 by constraint."""
    loads = {}
    for name, weight in weights.items():
        loads[name] = np.zeros(num_parts, np.int64)
        np.add.at(loads[name], part, weight)
    return loads


def rank_of_parts(num_parts: int, num_ranks: int) -> np.ndarray:
    """Rank [P] that takes each part."""
    first_part = np.arange(num_ranks + 1) * num_parts // num_ranks
    return np.searchsorted(first_part, np.arange(num_parts), side="right") - 1


def measures(pairs: np.ndarray, loads: dict[str, np.ndarray], num_ranks: int) -> dict:
    """Quality when ``num_ranks`` ranks take contiguous runs of the parts of pairs [P, P] and loads [P]."""
    rank = rank_of_parts(len(pairs), num_ranks)
    total, cut = int(pairs.sum()), int(pairs[rank[:, None] != rank[None, :]].sum())
    balance = {}
    for name, load in loads.items():
        by_rank = np.bincount(rank, weights=load, minlength=num_ranks)
        balance[name] = round(float(by_rank.max() / by_rank.mean()), 4) if load.any() else 1.0
    return {
        "ranks": num_ranks,
        "cut": cut,
        "cut_fraction": round(cut / max(1, total), 6),
        "replication": round((total + cut) / max(1, total), 6),
        "balance": balance,
    }


def measure(source: Source, layout: Layout, balance: tuple[str, ...]) -> dict:
    """Quality of a layout: the measures for P ranks and, under ``runs``, for 1, 2, 4, ... ranks."""
    loads = part_loads(node_weights(source, balance), layout.part, layout.num_parts)
    pairs = pair_counts(source, layout)
    runs = [measures(pairs, loads, 1 << power) for power in range(layout.num_parts.bit_length())]
    return {**measures(pairs, loads, layout.num_parts), "events": int(pairs.sum()), "runs": runs}


def measure_static(source: Source, layout: Layout, balance: tuple[str, ...]) -> dict:
    """Quality of a layout of a static graph: as `measure`, but replication counts nodes.

    halo: remote sources of in-edges, summed over parts; replication: rows that the parts hold with their halo, over
    nodes; relations: cut of each.
    """
    loads = part_loads(node_weights(source, balance), layout.part, layout.num_parts)
    pairs = [relation_pairs(source, relation, layout) for relation in source.relations]
    total = sum(pairs, np.zeros((layout.num_parts, layout.num_parts), np.int64))

    def with_halo(num_ranks: int) -> dict:
        halo = halo_size(source, rank_of_parts(layout.num_parts, num_ranks)[layout.part], num_ranks)
        replication = round((source.num_nodes + halo) / max(1, source.num_nodes), 6)
        return {**measures(total, loads, num_ranks), "replication": replication, "halo": halo}

    return {
        **with_halo(layout.num_parts),
        "nodes": source.num_nodes,
        "edges": int(total.sum()),
        "relations": {
            relation.name: int(counts.sum() - np.trace(counts))
            for relation, counts in zip(source.relations, pairs, strict=True)
        },
        "runs": [with_halo(1 << power) for power in range(layout.num_parts.bit_length())],
    }


def halo_size(source: Source, group: np.ndarray, num_groups: int) -> int:
    """Number of (node, foreign group) pairs such that an edge leads from the node into the group; group [N]."""
    width = max(1, min(num_groups, HALO_BYTES // max(1, source.num_nodes)))
    count = 0
    for first in range(0, num_groups, width):
        reached = np.zeros(source.num_nodes * width, bool)
        for relation in source.relations:
            for _, src, dst in endpoint_slabs(source, relation):
                into = group[dst] - first
                chosen = (into >= 0) & (into < width) & (group[src] != group[dst])
                reached[src[chosen] * width + into[chosen]] = True
        count += int(np.count_nonzero(reached))
    return count


def unmet(quality: dict, target: float) -> list[str]:
    """One line for every constraint whose balance is above the target."""
    return [
        f"balance of {name} is {value:.3f}, above the target {target}: a few nodes weigh more than a part, or the "
        "constraints contradict each other; ask for fewer constraints or fewer parts"
        for name, value in quality["balance"].items()
        if value > target
    ]


def summary(quality: dict) -> str:
    """The measures as a table for the terminal."""
    lines = [headline(quality)]
    rows = [*quality["runs"]]
    if rows[-1]["ranks"] != quality["ranks"]:
        rows.append(quality)
    names = list(quality["balance"])
    lines.append("".join(f"{title:>10}" for title in ("ranks", "cut", "fraction", "replic.", *names)))
    for row in rows:
        values = [f"{row['ranks']}", f"{row['cut']}", f"{row['cut_fraction']:.4f}", f"{row['replication']:.4f}"]
        values += [f"{row['balance'][name]:.3f}" for name in names]
        lines.append("".join(f"{value:>10}" for value in values))
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
