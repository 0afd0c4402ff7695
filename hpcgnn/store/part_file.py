"""One part file of a partition set, opened with the checks that every kind of graph needs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import h5py
import numpy as np

from hpcgnn.store import files


@contextlib.contextmanager
def reading_part(folder: str | os.PathLike, part: int, set_id: str, digest: str | None) -> Iterator[h5py.File]:
    """A part of the set ``set_id``, its bytes compared with ``digest`` (None: not at all) before HDF5, which damaged
    files can hang, sees them. Raises FileFormatError."""
    name = files.part_path(folder, part)
    if digest is not None and name.is_file() and files.file_hash(name) != digest:
        raise files.FileFormatError(
            f"{name}: contents do not match the hash in the book: damaged, or a file of another partition set or "
            "version; run data_tools.verify, or partition again into an empty folder"
        )
    with files.reading(name, files.PART, "run data_tools.verify, or partition again") as file:
        found = str(file.attrs.get("set_id"))
        if found != set_id or int(file.attrs.get("part", -1)) != part:
            raise files.FileFormatError(
                f"{name}: belongs to partition set {found[:12]}, part {file.attrs.get('part')}, but the book is of set "
                f"{set_id[:12]}: files of different sets are mixed; partition again into an empty folder"
            )
        yield file


def check_counts(name: os.PathLike, rows: Sequence[np.ndarray], expected: np.ndarray, types: Sequence[str]) -> None:
    """A part must have the nodes that the book gives it, by type. Raises FileFormatError."""
    for found, count, node_type in zip(rows, expected, types, strict=True):
        if len(found) != count:
            raise files.FileFormatError(
                f"{name}: /nodes/{node_type}/row has {len(found)} rows, the book says {count}: part or book is "
                "damaged; run data_tools.verify, or partition again"
            )
