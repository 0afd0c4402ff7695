"""Partition sets whose files do not fit each other are refused with the file, what does not fit, and the remedy."""

import shutil

import h5py
import numpy as np
import pytest
from partition_sets import changing_book, replace
from random_graphs import random_graph
from static_runs import plain
from training_runs import bipartite

from data_tools.partition.command import partition
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph import files
from hpcgnn.graph.original_ids import OriginalIds
from hpcgnn.graph.partition import open_graph_partition
from hpcgnn.temporal.batches import open_splits
from hpcgnn.temporal.config import TemporalDataConfig
from hpcgnn.temporal.graph import open_partition

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Two sets of a temporal graph, and one of a static graph, of two parts each, by name."""
    folder = tmp_path_factory.mktemp("sets")
    bipartite(folder / "events.h5", num_events=60, edge_width=1)
    plain(folder / "nodes.h5", num_nodes=20, num_edges=40)
    for name, graph, method in (
        ("events", "events", "random"),
        ("other", "events", "metis"),
        ("nodes", "nodes", "random"),
    ):
        partition(folder / f"{graph}.h5", folder / name, 2, method)
    return folder


@pytest.fixture
def damaged(sets, tmp_path):
    """A callable: a copy of a set, its book or its first part changed by a function."""

    def copy(name, file, change):
        shutil.copytree(sets / name, tmp_path / name)
        if file == "book":
            with changing_book(tmp_path / name) as book:
                change(book)
        else:
            with h5py.File(files.part_path(tmp_path / name, 0), "r+") as part:
                change(part)
        return tmp_path / name

    return copy


def backwards(book):
    replace(book["nodes/user"], "offsets", book["nodes/user/offsets"][:][::-1])


def fewer_hashes(book):
    replace(book["parts"], "hash", book["parts/hash"][:1])


def another_set(part):
    part.attrs["set_id"] = "f" * 64


def fewer_users(part):
    replace(part["nodes/user"], "row", part["nodes/user/row"][:-1])


def no_times(part):
    del part["edges/user.takes.item/time"]


OPENING = [
    ("book", backwards, "book.h5: damaged: the offsets of the node types must increase from 0 and follow each other"),
    ("book", fewer_hashes, "book.h5: damaged: /parts/hash has 1 entries for 2 parts"),
    ("part", another_set, r"part-0+\.h5: belongs to partition set ffffffffffff, part 0, but the book is of set"),
    ("part", fewer_users, r"part-0+\.h5: /nodes/user/row has \d+ rows, the book has \d+: part or book is damaged"),
    ("part", no_times, r"part-0+\.h5: damaged: .*/edges/user\.takes\.item has no column time"),
]


@pytest.mark.parametrize(("file", "change", "message"), OPENING)
def test_events(damaged, file, change, message):
    with pytest.raises(files.FileFormatError, match=message):
        open_partition(damaged("events", file, change), 0, 1, check_hash=False)


def test_a_part_of_another_set(sets, tmp_path):
    """Its hash is not that of the book."""
    shutil.copytree(sets / "events", tmp_path / "events")
    shutil.copy(files.part_path(sets / "other", 1), files.part_path(tmp_path / "events", 1))
    with pytest.raises(files.FileFormatError, match=r"part-1\.h5: contents do not match the hash in the book"):
        open_partition(tmp_path / "events", 0, 1)


def fewer_features(part):
    replace(part["nodes/node"], "feat", part["nodes/node/feat"][:-1])


def no_features(part):
    del part["nodes/node/feat"]


def fewer_lists(part):
    replace(part["edges/node.meets.node"], "indptr", part["edges/node.meets.node/indptr"][:-1])


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [("book", fewer_hashes, "book.h5: damaged: /parts/hash has 1 entries for 2 parts"),
     ("part", fewer_features, r"part-0+\.h5: damaged: /nodes/node/feat has \d+ rows, \d+ nodes"),
     ("part", no_features, "nodes: some parts have features and some have none; run hpcgnn verify, or partition"),
     ("part", fewer_lists, "/edges/node.meets.node/indptr does not fit the part's nodes and edges")],
)  # fmt: skip
def test_nodes(damaged, file, change, message):
    with pytest.raises(ValueError, match=message):
        open_graph_partition(damaged("nodes", file, change), 0, 1, check_hash=False)


def test_events_that_the_parts_do_not_hold(damaged):
    folder = damaged("events", "book", lambda book: book["edges/user.takes.item"].attrs.modify("num_edges", 61))
    world = World(CommConfig(device="cpu", threads=1, watchdog_seconds=0))
    with pytest.raises(DistributedError, match="the parts hold 60 events, the book has 61"):
        open_splits(folder, TemporalDataConfig(), 1, world, world.channel())


def test_relations_without_an_order_of_their_events(tmp_path):
    """As files of several relations had none before they could be trained on."""
    partition(random_graph(tmp_path / "g.h5", 1), tmp_path / "several", 2, "random")
    with pytest.raises(
        files.FileFormatError, match=r"events of a.meets.a lack the column event, .*convert and partition"
    ):
        open_partition(tmp_path / "several", 0, 1)


def test_a_file_of_another_format(tmp_path):
    with files.writing(tmp_path / "book.h5", files.GRAPH, kind="static"):
        pass
    with pytest.raises(files.FileFormatError, match=f"book.h5: format is {files.GRAPH!r}, expected {files.BOOK!r}"):
        files.open_checked(tmp_path / "book.h5", files.BOOK)


@pytest.mark.parametrize("parts", [("a.b", "likes", "c"), ("a", "", "c"), ("a", "likes", "c/d")])
def test_names_of_relations(parts):
    with pytest.raises(files.FileFormatError, match=r"must be non-empty, without '\.' and '/': '(a\.b||c/d)'$"):
        files.relation_name(*parts)


def test_a_rank_without_nodes_finds_none(sets):
    book = open_partition(sets / "events", 0, 1).book
    world = World(CommConfig(device="cpu", threads=1, watchdog_seconds=0))
    assert OriginalIds(book, "user", np.empty(0, np.int64), world).find(np.arange(3)).tolist() == [-1, -1, -1]
