"""Id spaces: from the ids of a source to row ids 0 .. num_nodes-1 of a node type.

Ids are first turned into int64 *codes* while the files stream by; when all are known, `rows` turns codes into row
ids, which increase with the id (numerically, or by the bytes of the UTF-8 text). A space that a node table has
*sealed* knows its ids, and refuses others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from data_tools.source.formats.values import Raw, parse_ids, parse_names
from data_tools.source.spool import forget
from hpcgnn.graph.files import FileFormatError

MERGE_AT = 1 << 22
MAP_ROWS = 1 << 20
DENSE = 4
UNKNOWN = -1
NONE = np.empty(0, np.int64)


class IdColumn(Protocol):
    """A column of ids of a space."""

    def __call__(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """Codes [n] of a piece of the column; new ids are added, or refused when the space is sealed."""

    def resolve(self, codes: np.ndarray) -> None:
        """Replace the codes [N] of the whole column by row ids, -1 for those it drops; the space must be finished."""


class IdSpace(Protocol):
    """The ids of one node type. When it is finished, ``num_nodes`` is their number and ``ids`` holds all in order of
    their rows, int64 [N] or bytes [N]; None when the ids are the row numbers."""

    @property
    def ids(self) -> np.ndarray | None:
        """See the class."""

    @property
    def num_nodes(self) -> int:
        """See the class."""

    def column(self, drop: bool = False) -> IdColumn:
        """A column of ids to read; ``drop``: one that the sealed space does not know is marked, not refused."""

    def seal(self) -> None:
        """No further id may come."""

    def finish(self) -> None:
        """Number the ids; all columns have been read."""


class MemoryColumn:
    """A column of a space that is in memory; its codes do not depend on the column."""

    def __init__(self, space: IntegerIds | TextIds | RowIds, drop: bool):
        self._space = space
        self._drop = drop

    def __call__(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """See `IdColumn`."""
        codes, unknown, value = self._space.encode(raw, file, first_row)
        if len(unknown) and not self._drop:
            raise unknown_id(raw, file, first_row + int(unknown[0]), value(int(unknown[0])), self._space.type)
        if len(unknown):
            codes = np.array(codes)
            codes[unknown] = UNKNOWN
        return codes

    def resolve(self, codes: np.ndarray) -> None:
        """See `IdColumn`."""
        for start in range(0, len(codes), MAP_ROWS):
            piece = codes[start : start + MAP_ROWS]
            unknown = piece == UNKNOWN if self._drop else np.zeros(0, bool)
            piece[:] = self._space.rows(piece) if not unknown.any() else self._known_rows(piece, unknown)
            forget(codes)

    def _known_rows(self, codes: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        rows = np.full(len(codes), UNKNOWN)
        rows[~unknown] = self._space.rows(codes[~unknown])
        return rows


Encoded = tuple[np.ndarray, np.ndarray, Callable[[int], int | str]]


class IntegerIds:
    """Integer ids; a code is the id itself."""

    def __init__(self, node_type: str):
        self.type = node_type
        self.ids = np.empty(0, np.int64)
        self._pending: list[np.ndarray] = []
        self._row: np.ndarray | None = None
        self._sealed = False

    def column(self, drop: bool = False) -> MemoryColumn:
        """See `IdSpace`."""
        return MemoryColumn(self, drop)

    def encode(self, raw: Raw, file: str, first_row: int) -> Encoded:
        """Codes [n] of a piece of a column; the rows of unknown ids, and what tells such an id."""
        ids = parse_ids(raw, file, first_row)
        if not self._sealed:
            self._pending.append(sorted_unique(ids))
            if sum(map(len, self._pending)) > max(MERGE_AT, len(self.ids)):
                self._merge()
            return ids, NONE, int
        found = np.searchsorted(self.ids, ids)
        known = self.ids[np.minimum(found, len(self.ids) - 1)] == ids if len(self.ids) else np.zeros(len(ids), bool)
        return ids, np.flatnonzero(~known), lambda row: int(ids[row])

    def seal(self) -> None:
        """See `IdSpace`."""
        self._merge()
        self._sealed = True

    def finish(self) -> None:
        """See `IdSpace`."""
        self._merge()
        # Where ids are dense a table is several times faster than a search, and no larger than a few columns.
        if len(self.ids) and self.ids[-1] < DENSE * len(self.ids):
            self._row = np.zeros(int(self.ids[-1]) + 1, np.int64)
            self._row[self.ids] = np.arange(len(self.ids))

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """Row ids [n] of codes."""
        return np.searchsorted(self.ids, codes) if self._row is None else self._row[codes]

    @property
    def num_nodes(self) -> int:
        """See `IdSpace`."""
        return len(self.ids)

    def _merge(self) -> None:
        self.ids = sorted_unique(np.concatenate([self.ids, *self._pending]))
        self._pending = []


class TextIds:
    """Ids that are text; a code is the order of first appearance."""

    def __init__(self, node_type: str):
        self.type = node_type
        self.ids = np.empty(0, "S1")
        self._codes: dict[str, int] = {}
        self._rank = np.empty(0, np.int64)
        self._sealed = False

    def column(self, drop: bool = False) -> MemoryColumn:
        """See `IdSpace`."""
        return MemoryColumn(self, drop)

    def encode(self, raw: Raw, file: str, first_row: int) -> Encoded:
        """Codes [n] of a piece of a column; the rows of unknown ids, and what tells such an id."""
        column = parse_names(raw, file, first_row).dictionary_encode()
        indices = column.indices.to_numpy(zero_copy_only=False)
        codes = np.array([self._code(name) for name in column.dictionary.to_pylist()], np.int64)[indices]
        return codes, np.flatnonzero(codes < 0), lambda row: column.dictionary[int(indices[row])].as_py()

    def _code(self, name: str) -> int:
        return self._codes.get(name, -1) if self._sealed else self._codes.setdefault(name, len(self._codes))

    def seal(self) -> None:
        """See `IdSpace`."""
        self._sealed = True

    def finish(self) -> None:
        """See `IdSpace`."""
        names = np.array([name.encode() for name in self._codes] or np.empty(0, "S1"))
        order = np.argsort(names, kind="stable")
        self._rank = np.empty(len(names), np.int64)
        self._rank[order] = np.arange(len(names))
        self.ids = names[order]

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """Row ids [n] of codes."""
        return self._rank[codes]

    @property
    def num_nodes(self) -> int:
        """See `IdSpace`."""
        return len(self._codes)


class RowIds:
    """Ids that are row numbers already; how many there are is known before the edges are read."""

    ids = None

    def __init__(self, node_type: str):
        self.type = node_type
        self.num_nodes = 0

    def column(self, drop: bool = False) -> MemoryColumn:
        """See `IdSpace`."""
        return MemoryColumn(self, drop)

    def encode(self, raw: Raw, file: str, first_row: int) -> Encoded:
        """Codes [n] of a piece of a column; the rows of unknown ids, and what tells such an id."""
        ids = parse_ids(raw, file, first_row)
        return ids, np.flatnonzero(ids >= self.num_nodes), lambda row: int(ids[row])

    def seal(self) -> None:
        """See `IdSpace`."""

    def finish(self) -> None:
        """See `IdSpace`."""

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """Row ids [n] of codes."""
        return np.asarray(codes)


def make_id_space(node_type: str, ids: str) -> IntegerIds | TextIds | RowIds:
    """The id space for a node type whose ids are ``int``, ``string`` or ``row``."""
    kinds: dict[str, type[IntegerIds | TextIds | RowIds]] = {"int": IntegerIds, "string": TextIds, "row": RowIds}
    return kinds[ids](node_type)


def unknown_id(raw: Raw, file: str, row: int, value: int | str, node_type: str) -> FileFormatError:
    """An edge (or a row) names a node that its type does not have; ``row`` is 0-based."""
    return FileFormatError(
        f"{file}: column {raw.labels[0]}, row {row + 1}: no node {value!r} of type {node_type}; add it to the node "
        "table, or set others: add (with a fill for each column), or dangling: drop on the relation"
    )


def sorted_unique(values: np.ndarray) -> np.ndarray:
    """Distinct values, increasing. Sorting is several times faster than np.unique, which hashes."""
    values = np.sort(values)
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]
