"""Id spaces: from the ids of a source to row ids 0 .. num_nodes-1 of a node type.

While the files stream by, ids are turned into int64 *codes*. When all ids are known, codes become row ids, which
increase with the id (numerically, or by the bytes of the UTF-8 text). A space that a node table has *sealed* has all of
its ids, and refuses others.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.source.formats.values import Place, Raw, RowError, parse_ids, parse_names, single, to_arrow, to_text
from data_tools.source.segments import text_parts
from data_tools.source.spool import Spool, forget
from hpcgnn.graph.files import slabs

MERGE_AT = 1 << 22
MAP_ROWS = 1 << 20
DENSE = 4
LEAVE_OUT = (
    "leave out rows without an id: missing_ids: drop in a spec, --set missing_ids=drop with csv presets and relbench"
)
SLAB_BYTES = 4 << 20  # of text that becomes as wide as the longest
UNKNOWN, MISSING = -1, -2  # codes of ids that a sealed space does not know, and of rows without an id


class IdSpace:
    """The ids of one node type.

    When it is finished, ``num_nodes`` is their number and ``ids`` holds them in order of their rows, int64 [N] or
    bytes [N]; None when the ids are the row numbers. Once ``sealed`` no id is added. ``trimmed`` is the place of the
    first id that lost white space around it.
    """

    ids: np.ndarray | None = None

    def __init__(self, node_type: str, num_nodes: int = 0, text: bool = False):
        self.type = node_type
        self.text = text
        self.parse: Callable[[Raw, str, int], Any] = parse_names if text else parse_ids
        self.num_nodes = num_nodes
        self.sealed = False
        self.trimmed: str | None = None

    def note_trimmed(self, raw: Raw, ids: Any, file: str, first_row: int) -> None:
        """Remember the first id of text, as parsed in ``ids`` [n], that had white space around it."""
        if self.text and self.trimmed is None and not raw.is_exact:
            original = pc.fill_null(to_arrow(raw.parts[0]).cast(pa.string()), "")
            rows = np.flatnonzero(pc.not_equal(original, ids).to_numpy(zero_copy_only=False))
            if len(rows):
                self.trimmed = f"{file}, column {raw.labels[0]}, row {first_row + rows[0] + 1}"

    def column(self, drop: bool = False, leave_out: bool = False) -> IdColumn:
        """Make a column of ids to read. drop: an id that a sealed space does not know is marked, not refused;
        leave_out: so is a row without an id."""
        return IdColumn(self, drop, leave_out)

    def encode(self, ids: Any) -> np.ndarray:
        """Return the codes [n] of parsed ids, UNKNOWN for ids that a sealed space does not know."""
        raise NotImplementedError

    def finish(self, folder: pathlib.Path | None = None) -> None:
        """Number the ids; all columns have been read. Text, all of it as wide as the longest id, goes to a file in
        ``folder`` (None: it is in memory)."""

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """Return the row ids [n] of codes."""
        return np.asarray(codes)


class IdColumn:
    """A column of ids of a space, read piece by piece."""

    def __init__(self, space: IdSpace, drop: bool, leave_out: bool):
        self._space = space
        self._drop = drop
        self._leave_out = leave_out

    def __call__(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """Return the codes [n] of a piece of the column, MISSING for a row without an id; new ids are added, or refused
        when the space is sealed."""
        part, place = single(raw, file, first_row)
        missing = find_missing(part, place, self._space.text, raw.is_exact)
        rows, codes = np.flatnonzero(~missing), np.full(len(missing), MISSING)
        if len(rows) < len(missing):
            if not self._leave_out:
                raise place.error(int(np.argmax(missing)), f"the id is missing; mend the row, or {LEAVE_OUT}")
            # Another id of the piece stands in, so that messages count the rows as the file does.
            stand_in = np.where(missing, rows[0] if len(rows) else 0, np.arange(len(missing)))
            raw = dataclasses.replace(raw, parts=[to_arrow(part).take(pa.array(stand_in))])
        if len(rows):
            ids = self._space.parse(raw, file, first_row)
            self._space.note_trimmed(raw, ids, file, first_row)
            codes[rows] = self._encode(ids if len(rows) == len(ids) else ids.take(rows), rows, raw, file, first_row)
        return codes

    def _encode(self, ids: Any, rows: np.ndarray, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """Return the codes [m] of the ids of some rows [m] of a piece."""
        codes = self._space.encode(ids)
        if not self._drop and len(unknown := np.flatnonzero(codes == UNKNOWN)):
            at = int(unknown[0])
            raise unknown_id(raw, file, first_row + int(rows[at]), ids[at : at + 1].tolist()[0], self._space)
        return codes

    def resolve(self, codes: np.ndarray) -> None:
        """Replace the codes [N] of the whole column by row ids, UNKNOWN and MISSING by themselves; the space must be
        finished."""
        for start in range(0, len(codes), MAP_ROWS):
            piece = codes[start : start + MAP_ROWS]
            present = piece >= 0
            if present.all():
                piece[:] = self._space.rows(piece)
            else:
                piece[present] = self._space.rows(piece[present])
            forget(codes)


class IntegerIds(IdSpace):
    """Integer ids; a code is the id itself."""

    ids: np.ndarray

    def __init__(self, node_type: str):
        super().__init__(node_type)
        self.ids = np.empty(0, np.int64)
        self._pending: list[np.ndarray] = []
        self._row: np.ndarray | None = None

    def encode(self, ids: np.ndarray) -> np.ndarray:
        if not self.sealed:
            self._pending.append(sorted_unique(ids))
            if sum(map(len, self._pending)) > max(MERGE_AT, len(self.ids)):
                self._merge()
            return ids
        self._merge()
        if not len(self.ids):
            return np.full(len(ids), UNKNOWN)
        nearest = self.ids[np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)]
        return np.where(nearest == ids, ids, UNKNOWN)

    def finish(self, folder: pathlib.Path | None = None) -> None:
        self._merge()
        self.num_nodes = len(self.ids)
        # Where ids are dense a table is several times faster than a search, and no larger than a few columns.
        if len(self.ids) and self.ids[-1] < DENSE * len(self.ids):
            self._row = np.zeros(int(self.ids[-1]) + 1, np.int64)
            self._row[self.ids] = np.arange(len(self.ids))

    def rows(self, codes: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.ids, codes) if self._row is None else self._row[codes]

    def _merge(self) -> None:
        if self._pending:
            self.ids = sorted_unique(np.concatenate([self.ids, *self._pending]))
            self._pending = []


class TextIds(IdSpace):
    """Ids that are text; a code is the order of first appearance."""

    def __init__(self, node_type: str):
        super().__init__(node_type, text=True)
        self._codes: dict[str, int] = {}
        self._rank = np.empty(0, np.int64)

    def encode(self, ids: pa.Array) -> np.ndarray:
        column = ids.dictionary_encode()
        names, codes = column.dictionary.to_pylist(), self._codes
        if self.sealed:
            numbers = [codes.get(name, UNKNOWN) for name in names]
        else:
            numbers = [codes.setdefault(name, len(codes)) for name in names]
        return np.array(numbers, np.int64)[column.indices.to_numpy(zero_copy_only=False)]

    def finish(self, folder: pathlib.Path | None = None) -> None:
        names = pa.array(self._codes, pa.large_string())
        self._codes = {}
        order = pc.sort_indices(names).to_numpy()
        self._rank = np.empty(len(names), np.int64)
        self._rank[order] = np.arange(len(names))
        dtype = np.dtype(f"S{max(1, int(np.diff(text_parts(names)[0]).max(initial=0)))}")
        ids = Spool(folder) if folder is not None else np.empty(len(names), dtype)
        for start, stop in slabs(len(names), dtype.itemsize, SLAB_BYTES):
            rows = fixed_width(names.take(pa.array(order[start:stop])), dtype)
            if isinstance(ids, Spool):
                ids.append(rows)
            else:
                ids[start:stop] = rows
        self.ids = ids.column() if isinstance(ids, Spool) else ids
        self.num_nodes = len(names)

    def rows(self, codes: np.ndarray) -> np.ndarray:
        return self._rank[codes]


class RowIds(IdSpace):
    """Ids that are row numbers already; ``num_nodes`` must be set before the edges are read."""

    def encode(self, ids: np.ndarray) -> np.ndarray:
        return np.where(ids < self.num_nodes, ids, UNKNOWN)


def find_missing(part: pa.Array | np.ndarray, place: Place, text: bool, is_exact: bool) -> np.ndarray:
    """Find the rows [n] bool of a column without an id: empty, null or NaN. An id of ``text`` may be called nan, and
    white space where it ``is_exact``."""
    if isinstance(part, np.ndarray) and part.dtype.kind in "iub":
        return np.zeros(len(part), bool)
    column = to_arrow(part)
    missing = column.is_null(nan_is_null=True)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        words = pc.fill_null(to_text(column, place), "")
        words = words if text and is_exact else pc.utf8_lower(pc.utf8_trim_whitespace(words))
        missing = pc.is_in(words, pa.array(["", *([] if text else ["nan"])]))
    return missing.to_numpy(zero_copy_only=False)


ID_SPACES: dict[str, type[IntegerIds | TextIds | RowIds]] = {"int": IntegerIds, "string": TextIds, "row": RowIds}


def unknown_id(raw: Raw, file: str, row: int, value: int | str, space: IdSpace) -> RowError:
    """Make the error for an edge (or a row) that names a node which its type does not have; ``row`` is 0-based."""
    what = f"{file}: column {raw.labels[0]}, row {row + 1}: no node {value!r} of type {space.type}"
    if isinstance(space, RowIds):
        what += f", whose {space.num_nodes:,} nodes are numbered by rows from 0"
        remedy = "name the column of ids of its table (id), or set dangling: drop on the relation"
    else:
        remedy = (
            "add it to the node table, or set others: add (with a fill for each column), or dangling: drop on the "
            "relation"
        )
    return RowError(f"{what}; {remedy}", row)


def fixed_width(text: pa.Array, dtype: np.dtype) -> np.ndarray:
    """Make bytes of fixed width of strings [n]."""
    offsets, data = text_parts(text)
    lengths = np.diff(offsets)
    matrix = np.zeros((len(text), dtype.itemsize), np.uint8)
    matrix[np.repeat(np.arange(len(text)), lengths), np.arange(len(data)) - np.repeat(offsets[:-1], lengths)] = data
    return matrix.reshape(-1).view(dtype)


def sorted_unique(values: np.ndarray) -> np.ndarray:
    """Sort and return distinct values, increasing. Sorting is several times faster than np.unique, which hashes."""
    values = np.sort(values)
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]
