"""Turns text, Arrow and NumPy values of files into checked NumPy arrays: ids, times, numbers.

Every refusal names file, column, row (1-based, counted over the rows of data), value and remedy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpcgnn.graph.files import FileFormatError

# From here on, a float64 may stand for several integers.
EXACT_FLOAT = 2**53
TIME_TOLERANCE = 1e-6
DATES = "dates are declared: dates: iso in a spec, --set dates=iso with the preset csv-temporal"
WORDS = "; words that name classes are numbered with classes: true in a spec"
Reference = int | str | list  # a column by name or position, an array, a range of columns, or several columns
LONGEST_NAME = 1024  # bytes; ids of text are stored with the width of the longest


@dataclass(frozen=True, slots=True)
class Raw:
    """A piece of a column as the file gives it: one part per source column.

    ``scalar`` columns have one part and become [n]; others become [n, width], the parts side by side. White space
    around values is theirs where they are ``is_exact``; in text it is not.
    """

    parts: list[pa.Array | np.ndarray]
    labels: list[str]
    scalar: bool
    num_rows: int
    is_exact: bool = False


class RowError(FileFormatError):
    """An error about one row of a file, 0-based and counted over its rows of data."""

    def __init__(self, message: str, row: int):
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, slots=True)
class Place:
    """Where values stand in a source file; ``first_row`` is the 0-based row of the first of them."""

    file: str
    column: str
    first_row: int

    def error(self, index: int, message: str) -> RowError:
        """Make an error about the value at ``index`` of this piece."""
        row = self.first_row + int(index)
        return RowError(f"{self.file}: column {self.column}, row {row + 1}: {message}", row)


def parse_ids(raw: Raw, file: str, first_row: int) -> np.ndarray:
    """Parse integer ids [n], int64. Raises FileFormatError for text, fractions and negative values."""
    part, place = single(raw, file, first_row)
    values = to_numbers(
        part, place, None, "an integer id; for ids that are text pass --ids string (in a spec: ids: string)"
    )
    values = to_integers(values, np.dtype(np.int64), place)
    if len(bad := np.flatnonzero(values < 0)):
        raise place.error(bad[0], f"the id {values[bad[0]]} is negative; ids are 0 or more, or text: --ids string")
    return values


def parse_names(raw: Raw, file: str, first_row: int) -> pa.Array:
    """Parse ids that are text [n]. Raises FileFormatError for ids that are empty or too long."""
    part, place = single(raw, file, first_row)
    names = pc.fill_null(to_text(part, place), "")
    names = names if raw.is_exact else pc.utf8_trim_whitespace(names)
    if len(bad := np.flatnonzero(pc.equal(names, "").to_numpy(zero_copy_only=False))):
        raise place.error(bad[0], "the id is empty; mend or remove the row")
    lengths = pc.binary_length(names).to_numpy(zero_copy_only=False)
    if len(bad := np.flatnonzero(lengths > LONGEST_NAME)):
        raise place.error(
            bad[0],
            f"the id has {lengths[bad[0]]:,} bytes, at most {LONGEST_NAME:,} are stored; put numbers, or hashes, in "
            "place of ids",
        )
    return names


def parse_numbers(
    raw: Raw, file: str, first_row: int, dtype: np.dtype, fill: float | None, words: Mapping[str, int]
) -> np.ndarray:
    """Parse a column [n] or [n, width] of ``dtype``.

    ``fill`` replaces empty and NaN values, which are refused when it is None (NaN itself: not known, for numbers to
    learn); ``words`` maps text to numbers.
    """
    pieces = []
    for part, label in zip(raw.parts, raw.labels, strict=True):
        place = Place(file, label, first_row)
        if words:
            values = map_words(part, place, words, fill)
        else:
            expected = f"a number ({dtype})" + ("" if dtype.kind == "f" else WORDS)
            values = to_numbers(part, place, fill, expected, fractions=dtype.kind == "f")
        pieces.append(to_dtype(values, dtype, place, fill))
    if raw.scalar:
        return pieces[0]
    pieces = [piece.reshape(raw.num_rows, -1) if raw.num_rows else piece[:, None] for piece in pieces]
    return pieces[0] if len(pieces) == 1 else np.hstack(pieces or [np.empty((raw.num_rows, 0), dtype)])


def parse_times(raw: Raw, file: str, first_row: int, scale: float) -> np.ndarray:
    """Parse times [n] as int64: source * scale, which must be integral (to 1e-6 and the rounding of float64)."""
    part, place = single(raw, file, first_row)
    source = to_numbers(part, place, None, f"a time (a number; {DATES})")
    if source.dtype.kind in "iu" and float(scale).is_integer():
        scale = int(scale)
        limit = (2**63 - 1) // scale
        if len(bad := np.flatnonzero((source > limit) | (source < -limit))):
            raise place.error(bad[0], f"the time {source[bad[0]]} times time_scale {scale} is not within +-{2**63 - 1}")
        return source.astype(np.int64) * scale
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = source.astype(np.float64) * scale
    if len(bad := np.flatnonzero(~np.isfinite(scaled))):
        raise place.error(bad[0], f"the time {source[bad[0]]} is not a finite number; mend or remove the row")
    stored = np.round(scaled)
    # Reading and scaling a decimal costs at most two units in the last place; a fraction of 0.1 is never just that.
    slack = np.minimum(0.1, np.maximum(TIME_TOLERANCE, 2 * np.spacing(np.abs(scaled))))
    bad = np.flatnonzero((np.abs(scaled - stored) > slack) | (np.abs(scaled) >= EXACT_FLOAT))
    if len(bad):
        raise place.error(
            bad[0],
            f"the time {source[bad[0]]} times time_scale {scale:g} is not an integer (or too large to be sure); "
            "declare a time_scale that makes all times integral, such as 1000 for milliseconds in a file of seconds",
        )
    return stored.astype(np.int64)


def text_array(file: str, items: list[bytes]) -> pa.Array:
    """Make an Arrow array of text. Raises FileFormatError for bytes that are not UTF-8."""
    try:
        return pa.array(items, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise not_utf8(file, error) from None


def not_utf8(file: str, error: Exception) -> FileFormatError:
    """Make the error for a text in another encoding, or bytes that are no text."""
    return FileFormatError(
        f"{file}: not UTF-8 text ({error}); is it compressed or binary? Another encoding is declared by "
        "--set encoding=latin-1 with csv presets, in specs by encoding: latin-1; iconv -f latin1 -t utf-8 makes it "
        "UTF-8"
    )


def single(raw: Raw, file: str, first_row: int) -> tuple[pa.Array | np.ndarray, Place]:
    """Take the only part of a scalar column, and its place. Raises FileFormatError for a column of several."""
    if not raw.scalar:
        raise FileFormatError(f"{file}: an id or a time is one column, not {', '.join(raw.labels) or 'an empty range'}")
    part = raw.parts[0]
    if (not isinstance(part, np.ndarray) and pa.types.is_nested(part.type)) or getattr(part, "ndim", 1) > 1:
        raise FileFormatError(f"{file}: column {raw.labels[0]}: an id or a time is one value, not a list of them")
    return part, Place(file, raw.labels[0], first_row)


def is_text(part: pa.Array | np.ndarray) -> bool:
    """Say whether values are an Arrow array of text."""
    return isinstance(part, pa.Array) and (pa.types.is_string(part.type) or pa.types.is_large_string(part.type))


def to_arrow(part: pa.Array | np.ndarray) -> pa.Array:
    """Make an Arrow array of numbers, text or bytes."""
    if isinstance(part, np.ndarray):
        return pa.array(part)
    return part.dictionary_decode() if pa.types.is_dictionary(part.type) else part


def to_text(part: pa.Array | np.ndarray, place: Place) -> pa.Array:
    """Make an Arrow array of text. Raises FileFormatError for bytes that are no UTF-8, and for what is no text."""
    column = to_arrow(part)
    try:
        return column.cast(pa.string())
    except pa.ArrowNotImplementedError:
        raise FileFormatError(f"{place.file}: column {place.column} has type {column.type}, expected text") from None
    except pa.ArrowInvalid:
        bad = next(index for index, item in enumerate(column) if not is_utf8(item))
        text = column[bad].as_py()[:32]
        raise place.error(
            bad, f"{text!r} is not UTF-8 text; write it as text, such as by bytes.hex() in Python"
        ) from None


def is_utf8(item: pa.Scalar) -> bool:
    """Say whether bytes are text."""
    with contextlib.suppress(pa.ArrowInvalid):
        item.cast(pa.string())
        return True
    return False


def to_numbers(
    part: pa.Array | np.ndarray, place: Place, fill: float | None, expected: str, fractions: bool = False
) -> np.ndarray:
    """Make numbers: int64, float64 or the type of the file; text is read as float64 at once if ``fractions``."""
    if isinstance(part, np.ndarray) and part.dtype.kind in "iufb":
        return part.astype(np.int8) if part.dtype.kind == "b" else part
    column = to_arrow(part)
    if is_text(column):
        return text_to_numbers(column, place, fill, expected, fractions)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type):
        return lists_to_matrix(column, place)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return text_to_numbers(to_text(column, place), place, fill, expected, fractions)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        seconds = "; in pandas .dt.as_unit('s').astype('int64') makes seconds of dates"
        remedy = seconds if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type) else ""
        raise FileFormatError(
            f"{place.file}: column {place.column} has type {column.type}, expected {expected}{remedy}"
        )
    return without_nulls(column, place, fill)


def without_nulls(column: pa.Array, place: Place, fill: float | None) -> np.ndarray:
    """Turn Arrow numbers into NumPy's, with ``fill`` in place of missing ones; the type is widened where it does not
    hold the fill, such as -1 among uint8."""
    if not column.null_count:
        return column.to_numpy(zero_copy_only=False)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if fill is None:
        raise place.error(
            int(np.argmax(missing)), "the value is missing; mend the row or declare a fill for the column"
        )
    values = pc.fill_null(column, pa.scalar(0).cast(column.type)).to_numpy(zero_copy_only=False)
    dtype = values.dtype
    if dtype.kind != "f":
        dtype = np.dtype(np.int64) if float(fill).is_integer() else np.dtype(np.float64)
        most = 2**63 - 1 if dtype.kind == "i" else EXACT_FLOAT
        if len(bad := np.flatnonzero((values > most) | (values < -most))):
            raise place.error(bad[0], f"{values[bad[0]]} and the fill {fill} fit into no type of numbers; mend the row")
    values = values.astype(dtype)
    values[missing] = fill
    return values


def text_to_numbers(column: pa.Array, place: Place, fill: float | None, expected: str, fractions: bool) -> np.ndarray:
    """Parse text as int64, or as float64 when some value is not an integer."""
    if fill is not None:
        empty = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), True)
        column = pc.if_else(empty, repr(int(fill) if float(fill).is_integer() else fill), column)
    # A cast that fails costs twenty times one that works, so fractions do not try integers first.
    kinds = [pa.float64()] if fractions else [pa.int64(), pa.float64()]
    for attempt in (lambda: column, lambda: pc.utf8_trim_whitespace(column)):
        for kind in kinds:
            with contextlib.suppress(pa.ArrowInvalid):
                return without_nulls(attempt().cast(kind), place, fill)
    bad = next(index for index, text in enumerate(column.to_pylist()) if not is_number(text))
    text = column[bad].as_py()
    if not text:
        raise place.error(bad, f"{text!r} is not {expected}; mend the row, or declare a fill for a column of values")
    raise place.error(bad, f"{text!r} is not {expected}; mend the row, or check delimiter, header and comment")


def is_number(text: str | None) -> bool:
    """Say whether Arrow reads a text, trimmed, as a number."""
    try:
        pc.utf8_trim_whitespace(pa.array([text], pa.string())).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return text is not None


def lists_to_matrix(column: pa.Array, place: Place) -> np.ndarray:
    """Make a matrix of a vector a row; all must have the same length."""
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    bad = np.flatnonzero(lengths != lengths[0]) if len(lengths) else lengths
    if len(bad):
        raise place.error(
            bad[0], f"the vector has {lengths[bad[0]]} entries, row {place.first_row + 1} has {lengths[0]}"
        )
    flat = pc.list_flatten(column)
    if not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)):
        raise FileFormatError(f"{place.file}: column {place.column} has vectors of {flat.type}, expected numbers")
    if flat.null_count:
        entry = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
        raise place.error(entry // int(lengths[0]), f"entry {entry % int(lengths[0]) + 1} of the vector is missing")
    return flat.to_numpy(zero_copy_only=False).reshape(len(column), -1)


def map_words(part: pa.Array | np.ndarray, place: Place, words: Mapping[str, int], fill: float | None) -> np.ndarray:
    """Look up the integers for the words of a column; an unknown word becomes ``fill`` or is refused."""
    column = to_text(part, place)
    positions = pc.index_in(pc.utf8_trim_whitespace(column), pa.array(list(words), pa.string()))
    codes = pc.fill_null(positions, -1).to_numpy(zero_copy_only=False)
    unknown = np.flatnonzero(codes < 0)
    if len(unknown) and fill is None:
        text = column[int(unknown[0])].as_py()
        raise place.error(unknown[0], f"{text!r} is not one of {', '.join(words)}; add it to values or declare a fill")
    last = 0 if fill is None else fill
    values = np.array([*words.values(), last], np.int64 if float(last).is_integer() else np.float64)
    return values[codes]


def to_dtype(values: np.ndarray, dtype: np.dtype, place: Place, fill: float | None) -> np.ndarray:
    """Cast without loss of integers; NaN becomes ``fill``, which may be NaN itself, or is refused; infinities are
    refused."""
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        if fill is not None:
            values = np.where(missing, values.dtype.type(fill), values)
        bad = np.argwhere(np.isinf(values) | (missing if fill is None else False))
        if len(bad):
            value = values[tuple(bad[0])]
            remedy = "; declare a fill for NaN" if np.isnan(value) else ""
            raise place.error(bad[0][0], f"the value is {value}; mend the row{remedy}")
    if dtype.kind != "f":
        return to_integers(values, dtype, place)
    with np.errstate(over="ignore"):
        cast = values.astype(dtype)
    if len(bad := np.argwhere(np.isinf(cast))):
        value = values[tuple(bad[0])]
        raise place.error(
            bad[0][0], f"the value {value} does not fit into {dtype}; set dtype: float64, or mend the row"
        )
    return cast


def to_integers(values: np.ndarray, dtype: np.dtype, place: Place) -> np.ndarray:
    """Cast to an integer dtype; fractions and values out of range are refused."""
    limits = np.iinfo(dtype)
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            wrong = ~((values == np.round(values)) & (np.abs(values) < EXACT_FLOAT))
            wrong |= (values < limits.min) | (values > limits.max)
    else:
        wrong = (values > limits.max) | ((values < limits.min) if values.dtype.kind == "i" else False)
    bad = np.argwhere(wrong)
    if len(bad):
        raise place.error(bad[0][0], f"{values[tuple(bad[0])]} is not an integer that fits into {dtype}")
    return values.astype(dtype)
