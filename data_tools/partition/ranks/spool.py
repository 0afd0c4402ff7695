"""Deals the rows of the graph that streaming partitioners read (`pair_spool`) to the ranks, on their disks."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import numpy as np

from data_tools.partition.directory import Directory, add_up
from data_tools.partition.pair_graph import snapshots_of
from data_tools.partition.pair_spool import SpooledGraph, deal_slab, entry_dtype, merge_buckets
from data_tools.partition.ranks.graph import shared_slabs
from data_tools.partition.ranks.rows import RowSlabs, number_rows
from data_tools.partition.source import Source
from data_tools.team import Team
from hpcgnn.graph.book import BlockOwnership

ENTRY_BYTES = 100  # of memory for an entry of a slab, while it is sorted or streamed
LEAST_ENTRIES = 1 << 12  # of a slab: smaller ones would take many exchanges


@dataclass(frozen=True, slots=True)
class RowGraph:
    """The pair graph in rows. graph: of this rank's rows, neighbours are rows too; row [n]: of every node of this
    rank's block; total_ties: of the whole graph, both directions of a pair count once."""

    slabs: RowSlabs
    graph: SpooledGraph
    row: np.ndarray
    total_ties: int

    def of_block(self, values: np.ndarray) -> np.ndarray:
        """Collective. Values [n, ...] of the nodes of this rank's block, from those of its rows."""
        return self.slabs.lookup(values, self.row)

    def degrees(self) -> np.ndarray:
        """Collective. Distinct neighbours [n] of the nodes of this rank's block."""
        return self.of_block(np.diff(self.graph.indptr))


def tied_ends(team: Team, source: Source):
    """Edges between two nodes, every slab shared out over the ranks: both ends, and how much each counts."""
    for relation in source.relations:
        stays = source.kind == "snapshots" and "last" in relation.columns
        for start, src, dst in shared_slabs(team, source, relation):
            ties = snapshots_of(source, relation, start, len(src)) if stays else np.ones(len(src), np.int64)
            apart = src != dst
            yield np.r_[src[apart], dst[apart]], np.r_[dst[apart], src[apart]], np.r_[ties[apart], ties[apart]]


def build_row_graph(team: Team, source: Source, blocks: BlockOwnership, memory: int) -> RowGraph:
    """Collective. Write this rank's rows to unnamed files, in slabs that take about ``memory`` bytes while they are
    sorted."""
    entries, ties = np.zeros((int(np.diff(blocks.starts)[team.rank]), 1), np.int64), 0
    for node, _, amount in tied_ends(team, source):
        add_up(team, blocks, node, np.ones((len(node), 1), np.int64), entries)
        ties += int(amount.sum())
    table, row = number_rows(team, entries[:, 0])
    limit = min(max(LEAST_ENTRIES, memory // ENTRY_BYTES), -(-table.cost // team.size))
    slabs = RowSlabs(team, table.slab_starts(limit))
    graph = spool_rows(source, slabs, Directory(team, blocks, row), table.entries_of(slabs.rows()))
    return RowGraph(slabs, graph, row, int(team.sum(np.array([ties]))[0]) // 2)


def spool_rows(source: Source, slabs: RowSlabs, row_of: Directory, entries: np.ndarray) -> SpooledGraph:
    """Collective. This rank's rows with their neighbours, sorted and with repeated pairs merged; entries [n]: before
    they are merged."""
    team, dtype = slabs.team, entry_dtype(source)
    starts, indptr = slabs.local_starts, np.r_[0, np.cumsum(entries)]
    cursor = indptr[starts[:-1]].copy()
    with tempfile.TemporaryFile() as spool:
        for node, other, ties in tied_ends(team, source):
            row, neighbor = np.split(row_of.lookup(np.r_[node, other]), 2)
            rank, place = slabs.locate(row)
            order, counts = np.argsort(rank, kind="stable"), np.bincount(rank, minlength=team.size)
            place, neighbor, ties = (
                team.exchange(column[order].astype(dtype), counts)[0] for column in (place, neighbor, ties)
            )
            deal_slab(place, neighbor, ties, starts, cursor, spool)
        return merge_buckets(slabs.rows(), indptr, starts, dtype, spool, None, source.num_nodes)
