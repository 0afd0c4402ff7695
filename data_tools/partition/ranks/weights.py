"""Node weights as `node_weights` has them, of the nodes of a block.

N nodes of all types numbered together, n of them in a rank's block, C columns of weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from data_tools.partition.directory import add_up
from data_tools.partition.options import check_choice
from data_tools.partition.ranks.graph import shared_slabs
from data_tools.partition.source import Relation, Source
from data_tools.partition.weights import QUARTERS, SPLITS, STRETCHES, columns_of, has_split, stream_cuts, type_names
from data_tools.team import Team
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.graph.files import BY_DESTINATION

QUARTER_NAMES = [f"time{quarter}" for quarter in range(QUARTERS)]
COUNTED = {True: ("edges", *QUARTER_NAMES), False: ("events", *STRETCHES, *QUARTER_NAMES)}  # by whether it is static


def block_weights(
    team: Team, source: Source, balance: tuple[str, ...], blocks: BlockOwnership, degrees: np.ndarray | Any
) -> dict[str, np.ndarray]:
    """Collective. Weights [n] int64 by column name; degrees [n]: of the block, where that is asked for. Raises
    ValueError for a name that is not known here."""
    names = columns_of(source, balance)
    static = source.kind in BY_DESTINATION
    known = ("nodes", "degree", *type_names(source), *COUNTED[static], *(SPLITS if static else ()))
    for name in names:
        check_choice("balance", name, known)
    counted = [name for name in names if name in COUNTED[static]]
    sums = count_entries(team, source, counted, blocks)
    columns = dict(zip(counted, sums.T, strict=True))
    return {name: columns[name] if name in columns else plain_weight(team, source, name, blocks, degrees)
            for name in names}  # fmt: skip


def plain_weight(
    team: Team, source: Source, name: str, blocks: BlockOwnership, degrees: np.ndarray | Any
) -> np.ndarray:
    """Weight [n] int64 that follows from a node itself, or from its neighbours."""
    first, last = (int(blocks.starts[team.rank + side]) for side in (0, 1))
    if name == "nodes":
        return np.ones(last - first, np.int64)
    if name == "degree":
        return degrees
    weight = np.zeros(last - first, np.int64)
    for node_type in source.types:
        start, stop = max(first, node_type.base), min(last, node_type.base + node_type.num_nodes)
        if stop <= start:
            continue
        mine = slice(start - first, stop - first)
        if name == f"type:{node_type.name}":
            weight[mine] = 1
        elif name in SPLITS and "split" in node_type.columns:
            split = source.nodes(node_type)["split"][start - node_type.base : stop - node_type.base]
            weight[mine] = split == SPLITS[name]
    if name in SPLITS and not has_split(source):
        raise ValueError(f"balance={name}: no node type has a column split; balance by nodes and edges")
    return weight


def count_entries(team: Team, source: Source, names: list[str], blocks: BlockOwnership) -> np.ndarray:
    """Collective. Weights [n, C] int64 that count a node's edges: in-edges of a static graph, history entries of a
    temporal one."""
    totals = np.zeros((int(np.diff(blocks.starts)[team.rank]), len(names)), np.int64)
    if not names:
        return totals
    for index, relation in enumerate(source.relations):
        bounds = {name: stretch_of(source, name, index) for name in names}
        for start, src, dst in shared_slabs(team, source, relation):
            amounts = np.stack([amount(source, relation, name, bounds[name], start, len(src)) for name in names], 1)
            if source.kind in BY_DESTINATION:
                add_up(team, blocks, dst, amounts, totals)
            else:
                apart = src != dst
                add_up(team, blocks, np.r_[src, dst[apart]], np.r_[amounts, amounts[apart]], totals)
    return totals


def stretch_of(source: Source, name: str, relation: int) -> tuple[int, int]:
    """What a name counts of a relation: rows of a temporal graph, snapshots of one of snapshots; all of it for names
    that are of no stretch of time."""
    quarter = QUARTER_NAMES.index(name) if name in QUARTER_NAMES else None
    if source.kind == "snapshots" and quarter is not None:
        begin, end = (source.snapshots["num_snapshots"] * place // QUARTERS for place in (quarter, quarter + 1))
        return begin, end
    if source.kind != "temporal" or name == "events":
        return (0, source.relations[relation].num_edges)
    fractions = STRETCHES[name] if quarter is None else (quarter / QUARTERS, (quarter + 1) / QUARTERS)
    begin, end = (stream_cuts(source, fraction)[relation] for fraction in fractions)
    return begin, end


def amount(
    source: Source, relation: Relation, name: str, bounds: tuple[int, int], start: int, count: int
) -> np.ndarray:
    """How much rows start .. start + count - 1 count for a name [count] int64."""
    begin, end = bounds
    if source.kind == "snapshots" and name in QUARTER_NAMES:
        group = source.edges(relation)
        first = group["first"][start : start + count].astype(np.int64)
        last = group["last"][start : start + count] if "last" in relation.columns else first
        return np.clip(np.minimum(last + 1, end) - np.maximum(first, begin), 0, None).astype(np.int64)
    rows = np.arange(start, start + count)
    return ((rows >= begin) & (rows < end)).astype(np.int64)
