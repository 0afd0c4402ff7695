"""What tests read from partition sets, and how they spoil them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from mpi4py import MPI

from data_tools.partition.methods.parmetis import find_library
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph import files
from hpcgnn.temporal.features import read_features
from hpcgnn.temporal.graph import TemporalPartition, open_partition


def content(folder, num_parts):
    """All datasets of all part files: part -> path -> values."""
    parts = []
    for part in range(num_parts):
        with h5py.File(files.part_path(folder, part)) as file:
            paths = []
            file.visititems(lambda name, item, paths=paths: paths.append(name) if hasattr(item, "dtype") else None)
            parts.append({name: file[name][:] for name in paths})
    return parts


def assert_same_content(left, right):
    """Two sets of parts hold the same datasets."""
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


def open_events(folder) -> TemporalPartition:
    """All of a temporal set as one rank has it, features of events read."""
    world = World.alone(CommConfig(device="cpu", threads=1))
    return read_features(open_partition(folder, 0, 1), world, world.own_channel())


@contextlib.contextmanager
def changing_book(folder):
    """The open book of a set, to be changed; it is sealed anew."""
    with h5py.File(files.book_path(folder), "r+") as book:
        yield book
    files.seal(files.book_path(folder))


def change_quality(folder, path, value):
    """Change one number of the quality in a set's book, by the keys that lead to it; it had another value."""
    with changing_book(folder) as book:
        quality = json.loads(book.attrs["quality"])
        place = quality
        for key in path[:-1]:
            place = place[key]
        assert place[path[-1]] != value
        place[path[-1]] = value
        book.attrs["quality"] = json.dumps(quality)


def refresh(folder):
    """Make the book's hashes and sizes fit the part files, so that only their content can give them away."""
    with changing_book(folder) as book:
        for part in range(book.attrs["num_parts"]):
            path = files.part_path(folder, part)
            book["parts/hash"][part] = files.file_hash(path).encode()
            book["parts/bytes"][part] = path.stat().st_size


def replace(group, name, values):
    """Give a column other values, of any length."""
    del group[name]
    files.create_column(group, name, len(values), values.shape[1:], values.dtype)[:] = values


def each_column(group, change):
    """Apply a change of arrays to all columns of a group."""
    for name in list(group):
        replace(group, name, change(group[name][:]))


def offsets_of(folder):
    """Offsets of type a."""
    with h5py.File(files.book_path(folder)) as book:
        return book["nodes/a/offsets"][:]


def read_graph(path):
    """A graph file: node types in order, and relation -> columns."""
    with h5py.File(path) as file:
        nodes = {
            name: {key: column[:] for key, column in file["nodes"][name].items()} for name in files.node_types(file)
        }
        edges = {
            name: {key: column[:] for key, column in file["edges"][name].items()} for name in files.relations(file)
        }
    return nodes, edges


def places(nodes, folder, parts):
    """(type, row) -> (part, global id) of every node, after checking the nodes of all parts."""
    place, base = {}, 0
    with h5py.File(files.book_path(folder)) as book:
        for name, columns in nodes.items():
            offsets = book["nodes"][name]["offsets"][:]
            assert offsets[0] == base
            for part, data in enumerate(parts):
                rows = data[f"nodes/{name}/row"]
                assert offsets[part + 1] - offsets[part] == len(rows)
                assert (np.diff(rows) > 0).all()
                for key, values in columns.items():
                    np.testing.assert_array_equal(data[f"nodes/{name}/{key}"], values[rows])
                for position, row in enumerate(rows.tolist()):
                    assert (name, row) not in place
                    place[name, row] = part, int(offsets[part]) + position
            base += len(next(iter(columns.values())))
            assert offsets[-1] == base
    assert len(place) == base
    return place


def parmetis_library() -> str:
    """The path of a library with the interface of ParMETIS; skips, on all ranks alike, without one for the MPI in
    use."""
    try:
        path = find_library()
    except ValueError:
        pytest.skip("needs a library of ParMETIS, such as Debian's libptscotch-dev has")
    if MPI.get_vendor()[0] == "MPICH" and b"libmpi.so.40" in Path(path).read_bytes():
        pytest.skip("needs a ParMETIS that is built for the MPI in use")
    return path
