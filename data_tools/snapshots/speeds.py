"""Reads measurements of sensors and the weights between them: a node a sensor, a snapshot a row.

N nodes, S snapshots.
"""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.snapshots.graph import SnapshotGraph
from data_tools.source.file_spec import FileSpec
from data_tools.source.formats.text_stream import CleanText, TextSource
from data_tools.source.formats.values import Place, Raw, RowError, is_number, is_text, to_numbers
from hpcgnn.graph.files import FileFormatError

SPEED, TARGET = np.dtype(np.float32), "target"
TABLES = "hpcgnn snapshots tables reads tables with a column of times, and lists of edges"
Header = Literal["auto", "names", "none"]
HEADERS: tuple[Header, ...] = get_args(Header)


@dataclass(frozen=True, slots=True)
class Missing:
    """Texts that stand for an unknown value, in addition to empty cells and NaN; some are numbers."""

    texts: tuple[str, ...] = ()

    @property
    def numbers(self) -> list[float]:
        """The texts that are numbers."""
        return [float(text) for text in self.texts if is_number(text)]

    def read(self, raw: Raw, name: str, first_row: int) -> np.ndarray:
        """Parse columns [R, width] of a file ``name`` as float32, NaN where not known. Raises FileFormatError."""
        pieces = []
        for part, label in zip(raw.parts, raw.labels, strict=True):
            place = Place(name, label, first_row)
            column = pc.utf8_trim_whitespace(part) if is_text(part) else part
            if self.texts and is_text(part):
                column = pc.if_else(pc.is_in(column, pa.array(self.texts, pa.string())), "", column)
            values = to_numbers(column, place, np.nan, "a number", fractions=True).astype(np.float64)
            if len(bad := np.flatnonzero(np.isinf(values.astype(SPEED)))):
                raise place.error(bad[0], f"{values[bad[0]]} does not fit into {SPEED}; mend the row")
            values[np.isin(values, self.numbers)] = np.nan
            pieces.append(values.astype(SPEED))
        return np.column_stack(pieces) if pieces else np.empty((raw.num_rows, 0), SPEED)


def read_weight(raw: Raw, name: str, first_row: int) -> np.ndarray:
    """Parse one column of weights [R] float32. Raises FileFormatError, also where one is missing."""
    return _all_known(Missing().read(raw, name, first_row), name, first_row)[:, 0]


def read_speeds(
    speeds: pathlib.Path, adjacency: pathlib.Path, scaled: bool = True, header: Header = "auto",
    missing: Sequence[str] = (),
) -> SnapshotGraph:  # fmt: skip
    """Read measurements of sensors [S, N], perhaps with a first line of their names, and weights between them [N, N].
    The graph has edges that stay, and a series ``target``, NaN where not known. scaled: divided by its maximum, as
    T-GCN does; attribute ``scale`` has the factor. missing: texts for a missing measurement, in addition to empty
    cells.

    The entry of row i and column j is the edge from i to j. Raises FileFormatError.
    """
    absent = Missing(tuple(missing))
    names = _first_line(speeds)
    has_names = header == "names" or (header == "auto" and _may_be_names(names, absent))
    values = _read_matrix(FileSpec(path=str(speeds), header="skip" if has_names else "none"), absent)
    if header == "auto" and has_names and all(map(is_number, names)) and not (values % 1 > 0).any():
        raise FileFormatError(
            f"{speeds.name}: the first line, {', '.join(names[:5])}, may be names or measurements: all of the file is "
            "integers; say which with --header names or --header none"
        )
    ids = _ids_of(names, speeds.name) if has_names else None
    weights = _all_known(_read_matrix(FileSpec(path=str(adjacency), header="none"), Missing()), adjacency.name)
    nodes = values.shape[1]
    if ids is not None and len(ids) != nodes:
        raise FileFormatError(f"{speeds.name}: the first line has {len(ids)} names, but the rows have {nodes} numbers")
    if weights.shape != (nodes, nodes):
        raise FileFormatError(
            f"{adjacency.name}: {weights.shape[0]} rows of {weights.shape[1]} numbers, but {speeds.name} has "
            f"{nodes} sensors; give the matrix of these"
        )
    scale = float(np.fmax.reduce(values.ravel(), initial=0)) if scaled else 1.0
    if scale <= 0:
        raise FileFormatError(f"{speeds.name}: no value is above 0, so nothing to divide by; leave them with --raw")
    src, dst = np.nonzero(weights)
    count, zeros, unknown = len(values), np.zeros(len(src), np.int64), int(np.isnan(values).sum())
    return SnapshotGraph(
        nodes, count, src, dst, zeros, zeros + count - 1, {"weight": weights[src, dst]},
        series={TARGET: np.ascontiguousarray((values / np.float32(scale)).T)}, id=ids,
        attributes={TARGET: {"scale": scale}}, notes=_notes(has_names, unknown, values.size),
    )  # fmt: skip


def _notes(has_names: bool, unknown: int, total: int) -> list[str]:
    """List notes for users on how the file was read."""
    notes = [] if has_names else ["no line of names: nodes are numbered by their columns"]
    return [*notes, f"{unknown:,} of {total:,} measurements are missing"] if unknown else notes


def _first_line(path: pathlib.Path) -> list[str]:
    """Read the fields of the first line, trimmed, quotes taken off."""
    with TextSource(path).open() as raw:
        line = CleanText(raw).next_line().decode(errors="replace")
    return [field.strip() for field in next(csv.reader([line]), [])]


def _may_be_names(fields: list[str], missing: Missing) -> bool:
    """Say whether a first line can be names: no measurements, or integers that differ."""
    stated = [field for field in fields if field and field not in missing.texts]
    if not all(map(is_number, stated)):
        return True
    return len(stated) == len(fields) and all(map(str.isdigit, fields)) and len(set(fields)) == len(fields)


def _ids_of(names: list[str], file: str) -> np.ndarray:
    """Make the ids of the sensors: numbers where all are, else text. Raises FileFormatError for none and for two of one
    name."""
    for place, name in enumerate(names):
        if not name or name in names[:place]:
            what = f"{name!r}, as column {names.index(name) + 1} has" if name else "none"
            raise FileFormatError(
                f"{file}: the name of column {place + 1} is {what}; every sensor needs a distinct name; or give a "
                "file without names and --header none"
            )
    if all(map(str.isdigit, names)) and max(map(int, names)) < 1 << 63:
        return np.array(names, np.int64)
    return np.array([name.encode() for name in names])


def _read_matrix(spec: FileSpec, missing: Missing) -> np.ndarray:
    """Read all numbers of a text file [R, columns], NaN where not known. Raises FileFormatError."""
    table, row, pieces = spec.open(), 0, []
    for batch in table.batches({"all": "0:"}):
        try:
            pieces.append(missing.read(batch["all"], table.name, row))
        except RowError as error:
            raise FileFormatError(f"{error}{table.line(error.row)}; {TABLES}") from None
        row += len(pieces[-1])
    if not pieces:
        raise FileFormatError(f"{table.name}: no rows of numbers")
    return np.concatenate(pieces)


def _all_known(weights: np.ndarray, name: str, first_row: int = 0) -> np.ndarray:
    """Return weights [R, columns]; raises FileFormatError where one is missing."""
    if len(wrong := np.argwhere(np.isnan(weights))):
        row, column = wrong[0]
        which = f" to node {column}" if weights.shape[1] > 1 else ""
        raise FileFormatError(
            f"{name}: row {first_row + row + 1}: the weight{which} is missing (empty or nan); write it, 0 where two "
            "nodes have none"
        )
    return weights
