"""What inspect tells and draws of the traffic between parts: the same as the measures in the book, and as the plan."""

import json
import re

import h5py
import numpy as np
import pytest
from partition_sets import content
from random_graphs import random_graph, random_links, random_static

from data_tools.graph.book import open_book
from data_tools.graph.source import open_source
from data_tools.inspect import main
from data_tools.partition import step_bytes
from data_tools.partition.access import access_by_part
from data_tools.partition.command import partition
from data_tools.partition.quality import rank_of_parts
from data_tools.partition.step_bytes import histories, read_events
from data_tools.partition.traffic import expected_rows, read_traffic
from data_tools.reports import describe_set
from data_tools.synthetic.snapshots import synthesize_snapshots
from hpcgnn.graph import files

pytestmark = pytest.mark.serial
PARTS = 5


def make(folder, kind, **options):
    """A graph file and its set: (path, folder, quality)."""
    if kind == "snapshots":
        synthesize_snapshots(folder / "g.h5", 30, 6, 1)
    elif kind == "links":
        random_links(folder / "g.h5", seed=2)
    else:
        make = {"temporal": random_graph, "static": random_static}[kind]
        make(folder / "g.h5", seed=2, sizes=(40, 25, 3), num_edges=200)
    return folder / "g.h5", folder / "p", partition(folder / "g.h5", folder / "p", PARTS, **options)


@pytest.mark.parametrize("kind", ["temporal", "static", "snapshots"])
def test_traffic_adds_up_to_the_measures_in_the_book(tmp_path, kind):
    _, folder, quality = make(tmp_path, kind)
    traffic = read_traffic(open_book(folder))
    assert traffic.edges.sum() - np.trace(traffic.edges) == quality["cut"]
    assert traffic.halo.sum() == quality["volume" if kind == "temporal" else "halo"]
    assert not np.diag(traffic.halo).any()


@pytest.mark.parametrize("kind", ["static", "links"])
@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_rows_of_a_static_step_are_those_of_the_access_probabilities(tmp_path, num_ranks, kind):
    graph, folder, _ = make(tmp_path, kind)
    view = open_book(folder)
    found = expected_rows(view, num_ranks, (3, -1), 8)
    source = open_source(graph)
    with source.file:
        part = np.empty(source.num_nodes, np.int64)
        for index, data in enumerate(content(folder, PARTS)):
            for node_type in source.types:
                part[node_type.base + data[f"nodes/{node_type.name}/row"]] = index
        rank = rank_of_parts(PARTS, num_ranks)[part]
        for index, probability in access_by_part(source, rank, range(num_ranks), (3, -1), 8):
            for position, node_type in enumerate(source.types):
                mine = slice(node_type.base, node_type.base + node_type.num_nodes)
                wanted = probability[mine][rank[mine] != index].sum()
                assert found[index, position] == pytest.approx(wanted, rel=1e-5)


def test_events_and_histories_of_a_set_are_those_of_its_graph(tmp_path):
    graph, folder, _ = make(tmp_path, "temporal")
    src, dst, time = read_events(open_book(folder))
    with h5py.File(graph) as file:
        times = np.concatenate([group["time"][:] for group in file["edges"].values()])
    np.testing.assert_array_equal(time, np.sort(times))
    (indptr, when, event), other = histories(src, dst, time, 68)
    for node in range(68):
        mine = np.flatnonzero((src == node) | (dst == node))
        entries = slice(indptr[node], indptr[node + 1])
        assert event[entries].tolist() == mine.tolist()
        assert when[entries].tolist() == time[mine].tolist()
        assert other[entries].tolist() == (src[mine] + dst[mine] - node).tolist()


@pytest.mark.parametrize("kind", ["temporal", "static", "links", "snapshots"])
def test_the_command_tells_the_bytes_of_a_step(tmp_path, capsys, kind):
    _, folder, _ = make(tmp_path, kind)
    rows = {}
    for ranks in (1, 2, 4):
        assert main([str(folder), "--ranks", str(ranks), "--json"]) == 0
        step = json.loads(capsys.readouterr().out)["step"]
        rows[ranks] = step["rows"]
        assert (step["bytes"] > 0) == (ranks > 1)
    assert rows[1] == 0
    assert main([str(folder), "--ranks", "2"]) == 0
    assert "a training step on 2 ranks" in capsys.readouterr().out
    assert main([str(folder), "--ranks", "7"]) == 2
    assert "1 to 5 ranks" in capsys.readouterr().err or kind == "snapshots"


def test_charts_have_the_numbers(tmp_path, capsys):
    _, folder, _ = make(tmp_path, "static")
    assert main([str(folder), "--plot", str(tmp_path / "set.html")]) == 0
    page = (tmp_path / "set.html").read_text()
    report, traffic = describe_set(folder), read_traffic(open_book(folder))
    assert page.count("<svg") == 5
    assert f"Remote nodes of the parts: {traffic.halo.sum():,} in all" in page
    assert f"{report['quality']['cut_fraction']:.1%} of the edges cut" in page
    cells = re.findall(r'fill-opacity="([\d.]+)"', page)
    shades = np.log1p(traffic.edges * (1 - np.eye(len(traffic.edges))))
    np.testing.assert_allclose(np.array(cells, float), 0.06 + 0.94 * shades.ravel() / shades.max(), atol=6e-4)
    capsys.readouterr()
    assert main([str(folder), "--plot", str(tmp_path / "set.png")]) == 2
    assert "name it set.html" in capsys.readouterr().err


def test_a_picture_of_what_is_no_set_is_refused(tmp_path, capsys):
    graph, folder, _ = make(tmp_path, "temporal")
    assert main([str(graph), "--plot", str(tmp_path / "set.html")]) == 2
    assert "not a partition set" in capsys.readouterr().err
    assert files.book_path(folder).exists()


@pytest.mark.parametrize("make", [random_graph, random_static])
def test_a_step_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch, capsys, make):
    partition(make(tmp_path / "g.h5", 1), tmp_path / "p", 3, "random")
    monkeypatch.setattr(step_bytes, "free_bytes", lambda: 100)
    assert main([str(tmp_path / "p"), "--ranks", "2"]) == 2
    assert "--ranks 2: counting the rows of a step takes about" in capsys.readouterr().err
    assert main([str(tmp_path / "p")]) == 0
