"""Narrow forms of a column of features: float16, bfloat16, or 8 bits with a step and an offset for each column.

A narrow column lies so in files, in memory and in messages. Its rows are widened where a batch gathers them. float16 is
a dtype of HDF5. The other forms have the attribute ``stored_as`` of the dataset, a JSON object: ``dtype``, and for
uint8 ``scale`` and ``offset``, one number of float32 for each of F columns. k rows of F columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np

from hpcgnn.choices import Part
from hpcgnn.graph import files
from hpcgnn.graph.decode import decode_json

STORED_AS = "stored_as"  # attribute of a column
LEVELS = 255  # steps between the smallest and the largest number of a column in 8 bits
STEP_BITS = 16  # significant bits of a step: times a number of 8 bits, it is exact in float32
LEAST_STEP = float(np.finfo(np.float32).tiny)
FLOAT16, BFLOAT16, UINT8 = "float16", "bfloat16", "uint8"


@dataclass(frozen=True, slots=True)
class Encoding:
    """A narrow form: ``name``, a row of FEATURE_DTYPES; scale, offset: of each column, for uint8. Rows have F numbers,
    in any shape."""

    name: str
    scale: tuple[float, ...] = ()
    offset: tuple[float, ...] = ()

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the column in files."""
        return np.dtype(FEATURE_DTYPES[self.name].dtype)

    def attributes(self) -> dict[str, str]:
        """Return the attributes of the column in files."""
        if self.name == FLOAT16:
            return {}
        steps = {"scale": self.scale, "offset": self.offset} if self.scale else {}
        return {STORED_AS: json.dumps({"dtype": self.name, **steps})}

    def encode(self, rows: np.ndarray) -> np.ndarray:
        """Narrow rows [k, ...] of numbers: to the nearest number of the form, ties to even. Raises LostRow for the
        first row with a number that the form lacks."""
        codes, is_lost = FEATURE_DTYPES[self.name].make(files.as_matrix(rows), self)
        if is_lost.any():
            row, column = np.argwhere(is_lost)[0]
            raise LostRow(int(row), int(column), float(files.as_matrix(rows)[row, column]))
        return codes.reshape(rows.shape)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Widen rows [k, ...] to float32."""
        return FEATURE_DTYPES[self.name].widen(files.as_matrix(codes), self).reshape(codes.shape)

    def with_flags(self, count: int) -> Encoding:
        """Return the form of rows behind which follow ``count`` columns of 0 and 1, which it has exactly."""
        if not self.scale:
            return self
        return replace(self, scale=(*self.scale, *[1.0] * count), offset=(*self.offset, *[0.0] * count))


def common_encoding(encodings: Sequence[Encoding | None], widths: Sequence[int]) -> Encoding | None:
    """Return the narrow form of the rows of several tables side by side (``widths`` of each, 0: without features, whose
    rows are zeros); None where they have none in common. Steps belong to one table."""
    forms = {encoding for encoding, width in zip(encodings, widths, strict=True) if width}
    encoding = forms.pop() if len(forms) == 1 else None
    return None if encoding is None or (encoding.scale and len(widths) > 1) else encoding


class LostRow(ValueError):
    """A row with a number that a narrow form lacks: its place, the column there, and the number."""

    def __init__(self, row: int, column: int, value: float):
        super().__init__(f"row {row}, column {column}: {value:g}")
        self.row, self.column, self.value = row, column, value


def _to_float16(rows: np.ndarray, _: Encoding) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):
        codes = rows.astype(np.float16)
    return codes, np.isinf(codes) & np.isfinite(rows)


def _to_bfloat16(rows: np.ndarray, _: Encoding) -> tuple[np.ndarray, np.ndarray]:
    """Keep the upper half of float32."""
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    codes = np.where(np.isnan(rows), np.uint16(0x7FC0), rounded)
    return codes, ((codes & 0x7FFF) == 0x7F80) & np.isfinite(rows)


def _to_uint8(rows: np.ndarray, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
    """Count steps from the offset. A number more than half a step beyond the first or the last level is lost."""
    scale, offset = np.array(encoding.scale), np.array(encoding.offset)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.rint((rows.astype(np.float64) - offset) / np.where(scale > 0, scale, 1))
        is_kept = (steps >= 0) & (steps <= LEVELS * (scale > 0))
        return np.where(is_kept, steps, 0).astype(np.uint8), ~is_kept


def _from_uint8(codes: np.ndarray, encoding: Encoding) -> np.ndarray:
    return codes.astype(np.float32) * np.array(encoding.scale, np.float32) + np.array(encoding.offset, np.float32)


@dataclass(frozen=True)
class NarrowDtype(Part):
    """A row of FEATURE_DTYPES. make(rows [k, F], encoding): codes of ``dtype``, and where numbers are lost [k, F];
    widen(codes [k, F], encoding): rows of float32; has_steps: columns have a scale and an offset."""

    make: Callable[..., tuple[np.ndarray, np.ndarray]]
    says: str
    dtype: type
    widen: Callable[[np.ndarray, Encoding], np.ndarray]
    has_steps: bool = False


FEATURE_DTYPES: dict[str, NarrowDtype] = {
    FLOAT16: NarrowDtype(
        _to_float16, "11 significant bits, up to 65,504", np.float16, lambda codes, _: codes.astype(np.float32)
    ),
    BFLOAT16: NarrowDtype(
        _to_bfloat16, "8 significant bits, in the range of float32", np.uint16,
        lambda codes, _: (codes.astype(np.uint32) << 16).view(np.float32),
    ),
    UINT8: NarrowDtype(
        _to_uint8, "256 levels from the smallest to the largest number of each column", np.uint8, _from_uint8, True
    ),
}  # fmt: skip


def make_steps(low: np.ndarray, high: np.ndarray) -> Encoding:
    """Choose scale and offset of uint8 for columns with numbers from low [F] to high [F], float64. The error of a
    number is at most half a step, besides the rounding of float32. Raises LostRow, without a row, for a column whose
    range is beyond float32."""
    offset = low.astype(np.float32)
    offset = np.where(offset > low, np.nextafter(offset, np.float32(-np.inf)), offset).astype(np.float64)
    mantissa, exponent = np.frexp((high - offset) / LEVELS)
    scale = np.ldexp(np.ceil(np.ldexp(mantissa, STEP_BITS)), exponent - STEP_BITS)
    scale = np.where(high > offset, np.maximum(scale, LEAST_STEP), 0.0)
    with np.errstate(over="ignore"):
        largest = (LEVELS * scale).astype(np.float32) + offset.astype(np.float32)
    if len(bad := np.flatnonzero(~np.isfinite(largest) | ~np.isfinite(offset))):
        raise LostRow(-1, int(bad[0]), float(high[bad[0]]))
    return Encoding(UINT8, tuple(scale.tolist()), tuple(offset.tolist()))


def find_range(slabs: Iterable[np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the smallest and the largest number [F] float64 of each column, of slabs [k, ...] of rows. Raises LostRow
    for NaN and infinities."""
    low, high, first = np.full(width, np.inf), np.full(width, -np.inf), 0
    for slab in slabs:
        rows = files.as_matrix(slab)
        if len(bad := np.argwhere(~np.isfinite(rows))):
            raise LostRow(first + int(bad[0][0]), int(bad[0][1]), float(rows[tuple(bad[0])]))
        if len(rows):
            low, high = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
        first += len(rows)
    return (low, high) if first else (np.zeros(width), np.zeros(width))


