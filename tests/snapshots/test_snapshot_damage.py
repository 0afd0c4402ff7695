"""Partition sets of snapshots whose columns do not fit each other are refused with the file or the column."""

import h5py
import numpy as np
import pytest
from partition_sets import changing_book
from random_graphs import random_static
from snapshot_runs import random_graph

from data_tools.partition.command import partition
from data_tools.snapshots.graph import write_snapshots
from hpcgnn.graph import files
from hpcgnn.snapshots.graph import open_snapshot_partition

pytestmark = pytest.mark.serial


def snapshots_in_book(number):
    """A change of a set: the book tells another number of snapshots."""

    def change(folder):
        with changing_book(folder) as book:
            book.attrs["num_snapshots"] = number

    return change


def scaled(scale):
    """A change of a set: the target's numbers were divided by this."""

    def change(folder):
        with h5py.File(files.part_path(folder, 0), "r+") as part:
            part["nodes/node/target"].attrs["scale"] = scale

    return change


def stamps(values):
    """A change of a set: edges begin with these snapshots, or with none that is told."""

    def change(folder):
        for number in range(2):
            with h5py.File(files.part_path(folder, number), "r+") as part:
                (edges,) = part["edges"].values()
                count = len(edges["first"])
                del edges["first"]
                if values is not None:
                    edges["first"] = np.resize(values, count)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (snapshots_in_book(0), r"book\.h5: 0 snapshots, expected 1 to \d+; partition again"),
        (snapshots_in_book(7), r"column target of nodes has shape \(\d+, 6\), expected \[nodes, 7 snapshots"),
        (scaled(-1.0), "column target of nodes: scale is -1.0, expected a number above 0"),
        (scaled([1.0, 2.0]), r"column target of nodes: scale is \[1\. 2\.\], expected a number above 0"),
        (stamps(None), "column first of edges is missing, expected one signed integer an edge; partition the graph"),
        (stamps([0.5]), r"column first of edges is float64 \[\d+\], expected one signed integer an edge"),
    ],
)
def test_sets_that_do_not_fit_are_refused(tmp_path, change, message):
    graph = random_graph(5, 24, 6, 20)
    del graph.series["feat"]
    write_snapshots(tmp_path / "graph.h5", graph, ["test"], "test")
    partition(tmp_path / "graph.h5", tmp_path / "parts", 2)
    assert open_snapshot_partition(tmp_path / "parts", 0, 1).num_snapshots == 6
    change(tmp_path / "parts")
    with pytest.raises(files.FileFormatError, match=message):
        open_snapshot_partition(tmp_path / "parts", 0, 1, check_hash=False)


def test_several_types_are_refused(tmp_path):
    partition(random_static(tmp_path / "graph.h5", 1), tmp_path / "parts", 2, "random")
    with changing_book(tmp_path / "parts") as book:
        book.attrs["kind"], book.attrs["num_snapshots"] = "snapshots", 6
    with pytest.raises(
        files.FileFormatError, match=r"one node type and one relation, found \d and \d; partition again"
    ):
        open_snapshot_partition(tmp_path / "parts", 0, 1)
