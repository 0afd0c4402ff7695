"""Seeds of static graphs: which nodes or edges a split has, how an epoch shuffles them, and which rank handles which.

Of edges also which of the graph carry messages, and which are known. s seeds of this rank, S steps, R ranks; m in-edges
of the relation at this rank, e of all ranks that arrive here. An edge lies at the owner of its destination; its
reverse, an edge between the same nodes the other way, at the owner of its source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.directory import NodeDirectory, permute, places_of
from hpcgnn.graph.partition import GraphPartition, Relation
from hpcgnn.graph.spill import exchange_columns, spill
from hpcgnn.graph.splits import SPLITS
from hpcgnn.native import Random
from hpcgnn.task.known_edges import KnownAnswers


@dataclass(frozen=True, slots=True)
class SeedPool:
    """A split's seeds at their owners: place [s] among all ``total`` of them in order of row id; columns [s, ...] by
    name, among them the global ids int64 of their nodes."""

    name: str
    place: np.ndarray
    total: int
    columns: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class SeedBatches:
    """The batches of an epoch as this rank handles them: columns [s, ...] by name and position [s] in the epoch, step
    by step (indptr [S + 1]), within a step in order of position; sizes [S]: seeds of all ranks."""

    name: str
    columns: dict[str, np.ndarray]
    position: np.ndarray
    indptr: np.ndarray
    sizes: np.ndarray

    @property
    def num_steps(self) -> int:
        """S, the same on all ranks."""
        return len(self.sizes)

    def at(self, step: int) -> slice:
        """This rank's seeds of a step."""
        return slice(int(self.indptr[step]), int(self.indptr[step + 1]))


def make_pool(
    name: str, keys: np.ndarray, num_keys: int, columns: dict[str, np.ndarray], world: World, channel: Channel
) -> SeedPool:
    """Collective. The pool of seeds with unique keys [s] in [0, num_keys), such as their row ids."""
    place, total = places_of(keys, num_keys, world, channel)
    return SeedPool(name, place, total, columns)


