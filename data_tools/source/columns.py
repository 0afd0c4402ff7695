"""Reads the columns of a table in one pass through its files, and spools the parsed values to unnamed temporary files.

A spooled column comes back as a memory map, so the size of a source is bounded by the disk, not by the memory.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.source.classes import Classes
from data_tools.source.file_spec import ColumnSpec, FileSpec, TableFile
from data_tools.source.formats.arrays import Sparse
from data_tools.source.formats.dates import UTC, Dates, Zones
from data_tools.source.formats.table import Table
from data_tools.source.formats.values import (
    EXACT_FLOAT,
    Place,
    Raw,
    Reference,
    RowError,
    is_number,
    is_text,
    parse_numbers,
    parse_times,
    single,
    to_arrow,
    to_text,
)
from data_tools.source.relation_types import Origin
from data_tools.source.spec import SourceSpec, table_files
from data_tools.source.spool import Spool, forget
from hpcgnn.graph.files import FileFormatError, row_bytes, slabs
from hpcgnn.graph.splits import NO_SPLIT, SPLITS

GAP = np.iinfo(np.int64).min  # in place of a label that is missing
SPLIT_WORDS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
Convert = Callable[[Raw, str, int], np.ndarray]


@dataclass(frozen=True, slots=True)
class Field:
    """A column to read: ``convert(raw, file name, first row)`` gives the array to spool."""

    name: str
    file: str
    reference: Reference | Sparse | None
    convert: Convert


def read_fields(
    spec: SourceSpec, fields: list[Field], folder: pathlib.Path, origin: Origin | None = None
) -> dict[str, np.ndarray]:
    """Read columns, each file once; they must all have the same number of rows. Columns of width 0 are left out.

    ``origin`` records which files the rows of the first field come from.
    """
    columns: dict[str, np.ndarray] = {}
    numbers = spec.triples_files()
    for file in dict.fromkeys(field.file for field in fields):
        here = [field for field in fields if field.file == file]
        spools = {field.name: Spool(folder) for field in here}
        for piece in spec.files[file].pieces():
            table = piece.open(numbers.get(piece.text, 1))
            num_rows = read_piece(piece, table, here, spools, may_be_empty=bool(spec.files[file].chunks))
            if origin is not None and file == fields[0].file:
                origin.add(pathlib.Path(piece.title).name, num_rows)
        columns |= {name: spool.column() for name, spool in spools.items()}
        check_rows(spec.files[file].title, len(columns[here[0].name]), spec.files[file].rows)
    lengths = {spec.files[field.file].title: len(columns[field.name]) for field in fields}
    if len(set(lengths.values())) > 1:
        raise FileFormatError(f"files with rows that belong together differ in length: {lengths}")
    return {name: column for name, column in columns.items() if 0 not in column.shape[1:]}


def read_piece(piece: FileSpec, table: Table, fields: list[Field], spools: dict[str, Spool], may_be_empty: bool) -> int:
    """Add the columns of one file to spools; returns its number of rows. ``may_be_empty``: a file without a byte, which
    lacks even the names of its columns, has no rows."""
    if may_be_empty:
        with piece.text.open() as stream:
            if not stream.read(1):
                return 0
    first_row = 0
    for batch in table.batches({field.name: field.reference for field in fields}):
        for field in fields:
            try:
                rows = field.convert(batch[field.name], table.name, first_row)
            except RowError as error:
                raise FileFormatError(f"{error}{table.line(error.row)}") from None
            if not spools[field.name].fits(rows):
                raise FileFormatError(f"{piece.path}: its rows differ in width from the rows of the files before it")
            spools[field.name].append(rows)
        first_row += batch[fields[0].name].num_rows
    check_rows(piece.title, first_row, piece.rows)
    return first_row


def check_rows(title: str, count: int, expected: list[int]) -> None:
    """Raise FileFormatError where a file has another number of rows than it must have."""
    if expected and count != sum(expected):
        raise FileFormatError(f"{title}: has {count:,} rows, expected {sum(expected):,}; is a file cut short?")


def read_table(
    spec: SourceSpec, file: TableFile | None, fields: list[Field], folder: pathlib.Path, origin: Origin
) -> dict[str, np.ndarray]:
    """Read the columns of a table; from several files one after the other, with a column ``split`` [N] int8."""
    if not isinstance(file, dict):
        return read_fields(spec, fields, folder, origin)
    spools: dict[str, Spool] = {}
    empty: dict[str, np.ndarray] = {}
    for split, name in file.items():
        piece = read_fields(spec, [dataclasses.replace(field, file=name) for field in fields], folder, origin)
        piece["split"] = np.full(len(piece[fields[0].name]), SPLITS.index(split), np.int8)
        if not len(piece["split"]):
            empty = piece
            continue
        if spools and spools.keys() != piece.keys():
            raise FileFormatError(f"{spec.files[name].title}: its columns {sorted(piece)} are not {sorted(spools)}")
        for key, column in piece.items():
            spool = spools.setdefault(key, Spool(folder))
            if not spool.fits(column):
                title = spec.files[name].title
                raise FileFormatError(f"{title}: its rows differ in width from the rows of the files before it")
            for start, stop in slabs(len(column), row_bytes(column)):
                spool.append(column[start:stop])
    return {key: spool.column() for key, spool in spools.items()} or empty


def number_classes(fields: list[Field], columns: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """Put the classes of the columns that have any in order, and make numbers of labels with gaps; returns the words of
    classes by column."""
    for field in fields:
        if isinstance(field.convert, IntegerLabels) and field.name in columns:
            columns[field.name] = field.convert.finish(columns[field.name])
    classes = {field.name: field.convert for field in fields if isinstance(field.convert, Classes)}
    return {name: column_classes.finish(columns[name]) for name, column_classes in classes.items()}


def zones_of(fields: list[Field]) -> dict[str, Zones]:
    """List the zones of the dates of the columns that have been read as such."""
    return {field.name: field.convert.zones for field in fields if isinstance(field.convert, DateColumn | OrderedTimes)}


def column_fields(columns: dict[str, ColumnSpec], file: TableFile | None) -> list[Field]:
    """Make fields of the columns of a table, but for columns with ``sets``, which are not row by row."""
    names = table_files(file)
    return [
        Field(
            name,
            column.file or names[0],
            Sparse(column.sparse) if column.sparse is not None else column.column,
            converter(name, column),
        )
        for name, column in columns.items()
        if not column.sets
    ]


def converter(name: str, column: ColumnSpec) -> Convert:
    """Choose what parses the pieces of a stored column."""
    if column.classes and name != "split":
        return Classes(column.dtype or "int64", column.fill)
    if column.has_dates:
        return DateColumn(column)
    return IntegerLabels() if may_have_gaps(column) else partial(convert_column, name, column)


def may_have_gaps(column: ColumnSpec) -> bool:
    """Whether a column holds integers, or, where one is missing, floats with NaN."""
    return column.fill is not None and math.isnan(column.fill) and column.dtype == "int64"


def convert_column(name: str, column: ColumnSpec, raw: Raw, file: str, first_row: int) -> np.ndarray:
    """Parse one piece of a stored column; features are always a matrix, weights never."""
    fill = column.fill
    if name == "split" and not column.values:
        fill = NO_SPLIT if fill is None else fill
        places = [Place(file, label, first_row) for label in raw.labels]
        raw = dataclasses.replace(raw, parts=list(map(split_numbers, raw.parts, places)))
    values = parse_numbers(raw, file, first_row, np.dtype(column.dtype), fill, column.values)
    if name == "weight" and values.ndim > 1:
        what = f"a weight is one number, not {values.shape[1]}; choose one, or give the column another name"
        raise FileFormatError(f"{file}: column {', '.join(raw.labels)}: {what}")
    if name == "split" and len(bad := np.argwhere((values < -1) | (values >= len(SPLITS)))):
        what = f"split {values[tuple(bad[0])]} is not 0 (train), 1 (val), 2 (test) or -1 (none); map others by values"
        raise Place(file, raw.labels[0], first_row).error(int(bad[0][0]), what)
    return values[:, None] if name == "feat" and values.ndim == 1 else values


def split_numbers(part: pa.Array | np.ndarray, place: Place) -> pa.Array | np.ndarray:
    """Put numbers in place of the names of splits in a column [n] of text; other columns stay. Raises FileFormatError
    for another word."""
    if isinstance(part, np.ndarray) and part.dtype.kind in "biuf":  # also a matrix, which is no Arrow array
        return part
    column = to_arrow(part)
    if not is_text(column) and not pa.types.is_binary(column.type):
        return part
    words = pc.utf8_lower(pc.utf8_trim_whitespace(pc.fill_null(to_text(column, place), "")))
    for word in pc.unique(words).to_pylist():
        if word and word not in SPLIT_WORDS and not is_number(word):
            row = pc.index(words, word).as_py()
            raise place.error(
                row, f"split {word!r} is not one of {', '.join(SPLIT_WORDS)}; mend it, or map it by values"
            )
    numbers = pa.array([str(number) for number in SPLIT_WORDS.values()])
    return pc.coalesce(pc.take(numbers, pc.index_in(words, pa.array(list(SPLIT_WORDS)))), words)


class IntegerLabels:
    """Parses labels that are integers. `finish` makes floats of them, NaN where one is missing, if one is: a task
    on classes leaves out NaN, and a task on numbers, where -1 is a number, does so, too."""

    def __init__(self):
        self._has_gaps = False

    def __call__(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        try:
            return parse_numbers(raw, file, first_row, np.dtype(np.int64), None, {})
        except FileFormatError as error:
            try:
                values = parse_numbers(raw, file, first_row, np.dtype(np.float64), math.nan, {})
            except FileFormatError:
                raise error from None
            missing = np.isnan(values)
            values = np.where(missing, 0, values)
            if len(bad := np.argwhere((values != np.round(values)) | (np.abs(values) >= EXACT_FLOAT))):
                what = f"{values[tuple(bad[0])]} is no class; set dtype: float64 for labels that are numbers to predict"
                raise Place(file, raw.labels[0], first_row).error(int(bad[0][0]), what) from None
            if not missing.any():
                raise
            self._has_gaps = True
            return np.where(missing, GAP, values.astype(np.int64))

    def finish(self, column: np.ndarray) -> np.ndarray:
        """Return the column [n, ...], changed in place where labels are missing."""
        if not self._has_gaps:
            return column
        numbers = column.view(np.float64)
        for start, stop in slabs(len(column), row_bytes(column)):
            piece = np.array(column[start:stop])
            numbers[start:stop] = np.where(piece == GAP, math.nan, piece)
            forget(column)
        return numbers


class DateColumn:
    """Parses a stored column of dates, or of seconds since 1970. zones: the ones that its dates have."""

    def __init__(self, column: ColumnSpec):
        self._column, self._dates = column, Dates(column.dates, column.zone or UTC)
        self.zones = Zones()

    def __call__(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        part, place = single(raw, file, first_row)
        if self._dates.covers(part):
            return self._dates.read(part, place, 1, self.zones)
        self.zones.names.add(self._dates.zone)
        return parse_numbers(raw, file, first_row, np.dtype(self._column.dtype), self._column.fill, {})


class OrderedTimes:
    """Parses times and refuses the first that is smaller than the one before it. zones: the ones that dates have."""

    def __init__(self, scale: float, check: bool, dates: Dates):
        self._scale, self._dates = scale, dates
        self._check = check
        self._last: int | None = None
        self.zones = Zones()

    def __call__(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        part, place = single(raw, file, first_row)
        if self._dates.covers(part):
            times = self._dates.read(part, place, self._scale, self.zones)
        else:
            times = parse_times(raw, file, first_row, self._scale)
        if self._check and len(times):
            before = np.concatenate([times[:1] if self._last is None else [self._last], times[:-1]])
            if len(bad := np.flatnonzero(times < before)):
                row = int(bad[0])
                unit = "" if self._scale == 1 else f" (scaled by {self._scale:g})"
                raise Place(file, raw.labels[0], first_row).error(
                    row,
                    f"the time decreases from {before[row]} to {times[row]}{unit}; pass --sort (or set "
                    "sort: true) to sort the events by time",
                )
            self._last = int(times[-1])
        return times
