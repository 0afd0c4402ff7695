"""Turns dates into times: integers in seconds since 1970 in UTC, times the scale of the spec."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.source.formats.values import Place, Raw, parse_times, to_arrow, to_text
from hpcgnn.graph.files import FileFormatError

ISO, UNIX, UTC = "iso", "unix", "UTC"
NANO = 10**9  # nanoseconds of a second
UNITS = {UNIX: 1, "unix_ms": 10**3, "unix_us": 10**6, "unix_ns": NANO}  # per second, of dates that are numbers
DAYS = pa.types.is_date
FIRST, LAST = "1677-09-21", "2262-04-11"  # of what nanoseconds in int64 can say
MOST_SECONDS = (2**63 - 1) // NANO
OFFSET = re.compile(r"([+-])(\d\d):(\d\d)")  # of a time zone without a name
TAIL, TAIL_OFFSET = 6, re.compile(r"([+-])(\d\d)(?::?(\d\d))?$")  # of text that ends with an offset
NAMED = 5  # offsets that a note names
EAST, WEST = 14 * 60, -12 * 60  # the largest offsets that a zone has, in minutes


@dataclass(slots=True)
class Zones:
    """The time zones of dates that have been read. names: of columns; offsets: the number of dates of text that have
    each offset from UTC, in minutes, where it is not 0."""

    names: set[str] = field(default_factory=set)
    offsets: Counter[int] = field(default_factory=Counter)

    def add(self, other: Zones) -> None:
        """Add zones and offsets."""
        self.names |= other.names
        self.offsets += other.offsets

    @property
    def common(self) -> str:
        """The zone in which answers have the dates: UTC for several, empty for none."""
        return next(iter(self.names)) if len(self.names) == 1 else UTC if self.names else ""

    def notes(self, title: str) -> list[str]:
        """Write notes on a column: where its dates have several zones, and where text has offsets."""
        several = [f"{title}: dates have the time zones {', '.join(sorted(self.names))}; answers have them in UTC"]
        seen = [f"{show_offset(minutes)} in {count:,}" for minutes, count in self.offsets.most_common(NAMED)]
        seen += [f"{len(self.offsets) - NAMED} more"] if len(self.offsets) > NAMED else []
        kept = "stored and answered in UTC" if self.common == UTC else f"stored in UTC and answered in {self.common}"
        offsets = [
            f"{title}: {self.offsets.total():,} dates have offsets from UTC ({', '.join(seen)}); times are {kept}"
        ]
        return [*(several if len(self.names) > 1 else []), *(offsets if self.offsets else [])]


@dataclass(frozen=True, slots=True)
class Dates:
    """How dates are written. form: ``iso``, a format of strptime, one of `UNITS` for numbers since 1970, or empty for
    columns of the type timestamp or date alone; zone: of dates that name none."""

    form: str = ""
    zone: str = UTC

    def __post_init__(self):
        try:
            zoneinfo.ZoneInfo(self.zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"zone: no time zone {self.zone!r}; such as UTC or Europe/Berlin") from error
        if self.form and self.form not in (ISO, *UNITS) and "%" not in self.form:
            raise ValueError(
                f"dates: {self.form!r} is neither iso nor a format such as %d.%m.%Y %H:%M nor one of {', '.join(UNITS)}"
            )

    def covers(self, part: pa.Array | np.ndarray) -> bool:
        """Whether a column has dates."""
        if isinstance(part, np.ndarray):
            return part.dtype.kind == "M" or bool(self.form)
        return bool(self.form) or pa.types.is_timestamp(part.type) or DAYS(part.type)

    def zone_of(self, part: pa.Array | np.ndarray, place: Place) -> str:
        """Name the zone in which answers have the dates of a column: the one of its type, else the one of dates that
        name none. Raises FileFormatError for two zones."""
        zone = getattr(getattr(part, "type", None), "tz", None) or ""
        if offset := OFFSET.fullmatch(zone):
            zone = offset_zone(int(f"{offset[1]}1") * (60 * int(offset[2]) + int(offset[3])))
        try:
            return self.choose_zone(zone)
        except ValueError as error:
            raise FileFormatError(f"{place.file}: column {place.column}: {error}") from None

    def choose_zone(self, own: str) -> str:
        """Choose the zone in which answers have dates: the ``own`` one, if they have one, unless the form is one of
        `UNITS`. Raises ValueError for another zone than the own one."""
        if not own or self.form in UNITS:
            return self.zone
        if self.zone not in (UTC, own):
            raise ValueError(
                f"its dates have the time zone {own}; leave out zone {self.zone}, which is for dates without one, or "
                f"set dates: {UNIX} for answers in {self.zone}"
            )
        return own

    def read(self, part: pa.Array | np.ndarray, place: Place, scale: float, zones: Zones) -> np.ndarray:
        """Parse times as `parse` does, and add to ``zones`` the ones that they have."""
        zones.names.add(self.zone_of(part, place))
        return self.parse(part, place, scale, zones.offsets)

    def parse(
        self, part: pa.Array | np.ndarray, place: Place, scale: float, offsets: Counter[int] | None = None
    ) -> np.ndarray:
        """Parse times [n] as int64: seconds since 1970 * scale. offsets: counts the offsets of text, in minutes. Raises
        FileFormatError for what is no date, and for one that falls between two times of the scale."""
        offsets = Counter() if offsets is None else offsets
        column = to_arrow(part)
        typed = pa.types.is_timestamp(column.type) or DAYS(column.type)
        if self.form == UNIX and not typed:
            return self._numbers(part, place, scale)
        if typed:
            nanoseconds = self._typed(column, place)
        elif self.form in UNITS:
            nanoseconds = self._numbers(part, place, 1) * (NANO // UNITS[self.form])
        else:
            nanoseconds = self._text(to_text(column, place), place, offsets)
        seconds, rest = np.divmod(nanoseconds, NANO)
        if float(scale).is_integer() and scale <= NANO:
            stored, between = np.divmod(rest * int(scale), NANO)
            stored += seconds * int(scale)
        else:
            exact = (seconds + rest / NANO) * scale
            stored = np.round(exact).astype(np.int64)
            between = (np.abs(exact - stored) > 1e-6).astype(np.int64)
        if len(bad := np.flatnonzero(between)):
            raise place.error(
                bad[0], f"the date {np.datetime64(int(nanoseconds[bad[0]]), 'ns')} falls between two times; declare a "
                "time_scale, such as 1000 for milliseconds"
            )  # fmt: skip
        return stored

    def _numbers(self, part: pa.Array | np.ndarray, place: Place, scale: float) -> np.ndarray:
        """Parse numbers since 1970, in the unit of the form, as int64 [n]: numbers * scale."""
        numbers = parse_times(Raw([part], [place.column], True, len(part)), place.file, place.first_row, scale)
        seconds = numbers / (scale * UNITS[self.form])
        if len(bad := np.flatnonzero(np.abs(seconds) > MOST_SECONDS)):
            raise place.error(
                bad[0], f"{round(numbers[bad[0]] / scale)} is no date from {FIRST} to {LAST}, if it has the unit of "
                f"dates: {self.form}; other units are {', '.join(unit for unit in UNITS if unit != self.form)}"
            )  # fmt: skip
        return numbers

    def _typed(self, column: pa.Array, place: Place) -> np.ndarray:
        """Make nanoseconds [n] of Arrow's timestamps and dates."""
        if column.null_count:
            missing = column.is_null().to_numpy(zero_copy_only=False)
            raise place.error(int(np.argmax(missing)), "the date is missing; mend or remove the row")
        has_zone = pa.types.is_timestamp(column.type) and column.type.tz is not None
        try:
            column = column.cast(pa.timestamp("ns", column.type.tz if has_zone else None))
        except pa.ArrowInvalid as error:
            raise FileFormatError(f"{place.file}: column {place.column}: dates from {FIRST} to {LAST} only") from error
        return self._in_utc(column, place) if not has_zone else column.cast(pa.int64()).to_numpy(zero_copy_only=False)

    def _in_utc(self, column: pa.Array, place: Place) -> np.ndarray:
        """Make nanoseconds [n] in UTC of timestamps in the zone. An hour that occurs twice is the earlier one."""
        zone = UTC if self.form in UNITS else self.zone
        try:
            placed = pc.assume_timezone(column, zone, ambiguous="earliest", nonexistent="raise")
        except pa.ArrowInvalid as error:
            raise FileFormatError(
                f"{place.file}: column {place.column}: a date does not exist in {self.zone} ({error})"
            ) from error
        return placed.cast(pa.int64()).to_numpy(zero_copy_only=False)

    def _text(self, column: pa.Array, place: Place, offsets: Counter[int]) -> np.ndarray:
        """Make nanoseconds [n] of text, and count its offsets."""
        column = pc.utf8_trim_whitespace(pc.fill_null(column, ""))
        if self.form == ISO:
            for zone in (None, "UTC"):  # dates without a zone, or all with one
                try:
                    found = column.cast(pa.timestamp("ns", zone))
                except pa.ArrowInvalid:
                    continue
                if zone:
                    count_offsets(column, offsets)
                return self._typed(found, place)
        words = enumerate(column.to_pylist())
        return np.array([self._one(word, place, row, offsets) for row, word in words], np.int64)

    def _one(self, word: str, place: Place, row: int, offsets: Counter[int]) -> int:
        """Parse a date, in nanoseconds, and count its offset; slower than Arrow, by the formats that Arrow lacks, and
        names what is wrong."""
        try:
            if self.form == ISO:
                found = datetime.datetime.fromisoformat(word.replace("Z", "+00:00"))
            else:
                found = datetime.datetime.strptime(word, self.form)
        except ValueError:
            what = "in ISO 8601, such as 2026-11-28T18:00:00" if self.form == ISO else f"of the form {self.form}"
            raise place.error(row, f"{word!r} is no date {what}; mend or remove the row") from None
        if offset := found.utcoffset():
            offsets[round(offset.total_seconds() / 60)] += 1
        found = found if found.tzinfo else found.replace(tzinfo=zoneinfo.ZoneInfo(self.zone))
        past = found - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
        return (past.days * 86400 + past.seconds) * NANO + past.microseconds * 1000


def count_offsets(column: pa.Array, offsets: Counter[int]) -> None:
    """Count the offsets, other than 0, at the end of the text of dates that all have a zone."""
    for found in pc.value_counts(pc.binary_slice(column.cast(pa.binary()), -TAIL)):
        if match := TAIL_OFFSET.search(found["values"].as_py().decode()):
            minutes = int(f"{match[1]}1") * (60 * int(match[2]) + int(match[3] or 0))
            if minutes:
                offsets[minutes] += found["counts"].as_py()


def show_offset(minutes: int) -> str:
    """Write an offset from UTC, such as +02:00."""
    hours, rest = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02}:{rest:02}"


def offset_zone(minutes: int) -> str:
    """Name the zone of an offset from UTC, such as Etc/GMT-1 for 60 minutes; empty where no zone is called so."""
    hours, rest = divmod(minutes, 60)
    if rest or not WEST <= minutes <= EAST:
        return ""
    return f"Etc/GMT{-hours:+d}" if hours else UTC