def read_encoding(column: Any) -> Encoding | None:
    """Read the narrow form of a column of a file, or of what has its ``attrs``, ``dtype`` and ``shape``; None for a
    column of plain numbers. Raises FileFormatError for a form that is none, or does not fit the column."""
    return encoding_of(column, column.dtype, column.shape, column.attrs.get(STORED_AS))


def encoding_of(where: Any, dtype: np.dtype, shape: tuple[int, ...], text: Any) -> Encoding | None:
    """Make the encoding of a column with the attribute ``stored_as`` [text], None without. where: the dataset, for
    messages. Raises FileFormatError."""
    if text is None:
        return Encoding(FLOAT16) if dtype == np.float16 else None
    try:
        form: Any = decode_json(text)
        encoding = Encoding(form["dtype"], *(tuple(map(float, form.get(name, ()))) for name in ("scale", "offset")))
        width = int(np.prod(shape[1:])) if FEATURE_DTYPES[encoding.name].has_steps else 0
        fits = len(encoding.scale) == len(encoding.offset) == width and encoding.dtype == dtype
        fits = fits and bool(np.isfinite([*encoding.scale, *encoding.offset]).all())
    except (ValueError, TypeError, KeyError, AttributeError):
        fits = False
    if not fits:
        name = f"{where.file.filename}: {where.name}" if isinstance(where, h5py.Dataset) else str(where)
        raise files.FileFormatError(
            f"{name}: attribute {STORED_AS} is {str(text)[:60]!r}, which is no form of {dtype} features with rows of "
            f"shape {list(shape[1:])}; write the file anew"
        )
    return encoding
