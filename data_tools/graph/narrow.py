"""Stores the features of a graph file in a narrow form, or reads them so. Of nodes and of edges: ``feat``."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import h5py
import numpy as np

from data_tools.source.rewrite import rewriting
from data_tools.team import Team
from hpcgnn.choices import check_choice, describe_choices
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError
from hpcgnn.graph.narrow import (
    FEATURE_DTYPES,
    STORED_AS,
    Encoding,
    LostRow,
    find_range,
    make_steps,
    read_encoding,
)

FEATURES = "feat"
KINDS = ("static", "temporal")  # of graphs that have narrow features


def add_feature_dtype(parser: argparse.ArgumentParser) -> None:
    """Declare the option ``--feature_dtype``."""
    parser.add_argument(
        "--feature_dtype",
        choices=tuple(FEATURE_DTYPES),
        help=f"narrow form in which features (columns feat) are stored. {describe_choices(FEATURE_DTYPES)} (default: "
        "as they are)",
    )


class NarrowColumn:
    """A column of numbers of a file [n, ...], read in a narrow form. A number that the form lacks raises
    FileFormatError when it is read."""

    def __init__(self, column: h5py.Dataset, encoding: Encoding):
        self._column, self._encoding = column, encoding
        self.shape, self.dtype, self.name, self.file = column.shape, encoding.dtype, column.name, column.file
        self.ndim, self.attrs = len(self.shape), {**column.attrs, **encoding.attributes()}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        try:
            return self._encoding.encode(self._column[rows])
        except LostRow as error:
            first = rows.start or 0 if isinstance(rows, slice) else 0
            raise lost(self._column, self._encoding.name, error, first) from None


class WideColumn:
    """A narrow column of features of a file [n, ...], read as float32."""

    dtype = np.dtype(np.float32)

    def __init__(self, column: Any, encoding: Encoding):
        self._column, self._encoding = column, encoding
        self.shape, self.ndim, self.name = column.shape, column.ndim, column.name
        self.attrs = {key: value for key, value in column.attrs.items() if key != STORED_AS}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self._encoding.decode(self._column[rows])


def wide_column(column: h5py.Dataset) -> Any:
    """Return a column as it is read wide: itself, or float32 of narrow features. Raises FileFormatError."""
    encoding = read_encoding(column)
    return column if encoding is None else WideColumn(column, encoding)


def lost(column: h5py.Dataset, name: str, error: LostRow, first: int = 0) -> FileFormatError:
    """Make the error for a number that a narrow form lacks. first: row of the slab's first row."""
    row = f", row {first + error.row}" if error.row >= 0 else ""
    if np.isfinite(error.value):
        why = f"{error.value:g} is beyond {name}: choose another --feature_dtype, or scale the column"
    else:
        why = f"{error.value} has no level in {name}: mend or fill the value, or choose float16 or bfloat16"
    return FileFormatError(f"{column.file.filename}: {column.name}{row}, column {error.column}: {why}")


def check_kind(path: str | os.PathLike, kind: str) -> None:
    """Raise FileFormatError for a kind of graph whose features are not stored in narrow forms."""
    if kind not in KINDS:
        raise FileFormatError(
            f"{os.fspath(path)}: --feature_dtype is for {' and '.join(KINDS)} graphs, this one is {kind}"
        )


def find_encodings(file: h5py.File, name: str, team: Team | None = None) -> dict[str, Encoding]:
    """Collective. Choose the narrow form ``name`` for the features of a graph file, by the path of their column; the
    ranks of a team share the reading. Columns in that form already are not among them. Raises FileFormatError for
    columns in another form, for numbers without a level, and for other kinds of graphs."""
    team = team or Team()
    with team.together("look at the features"):
        check_choice("--feature_dtype", name, FEATURE_DTYPES)
        check_kind(file.filename, str(file.attrs["kind"]))
        groups = [file[kind][table] for kind in ("nodes", "edges") for table in sorted(file[kind])]
        columns = [group[FEATURES] for group in groups if FEATURES in group]
        columns = [column for column in columns if not is_narrow(column, name)]
    return {column.name: find_encoding(column, name, team) for column in columns}


