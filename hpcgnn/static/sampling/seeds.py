"""Finds the seeds of static graphs: the nodes or edges of a split, their order in an epoch, the rank that handles each.

Where edges are seeds, this also finds the edges that carry messages, and known edges. s seeds of this rank, S steps,
R ranks; m in-edges of the relation at this rank, e edges of all ranks whose source this rank owns. An edge lies at the
owner of its destination; its reverse, an edge between the same nodes the other way, at the owner of its source. In a
turned graph, sources and destinations change places in this, but the columns ``src`` and ``dst`` of seeds and answers
are the graph's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from hpcgnn.comm.exchange import Channel, exchange_columns
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.directory import NodeDirectory, permute, places_of, spill
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.graph.splits import SPLITS
from hpcgnn.native import Random
from hpcgnn.static.sampling.neighbors import HiddenEdges
from hpcgnn.static.sampling.times import SEED_TIME, TIME
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
    """This rank's seeds in the batches of an epoch, step by step (indptr [S + 1]), within a step in order of position.
    columns [s, ...]: by name; position [s]: in the epoch; sizes [S]: numbers of the seeds of all ranks."""

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


class Completion(Protocol):
    """Makes the columns of a step's seeds, and further ones that steps need. Collective."""

    def over(self, channel: Channel) -> Completion:
        """Return a twin for another thread, which communicates over ``channel``."""

    def __call__(self, batches: SeedBatches, epoch: int, step: int) -> dict[str, np.ndarray]:
        """Collective. Make all columns of this rank's seeds of a step."""


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
    order = np.argsort(position, kind="stable")  # spill needs the seeds step by step
    order = order[position[order] < bounds[-1]]
    names, position = list(pool.columns), position[order]
    columns, sizes = [column[order] for column in pool.columns.values()], np.diff(bounds)
    if world.size > 1:
        target = spill(position // batch_size, sizes, channel)
        *columns, position = exchange_columns([*columns, position], target, channel)
        order = np.argsort(position, kind="stable")  # seeds arrive rank by rank
        columns, position = [column[order] for column in columns], position[order]
    indptr = np.searchsorted(position // batch_size, np.arange(len(sizes) + 1))
    return SeedBatches(pool.name, dict(zip(names, columns, strict=True)), position, indptr, sizes)


TRAIN, VAL, NO_SPLIT, NONE = 0, 1, -1, "none"
Masks = dict[int, np.ndarray]  # by relation, of its in-edges at this rank


@dataclass(frozen=True, slots=True)
class LinkSeeds:
    """Edges of a relation as seeds, by split in ``pools``. stays: by relation, masks [m] of the edges that are neither
    held out nor reverses of such; edges: by relation, the edges among these that training steps leave out. reverses: by
    relation, the number of edges that have a reverse in it, if any. Counts of the whole graph follow. num_left_out:
    edges without a split, which are neither seeds nor carry messages; num_repeated: held-out edges with a copy among
    the training edges. num_turned: training edges that carry no messages, because they are reverses of held-out edges.
    with_val: on request, the masks of training and validation edges, for the test."""

    pools: dict[str, SeedPool]
    stays: Masks
    edges: dict[int, HiddenEdges]
    reverses: dict[int, int]
    num_left_out: int
    num_repeated: int
    num_turned: int
    with_val: Masks | None


@dataclass(frozen=True, slots=True)
class _Groups:
    """Edges between the same two nodes as seeds: position [x] of an edge among the in-edges at this rank, its group
    [x], and place [y] and seed_group [y] of the training seeds."""

    position: np.ndarray
    edge_group: np.ndarray
    place: np.ndarray
    seed_group: np.ndarray


@dataclass(frozen=True, slots=True)
class _Reverses:
    """Edges of a relation that are reverses of seeds' edges: groups; split [x], place [x]: of the edge that each of
    them is the reverse of; num_matched: how many edges of the whole graph have a reverse that no other edge has."""

    groups: _Groups
    split: np.ndarray
    place: np.ndarray
    num_matched: int


def make_link_seeds(
    partition: GraphPartition, relation: int, reverse: str, typed: bool, world: World, channel: Channel,
    further: dict[str, np.ndarray] | None = None, chosen: np.ndarray | slice = slice(None), with_val: bool = False,
) -> LinkSeeds:  # fmt: skip
    """Collective. Make the seeds of a relation from its column ``split``; reverse: as ``task.reverse``; typed: only
    edges of one type (column ``rel``) are copies or reverses of each other. further: columns [m, ...] of the in-edges
    that seeds have too; chosen: mask [m] of the edges that may be seeds, such as the labeled ones; with_val: also make
    the masks of training and validation edges. Raises DistributedError, on all ranks, for settings that do not fit the
    graph."""
    kind, edges = partition.relations[relation], partition.edges[relation]
    with together(world, "read the splits"):
        split = _read_split(partition, relation)
        candidates = _candidates(partition, relation, reverse)
    all_columns = seed_columns(partition, relation) | (further or {})
    pools, place, may_be_seed = {}, np.full(len(split), -1, np.int64), np.zeros(len(split), bool)
    may_be_seed[chosen] = True
    for number, name in enumerate(SPLITS):
        in_split = may_be_seed & (split == number)
        columns = {column: values[in_split] for column, values in all_columns.items()}
        pools[name] = make_pool(name, edges.row[in_split], kind.num_edges, columns, world, channel)
        if number == TRAIN:
            place[in_split] = pools[name].place
    copies, reverses = _find_groups(partition, relation, candidates, typed, split, place, world, channel)
    with together(world, "match reverse edges"):
        back = reverses.get(relation)
        if back and back.num_matched == kind.num_edges and np.any(split[back.groups.position] != back.split):
            raise ValueError(
                f"an edge of {kind.name} and its reverse are in different splits: split with hpcgnn split, which "
                f"keeps them together, or set task.reverse {NONE} where the direction tells edges apart"
            )
    stays, num_turned = _masks(partition, relation, split, reverses)
    left_out = _leave_out(relation, stays, copies, reverses)
    counts = world.reduce_array(np.array([(split == NO_SPLIT).sum(), _count_repeated(split, copies), num_turned]))
    num_matched = {number: found.num_matched for number, found in reverses.items() if found.num_matched}
    later = None
    if with_val:  # validation edges count as training edges
        known = {n: replace(found, split=_with_val(found.split)) for n, found in reverses.items()}
        later, _ = _masks(partition, relation, _with_val(split), known)
    num_without, num_repeated, num_turned = counts.tolist()
    return LinkSeeds(pools, stays, left_out, num_matched, num_without, num_repeated, num_turned, later)


def _with_val(split: np.ndarray) -> np.ndarray:
    return np.where(split == VAL, TRAIN, split)


def _read_split(partition: GraphPartition, relation: int) -> np.ndarray:
    """Return the column ``split`` [m] int64 of a relation's in-edges at this rank. Raises ValueError."""
    name, edges = partition.relations[relation].name, partition.edges[relation]
    if "split" not in edges.columns:
        raise ValueError(
            f"relation {name} has no column split: run hpcgnn split --relation {name}, and partition again"
        )
    split = edges.columns["split"].astype(np.int64)
    strange = np.flatnonzero((split < NO_SPLIT) | (split >= len(SPLITS)))
    if len(strange):
        raise ValueError(
            f"column split of relation {name} must hold 0 (train), 1 (val), 2 (test) or {NO_SPLIT} (none: "
            f"the edge is neither learned nor followed), row {edges.row[strange[0]]} has {split[strange[0]]}: "
            f"convert it anew, or run hpcgnn split --relation {name}"
        )
    return split


def _count_repeated(split: np.ndarray, copies: _Groups) -> int:
    """Count the held-out edges of this rank that have a copy among the edges of training."""
    is_known = np.zeros(1 + copies.edge_group.max(initial=-1), bool)
    is_known[copies.seed_group] = True
    return int((is_known[copies.edge_group] & (split > TRAIN)).sum())


def seed_columns(partition: GraphPartition, relation: int) -> dict[str, np.ndarray]:
    """List the columns [m] int64 that seeds have of a relation's in-edges at this rank: global ids src and dst, row,
    and rel and TIME where the relation has them."""
    edges, ends = partition.edges[relation], _ends(partition, relation)
    src, dst = reversed(ends) if partition.turned else ends
    columns = {"src": src, "dst": dst, "row": edges.row}
    if "rel" in edges.columns:
        columns["rel"] = edges.columns["rel"].astype(np.int64)
    if SEED_TIME in edges.columns:
        columns[TIME] = edges.columns[SEED_TIME]
    return columns


def _ends(partition: GraphPartition, relation: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the global ids [m] of both ends of the edges at this rank: of the neighbors, and of this rank's nodes."""
    edges = partition.edges[relation]
    return edges.src, partition.global_ids(partition.relations[relation].dst_type)[edges.dst]


def edges_of_seeds(
    partition: GraphPartition, relation: int, reverse: str, typed: bool, place: np.ndarray, world: World,
    channel: Channel,
) -> dict[int, HiddenEdges]:  # fmt: skip
    """Collective. Find the seeds, their copies and their reverses among the in-edges, by relation. place [m]: of every
    in-edge in the pool, -1 where it is no seed; reverse, typed: as ``make_link_seeds`` takes them."""
    with together(world, "find reverse edges"):
        candidates = _candidates(partition, relation, reverse)
    split = np.full(len(place), TRAIN)
    copies, reverses = _find_groups(partition, relation, candidates, typed, split, place, world, channel)
    return _leave_out(relation, _masks(partition, relation, split, reverses)[0], copies, reverses)


def _find_groups(
    partition: GraphPartition, relation: int, candidates: list[int], typed: bool, split, place, world: World,
    channel: Channel,
) -> tuple[_Groups, dict[int, _Reverses]]:  # fmt: skip
    """Collective. Group a relation's in-edges by what they join, and find the reverses of its edges in the candidates.
    typed: edges of different types join different things."""
    columns = seed_columns(partition, relation)
    keys = [*_ends(partition, relation), *([columns["rel"]] if typed and "rel" in columns else [])]
    (number,) = _number_rows(keys)
    copies = _Groups(np.arange(len(split)), number, place[place >= 0], number[place >= 0])
    if not candidates:
        return copies, {}
    moved = to_owners(partition, [*keys[:2], columns["row"], split, place, *keys[2:]], channel)
    return copies, {candidate: _match(partition, candidate, moved, world) for candidate in candidates}


def _number_rows(*tables: list[np.ndarray]) -> list[np.ndarray]:
    """Number the rows of tables, each a list of columns [n], from 0 on: those that are equal have the same number."""
    columns = [np.concatenate(column) for column in zip(*tables, strict=True)]
    order = np.lexsort(columns)
    is_new = np.zeros(len(order), bool)
    for column in columns:
        is_new[1:] |= np.diff(column[order]) != 0
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_new)
    return np.split(number, np.cumsum([len(table[0]) for table in tables])[:-1])


def split_relation(partition: GraphPartition, name: str, key: str) -> int:
    """Choose the relation whose edges are seeds: the one named, or the only one with a column ``split``. Raises
    ValueError that begins with ``key``."""
    if name:
        return partition.relation_of(name, key)
    numbers = [number for number, edges in enumerate(partition.edges) if "split" in edges.columns]
    if not numbers:
        names = " or ".join(relation.name for relation in partition.relations)
        raise ValueError(
            f"no relation has a column split, which training needs: run hpcgnn split --relation NAME, one of "
            f"{names}, and partition again"
        )
    if len(numbers) != 1:
        names = ", ".join(partition.relations[number].name for number in numbers)
        raise ValueError(f"{key} must name the relation to learn; with a column split: {names}")
    return numbers[0]


def _candidates(partition: GraphPartition, relation: int, reverse: str) -> list[int]:
    """List the relations that may hold the reverse edges. Raises ValueError for a named one that cannot."""
    if reverse == NONE:
        return []
    kind = partition.relations[relation]
    leading_back = [number for number, other in enumerate(partition.relations)
                    if (other.src_type, other.dst_type) == (kind.dst_type, kind.src_type)]  # fmt: skip
    if not reverse:
        return leading_back
    number = partition.relation_of(reverse, "task.reverse")
    if number not in leading_back:
        raise ValueError(f"task.reverse {reverse} does not lead from the destinations of {kind.name} to its sources")
    return [number]


def to_owners(partition: GraphPartition, columns: list[np.ndarray], channel: Channel) -> list[np.ndarray]:
    """Collective. Send columns [m] of edges (one end, the other end, row id, ...) to the owners of the first end;
    returns columns [e] in order of row id."""
    owner, _ = partition.book.locate(columns[0])
    moved = exchange_columns(columns, owner, channel)
    order = np.argsort(moved[2], kind="stable")
    return [column[order] for column in moved]


def _match(partition: GraphPartition, candidate: int, moved: list[np.ndarray], world: World) -> _Reverses:
    """Collective. Match edges [e], as ``to_owners`` returns them, with those of a relation that lead back. In order of
    row ids, the first edge between two nodes goes with the first one back, the second with the second; where more lead
    back, the further ones go with the last edge. moved: with a sixth column, only edges back of the same type match,
    where the relation has types."""
    src, dst, _, split, place, *rel = moved
    edges = partition.edges[candidate]
    there, back = [src, dst], [*reversed(_ends(partition, candidate))]
    if rel and "rel" in edges.columns:
        there, back = [*there, rel[0]], [*back, edges.columns["rel"].astype(np.int64)]
    number, back_number = _number_rows(there, back)
    by_number = np.argsort(number, kind="stable")  # within a number in order of row
    begin, end = (np.searchsorted(number[by_number], back_number, side=side) for side in ("left", "right"))
    order = np.lexsort((edges.row, back_number))
    turn = np.empty(len(order), np.int64)  # place of an edge back among those of its number
    turn[order] = np.arange(len(order)) - np.searchsorted(back_number[order], back_number[order])
    position = np.flatnonzero(end > begin)
    partner = by_number[np.minimum(begin + turn, end - 1)[position]]
    num_matched = int(world.total(int((begin + turn < end).sum())))
    groups = _Groups(position, back_number[position], place[place >= 0], number[place >= 0])
    return _Reverses(groups, split[partner], place[partner], num_matched)


def _masks(
    partition: GraphPartition, relation: int, split: np.ndarray, reverses: dict[int, _Reverses]
) -> tuple[Masks, int]:
    """Mask the edges that are neither held out nor reverses of such, by relation; returns the number of training edges
    of this rank that the mask leaves out, too."""
    stays = {number: np.ones(len(partition.edges[number].src), bool) for number in {relation, *reverses}}
    stays[relation][split != TRAIN] = False
    num_kept = stays[relation].sum()
    for number, found in reverses.items():
        stays[number][found.groups.position[found.split != TRAIN]] = False
    return stays, int(num_kept - stays[relation].sum())


def _leave_out(
    relation: int, stays: Masks, copies: _Groups, reverses: dict[int, _Reverses]
) -> dict[int, HiddenEdges]:  # fmt: skip
    """Find, among the edges that stay, the edges that steps leave out."""
    hidden = {}
    for number, mask in sorted(stays.items()):
        groups = ([copies] if number == relation else []) + ([reverses[number].groups] if number in reverses else [])
        hidden[number] = _hide(groups, mask)
    return hidden


def take_edges(partition: GraphPartition, stays: Masks) -> GraphPartition:
    """Return the graph with the edges of the masks alone; relations without a mask keep all."""
    lists = list(partition.edges)
    for number, mask in stays.items():
        lists[number] = lists[number].take(mask)
    return replace(partition, edges=tuple(lists))


def _hide(groups: list[_Groups], stays: np.ndarray) -> HiddenEdges:
    """Join the groups of one relation, without edges that no graph of messages has; stays [m]: the other edges."""
    columns: list[list[np.ndarray]] = [[], [], [], []]
    first = 0
    for each in groups:
        left = stays[each.position]
        ends = (each.position[left], each.edge_group[left] + first, each.place, each.seed_group + first)
        for column, values in zip(columns, ends, strict=True):
            column.append(values)
        first += 1 + int(max(each.edge_group.max(initial=-1), each.seed_group.max(initial=-1)))
    position, *others = (np.concatenate(column) for column in columns)
    return HiddenEdges.of((np.cumsum(stays) - 1)[position], *others)


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
    query, answer = (end[selected] for end in _ends(partition, relation))
    types = edges.columns["rel"][selected].astype(np.int64) if "rel" in edges.columns else np.zeros_like(query)
    if reverse == partition.turned:  # answers are this rank's nodes
        return KnownAnswers(partition.book.of_type(kind.dst_type), partition.rank, query, types, answer)
    answer, query, _, types = to_owners(partition, [query, answer, edges.row[selected], types], channel)
    return KnownAnswers(partition.book.of_type(kind.src_type), partition.rank, query, types, answer)
