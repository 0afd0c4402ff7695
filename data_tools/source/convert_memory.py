"""Predicts the memory of a conversion from its files before they are read, and decides what goes by way of the disk.

What is not streamed (distinct ids, columns of nodes that change their order, edges to compare with each other) is in
memory as a whole or, with K buckets, a K-th of it at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.parquet

from data_tools.source.file_spec import FileSpec
from data_tools.source.formats.npz_arrays import loaded_bytes, open_npy
from data_tools.source.spec import EdgeSpec, NodeSpec, SourceSpec, table_files
from hpcgnn.graph.files import FileFormatError, split_relation

# The interpreter, its libraries and a slab of every stream, as measured.
FIXED_BYTES = 320 << 20
SAMPLE_BYTES = 1 << 20
MOST_BUCKETS = 1024
ID_BYTES = {"int": 40, "string": 120}  # of a distinct id, besides its text
RECORD_BYTES = 96  # of an edge that is compared with others


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
            f"about {self.num_edges:,} rows of edges, {how}"
        )


def plan_conversion(spec: SourceSpec, memory: int) -> ConvertPlan:
    """Find the smallest number of buckets whose predicted peak is within ``memory`` bytes. Raises ValueError when there
    is none."""
    rows = {edge.relation: table_rows(spec, edge) for edge in spec.edges}
    fixed = FIXED_BYTES + file_bytes(spec)
    for edge in spec.edges:
        # Which rows are kept, the order of sorted ones, and the order of those that a column of types divides.
        row_bytes = 1 + (24 if edge.sort and edge.time is not None else 0) + (24 if edge.types is not None else 0)
        fixed += row_bytes * rows[edge.relation]
    parts = [id_bytes(spec, node, rows) for node in spec.nodes] + [scatter_bytes(spec, node) for node in spec.nodes]
    parts += [RECORD_BYTES * rows[edge.relation] for edge in spec.edges if edge.duplicates != "keep"]
    total = sum(rows.values())
    if fixed + sum(parts) <= memory:
        return ConvertPlan(fixed + sum(parts), 0, total)
    num_buckets = 4
    while num_buckets <= MOST_BUCKETS:
        # One bucket of the largest is in memory at a time; buckets differ in size.
        peak = fixed + int(1.5 * max(parts, default=0) / num_buckets)
        if peak <= memory:
            return ConvertPlan(peak, num_buckets, total)
        num_buckets *= 2
    raise ValueError(f"--memory: {memory / 2**20:,.0f} MiB are too few; the least is {peak / 2**20 + 1:,.0f} MiB")


def id_bytes(spec: SourceSpec, node: NodeSpec, rows: dict[str, int]) -> int:
    """Estimate the bytes of the distinct ids of a type: the ids of its table, and at most one for every end of an
    edge."""
    if node.ids == "row":
        return 0
    count, width = 0, 0
    if node.file is not None:
        count += table_rows(spec, node)
        width = max(row_width(spec.files[name]) for name in table_files(node.file))
    if node.file is None or spec.adds_nodes(node):
        for edge in spec.edges:
            ends = split_relation(edge.relation)[::2].count(node.type)
            count += ends * rows[edge.relation]
            if ends:
                width = max(width, *(row_width(spec.files[name]) for name in table_files(edge.file)))
    return count * (ID_BYTES[node.ids] + (2 * width if node.ids == "string" else 0))


def scatter_bytes(spec: SourceSpec, node: NodeSpec) -> int:
    """Estimate the bytes of the widest column of a type that has to be brought into the order of its ids."""
    if node.id is None:
        return 0
    widths = [0]
    for column in node.columns.values():
        names = [column.file] if column.file else table_files(node.file)
        widths += [row_width(spec.files[name]) for name in names]
    return table_rows(spec, node) * (16 + 2 * max(widths))


def table_rows(spec: SourceSpec, table: NodeSpec | EdgeSpec) -> int:
    """Estimate how many rows the files of a table have: as declared, as headers say, or by the length of first
    lines."""
    files = [spec.files[name] for name in table_files(table.file)]
    return sum(sum(file.rows) if file.rows else sum(measure(piece)[0] for piece in file.pieces()) for file in files)


def row_width(file: FileSpec) -> int:
    """Estimate how many bytes a row of a file has."""
    return max(measure(piece)[1] for piece in file.pieces()[:3])


def measure(piece: FileSpec) -> tuple[int, int]:
    """Estimate how many rows one file has, and how many bytes a row."""
    source = piece.source
    if not source.path.is_file():
        raise FileFormatError(f"{source.path}: no such file")
    with naming(piece):
        if piece.kind == "parquet":
            footer = pyarrow.parquet.read_metadata(source.path)
            size = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
            return footer.num_rows, size // max(1, footer.num_rows) + 8
        if piece.kind == "npy":
            array = open_npy(source.path)
            return len(array), array.nbytes // max(1, len(array))
        with source.open() as stream:
            sample = stream.read(SAMPLE_BYTES)
    lines = max(1, sample.count(b"\n"))
    if len(sample) < SAMPLE_BYTES:
        return lines, len(sample) // lines + 1
    # Compressed text is about a fifth of what it was.
    ratio = 1 if source.path.suffix not in (".gz", ".zip", ".tgz") else 5
    return int(os.path.getsize(source.path) * ratio * lines / len(sample)), len(sample) // lines + 1


def file_bytes(spec: SourceSpec) -> int:
    """Measure the bytes of the largest piece that is read as a whole: a group of rows of a parquet file, the arrays of
    npz, mat, pt and JSON files."""
    largest = 0
    for piece in (piece for name in spec.used_files() for piece in spec.files[name].pieces()):
        path, kind = piece.source.path, piece.kind
        if not path.is_file():
            continue
        with naming(piece):
            if kind == "npz":
                largest = max(largest, loaded_bytes(path))
            elif kind == "parquet":
                footer = pyarrow.parquet.read_metadata(path)
                groups = (footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
                largest = max(largest, 2 * max(groups, default=0))
            elif kind in ("mat", "pt", "idlists"):
                largest = max(largest, 4 * os.path.getsize(path))
    return largest


@contextlib.contextmanager
def naming(piece: FileSpec) -> Iterator[None]:
    """Make a FileFormatError of what the libraries raise about a damaged file, which has no common class."""
    try:
        yield
    except FileFormatError:
        raise
    except Exception as error:
        raise FileFormatError(f"{piece.source.path.name}: not a readable {piece.kind} file ({error})") from None
