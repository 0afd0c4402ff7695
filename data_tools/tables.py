"""Readers of source files: text, npz, npy and parquet behind one interface, in batches.

A table gives, for every requested reference, a `Raw` per batch; `data_tools.values` turns those into NumPy arrays.
"""

from __future__ import annotations

import contextlib
import csv
import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from data_tools.arrays import ArraysTable
from data_tools.source_spec import FileSpec, Reference
from data_tools.text_stream import CleanText, open_binary
from data_tools.values import Raw
from hpcgnn.store.files import FileFormatError

PARQUET_ROWS = 1 << 17


class Table(Protocol):
    """A source file with rows."""

    name: str

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        """Pieces of the requested columns, in the order of the rows; the same rows for all of them."""


def open_table(spec: FileSpec) -> Table:
    """The reader for a file, by its declared format or its suffix."""
    path = pathlib.Path(spec.path)
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    kind = spec.format
    if kind == "auto":
        kind = path.suffix[1:] if path.suffix in (".npz", ".npy", ".parquet") else "text"
    if kind == "text":
        return TextTable(path, spec)
    return ParquetTable(path) if kind == "parquet" else ArraysTable(path, kind)


@dataclass(frozen=True, slots=True)
class Selection:
    """Positions of the columns that a reference selects; ``scalar`` means one column of numbers, not a matrix."""

    positions: list[int]
    labels: list[str]
    scalar: bool


def select(file: str, reference: Reference, names: list[str], width: int) -> Selection:
    """Resolve a reference in a table of ``width`` columns, of which the first ``len(names)`` have names.

    Raises FileFormatError naming the available columns when there is no such column.
    """
    if isinstance(reference, str) and (span := re.fullmatch(r"(\d*):(\d*)", reference)):
        start, stop = (int(text) if text else None for text in span.groups())
        positions = list(range(width))[start:stop]
        return Selection(positions, [f"#{i}" for i in positions], False)
    wanted = reference if isinstance(reference, list) else [reference]
    positions = [position(file, item, names, width) for item in wanted]
    return Selection(positions, [repr(item) for item in wanted], not isinstance(reference, list))


def position(file: str, item: int | str, names: list[str], width: int) -> int:
    """Position of one column given by name or position."""
    if isinstance(item, int) and 0 <= item < width:
        return item
    if isinstance(item, str) and item in names:
        if names.count(item) > 1:
            raise FileFormatError(f"{file}: the column name {item!r} occurs {names.count(item)} times; use positions")
        return names.index(item)
    listed = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
    raise FileFormatError(
        f"{file}: no column {item!r}; it has {width} columns" + (f", named {listed}" if names else "")
    )


class TextTable:
    """Delimited text, read by Arrow in a stream; every value stays text until its column is parsed."""

    def __init__(self, path: pathlib.Path, spec: FileSpec):
        self.name = path.name
        self._path = path
        self._spec = spec
        self._whitespace = spec.delimiter == "whitespace"
        self._delimiter = " " if self._whitespace else spec.delimiter
        self._quote = False if self._whitespace else '"'

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        """See `Table`. Raises FileFormatError for missing columns and rows of the wrong length."""
        with open_binary(self._path) as raw:
            stream = CleanText(raw, self._spec.comment, self._whitespace)
            names, width = self._layout(stream)
            chosen = {key: select(self.name, reference, names, width) for key, reference in references.items()}
            if not stream.peek_line():
                return
            needed = sorted({p for selection in chosen.values() for p in selection.positions})
            for batch in self._arrow_batches(stream, width, needed):
                column = dict(zip(needed, batch.columns, strict=True))
                yield {
                    key: Raw([column[p] for p in item.positions], item.labels, item.scalar, batch.num_rows)
                    for key, item in chosen.items()
                }

    def _layout(self, stream: CleanText) -> tuple[list[str], int]:
        """Column names (maybe fewer than columns) and the number of columns; takes the header from the stream."""
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
        quoting = csv.QUOTE_NONE if self._whitespace else csv.QUOTE_MINIMAL
        return [field.strip() for field in next(csv.reader([text], delimiter=self._delimiter, quoting=quoting))]

    def _arrow_batches(self, stream: CleanText, width: int, needed: list[int]) -> Iterator[pa.RecordBatch]:
        ragged: list[pyarrow.csv.InvalidRow] = []

        def refuse(row: pyarrow.csv.InvalidRow) -> str:
            ragged.append(row)
            return "error"

        try:
            yield from self._open_csv(stream, width, needed, refuse)
        except pa.ArrowInvalid as error:
            if not ragged:
                raise FileFormatError(f"{self.name}: {error}") from None
            row = ragged[0]
            where = f"row {row.number}" if row.number else f"a row ({row.text[:80]!r})"
            raise FileFormatError(
                f"{self.name}: {where} has {row.actual_columns} fields instead of {row.expected_columns}; mend or "
                "remove the row, or check the delimiter and comment characters"
            ) from None

    def _open_csv(self, stream: CleanText, width: int, needed: list[int], refuse) -> Iterator[pa.RecordBatch]:
        names = [str(i) for i in range(width)]
        reader = pyarrow.csv.open_csv(
            pa.PythonFile(stream, "r"),
            pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=8 << 20),
            pyarrow.csv.ParseOptions(
                delimiter=self._delimiter, quote_char=self._quote, invalid_row_handler=refuse, ignore_empty_lines=True
            ),
            pyarrow.csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                include_columns=[names[i] for i in needed] or names[:1],
                strings_can_be_null=False,
            ),
        )
        with reader:
            yield from reader


class ParquetTable:
    """A parquet file; a reference is a name, a position, a range or a list of those."""

    def __init__(self, path: pathlib.Path):
        self.name = path.name
        self._path = path

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        """See `Table`."""
        with self._open() as file:
            names = file.schema_arrow.names
            chosen = {key: select(self.name, reference, names, len(names)) for key, reference in references.items()}
            needed = sorted({p for selection in chosen.values() for p in selection.positions})
            for batch in file.iter_batches(PARQUET_ROWS, columns=[names[p] for p in needed], use_threads=False):
                yield {
                    key: Raw([batch.column(names[p]) for p in item.positions], item.labels, item.scalar, batch.num_rows)
                    for key, item in chosen.items()
                }

    @contextlib.contextmanager
    def _open(self) -> Iterator[pyarrow.parquet.ParquetFile]:
        try:
            with pyarrow.parquet.ParquetFile(self._path) as file:
                yield file
        except pa.ArrowInvalid as error:
            raise FileFormatError(f"{self.name}: not a readable parquet file ({error})") from None


def read_array(spec: FileSpec, reference: Reference) -> np.ndarray:
    """A whole array of an npz or npy file."""
    table = open_table(spec)
    if not isinstance(table, ArraysTable):
        raise FileFormatError(f"{table.name}: sets are read from npz and npy files only")
    return table.array(reference)
