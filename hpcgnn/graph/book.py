"""The book of a partition set, which gives the part and the rank that own a global id; opens a rank's parts, too.

Remote nodes of a rank (or part): nodes of other ranks (or parts) that have edges to its own nodes, and so are in its
halo.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from hpcgnn import native
from hpcgnn.comm.group import Group, unwatched
from hpcgnn.comm.same import same_everywhere
from hpcgnn.comm.together import together
from hpcgnn.graph import files

LOGGER = logging.getLogger("hpcgnn")  # of programs that use the loaders; commands have a log of their own
VERIFY = "run hpcgnn verify, or partition again"


@dataclass(frozen=True, slots=True)
class BlockOwnership:
    """Ownership by contiguous blocks: rank r owns ids starts[r] .. starts[r + 1] - 1; local row = id - starts[r]."""

    starts: np.ndarray

    @classmethod
    def even(cls, total: int, size: int) -> BlockOwnership:
        """Divide ``total`` ids into ``size`` blocks of nearly equal length."""
        number, (length, rest) = np.arange(size + 1, dtype=np.int64), divmod(total, size)
        return cls(number * length + number * rest // size)  # size times total may not fit into 64 bits

    def locate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the owning rank and the local row of every id, int64 [n]."""
        size = len(self.starts) - 1
        blocks = np.ascontiguousarray(self.starts[:-1]), np.arange(size), np.zeros(size, np.int64)
        return native.locate(np.ascontiguousarray(ids, np.int64), blocks)


@dataclass(frozen=True, slots=True)
class Book:
    """Ownership of a partition set's nodes by R ranks.

    offsets [T, P + 1]: absolute global ids, type after type, part after part. Rank r takes parts first_part[r] ..
    first_part[r + 1] - 1. Local rows of a rank: its nodes type by type, in order of global id.
    """

    offsets: np.ndarray
    size: int
    node_types: tuple[str, ...]
    first_part: np.ndarray = field(init=False)
    _starts: np.ndarray = field(init=False)
    _local_base: np.ndarray = field(init=False)

    def __post_init__(self):
        num_parts = self.offsets.shape[1] - 1
        if self.size > num_parts:
            raise ValueError(
                f"{self.size} ranks but only {num_parts} parts: start at most {num_parts} ranks, or partition again "
                f"with --parts {self.size} or more"
            )
        first_part = np.arange(self.size + 1) * num_parts // self.size
        starts = self.offsets[:, first_part]  # [T, R + 1]
        counts = np.diff(starts, axis=1)
        object.__setattr__(self, "first_part", first_part)
        object.__setattr__(self, "_starts", np.ascontiguousarray(starts[:, :-1]).reshape(-1))
        object.__setattr__(self, "_local_base", (np.cumsum(counts, axis=0) - counts).reshape(-1))

    @property
    def blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First global id, owning rank and the owner's first local row of every block of consecutive parts, int64."""
        return self._starts, np.arange(len(self._starts)) % self.size, self._local_base

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return int(self.offsets[-1, -1])

    def type_base(self) -> np.ndarray:
        """Return the first *flat* row id of every type, [T + 1], which is its first global id, too. Flat row id: base
        of the type + row id within the type."""
        return np.append(self.offsets[:, 0], self.num_nodes)

    def of_type(self, node_type: int) -> BlockOwnership:
        """Return the ownership of one type's global ids, with rows counted within the type."""
        return BlockOwnership(self.offsets[node_type, self.first_part])

    def locate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the owning rank and the owner's local row of every global id, int64 [n]. Ids must be valid."""
        if len(self._starts) == 1:
            return np.zeros(len(ids), np.int64), ids
        return native.locate(np.ascontiguousarray(ids, np.int64), self.blocks)

    def part_of(self, ids: np.ndarray) -> np.ndarray:
        """Find the part of every global id, int64 of the shape of ``ids``."""
        first = self.offsets[:, :-1].reshape(-1)
        return (np.searchsorted(first, ids, side="right") - 1) % (self.offsets.shape[1] - 1)

    def parts_of(self, rank: int) -> range:
        """Return the parts of a rank."""
        return range(int(self.first_part[rank]), int(self.first_part[rank + 1]))

    def type_start(self, rank: int) -> np.ndarray:
        """Return the first local row of every type at a rank, and behind them the number of its nodes, [T + 1]."""
        first, stop = self.first_part[rank : rank + 2]
        return np.cumsum([0, *(self.offsets[:, stop] - self.offsets[:, first])])

    def local_to_global(self, rank: int) -> np.ndarray:
        """List the global ids of a rank's local rows, int64 [n]."""
        begin, end = self.first_part[rank], self.first_part[rank + 1]
        ranges = [np.arange(row[begin], row[end]) for row in self.offsets]
        return np.concatenate(ranges).astype(np.int64)


