"""Partition sets of static graphs: exactly what the format says, for any graph, method and slab size."""

import itertools
import json

import h5py
import numpy as np
import pytest
from partition_sets import assert_same_content, content, places, read_graph
from random_graphs import grouped, random_graph, random_static, write_graph

from data_tools.graph import source as graph_source
from data_tools.partition import access as part_access
from data_tools.partition import memory, quality
from data_tools.partition.command import main, partition
from data_tools.partition.csc import bucket_starts
from data_tools.partition.quality import unmet
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError

pytestmark = pytest.mark.serial

CASES = [
    (1, (30, 12, 0)),
    (2, (30, 12, 0)),
    (2, (1, 1, 1)),
    (3, (40, 0, 3)),
    (5, (0, 5, 2)),
    (5, (25, 20, 9)),
    (7, (1, 1, 1)),
    (30, (25, 20, 9)),
]


def check_lists(data, prefix, owners, others, other_ids, columns):
    """indptr, other endpoints, rows and columns of one part: node by node, edge by edge."""
    lists = [[row for row, owner in enumerate(others) if owner == node] for node in owners]
    rows = list(itertools.chain.from_iterable(lists))
    assert data[f"{prefix}/indptr"].tolist() == np.cumsum([0, *map(len, lists)]).tolist()
    assert data[f"{prefix}/indptr"].dtype == data[f"{prefix}/row"].dtype == np.int64
    assert data[f"{prefix}/row"].tolist() == rows
    for key, values in {**other_ids, **columns}.items():
        found = data[f"{prefix}/{key}"]
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values[rows])


def check_against_plain_loops(graph, folder, num_parts, out_edges=False):
    """Recompute a whole set node by node and edge by edge; returns (cut by relation, number of halo rows)."""
    parts = content(folder, num_parts)
    nodes, edges = read_graph(graph)
    place = places(nodes, folder, parts)
    cuts, halo = {}, set()
    for name, columns in edges.items():
        src_type, _, dst_type = files.split_relation(name)
        src = [place[src_type, row] for row in columns["src"].tolist()]
        dst = [place[dst_type, row] for row in columns["dst"].tolist()]
        src_id, dst_id = (np.array([item[1] for item in ends], np.int64) for ends in (src, dst))
        further = {key: values for key, values in columns.items() if key not in ("src", "dst")}
        for part, data in enumerate(parts):
            mine = lambda kind, part=part: sorted(  # noqa: E731
                item[1] for (name, _), item in place.items() if name == kind and item[0] == part
            )
            check_lists(data, f"edges/{name}", mine(dst_type), dst_id.tolist(), {"src": src_id}, further)
            if out_edges:
                check_lists(data, f"out/{name}", mine(src_type), src_id.tolist(), {"dst": dst_id}, {})
            assert (f"out/{name}/row" in data) == out_edges
        cuts[name] = sum(u[0] != v[0] for u, v in zip(src, dst, strict=True))
        halo |= {(u[1], v[0]) for u, v in zip(src, dst, strict=True) if u[0] != v[0]}
    return cuts, len(halo)


@pytest.mark.parametrize("method", ["random", "metis", "hotness"])
@pytest.mark.parametrize(("num_parts", "sizes"), CASES, ids=str)
def test_random_graphs_are_partitioned_exactly(tmp_path, method, num_parts, sizes):
    graph = random_static(tmp_path / "g.h5", seed=num_parts, sizes=sizes)
    found = partition(graph, tmp_path / "p", num_parts, method, out_edges=num_parts != 2)
    cuts, halo = check_against_plain_loops(graph, tmp_path / "p", num_parts, out_edges=num_parts != 2)
    assert found["relations"] == cuts
    assert found["cut"] == sum(cuts.values())
    assert found["halo"] == halo
    assert found["replication"] == pytest.approx((sum(sizes) + halo) / sum(sizes), abs=1e-6)
    assert list(found["balance"]) == ["nodes", "edges", "train"]


@pytest.mark.parametrize("seed", range(4))
def test_slabs_and_open_files_do_not_change_the_content(tmp_path, monkeypatch, seed):
    graph = random_static(tmp_path / "g.h5", seed, sizes=(40, 25, 3), num_edges=200)
    options = {"method": "hotness", "out_edges": True}
    first = partition(graph, tmp_path / "one", 6, **options)
    monkeypatch.setattr(graph_source, "SLAB_BYTES", [40, 100, 500, 3000][seed])
    monkeypatch.setattr(memory, "PARTS_AT_ONCE", 4)
    monkeypatch.setattr(part_access, "TABLE_BYTES", 1)
    monkeypatch.setattr(quality, "HALO_BYTES", 100)
    second = partition(graph, tmp_path / "two", 6, **options)
    assert first == second
    assert_same_content(content(tmp_path / "one", 6), content(tmp_path / "two", 6))


