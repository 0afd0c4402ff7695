"""What the parts of a set need of each other, read from the part files.

P parts, R ranks, N nodes of all types by global id.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import h5py
import numpy as np

from data_tools.partition.access import end_probability
from data_tools.partition.quality import rank_of_parts
from data_tools.verify.book import BookRelation, BookView, read_book
from data_tools.verify.findings import Findings
from hpcgnn.graph import files

REMEDY = "run data_tools.verify, or partition again"


@dataclass(frozen=True, slots=True)
class Traffic:
    """edges [P, P]: by part of src and of dst; halo [P, P]: nodes of the second part that edges of the first need."""

    edges: np.ndarray
    halo: np.ndarray


def open_book(folder: pathlib.Path) -> BookView:
    """Read the book of a set; FileFormatError tells what is wrong with it."""
    findings = Findings()
    view = read_book(folder, findings)
    if view is None:
        raise files.FileFormatError(findings.lines[0])
    return view


def read_traffic(view: BookView) -> Traffic:
    """Count the edges and halos of all parts; one part is in memory at a time."""
    shape = (view.num_parts, view.num_parts)
    edges, halo = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for part in range(view.num_parts):
        needed = [np.empty(0, np.int64)]
        with files.reading(view.part_path(part), files.PART, REMEDY) as file:
            for relation in view.relations:
                group = file["edges"][relation.name]
                src = group["src"][:]
                src_part = relation.src_type.owner(src)
                needed.append(src[src_part != part])
                if view.kind == "temporal":
                    dst = group["dst"][:]
                    dst_part = relation.dst_type.owner(dst)
                    needed.append(dst[dst_part != part])
                    edges[part] += np.bincount(dst_part[src_part == part], minlength=view.num_parts)
                else:
                    edges[:, part] += np.bincount(src_part, minlength=view.num_parts)
        halo[part] = np.bincount(part_of(view, np.unique(np.concatenate(needed))), minlength=view.num_parts)
    return Traffic(edges, halo)


def part_of(view: BookView, ids: np.ndarray) -> np.ndarray:
    """Find the part [n] of global ids [n] of any types, -1 for ids that nobody has."""
    part = np.full(len(ids), -1, np.int64)
    for node_type in view.types:
        of_type = (ids >= node_type.base) & (ids < node_type.base + node_type.num_nodes)
        part[of_type] = node_type.owner(ids[of_type])
    return part


def expected_rows(view: BookView, num_ranks: int, fanouts: tuple[int, ...], batch_size: int) -> np.ndarray:
    """Compute the rows [R, T] of other ranks' nodes that a rank is expected to fetch in a training step of a static
    graph, by type: the recursion of `data_tools.partition.access`, for the seeds of each rank's run of parts."""
    num_nodes = sum(node_type.num_nodes for node_type in view.types)
    rank = rank_of_parts(view.num_parts, num_ranks)[part_of(view, np.arange(num_nodes))]
    learnt = learnt_relation(view)
    if learnt is None:
        seeds = seed_nodes(view, num_nodes)
        reached = np.where(rank == np.arange(num_ranks)[:, None], seeds * min(1.0, batch_size / max(1, seeds.sum())), 0)
    else:
        reached = seed_ends(view, learnt, rank, num_ranks, batch_size)
    for fanout in fanouts:
        with np.errstate(divide="ignore"):  # a node that is reached for sure has log 0
            missed = np.log1p(-reached)
            for src, dst, degree in in_edges(view, view.relations, learnt is not None):
                taken = np.ones(len(dst)) if fanout < 0 else np.minimum(1.0, fanout / degree)
                for row, probability in zip(missed, reached, strict=True):
                    active = np.flatnonzero(probability[dst])
                    weight = np.log1p(-probability[dst[active]] * taken[active])
                    np.add.at(row, src[active], weight)
        reached = -np.expm1(missed)
    reached[rank == np.arange(num_ranks)[:, None]] = 0
    bounds = [node_type.base for node_type in view.types]
    return np.add.reduceat(reached, bounds, axis=1)


def learnt_relation(view: BookView) -> BookRelation | None:
    """Find the relation whose edges are seeds: where no node has a split, the first relation that has one."""
    with files.open_checked(view.part_path(0), files.PART) as file:
        if any("split" in group for group in file["nodes"].values()):
            return None
        return next((relation for relation in view.relations if "split" in file["edges"][relation.name]), None)


def seed_nodes(view: BookView, num_nodes: int) -> np.ndarray:
    """Find the nodes [N] bool that train: training nodes of the split, or all nodes where there is no split."""
    seeds, split = np.zeros(num_nodes, bool), False
    for part in range(view.num_parts):
        with files.reading(view.part_path(part), files.PART, REMEDY) as file:
            for node_type in view.types:
                group = file["nodes"][node_type.name]
                if "split" in group:
                    split = True
                    begin = int(node_type.offsets[part])
                    seeds[begin : begin + len(group["row"])] = group["split"][:] == 0
    return seeds if split else np.ones(num_nodes, bool)


def seed_ends(view: BookView, relation: BookRelation, rank: np.ndarray, num_ranks: int, batch_size: int) -> np.ndarray:
    """Compute the probability [R, N] that a batch has a training edge of a node whose destination lies at each rank;
    rank [N]."""
    counts, total = np.zeros((num_ranks, len(rank))), 0
    for src, dst, _ in in_edges(view, (relation,), True):
        total += len(src)
        for end in (src, dst):
            np.add.at(counts, (rank[dst], end), 1)
    return end_probability(counts, batch_size, total)


def in_edges(
    view: BookView, relations: tuple[BookRelation, ...], learnt: bool
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the edges of every part and of ``relations``: global ids of src and dst [m], and the in-edges of dst [m];
    learnt: without edges that are held out."""
    for part in range(view.num_parts):
        with files.reading(view.part_path(part), files.PART, REMEDY) as file:
            for relation in relations:
                group: h5py.Group = file["edges"][relation.name]
                indptr, src = group["indptr"][:], group["src"][:]
                degree = np.diff(indptr)
                if indptr[0] or indptr[-1] != len(src) or degree.min(initial=0) < 0:
                    raise files.FileFormatError(f"{file.filename}: {group.name}: indptr and src do not fit; {REMEDY}")
                local = np.repeat(np.arange(len(degree)), degree)
                if learnt and "split" in group:
                    trains = group["split"][:] == 0
                    src, local = src[trains], local[trains]
                    degree = np.bincount(local, minlength=len(degree))
                yield src, int(relation.dst_type.offsets[part]) + local, degree[local]
