"""Files of fixed negatives, as rank 0 reads them: m listed events or edges, up to k negatives each, ids of the graph's
source.

* .npz or .h5 with ``row`` [m] (row ids of events) and ``negatives`` [m, k] (integers or strings); lines of fewer
  negatives end with -1, or with empty strings;
* .npz or .h5 with ``src`` and ``dst`` [m], or a CSV or Parquet table with these columns: pairs that are no edges,
  negatives of a whole split;
* the negatives that ``hpcgnn convert`` writes beside a graph file (``hpcgnn-negatives``), by relation and split, whose
  nodes are rows of the graph file;
* .pkl as TGB publishes them: a dict from (source, destination, time, as the graph file stores it) to an array of
  destinations, of any length. Unpickling admits arrays and built-in containers only, so that such a file cannot run
  code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.graph import files
from hpcgnn.graph.splits import SPLITS
from hpcgnn.graph.text_table import SUFFIXES as TABLES
from hpcgnn.graph.text_table import read_blocks
from hpcgnn.graph.unpickle import PickledArray, load_pickle

SUFFIXES = (".npz", ".h5", ".pkl")
ENDS = ("src", "dst")  # of a pair
KEY = ("source", "destination", "time")  # of an event in a pickle
MOST_FILLED = 16  # entries of a table for each negative that a file lists


@dataclass(frozen=True, slots=True)
class NegativeFile:
    """Negatives as a file lists them. read(start, stop): negatives [stop - start, k] of the events listed there, int64
    or bytes; behind the last one of an event, entries for which ``is_none`` is True.

    Events are listed by row [m], or by their source, destination and time: keys, three arrays [m].
    """

    path: str
    num_listed: int
    per_event: int
    read: Callable[[int, int], np.ndarray]
    row: np.ndarray | Any
    keys: tuple[np.ndarray, np.ndarray, np.ndarray] | Any = None


def file_of(path: str, split: str) -> str:
    """Return the path of the fixed negatives of a split, whose name stands in the place of ``{split}``."""
    return path.replace("{split}", split)


def sha256_of(path: str) -> str:
    """Compute the sha256 of a file of fixed negatives, of both where validation and test have files; empty without one.
    Raises ValueError for a file that is missing."""
    paths = dict.fromkeys(file_of(path, split) for split in SPLITS[1:] if path)
    for each in paths:
        if not os.path.isfile(each):
            raise ValueError(f"eval.negatives_file: {each}: no such file")
    return ",".join(files.file_hash(each) for each in paths)


def is_beside_graph(path: str) -> bool:
    """Say whether a file is one that ``hpcgnn convert`` wrote beside a graph file: its nodes are rows. Raises
    Unlisted for one of another version."""
    if Path(path).suffix != ".h5" or not h5py.is_hdf5(path):
        return False
    with h5py.File(path, "r", locking=False) as file:
        if file.attrs.get("format") != files.NEGATIVES:
            return False
    try:
        files.open_checked(path, files.NEGATIVES).close()
    except files.FileFormatError as error:
        raise Unlisted(str(error)) from error
    return True


class Unlisted(ValueError):
    """Raised for a file that lacks the negatives of a relation and split."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The negatives that are wanted of a file beside a graph file: of a relation's split. sizes: numbers of source
    nodes, destination nodes and edges of the relation in the graph at hand."""

    relation: str
    split: str
    sizes: tuple[int, int, int]

    def group(self, file: h5py.File, name: str) -> h5py.Group:
        """Return the group that has a dataset. Raises Unlisted for a file without it, or of another graph."""
        relation = file.get(f"edges/{self.relation}", {})
        if name not in relation.get(self.split, {}):
            raise Unlisted(
                f"no negatives of {self.relation} in {self.split} that are called {name!r}: choose another eval.ranking"
            )
        if (sizes := tuple(relation.attrs["sizes"].tolist())) != self.sizes:
            raise Unlisted(
                f"written beside another graph: its {self.relation} has {sizes} sources, destinations and edges, this "
                f"one {self.sizes}: convert again, and give the file that was written with this graph"
            )
        if "source_negatives" in relation[self.split]:
            raise Unlisted(f"the negatives of {self.relation} also replace sources, which eval.ranking listed does not")
        return relation[self.split]


def read_pairs(path: str, wanted: Wanted) -> np.ndarray:
    """Read the pairs of a file with ``src`` and ``dst``, or the wanted ones of a file beside a graph file: ids [m, 2],
    int64 or bytes. Raises ValueError naming file and row for anything else."""
    suffixes = (*SUFFIXES[:2], *TABLES)
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file of pairs; give a path ending in {', '.join(suffixes)}")
    if not path.endswith(suffixes):
        raise ValueError(
            f"{path}: pairs must be in a file ending in {', '.join(suffixes)}, with the columns src and dst, not "
            f"{Path(path).suffix!r}"
        )
    if path.endswith(TABLES):
        blocks = [[block[end].cast("binary").to_numpy(zero_copy_only=False) for end in ENDS]
                  for block in read_blocks(path, ENDS, ())]  # fmt: skip
        src, dst = (np.concatenate(pieces).astype(np.bytes_) for pieces in zip(*blocks, strict=True))
    else:
        is_by_row, (src, dst) = _read_ends(path, wanted)
        if is_by_row:
            return np.column_stack([src, dst])
    if src.ndim != 1 or src.shape != dst.shape or len(src) == 0:
        raise ValueError(f"{path}: 'src' and 'dst' must be vectors of one length, got {src.shape} and {dst.shape}")
    return np.column_stack([_as_ids(column[:, None], path, 0)[:, 0] for column in (src, dst)])


def _read_ends(path: str, wanted: Wanted) -> tuple[bool, Sequence[np.ndarray]]:
    """Read src and dst of .npz or .h5, and say whether the file is one beside a graph file: its pairs are the wanted
    ones, by rows. Raises ValueError."""
    try:
        is_npz = Path(path).suffix == ".npz"
        opened = np.load(path, allow_pickle=False) if is_npz else h5py.File(path, "r", locking=False)
        with opened as file:
            if not is_npz:
                files.check_objects(file)
            if is_beside_graph(path):
                return True, wanted.group(file, "pairs")["pairs"][()].T
            return False, [np.asarray(file[name][()]) for name in ENDS]
    except Unlisted as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # what NumPy, zipfile and HDF5 raise about damaged files has no common class
        raise ValueError(
            f"{path}: cannot read 'src' [m] and 'dst' [m] ({' '.join(str(error).split())}); write both as plain arrays"
        ) from error


def open_negatives(path: str, wanted: Wanted | None = None) -> NegativeFile:
    """Open and check a file of negatives; wanted: of a file beside a graph file.

    Raises ValueError naming file, row and remedy: unknown suffix, not readable, wrong shape or type, a row twice.
    """
    if not Path(path).is_file():
        raise ValueError(
            f"{path or 'the file of negatives'}: no such file; give a path ending in {', '.join(SUFFIXES)}"
        )
    suffix = Path(path).suffix
    if suffix == ".pkl":
        return _open_pickle(path)
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{path}: negatives must be in a file ending in {', '.join(SUFFIXES)}, not {suffix!r}: write row, row "
            "ids of edges or events [m], and negatives, ids [m, k], by numpy.savez"
        )
    try:
        row, shape, read = _open_npz(path) if suffix == ".npz" else _open_h5(path, wanted)
    except Unlisted as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # what NumPy, zipfile and HDF5 raise about damaged files has no common class
        raise ValueError(
            f"{path}: cannot read 'row' [m] and 'negatives' [m, k] ({' '.join(str(error).split())}); write both as "
            "plain arrays; lines of fewer negatives than others end with -1, or with empty text"
        ) from error
    _check(path, row, shape)
    return NegativeFile(path, shape[0], shape[1], lambda start, stop: _as_ids(read(start, stop), path, start), row)


def _open_npz(path: str):
    with np.load(path, allow_pickle=False) as file:
        row, negatives = file["row"], file["negatives"]
    return row, negatives.shape, lambda start, stop: negatives[start:stop]


def _open_h5(path: str, wanted: Wanted | None):
    place = "/"
    with h5py.File(path, "r", locking=False) as file:
        files.check_objects(file)
        if wanted and is_beside_graph(path):
            place = wanted.group(file, "negatives").name
        row, shape = file[place]["row"][()], file[place]["negatives"].shape

    def read(start: int, stop: int) -> np.ndarray:
        try:
            with h5py.File(path, "r", locking=False) as file:
                return file[place]["negatives"][start:stop]
        except OSError as error:
            raise ValueError(f"{path}: damaged from row {start} on: {error}; copy or write it anew") from error

    return row, shape, read


def _check(path: str, row: np.ndarray, shape: tuple[int, ...]) -> None:
    if row.ndim != 1 or row.dtype.kind not in "iu":
        raise ValueError(f"{path}: 'row' must be a vector of integers, got {row.dtype} of shape {row.shape}")
    if len(shape) != 2 or shape[0] != len(row):
        raise ValueError(f"{path}: 'negatives' must be [{len(row)}, k], one line for every entry of 'row', got {shape}")
    if len(row) == 0:
        raise ValueError(f"{path}: 'row' is empty: list at least one event or edge")
    if shape[1] == 0:
        raise ValueError(f"{path}: 'negatives' has no columns; give at least one negative an event")
    unique, count = np.unique(row, return_counts=True)
    if len(unique) < len(row):
        raise ValueError(
            f"{path}: event row {unique[count > 1][0]} is listed {count.max()} times; list every event once"
        )


def is_none(ids: np.ndarray) -> np.ndarray:
    """Say where a line has no further negative, bool of the shape of ``ids``."""
    return ids == (b"" if ids.dtype.kind == "S" else -1)


def _as_ids(values: np.ndarray, path: str, start: int) -> np.ndarray:
    """Convert ids [m, k] to int64 or bytes; whole numbers stored as floats are taken (TGB's files have them)."""
    if values.dtype.kind == "O":  # variable-length strings of HDF5
        values = np.array([[v if isinstance(v, bytes) else str(v).encode() for v in line] for line in values], "S")
    if values.dtype.kind == "U":
        values = _encoded(values)
    if values.dtype.kind not in "iufS":
        raise ValueError(f"{path}: negatives must be integers or strings, got {values.dtype}")
    ids = values if values.dtype.kind == "S" else _integers(values)
    none = is_none(values)
    bad = none & ~np.logical_and.accumulate(none[:, ::-1], axis=1)[:, ::-1]  # others follow
    bad[:, 0] |= none[:, 0]
    if values.dtype.kind != "S":
        bad |= (values < 0) & ~none | (ids != values)
    if bad.any():
        line, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{path}: line {start + line}: {values[line, column].item()!r} is no id; every event must have a negative, "
            "and -1, or empty text, may only stand behind its last one"
        )
    return ids