def test_halos_are_counted_in_bounded_memory(tmp_path, monkeypatch):
    """A share of the nodes after the other: keys of a graph of any size fit into what is meant for them."""
    graph = random_static(tmp_path / "g.h5", 1, sizes=(400, 250, 30), num_edges=9000)
    whole, counted, find = partition(graph, tmp_path / "one", 8, "random"), [], quality.halo_keys
    monkeypatch.setattr(quality, "halo_keys", lambda *given: counted.append(find(*given)) or counted[-1])
    monkeypatch.setattr(quality, "HALO_BYTES", 12_000)
    assert partition(graph, tmp_path / "two", 8, "random") == whole
    assert len(counted) > 5
    assert max(map(len, counted)) * quality.HALO_KEY_BYTES < 12_000


def test_buckets_are_small_and_within_parts():
    degree = np.array([1, 1, 5, 30, 0, 2, 2, 2, 2, 9, 0, 0, 12, 1])
    indptr, offsets = np.r_[0, np.cumsum(degree)], np.array([0, 0, 4, 9, 14])
    starts = bucket_starts(indptr, offsets, 10)
    assert (starts[0], starts[-1]) == (0, 14)
    assert np.isin(offsets, starts).all()
    edges, nodes = np.diff(indptr[starts]), np.diff(starts)
    assert (edges[nodes > 1] <= 20).all()
    assert edges.max() == 30


def test_the_same_inputs_give_the_same_bytes_and_other_options_another_id(tmp_path):
    graph = random_static(tmp_path / "g.h5", seed=2)
    ids = set()
    changes = [{}, {}, {"out_edges": True}, {"cache_ranking": 0.5}, {"fanouts": (3,)}, {"batch_size": 8}, {"seed": 1}]
    for index, change in enumerate(changes):
        partition(graph, tmp_path / str(index), 4, **change)
        with h5py.File(files.book_path(tmp_path / str(index))) as book:
            ids.add(book.attrs["set_id"])
    assert len(ids) == len(changes) - 1
    for path in (tmp_path / "0").iterdir():
        assert path.read_bytes() == (tmp_path / "1" / path.name).read_bytes()


def test_the_book_describes_a_static_set(tmp_path):
    graph = random_static(tmp_path / "g.h5", seed=3)
    found = partition(graph, tmp_path / "p", 3, out_edges=True)
    with files.open_checked(files.book_path(tmp_path / "p"), files.BOOK) as book:
        assert book.attrs["kind"] == "static"
        assert json.loads(book.attrs["quality"]) == found
        assert json.loads(book.attrs["options"])["out_edges"] is True
        assert files.relations(book) == ["a.cites.a", "a.likes.b", "b.of.c", "a.shuns.b"]
        assert book["edges/a.cites.a/columns"][:].tolist() == [b"feat", b"weight"]


def test_metis_balances_every_constraint_and_cuts_little(tmp_path):
    graph = grouped(tmp_path / "g.h5")
    found = partition(graph, tmp_path / "m", 8, balance=("nodes", "edges", "train", "type:item"))
    assert not unmet(found, 1.1001)
    assert list(found["balance"]) == ["nodes", "edges", "train", "type:item"]
    hashed = partition(graph, tmp_path / "r", 8, "random")
    assert found["cut"] < 0.5 * hashed["cut"]
    assert found["halo"] < 0.7 * hashed["halo"]
    assert partition(graph, tmp_path / "n", 8, balance=())["balance"] == {}


def test_constraints_are_measured_as_named(tmp_path):
    graph = random_static(tmp_path / "g.h5", seed=4, sizes=(60, 40, 8), num_edges=400)
    names = ("nodes", "edges", "train", "val", "type:a", "type:c")
    found = partition(graph, tmp_path / "p", 3, "random", balance=names)
    loads = {name: np.zeros(3) for name in names}
    for part, data in enumerate(content(tmp_path / "p", 3)):
        loads["nodes"][part] = sum(len(data[f"nodes/{name}/row"]) for name in "abc")
        loads["edges"][part] = sum(len(values) for name, values in data.items() if name.startswith("edges/") and
                                   name.endswith("/row"))  # fmt: skip
        for name, value in (("train", 0), ("val", 1)):
            loads[name][part] = sum((data[f"nodes/{kind}/split"] == value).sum() for kind in "ab")
        loads["type:a"][part], loads["type:c"][part] = (len(data[f"nodes/{kind}/row"]) for kind in "ac")
    for name in names:
        assert found["balance"][name] == pytest.approx(loads[name].max() / loads[name].mean(), abs=1e-4)


def test_isolated_nodes_and_empty_graphs_are_spread(tmp_path):
    nodes = {"v": {"id": np.arange(40)}, "w": {"id": np.arange(0)}}
    empty = np.empty(0, np.int64)
    graph = write_graph(tmp_path / "g.h5", nodes, {("v", "to", "w"): {"src": empty, "dst": empty}}, "static")
    found = partition(graph, tmp_path / "p", 4)
    assert found["balance"] == {"nodes": 1.0, "edges": 1.0}
    check_against_plain_loops(graph, tmp_path / "p", 4)
    graph = write_graph(tmp_path / "h.h5", nodes, {}, "static")
    partition(graph, tmp_path / "q", 4, cache_ranking=0.5)
    check_against_plain_loops(graph, tmp_path / "q", 4)


