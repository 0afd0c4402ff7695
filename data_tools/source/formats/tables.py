"""Reads source files behind one interface, in batches: delimited text, lists of ids and parquet here, others in this
folder.

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
from data_tools.source.formats.text_stream import CleanText, TextSource
from data_tools.source.formats.triples import TriplesTable
from data_tools.source.formats.turtle import TurtleTable
from data_tools.source.formats.values import Raw, is_number, not_utf8, text_array
from data_tools.source.selection import pick, select_all
from hpcgnn.graph.decode import decode_json
from hpcgnn.graph.files import FileFormatError

PARQUET_ROWS, PARQUET_TEXT_ROWS = 1 << 17, 1 << 14  # of a batch; text may be much shorter in the file
PARQUET_BYTES = 32 << 20  # of the numbers of a batch
NUMBER_BYTES = 8  # of a number, at most
MOST = 1 << 62  # that a number of a row or column of lists may be


class Table(Protocol):
    """A source file with rows."""

    name: str

    def batches(self, references: Mapping[str, Any]) -> Iterator[dict[str, Raw]]:
        """Yield pieces of the requested columns, in the order of the rows; the same rows for all columns."""


def open_table(spec: FileSpec, number: int = 1) -> Table:
    """Make the reader of a file, by its declared format or its suffix. ``number``: the how many-th file of triples it
    is. Raises FileFormatError for a missing file."""
    source, kind = spec.source, spec.kind
    source.check()
    if spec.member is not None and kind in ("npz", "npy", "parquet", "mat", "pt"):
        raise FileFormatError(f"{source.name}: {kind} files are not read inside of archives; unpack it")
    if kind == "text":
        return TextTable(source, spec)
    if kind == "lists":
        return ListsTable(source, spec)
    if kind == "triples":
        return TriplesTable(source, spec.comment, number)
    if kind == "turtle":
        return TurtleTable(source, number)
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

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        """Yield pieces of the requested columns. Raises FileFormatError for missing columns and rows of a wrong
        length."""
        with self._source.open() as raw:
            stream = CleanText(raw, self._spec.comment, self._whitespace)
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

    def unread(self, references: Mapping[str, Reference]) -> list[str]:
        """List the columns that the header names and no reference selects."""
        if self._spec.header != "names":
            return []
        with self._source.open() as raw:
            names, width = self._layout(CleanText(raw, self._spec.comment, self._whitespace), references)
        return others(self.name, references, names, width)

    def _layout(self, stream: CleanText, references: Mapping[str, Reference]) -> tuple[list[str], int]:
        """Find out column names (maybe fewer than columns) and the number of columns; takes the header from the
        stream."""
        header = self._split(stream.next_line()) if self._spec.header != "none" else []
        if self._spec.header == "names" and header and all(map(is_number, header)):
            items = [item for value in references.values() for item in (value if isinstance(value, list) else [value])]
            if not set(items) & set(header):
                raise FileFormatError(
                    f"{self.name}: the first line, {', '.join(header[:5])}, is all numbers, and no column is taken by "
                    "such a name; set header: none if it is a row of data, or header: skip"
                )
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
            raise not_utf8(self.name, error) from None
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self._spec.is_quoted else csv.QUOTE_NONE
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
                    quote_char='"' if self._spec.is_quoted else False,
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
        before, marks = self._spec.header != "none", self._spec.comment.encode()
        with self._source.open() as raw:
            for number, line in enumerate(raw, 1):
                text = line.strip(b" \t\r\n" if self._whitespace else b"\r\n")
                if text and text[:1] not in [marks[i : i + 1] for i in range(len(marks))]:
                    if before + row == 0:
                        return f" (line {number})"
                    before, row = (False, row) if before else (before, row - 1)
        return ""

    def _refuse_long_rows(self) -> None:
        """Raise FileFormatError for the first row that a quoted value spreads over several lines, if there is one."""
        if not self._spec.is_quoted:
            return
        with self._source.open() as raw:
            stream = CleanText(raw, self._spec.comment)
            if self._spec.header != "none":
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


class ListsTable:
    """Text of lines ``a b c ...`` as the rows (a, b), (a, c), ...; rows are counted over these pairs."""

    def __init__(self, source: TextSource, spec: FileSpec):
        self.name = source.name
        self._source = source
        self._spec = spec
        self._whitespace = spec.delimiter == "whitespace"
        self._delimiter = b" " if self._whitespace else spec.delimiter.encode()

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        chosen, _ = select_all(self.name, references, list(self._spec.columns), 2)
        with self._source.open() as raw:
            stream = CleanText(raw, self._spec.comment, self._whitespace)
            if self._spec.header != "none":
                stream.next_line()
            for block in stream.blocks():
                first, others = self._pairs(block)
                yield pick(chosen, {0: first, 1: others}, len(others))

    def _pairs(self, block: bytes) -> tuple[pa.Array, pa.Array]:
        """Split whole lines into both ends of their pairs, as text."""
        lines = [line.split(self._delimiter) for line in block.splitlines()]
        counts = np.array([len(line) - 1 for line in lines])
        heads = text_array(self.name, [line[0] for line in lines])
        others = text_array(self.name, [item for line in lines for item in line[1:]])
        return heads.take(np.repeat(np.arange(len(lines)), counts)), others


def load_id_lists(source: TextSource) -> dict[str, np.ndarray]:
    """Read the 0-1 matrix of a JSON object ``{"row": [column, ...], ...}``: arrays data, row, col, shape.

    Its shape goes up to the largest row and column; a column named twice in a row counts once.
    Raises FileFormatError for other JSON and for ids that are not 0, 1, ...
    """
    try:
        with source.open() as file:
            lists = decode_json(file.read())
    except ValueError as error:
        raise FileFormatError(f"{source.name}: not JSON ({error}); is it truncated?") from None
    if not isinstance(lists, dict):
        raise FileFormatError(f"{source.name}: expected an object of lists, {{row: [column, ...]}}")
    rows = []
    for key, columns in lists.items():
        is_list = isinstance(columns, list) and all(type(column) is int and 0 <= column < MOST for column in columns)
        if not (key.isdecimal() and int(key) < MOST and is_list):
            shown = str(columns)[:60]
            raise FileFormatError(f"{source.name}: row {key!r}: expected a list of numbers 0, 1, ..., got {shown}")
        rows += [(int(key), column) for column in set(columns)]
    row, col = np.array(sorted(rows), np.int64).reshape(-1, 2).T
    height = 1 + max(map(int, lists), default=-1)
    shape = np.array([height, 1 + col.max(initial=-1)])
    return {"data": np.ones(len(row), np.float32), "row": row, "col": col, "shape": shape}


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
                rows = batch_rows(file.metadata)
                for batch in file.iter_batches(rows, columns=[names[p] for p in needed], use_threads=False):
                    columns = {p: batch.column(names[p]) for p in needed}
                    yield pick(chosen, columns, batch.num_rows, is_exact=True)
        except (pa.ArrowException, OSError) as error:  # OSError: what is compressed cannot be unpacked
            reason = " ".join(str(error).split())
            raise FileFormatError(
                f"{self.name}: not a readable parquet file ({reason}); fetch or write it anew"
            ) from None

    def unread(self, references: Mapping[str, Reference]) -> list[str]:
        """List the columns that no reference selects."""
        names = pyarrow.parquet.read_schema(self._path).names
        return others(self.name, references, names, len(names))


def others(file: str, references: Mapping[str, Reference], names: list[str], width: int) -> list[str]:
    """List the names of the columns of a table that no reference selects; one after a delimiter at the end of the
    header has none."""
    chosen = select_all(file, references, names, width)[1] if names else []
    return [name for position, name in enumerate(names) if name and position not in chosen]


def batch_rows(footer: pyarrow.parquet.FileMetaData) -> int:
    """Choose how many rows of a parquet file to read at a time."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    has_text = any(column.physical_type == "BYTE_ARRAY" for column in columns)
    width = NUMBER_BYTES * sum(column.num_values for column in columns) // max(1, footer.num_rows)
    return max(1, min(PARQUET_TEXT_ROWS if has_text else PARQUET_ROWS, PARQUET_BYTES // max(1, width)))


def read_array(spec: FileSpec, reference: Any) -> np.ndarray:
    """Read a whole array of a file of arrays. Raises FileFormatError for a file of another kind."""
    table = open_table(spec)
    if not isinstance(table, ArraysTable):
        raise FileFormatError(f"{table.name}: no arrays, but rows; say which column: {{file: ..., column: ...}}")
    return table.array(reference)
