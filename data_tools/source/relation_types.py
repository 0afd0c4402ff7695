"""Holds the rows of a relation, and makes several relations of them by a column of types."""

from __future__ import annotations

import bisect
import dataclasses
import pathlib
import re
from dataclasses import dataclass

import numpy as np

from data_tools.source.formats.dates import Zones
from data_tools.source.spec import EdgeSpec
from data_tools.source.spool import Spool, forget
from hpcgnn.graph.files import FileFormatError, row_bytes, slabs


class Origin:
    """The files that the rows of a table come from, in their order."""

    def __init__(self):
        self._names: list[str] = []
        self._starts = [0]

    def add(self, name: str, num_rows: int) -> None:
        """Record that the next rows come from a file."""
        self._names.append(name)
        self._starts.append(self._starts[-1] + num_rows)

    def find(self, row: int) -> tuple[str, int]:
        """Find the file of a row, and the row's place in it."""
        index = bisect.bisect_right(self._starts, row) - 1
        return self._names[index], row - self._starts[index]


@dataclass(frozen=True, slots=True)
class EdgeTable:
    """The rows of a relation in source order; src and dst hold codes, later row ids. ``classes`` holds the words of
    the columns that number them, ``zones`` the zones of columns of dates and of times, ``type_name`` the value that
    made the relation, if a column of types did."""

    spec: EdgeSpec
    file: str
    origin: Origin
    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray | None
    columns: dict[str, np.ndarray]
    classes: dict[str, list[str]]
    zones: dict[str, Zones]
    type_name: str | None = None

    @property
    def zone(self) -> str:
        """The zone of the dates that times come from; empty where they come from none."""
        return self.zones["time"].common if "time" in self.zones else ""


def split_by_type(table: EdgeTable, types: np.ndarray, words: list[str], folder: pathlib.Path) -> list[EdgeTable]:
    """Make one table per word of a column of types (types: [E], positions in words), in the order of the words.

    The rows of a word keep their order; words of ``left_out`` and words without a row make no table.
    """
    for word in table.spec.left_out:
        if word not in words:
            raise FileFormatError(f"{table.file}: left_out: {word!r} does not occur in column {table.spec.types!r}")
    order = np.argsort(types, kind="stable")
    bounds = np.searchsorted(types[order], np.arange(len(words) + 1))
    forget(types)
    columns = {"src": table.src, "dst": table.dst, **table.columns}
    for name, column in columns.items():
        spool = Spool(folder)
        for start, stop in slabs(len(order), row_bytes(column)):
            spool.append(column[order[start:stop]])
            forget(column)
        columns[name] = spool.column() if len(order) else column
    tables = []
    for word, name, start, stop in zip(words, local_names(words), bounds, bounds[1:], strict=False):
        if word in table.spec.left_out:
            continue
        rows = {key: column[start:stop] for key, column in columns.items()}
        src, dst = rows.pop("src"), rows.pop("dst")
        reverse = None if table.spec.reverse is None else table.spec.reverse.replace("*", name)
        relation = table.spec.relation.replace("*", name)
        spec = dataclasses.replace(table.spec, relation=relation, reverse=reverse, types=None, left_out=[])
        tables.append(EdgeTable(spec, table.file, table.origin, src, dst, None, rows, table.classes, table.zones, word))
    return tables


def local_names(words: list[str]) -> list[str]:
    """Make relation names of the text after the last # or / of each word, numbered where two are the same."""
    names: list[str] = []
    taken: set[str] = set()
    for word in words:
        base = re.sub(r"[^\w-]", "_", re.split(r"[#/]", word.rstrip("#/"))[-1]) or "_"
        name, count = base, 1
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        names.append(name)
    return names
