"""Reads tables as columns of text, block by block: CSV, packed by gzip or not, or Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # pyarrow takes a second to load, and most commands read no tables
    import pyarrow as pa

CSV_BYTES, ROWS = 1 << 22, 1 << 18  # of a CSV, and of a Parquet file, that are text in memory at once
SUFFIXES = (".csv", ".csv.gz", ".parquet")
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"  # that files begin with

Block = Mapping[str, "pa.Array"]  # columns of text, by name


def read_blocks(path: str, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Block]:
    """Yield the columns of a file as text, without spaces around it, block by block; at least one block. Raises
    ValueError naming file and row for a missing column or field, or a file that cannot be read."""
    import pyarrow as pa

    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file")
    with open(path, "rb") as file:
        start = file.read(len(PARQUET))
    source: _Csv | _Parquet = _Parquet(path) if start == PARQUET else _Csv(path, start[: len(GZIP)] == GZIP)
    try:
        header = source.header()
        missing = [column for column in columns if column not in header]
        if missing:
            found = f"{path}: no column {', '.join(missing)}; it has {', '.join(header)}"
            other = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), "")
            raise ValueError(f"{found}: its fields are separated by {other!r}: use commas" if other else found)
        chosen = [*columns, *(column for column in optional if column in header)]
        for column in chosen:
            if header.count(column) > 1:
                raise ValueError(f"{path}: column {column} is there {header.count(column)} times: leave one")
        num_rows = 0
        for batch in source.batches(chosen):
            yield {name: _clean(path, num_rows, name, batch[name], name in optional) for name in chosen}
            num_rows += batch.num_rows
        if num_rows == 0:
            yield dict.fromkeys(chosen, pa.array([], pa.string()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise ValueError(source.problem(error)) from error


def _clean(path: str, start: int, name: str, column: pa.Array, may_be_null: bool) -> pa.Array:
    """Return a column [b] as text without spaces around it. Raises ValueError for a field that is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.utf8_trim_whitespace(column.cast(pa.string()))
    if may_be_null:
        return text.fill_null("")
    if text.null_count:
        first = int(np.flatnonzero(text.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"{path}: row {start + first + 1}: {name} is null")
    return text


@dataclass(slots=True)
class _Csv:
    """A CSV with a header, packed by gzip or not. bad_row: the first row with another number of fields."""

    path: str
    is_packed: bool
    bad_row: Any = None

    def header(self) -> list[str]:
        from pyarrow import csv

        return self._open(csv.ConvertOptions()).schema.names

    def batches(self, chosen: list[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyarrow import csv

        kinds = dict.fromkeys(chosen, pa.string())
        yield from self._open(csv.ConvertOptions(column_types=kinds, include_columns=chosen, strings_can_be_null=False))

    def problem(self, error: Exception) -> str:
        """Say what is wrong with the file."""
        if self.bad_row is None:
            return f"{self.path}: not a CSV in UTF-8: {error}"
        row, fields = self.bad_row.number - 1, self.bad_row.expected_columns  # Arrow counts the header
        return f"{self.path}: row {row}: {fields} fields expected, as in the header"

    def _open(self, options: Any) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        def remember(row: Any) -> str:  # what it raises itself, Arrow drops
            self.bad_row = self.bad_row or row
            return "error"

        return csv.open_csv(
            pa.input_stream(self.path, compression="gzip" if self.is_packed else None),
            csv.ReadOptions(use_threads=False, block_size=CSV_BYTES),
            csv.ParseOptions(newlines_in_values=True, invalid_row_handler=remember), options,
        )  # fmt: skip


@dataclass(slots=True)
class _Parquet:
    """A Parquet file."""

    path: str

    def header(self) -> list[str]:
        from pyarrow import parquet

        return parquet.read_schema(self.path).names

    def batches(self, chosen: list[str]) -> Iterator[pa.RecordBatch]:
        from pyarrow import parquet

        with parquet.ParquetFile(self.path) as file:
            yield from file.iter_batches(ROWS, columns=chosen)

    def problem(self, error: Exception) -> str:
        """Say what is wrong with the file."""
        return f"{self.path}: not a Parquet file with columns of text or numbers: {error}"