def _encoded(text: np.ndarray) -> np.ndarray:
    return np.char.encode(text, "utf-8", "surrogatepass")  # half a character is no error here: it is no id of the graph


def _integers(numbers: np.ndarray) -> np.ndarray:
    """Cast to int64. Fractions and numbers beyond an int64 change: the caller finds them by comparing."""
    with np.errstate(invalid="ignore"):
        return numbers.astype(np.int64)


def _as_array(key: tuple, line: Any) -> np.ndarray:
    if isinstance(line, PickledArray):
        return np.atleast_1d(line.array)
    line = sorted(line) if isinstance(line, set) and all(isinstance(value, int) for value in line) else line
    values = line if isinstance(line, (list, tuple)) else ()
    others = [type(value).__name__ for value in values if not isinstance(value, (int, float, str, np.generic))]
    if others:
        raise ValueError(f"event {key}: a list that holds a {others[0]}, not ids alone")
    return np.atleast_1d(np.asarray(line))


def read_lists(path: str, of: tuple[str, str, str]) -> tuple[list[tuple], list[np.ndarray]]:
    """Read a pickled dict from keys of three parts, which ``of`` names, to arrays, lists or sets. Returns the keys, and
    what each of them has as an array. Raises ValueError naming the file, and the key or the remedy."""
    named = ", ".join(of)
    try:
        with open(path, "rb") as file:
            content = load_pickle(file)
    except MemoryError:
        # Python asks for a bytearray's memory before it reads it: addresses alone, which nothing touches.
        raise ValueError(f"{path}: not a pickled dict of negatives: it holds a piece larger than memory") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise ValueError(f"{path}: not a pickled dict of negatives ({error}); fetch it again") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: must hold a dict {{({named}): array of destinations}} with entries")
    if not all(isinstance(key, tuple) and len(key) == 3 for key in content):
        key = next(key for key in content if not (isinstance(key, tuple) and len(key) == 3))
        raise ValueError(f"{path}: keys must be ({named}), got {key!r}")
    try:
        lines = [_as_array(key, line) for key, line in content.items()]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    for key, line in zip(content, lines, strict=True):
        if line.ndim != 1 or len(line) == 0:
            raise ValueError(f"{path}: event {key}: {line.shape} negatives; give every event a list of at least one")
    return list(content), lines


