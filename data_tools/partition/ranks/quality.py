"""The quality of a layout, as `measure` tells it, from what the ranks keep.

P parts; a *halo key* is global id * P + part: the node has an edge into that part, which is not its own.
"""

from __future__ import annotations

import numpy as np

from data_tools.partition.options import Options
from data_tools.partition.pair_graph import MERGE_AT_LEAST
from data_tools.partition.quality import Loads, count_cut, halo_rows, rank_of_parts, told
from data_tools.partition.ranks.layout import SharedLayout
from data_tools.partition.ranks.shuffle import KeptSource
from data_tools.partition.source import Relation, Source, endpoint_slabs
from data_tools.partition.weights import columns_of
from data_tools.team import Team

HALO_BYTES = 256 << 20  # of memory for halo keys


def block_loads(
    team: Team, source: Source, weights: dict[str, np.ndarray], part: np.ndarray, options: Options
) -> Loads:
    """Collective. As `measure_loads`; weights, part [n]: of this rank's block."""
    by_part, heaviest = {}, {}
    for name, weight in weights.items():
        load = np.zeros(options.parts, np.int64)
        np.add.at(load, part, weight)
        by_part[name] = team.sum(load)
        heaviest[name] = int(team.largest(np.array([weight.max(initial=0)], np.int64))[0])
    return Loads(tuple(columns_of(source, options.balance)), by_part, heaviest)


def own_edges(kept: KeptSource, shared: SharedLayout, relation: Relation):
    """Slabs (global ids of src and of dst, parts of src and of dst, positions) of the edges whose destination this rank
    has: every edge is told by one rank."""
    layout, parts = shared.layout, shared.parts
    for start, src, dst in endpoint_slabs(kept, relation):
        taker = layout.part[dst]
        here = np.flatnonzero((taker >= parts.start) & (taker < parts.stop))
        yield src[here], dst[here], layout.part[src[here]], taker[here], start + here


def part_pairs(team: Team, kept: KeptSource, shared: SharedLayout, relation: Relation) -> np.ndarray:
    """Collective. As `relation_pairs` [P, P] int64."""
    num_parts = shared.layout.num_parts
    counts = np.zeros(num_parts * num_parts, np.int64)
    for _, _, owner, taker, _ in own_edges(kept, shared, relation):
        counts += np.bincount(owner.astype(np.int64) * num_parts + taker, minlength=len(counts))
    return team.sum(counts).reshape(num_parts, num_parts)


def measure_shared(team: Team, kept: KeptSource, shared: SharedLayout, loads: Loads) -> dict:
    """Collective. Quality of a layout, as `measure` and `measure_snapshots` tell it."""
    num_parts = shared.layout.num_parts
    pairs = [part_pairs(team, kept, shared, relation) for relation in kept.relations]
    sizes = [*(1 << power for power in range(num_parts.bit_length())), num_parts]
    halos = halo_sizes(team, kept, shared, sizes, kept.kind == "temporal")
    quality = told(kept, pairs, loads, num_parts, halos.__getitem__)
    if kept.kind == "snapshots":
        measure_snapshots(team, kept, shared, quality)
    return quality


def send_by_node(team: Team, shared: SharedLayout, nodes: np.ndarray, columns: list[np.ndarray]) -> list[np.ndarray]:
    """Collective. Columns [k] to the ranks that have the blocks which global ids [k] would be in."""
    rank = shared.global_id.blocks.locate(nodes)[0]
    order = np.argsort(rank, kind="stable")
    counts = np.bincount(rank, minlength=team.size)
    return [team.exchange(column[order], counts)[0] for column in columns]


def most_halo_keys(num_nodes: int, num_edges: int, num_parts: int) -> int:
    """How many halo keys there are at most."""
    return min(2 * num_edges, num_nodes * (num_parts - 1))


