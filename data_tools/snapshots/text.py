"""Reads text files of snapshots: lists of edges and daily contacts.

N nodes, S snapshots, R rows.
"""

from __future__ import annotations

import contextlib
import csv
import os
import pathlib
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from data_tools.snapshots.graph import SnapshotGraph
from data_tools.snapshots.parallel_edges import merge_parallel
from data_tools.snapshots.speeds import read_weight
from data_tools.source.file_spec import FileSpec
from data_tools.source.formats.text_stream import CleanText, TextSource, natural
from data_tools.source.formats.values import Raw, is_number, parse_ids
from data_tools.source.id_spaces import ID_SPACES, IdSpace, IntegerIds, RowIds
from hpcgnn.graph.durable import FULL, naming_disk
from hpcgnn.graph.files import FileFormatError

MOST_SNAPSHOTS = 1 << 20
SMALL_BYTES, MOST_TEXT_PACKED = 64 << 20, 100  # that any archive may hold, and times its size; lists pack to a fifth


def read_lists(
    path: pathlib.Path, ids: Literal["int", "string"] = "int", num_nodes: int | None = None
) -> SnapshotGraph:
    """Read rows ``snapshot, u, v`` or ``snapshot, u, v, weight``, separated by commas or white space, with or without a
    header. Snapshots count from the smallest number; a number without rows is a snapshot without edges.

    ids: "int" or "string"; with ``num_nodes`` they are the rows 0 .. num_nodes - 1. Raises FileFormatError.
    """
    space: IdSpace = ID_SPACES[ids]("node") if num_nodes is None else RowIds("node", num_nodes)
    spec, width = text_layout(path, ("snapshot", "u", "v", "weight"), (3, 4))
    parsers: list[Callable] = [parse_ids, space.column(), space.column(), read_weight]
    columns: list[Any] = [*read_columns(spec, parsers[:width]), None]
    number, *ends, weight = columns[:4]
    space.finish()
    first, count = count_snapshots(number, path.name, 1)
    src, dst = (space.rows(end) for end in ends)
    edges = {} if weight is None else {"weight": weight}
    return SnapshotGraph(space.num_nodes, count, src, dst, first, edges=edges, id=space.ids)


def read_contacts(path: pathlib.Path, merge: bool = True, scratch: pathlib.Path | None = None) -> SnapshotGraph:
    """Read contacts ``t i j``, one file a snapshot, in order of their names: a folder or an archive (.tar, .tgz, .zip).
    A contact is an edge in both directions; merge: the contacts of a pair in a snapshot are one, weight counts them.
    scratch: the folder in which an archive is unpacked for the time (None: the system's).

    Raises FileFormatError.
    """
    space, days = IntegerIds("node"), []
    with unpacked(path, scratch) as members:
        for member in members:
            spec, _ = text_layout(member, ("t", "i", "j"), range(3, 9))
            days.append(read_columns(spec, [parse_ids, space.column(), space.column()])[1:])
    if not days:
        raise FileFormatError(f"{path}: no files in it; one for every snapshot is needed")
    first = np.repeat(np.arange(len(days)), [len(ends[0]) for ends in days])
    space.finish()
    src, dst = (space.rows(np.concatenate(ends)) for ends in zip(*days, strict=True))
    graph = SnapshotGraph(space.num_nodes, len(days), src, dst, first, id=space.ids)
    graph = both_directions(graph)
    return merge_parallel(graph) if merge else graph


def both_directions(graph: SnapshotGraph) -> SnapshotGraph:
    """Store every edge in both directions, and an edge from a node to itself once; changes the graph."""
    back = np.flatnonzero(graph.src != graph.dst)
    graph.src, graph.dst = np.r_[graph.src, graph.dst[back]], np.r_[graph.dst, graph.src[back]]
    graph.first = np.r_[graph.first, graph.first[back]]
    graph.last = None if graph.last is None else np.r_[graph.last, graph.last[back]]
    graph.edges = {name: np.concatenate([column, column[back]]) for name, column in graph.edges.items()}
    return graph


def text_layout(path: pathlib.Path, names: tuple[str, ...], widths: Sequence[int]) -> tuple[FileSpec, int]:
    """Find out how a text file is laid out, its first columns called ``names``, and how many columns it has. Raises
    FileFormatError when that is not one of ``widths``."""
    with TextSource(path).open() as raw:
        line = CleanText(raw, "#%").peek_line().decode(errors="replace")
    comma = "," in line
    fields = next(csv.reader([line]), []) if comma else line.split()
    if line and len(fields) not in widths:
        raise FileFormatError(
            f"{path.name}: row 1 has {len(fields)} fields, expected {' or '.join(map(str, widths[:2]))}: "
            f"{line[:80]!r}; check what kind of file it is"
        )
    header = fields and not is_number(fields[0].strip().strip('"'))
    width = len(fields) or min(widths)
    spec = FileSpec(
        path=str(path), delimiter="," if comma else "whitespace", comment="#%", format="text",
        header="skip" if header else "none", columns=list(names[:width]),
    )  # fmt: skip
    return spec, width


