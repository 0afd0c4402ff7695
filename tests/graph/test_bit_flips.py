"""One flipped bit anywhere in a partition set is found: the book has the hashes of the parts, and its own."""

import h5py
import numpy as np
import pytest
from partition_sets import changing_book
from random_graphs import random_graph, random_static

from data_tools.partition.command import partition
from data_tools.synthetic.snapshots import synthesize_snapshots
from data_tools.verify.command import verify
from hpcgnn.graph import files

pytestmark = pytest.mark.serial
FLIPS = {"temporal": 70, "static": 70, "snapshots": 60}


def make(folder, kind):
    """A small set of a kind, with all that a set may hold."""
    further = {"out_edges": True, "cache_ranking": 0.5, "batch_size": 4} if kind == "static" else {}
    if kind == "snapshots":
        synthesize_snapshots(folder / "g.h5", 12, 5, 1)
    else:
        {"temporal": random_graph, "static": random_static}[kind](folder / "g.h5", seed=1, sizes=(12, 7, 2))
    partition(folder / "g.h5", folder / "p", 2, "metis", **further)
    return folder / "p"


def flip(path, bit):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("kind", FLIPS)
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path, kind):
    folder = make(tmp_path, kind)
    assert verify(folder) == []
    paths = sorted(folder.iterdir())
    ends = np.cumsum([8 * path.stat().st_size for path in paths])
    for place in np.random.default_rng(7).integers(0, ends[-1], FLIPS[kind]):
        index = int(np.searchsorted(ends, place, side="right"))
        bit = int(place - (ends[index - 1] if index else 0))
        flip(paths[index], bit)
        assert verify(folder), f"{paths[index].name}, bit {bit}"
        flip(paths[index], bit)
    assert verify(folder) == []


def test_every_bit_of_the_seal_counts_and_a_damaged_book_is_refused_at_open(tmp_path):
    path = files.book_path(make(tmp_path, "temporal"))
    for bit in (*range(0, 8 * files.SEAL_BYTES, 37), 8 * files.SEAL_BYTES, 8 * path.stat().st_size - 1):
        flip(path, bit)
        with pytest.raises(files.FileFormatError, match=r"book\.h5: .*damaged"):
            files.open_checked(path, files.BOOK)
        flip(path, bit)
    files.open_checked(path, files.BOOK).close()


def test_a_book_without_a_seal_is_read(tmp_path):
    folder = make(tmp_path, "temporal")
    with h5py.File(files.book_path(folder)) as sealed, h5py.File(tmp_path / "plain.h5", "w") as plain:
        for name in sealed:
            sealed.copy(name, plain)
        for name, value in sealed.attrs.items():
            plain.attrs[name] = value
    (tmp_path / "plain.h5").replace(files.book_path(folder))
    assert verify(folder) == []


def test_changing_a_book_seals_it_anew(tmp_path):
    folder = make(tmp_path, "temporal")
    with changing_book(folder) as book:
        book.attrs["source_name"] = "other.h5"
    assert verify(folder) == []