def test_command_line_takes_the_options_of_static_graphs(tmp_path, capsys):
    graph = random_static(tmp_path / "g.h5", seed=7, sizes=(60, 40, 0), num_edges=400)
    flags = ["--parts", "4", "--out_edges", "--cache_ranking", "--fanouts", "4,-1", "--batch_size", "9"]
    assert main([str(graph), str(tmp_path / "p"), *flags]) == 0
    printed = capsys.readouterr().out.splitlines()
    lines = printed[printed.index("100 nodes and 600 edges in 4 parts") :]
    assert [line.split(":")[0].strip() for line in lines[1:5]] == ["a.cites.a", "a.likes.b", "b.of.c", "a.shuns.b"]
    assert lines[5].startswith("  expected accesses: ")
    assert lines[6].split() == ["ranks", "cut", "fraction", "halo", "replic.", "nodes", "edges", "train"]
    with h5py.File(files.book_path(tmp_path / "p")) as book:
        options = json.loads(book.attrs["options"])
    assert (options["fanouts"], options["batch_size"], options["cache_ranking"]) == ([4, -1], 9, 0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "method must be one of metis, random, ldg"),
        ({"balance": ("events",)}, "one of nodes, edges, degree, train, val, types, type:a, .* got 'events'"),
        ({"balance": ("type:z",)}, "balance must be one of .*, got 'type:z'"),
        ({"fanouts": (3, -2)}, "fanouts=3,-2"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"cache_ranking": 1.5}, "cache_ranking=1.5"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        partition(random_static(tmp_path / "g.h5", 0), tmp_path / "p", 2, **options)
    assert not (tmp_path / "p").exists()


def test_options_of_static_graphs_are_refused_for_others(tmp_path):
    with pytest.raises(ValueError, match="out_edges: for static graphs only"):
        partition(random_graph(tmp_path / "g.h5", 0), tmp_path / "p", 2, out_edges=True)


@pytest.mark.parametrize("options", [{"balance": ("train",)}, {"method": "hotness"}], ids=str)
def test_a_missing_split_is_told(tmp_path, options):
    edges = {("v", "to", "v"): {"src": np.array([0, 1]), "dst": np.array([1, 2])}}
    graph = write_graph(tmp_path / "g.h5", {"v": {"id": np.arange(3)}}, edges, "static")
    with pytest.raises(ValueError, match=r"g.h5: no node type has a column split.*convert the graph with one"):
        partition(graph, tmp_path / "p", 2, **options)
    assert not files.book_path(tmp_path / "p").exists()
    nodes = {"v": {"split": np.zeros((3, 10), np.int8)}}
    with pytest.raises(FileFormatError, match=r"/nodes/v/split is int8 of shape \(3, 10\), expected one integer"):
        partition(write_graph(tmp_path / "g.h5", nodes, edges, "static"), tmp_path / "p", 2, **options)


def test_a_failure_leaves_no_book_and_what_is_finished(tmp_path, monkeypatch):
    graph = random_static(tmp_path / "g.h5", seed=5)
    partition(graph, tmp_path / "p", 2)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("data_tools.partition.csc.permute", fail)
    with pytest.raises(OSError, match="disk full"):
        partition(graph, tmp_path / "p", 2, overwrite=True)
    assert {path.name for path in (tmp_path / "p").iterdir()} == {"partition.json", "partition.npy"}


def test_cora_is_cut_little_and_balanced(tmp_path, shared_data):
    data = np.load(shared_data("cora/cora_planetoid.npz"))
    edges, num_nodes = data["edges"].T, len(data["y"])
    split = np.full(num_nodes, 3, np.int8)
    for value, name in enumerate(("train", "val", "test")):
        split[data[f"{name}_idx"]] = value
    columns = {"src": np.r_[edges[0], edges[1]].astype(np.int64), "dst": np.r_[edges[1], edges[0]].astype(np.int64)}
    nodes = {"paper": {"label": data["y"], "split": split}}
    graph = write_graph(tmp_path / "g.h5", nodes, {("paper", "cites", "paper"): columns}, "static")
    found = partition(graph, tmp_path / "p", 4, cache_ranking=0.2)
    assert found["edges"] == 2 * 5278
    assert found["cut_fraction"] < 0.15
    assert not unmet(found, 1.1001)
    assert found["cache"]["local"] > 0.6
    assert found["cache"]["local"] + found["cache"]["ranked"] > 0.85


@pytest.mark.parametrize("make", [random_static, random_graph])
def test_attributes_of_columns_come_along(tmp_path, make):
    """Of nodes and of edges, in every part, static or temporal."""
    make(tmp_path / "g.h5", 3)
    with h5py.File(tmp_path / "g.h5", "r+") as file:
        paths = ["nodes/a/feat", f"edges/{files.relations(file)[0]}/feat"]
        for path in paths:
            file[path].attrs["names"] = '["red", "blue"]'
    partition(tmp_path / "g.h5", tmp_path / "p", 3, method="random")
    for part in range(3):
        with h5py.File(files.part_path(tmp_path / "p", part)) as file:
            assert {file[path].attrs["names"] for path in paths} == {'["red", "blue"]'}
