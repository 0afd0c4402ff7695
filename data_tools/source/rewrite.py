"""A graph file written anew with something added."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Collection, Iterator

import h5py

from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError


@contextlib.contextmanager
def rewriting(
    path: str | os.PathLike, output: str | os.PathLike, leave_out: Collection[str] = ()
) -> Iterator[tuple[h5py.File, h5py.File]]:
    """The graph file at ``path`` and its copy that becomes ``output`` when the block ends; they may be the same path.

    ``leave_out`` names datasets that are not copied, such as ``nodes/user/split``. Copies are made by HDF5, chunk by
    chunk. FileFormatError for a file that cannot be used.
    """
    remedy = "write it anew with data_tools.convert"
    with files.reading(path, files.GRAPH, remedy) as source:
        kind, sources = source.attrs["kind"], source.attrs["sources"]
        with files.writing(output, files.GRAPH, kind=kind, sources=sources) as target:
            copy_tables(source, target, leave_out)
            yield source, target


def copy_tables(source: h5py.File, target: h5py.File, leave_out: Collection[str]) -> None:
    """Copy all node types and relations with their attributes."""
    for kind in ("nodes", "edges"):
        for name, group in source[kind].items():
            copied = target.create_group(f"{kind}/{name}")
            for key, value in group.attrs.items():
                copied.attrs[key] = value
            for column, dataset in group.items():
                if f"{kind}/{name}/{column}" not in leave_out:
                    source.copy(dataset, copied)


def find_table(file: h5py.File, kind: str, name: str) -> h5py.Group:
    """The group of a node type (kind ``nodes``) or relation (``edges``); FileFormatError naming those there are."""
    names = files.node_types(file) if kind == "nodes" else files.relations(file)
    if name not in names:
        what = "node type" if kind == "nodes" else "relation"
        listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise FileFormatError(f"{pathlib.Path(file.filename).name}: no {what} {name!r}; it has {listed}")
    return file[kind][name]


def integer_column(group: h5py.Group, name: str, remedy: str) -> h5py.Dataset:
    """A column [N] of integers; FileFormatError with the remedy when there is none."""
    where = f"{pathlib.Path(group.file.filename).name}: {group.name[1:]}"
    if name not in group:
        raise FileFormatError(f"{where} has no column {name!r}; {remedy}")
    if group[name].ndim != 1 or group[name].dtype.kind not in "iu":
        shape = list(group[name].shape)
        raise FileFormatError(f"{where}/{name} is {group[name].dtype} {shape}, not one integer a row; {remedy}")
    return group[name]