def read_columns(spec: FileSpec, parsers: list[Callable[[Raw, str, int], np.ndarray]]) -> list[np.ndarray]:
    """Read the first columns of a text file, each [R] by its parser. Raises FileFormatError."""
    table, row = spec.open(), 0
    pieces: list[list[np.ndarray]] = [[] for _ in parsers]
    names = spec.columns[: len(parsers)]
    for batch in table.batches({name: name for name in names}):
        for arrays, name, parse in zip(pieces, names, parsers, strict=True):
            arrays.append(parse(batch[name], table.name, row))
        row += batch[names[0]].num_rows
    return [np.concatenate(arrays or [np.empty(0, np.int64)]) for arrays in pieces]


def unpack_tar(archive: tarfile.TarFile, folder: pathlib.Path | str) -> None:
    """Unpack files and folders below a folder. Raises TarError for members of other kinds, or that lie elsewhere."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    # Python 3.10 and 3.11 have the filter in their later releases only.
    for member in archive:
        parts = pathlib.PurePosixPath(member.name).parts
        if not (member.isfile() or member.isdir()) or ".." in parts or parts[:1] == ("/",):
            raise tarfile.TarError(f"{member.name} is no file or folder below the archive's")
    archive.extractall(folder)


@contextlib.contextmanager
def unpacked(path: pathlib.Path, scratch: pathlib.Path | None) -> Iterator[list[pathlib.Path]]:
    """List the files of a folder or an archive, in order of their names (day2 before day10). An archive is unpacked in
    ``scratch`` after the sizes that it declares are checked. Raises FileFormatError."""
    if path.is_dir():
        yield in_order(path.iterdir())
        return
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file or folder")
    with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=scratch) as folder, naming_disk(folder):
        try:
            # Neither unpacks more of a member than is declared.
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as archive:
                    check_unpacked(path, folder, (member.file_size for member in archive.infolist()))
                    archive.extractall(folder)
            else:
                with tarfile.open(path) as archive:
                    check_unpacked(path, folder, (member.size for member in archive))
                    unpack_tar(archive, folder)
        except FileFormatError:
            raise
        except (EOFError, OSError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            raise FileFormatError(f"{path}: not a readable archive ({error}); fetch it again") from error
        yield in_order(pathlib.Path(folder).rglob("*"))


def check_unpacked(path: pathlib.Path, folder: str, sizes: Iterable[int]) -> None:
    """Raise FileFormatError for an archive whose members, of ``sizes`` bytes, are together more than packed text can
    be, or than the disk takes."""
    total, most = 0, max(SMALL_BYTES, MOST_TEXT_PACKED * os.path.getsize(path))
    for size in sizes:
        total += size
        if total > most:
            times = most // max(1, os.path.getsize(path))
            raise FileFormatError(
                f"{path}: more than {most:,} bytes, {times} times its size, are packed in it; if it can be trusted, "
                "unpack it and give the folder"
            )
    free = shutil.disk_usage(folder).free
    if total > free:
        raise FileFormatError(
            f"{path}: unpacked it has {total:,} bytes, {free:,} are free beside the output; make room there, or unpack "
            "it elsewhere and give the folder"
        )


def in_order(paths: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """List the files among paths in order of their names, numbers in them compared as numbers; without hidden files,
    such as files that file browsers leave."""
    shown = (path for path in paths if path.is_file() and path.name[0] != "." and "__MACOSX" not in path.parts)
    return sorted(shown, key=lambda path: natural(str(path)))


def count_snapshots(time: np.ndarray, name: str, step: int | None) -> tuple[np.ndarray, int]:
    """Number the snapshots [R] of times; also returns how many there are. Raises FileFormatError."""
    if not len(time):
        raise FileFormatError(f"{name}: no rows, so no snapshots")
    time = time - time.min()
    step = step or int(np.gcd.reduce(time)) or 1
    if len(wrong := np.flatnonzero(time % step)):
        raise FileFormatError(f"{name}: row {wrong[0] + 1}: the time is not a multiple of {step} after the first")
    count = int(time.max()) // step + 1
    if count > MOST_SNAPSHOTS:
        raise FileFormatError(
            f"{name}: the snapshots' numbers span {count:,}; are they times? data_tools.convert makes events of them, "
            "and `windows` cuts those into snapshots"
        )
    return time // step, count
