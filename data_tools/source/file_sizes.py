"""Measures source files before they are converted: how many rows they have, how many bytes, and how much of them is in
memory at once.

Nothing is guessed: headers tell it of parquet files and arrays, and text, compressed or not, is read once from end to
end, which takes a small part of the time of its conversion.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, ClassVar

import pyarrow.parquet

from data_tools.source.file_spec import FileSpec, Reference
from data_tools.source.formats.npz_arrays import NpzArrays, loaded_bytes
from data_tools.source.formats.tables import NUMBER_BYTES, PARQUET_TEXT_ROWS, open_table, read_array
from data_tools.source.formats.text_stream import BLOCK_BYTES, LONGEST_LINE, TextSource, too_long
from data_tools.source.formats.triples import COLUMNS
from hpcgnn.graph.files import FileFormatError

TORCH_BYTES = 224 << 20  # of torch, which reads pt files
SCIPY_BYTES, MATLAB_COPIES = 128 << 20, 5  # of the process that reads a mat file, and of its arrays in both processes
SPARSE_COPIES = 3  # of a matrix that has to be sorted by rows
ENTRY_BYTES, LIST_BYTES = 180, 320  # of an entry of lists in JSON, and of a list
LINE_COPIES, PAIR_COPIES = 8, 24  # of a line that is longer than a block, and of one that is split into pairs
PACKED = 15  # type of the elements of a MATLAB file that are compressed


@dataclass(frozen=True, slots=True)
class Size:
    """Of a file, or of several together: at most so many rows, with so many bytes, which come in so many batches."""

    num_rows: int = 0
    num_bytes: int = 0
    num_batches: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.num_rows + other.num_rows, self.num_bytes + other.num_bytes, self.num_batches + other.num_batches
        )


@dataclass(slots=True)
class TextCount:
    """What is counted in a text: bytes, lines, characters that may separate two values, the bytes of the longest line
    (0: no longer than a block), and the bytes that a character takes in memory."""

    num_bytes: int = 0
    num_lines: int = 0
    num_marks: int = 0
    longest: int = 0
    character_bytes: int = 1


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Measures files, each text once. All methods raise FileFormatError for a file that is missing or damaged."""

    counts: dict[TextSource, TextCount] = field(default_factory=dict)
    TEXTS: ClassVar = ("text", "lists", "triples", "turtle", "idlists")

    def memory(self, piece: FileSpec) -> int:
        """Count the bytes that reading a file takes at most, whatever its number of rows: what is read as a whole, and
        long lines."""
        piece.source.check()
        path, kind = piece.source.path, piece.kind
        if kind in self.TEXTS:
            counted = self.count(piece)
            if kind == "turtle":
                return counted.num_bytes * (1 + counted.character_bytes)
            if kind == "idlists":
                return 2 * counted.num_bytes + ENTRY_BYTES * counted.num_marks + LIST_BYTES * counted.num_lines
            if counted.longest > LONGEST_LINE:
                raise too_long(piece.source.name)
            return counted.longest * (PAIR_COPIES if kind == "lists" else LINE_COPIES)
        with naming(piece):
            if kind == "npz":
                is_sorted = any(name.endswith("row") for name in NpzArrays(path))
                return loaded_bytes(path) * (SPARSE_COPIES if is_sorted else 1)
            if kind == "parquet":
                footer = pyarrow.parquet.read_metadata(path)
                groups = (footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
                return 2 * max(groups, default=0)
            if kind == "pt":
                return SPARSE_COPIES * unzipped_bytes(path) + TORCH_BYTES
            return matlab_bytes(path) * MATLAB_COPIES + SCIPY_BYTES if kind == "mat" else 0

    def size(self, piece: FileSpec, column: Reference) -> Size:
        """Measure a file whose rows are those of ``column``. What is read as a whole is read: `memory` says what that
        takes."""
        piece.source.check()
        path, kind = piece.source.path, piece.kind
        if kind in ("text", "triples", "lists"):
            counted = self.count(piece)
            rows = counted.num_marks if kind == "lists" else counted.num_lines
            return Size(rows, counted.num_bytes, 1 + counted.num_bytes // BLOCK_BYTES)
        if kind == "turtle":
            total = Size()
            for batch in open_table(piece).batches({name: name for name in COLUMNS}):
                parts = [raw.parts[0] for raw in batch.values()]
                total += Size(len(parts[0]), sum(part.nbytes for part in parts), 1)
            return total
        with naming(piece):
            if kind == "parquet":
                return parquet_size(path)
        array = read_array(piece, column)
        largest = max(array.nbytes, os.path.getsize(path), 0 if kind == "npy" else self.memory(piece))
        return Size(len(array) if array.ndim else 0, array.nbytes, 1 + largest // BLOCK_BYTES)

    def count(self, piece: FileSpec) -> TextCount:
        """Count a text from end to end; of JSON, lines are lists."""
        source = piece.source
        if source not in self.counts:
            marks = {"idlists": b",[", "lists": b" \t" if piece.delimiter == "whitespace" else piece.delimiter.encode()}
            with source.open() as stream:
                self.counts[source] = count_text(
                    stream, marks.get(piece.kind, b""), b"[" if piece.kind == "idlists" else b"\n"
                )
        return self.counts[source]


def count_text(stream: IO[bytes], marks: bytes, newline: bytes) -> TextCount:
    """Count the bytes of a stream."""
    counted, line, last = TextCount(), 0, newline
    while block := stream.read(BLOCK_BYTES):
        counted.num_bytes += len(block)
        counted.num_lines += block.count(newline)
        counted.num_marks += sum(block.count(mark) for mark in marks)
        line += block.find(newline) if newline in block else len(block)
        if line > BLOCK_BYTES:
            counted.longest = max(counted.longest, line)
        if newline in block:
            line = len(block) - 1 - block.rfind(newline)
        if not block.isascii():
            # Python keeps a text in 1, 2 or 4 bytes a character, by the largest of them.
            lead = max(block)
            counted.character_bytes = max(counted.character_bytes, 4 if lead >= 0xF0 else 2 if lead >= 0xC4 else 1)
        last = block[-1:]
    counted.num_lines += last != newline
    return counted


def parquet_size(path: pathlib.Path) -> Size:
    """Measure a parquet file by its footer: numbers as they are in memory, text as it is in the file, where equal ones
    may be stored once."""
    footer = pyarrow.parquet.read_metadata(path)
    num_bytes = 0
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            is_text = column.physical_type == "BYTE_ARRAY"
            num_bytes += NUMBER_BYTES * column.num_values + (column.total_uncompressed_size if is_text else 0)
    num_batches = 1 + footer.num_row_groups + footer.num_rows // PARQUET_TEXT_ROWS
    return Size(footer.num_rows, num_bytes, num_batches)


def unzipped_bytes(path: pathlib.Path) -> int:
    """Count the bytes of the members of a zip file, or of another file itself."""
    if not zipfile.is_zipfile(path):
        return os.path.getsize(path)
    with zipfile.ZipFile(path) as archive:
        return sum(info.file_size for info in archive.infolist())


def matlab_bytes(path: pathlib.Path) -> int:
    """Count the bytes of the arrays of a MATLAB file, whose elements may be compressed."""
    total = os.path.getsize(path)
    with open(path, "rb") as file:
        order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:])
        while order and len(head := file.read(8)) == 8:
            kind, length = struct.unpack(f"{order}II", head)
            if kind != PACKED:
                file.seek(length, os.SEEK_CUR)
                continue
            packed, unpack = file.read(length), zlib.decompressobj()
            while packed and (piece := unpack.decompress(packed, BLOCK_BYTES)):
                total, packed = total + len(piece), unpack.unconsumed_tail
    return total


@contextlib.contextmanager
def naming(piece: FileSpec) -> Iterator[None]:
    """Make a FileFormatError of what the libraries raise about a damaged file, which has no common class."""
    try:
        yield
    except (FileFormatError, MemoryError):
        raise
    except Exception as error:
        raise FileFormatError(f"{piece.source.path.name}: not a readable {piece.kind} file ({error})") from None
