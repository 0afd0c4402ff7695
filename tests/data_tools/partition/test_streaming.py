"""Streaming partitioners: the graph on disk, balance, and sets made by them."""

import itertools

import numpy as np
import pytest
from partition_sets import assert_same_content, content
from random_graphs import random_graph, random_static
from test_parts import rows_of

from data_tools.graph import source as graph_source
from data_tools.graph.source import open_source
from data_tools.partition import spool
from data_tools.partition.blocks import NodeBlocks
from data_tools.partition.command import partition
from data_tools.partition.layout import new_numbers
from data_tools.partition.methods.streaming import stream, ties_of_parts
from data_tools.partition.pair_graph import build_pair_graph
from data_tools.partition.spool import build_row_graph
from data_tools.partition.weights import default_balance, node_weights
from data_tools.synthetic.snapshots import synthesize_snapshots
from data_tools.synthetic.static import synthesize_static
from data_tools.team import Team
from data_tools.verify.command import main as verify
from hpcgnn.native.parts import StreamNodes

pytestmark = pytest.mark.serial


def row_graph(source, folder, memory):
    """All rows of a graph on disk."""
    return build_row_graph(source, NodeBlocks.even(Team(), source.num_nodes), folder, memory)


def spooled(path, tmp_path):
    """A graph file's pairs, from disk and from memory: node -> neighbor -> tie."""
    source = open_source(path)
    with source.file:
        graph, expected = row_graph(source, tmp_path, 1), build_pair_graph(source)
    tables = [{}, {}]
    node_of = np.argsort(graph.row)
    for first, stop in itertools.pairwise(graph.slabs.starts.tolist()):
        nodes = StreamNodes(node_of[first:stop], np.zeros(stop - first), graph.slab(first, stop))
        for node, _, adjacent in rows_of(nodes):
            tables[0][int(node)] = sorted((node_of[other], tie) for other, tie in adjacent)
    for node in range(expected.num_nodes):
        own = slice(expected.indptr[node], expected.indptr[node + 1])
        tables[1][node] = list(zip(expected.neighbor[own], expected.weight[own], strict=True))
    np.testing.assert_array_equal(graph.degrees(), expected.degrees())
    assert 2 * graph.total_ties == expected.weight.sum()
    return tables


def random_snapshots(path, seed: int, **_):
    """A graph of snapshots, whose edges stay for a while."""
    synthesize_snapshots(path, 60, 12, seed)
    return path


@pytest.mark.parametrize("make", [random_graph, random_static, random_snapshots])
@pytest.mark.parametrize("seed", range(3))
def test_the_graph_on_disk_equals_the_one_in_memory(tmp_path, monkeypatch, make, seed):
    monkeypatch.setattr(spool, "LEAST_ENTRIES", 20)
    monkeypatch.setattr(graph_source, "SLAB_BYTES", 160)
    found, expected = spooled(make(tmp_path / "g.h5", seed, num_edges=150), tmp_path)
    assert found == expected


@pytest.mark.parametrize("method", ["ldg", "fennel"])
@pytest.mark.parametrize("make", [random_graph, random_static, random_snapshots])
def test_sets_are_exact_and_do_not_depend_on_slabs(tmp_path, monkeypatch, make, method):
    graph = make(tmp_path / "g.h5", 1, sizes=(60, 30, 9), num_edges=300)
    first = partition(graph, tmp_path / "one", 5, method)
    monkeypatch.setattr(spool, "LEAST_ENTRIES", 20)
    monkeypatch.setattr(spool, "ENTRY_BYTES", 1 << 30)
    monkeypatch.setattr(graph_source, "SLAB_BYTES", 500)
    assert partition(graph, tmp_path / "two", 5, method) == first
    assert_same_content(content(tmp_path / "one", 5), content(tmp_path / "two", 5))
    assert verify([str(tmp_path / "two"), "--against", str(graph)]) == 0


@pytest.mark.parametrize("rule", ["ldg", "fennel"])
def test_parts_are_even_and_better_than_random(tmp_path, rule):
    synthesize_static(tmp_path / "g.h5", 20_000, 200_000, seed=1, width=0, num_classes=16)
    source = open_source(tmp_path / "g.h5")
    with source.file:
        graph = row_graph(source, tmp_path, 1 << 20)
        weights = np.stack(list(node_weights(source, default_balance(source)).values()), axis=1)
    cuts, weights = [], graph.slabs.deal(graph.row, weights)
    for passes in (1, 10):
        part = stream(graph, weights, 8, rule, passes)
        cuts.append(cut_of(graph, part, 8))
        loads = np.zeros((8, weights.shape[1]))
        np.add.at(loads, part, weights)
        assert (loads.max(axis=0) <= 1.05 * loads.mean(axis=0)).all()
    assert cuts[1] < cuts[0]
    assert cuts[1] < 0.6 * 7 / 8
    ordered = new_numbers(ties_of_parts(graph, part, 8), 0)[part]
    assert cut_of(graph, ordered, 8) == cuts[1]
    assert cut_of(graph, ordered, 2) <= cut_of(graph, part, 2)


def cut_of(graph, part, num_ranks: int) -> float:
    """Share of the ties between ranks that take runs of 8 parts."""
    cut = 0
    for first, stop in itertools.pairwise(graph.slabs.starts.tolist()):
        indptr, neighbor, tie = graph.slab(first, stop)
        own = np.repeat(part[first:stop] * num_ranks // 8, np.diff(indptr))
        cut += int(tie[own != part[neighbor] * num_ranks // 8].sum())
    return cut / (2 * graph.total_ties)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "metis", "passes": 3},
        {"method": "ldg", "passes": 0},
        {"method": "fennel", "objective": "volume"},
    ],
)
def test_options_of_other_methods_are_refused(tmp_path, options):
    graph = random_static(tmp_path / "g.h5", 1)
    with pytest.raises(ValueError, match=r"passes|objective"):
        partition(graph, tmp_path / "p", 3, **options)
    assert not (tmp_path / "p").exists()
