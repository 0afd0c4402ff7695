"""Readers of delimited text and lists of ids, and the table of all formats of source files, FORMATS.

A `Table` gives, for every requested reference, a `Raw` per batch; `values` turns those into NumPy arrays.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv

from data_tools.source.formats.arrays import IdListsTable, MatlabTable, NpyTable, NpzTable, RawTable, TensorsTable
from data_tools.source.formats.arrow_tables import ArrowTable, ParquetTable
from data_tools.source.formats.selection import pick, select_all
from data_tools.source.formats.table import Size, Table
from data_tools.source.formats.text_stream import CleanText
from data_tools.source.formats.triples import TriplesTable
from data_tools.source.formats.turtle import TurtleTable
from data_tools.source.formats.values import Raw, Reference, is_number, not_utf8, text_array
from hpcgnn.choices import Part
from hpcgnn.graph.files import FileFormatError

PAIR_COPIES = 24  # of a line that is split into pairs


class TextTable(Table):
    """Delimited text, read by Arrow in a stream; every value stays text until its column is parsed."""

    @property
    def _whitespace(self) -> bool:
        return self.spec.delimiter == "whitespace"

    @property
    def _delimiter(self) -> str:
        return " " if self._whitespace else self.spec.delimiter

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        """Yield pieces of the requested columns. Raises FileFormatError for missing columns and rows of a wrong
        length."""
        with self.source.open() as raw:
            stream = CleanText(raw, self.spec.comment, self._whitespace)
            names, width = self._layout(stream, references)
            chosen, needed = select_all(self.name, references, names, width)
            if not stream.peek_line():
                return
            num_rows = 0
            for batch in self._parse(stream, width, needed):
                if any(b"\n" in buffer.to_pybytes() for column in batch.columns if (buffer := column.buffers()[2])):
                    self._refuse_long_rows()
                yield pick(chosen, dict(zip(needed, batch.columns, strict=True)), batch.num_rows)
                num_rows += batch.num_rows
            if num_rows < stream.num_lines:  # in a column that nobody needs
                self._refuse_long_rows()

    def names(self, references: Mapping[str, Reference]) -> list[str]:
        """List the names in the header."""
        if self.spec.header != "names":
            return []
        with self.source.open() as raw:
            return self._layout(CleanText(raw, self.spec.comment, self._whitespace), references)[0]

    def _layout(self, stream: CleanText, references: Mapping[str, Reference]) -> tuple[list[str], int]:
        """Find out column names (maybe fewer than columns) and the number of columns; takes the header from the
        stream."""
        header = self._split(stream.next_line()) if self.spec.header != "none" else []
        if self.spec.header == "names" and header and all(map(is_number, header)):
            items = [item for value in references.values() for item in (value if isinstance(value, list) else [value])]
            if not set(items) & set(header):
                raise FileFormatError(
                    f"{self.name}: the first line, {', '.join(header[:5])}, is all numbers, and no column is taken by "
                    "such a name; set header: none if it is a row of data, or header: skip"
                )
        row = self._split(stream.peek_line())
        names = header if self.spec.header == "names" else list(self.spec.columns)
        width = len(row) or len(names)
        if self.spec.header == "names" and len(header) != width:
            raise FileFormatError(
                f"{self.name}: the header names {len(header)} columns, the first row has {width}; set header: skip and "
                "refer to columns by position (or name the first ones with columns: [...]), or check the delimiter"
            )
        if len(names) > width:
            raise FileFormatError(
                f"{self.name}: columns {names} are declared, but row 1 has only {width} fields; check the delimiter"
            )
        return names, width

    def _split(self, line: bytes) -> list[str]:
        if not line:
            return []
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(self.name, error) from None
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self.spec.is_quoted else csv.QUOTE_NONE
        try:
            fields = next(csv.reader([text], delimiter=self._delimiter, quoting=quoting))
        except csv.Error as error:  # a field of more than 128 KiB
            if "\r" in text:
                raise FileFormatError(
                    f"{self.name}: lines end in carriage returns alone; make them newlines: tr '\\r' '\\n' < FILE > NEW"
                ) from None
            raise FileFormatError(f"{self.name}: the first line: {error}; check the delimiter and the quotes") from None
        return [field.strip() for field in fields]

    def _parse(self, stream: CleanText, width: int, needed: list[int]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the needed columns, all text."""
        names = [str(i) for i in range(width)]
        ragged: list[pyarrow.csv.InvalidRow] = []

        def refuse(row: pyarrow.csv.InvalidRow) -> str:
            ragged.append(row)
            return "error"

        try:
            reader = pyarrow.csv.open_csv(
                pa.PythonFile(stream, "r"),
                pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=8 << 20),
                pyarrow.csv.ParseOptions(
                    delimiter=self._delimiter,
                    quote_char='"' if self.spec.is_quoted else False,
                    invalid_row_handler=refuse,
                    ignore_empty_lines=True,
                ),
                pyarrow.csv.ConvertOptions(
                    column_types={name: pa.string() for name in names},
                    include_columns=[names[i] for i in needed] or names[:1],
                    strings_can_be_null=False,
                ),
            )
            with reader:
                yield from reader
        except pa.ArrowException as error:
            self._refuse_long_rows()
            if "invalid UTF8" in str(error):
                raise not_utf8(self.name, error) from None
            if not ragged:
                raise FileFormatError(f"{self.name}: {error}") from None
            row = ragged[0]
            where = f"row {row.number}" if row.number else f"a row ({row.text[:80]!r})"
            line = self.line(row.number - 1) if row.number else ""
            raise FileFormatError(
                f"{self.name}: {where} has {row.actual_columns} fields instead of {row.expected_columns}{line}; mend "
                "or remove the row, or check the delimiter and comment characters"
            ) from None

    def line(self, row: int) -> str:
        """Say in brackets which line of the file a row of data is, 0-based: blank lines and comments are no rows."""
        before, marks = self.spec.header != "none", self.spec.comment.encode()
        with self.source.open() as raw:
            for number, line in enumerate(raw, 1):
                text = line.strip(b" \t\r\n" if self._whitespace else b"\r\n")
                if text and text[:1] not in [marks[i : i + 1] for i in range(len(marks))]:
                    if before + row == 0:
                        return f" (line {number})"
                    before, row = (False, row) if before else (before, row - 1)
        return ""

    def _refuse_long_rows(self) -> None:
        """Raise FileFormatError for the first row that a quoted value spreads over several lines, if there is one."""
        if not self.spec.is_quoted:
            return
        with self.source.open() as raw:
            stream = CleanText(raw, self.spec.comment)
            if self.spec.header != "none":
                stream.next_line()
            texts = (block.decode(errors="replace") for block in stream.blocks())
            lines = (line + "\n" for text in texts for line in text.split("\n")[:-1])
            rows, num_rows = csv.reader(lines, delimiter=self._delimiter), 0
            try:
                for _ in rows:
                    num_rows += 1
                    if rows.line_num > num_rows:
                        break
                else:
                    return
            except csv.Error:  # the value is very long
                num_rows += 1
            raise FileFormatError(
                f"{self.name}: row {num_rows}: a value in quotes goes over several lines; write it in one, or set "
                "quote: none where quotes are part of the values"
            )


