"""How much memory a conversion takes, estimated from the files before they are read; and what it keeps on disk instead.

N nodes and E edges of the largest table, K buckets: what is not streamed (distinct ids, columns of nodes that change
their order, edges to compare with each other) is in memory as a whole, or a K-th of it at a time.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.parquet

from data_tools.source.file_spec import FileSpec
from data_tools.source.formats.npz_arrays import loaded_bytes, open_npy
from data_tools.source.formats.tables import SUFFIXES
from data_tools.source.formats.text_stream import Source
from data_tools.source.spec import EdgeSpec, NodeSpec, SourceSpec, table_files
from hpcgnn.graph.files import FileFormatError, split_relation

# What the interpreter, its libraries and a slab of every stream take, as measured.
FIXED_BYTES = 320 << 20
SAMPLE_BYTES = 1 << 20
MOST_BUCKETS = 1024
ID_BYTES = {"int": 40, "string": 120}  # of a distinct id, besides its text
RECORD_BYTES = 96  # of an edge that is compared with others


@dataclass(frozen=True, slots=True)
class Plan:
    """Peak memory in bytes, and the number of buckets (0: nothing goes by way of the disk)."""

    peak: int
    num_buckets: int
    num_edges: int

    def describe(self, memory: int) -> str:
        """One line to print first."""
        how = f"{self.num_buckets} buckets on disk" if self.num_buckets else "ids in memory"
        return (
            f"memory: {self.peak / 2**20:,.0f} MiB predicted, {memory / 2**20:,.0f} MiB allowed; "
            f"about {self.num_edges:,} rows of edges, {how}"
        )


def plan_conversion(spec: SourceSpec, memory: int) -> Plan:
    """The smallest number of buckets whose predicted peak is within ``memory`` bytes. ValueError when there is none."""
    rows = {edge.relation: table_rows(spec, edge) for edge in spec.edges}
    fixed = FIXED_BYTES + file_bytes(spec) + sum(kept_bytes(edge, rows[edge.relation]) for edge in spec.edges)
    parts = [id_bytes(spec, node, rows) for node in spec.nodes] + [scatter_bytes(spec, node) for node in spec.nodes]
    parts += [RECORD_BYTES * rows[edge.relation] for edge in spec.edges if edge.duplicates != "keep"]
    total = sum(rows.values())
    if fixed + sum(parts) <= memory:
        return Plan(fixed + sum(parts), 0, total)
    num_buckets = 4
    while num_buckets <= MOST_BUCKETS:
        # One of them is in memory at a time, of the largest; buckets differ in size.
        peak = fixed + int(1.5 * max(parts, default=0) / num_buckets)
        if peak <= memory:
            return Plan(peak, num_buckets, total)
        num_buckets *= 2
    raise ValueError(f"--memory: {memory / 2**20:,.0f} MiB are too few; the least is {peak / 2**20 + 1:,.0f} MiB")


def kept_bytes(edge: EdgeSpec, num_rows: int) -> int:
    """What of a relation is in memory in any case: which rows are kept, and their order where they are sorted."""
    return num_rows * (1 + (24 if edge.sort and edge.time is not None else 0) + (24 if edge.types is not None else 0))


def id_bytes(spec: SourceSpec, node: NodeSpec, rows: dict[str, int]) -> int:
    """Of the distinct ids of a type: those of its table, or at most as many as rows name it."""
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
    """Of the widest column of a type that has to be brought into the order of its ids."""
    if node.id is None:
        return 0
    widths = [0]
    for column in node.columns.values():
        names = [column.file] if column.file else table_files(node.file)
        widths += [row_width(spec.files[name]) for name in names]
    return table_rows(spec, node) * (16 + 2 * max(widths))


def table_rows(spec: SourceSpec, table: NodeSpec | EdgeSpec) -> int:
    """About how many rows the files of a table have."""
    return sum(file_rows(spec.files[name]) for name in table_files(table.file))


def file_rows(file: FileSpec) -> int:
    """About how many rows a file has: as declared, as its header says, or by the length of its first lines."""
    return sum(file.rows) if file.rows else sum(measure(piece)[0] for piece in file.pieces())


def row_width(file: FileSpec) -> int:
    """About how many bytes a row of a file has."""
    return max(measure(piece)[1] for piece in file.pieces()[:3])


def measure(piece: FileSpec) -> tuple[int, int]:
    """Rows of one file and bytes of a row."""
    source = Source(pathlib.Path(str(piece.path)), piece.member)
    if not source.path.is_file():
        raise FileFormatError(f"{source.path}: no such file")
    kind = kind_of(piece, source)
    with naming(source.path, kind):
        return measure_rows(source, kind)


@contextlib.contextmanager
def naming(path: pathlib.Path, kind: str) -> Iterator[None]:
    """What the libraries raise about damaged files, which has no common class, becomes a FileFormatError."""
    try:
        yield
    except FileFormatError:
        raise
    except Exception as error:
        raise FileFormatError(f"{path.name}: not a readable {kind} file ({error})") from None


def measure_rows(source: Source, kind: str) -> tuple[int, int]:
    """As `measure`, by format."""
    if kind == "parquet":
        footer = pyarrow.parquet.read_metadata(source.path)
        size = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
        return footer.num_rows, size // max(1, footer.num_rows) + 8
    if kind == "npy":
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
    """Of what is read as a whole: a group of rows of a parquet file; the arrays of npz, mat and JSON files."""
    largest = 0
    for file in (spec.files[name] for name in spec.used_files()):
        for piece in file.pieces():
            source = Source(pathlib.Path(str(piece.path)), piece.member)
            kind = kind_of(piece, source)
            if source.path.is_file():
                with naming(source.path, kind):
                    largest = max(largest, whole_bytes(source.path, kind))
    return largest


def whole_bytes(path: pathlib.Path, kind: str) -> int:
    """As `file_bytes`, of one file."""
    if kind == "npz":
        return loaded_bytes(path)
    if kind == "parquet":
        footer = pyarrow.parquet.read_metadata(path)
        return 2 * max((footer.row_group(i).total_byte_size for i in range(footer.num_row_groups)), default=0)
    return 4 * os.path.getsize(path) if kind in ("mat", "pt", "idlists") else 0


def kind_of(piece: FileSpec, source: Source) -> str:
    """The format of a file."""
    return SUFFIXES.get(source.suffix, "text") if piece.format == "auto" else piece.format
