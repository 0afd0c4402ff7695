"""A source file as a table that is read in batches, and measured before.

Measures are its rows, its bytes, and the bytes that are in memory at once. Nothing is guessed: parquet files and arrays
have the numbers in their headers. Text, compressed or not, is read once from end to end, which takes a small part of
the time of its conversion.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, ClassVar

import numpy as np

from data_tools.source.formats.selection import select_all
from data_tools.source.formats.text_stream import BLOCK_BYTES, LONGEST_LINE, TextSource, too_long
from data_tools.source.formats.values import Raw
from hpcgnn.graph.files import FileFormatError

NUMBER_BYTES = 8  # of a number, at most
LINE_COPIES = 8  # of a line that is longer than a block


@dataclass(frozen=True, slots=True)
class Size:
    """Upper bounds on the rows of a file, or of several together, on their bytes, and on the batches they come in."""

    num_rows: int = 0
    num_bytes: int = 0
    num_batches: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.num_rows + other.num_rows, self.num_bytes + other.num_bytes, self.num_batches + other.num_batches
        )


@dataclass(slots=True)
class TextCount:
    """Counts of a text. num_marks: characters that may separate two values; longest: bytes of the longest line (0: no
    longer than a block); character_bytes: bytes that a character takes in memory."""

    num_bytes: int = 0
    num_lines: int = 0
    num_marks: int = 0
    longest: int = 0
    character_bytes: int = 1


class Table:
    """A source file with rows; a format is a subclass, whose methods here are right for a text with a row a line.

    spec: the `FileSpec` with the layout of the file; number: number of this file among the files of triples, from 1.
    Opening one reads nothing. All methods raise FileFormatError for a damaged file.
    """

    newline: ClassVar = b"\n"  # what `count_text` takes for the end of a line
    line_copies: ClassVar = LINE_COPIES
    value_bytes: ClassVar = NUMBER_BYTES // 2  # that a byte of the file takes: a number has a digit and a separator

    def __init__(self, source: TextSource, spec: Any = None, number: int = 1):
        self.name, self.source, self.spec, self.number = source.name, source, spec, number

    @property
    def marks(self) -> bytes:
        """Characters that may separate two values, where their number decides how much memory the text takes."""
        return b""

    @cached_property
    def counted(self) -> TextCount:
        """The counts of the text, which is read from end to end once."""
        with self.source.open() as stream:
            return count_text(stream, self.marks, self.newline)

    def batches(self, references: Mapping[str, Any]) -> Iterator[dict[str, Raw]]:
        """Yield pieces of the requested columns, in the order of the rows; the same rows for all columns."""
        raise NotImplementedError

    def names(self, references: Mapping[str, Any]) -> list[str]:
        """List the names of the columns, none where they have none; references: what is going to be read."""
        return []

    def unread(self, references: Mapping[str, Any]) -> list[str]:
        """List the named columns that no reference selects; one after a delimiter at the end of a header has none."""
        names = self.names(references)
        chosen = select_all(self.name, references, names, len(names))[1] if names else []
        return [name for position, name in enumerate(names) if name and position not in chosen]

    def line(self, row: int) -> str:
        """Say in brackets which line of the file a row of data is, 0-based, where that is not the row's number."""
        return ""

    def array(self, reference: Any) -> np.ndarray:
        """Read a whole array of a file of arrays. Raises FileFormatError for a file of another kind."""
        raise FileFormatError(f"{self.name}: no arrays, but rows; say which column: {{file: ..., column: ...}}")

    def memory(self) -> int:
        """Count the bytes that reading takes at most, whatever the number of rows: of all that is read as a whole, and
        of long lines."""
        if self.counted.longest > LONGEST_LINE:
            raise too_long(self.name)
        return self.counted.longest * self.line_copies

    def size(self, reference: Any) -> Size:
        """Measure the file, whose rows are the rows of a column. A file that is read as a whole is read, which takes
        `memory`."""
        counted = self.counted
        return Size(counted.num_lines, counted.num_bytes, 1 + counted.num_bytes // BLOCK_BYTES)

    def column_bytes(self, reference: Any, sparse: str | None, row: Any) -> int:
        """Count the bytes that a column of nodes takes at most when it is stored. The column is ``reference``, or the
        dense matrix of the arrays that begin with ``sparse``; ``row``: a column with a value per row."""
        if sparse is not None:
            return NUMBER_BYTES * int(np.prod(self.array(sparse + "shape"), dtype=object))
        return self.size(row).num_bytes * self.value_bytes


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


@contextlib.contextmanager
def naming(name: str, kind: str) -> Iterator[None]:
    """Make a FileFormatError of the errors that libraries raise about a damaged file, which have no common class."""
    try:
        yield
    except (FileFormatError, MemoryError):
        raise
    except Exception as error:
        raise FileFormatError(f"{name}: not a readable {kind} file ({error})") from None
