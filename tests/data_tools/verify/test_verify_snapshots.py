"""Partition sets of snapshot graphs: their measures, balance over time, and every planted error found."""

import json
import shutil

import h5py
import numpy as np
import pytest
from partition_sets import changing_book, refresh
from snapshot_runs import random_graph

from data_tools.inspect import main as inspect
from data_tools.partition.command import partition
from data_tools.partition.quality import union_length
from data_tools.snapshots.graph import SnapshotGraph, as_rows, write_snapshots
from data_tools.verify.command import verify
from hpcgnn.graph import files
from hpcgnn.snapshots.graph import open_snapshot_partition

pytestmark = pytest.mark.serial
PARTS, SNAPSHOTS = 4, 12
EDGES, NODES = "edges/node.to.node", "nodes/node"


def make(folder, seed=1, method="metis"):
    """A graph whose edges stay or come back (column last), and its set: (graph, path, folder)."""
    graph = random_graph(seed, 40, SNAPSHOTS, 90, empty=(5,))
    graph.src, graph.dst = graph.src % 7, graph.dst % 25
    graph.edges["weight"] = np.round(graph.edges["weight"])
    graph.splits = {"train": (0, 7), "test": (8, 11)}
    write_snapshots(folder / "g.h5", graph, ["test"], "test")
    partition(folder / "g.h5", folder / "p", PARTS, method)
    return graph, folder / "g.h5", folder / "p"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(tmp_path_factory.mktemp("verify"))


@pytest.fixture
def planted(made, tmp_path):
    """A copy that may be spoilt: (path, folder)."""
    shutil.copytree(made[2], tmp_path / "p")
    return made[1], tmp_path / "p"


def test_intervals_of_one_key_count_once():
    rng = np.random.default_rng(0)
    key, first = rng.integers(0, 5, 60), rng.integers(0, 30, 60)
    last = first + rng.integers(0, 6, 60)
    covered = {(k, n) for k, a, b in zip(key, first, last, strict=True) for n in range(a, b + 1)}
    assert union_length(key, first, last) == len(covered)
    assert union_length(key[:0], first[:0], last[:0]) == 0


@pytest.mark.parametrize("method", ["metis", "random"])
def test_measures_are_those_of_the_snapshots(tmp_path, method):
    graph, path, folder = make(tmp_path, 2, method)
    with h5py.File(path) as file:
        assert "last" in file[EDGES]
    rows, part = as_rows(graph), np.empty(40, int)
    for number in range(PARTS):
        with h5py.File(files.part_path(folder, number)) as file:
            part[file[NODES]["row"][:]] = number
    with h5py.File(files.book_path(folder)) as book:
        quality = json.loads(book.attrs["quality"])
        assert json.loads(book.attrs["splits"]) == {"train": [0, 7], "test": [8, 11]}
    cut = part[rows.src] != part[rows.dst]
    needed = {(n, u, part[v]) for n, u, v in zip(rows.first[cut], rows.src[cut], rows.dst[cut], strict=True)}
    expected = {"num_snapshots": SNAPSHOTS, "edges": len(rows.src), "cut": int(cut.sum()), "halo_rows": len(needed)}
    assert quality["snapshots"] == expected
    assert [run["halo_rows"] for run in quality["runs"]][::2] == [0, len(needed)]
    for method_found in (verify(folder), verify(folder, path)):
        assert method_found == []


def test_what_ranks_hold_is_balanced_over_time(tmp_path):
    """Early snapshots are among the first half of the nodes, late ones in the other: both have to be spread."""
    graph = random_graph(3, 200, 16, 400, weighted=False)
    half = np.where(graph.first < 8, 0, 100)
    graph.src, graph.dst = graph.src % 100 + half, graph.dst % 100 + half
    write_snapshots(tmp_path / "g.h5", graph, ["test"], "test")
    quality = partition(tmp_path / "g.h5", tmp_path / "p", 4)
    assert max(quality["balance"].values()) < 1.15
    assert sorted(quality["balance"]) == ["nodes", "time0", "time1", "time2", "time3"]
    counts = np.stack([open_snapshot_partition(tmp_path / "p", rank, 2).count_edges() for rank in range(2)])
    early, late = counts[:, :8].sum(axis=1), counts[:, 8:].sum(axis=1)
    assert max(early.max() / early.mean(), late.max() / late.mean()) < 1.15


def test_edges_that_stay_are_not_cut(tmp_path):
    """A ring of 16 nodes whose every other edge is in all snapshots, the rest in one: pairs stay together."""
    src = np.arange(16)
    last = np.where(src % 2 == 0, SNAPSHOTS - 1, 0)
    graph = SnapshotGraph(16, SNAPSHOTS, src, (src + 1) % 16, np.zeros(16, int), last)
    write_snapshots(tmp_path / "g.h5", graph, ["test"], "test")
    quality = partition(tmp_path / "g.h5", tmp_path / "p", 8, balance=["nodes"])
    assert quality["snapshots"]["cut"] == 8
    assert quality["snapshots"]["edges"] == 8 * SNAPSHOTS + 8


def test_inspect_tells_of_snapshots(made, capsys):
    assert inspect([str(made[1]), str(made[2])]) == 0
    text = capsys.readouterr().out
    for line in ("12 snapshots; train 0 to 7; test 8 to 11", "from test", "float32 [40, 12] per snapshot", "halo_rows"):
        assert line in text


def flip(name, position, value):
    def change(file):
        group, column = name.rsplit("/", 1)
        values = file[group][column][:]
        values[position] = value if value is not None else values[position] + 1
        file[group][column][:] = values

    return change


def shorten(file):
    """A series without its last snapshot."""
    values = file[NODES]["target"][:, :-1]
    del file[NODES]["target"]
    file[NODES]["target"] = values
    file[NODES]["target"].attrs["per_snapshot"] = True


@pytest.mark.parametrize(
    ("change", "alone", "message"),
    [
        (flip(f"{EDGES}/first", 3, -1), True, "/first: row 3: snapshots -1 to"),
        (flip(f"{EDGES}/last", 5, SNAPSHOTS), True, "/first: row 5: snapshots"),
        (flip(f"{EDGES}/last", slice(None), 11), False, "last 11, expected"),
        (flip(f"{EDGES}/weight", 2, None), False, "/weight: row 2: weight"),
        (flip(f"{NODES}/target", (1, 4), None), False, "nodes/node/target: row 1"),
        (flip(f"{NODES}/feat", (0, 4, 2), None), False, "nodes/node/feat: row 0"),
        (shorten, True, "target"),
    ],
)
def test_planted_errors_are_found(planted, change, alone, message):
    path, folder = planted
    with h5py.File(files.part_path(folder, 1), "r+") as file:
        change(file)
    assert any("sha256" in line or "bytes, expected" in line for line in verify(folder))
    refresh(folder)
    assert any(message in line for line in verify(folder, path))
    if alone:
        assert any(message in line for line in verify(folder))


@pytest.mark.parametrize(("name", "value"), [("num_snapshots", 13), ("splits", "{}")])
def test_a_book_that_tells_otherwise(planted, name, value):
    path, folder = planted
    with changing_book(folder) as book:
        book.attrs[name] = value
    assert any(f"book.h5: {name}: {value}, but" in line for line in verify(folder, path))
    with changing_book(folder) as book:
        del book.attrs["num_snapshots"]
    assert "attributes are missing: num_snapshots" in verify(folder)[0]