class ListsTable(TextTable):
    """Text of lines ``a b c ...`` as the rows (a, b), (a, c), ...; rows are counted over these pairs."""

    line_copies = PAIR_COPIES

    @property
    def marks(self) -> bytes:
        """Characters that may separate two values: each is a row."""
        return b" \t" if self._whitespace else self.spec.delimiter.encode()

    def size(self, reference: Reference) -> Size:
        """Measure the file by its separators."""
        size = super().size(reference)
        return Size(self.counted.num_marks, size.num_bytes, size.num_batches)

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        chosen, _ = select_all(self.name, references, list(self.spec.columns), 2)
        with self.source.open() as raw:
            stream = CleanText(raw, self.spec.comment, self._whitespace)
            if self.spec.header != "none":
                stream.next_line()
            for block in stream.blocks():
                first, others = self._pairs(block)
                yield pick(chosen, {0: first, 1: others}, len(others))

    def _pairs(self, block: bytes) -> tuple[pa.Array, pa.Array]:
        """Split whole lines into both ends of their pairs, as text."""
        lines = [line.split(self._delimiter.encode()) for line in block.splitlines()]
        counts = np.array([len(line) - 1 for line in lines])
        heads = text_array(self.name, [line[0] for line in lines])
        others = text_array(self.name, [item for line in lines for item in line[1:]])
        return heads.take(np.repeat(np.arange(len(lines)), counts)), others


@dataclass(frozen=True)
class Format(Part):
    """A row of FORMATS. make: a subclass of Table; suffixes: of files that have the format where none is declared.
    in_archives: it is read from a stream, so the file may be a member of an archive. has_blank_nodes: the files are
    numbered, since names of their blank nodes mean other nodes in other files."""

    suffixes: tuple[str, ...] = ()
    in_archives: bool = True
    has_blank_nodes: bool = False


FORMATS: dict[str, Format] = {
    "auto": Format(None, "chosen by the suffix, else text"),
    "text": Format(TextTable, "delimited text"),
    "npz": Format(NpzTable, "arrays by name", (".npz",), in_archives=False),
    "npy": Format(NpyTable, "one array with the name array", (".npy",), in_archives=False),
    "raw": Format(RawTable, "numbers without a header, one array with the name array", in_archives=False),
    "parquet": Format(ParquetTable, "columns by name", (".parquet",), in_archives=False),
    "arrow": Format(ArrowTable, "Arrow IPC, Feather: columns by name", (".feather", ".arrow"), in_archives=False),
    "mat": Format(MatlabTable, "arrays of MATLAB files up to v7, by name", (".mat",), in_archives=False),
    "pt": Format(TensorsTable, "dictionary of tensors or arrays, written by torch.save", (".pt",), in_archives=False),
    "lists": Format(ListsTable, "text where a line `a b c ...` has the rows (a, b), (a, c), ..."),
    "triples": Format(TriplesTable, "N-Triples: subject, predicate, object", (".nt",), has_blank_nodes=True),
    "turtle": Format(TurtleTable, "triples in Turtle, or N3 of the same form", (".ttl", ".n3"), has_blank_nodes=True),
    "idlists": Format(IdListsTable, "JSON {row: [column, ...]} of a matrix of 0 and 1"),
}