def is_remote(book: Book, rank: int, node_type: int, ids: np.ndarray) -> np.ndarray:
    """Tell which global ids of a node type belong to other ranks, bool [n]."""
    starts = book.of_type(node_type).starts
    return (ids < starts[rank]) | (ids >= starts[rank + 1])


def find_remote_nodes(
    book: Book, rank: int, sources: Sequence[tuple[int, np.ndarray, np.ndarray]]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Find the remote nodes of E edges of each relation into own nodes, and number the sources of all edges.

    sources: by relation, the source type, global ids [E] int64, and whether each is a remote node, bool [E]. Returns by
    node type the remote nodes' global ids [g], increasing, and by relation the sources' rows [E] among [own nodes |
    remote nodes]."""
    remote_nodes, rows = [], []
    for node_type in range(len(book.node_types)):
        ids = [src[is_remote_source] for src_type, src, is_remote_source in sources if src_type == node_type]
        remote_nodes.append(np.unique(np.concatenate([np.empty(0, np.int64), *ids])))
    for src_type, src, is_remote_source in sources:
        first, stop = book.of_type(src_type).starts[rank : rank + 2]
        row = src - first
        row[is_remote_source] = stop - first + np.searchsorted(remote_nodes[src_type], src[is_remote_source])
        rows.append(row)
    return remote_nodes, rows


def read_offsets(book: h5py.File) -> tuple[np.ndarray, tuple[str, ...]]:
    """Read the offsets [T, P + 1] and the node types from an open book. Raises ValueError."""
    types = files.node_types(book)
    offsets = np.stack([book["nodes"][name]["offsets"][()] for name in types]).astype(np.int64)
    follow = offsets[0, 0] == 0 and np.array_equal(offsets[1:, 0], offsets[:-1, -1])
    if offsets.shape[1] < 2 or not follow or (np.diff(offsets) < 0).any():
        raise ValueError("the offsets of the node types must increase from 0 and follow each other")
    return offsets, tuple(types)


def check_same_set(path: str | os.PathLike, world: Group) -> None:
    """Collective over the job. Raise DistributedError unless all ranks read the same partition set, by its id and by
    its book, which holds the hashes of the parts."""
    with together(world, "open the partition set"):
        book = files.book_path(path)
        with files.reading(book, files.BOOK, "partition again") as file:
            set_id = str(file.attrs["set_id"])
        what = {"id of the partition set": set_id[:16], "hash of the partition set's book": files.file_hash(book)[:16]}
    remedy = f"{path} is another set there, or an old copy: copy it anew, or name a folder that all machines share"
    same_everywhere(world, what, remedy)


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation: src_type and dst_type are numbers of the book's node types; num_edges: in the whole graph;
    time_scale: times of the graph / times of its source; zone: of dates without one, where times come from dates, empty
    where that is not known. leads_back: messages go against the edges of the graph file, beside others that follow
    them."""

    name: str
    src_type: int
    dst_type: int
    num_edges: int
    time_scale: float = 1
    zone: str = ""
    leads_back: bool = False


@dataclass(frozen=True, slots=True)
class OpenedParts:
    """A rank's parts. graph_hash: of the graph file, the same for all its partition sets; attributes: of the root of
    the book. flat_row [n] int64: of every local node; contents: the results of ``read_part``, part by part."""

    book: Book
    graph_hash: str
    relations: tuple[Relation, ...]
    attributes: dict[str, Any]
    flat_row: np.ndarray
    contents: list[Any]


@contextlib.contextmanager
def open_parts(
    path: str | os.PathLike, rank: int, size: int, kind: str,
    read_part: Callable[[h5py.File, int, Book, tuple[Relation, ...]], Any],
    check_book: Callable[[h5py.File], object] = lambda file: None, check_hash: bool = True,
    working: Callable[..., None] = unwatched,
) -> Iterator[OpenedParts]:  # fmt: skip
    """Read the book of a partition set of a kind of graph, and the parts of ``rank`` of ``size``, one after the other.

    read_part: makes from (file, number of the part, book, relations) an object with the contents of a part; its
    ``rows`` are the row ids of the part's nodes by type. check_book: raises for an open book that does not suit;
    working: called before each part. Errors about damaged contents, in the block too, name the set. Raises
    FileFormatError (a ValueError) naming the file for a damaged set, parts of another set, or a graph of another kind,
    and ValueError for more ranks than parts.
    """
    # What NumPy raises where columns do not fit each other names no file.
    with files.naming(path, VERIFY, keep=(ValueError,)):
        with files.reading(files.book_path(path), files.BOOK, "partition again") as file:
            files.check_kind(file, kind)
            check_book(file)
            offsets, types = read_offsets(file)
            relations = _read_relations(file, types)
            hashes = [digest.decode() for digest in file["parts/hash"][()]]
            if len(hashes) != offsets.shape[1] - 1:
                raise ValueError(f"/parts/hash has {len(hashes)} entries for {offsets.shape[1] - 1} parts")
            attributes = dict(file.attrs)
            set_id, graph_hash = str(attributes["set_id"]), str(attributes["source_hash"])
            edition = int(attributes.get("edition", 0))
        # Outside the block above, which would take too many ranks for a damaged book.
        book, contents = Book(offsets, size, types), []
        for part in book.parts_of(rank):
            working("read the parts", part)
            name = files.part_path(path, part, edition)
            with _reading_part(name, part, set_id, hashes[part] if check_hash else None) as file:
                contents.append(read_part(file, part, book, relations))
            counts = offsets[:, part + 1] - offsets[:, part]
            _check_counts(name, contents[-1].rows, counts, types)
        pieces = [base + part.rows[t] for t, base in enumerate(offsets[:, 0]) for part in contents]
        flat_row = np.concatenate(pieces).astype(np.int64)
        read = book.parts_of(rank)
        what = "%s: rank %d of %d has parts %d to %d, %d nodes"
        LOGGER.info(what, path, rank, size, read[0], read[-1], len(flat_row))
        yield OpenedParts(book, graph_hash, relations, attributes, flat_row, contents)


def _read_relations(book: h5py.File, types: tuple[str, ...]) -> tuple[Relation, ...]:
    relations = []
    for name in files.relations(book):
        src, _, dst = files.split_relation(name)
        attributes = book["edges"][name].attrs
        scale, zone = float(attributes.get("time_scale", 1)), str(attributes.get("zone", ""))
        ends, count = (types.index(src), types.index(dst)), int(attributes["num_edges"])
        relations.append(Relation(name, *ends, count, scale, zone))
    return tuple(relations)


@contextlib.contextmanager
def _reading_part(name: pathlib.Path, part: int, set_id: str, digest: str | None) -> Iterator[h5py.File]:
    """Open the file of a part of the set ``set_id``. Its bytes are compared with ``digest`` (None: not at all) before
    HDF5, which damaged files can hang, sees them. Raises FileFormatError."""
    if digest is not None and name.is_file() and files.file_hash(name) != digest:
        raise files.FileFormatError(
            f"{name}: contents do not match the hash in the book: damaged, or a file of another partition set or "
            "version; run hpcgnn verify, or partition again into an empty folder"
        )
    with files.reading(name, files.PART, VERIFY) as file:
        own_set = str(file.attrs.get("set_id"))
        if own_set != set_id or int(file.attrs.get("part", -1)) != part:
            raise files.FileFormatError(
                f"{name}: belongs to partition set {own_set[:12]}, part {file.attrs.get('part')}, but the book is of "
                f"set {set_id[:12]}: files of different sets are mixed; partition again into an empty folder"
            )
        yield file


def _check_counts(name: os.PathLike, rows: Sequence[np.ndarray], expected: np.ndarray, types: Sequence[str]) -> None:
    """Compare a part's numbers of nodes, by type, with those of the book. Raises FileFormatError."""
    for part_rows, count, node_type in zip(rows, expected, types, strict=True):
        if len(part_rows) != count:
            raise files.FileFormatError(
                f"{name}: /nodes/{node_type}/row has {len(part_rows)} rows, the book has {count}: part or book is "
                f"damaged; {VERIFY}"
            )
