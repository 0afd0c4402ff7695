"""Predicts the memory of a conversion from its files before they are read, and divides the work into buckets on disk
where it does not fit.

Data that is not streamed is in memory as a whole or, with K buckets, a K-th of it at a time. It is distinct ids,
columns of nodes that change their order, and edges to compare with each other. The prediction is an upper bound: of the
rows that the readers of the files have counted, as if all ids were different.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from data_tools.source.file_spec import ColumnSpec
from data_tools.source.formats.table import Size, Table
from data_tools.source.formats.text_stream import TextSource
from data_tools.source.formats.values import Reference
from data_tools.source.spec import EdgeSpec, NodeSpec, SourceSpec, table_files
from hpcgnn.graph.files import split_relation

# The interpreter, its libraries and a slab of every stream, as measured.
FIXED_BYTES = 320 << 20
MOST_BUCKETS = 1024
ID_BYTES = {"int": 56, "string": 240}  # of a distinct id, besides its text
RECORD_BYTES = 112  # of an edge that is compared with others
KIND_BYTES = 28  # more where edges have kinds (column rel), which are compared, too
ORDER_BYTES = 36  # of an edge that is sorted by its time or its type
PLACE_BYTES = 24  # of a row of a column that changes its order
BOUND_BYTES = 16  # of the bounds of a bucket in a batch of ids


@dataclass(frozen=True, slots=True)
class ConvertPlan:
    """Peak memory in bytes, and the number of buckets (0: nothing goes by way of the disk)."""

    peak: int
    num_buckets: int
    num_edges: int

    def describe(self, memory: int) -> str:
        """Make the line that is printed first."""
        how = f"{self.num_buckets} buckets on disk" if self.num_buckets else "ids in memory"
        return (
            f"memory: {self.peak / 2**20:,.0f} MiB predicted, {memory / 2**20:,.0f} MiB allowed; "
            f"at most {self.num_edges:,} rows of edges, {how}"
        )


@dataclass(frozen=True, slots=True)
class Files:
    """The readers of a spec's files, each opened once, as it counts a text once."""

    spec: SourceSpec
    opened: dict[TextSource, Table] = field(default_factory=dict)

    def tables(self, names: Iterable[str]) -> list[Table]:
        """Open all chunks of some files."""
        pieces = (piece for name in names for piece in self.spec.files[name].pieces())
        return [self.opened.setdefault(piece.text, piece.open()) for piece in pieces]

    def size(self, table: NodeSpec | EdgeSpec, column: Reference) -> Size:
        """Add up the sizes of the files that hold a column of a table."""
        return sum((file.size(column) for file in self.tables(table_files(table.file))), Size())

    def column_bytes(self, node: NodeSpec, column: ColumnSpec) -> int:
        """Count the bytes that a column of nodes takes when it is stored, at most."""
        names = [column.file] if column.file is not None else table_files(node.file)
        return sum(table.column_bytes(column.column, column.sparse, node.id or 0) for table in self.tables(names))


def plan_conversion(spec: SourceSpec, memory: int) -> ConvertPlan:
    """Find the smallest number of buckets whose predicted peak is within ``memory`` bytes. Raises ValueError when there
    is none."""
    files = Files(spec)
    fixed = FIXED_BYTES + max((table.memory() for table in files.tables(spec.used_files())), default=0)
    if fixed > memory:
        raise too_little(memory, fixed)
    sizes = {edge.relation: files.size(edge, edge.src) for edge in spec.edges}
    for edge in spec.edges:
        # Which rows are kept, the order of sorted ones, and the order of those that a column of types divides.
        is_sorted, is_divided = edge.sort and edge.time is not None, edge.types is not None
        fixed += (1 + ORDER_BYTES * (is_sorted + is_divided)) * sizes[edge.relation].num_rows
    parts = [
        (RECORD_BYTES + KIND_BYTES * ("rel" in edge.columns)) * sizes[edge.relation].num_rows
        for edge in spec.edges if edge.duplicates != "keep"
    ]  # fmt: skip
    num_batches = 0
    for node in spec.nodes:
        if node.ids == "row":
            continue
        own = Size() if node.id is None else files.size(node, node.id)
        ends = [size for edge, size in sizes.items() for end in split_relation(edge)[::2] if end == node.type]
        named = sum(ends, own) if node.file is None or spec.adds_nodes(node) else own
        parts.append(named.num_rows * ID_BYTES[node.ids] + (2 * named.num_bytes if node.ids == "string" else 0))
        columns = (files.column_bytes(node, column) for column in node.columns.values())
        parts.append(PLACE_BYTES * named.num_rows + max(columns, default=0))
        num_batches += sum(ends, own).num_batches
    total = sum(size.num_rows for size in sizes.values())
    if fixed + sum(parts) <= memory:
        return ConvertPlan(fixed + sum(parts), 0, total)
    num_buckets = 4
    while num_buckets <= MOST_BUCKETS:
        # One bucket of the largest is in memory at a time; buckets differ in size.
        peak = fixed + int(1.5 * max(parts, default=0) / num_buckets) + BOUND_BYTES * num_buckets * num_batches
        if peak <= memory:
            return ConvertPlan(peak, num_buckets, total)
        num_buckets *= 2
    raise too_little(memory, peak)


def too_little(memory: int, least: int) -> ValueError:
    """Make the error for a size that is too small."""
    return ValueError(f"--memory: {memory / 2**20:,.0f} MiB are too few; the least is {least / 2**20 + 1:,.0f} MiB")
