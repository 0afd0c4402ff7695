"""Finds the seeds of static graphs: the nodes or edges of a split, their order in an epoch, the rank that handles each.

Where edges are seeds, this also finds the edges that carry messages, and known edges. s seeds of this rank, S steps,
R ranks; m in-edges of the relation at this rank, e edges of all ranks whose source this rank owns. An edge lies at the
owner of its destination; its reverse, an edge between the same nodes the other way, at the owner of its source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.comm.exchange import Channel, exchange_columns
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.directory import NodeDirectory, permute, places_of, spill
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.graph.splits import SPLITS
from hpcgnn.native import Random
from hpcgnn.task.known_edges import KnownAnswers


@dataclass(frozen=True, slots=True)
class SeedPool:
    """A split's seeds at their owners. place [s] int64: of each seed among all ``total`` ones in order of row id;
    columns: [s, ...] by name, among them the global ids int64 of the seeds' nodes."""

    name: str
    place: np.ndarray
    total: int
    columns: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class SeedBatches:
    """This rank's seeds in the batches of an epoch: columns [s, ...] by name and position [s] in the epoch, step by
    step (indptr [S + 1]), within a step in order of position; sizes [S]: numbers of the seeds of all ranks."""

    name: str
    columns: dict[str, np.ndarray]
    position: np.ndarray
    indptr: np.ndarray
    sizes: np.ndarray

    @property
    def num_steps(self) -> int:
        """Number S of steps, the same on all ranks."""
        return len(self.sizes)

    def at(self, step: int) -> slice:
        """Return the places of this rank's seeds of a step."""
        return slice(int(self.indptr[step]), int(self.indptr[step + 1]))


def make_pool(
    name: str, keys: np.ndarray, num_keys: int, columns: dict[str, np.ndarray], world: World, channel: Channel
) -> SeedPool:
    """Collective. Make the pool of seeds with unique keys [s] int64 in [0, num_keys), such as their row ids."""
    place, total = places_of(keys, num_keys, world, channel)
    return SeedPool(name, place, total, columns)


