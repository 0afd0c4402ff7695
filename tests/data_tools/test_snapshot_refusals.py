"""Sources of snapshots that hold nothing, or what does not fit together, are refused; empty graphs are graphs."""

import zipfile

import h5py
import numpy as np
import pytest
from random_graphs import random_graph, write_graph

from data_tools.graph.checks import check_stamps
from data_tools.graph.source import open_source
from data_tools.snapshots.facts import read_quadruples
from data_tools.snapshots.graph import SnapshotGraph, as_intervals
from data_tools.snapshots.parallel_edges import merge_parallel
from data_tools.snapshots.pygt import _many_graphs
from data_tools.snapshots.speeds import read_speeds
from data_tools.snapshots.text import read_contacts
from data_tools.snapshots.windows import WindowOptions, read_windows
from data_tools.synthetic.snapshots import synthesize_snapshots
from hpcgnn.graph.files import FileFormatError

pytestmark = pytest.mark.serial
NONE = np.empty(0, np.int64)


def graph(first, last=None, /, **edges) -> SnapshotGraph:
    """A graph of three nodes and four snapshots, its edges from node 0 to node 1."""
    first = np.array(first, np.int64)
    last = None if last is None else np.array(last)
    return SnapshotGraph(3, 4, 0 * first, 0 * first + 1, first, last, edges=edges)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (graph([1, 2], [1, 1]), "g: edge 1: it ends before it begins"),
        (graph([1, 2], first=np.ones(2)), "g: the edges' column first has a name that snapshots need; rename it"),
        (graph([1, 4]), "g: edge 1: snapshot is 4, expected 0 to 3"),
    ],
)
def test_columns_that_do_not_fit(made, message):
    with pytest.raises(FileFormatError, match=message):
        made.check("g")


def test_a_graph_without_edges():
    """It stays one, whatever is merged."""
    empty = graph(NONE, weight=np.empty(0))
    assert as_intervals(empty) is empty
    for how in ("sum", "mean", "last"):
        merged = merge_parallel(empty, {"weight": how})
        assert (len(merged.src), len(merged.edges["weight"]), merged.num_nodes) == (0, 0, 3)


def test_weights_for_other_edges():
    with pytest.raises(ValueError, match="3 edges, but 2 weights"):
        _many_graphs([[[0, 1], [1, 2]], [[0, 2]]], [[1.0], [1.0]], {"target": np.zeros((3, 2))})


def test_folders_and_matrices_of_nothing(tmp_path):
    (tmp_path / "days").mkdir()
    with pytest.raises(FileFormatError, match="days: no files in it; one for every snapshot is needed"):
        read_contacts(tmp_path / "days")
    with zipfile.ZipFile(tmp_path / "days.zip", "w"):
        pass
    with pytest.raises(FileFormatError, match=r"days\.zip: no files in it"):
        read_contacts(tmp_path / "days.zip")
    with pytest.raises(FileFormatError, match="none: no such file or folder"):
        read_contacts(tmp_path / "none")
    (tmp_path / "s.csv").write_text("u,v\n0,0\n")
    (tmp_path / "a.csv").write_text("0,1\n1,0\n")
    with pytest.raises(FileFormatError, match=r"s\.csv: no value is above 0, so nothing to divide by; leave them with"):
        read_speeds(tmp_path / "s.csv", tmp_path / "a.csv")
    assert read_speeds(tmp_path / "s.csv", tmp_path / "a.csv", scaled=False).series["target"].tolist() == [[0], [0]]
    (tmp_path / "s.csv").write_text("u,v\n")
    with pytest.raises(FileFormatError, match=r"s\.csv: no rows of numbers"):
        read_speeds(tmp_path / "s.csv", tmp_path / "a.csv")


def test_facts_without_names_or_numbers(tmp_path):
    """Of a folder that tells neither its entities nor its relations: as many nodes as the largest id says."""
    for name, line in (("train", "0\t0\t5\t0"), ("valid", "1\t1\t0\t1"), ("test", "2\t0\t3\t2")):
        (tmp_path / f"{name}.txt").write_text(line + "\n")
    made = read_quadruples(tmp_path)
    assert (made.num_nodes, made.num_snapshots, made.edge_attributes) == (6, 3, {})
    assert made.edges["rel"].tolist() == [0, 1, 0]


def test_windows_of_several_relations_and_of_no_events(tmp_path):
    made = read_windows(random_graph(tmp_path / "g.h5", 1), WindowOptions(windows=3, merge=False))
    assert made.num_nodes == 16
    assert np.bincount(made.edges["rel"]).tolist() == [40, 20]
    nodes, none = {"a": {"id": np.arange(3)}}, {"src": NONE, "dst": NONE, "time": NONE}
    write_graph(tmp_path / "none.h5", nodes, {("a", "to", "a"): none})
    with pytest.raises(FileFormatError, match=r"none\.h5: no events, so no windows"):
        read_windows(tmp_path / "none.h5", WindowOptions(windows=3))


@pytest.mark.parametrize(("last", "message"), [([0, 0], "snapshots 1 to 0 of 0 to 3"), ([1, 4], "snapshots 1 to 4 of")])
def test_stamps_of_a_graph_file(tmp_path, last, message):
    with h5py.File(tmp_path / "g.h5", "w") as file:
        file["first"], file["last"] = np.array([0, 1]), np.array(last)
        with pytest.raises(FileFormatError, match=f"row 1: {message}.*; write the file anew with hpcgnn snapshots"):
            check_stamps(file, 4)


def two_edges(path, columns):
    """Write a graph of three snapshots, three nodes and two edges with these columns."""
    edges = {("v", "to", "v"): {name: np.array(values) for name, values in columns.items()}}
    write_graph(path, {"v": {"id": np.arange(3)}}, edges, "snapshots")
    with h5py.File(path, "a") as file:
        file.attrs["num_snapshots"] = 3


@pytest.mark.parametrize("name", ["first", "last"])
@pytest.mark.parametrize("stamps", [[0.5, 1.5], [[0, 1], [1, 2]]], ids=["fractions", "two of them"])
def test_an_edge_has_one_integer_as_a_stamp(tmp_path, name, stamps):
    """Fractions of ``last`` were cut off, and two numbers an edge ended in a traceback."""
    ends = {"src": [0, 1], "dst": [1, 2], "first": [0, 1], "last": [2, 2]} | {name: stamps}
    two_edges(tmp_path / "g.h5", ends)
    remedy = "expected one integer a row; write the file anew with hpcgnn snapshots"
    with pytest.raises(FileFormatError, match=rf"g\.h5: .*/{name} has dtype .*, {remedy}"):
        open_source(tmp_path / "g.h5")


def test_the_remedy_for_a_missing_stamp_names_the_tool_of_snapshots(tmp_path):
    two_edges(tmp_path / "g.h5", {"src": [0, 1], "dst": [1, 2]})
    remedy = "a snapshots graph needs it: write the file anew with hpcgnn snapshots"
    with pytest.raises(FileFormatError, match=rf"g\.h5: .*/first is missing; {remedy}"):
        open_source(tmp_path / "g.h5")


def test_sizes_of_a_synthetic_graph(tmp_path):
    with pytest.raises(ValueError, match="nodes=1, snapshots=3, seed=0: at least 2, 1 and 0 are needed"):
        synthesize_snapshots(tmp_path / "g.h5", 1, 3, 0)
