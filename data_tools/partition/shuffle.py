"""Brings the rows of a graph file to the ranks whose parts they are in; one process leaves them in the file.

The file is read in windows of rows, a share of each by every rank. An exchange brings every rank its rows of a window,
in order of the rows. They are kept in scratch files (in the system's temporary folder), so memory is bounded by a
window. Nodes are numbered by their global ids from then on. k rows of a window, n rows that a rank keeps.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields

import numpy as np

from data_tools.graph import source as graph_source
from data_tools.graph.source import EdgeType, NodeType, Source
from data_tools.partition.layout import Numbering, PartLayout
from data_tools.team import check_scratch
from hpcgnn.graph import files


class KeptColumn:
    """A column in a scratch file, read as a dataset is."""

    def __init__(self, stack: contextlib.ExitStack, tail: tuple[int, ...], dtype: np.dtype, attributes: dict):
        self._file = stack.enter_context(tempfile.TemporaryFile(buffering=0))
        self._rows, self._tail, self.dtype, self.attrs = 0, tail, np.dtype(dtype), attributes
        self._width = self.dtype.itemsize * math.prod(tail)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and trailing shape."""
        return (self._rows, *self._tail)

    def __len__(self) -> int:
        return self._rows

    def append(self, rows: np.ndarray) -> None:
        """Add rows [k, ...]."""
        view = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        while view:
            view = view[self._file.write(view) :]
        self._rows += len(rows)

    def __getitem__(self, index):
        """Read the rows of a slice with a step of 1, or one row."""
        if isinstance(index, slice):
            start, stop, _ = index.indices(self._rows)
            out = np.empty((max(0, stop - start), *self._tail), self.dtype)
            raw, read = out.reshape(-1).view(np.uint8), 0
            while read < len(raw):
                read += os.preadv(self._file.fileno(), [raw[read:].data], start * self._width + read)
            return out
        return self[index : index + 1][0]