def make_seed_batches(
    pool: SeedPool, batch_size: int, shuffle: Random | None, world: World, channel: Channel, drop_last: bool = False
) -> SeedBatches:
    """Collective. Cut the seeds, in order of place or shuffled by a random key, into batches. A rank handles its own
    seeds up to ceil(batch / R) a step; the rest go where there is room (``spill``). drop_last: leave out a short last
    batch."""
    position = pool.place if shuffle is None else permute(pool.place, pool.total, shuffle)
    bounds = np.append(np.arange(0, pool.total, batch_size, dtype=np.int64), pool.total)
    if drop_last and len(bounds) > 1 and bounds[-1] - bounds[-2] < batch_size:
        bounds = bounds[:-1]
    order = np.argsort(position, kind="stable")
    order = order[position[order] < bounds[-1]]
    names, position = list(pool.columns), position[order]
    columns, sizes = [column[order] for column in pool.columns.values()], np.diff(bounds)
    if world.size > 1:
        target = spill(position // batch_size, sizes, channel)
        *columns, position = exchange_columns([*columns, position], target, channel)
        order = np.argsort(position, kind="stable")
        columns, position = [column[order] for column in columns], position[order]
    indptr = np.searchsorted(position // batch_size, np.arange(len(sizes) + 1))
    return SeedBatches(pool.name, dict(zip(names, columns, strict=True)), position, indptr, sizes)


TRAIN, NO_SPLIT, NONE = 0, -1, "none"
PAIRS = 1 << 64  # numbers that a key has


@dataclass(frozen=True, slots=True)
class LinkSeeds:
    """Edges of a relation as seeds, by split in ``pools``. partition: the graph without held-out edges and their
    reverses; edges: by relation, positions [x] in that graph of every training seed and its reverses, and the place
    [x] of the seed in the training pool; reverses: numbers of the relations that hold the reverses; num_left_out:
    edges of the relation without a split, which are neither learnt nor followed."""

    pools: dict[str, SeedPool]
    partition: GraphPartition
    edges: dict[int, tuple[np.ndarray, np.ndarray]]
    reverses: tuple[int, ...]
    num_left_out: int


@dataclass(frozen=True, slots=True)
class _Matched:
    """Reverse edges in a relation: position [x] among its in-edges at this rank, split [x] and place [x] of the edges
    they are reverses of; missing: how many edges of the whole graph have none in this relation."""

    position: np.ndarray
    split: np.ndarray
    place: np.ndarray
    missing: int


def make_link_seeds(
    partition: GraphPartition, relation: int, reverse: str, world: World, channel: Channel
) -> LinkSeeds:  # fmt: skip
    """Collective. Make the seeds of a relation from its column ``split``; reverse: as ``task.reverse``. Raises
    DistributedError, on all ranks, for settings that do not fit the graph."""
    kind, edges = partition.relations[relation], partition.edges[relation]
    with together(world, "read the splits"):
        if "split" not in edges.columns:
            raise ValueError(f"relation {kind.name} has no column split: run data_tools.split --relation {kind.name}")
        split = edges.columns["split"].astype(np.int64)
        strange = np.flatnonzero((split < NO_SPLIT) | (split >= len(SPLITS)))
        if len(strange):
            raise ValueError(
                f"column split of relation {kind.name} must hold 0 (train), 1 (val), 2 (test) or {NO_SPLIT} (none: "
                f"the edge is neither learnt nor followed), row {edges.row[strange[0]]} has {split[strange[0]]}: "
                f"convert it anew, or run data_tools.split --relation {kind.name}"
            )
        candidates = _candidates(partition, relation, reverse)
    num_left_out = int(world.total(int((split == NO_SPLIT).sum())))
    all_columns = seed_columns(partition, relation)
    pools, place = {}, np.full(len(split), -1, np.int64)
    for number, name in enumerate(SPLITS):
        in_split = split == number
        columns = {column: values[in_split] for column, values in all_columns.items()}
        pools[name] = make_pool(name, edges.row[in_split], kind.num_edges, columns, world, channel)
        if number == TRAIN:
            place[in_split] = pools[name].place
    reverses = _match_all(partition, relation, candidates, reverse, split, place, world, channel)
    with together(world, "match reverse edges"):
        if relation in reverses and np.any(split[reverses[relation].position] != reverses[relation].split):
            raise ValueError(
                f"an edge of {kind.name} and its reverse are in different splits: split with data_tools.split, which "
                f"keeps them together, or set task.reverse {NONE} where the direction tells edges apart"
            )
    messages, edges_of_pool = _leave_out(partition, relation, split, place, reverses)
    return LinkSeeds(pools, messages, edges_of_pool, tuple(reverses), num_left_out)


def seed_columns(partition: GraphPartition, relation: int) -> dict[str, np.ndarray]:
    """List the columns [m] int64 that seeds have of a relation's in-edges at this rank: global ids src and dst, row,
    and rel where the relation has it."""
    kind, edges = partition.relations[relation], partition.edges[relation]
    columns = {"src": edges.src, "dst": partition.global_ids(kind.dst_type)[edges.dst], "row": edges.row}
    if "rel" in edges.columns:
        columns["rel"] = edges.columns["rel"].astype(np.int64)
    return columns


def edges_of_seeds(
    partition: GraphPartition, relation: int, reverse: str, place: np.ndarray, world: World, channel: Channel
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Collective. Find the seeds and their reverses among the in-edges: by relation, their positions and the places of
    the seeds. place [m]: of every in-edge in the pool, -1 where it is no seed. Raises DistributedError for a relation
    that is named in ``reverse`` and lacks reverses."""
    with together(world, "find reverse edges"):
        candidates = _candidates(partition, relation, reverse)
    split = np.where(place >= 0, TRAIN, -1)
    reverses = _match_all(partition, relation, candidates, reverse, split, place, world, channel)
    pieces = {relation: [(np.flatnonzero(place >= 0), place[place >= 0])]}
    for number, matched in reverses.items():
        of_seeds = matched.split == TRAIN
        pieces.setdefault(number, []).append((matched.position[of_seeds], matched.place[of_seeds]))
    edges = {}
    for number, pairs in pieces.items():
        positions, places = zip(*pairs, strict=True)
        edges[number] = np.concatenate(positions), np.concatenate(places)
    return edges


def _match_all(
    partition: GraphPartition, relation: int, candidates: list[int], reverse: str, split, place, world: World,
    channel: Channel,
) -> dict[int, _Matched]:  # fmt: skip
    """Collective. Find the reverses of a relation's edges in the candidates. Where ``reverse`` names no relation, only
    candidates count that have one reverse of each edge and no other edges. Raises DistributedError for a relation that
    is named and lacks reverses, and for one that does not count but has reverses of half of the held-out edges."""
    kind, columns = partition.relations[relation], seed_columns(partition, relation)
    moved = to_sources(partition, [columns["src"], columns["dst"], columns["row"], split, place], channel)
    matched = {candidate: _match(partition, candidate, moved, world) for candidate in candidates}
    with together(world, "match reverse edges"):
        missing = sum(match.missing for match in matched.values())
        if reverse and missing:
            raise ValueError(
                f"task.reverse {reverse}: {missing} of {kind.num_edges} edges of {kind.name} have no reverse in "
                f"it, so a step would leave out some reverses and see others: add them, or set task.reverse {NONE}"
            )
    exact = {
        number: match for number, match in matched.items()
        if reverse or (match.missing == 0 and partition.relations[number].num_edges == kind.num_edges)
    }  # fmt: skip
    held_out = world.total(int((split > TRAIN).sum()))
    for number in matched.keys() - exact.keys():
        seen, name = world.total(int((matched[number].split > TRAIN).sum())), partition.relations[number].name
        with together(world, "match reverse edges"):
            if held_out and 2 * seen >= held_out:
                remedy = f"set task.reverse {name}" if matched[number].missing == 0 else "add the missing reverses"
                raise ValueError(
                    f"{seen} of {held_out} validation and test edges of {kind.name} have a reverse in {name}, which "
                    f"messages would pass along ({matched[number].missing} of {kind.num_edges} edges have none): "
                    f"{remedy}, or set task.reverse {NONE} where the direction tells edges apart"
                )
    return exact


def split_relation(partition: GraphPartition, name: str, key: str) -> int:
    """Choose the relation whose edges are seeds: the one named, or the only one with a column ``split``. Raises
    ValueError that begins with ``key``."""
    if name:
        return partition.relation_of(name)
    numbers = [number for number, edges in enumerate(partition.edges) if "split" in edges.columns]
    if len(numbers) != 1:
        names = ", ".join(partition.relations[number].name for number in numbers) or "none"
        raise ValueError(f"{key} must name the relation to learn; with a column split: {names}")
    return numbers[0]


def _candidates(partition: GraphPartition, relation: int, reverse: str) -> list[int]:
    """List the relations that may hold the reverse edges. Raises ValueError for a named one that cannot, and for a rank
    with so many nodes that pairs of nodes have no key of 64 bits."""
    if reverse == NONE:
        return []
    kind, num_nodes = partition.relations[relation], partition.book.num_nodes
    most = int(np.diff(partition.book.of_type(kind.src_type).starts).max())
    if most * num_nodes > PAIRS:
        raise ValueError(
            f"reverse edges of {kind.name} are found among at most {PAIRS // num_nodes} nodes a rank, here one has "
            f"{most}: start more ranks, or set task.reverse {NONE}"
        )
    leading_back = [number for number, other in enumerate(partition.relations)
                    if (other.src_type, other.dst_type) == (kind.dst_type, kind.src_type)]  # fmt: skip
    if not reverse:
        return leading_back
    number = partition.relation_of(reverse)
    if number not in leading_back:
        raise ValueError(f"task.reverse {reverse} does not lead from the destinations of {kind.name} to its sources")
    return [number]


def to_sources(partition: GraphPartition, columns: list[np.ndarray], channel: Channel) -> list[np.ndarray]:
    """Collective. Send columns [m] of edges (source, destination, row id, ...) to the owners of their sources; returns
    columns [e] in order of row id."""
    owner, _ = partition.book.locate(columns[0])
    moved = exchange_columns(columns, owner, channel)
    order = np.argsort(moved[2], kind="stable")
    return [column[order] for column in moved]


def _match(partition: GraphPartition, candidate: int, moved: list[np.ndarray], world: World) -> _Matched:
    """Collective. Match edges [e], as ``to_sources`` returns them, with those of a relation that lead back. In order of
    row ids, the first edge between two nodes goes with the first one back, the second with the second."""
    src, dst, _, split, place = moved
    kind, edges = partition.relations[candidate], partition.edges[candidate]
    first, num_nodes = partition.book.of_type(kind.dst_type).starts[partition.rank], np.uint64(partition.book.num_nodes)
    back = edges.dst.astype(np.uint64) * num_nodes + edges.src.astype(np.uint64)
    order = np.lexsort((edges.row, back))
    key = (src - first).astype(np.uint64) * num_nodes + dst.astype(np.uint64)
    by_key = np.argsort(key, kind="stable")
    key, sorted_back = key[by_key], back[order]
    at = np.searchsorted(sorted_back, key) + np.arange(len(key)) - np.searchsorted(key, key)
    has_reverse = at < np.searchsorted(sorted_back, key, side="right")
    matched = by_key[has_reverse]
    missing = int(world.total(int((~has_reverse).sum())))
    return _Matched(order[at[has_reverse]], split[matched], place[matched], missing)


def _leave_out(
    partition: GraphPartition, relation: int, split: np.ndarray, place: np.ndarray, reverses: dict[int, _Matched]
) -> tuple[GraphPartition, dict[int, tuple[np.ndarray, np.ndarray]]]:  # fmt: skip
    """Make the graph of training edges alone, and find the training seeds and their reverses in it."""
    pieces = {relation: [(np.arange(len(split)), split, place)]}
    for number, matched in reverses.items():
        pieces.setdefault(number, []).append((matched.position, matched.split, matched.place))
    lists, excluded = list(partition.edges), {}
    for number, columns in pieces.items():
        position, splits, places = (np.concatenate(column) for column in zip(*columns, strict=True))
        stays = np.ones(len(lists[number].src), bool)
        stays[position[splits != TRAIN]] = False
        of_seeds = (splits == TRAIN) & stays[position]
        excluded[number] = (np.cumsum(stays) - 1)[position[of_seeds]], places[of_seeds]
        lists[number] = lists[number].take(stays)
    return replace(partition, edges=tuple(lists)), excluded


def type_directory(partition: GraphPartition, kind: int, world: World, channel: Channel) -> NodeDirectory:
    """Collective. Make the directory of the nodes of a type, in order of row id."""
    flat_rows, ids = partition.flat_row[partition.of_type(kind)], partition.global_ids(kind)
    return NodeDirectory(world, channel, flat_rows, ids, partition.book.num_nodes)


def known_answers(
    partition: GraphPartition, relation: int, reverse: bool, selected: np.ndarray | slice, channel: Channel
) -> KnownAnswers:
    """Collective. Index the selected edges of a relation: their destinations are the answers (with ``reverse`` their
    sources) to the other end and the column ``rel``. selected: mask [m] of the in-edges at this rank, or slice."""
    kind, edges = partition.relations[relation], partition.edges[relation]
    src, dst = edges.src[selected], partition.global_ids(kind.dst_type)[edges.dst[selected]]
    types = edges.columns["rel"][selected].astype(np.int64) if "rel" in edges.columns else np.zeros(len(src), np.int64)
    if reverse:
        src, dst, _, types = to_sources(partition, [src, dst, edges.row[selected], types], channel)
        return KnownAnswers(partition.book.of_type(kind.src_type), partition.rank, dst, types, src)
    return KnownAnswers(partition.book.of_type(kind.dst_type), partition.rank, src, types, dst)
