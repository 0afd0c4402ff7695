"""Reads source files behind one interface, in batches: delimited text and parquet here, others in this folder.

A table gives, for every requested reference, a `Raw` per batch; `values` turns those into NumPy arrays.
"""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from data_tools.source.file_spec import FileSpec, Reference
from data_tools.source.formats.arrays import ArraysTable, load_arrays
from data_tools.source.formats.lists import ListsTable, load_id_lists
from data_tools.source.formats.text_stream import CleanText, TextSource
from data_tools.source.formats.triples import TriplesTable
from data_tools.source.formats.turtle import TurtleTable
from data_tools.source.formats.values import Raw
from data_tools.source.selection import pick, select_all
from hpcgnn.graph.files import FileFormatError

PARQUET_ROWS = 1 << 17


class Table(Protocol):
    """A source file with rows."""

    name: str

    def batches(self, references: Mapping[str, Any]) -> Iterator[dict[str, Raw]]:
        """Yield pieces of the requested columns, in the order of the rows; the same rows for all columns."""


def open_table(spec: FileSpec) -> Table:
    """Make the reader of a file, by its declared format or its suffix. Raises FileFormatError for a missing file."""
    source, kind = spec.source, spec.kind
    if not source.path.is_file():
        raise FileFormatError(f"{source.path}: no such file")
    if spec.member is not None and kind in ("npz", "npy", "parquet", "mat", "pt"):
        raise FileFormatError(f"{source.name}: {kind} files are not read inside of archives; unpack it")
    if kind == "text":
        return TextTable(source, spec)
    if kind == "lists":
        return ListsTable(source, spec)
    if kind == "triples":
        return TriplesTable(source, spec.comment)
    if kind == "turtle":
        return TurtleTable(source)
    if kind == "idlists":
        return ArraysTable(source.name, load_id_lists(source))
    return ParquetTable(source.path) if kind == "parquet" else ArraysTable(source.name, load_arrays(source.path, kind))


class TextTable:
    """Delimited text, read by Arrow in a stream; every value stays text until its column is parsed."""

    def __init__(self, source: TextSource, spec: FileSpec):
        self.name = source.name
        self._source = source
        self._spec = spec
        self._whitespace = spec.delimiter == "whitespace"
        self._delimiter = " " if self._whitespace else spec.delimiter
        self._quote = False if self._whitespace else '"'

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        """Yield pieces of the requested columns. Raises FileFormatError for missing columns and rows of a wrong
        length."""
        with self._source.open() as raw:
            stream = CleanText(raw, self._spec.comment, self._whitespace)
            names, width = self._layout(stream)
            chosen, needed = select_all(self.name, references, names, width)
            if not stream.peek_line():
                return
            for batch in self._parse(stream, width, needed):
                yield pick(chosen, dict(zip(needed, batch.columns, strict=True)), batch.num_rows)

    def _layout(self, stream: CleanText) -> tuple[list[str], int]:
        """Find out column names (maybe fewer than columns) and the number of columns; takes the header from the
        stream."""
        header = self._split(stream.next_line()) if self._spec.header != "none" else []
        row = self._split(stream.peek_line())
        names = header if self._spec.header == "names" else list(self._spec.columns)
        width = len(row) or len(names)
        if self._spec.header == "names" and len(header) != width:
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
            raise FileFormatError(f"{self.name}: not UTF-8 text ({error}); is it compressed or binary?") from None
        quoting: Literal[0, 3] = csv.QUOTE_NONE if self._whitespace else csv.QUOTE_MINIMAL
        return [field.strip() for field in next(csv.reader([text], delimiter=self._delimiter, quoting=quoting))]

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
                    quote_char=self._quote,
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
            if not ragged:
                raise FileFormatError(f"{self.name}: {error}") from None
            row = ragged[0]
            where = f"row {row.number}" if row.number else f"a row ({row.text[:80]!r})"
            raise FileFormatError(
                f"{self.name}: {where} has {row.actual_columns} fields instead of {row.expected_columns}; mend or "
                "remove the row, or check the delimiter and comment characters"
            ) from None


class ParquetTable:
    """A parquet file; a reference is a name, a position, a range or a list of names and positions."""

    def __init__(self, path: pathlib.Path):
        self.name = path.name
        self._path = path

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        try:
            with pyarrow.parquet.ParquetFile(self._path) as file:
                names = file.schema_arrow.names
                chosen, needed = select_all(self.name, references, names, len(names))
                for batch in file.iter_batches(PARQUET_ROWS, columns=[names[p] for p in needed], use_threads=False):
                    yield pick(chosen, {p: batch.column(names[p]) for p in needed}, batch.num_rows)
        except pa.ArrowException as error:
            raise FileFormatError(f"{self.name}: not a readable parquet file ({error})") from None


def read_array(spec: FileSpec, reference: Any) -> np.ndarray:
    """Read a whole array of a file of arrays. Raises FileFormatError for a file of another kind."""
    table = open_table(spec)
    if not isinstance(table, ArraysTable):
        raise FileFormatError(f"{table.name}: no arrays, but rows; say which column: {{file: ..., column: ...}}")
    return table.array(reference)
