"""Finds the nodes of one graph in another one by their original ids, and the classes by their names.

n nodes of a rank. A node's name is the name of its type and its original id, or its row where the graph has no ids.
"""

from __future__ import annotations

import os

import h5py
import numpy as np

from hpcgnn.comm.exchange import Channel, ask, exchange_columns
from hpcgnn.comm.world import World
from hpcgnn.graph import files
from hpcgnn.graph.book import Book, Relation, open_parts

MULTIPLIER = np.uint64(0x100000001B3)  # of the polynomial that places names on ranks


class _NamedNodes:
    """The nodes of one part: rows by type, and their names as bytes."""

    def __init__(self, file: h5py.File, part: int, book: Book, relations: tuple[Relation, ...]):
        self.rows, self.names = [], []
        for node_type in book.node_types:
            group = file["nodes"][node_type]
            row = group["row"][()]
            ids = group["id"][()] if "id" in group else row
            prefix: np.ndarray | bytes = f"{node_type}/".encode()
            if kinds := files.class_names(group["type"]) if "type" in group else []:
                prefix = np.array([f"{node_type}/{kind}/".encode() for kind in kinds])[group["type"][()]]
            self.rows.append(row)
            self.names.append(np.char.add(prefix, ids.astype("S")) if len(ids) else np.empty(0, "S1"))


def read_names(path: str | os.PathLike, rank: int, size: int, kind: str) -> tuple[str, np.ndarray, np.ndarray]:
    """Read the share of ``rank`` of ``size`` ranks of the nodes of a partition set: the hash of its graph, flat row ids
    [n] int64 and names [n] as bytes, in order of global id. There may be more ranks than parts: the last ranks have no
    nodes then. Raises as ``open_parts``."""
    with files.reading(files.book_path(path), files.BOOK, "partition again") as book:
        size = min(size, len(book["parts/hash"]))
        graph_hash = str(book.attrs["source_hash"])
    if rank >= size:
        return graph_hash, np.empty(0, np.int64), np.empty(0, "S1")
    with open_parts(path, rank, size, kind, _NamedNodes, check_hash=False) as opened:
        types = range(len(opened.book.node_types))
        names = [part.names[number] for number in types for part in opened.contents]
        return opened.graph_hash, opened.flat_row, np.concatenate(names)


def find_by_name(
    names: np.ndarray, values: np.ndarray, wanted: np.ndarray, world: World, channel: Channel
) -> np.ndarray:
    """Collective. Look up names: ``names`` [n] bytes and their ``values`` [n] int64, at least 0, of this rank, unique
    over all ranks; returns the values of ``wanted`` [m] bytes, -1 for a name that no rank has."""
    width = int(world.reduce_array(np.array([names.dtype.itemsize, wanted.dtype.itemsize]), "max").max())
    (own, asked) = (_letters(column, width) for column in (names, wanted))
    came, came_values = exchange_columns([own, values], _ranks(own, world.size), channel)
    known = _joined(came, width)
    order = np.argsort(known)

    def answer(requests: np.ndarray) -> np.ndarray:
        if len(known) == 0:
            return np.full(len(requests), -1, np.int64)
        asked = _joined(requests, width)
        at = order[np.minimum(np.searchsorted(known, asked, sorter=order), len(known) - 1)]
        return np.where(known[at] == asked, came_values[at], -1)

    return ask(asked, _ranks(asked, world.size), channel, answer)


def _letters(names: np.ndarray, width: int) -> np.ndarray:
    """Make names bytes [n, width]."""
    return names.astype(f"S{width}").view(np.uint8).reshape(len(names), width)


def _joined(letters: np.ndarray, width: int) -> np.ndarray:
    return np.ascontiguousarray(letters).reshape(-1).view(f"S{width}")


def _ranks(letters: np.ndarray, size: int) -> np.ndarray:
    """Choose the rank that compares each name, by a hash of its bytes."""
    key = np.zeros(len(letters), np.uint64)
    for column in letters.T:
        key = key * MULTIPLIER + column
    return ((key >> np.uint64(20)) % np.uint64(size)).astype(np.int64)


def renumber(numbers: np.ndarray, names: list[str], trained: list[str], what: str) -> np.ndarray:
    """Replace numbers [...], which count ``names``, by the numbers of the same names in ``trained``; negative numbers
    stay. Raises ValueError for a name that is used and is not in ``trained``."""
    if not names or not trained or names == trained:
        return numbers
    place = {name: number for number, name in enumerate(trained)}
    used = np.unique(numbers[numbers >= 0]).astype(np.int64)  # not so for NaN
    words = [names[number] if number < len(names) else str(number) for number in used]
    if unknown := [word for word in words if word not in place]:
        raise ValueError(f"{what} {unknown[0]!r}: the model was trained without it ({len(unknown)} such names)")
    found, known = numbers.copy(), numbers >= 0
    found[known] = np.array([place.get(name, -1) for name in names])[numbers[known].astype(np.int64)]
    return found