@dataclass(frozen=True, slots=True)
class KeptSource(Source):
    """The rows of a graph file that a rank keeps, as a Source. Types, relations and their sizes describe the whole
    file; nodes are numbered by global ids."""

    kept_nodes: dict[str, dict[str, KeptColumn]] = field(default_factory=dict)
    kept_edges: dict[str, dict[str, KeptColumn]] = field(default_factory=dict)

    def edges(self, relation: EdgeType) -> dict[str, KeptColumn]:
        """Return the columns of a relation's edges by name."""
        return self.kept_edges[relation.name]

    def nodes(self, node_type: NodeType) -> dict[str, KeptColumn]:
        """Return the columns of a type's nodes by name."""
        return self.kept_nodes[node_type.name]

    def edge_slabs(self, relation: EdgeType, row_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield positions (start, stop), here, of the kept edges of each of the file's slabs."""
        return kept_slabs(self.edges(relation)["row"], relation.num_edges, row_bytes)

    def node_slabs(self, node_type: NodeType, row_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield positions (start, stop), here, of the kept nodes of each of the file's slabs."""
        return kept_slabs(self.nodes(node_type)["row"], node_type.num_nodes, row_bytes)

    def edge_rows(self, relation: EdgeType, start: int, stop: int) -> np.ndarray:
        """Return the row ids [stop - start] of the kept edges start .. stop - 1."""
        return self.edges(relation)["row"][start:stop]

    def node_rows(self, node_type: NodeType, start: int, stop: int) -> np.ndarray:
        """Return the row ids [stop - start] of the kept nodes start .. stop - 1."""
        return self.nodes(node_type)["row"][start:stop]

    def node_parts(self, layout: PartLayout, node_type: NodeType, start: int, stop: int) -> np.ndarray:
        """Return the parts [stop - start] of the kept nodes start .. stop - 1."""
        return layout.part[self.nodes(node_type)["#id"][start:stop]]


def kept_slabs(rows: KeptColumn, num_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield positions (start, stop) in rows [n], increasing, of the slabs of all rows; slabs without rows are left
    out."""
    start = 0
    for _, last in files.slabs(num_rows, row_bytes, graph_source.SLAB_BYTES):
        stop = bisect.bisect_left(rows, last, lo=start)
        if stop > start:
            yield start, stop
        start = stop


def shuffle(
    source: Source, numbering: Numbering, both_ends: bool, window: int, stack: contextlib.ExitStack
) -> tuple[Source, PartLayout]:
    """Collective. Bring to this rank the nodes of its parts, and the edges whose destination (with ``both_ends``,
    either end) lies in them. Returns them as a source, and the layout of its nodes.

    window: bytes of rows that all ranks together have in memory; scratch files live as long as ``stack``.
    """
    if numbering.blocks.team.size == 1:
        return source, numbering.by_node()
    tables: list = [(source.nodes(item), item.columns, item.num_nodes, 16) for item in source.types]
    tables += [(source.edges(item), item.columns, item.num_edges * (1 + both_ends), 24) for item in source.relations]
    check_scratch(
        numbering.blocks.team,
        sum(count * (own + sum(files.row_bytes(table[name]) for name in names)) for table, names, count, own in tables),
    )
    moved = KeptSource(**{item.name: getattr(source, item.name) for item in fields(Source)})
    for node_type in source.types:
        moved.kept_nodes[node_type.name] = move_nodes(source, numbering, node_type, window, stack)
    for relation in source.relations:
        moved.kept_edges[relation.name] = move_edges(source, numbering, relation, both_ends, window, stack)
    return moved, numbering.by_id


def move_nodes(
    source: Source, numbering: Numbering, node_type: NodeType, window: int, stack: contextlib.ExitStack
) -> dict:
    """Collective. Move the columns of a type's nodes, their rows and their global ids ``#id``."""
    table = source.nodes(node_type)

    def route(start: int, stop: int) -> tuple[dict, np.ndarray, np.ndarray]:
        ids = numbering.blocks.lookup(numbering.global_id, node_type.base + np.arange(start, stop))
        return {"row": np.arange(start, stop), "#id": ids}, np.arange(stop - start), numbering.rank_of(ids)

    return move_table(numbering, table, node_type.columns, node_type.num_nodes, route, ("row", "#id"), window, stack)


def move_edges(
    source: Source,
    numbering: Numbering,
    relation: EdgeType,
    both_ends: bool,
    window: int,
    stack: contextlib.ExitStack,
) -> dict:
    """Collective. Move the columns of a relation's edges, their rows, and their endpoints: global ids relative to their
    type."""
    table = source.edges(relation)
    src_base, dst_base = relation.src_type.base, relation.dst_type.base

    def route(start: int, stop: int) -> tuple[dict, np.ndarray, np.ndarray]:
        src, dst = table["src"][start:stop].astype(np.int64), table["dst"][start:stop].astype(np.int64)
        src, dst = np.split(numbering.blocks.lookup(numbering.global_id, np.r_[src + src_base, dst + dst_base]), 2)
        index, rank = np.arange(stop - start), numbering.rank_of(dst)
        if both_ends:
            of_src = numbering.rank_of(src)
            other = np.flatnonzero(of_src != rank)
            index, rank = np.r_[index, other], np.r_[rank, of_src[other]]
        return {"row": np.arange(start, stop), "src": src - src_base, "dst": dst - dst_base}, index, rank

    return move_table(
        numbering, table, relation.columns, relation.num_edges, route, ("row", "src", "dst"), window, stack
    )


def move_table(
    numbering: Numbering, table, columns: tuple[str, ...], num_rows: int, route: Callable, own: tuple[str, ...],
    window: int, stack: contextlib.ExitStack,
) -> dict[str, KeptColumn]:  # fmt: skip
    """Collective. Move the rows of a table. route(start, stop), collective: columns ``own`` of rows start .. stop - 1
    by name [k], and pairs (index into them, rank that needs the row)."""
    team = numbering.blocks.team
    moved = {name: KeptColumn(stack, (), np.dtype(np.int64), {}) for name in own}
    moved |= {
        name: KeptColumn(stack, table[name].shape[1:], table[name].dtype, dict(table[name].attrs)) for name in columns
    }
    width = 8 * len(own) + sum(files.row_bytes(table[name]) for name in columns)
    for first, last in files.slabs(num_rows, width, window):
        start, stop = team.share(first, last)
        routed, index, rank = route(start, stop)
        order = np.lexsort((index, rank))
        index, counts = index[order], np.bincount(rank, minlength=team.size)
        for name, column in moved.items():
            values = routed[name] if name in routed else table[name][start:stop]
            column.append(team.exchange(values[index], counts)[0])
    return moved
