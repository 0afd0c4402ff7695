"""The kinds of HDF5 file: the graph file, its negatives and the partition set (``book.h5`` + ``part-<i>.h5``).

This module alone has the format names, versions and the layout's invariants; everything that reads or writes our files
goes through it. Layout (all integers int64 unless said otherwise; E rows are in file order):

graph file, root attributes ``format="hpcgnn-graph"``, ``format_version``, ``created_by``, ``kind`` ("temporal",
"static", "snapshots"), ``sources`` (JSON list: name, bytes and sha256 of each source file, and its declared source, if
any), ``spec?`` (JSON: how they were read, as far as it differs from the defaults, with files by their names); of a
snapshot graph ``num_snapshots`` (S), ``splits`` (JSON: first and last snapshot of train, val, test) where the source
has any, and ``clock`` (JSON: first and step in seconds, zone) where snapshots are at dates that are evenly spaced::

    /nodes/<type>                   attributes: num_nodes, type_id (0, 1, ... without gaps)
        id?                         [N] original ids: integers, or UTF-8 bytes of fixed width (dtype S<n>)
        feat?, label?, split?, ...  [N, ...] any further column, first dimension N
    /edges/<src>.<rel>.<dst>        attributes: num_edges, relation_id (0, 1, ... without gaps); dates? (true: times /
                                    time_scale are seconds since 1970), zone? (of these dates)
        src, dst                    [E] row ids within their node type
        time?                       [E] non-decreasing in a temporal graph; attribute time_scale: stored / source
        event?                      [E] of a temporal graph of several relations: places in the merge of all of them, in
                                    order of (time, relation_id, row)
        feat?, label?, weight?, split?, ...  [E, ...]
        columns whose numbers 0, 1, ... stand for words have attribute names: these, as a JSON list, of any length;
        columns of seconds since 1970 that come from dates have attribute zone
        feat may be narrow: float16; uint16 with the upper halves of float32 (bfloat16), or uint8. These two have
        attribute stored_as (JSON): dtype, and for uint8 scale and offset, a number of float32 for each column:
        a feature is code * scale + offset
    snapshots: one type, one relation; columns of nodes with attribute per_snapshot are [N, S, ...]; of edges
        first                       [E] int32, non-decreasing: the first snapshot that has the edge
        last?                       [E] int32: the last one; absent: an edge is in one snapshot only

negatives of links, beside the graph file of a source that gives any, ``format="hpcgnn-negatives"``; attribute
``source_name``: of the graph file. Nodes and edges are row ids of the graph file::

    /edges/<src>.<rel>.<dst>        attribute sizes: source nodes, destination nodes and edges of the relation
    /edges/<src>.<rel>.<dst>/<train, val or test>
        row?                        [m] edges of the set, increasing
        negatives?                  [m, k] nodes of type dst to rank against the destination of each edge; -1 stands
                                    behind the last one of a shorter line
        source_negatives?           [m, k] nodes of type src, to rank against its source
        pairs?                      [n, 2] source and destination of negative links of the set, of no edge in particular

labels of nodes at times, beside the graph file of a source that gives any, ``format="hpcgnn-labels"``; attribute
``source_name``. A label is a vector of weights of classes, of which the file has the ones that it lists::

    /nodes/<type>                   attributes: num_classes; sizes: nodes of the type, and edges of the graph file
        time, node                  [m] in this order; node: row ids, each once at a time
        indptr                      [m + 1] over classes and weights
        class                       [z] int32, increasing within a label
        weight                      [z] float32, at least 0

partition set, a folder; every file carries the same ``set_id``::

    book.h5      format="hpcgnn-book"; attributes: kind, num_parts, set_id, seed, method, options (JSON),
                 source_name, source_hash, quality (JSON), num_snapshots?, splits?, clock?; sources?, spec?: of the
                 graph file; edition? (int, absent: 0): how often events were appended; then the parts are called
                 part-<i>.<edition>.h5; its first SEAL_BYTES (HDF5's user block) have the sha256 of all that
                 follows, and are checked whenever it is opened
        /nodes/<type>               attributes: num_nodes, type_id
            offsets                 [P + 1] *absolute* global ids: part p has offsets[p] .. offsets[p + 1] - 1;
                                    types follow each other in order of type_id
        /edges/<src>.<rel>.<dst>    attributes: num_edges, relation_id, time_scale?, zone? as in the graph file
            columns                 [C] names of the columns besides src and dst, UTF-8 bytes of fixed width
        /parts/hash                 [P] sha256 of every part file, hex, dtype S64
        /parts/bytes                [P]
    part-<i>.h5  format="hpcgnn-part"; attributes: part, num_parts, set_id
        /nodes/<type>
            row                     [n] row ids, increasing; node j of the part has global id offsets[part] + j
            id?, feat?, label?, ... as in the graph file
        /edges/<src>.<rel>.<dst>    temporal: all events with an endpoint in this part, each once
            row                     [m] edge row ids, increasing
            src, dst                [m] *global* ids
            time?, feat?, ...       as in the graph file
        /history/<src>.<rel>.<dst>  temporal only; the part's nodes, types concatenated in order of type_id
            indptr                  [n_all + 1]
            event                   int32 or int64, positions in this part's edge table, increasing within a node;
                                    a self-loop is one entry
        /edges/<src>.<rel>.<dst>    static, snapshots: the in-edges of this part's nodes of type dst, as CSC
            indptr                  [n_dst + 1] over these nodes in order of their global ids; packed (gzip) where there
                                    are fewer edges than nodes
            src                     [m] *global* ids
            row                     [m] edge row ids, increasing within a node
            weight?, feat?, ...     [m, ...] as in the graph file
        /out/<src>.<rel>.<dst>      static, where asked for: the out-edges of this part's nodes of type src
            indptr                  [n_src + 1]
            dst, row                [m] *global* ids, edge row ids; row increasing within a node
        /cache/<type>               static, where asked for: nodes of *other* parts that sampling from this part's
                                    training seeds reaches most likely, the likeliest first
            id                      [k] *global* ids, each once
            probability             [k] float32, that a global batch reaches the node
    Every part lists every type and relation; without an edge indptr is all zeros and the columns are empty. The book's
    options tell whether /out (out_edges) and /cache (cache_ranking > 0) are there.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np

from hpcgnn import __version__
from hpcgnn.graph import durable
from hpcgnn.graph.decode import decode_json

VERSION = 1

GRAPH, BOOK, PART = "hpcgnn-graph", "hpcgnn-book", "hpcgnn-part"
NEGATIVES, LABELS = "hpcgnn-negatives", "hpcgnn-labels"  # beside a graph file
EVENT = "event"  # column of events in a graph of several relations
CLOCK = "clock"  # attribute of a graph of snapshots at dates, and of its partition sets
ORIGIN = ("sources", "spec")  # attributes of a graph file that its partition sets keep
KINDS = ("temporal", "static", "snapshots")
BY_DESTINATION = ("static", "snapshots")  # kinds whose edges lie with their destination, as CSC
SLAB_BYTES = 64 << 20
BLOCK_BYTES = 8 << 20  # of a file that is read from end to end
SEAL_BYTES = 512  # HDF5's user block of a book
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
SMALL_BYTES = 256 << 20  # that a column may have in a file of any size
MOST_SNAPSHOTS = 1 << 24
# What h5py raises for damaged files, depending on which bytes are hit.
DAMAGE = (
    OSError, LookupError, RuntimeError, AttributeError, TypeError, ValueError, OverflowError, MemoryError
)  # fmt: skip
PARTITION = "hpcgnn partition"
MOST_PACKED = 1100  # bytes of a column by byte of its file: gzip packs zeros to a 1,032nd
_sound: set[tuple[int, ...]] = set()  # files whose objects were checked, by device, inode, size and time: not again


class FileFormatError(ValueError):
    """A file of ours (or one that should be) that cannot be used; the message names file, dataset, row and remedy."""


def open_checked(path: str | os.PathLike, expected: str) -> h5py.File:
    """Open an HDF5 file for reading after checking that it is one of ours.

    Raises FileFormatError for a missing, truncated or foreign file, and for an unknown format or version.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        if expected == BOOK:
            refuse_folder(pathlib.Path(path).parent)
        raise FileFormatError(f"{path}: no such file")
    if expected == BOOK:
        check_seal(path)
    try:
        file = h5py.File(path, "r", locking=False)
    except OSError as error:
        if expected == GRAPH and not h5py.is_hdf5(path):
            raise FileFormatError(
                f"{path}: no HDF5 file; hpcgnn convert makes a graph file of tables and arrays"
            ) from error
        raise FileFormatError(
            f"{path}: not a readable HDF5 file ({error}); truncated, or not written by hpcgnn?"
        ) from error
    try:
        with naming(path, "write it anew"):
            check_format(file, expected)
            stat = os.stat(path)
            version = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
            if version not in _sound:
                check_objects(file)
                _sound.add(version)
    except FileFormatError:
        file.close()
        raise
    return file


