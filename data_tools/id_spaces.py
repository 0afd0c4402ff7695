"""Id spaces: from the ids of a source to row ids 0 .. num_nodes-1 of a node type.

Ids are first turned into int64 *codes* while the files stream by; when all are known, `rows` turns codes into row
ids, which increase with the id (numerically, or by the bytes of the UTF-8 text). A space that a node table has
*sealed* knows its ids, and refuses others.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from data_tools.values import Raw, parse_ids, parse_names
from hpcgnn.store.files import FileFormatError

MERGE_AT = 1 << 22
DENSE = 4


class IdSpace(Protocol):
    """The ids of one node type."""

    def encode(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """Codes [n] of a piece of an id column; new ids are added, or refused when the space is sealed."""

    def seal(self) -> None:
        """No further id may come."""

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """Row ids [n] of codes; the space must be finished."""

    def finish(self) -> np.ndarray | None:
        """All ids in order of their rows, int64 [N] or bytes [N]; None when the ids are the row numbers."""

    @property
    def num_nodes(self) -> int:
        """Number of ids; the space must be finished."""


class IntegerIds:
    """Integer ids; a code is the id itself."""

    def __init__(self, node_type: str):
        self._type = node_type
        self._ids = np.empty(0, np.int64)
        self._pending: list[np.ndarray] = []
        self._row: np.ndarray | None = None
        self._sealed = False

    def encode(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """See `IdSpace`."""
        ids = parse_ids(raw, file, first_row)
        if not self._sealed:
            self._pending.append(sorted_unique(ids))
            if sum(map(len, self._pending)) > max(MERGE_AT, len(self._ids)):
                self._merge()
            return ids
        found = np.searchsorted(self._ids, ids)
        known = self._ids[np.minimum(found, len(self._ids) - 1)] == ids if len(self._ids) else np.zeros(len(ids), bool)
        if len(bad := np.flatnonzero(~known)):
            raise unknown_id(raw, file, first_row + int(bad[0]), int(ids[bad[0]]), self._type)
        return ids

    def seal(self) -> None:
        """See `IdSpace`."""
        self._merge()
        self._sealed = True

    def finish(self) -> np.ndarray:
        """See `IdSpace`."""
        self._merge()
        # Where ids are dense a table is several times faster than a search, and no larger than a few columns.
        if len(self._ids) and self._ids[-1] < DENSE * len(self._ids):
            self._row = np.zeros(int(self._ids[-1]) + 1, np.int64)
            self._row[self._ids] = np.arange(len(self._ids))
        return self._ids

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """See `IdSpace`."""
        return np.searchsorted(self._ids, codes) if self._row is None else self._row[codes]

    @property
    def num_nodes(self) -> int:
        """See `IdSpace`."""
        return len(self._ids)

    def _merge(self) -> None:
        self._ids = sorted_unique(np.concatenate([self._ids, *self._pending]))
        self._pending = []


class TextIds:
    """Ids that are text; a code is the order of first appearance."""

    def __init__(self, node_type: str):
        self._type = node_type
        self._codes: dict[str, int] = {}
        self._rank = np.empty(0, np.int64)
        self._sealed = False

    def encode(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """See `IdSpace`."""
        column = parse_names(raw, file, first_row).dictionary_encode()
        indices = column.indices.to_numpy(zero_copy_only=False)
        codes = np.array([self._code(name) for name in column.dictionary.to_pylist()], np.int64)[indices]
        if len(bad := np.flatnonzero(codes < 0)):
            name = column.dictionary[int(indices[bad[0]])].as_py()
            raise unknown_id(raw, file, first_row + int(bad[0]), name, self._type)
        return codes

    def _code(self, name: str) -> int:
        return self._codes.get(name, -1) if self._sealed else self._codes.setdefault(name, len(self._codes))

    def seal(self) -> None:
        """See `IdSpace`."""
        self._sealed = True

    def finish(self) -> np.ndarray:
        """See `IdSpace`."""
        names = np.array([name.encode() for name in self._codes] or np.empty(0, "S1"))
        order = np.argsort(names, kind="stable")
        self._rank = np.empty(len(names), np.int64)
        self._rank[order] = np.arange(len(names))
        return names[order]

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """See `IdSpace`."""
        return self._rank[codes]

    @property
    def num_nodes(self) -> int:
        """See `IdSpace`."""
        return len(self._codes)


class RowIds:
    """Ids that are row numbers already; how many there are is known before the edges are read."""

    def __init__(self, node_type: str):
        self._type = node_type
        self.num_nodes = 0

    def encode(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """See `IdSpace`."""
        ids = parse_ids(raw, file, first_row)
        if len(bad := np.flatnonzero(ids >= self.num_nodes)):
            raise unknown_id(raw, file, first_row + int(bad[0]), int(ids[bad[0]]), self._type)
        return ids

    def seal(self) -> None:
        """See `IdSpace`."""

    def finish(self) -> None:
        """See `IdSpace`."""

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """See `IdSpace`."""
        return np.asarray(codes)


def make_id_space(node_type: str, ids: str) -> IntegerIds | TextIds | RowIds:
    """The id space for a node type whose ids are ``int``, ``string`` or ``row``."""
    return {"int": IntegerIds, "string": TextIds, "row": RowIds}[ids](node_type)


def unknown_id(raw: Raw, file: str, row: int, value: int | str, node_type: str) -> FileFormatError:
    """An edge (or a row) names a node that its type does not have; ``row`` is 0-based."""
    return FileFormatError(
        f"{file}: column {raw.labels[0]}, row {row + 1}: no node {value!r} of type {node_type}; add it to the node "
        "table, or set others: add (with a fill for each column)"
    )


def sorted_unique(values: np.ndarray) -> np.ndarray:
    """Distinct values, increasing. Sorting is several times faster than np.unique, which hashes."""
    values = np.sort(values)
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def duplicate_row(codes: np.ndarray) -> int | None:
    """Position of the first code that occurred before, None if there is none."""
    order = np.argsort(codes, kind="stable")
    repeated = order[1:][codes[order[1:]] == codes[order[:-1]]]
    return int(repeated.min()) if len(repeated) else None
