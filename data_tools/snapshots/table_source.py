"""Reads tables with names of columns for snapshot graphs, and numbers their nodes and times.

N nodes, S snapshots, R rows of a table.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.snapshots.text import count_snapshots
from data_tools.source.file_spec import FileSpec
from data_tools.source.formats.dates import ISO, Dates, Zones
from data_tools.source.formats.text_stream import UTF8, CleanText
from data_tools.source.formats.values import (
    Place,
    Raw,
    Reference,
    RowError,
    is_number,
    is_text,
    parse_names,
    parse_times,
    single,
)
from hpcgnn.graph.files import FileFormatError

Parser = Callable[[Raw, str, int], Any]


class NamedTable:
    """A table with names of columns; each of them is read once. delimiter: of text; empty: by its first line."""

    def __init__(self, path: pathlib.Path, delimiter: str = "", encoding: str = UTF8):
        spec = FileSpec(path=str(path), encoding=encoding)
        if spec.pieces()[0].kind == "text":
            spec = FileSpec(path=str(path), delimiter=delimiter or find_delimiter(spec), encoding=encoding)
        self.name, self._pieces = path.name, spec.pieces()
        self.names = self._pieces[0].open().names({})
        if not self.names:
            raise FileFormatError(f"{self.name}: no line of names of columns; is the file empty?")
        self._references: dict[str, Reference] = {}

    def read(self, fields: Mapping[str, tuple[Reference, Parser]]) -> dict[str, np.ndarray]:
        """Read columns by their parsers: arrays [R, ...], by key. Raises FileFormatError, also without a row."""
        self._references |= {key: reference for key, (reference, _) in fields.items()}
        found: dict[str, list] = {key: [] for key in fields}
        for piece in self._pieces:
            table, row = piece.open(), 0
            for batch in table.batches({key: reference for key, (reference, _) in fields.items()}):
                for key, (_, parse) in fields.items():
                    try:
                        found[key].append(parse(batch[key], table.name, row))
                    except RowError as error:
                        raise FileFormatError(f"{error}{table.line(error.row)}") from None
                row += next(iter(batch.values())).num_rows
        if not all(found.values()):
            raise FileFormatError(f"{self.name}: no rows of data")
        return {key: np.concatenate(parts) for key, parts in found.items()}

    def unread(self) -> list[str]:
        """List the columns that were not read."""
        return self._pieces[0].open().unread(self._references)


def find_delimiter(spec: FileSpec) -> str:
    """Choose the delimiter of a text by its first line."""
    with spec.open().source.open() as raw:
        line = CleanText(raw).next_line().decode(errors="replace")
    found = max(",;\t", key=line.count)
    return found if found in line or " " not in line else "whitespace"


class Times:
    """Parses numbers, and dates: in a column of dates, of the declared form, or else in ISO 8601."""

    def __init__(self, form: str, zone: str):
        self._form, self._zone = form, zone
        self.zones = Zones()  # of dates

    def __call__(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """Give the times [n] int64 of a piece, seconds since 1970 where they are dates."""
        part, place = single(raw, file, first_row)
        form = self._form
        if not form and is_text(part) and len(part) and not is_number(part[0].as_py()):
            form = ISO
        dates = Dates(form, self._zone)
        if not dates.covers(part):
            return parse_times(raw, file, first_row, 1)
        return dates.read(part, place, 1, self.zones)

    def show(self, time: int) -> str:
        """Write a time as the source has it: a date in UTC, or a number."""
        return str(np.datetime64(int(time), "s")) if self.zones.names else str(time)


def parse_words(raw: Raw, file: str, first_row: int) -> np.ndarray:
    """Give a column of text [n], such as ids. Raises FileFormatError where one is missing."""
    return np.array(parse_names(raw, file, first_row).to_pylist(), object)


class NodeNames:
    """The nodes: ids [N] in their order, numbers where all are, else text; ``home``: the table that names them."""

    def __init__(self, words: np.ndarray, home: str):
        self.words, self.ids = sort_words(words)
        self._home = home

    def rows(self, words: np.ndarray, column: str, file: str) -> np.ndarray:
        """Find the rows [n] of nodes by their ids [n]. Raises FileFormatError for an unknown one."""
        rows = pc.index_in(pa.array(words, pa.string()), value_set=pa.array(self.words, pa.string()))
        rows = pc.fill_null(rows, -1).to_numpy().astype(np.int64)
        if len(bad := np.flatnonzero(rows < 0)):
            what = f"no node {words[bad[0]]!r} in {self._home}; add it there, or remove the row"
            raise Place(file, repr(column), 0).error(int(bad[0]), what)
        return rows


def sort_words(words: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Sort the distinct words: as numbers where all are written as such, else by their UTF-8 bytes. Returns them as an
    array of int64 or bytes, too."""
    distinct = sorted(set(words))
    if all(word.isdecimal() and str(int(word)) == word and int(word) < 1 << 63 for word in distinct):
        numbers = np.sort(np.array(distinct).astype(np.int64))
        return [str(number) for number in numbers], numbers
    distinct.sort(key=str.encode)
    return distinct, np.array([word.encode() for word in distinct])


class SnapshotClock:
    """Numbers snapshots by their times: one for every time of a table, or every ``step``."""

    def __init__(self, times: np.ndarray, name: str, step: int, show: Callable[[int], str]):
        self._times, self._show = np.unique(times), show
        if step:
            _, count = count_snapshots(self._times, name, step)
            self._times = self._times[0] + step * np.arange(count)
        self.count = len(self._times)

    def number(self, times: np.ndarray, column: str, file: str) -> np.ndarray:
        """Find the snapshots [n] of times. Raises FileFormatError for a time without one."""
        numbers = np.minimum(np.searchsorted(self._times, times), self.count - 1)
        if len(bad := np.flatnonzero(self._times[numbers] != times)):
            first, last, bad_time = map(self._show, (self._times[0], self._times[-1], times[bad[0]]))
            what = f"no snapshot has the time {bad_time}; the series has times from {first} to {last}; mend the row"
            raise Place(file, repr(column), 0).error(int(bad[0]), what)
        return numbers

    def show(self, number: int) -> str:
        """Write the time of a snapshot."""
        return self._show(self._times[number])

    def facts(self, zone: str) -> dict[str, Any]:
        """Return the first date, in seconds since 1970, the step in seconds and the zone, where times are dates (of a
        ``zone``) that are evenly spaced; else nothing."""
        steps = np.unique(np.diff(self._times))
        return {"first": int(self._times[0]), "step": int(steps[0]), "zone": zone} if zone and len(steps) == 1 else {}

    def notes(self) -> list[str]:
        """List notes for users: first and last time, and where snapshots are not evenly spaced."""
        steps = np.unique(np.diff(self._times))
        notes = [f"times {self._show(self._times[0])} to {self._show(self._times[-1])}"]
        if len(steps) > 1:
            notes.append(f"snapshots are {steps[0]} to {steps[-1]} apart; --step sets an even distance")
        return notes
