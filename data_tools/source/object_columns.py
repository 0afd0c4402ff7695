"""Makes columns of tables in memory plain arrays: numbers, text and dates, of pandas, Arrow, or mappings of arrays.

Dates without a time zone are in UTC, or in the zone that is given. n rows of a table.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_tools.source.formats.dates import UTC, Dates, Zones, offset_zone
from data_tools.source.formats.values import Place

NUMBERS, TEXT = "biuf", "US"  # kinds of dtypes
UNITS = ("D", "s", "ms", "us", "ns")  # of dates that Arrow reads
ABSENT = {"NoneType", "NAType", "NaTType"}  # None, pandas.NA, pandas.NaT


def columns_of(table: Any, what: str) -> dict[str, np.ndarray]:
    """List the columns [n] or [n, F] of a pandas or Arrow table, or of a mapping, as they are; ``plain_column`` makes
    values of them that can be stored. Levels of a pandas index that have a name are columns, too.

    Raises ValueError that begins with ``what`` for anything else, and for columns that differ in length.
    """
    if hasattr(table, "column_names"):  # Arrow
        columns = {name: table[name].to_pandas().to_numpy() for name in table.column_names}
    elif hasattr(table, "columns") and hasattr(table, "dtypes"):  # pandas
        names = [str(name) for name in table.columns]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{what}: several columns are called {', '.join(sorted(twice))}; rename them")
        levels = [name for name in getattr(getattr(table, "index", None), "names", ()) if name is not None]
        columns = {str(name): table.index.get_level_values(name).to_numpy() for name in levels}
        columns |= {str(name): table[name].to_numpy() for name in table.columns}
    elif isinstance(table, Mapping):
        columns = {str(name): array_of(values) for name, values in table.items()}
    else:
        raise ValueError(f"{what}: {type(table).__name__} is no table: give a pandas or Arrow table, or a dictionary")
    sizes = {name: len(values) if values.ndim else 1 for name, values in columns.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"{what}: columns must have one length, got {sizes or 'no column'}")
    return columns


def plain_column(values: np.ndarray, what: str, keeps_dates: bool = False, zone: str = UTC) -> np.ndarray:
    """Make a column numbers (NaN where missing), text (empty where missing), or dates, in UTC to the second unless it
    ``keeps_dates``. zone: of dates that name none. Raises ValueError that begins with ``what`` for missing
    dates and other objects."""
    values = _plain(values, what)
    return _seconds(values, what, zone) if values.dtype.kind == "M" and not keeps_dates else values


def checked_column(values: np.ndarray, what: str, keeps_dates: bool = False) -> np.ndarray:
    """Make a column plain as ``plain_column`` does, except dates, whose zone is still to be read."""
    plain = plain_column(values, what, keeps_dates)
    return values if plain.dtype.kind == "M" else plain


@dataclass(frozen=True, slots=True)
class ColumnZone:
    """The zone in which answers have the dates of a column. all: the zones that its dates have themselves."""

    name: str
    all: frozenset[str]


def zone_of_column(values: np.ndarray, declared: Dates) -> ColumnZone:
    """Read the zone of the dates of a column, if there are any. Raises ValueError where it is not the declared one, and
    where some dates have a zone and others have none."""
    zones = {
        value.tzinfo for value in (values if values.dtype.kind == "O" else ())
        if isinstance(value, datetime.datetime) and not _is_missing(value)
    }  # fmt: skip
    if zones <= {None}:
        return ColumnZone(declared.zone, frozenset())
    if None in zones:
        raise ValueError("some dates have a time zone and others have none; give all of them one")
    chosen = frozenset(declared.choose_zone(_zone_name(zone)) for zone in zones if zone is not None)
    return ColumnZone(Zones(set(chosen)).common, chosen)


def _zone_name(zone: datetime.tzinfo) -> str:
    """Name a time zone: of zoneinfo, of pytz, or of an offset; empty where it has no name."""
    name = str(getattr(zone, "key", None) or getattr(zone, "zone", None) or "")
    offset = None if name else zone.utcoffset(None)
    if offset is not None:
        return offset_zone(round(offset.total_seconds() / 60))
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return ""
    return name


def array_of(value: Any) -> np.ndarray:
    """Return a tensor, array or list as an array; a list with words is one of objects, so that None stays None, and an
    array of Arrow, so that dates keep their zone."""
    value = value.to_pandas() if hasattr(value, "to_pandas") else value
    value = value.detach().cpu() if hasattr(value, "detach") else value
    value = value.float() if str(getattr(value, "dtype", "")) == "torch.bfloat16" else value  # which NumPy lacks
    values = value.numpy() if hasattr(value, "numpy") and not isinstance(value, np.ndarray) else np.asarray(value)
    return np.array(value, object) if isinstance(value, list | tuple) and values.dtype.kind in "US" else values


def _plain(values: np.ndarray, what: str) -> np.ndarray:
    refused = ValueError(f"{what}: values are neither numbers nor words nor dates nor vectors of one length")
    if values.dtype.kind == "M":
        _refuse_missing(np.isnat(values), what)
        return values if np.datetime_data(values.dtype)[0] in UNITS else values.astype("datetime64[s]")
    if values.dtype.kind != "O":
        if values.dtype.kind not in NUMBERS + TEXT:
            raise refused
        return values
    missing = np.array([_is_missing(value) for value in values], bool)
    present = [value for value, is_missing in zip(values, missing, strict=True) if not is_missing]
    if present and all(isinstance(value, datetime.date) for value in present):
        _refuse_missing(missing, what)
        return np.array([_moment(value) for value in present])
    if all(isinstance(value, str | uuid.UUID) for value in present):
        return np.array(["" if _is_missing(value) else str(value) for value in values], str)
    if all(isinstance(value, int | float | decimal.Decimal | np.number | np.bool_) for value in present):
        return _numbers(present, missing)
    try:
        stacked = np.stack([np.asarray(value) for value in values])
    except ValueError:
        raise refused from None
    if stacked.dtype.kind not in NUMBERS:
        raise refused
    return stacked


def _is_missing(value: Any) -> bool:
    if isinstance(value, float | np.floating | decimal.Decimal):
        return value != value
    return type(value).__name__ in ABSENT


def _refuse_missing(missing: np.ndarray, what: str) -> None:
    if missing.any():
        raise ValueError(f"{what}, row {int(np.argmax(missing)) + 1}: no date; mend or remove the row")


def _moment(value: Any) -> np.datetime64:
    """Make a date or a time, without a part of it lost, in UTC where it names a zone."""
    if not isinstance(value, datetime.datetime):
        return np.datetime64(value, "s")
    if value.tzinfo is not None:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    # Nanoseconds of pandas are beyond what NumPy reads of a datetime.
    return value.to_datetime64() if hasattr(value, "to_datetime64") else np.datetime64(value)


def _numbers(present: list, missing: np.ndarray) -> np.ndarray:
    """Make integers where all numbers are, and none is missing; else float64 with NaN."""
    if not missing.any() and all(value == int(value) for value in present if isinstance(value, decimal.Decimal)):
        return np.array([int(value) if isinstance(value, decimal.Decimal) else value for value in present])
    values = np.full(len(missing), np.nan)
    values[~missing] = [float(value) for value in present]
    return values


def _seconds(values: np.ndarray, what: str, zone: str) -> np.ndarray:
    """Make dates [n] datetime64[s] in UTC of dates. Raises ValueError for parts of seconds."""
    if (values != values.astype("datetime64[s]")).any():
        raise ValueError(f"{what}: dates have parts of seconds: round them, or give integers of a smaller unit")
    return Dates(zone=zone).parse(values, Place(what, "", 0), 1).view("M8[s]")