def _open_pickle(path: str) -> NegativeFile:
    events, lines = read_lists(path, KEY)
    negatives = _as_ids(_as_table(lines, path), path, 0)
    columns = zip(KEY, zip(*events, strict=True), strict=True)
    source, destination, time = (_key_column(path, name, column) for name, column in columns)
    keys = source, destination, time
    return NegativeFile(path, len(lines), negatives.shape[1], lambda start, stop: negatives[start:stop], None, keys)


def _as_table(lines: list[np.ndarray], path: str) -> np.ndarray:
    """Make lines [m, k] of lists of negatives, filled up behind the last one of each."""
    counts, negatives = np.array([len(line) for line in lines]), np.concatenate(lines)
    size = int(counts.max())
    if size * len(lines) > MOST_FILLED * len(negatives):
        raise ValueError(
            f"{path}: one event has {size} negatives, and {len(lines)} events have {len(negatives)} together; keep "
            "fewer for the longest lists"
        )
    if negatives.dtype.kind in "iu":
        negatives = negatives.astype(np.int64)
    table = np.full((len(lines), size), -1 if negatives.dtype.kind in "if" else "", negatives.dtype)
    table[np.arange(size) < counts[:, None]] = negatives
    return table


def _key_column(path: str, name: str, values: tuple) -> np.ndarray:
    try:
        column = np.array(values)
    except ValueError:  # tuples among numbers
        column = np.empty(len(values), object)
    if column.ndim == 1 and column.dtype.kind == "U" and name != "time":
        return _encoded(column)
    if column.ndim != 1 or column.dtype.kind not in "iuf" or (_integers(column) != column).any():
        raise ValueError(
            f"{path}: the {name} of all keys must be whole numbers, got {column.dtype}, such as {values[0]!r}"
        )
    return _integers(column)