def refuse_folder(folder: pathlib.Path) -> None:
    """Raise FileFormatError for a path that has no book, with the reason and the command that makes a partition set."""
    if folder.is_file() and not h5py.is_hdf5(folder):
        raise FileFormatError(
            f"{folder}: a file, not a partition set; hpcgnn convert makes a graph file of tables, and {PARTITION} a "
            "partition set of that"
        )
    if folder.is_file():
        parts = folder.with_name(f"{folder.stem}-parts")
        raise FileFormatError(
            f"{folder}: a file, not a partition set; make one of a graph file: {PARTITION} {folder} {parts}"
        )
    if not folder.is_dir():
        raise FileFormatError(f"{folder}: no such folder; make a partition set there: {PARTITION} GRAPH.h5 {folder}")
    if (folder / "partition.json").is_file():
        raise FileFormatError(f"{folder}: an unfinished partition set; run the command that writes it again")
    raise FileFormatError(
        f"{book_path(folder)}: no such file, so no partition set is there; make one: {PARTITION} GRAPH.h5 {folder}"
    )


def check_kind(book: h5py.File, kind: str) -> None:
    """Raise FileFormatError for a book of another kind of graph."""
    actual = book.attrs["kind"]
    if actual != kind:
        raise FileFormatError(
            f"{book.filename}: kind is {actual!r}, this task needs one of kind {kind!r}; train with --kind {actual} "
            f"and without keys of the other kind, or with a recipe or run file for {actual} graphs"
        )


