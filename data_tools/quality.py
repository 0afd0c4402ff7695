"""How good a partition is: cut, balance and replication, for the parts and for the ranks that take runs of them.

P parts; of R ranks, rank r takes the parts r P // R .. (r + 1) P // R - 1.
"""

from __future__ import annotations

import numpy as np

from data_tools.node_weights import node_weights
from data_tools.part_layout import Layout
from data_tools.partition_source import Source, endpoint_slabs


def pair_counts(source: Source, layout: Layout) -> np.ndarray:
    """Events by part of src and part of dst [P, P] int64, over all relations."""
    num_parts = layout.num_parts
    counts = np.zeros(num_parts * num_parts, np.int64)
    for relation in source.relations:
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


def measures(pairs: np.ndarray, loads: dict[str, np.ndarray], num_ranks: int) -> dict:
    """Quality when ``num_ranks`` ranks take contiguous runs of the parts of pairs [P, P] and loads [P]."""
    first_part = np.arange(num_ranks + 1) * len(pairs) // num_ranks
    rank = np.searchsorted(first_part, np.arange(len(pairs)), side="right") - 1
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
    lines = [f"{quality['events']} events in {quality['ranks']} parts"]
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