def halo_sizes(team: Team, kept: KeptSource, shared: SharedLayout, sizes: list[int], both_ends: bool) -> dict[int, int]:
    """Collective. As `halo_size` for several numbers of ranks that take runs of the parts; a share of the nodes after
    the other, so that their keys fit into HALO_BYTES."""
    num_keys = most_halo_keys(kept.num_nodes, kept.num_edges, shared.layout.num_parts)
    shares = 1 + 24 * num_keys // team.size // HALO_BYTES
    halos = dict.fromkeys(sizes, 0)
    for share in range(shares):
        keys = halo_keys(team, kept, shared, both_ends, (share, shares))
        for size in halos:
            halos[size] += halo_of(team, shared, keys, size)
    return halos


def halo_keys(
    team: Team, kept: KeptSource, shared: SharedLayout, both_ends: bool, share: tuple[int, int]
) -> np.ndarray:
    """Collective. The distinct halo keys [k] int64, increasing, of nodes whose ids are in this rank's block, and s
    modulo S for a share (s, S); both_ends: edges lead both ways."""
    num_parts = shared.layout.num_parts
    found = []
    for relation in kept.relations:
        for src, dst, owner, taker, _ in own_edges(kept, shared, relation):
            cut = owner != taker
            keys = src[cut] * num_parts + taker[cut]
            keys = np.r_[keys, dst[cut] * num_parts + owner[cut]] if both_ends else keys
            found.append(np.unique(keys[keys // num_parts % share[1] == share[0]]))
            if sum(map(len, found[1:])) > max(MERGE_AT_LEAST, len(found[0])):
                found = [np.unique(np.concatenate(found))]
    mine = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
    (received,) = send_by_node(team, shared, mine // num_parts, [mine])
    return np.unique(received)


def halo_of(team: Team, shared: SharedLayout, keys: np.ndarray, num_ranks: int) -> int:
    """Collective. As `halo_size`, where ``num_ranks`` ranks take runs of the parts."""
    num_parts = shared.layout.num_parts
    rank = rank_of_parts(num_parts, num_ranks)
    node, taker = np.divmod(keys, num_parts)
    taker = rank[taker]
    foreign = taker != rank[shared.layout.part[node]]
    node, taker = node[foreign], taker[foreign]
    # Keys increase, and so does the rank with the part.
    new = np.ones(len(node), bool)
    new[1:] = (node[1:] != node[:-1]) | (taker[1:] != taker[:-1])
    return int(team.sum(np.array([new.sum()], np.int64))[0])


def measure_snapshots(team: Team, kept: KeptSource, shared: SharedLayout, quality: dict) -> None:
    """Collective. As `measure_snapshots` of a whole file."""
    (relation,) = kept.relations
    group = kept.edges(relation)
    counted = {"edges": 0, "cut": 0}
    pieces: list[list[np.ndarray]] = []
    for src, _, owner, taker, place in own_edges(kept, shared, relation):
        stamp = lambda name, place=place: group[name][int(place[0]) : int(place[-1]) + 1][place - place[0]]  # noqa: E731
        first = stamp("first").astype(np.int64) if len(place) else np.empty(0, np.int64)
        last = stamp("last").astype(np.int64) if len(place) and "last" in relation.columns else first
        for name, value in count_cut(owner != taker, first, last).items():
            counted[name] += value
        cut = np.flatnonzero(owner != taker)
        pieces.append([column[cut] for column in (src, owner, taker, first, last)])
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)] or [np.empty(0, np.int64)] * 5
    src, owner, taker, first, last = send_by_node(team, shared, columns[0], columns)
    sums = team.sum(np.array(list(counted.values()), np.int64)).tolist()

    def rows(num_ranks: int) -> int:
        rank = rank_of_parts(shared.layout.num_parts, num_ranks)
        found = halo_rows(src, rank[owner], rank[taker], first, last)
        return int(team.sum(np.array([found], np.int64))[0])

    told = dict(zip(counted, sums, strict=True))
    quality["snapshots"] = {**kept.snapshots, **told, "halo_rows": rows(shared.layout.num_parts)}
    for run in quality["runs"]:
        run["halo_rows"] = rows(run["ranks"])