@contextlib.contextmanager
def reading(path: str | os.PathLike, expected: str, remedy: str) -> Iterator[h5py.File]:
    """Open a file with its checks, close it at the end, and name it in what is raised about damaged contents."""
    with naming(path, remedy), open_checked(path, expected) as file:
        yield file


@contextlib.contextmanager
def naming(path: str | os.PathLike, remedy: str, keep: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn exceptions that HDF5 raises in the block for damaged contents into a FileFormatError that names the file and
    the remedy. HDF5 raises a dozen types, most without a file's name; the types ``keep`` are left. MemoryError, too:
    mostly memory is short, but a damaged length may cause it."""
    try:
        yield
    except (FileFormatError, *keep):  # type: ignore[misc]
        raise
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno in durable.FULL:  # of a file that the block writes
            raise
        if isinstance(error, MemoryError):
            raise FileFormatError(
                f"{os.fspath(path)}: out of memory{f' ({error})' if str(error) else ''}: use a larger machine "
                f"or more ranks; if the file is small, it is damaged: {remedy}"
            ) from error
        raise FileFormatError(f"{os.fspath(path)}: damaged: {' '.join(str(error).split())}; {remedy}") from error


def check_objects(file: h5py.File) -> None:
    """Raise FileFormatError for links, for a group that contains itself, for data in other files, and for columns too
    large, singly or together, for a file of its size."""
    total, most = 0, max(SMALL_BYTES, MOST_PACKED * os.path.getsize(file.filename))
    waiting, visited = [file["/"]], set()
    while waiting:
        group = waiting.pop()
        if group.id in visited:
            raise FileFormatError(f"{file.filename}: {group.name}: a group that holds itself: damaged")
        visited.add(group.id)
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise FileFormatError(f"{file.filename}: {group.name}: {name} is a link; store the object itself")
            item = group[name]
            if isinstance(item, h5py.Group):
                waiting.append(item)
            elif isinstance(item, h5py.Dataset):
                check_dataset(item, most)
                total += item.nbytes
    if total > most:
        raise FileFormatError(f"{file.filename}: {total:,} bytes of columns do not fit into this file: damaged")


def check_dataset(dataset: h5py.Dataset, most: int) -> None:
    """Raise FileFormatError for a dataset of more than ``most`` bytes, and for one that lies in other files."""
    where = f"{dataset.file.filename}: {dataset.name}"
    if dataset.nbytes > most:
        raise FileFormatError(f"{where}: {dataset.nbytes:,} bytes do not fit into this file: damaged")
    if dataset.external or dataset.is_virtual:
        raise FileFormatError(f"{where}: lies in other files; store it in this one")


def check_format(file: h5py.File, expected: str) -> None:
    """Raise FileFormatError for a file of another format or version."""
    file_format = file.attrs.get("format")
    if file_format != expected:
        raise FileFormatError(f"{file.filename}: format is {file_format!r}, expected {expected!r}")
    version = int(file.attrs.get("format_version", -1))
    if version != VERSION:
        raise FileFormatError(
            f"{file.filename}: {expected} version {version}, this hpcgnn {__version__} reads version {VERSION}; "
            "write the file anew (convert or partition again) with the same hpcgnn that reads it"
        )


@contextlib.contextmanager
def writing(path: str | os.PathLike, file_format: str, **attributes) -> Iterator[h5py.File]:
    """Write an HDF5 file under a temporary name; fsync and rename it when the block ends without an exception. Several
    writers of one path do not meet: the last that ends has written the file.

    A write that fails is raised by the next ``flush`` of the yielded file, at the latest at the end of the block. A
    book is sealed: it has the hashes of the parts, but no other file has the hash of the book.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.remove_leftovers(path)
    temporary = path.with_name(durable.temporary_name(path.name))
    output = durable.OutputFile(temporary)
    try:
        with contextlib.closing(output):
            options = {"driver": "fileobj", "fileobj": output}
            room = {"userblock_size": SEAL_BYTES} if file_format == BOOK else {}
            with h5py.File(os.fspath(temporary), "w", **options, **room) as file:
                try:
                    file.attrs["format"] = file_format
                    file.attrs["format_version"] = VERSION
                    file.attrs["created_by"] = f"hpcgnn {__version__}"
                    for name, value in attributes.items():
                        file.attrs[name] = value
                    yield file
                    file.flush()
                finally:
                    output.is_quiet = True
        if output.error is not None:
            raise output.error
        with durable.naming_disk(path):
            if file_format == BOOK:
                seal(temporary)
            durable.commit(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if output.error is None or error is output.error:
            raise
        raise output.error from None  # what HDF5 raised follows from it


def file_hash(path: str | os.PathLike, first: int = 0, working: Callable[..., None] | None = None) -> str:
    """Compute the sha256 of a file, of its bytes from ``first`` on, in hex; working: called with every block."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        file.seek(first)
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            if working:
                working(f"read {path}")
    return digest.hexdigest()


def copy(source: str | os.PathLike, target: str | os.PathLike, working: Callable[..., None] | None = None) -> None:
    """Copy a file's bytes; working: called with every block."""
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while block := reader.read(BLOCK_BYTES):
            writer.write(block)
            if working:
                working(f"copy {source}")


def seal_of(path: str | os.PathLike) -> bytes:
    """Return what the first SEAL_BYTES of a book must be: they have the hash of all that follows."""
    return f"{BOOK} sha256 {file_hash(path, SEAL_BYTES)}\n".encode().ljust(SEAL_BYTES, b"\0")


def seal(path: str | os.PathLike) -> None:
    """Write the hash of a closed book into its user block."""
    text = seal_of(path)
    with open(path, "r+b") as file:
        file.write(text)


def check_seal(path: str | os.PathLike) -> None:
    """Raise FileFormatError when a book is not what was sealed; a book without a user block has no seal."""
    with open(path, "rb") as file:
        head = file.read(SEAL_BYTES)
    if not head.startswith(HDF5_SIGNATURE) and head != seal_of(path):
        raise FileFormatError(
            f"{os.fspath(path)}: not a book, or damaged: it does not fit the hash in its first {SEAL_BYTES} bytes; "
            "copy it again or partition again"
        )


def slabs(num_rows: int, row_bytes: int, limit: int = SLAB_BYTES) -> Iterator[tuple[int, int]]:
    """Divide rows into ranges (start, stop) of at most ``limit`` bytes and at least one row each."""
    step = max(1, limit // max(1, row_bytes))
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


def row_bytes(dataset: h5py.Dataset) -> int:
    """Return the bytes of one row, over all trailing dimensions."""
    return int(dataset.dtype.itemsize * np.prod(dataset.shape[1:], dtype=np.int64))


def as_matrix(column: np.ndarray) -> np.ndarray:
    """Reshape a column [N, ...] to [N, width]; N may be 0, where ``reshape(0, -1)`` fails."""
    return column.reshape(len(column), math.prod(column.shape[1:]))


def create_column(group: h5py.Group, name: str, num_rows: int, tail: tuple[int, ...], dtype) -> h5py.Dataset:
    """Create an empty chunked column [num_rows, *tail] (chunks of about 1 MiB). Raises FileFormatError for a name that
    is none in HDF5, and for rows without a value."""
    if num_rows and 0 in tail:
        raise FileFormatError(f"{group.name}/{name}: rows of shape {list(tail)} have no values: leave the column out")
    if name in ("", ".") or "/" in name or "\0" in name:
        raise FileFormatError(f"{group.name}: a column cannot be called {name!r}: give it a name without '/'")
    per_row = max(1, int(np.dtype(dtype).itemsize * np.prod(tail, dtype=np.int64)))
    chunk = (max(1, min(num_rows, (1 << 20) // per_row)), *tail) if num_rows else None
    return group.create_dataset(name, shape=(num_rows, *tail), dtype=dtype, chunks=chunk)


def relation_name(source: str, relation: str, destination: str) -> str:
    """Make the name of a relation's group: ``<src>.<rel>.<dst>``."""
    for part in (source, relation, destination):
        if not part or "." in part or "/" in part:
            raise FileFormatError(f"node types and relations must be non-empty, without '.' and '/': {part!r}")
    return f"{source}.{relation}.{destination}"


def split_relation(name: str) -> tuple[str, str, str]:
    """Split the name of a relation's group into its three names."""
    if name.count(".") != 2:
        raise FileFormatError(f"relation {name!r} is not of the form <src>.<rel>.<dst>")
    source, relation, destination = name.split(".")
    return source, relation, destination


def ordered(group: h5py.Group, id_attribute: str) -> list[str]:
    """List the subgroups in order of their integer id attribute (never in dict order)."""
    ids = {name: int(sub.attrs[id_attribute]) for name, sub in group.items()}
    names = sorted(ids, key=ids.__getitem__)
    if [ids[name] for name in names] != list(range(len(names))):
        raise FileFormatError(
            f"{group.file.filename}: {group.name}: {id_attribute} must be 0, 1, ... without gaps, got {ids}"
        )
    return names


def node_types(file: h5py.File) -> list[str]:
    """List the node types of a graph file or book, by type id."""
    return ordered(file["nodes"], "type_id")


def relations(file: h5py.File) -> list[str]:
    """List the relations of a graph file or book, by relation id."""
    return ordered(file["edges"], "relation_id")


def part_path(folder: str | os.PathLike, part: int, edition: int = 0) -> pathlib.Path:
    """Return the path of a part file of a partition set; edition: of its book, 0 where it has none."""
    return pathlib.Path(folder) / (f"part-{part}.{edition}.h5" if edition else f"part-{part}.h5")


def book_path(folder: str | os.PathLike) -> pathlib.Path:
    """Return the path of the book of a partition set."""
    return pathlib.Path(folder) / "book.h5"


def json_attribute(file: h5py.File, name: str):
    """Decode a JSON attribute of the root; None when it is absent."""
    text = file.attrs.get(name)
    return None if text is None else decode_json(text)


def read_origin(folder: str | os.PathLike) -> dict[str, Any]:
    """Read where the graph of a partition set comes from: ``graph``, name and sha256 of the graph file, ``set_id``, and
    the attributes ORIGIN as far as the set has them. Raises FileFormatError."""
    with open_checked(book_path(folder), BOOK) as book:
        origin = {name: json_attribute(book, name) for name in ORIGIN}
        graph = {"name": str(book.attrs.get("source_name", "")), "sha256": str(book.attrs["source_hash"])}
        set_id = str(book.attrs["set_id"])
    return {"graph": graph, "set_id": set_id, **{name: value for name, value in origin.items() if value}}


def source_name(source: dict[str, Any]) -> str:
    """Name a source file, as the attribute ``sources`` describes it, with the place that its content comes from."""
    return source["name"] + (f" of {source['source']}" if source.get("source") else "")


def describe_sources(origin: dict[str, Any]) -> list[str]:
    """Describe each source file of what `read_origin` returns, with its SHA-256; a text stands for itself."""
    sources = origin.get("sources", [])
    return [s if isinstance(s, str) else f"{source_name(s)} (sha256 {s['sha256']})" for s in sources]


def refuse_split_words(group: h5py.Group) -> None:
    """Raise FileFormatError for a table whose column ``split`` numbers words in their order, so that test may be 0."""
    if "split" in group and (words := class_names(group["split"])):
        raise FileFormatError(
            f"{group.file.filename}: {group.name}/split: its numbers stand for the words "
            f"{', '.join(words[:5])} in this order, not for train, val and test; convert and partition again"
        )


def class_names(column: h5py.Dataset) -> list[str]:
    """Read the words that a column's numbers from 0 stand for (attribute ``names``, a JSON list); empty for a column of
    plain numbers. Raises FileFormatError for an attribute that is no such list."""
    names = column.attrs.get("names", "[]")
    words = None
    with contextlib.suppress(ValueError):
        words = decode_json(names) if isinstance(names, (str, bytes)) else None
    if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise FileFormatError(
            f"{column.file.filename}: {column.name}: attribute names is no JSON list of words; convert again"
        )
    return words
