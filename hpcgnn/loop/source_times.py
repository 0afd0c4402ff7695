"""Dates in questions and in answers, where the times of a graph come from dates. n answers."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # pyarrow takes a second to load
    import pyarrow as pa

DATES, NUMBERS = "dates", "numbers"  # forms of times in answers
LAST_DATE = Decimal(np.iinfo(np.int64).max) / 10**9  # in seconds: the last one of nanoseconds in 64 bits, in 2262
OFFSET = re.compile(r"([+-]\d\d)(\d\d)$")  # of a time zone, as Arrow writes and does not read it
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # of dates, in a second


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """The form of a graph's times. scale: times of the graph / times of its source; zone: of the dates that they come
    from, empty where they come from none."""

    scale: float = 1
    zone: str = ""

    def shown(self, times: np.ndarray, form: str = DATES) -> np.ndarray:
        """Return times [n] int64 of the graph as its source has them: datetime64 in UTC for dates, unless numbers are
        asked for; else integers where both have one unit, and float64 otherwise."""
        if not self.zone or form == NUMBERS:
            return times if self.scale == 1 else times / self.scale
        per_second = Fraction(self.scale).limit_denominator(10**9)
        exact = (unit for unit, count in UNITS.items() if (count / per_second).denominator == 1)
        unit = next(exact, "ns")
        step = UNITS[unit] / per_second
        ticks = times * int(step) if step.denominator == 1 else [round(time * step) for time in times.tolist()]
        return np.array(ticks, np.int64).view(f"M8[{unit}]")


def date_seconds(text: str, zone: str = "") -> Decimal | None:
    """Read a date in ISO 8601, to the nanosecond, as seconds since 1970 in UTC; None for anything else. zone: of a date
    that names none, by default UTC; of an hour that occurs twice it is the earlier one, as for ``hpcgnn convert``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    word = pa.scalar(OFFSET.sub(r"\1:\2", text))
    for named in (False, True):
        with suppress(pa.ArrowInvalid):
            date = word.cast(pa.timestamp("ns", "UTC" if named else None))
            if not named:
                date = pc.assume_timezone(date, zone or "UTC", ambiguous="earliest", nonexistent="raise")
            return Decimal(date.value) / 10**9
    return None


def zoned(dates: np.ndarray, zone: str) -> pa.Array:
    """Make an Arrow array of timestamps in a zone of dates [n] datetime64 in UTC; null for NaT."""
    import pyarrow as pa

    return pa.array(dates).cast(pa.int64()).cast(pa.timestamp(np.datetime_data(dates.dtype)[0], zone))


def date_texts(dates: np.ndarray, zone: str) -> np.ndarray:
    """Write dates [n] datetime64 in UTC as text of one width, in ISO 8601 with the offset of a zone from UTC; empty for
    NaT. Where the offset is no whole number of minutes, as before 1900, the date is in UTC."""
    import pyarrow.compute as pc

    def text(moments: Any) -> Any:
        return pc.replace_substring_regex(pc.strftime(moments, "%Y-%m-%dT%H:%M:%S%z", "C"), r"(\d\d)$", r":\1")

    here, in_utc = zoned(dates, zone), zoned(dates, "UTC")
    is_whole = pc.equal(pc.second(pc.local_timestamp(here)), pc.second(in_utc))
    return pc.fill_null(pc.if_else(is_whole, text(here), text(in_utc)), "").to_numpy(zero_copy_only=False).astype(
        date_width(dates.dtype)
    )  # fmt: skip


def date_width(dtype: np.dtype) -> np.dtype:
    """Return the type of the texts of dates, such as 2024-01-31T12:00:00.250+01:00."""
    digits = len(str(UNITS[np.datetime_data(dtype)[0]])) - 1
    return np.dtype(f"U{25 + bool(digits) + digits}")