def make_seed_batches(
    pool: SeedPool, batch_size: int, shuffle: Random | None, world: World, channel: Channel, drop_last: bool = False
) -> SeedBatches:
    """Collective. Batches of consecutive places, or of places shuffled by a random key. Seeds go to their owners up to
    ceil(batch / R) a step, the rest where there is room (``spill``)."""
    position = pool.place if shuffle is None else permute(pool.place, pool.total, shuffle)
    edges = np.append(np.arange(0, pool.total, batch_size, dtype=np.int64), pool.total)
    if drop_last and len(edges) > 1 and edges[-1] - edges[-2] < batch_size:
        edges = edges[:-1]
    order = np.argsort(position, kind="stable")
    order = order[position[order] < edges[-1]]
    names, position = list(pool.columns), position[order]
    columns, sizes = [column[order] for column in pool.columns.values()], np.diff(edges)
    if world.size > 1:
        target = spill(position // batch_size, sizes, world)
        *columns, position = exchange_columns([*columns, position], target, channel)
        order = np.argsort(position, kind="stable")
        columns, position = [column[order] for column in columns], position[order]
    indptr = np.searchsorted(position // batch_size, np.arange(len(sizes) + 1))
    return SeedBatches(pool.name, dict(zip(names, columns, strict=True)), position, indptr, sizes)


TRAIN, NONE = 0, "none"


@dataclass(frozen=True, slots=True)
class LinkSeeds:
    """pools by split; partition: the graph without held-out edges and their reverses; edges: by relation, positions in
    that graph, and the place in the training pool, of every training seed and its reverses; reverses: relations that
    hold these."""

    pools: dict[str, SeedPool]
    partition: GraphPartition
    edges: dict[int, tuple[np.ndarray, np.ndarray]]
    reverses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Matched:
    """Reverses found at this rank: position [x] among a relation's in-edges, split [x] and place [x] of their edge;
    missing: how many edges of the graph have none."""

    position: np.ndarray
    split: np.ndarray
    place: np.ndarray
    missing: int


def make_link_seeds(
    partition: GraphPartition, relation: int, reverse: str, world: World, channel: Channel
) -> LinkSeeds:  # fmt: skip
    """Collective. The seeds of a relation with a column ``split``. Raises DistributedError, on all ranks, for settings
    that do not fit the graph."""
    kind, edges = partition.relations[relation], partition.edges[relation]
    with together(world, "read the splits"):
        if "split" not in edges.columns:
            raise ValueError(f"relation {kind.name} has no column split: run data_tools.split --relation {kind.name}")
        candidates = _candidates(partition, relation, reverse)
    split = edges.columns["split"].astype(np.int64)
    known = seed_columns(partition, relation)
    pools, place = {}, np.full(len(split), -1, np.int64)
    for number, name in enumerate(SPLITS):
        chosen = split == number
        columns = {column: values[chosen] for column, values in known.items()}
        pools[name] = make_pool(name, edges.row[chosen], kind.num_edges, columns, world, channel)
        if number == TRAIN:
            place[chosen] = pools[name].place
    matched = _match_all(partition, relation, candidates, reverse, split, place, world, channel)
    with together(world, "match reverse edges"):
        _check_whole(kind, reverse, matched)
        if relation in matched:
            _check_splits(kind.name, split, matched[relation])
    return _leave_out(pools, partition, relation, split, place, matched)


def seed_columns(partition: GraphPartition, relation: int) -> dict[str, np.ndarray]:
    """What seeds know of a relation's in-edges [m] at this rank: global ids src and dst, row, and rel if there is
    one."""
    kind, edges = partition.relations[relation], partition.edges[relation]
    known = {"src": edges.src, "dst": partition.global_ids(kind.dst_type)[edges.dst], "row": edges.row}
    if "rel" in edges.columns:
        known["rel"] = edges.columns["rel"].astype(np.int64)
    return known


def edges_of_seeds(
    partition: GraphPartition, relation: int, reverse: str, place: np.ndarray, world: World, channel: Channel
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Collective. By relation, positions and places of seeds and of their reverses; place [m] in the pool of every
    in-edge, -1 of those that are no seeds. Raises DistributedError for a relation that holds no reverses."""
    with together(world, "find reverse edges"):
        candidates = _candidates(partition, relation, reverse)
    split = np.where(place >= 0, TRAIN, -1)
    matched = _match_all(partition, relation, candidates, reverse, split, place, world, channel)
    with together(world, "match reverse edges"):
        _check_whole(partition.relations[relation], reverse, matched)
    found = {relation: [(np.flatnonzero(place >= 0), place[place >= 0])]}
    for number, back in matched.items():
        seeds = back.split == TRAIN
        found.setdefault(number, []).append((back.position[seeds], back.place[seeds]))
    columns = {number: list(map(np.concatenate, zip(*pairs, strict=True))) for number, pairs in found.items()}
    return {number: (position, own) for number, (position, own) in columns.items()}


def _match_all(
    partition: GraphPartition, relation: int, candidates: list[int], reverse: str, split, place, world: World,
    channel: Channel,
) -> dict[int, _Matched]:  # fmt: skip
    """Collective. Reverses in the candidates; without a name only in those that have one of each edge and no others."""
    known = seed_columns(partition, relation)
    moved = to_sources(partition, [known["src"], known["dst"], known["row"], split, place], channel)
    matched = {candidate: _match(partition, candidate, moved, world) for candidate in candidates}
    if reverse:
        return matched
    num_edges = partition.relations[relation].num_edges
    return {r: found for r, found in matched.items()
            if found.missing == 0 and partition.relations[r].num_edges == num_edges}  # fmt: skip


def split_relation(partition: GraphPartition, name: str, key: str) -> int:
    """The relation whose edges are seeds: the one named, or the only one with a column split. Raises ValueError."""
    if name:
        return partition.relation_of(name)
    split = [number for number, edges in enumerate(partition.edges) if "split" in edges.columns]
    if len(split) != 1:
        found = ", ".join(partition.relations[number].name for number in split) or "none"
        raise ValueError(f"{key} must name the relation to learn; with a column split: {found}")
    return split[0]


def _candidates(partition: GraphPartition, relation: int, reverse: str) -> list[int]:
    """Relations that may hold the reverse edges. Raises ValueError for one that cannot."""
    kind = partition.relations[relation]
    fitting = [number for number, other in enumerate(partition.relations)
               if (other.src_type, other.dst_type) == (kind.dst_type, kind.src_type)]  # fmt: skip
    if reverse == NONE:
        return []
    if not reverse:
        return fitting
    number = partition.relation_of(reverse)
    if number not in fitting:
        raise ValueError(f"task.reverse {reverse} does not lead from the destinations of {kind.name} to its sources")
    return [number]


def to_sources(partition: GraphPartition, columns: list[np.ndarray], channel: Channel) -> list[np.ndarray]:
    """Collective. Rows of edges, source first, at the owners of their sources, in order of row ids (third)."""
    owner, _ = partition.book.locate(columns[0])
    moved = exchange_columns(columns, owner, channel)
    order = np.argsort(moved[2], kind="stable")
    return [column[order] for column in moved]


def _match(partition: GraphPartition, candidate: int, moved: list[np.ndarray], world: World) -> _Matched:
    """Collective. Edges [e] as ``to_sources`` gives them, and those of a relation that lead back: the first edge
    between two nodes goes with the first one back, the second with the second, in order of row ids."""
    src, dst, _, split, place = moved
    kind, edges = partition.relations[candidate], partition.edges[candidate]
    back = partition.global_ids(kind.dst_type)[edges.dst] * partition.book.num_nodes + edges.src
    order = np.lexsort((edges.row, back))
    key = src * partition.book.num_nodes + dst
    by_key = np.argsort(key, kind="stable")
    key, sorted_back = key[by_key], back[order]
    at = np.searchsorted(sorted_back, key) + np.arange(len(key)) - np.searchsorted(key, key)
    found = at < np.searchsorted(sorted_back, key, side="right")
    chosen = by_key[found]
    return _Matched(order[at[found]], split[chosen], place[chosen], int(world.total(int((~found).sum()))))


def _check_whole(kind: Relation, reverse: str, matched: dict[int, _Matched]) -> None:
    """Refuse a relation that was named and lacks reverses. Raises ValueError."""
    for found in matched.values():
        if reverse and found.missing:
            raise ValueError(
                f"task.reverse {reverse}: {found.missing} of {kind.num_edges} edges of {kind.name} have no reverse in "
                f"it, so a step would leave out some reverses and see others: add them, or set task.reverse {NONE}"
            )


def _check_splits(name: str, split: np.ndarray, matched: _Matched) -> None:
    if np.any(split[matched.position] != matched.split):
        raise ValueError(
            f"an edge of {name} and its reverse are in different splits: split with data_tools.split, which keeps them "
            f"together, or set task.reverse {NONE} where the direction tells edges apart"
        )


def _leave_out(pools, partition: GraphPartition, relation: int, split, place, matched) -> LinkSeeds:
    """The graph of training edges, and where in it the seeds and their reverses are."""
    mine = np.arange(len(split)), split, place
    pieces = {relation: [mine]}
    for number, found in matched.items():
        pieces.setdefault(number, []).append((found.position, found.split, found.place))
    lists, excluded = list(partition.edges), {}
    for number, columns in pieces.items():
        position, of, at = (np.concatenate(column) for column in zip(*columns, strict=True))
        kept = np.ones(len(lists[number].src), bool)
        kept[position[of != TRAIN]] = False
        seeds = (of == TRAIN) & kept[position]
        excluded[number] = (np.cumsum(kept) - 1)[position[seeds]], at[seeds]
        lists[number] = lists[number].take(kept)
    return LinkSeeds(pools, replace(partition, edges=tuple(lists)), excluded, tuple(matched))


def type_directory(partition: GraphPartition, kind: int, world: World, channel: Channel) -> NodeDirectory:
    """Collective. The nodes of a type, by row id."""
    mine, ids = partition.of_type(kind), partition.global_ids(kind)
    return NodeDirectory(world, channel, partition.flat_row[mine], ids, partition.book.num_nodes)


def known_answers(
    partition: GraphPartition, relation: int, reverse: bool, kept: np.ndarray | slice, channel: Channel
) -> KnownAnswers:
    """Collective. Edges of a relation, those where ``kept``: their destinations, or if reverse their sources, by the
    other end and column ``rel``."""
    kind, edges = partition.relations[relation], partition.edges[relation]
    src, dst = edges.src[kept], partition.global_ids(kind.dst_type)[edges.dst[kept]]
    types = edges.columns["rel"][kept].astype(np.int64) if "rel" in edges.columns else np.zeros(len(src), np.int64)
    if reverse:
        src, dst, _, types = to_sources(partition, [src, dst, edges.row[kept], types], channel)
        return KnownAnswers(partition.book.of_type(kind.src_type), partition.rank, dst, types, src)
    return KnownAnswers(partition.book.of_type(kind.dst_type), partition.rank, src, types, dst)