def is_narrow(column: h5py.Dataset, name: str) -> bool:
    """Say whether a column is stored in the narrow form ``name``. Raises FileFormatError for another form."""
    encoding = read_encoding(column)
    if encoding is not None and encoding.name != name:
        raise FileFormatError(
            f"{column.file.filename}: {column.name} is stored as {encoding.name} already: start from wide features"
        )
    return encoding is not None


def find_encoding(column: h5py.Dataset, name: str, team: Team) -> Encoding:
    """Collective. Choose the narrow form ``name`` for one column. Raises FileFormatError."""
    if not FEATURE_DTYPES[name].has_steps:
        return Encoding(name)
    first, stop = team.share(0, len(column))
    slabs = (column[first + start : first + end] for start, end in files.slabs(stop - first, files.row_bytes(column)))
    low, high = np.empty(0), np.empty(0)
    with team.together("look at the features"):
        try:
            low, high = find_range(slabs, int(np.prod(column.shape[1:])))
        except LostRow as error:
            raise lost(column, name, error, first) from None
    low, high = -team.largest(-low), team.largest(high)
    try:
        return make_steps(low, high)
    except LostRow as error:
        raise lost(column, name, error) from None


class GroupView(Mapping):
    """A group of a graph file, or the file, whose columns are read as ``view(column)`` gives them."""

    def __init__(self, group: h5py.Group, view: Callable[[h5py.Dataset], Any]):
        self._group, self._view = group, view
        self.name, self.attrs, self.file = group.name, group.attrs, group.file
        self.filename = group.file.filename

    def __getitem__(self, name: str) -> Any:
        item = self._group[name]
        return GroupView(item, self._view) if isinstance(item, h5py.Group) else self._view(item)

    def __contains__(self, name: object) -> bool:
        return name in self._group

    def __iter__(self) -> Iterator[str]:
        return iter(self._group)

    def __len__(self) -> int:
        return len(self._group)


def view_encoded(file: h5py.File, encodings: Mapping[str, Encoding]) -> Any:
    """Return a graph file as it is read with columns in narrow forms, by the path of the column."""

    def view(column: h5py.Dataset) -> Any:
        encoding = encodings.get(column.name)
        return column if encoding is None else NarrowColumn(column, encoding)

    return GroupView(file, view)


def read_narrow(file: h5py.File, name: str | None, team: Team | None = None) -> Any:
    """Collective. Return a graph file as it is read with its features in the narrow form ``name``; None: as it is.
    Raises FileFormatError."""
    return file if name is None else view_encoded(file, find_encodings(file, name, team))


def read_wide(file: h5py.File) -> Any:
    """Return a graph file, or a part, as it is read with its narrow features as float32."""
    return GroupView(file, wide_column)


@contextlib.contextmanager
def narrowing(output: str | os.PathLike, name: str | None) -> Iterator[pathlib.Path]:
    """Yield the path at which a command writes a graph file. At the end its features lie in the narrow form ``name`` at
    ``output``; None: it is written there at once. Raises FileFormatError, and ``output`` stays as it was."""
    output = pathlib.Path(output)
    if name is None:
        yield output
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".narrow-", dir=output.parent) as folder:
        wide = pathlib.Path(folder) / output.name
        yield wide
        narrow_features(wide, output, name)


def narrow_features(path: str | os.PathLike, output: str | os.PathLike, name: str) -> None:
    """Write a graph file to ``output``, maybe the same path, with its features in the narrow form ``name``. Raises
    FileFormatError for features with numbers that the form lacks, and for other kinds of graphs; then ``output`` stays
    as it was."""
    with files.reading(path, files.GRAPH, "write it anew with hpcgnn convert") as file:
        encodings = find_encodings(file, name)
    with rewriting(path, output, {place[1:] for place in encodings}) as (source, target):
        for place, encoding in encodings.items():
            column, group = NarrowColumn(source[place], encoding), target[place.rpartition("/")[0]]
            out = files.create_column(group, FEATURES, len(column), column.shape[1:], column.dtype)
            for start, stop in files.slabs(len(column), files.row_bytes(source[place])):
                out[start:stop] = column[start:stop]
            out.attrs.update(column.attrs)
