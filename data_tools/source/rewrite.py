"""Writes tables of graph files, and graph files anew with something added."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Collection, Iterator

import h5py
import numpy as np

from data_tools.source.spool import forget
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError

WRITERS = ("format", "format_version", "created_by")  # attributes of the root that each writer gives a file


@contextlib.contextmanager
def rewriting(
    path: str | os.PathLike, output: str | os.PathLike, leave_out: Collection[str] = ()
) -> Iterator[tuple[h5py.File, h5py.File]]:
    """Open the graph file at ``path`` and its copy that becomes ``output`` when the block ends, maybe the same path.

    ``leave_out`` names datasets that are not copied, such as ``nodes/user/split``. Copies are made by HDF5, chunk by
    chunk. Raises FileFormatError for a file that cannot be used.
    """
    remedy = "write it anew with hpcgnn convert"
    with files.reading(path, files.GRAPH, remedy) as source:
        attributes = {name: value for name, value in source.attrs.items() if name not in WRITERS}
        with files.writing(output, files.GRAPH, **attributes) as target:
            for kind in ("nodes", "edges"):
                for name, group in source[kind].items():
                    copied = target.create_group(f"{kind}/{name}")
                    for key, value in group.attrs.items():
                        copied.attrs[key] = value
                    for column, dataset in group.items():
                        if f"{kind}/{name}/{column}" not in leave_out:
                            source.copy(dataset, copied)
            yield source, target


def create_table(file: h5py.File, kind: str, name: str, count: int, number: int) -> h5py.Group:
    """Make the group of a node type (kind ``nodes``) or relation (``edges``) with its count and its id ``number``."""
    group = file.create_group(f"{kind}/{name}")
    count_name, number_name = ("num_nodes", "type_id") if kind == "nodes" else ("num_edges", "relation_id")
    group.attrs[count_name], group.attrs[number_name] = count, number
    return group


def write_column(group: h5py.Group, name: str, column: np.ndarray) -> None:
    """Write a column unchanged, slab by slab."""
    dataset = files.create_column(group, name, len(column), column.shape[1:], column.dtype)
    for start, stop in files.slabs(len(column), files.row_bytes(column)):
        dataset[start:stop] = column[start:stop]
        forget(column)


def find_table(file: h5py.File, kind: str, name: str) -> h5py.Group:
    """Find the group of a node type (kind ``nodes``) or relation (``edges``). Raises FileFormatError naming the
    others."""
    names = files.node_types(file) if kind == "nodes" else files.relations(file)
    if name not in names:
        what = "node type" if kind == "nodes" else "relation"
        listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise FileFormatError(f"{pathlib.Path(file.filename).name}: no {what} {name!r}; it has {listed}")
    return file[kind][name]


def integer_column(group: h5py.Group, name: str, remedy: str) -> h5py.Dataset:
    """Read a column [N] of integers. Raises FileFormatError with the remedy when there is none."""
    where = f"{pathlib.Path(group.file.filename).name}: {group.name[1:]}"
    if name not in group:
        raise FileFormatError(f"{where} has no column {name!r}; {remedy}")
    if group[name].ndim != 1 or group[name].dtype.kind not in "iu":
        shape = list(group[name].shape)
        raise FileFormatError(f"{where}/{name} is {group[name].dtype} {shape}, not one integer a row; {remedy}")
    return group[name]
