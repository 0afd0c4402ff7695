"""Snapshot graph files: edges that stay are stored once, and come back in every snapshot."""

import numpy as np
import pytest
from snapshot_runs import random_graph

from data_tools.partition.command import partition
from data_tools.snapshots.graph import SnapshotGraph, as_intervals, write_snapshots
from data_tools.verify.command import verify
from hpcgnn.graph.files import FileFormatError
from hpcgnn.snapshots.graph import open_snapshot_partition

pytestmark = pytest.mark.serial


def edges_by_snapshot(graph: SnapshotGraph):
    """Sorted (snapshot, src, dst, weight) of all edges."""
    last = graph.first if graph.last is None else graph.last
    stays = last - graph.first + 1
    row = np.repeat(np.arange(len(stays)), stays)
    number = np.arange(len(row)) - np.repeat(np.cumsum(stays) - stays, stays) + graph.first[row]
    weight = graph.edges["weight"][row] if "weight" in graph.edges else np.ones(len(row))
    return sorted(zip(number, graph.src[row], graph.dst[row], weight, strict=True))


@pytest.mark.parametrize("weighted", [False, True])
def test_differences_are_the_same_graph(weighted):
    """Few nodes, many edges: duplicates within a snapshot, edges that stay, leave and come back."""
    graph = random_graph(1, 5, 12, 30, weighted=weighted, empty=(6,))
    if weighted:
        graph.edges["weight"] = np.round(graph.edges["weight"])
    merged = as_intervals(graph)
    assert edges_by_snapshot(merged) == edges_by_snapshot(graph)
    assert len(merged.src) < len(graph.src)
    again = as_intervals(merged)
    assert len(again.src) == len(merged.src)
    assert edges_by_snapshot(again) == edges_by_snapshot(graph)


@pytest.mark.parametrize("ranks", [1, 3])
def test_partitions_hold_every_snapshot(tmp_path, ranks):
    graph = random_graph(2, 30, 10, 60, empty=(3,))
    graph.src[:50], graph.dst[:50] = 1, 2
    line = write_snapshots(tmp_path / "g.h5", graph, ["test"], "test")
    assert "10 snapshots" in line
    partition(tmp_path / "g.h5", tmp_path / "parts", 6)
    assert verify(tmp_path / "parts", tmp_path / "g.h5") == []
    shares = [open_snapshot_partition(tmp_path / "parts", rank, ranks) for rank in range(ranks)]
    row_of = np.concatenate([share.flat_row for share in shares])
    found = []
    for number in range(10):
        for share in shares:
            edges = share.edges_at(number, ("weight",))
            dst = share.flat_row[edges.dst]
            found += zip([number] * len(dst), row_of[edges.src], dst, edges.columns["weight"], strict=True)
    assert sorted(found) == edges_by_snapshot(graph)
    assert np.array_equal(np.concatenate([s.series["target"] for s in shares]), graph.series["target"][row_of])
    assert np.array_equal(np.concatenate([s.series["feat"] for s in shares]), graph.series["feat"][row_of])
    counts = sum(share.count_edges() for share in shares)
    assert counts.tolist() == [0 if number == 3 else 60 for number in range(10)]


def test_what_does_not_fit_is_refused(tmp_path):
    graph = random_graph(2, 30, 10, 60)
    graph.first[17] = 10
    with pytest.raises(FileFormatError, match="edge 17: snapshot is 10, expected 0 to 9"):
        write_snapshots(tmp_path / "g.h5", graph, ["test"], "list.csv")
    graph = random_graph(2, 30, 10, 60)
    graph.series["target"] = graph.series["target"][:, :4]
    with pytest.raises(FileFormatError, match="column target has shape"):
        write_snapshots(tmp_path / "g.h5", graph, ["test"], "list.csv")
