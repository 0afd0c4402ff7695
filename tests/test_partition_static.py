"""Partition sets of static graphs: exactly what the format says, for any graph, method and slab size."""

import itertools
import json

import h5py
import numpy as np
import pytest
from partition_sets import assert_same_content, content
from random_graphs import random_graph, random_links, random_static, static_edges, write_columns, write_graph

from data_tools import part_access, part_writer, partition_source, quality
from data_tools.part_access import access_probability, seed_nodes, seed_probability
from data_tools.part_csc import bucket_starts
from data_tools.partition import main, partition
from data_tools.partition_source import open_source
from data_tools.quality import unmet
from hpcgnn.store import files
from hpcgnn.store.files import FileFormatError

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
    monkeypatch.setattr(partition_source, "SLAB_BYTES", [40, 100, 500, 3000][seed])
    monkeypatch.setattr(part_writer, "PARTS_AT_ONCE", 4)
    monkeypatch.setattr(part_access, "TABLE_BYTES", 1)
    monkeypatch.setattr(quality, "HALO_BYTES", 100)
    second = partition(graph, tmp_path / "two", 6, **options)
    assert first == second
    assert_same_content(content(tmp_path / "one", 6), content(tmp_path / "two", 6))


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


def grouped(path, num_groups=40, size=50, seed=0, train=0.3):
    """Users and items in groups with few edges between groups; training users are piled up in the first groups."""
    rng = np.random.default_rng(seed)
    num_users, num_items, num_edges = num_groups * size, num_groups * size // 2, num_groups * size * 8
    group = rng.integers(0, num_groups, num_edges)
    other = np.where(rng.random(num_edges) < 0.1, rng.integers(0, num_groups, num_edges), group)
    user, item = rng.integers(0, size, num_edges), rng.integers(0, size // 2, num_edges)
    src, dst = group * size + user, other * (size // 2) + item
    shuffled, items = rng.permutation(num_users), rng.permutation(num_items)
    split = np.full(num_users, 2, np.int8)
    split[: int(train * num_users)] = 0
    nodes = {"user": {"split": split[np.argsort(shuffled)]}, "item": {"id": np.arange(num_items)}}
    edges = {
        ("user", "buys", "item"): {"src": shuffled[src], "dst": items[dst]},
        ("item", "sold_to", "user"): {"src": items[dst], "dst": shuffled[src]},
    }
    return write_graph(path, nodes, edges, "static")


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


def sampled_access(src, dst, num_nodes, start, fanouts):
    """access_probability of one relation and one set of seeds, node by node."""
    reached = start
    degree = np.bincount(dst, minlength=num_nodes)
    for fanout in fanouts:
        missed = 1 - reached
        for u, v in zip(src.tolist(), dst.tolist(), strict=True):
            taken = 1.0 if fanout < 0 else min(1.0, fanout / degree[v])
            missed[u] *= 1 - reached[v] * taken
        reached = 1 - missed
    return reached


@pytest.mark.parametrize("fanouts", [(), (2,), (3, 2), (1, -1, 4), (0, 2)])
def test_access_probability_is_the_recursion(tmp_path, fanouts):
    rng = np.random.default_rng(len(fanouts))
    edges = static_edges(rng, 25, 25, 150)
    graph = write_graph(tmp_path / "g.h5", {"v": {"id": np.arange(25)}}, {("v", "to", "v"): edges}, "static")
    start = np.stack([(rng.random(25) < 0.3) * 0.5, (rng.random(25) < 0.2) * 1.0])
    source = open_source(graph)
    with source.file:
        found = access_probability(source, start, fanouts)
    for one, seeds in zip(found, start, strict=True):
        expected = sampled_access(edges["src"], edges["dst"], 25, seeds.copy(), fanouts)
        np.testing.assert_allclose(one, expected, atol=1e-12)


def test_access_over_relations_is_that_of_their_union(tmp_path):
    rng = np.random.default_rng(0)
    edges = static_edges(rng, 20, 20, 90)
    halves = [{key: values[index::2] for key, values in edges.items()} for index in range(2)]
    nodes = {"v": {"id": np.arange(20)}}
    start = (rng.random((1, 20)) < 0.3) * 0.4
    found = []
    for relations in ([edges], halves):
        named = {("v", f"r{index}", "v"): columns for index, columns in enumerate(relations)}
        source = open_source(write_graph(tmp_path / f"{len(relations)}.h5", nodes, named, "static"))
        with source.file:
            found.append(access_probability(source, start, (-1, -1)))
    np.testing.assert_allclose(*found, atol=1e-12)


@pytest.mark.parametrize("method", ["metis", "hotness"])
def test_the_cache_ranks_remote_nodes_by_probability(tmp_path, method):
    graph = grouped(tmp_path / "g.h5", num_groups=10)
    options = {"fanouts": (4, 2), "batch_size": 40, "cache_ranking": 0.1}
    found = partition(graph, tmp_path / "p", 4, method, **options)
    nodes, _ = read_graph(graph)
    parts = content(tmp_path / "p", 4)
    place = places(nodes, tmp_path / "p", parts)
    bases, part_of = {"user": 0, "item": len(nodes["user"]["split"])}, np.empty(len(place), int)
    ids = np.empty(len(place), np.int64)
    for (name, row), (part, global_id) in place.items():
        part_of[bases[name] + row], ids[bases[name] + row] = part, global_id
    train = np.r_[nodes["user"]["split"] == 0, np.zeros(len(nodes["item"]["id"]), bool)]
    total = local = ranked = 0
    for part, data in enumerate(parts):
        source = open_source(graph)
        with source.file:
            start = (train & (part_of == part)) * 40 / train.sum()
            (probability,) = access_probability(source, start[None], (4, 2)).astype(np.float32)
        total, local = total + probability.sum(), local + probability[part_of == part].sum()
        for name, base in bases.items():
            count = len(next(iter(nodes[name].values())))
            candidates = [node for node in range(base, base + count) if part_of[node] != part and probability[node] > 0]
            best = sorted(candidates, key=lambda node: (-probability[node], ids[node]))[: int(np.ceil(0.1 * count))]
            assert data[f"cache/{name}/id"].tolist() == ids[best].tolist()
            np.testing.assert_array_equal(data[f"cache/{name}/probability"], probability[best])
            ranked += probability[best].sum()
    assert found["cache"]["local"] == pytest.approx(local / total, abs=1e-5)
    assert found["cache"]["ranked"] == pytest.approx(ranked / total, abs=1e-5)


def test_no_ranking_unless_asked_for(tmp_path):
    graph = random_static(tmp_path / "g.h5", seed=1)
    assert "cache" not in partition(graph, tmp_path / "p", 3)
    assert not any(name.startswith("cache") for data in content(tmp_path / "p", 3) for name in data)
    partition(graph, tmp_path / "q", 3, cache_ranking=1.0)
    found = partition(graph, tmp_path / "q", 3, cache_ranking=1.0, overwrite=True)
    assert found["cache"]["local"] + found["cache"]["ranked"] == pytest.approx(1, abs=1e-5)


def test_hotness_raises_local_access_keeps_seeds_and_bounds_parts(tmp_path):
    graph = grouped(tmp_path / "g.h5", num_groups=24, train=0.5)
    options = {"cache_ranking": 0.2, "fanouts": (3, 3), "batch_size": 64}
    metis = partition(graph, tmp_path / "m", 6, "metis", **options)
    hot = partition(graph, tmp_path / "h", 6, "hotness", **options)
    assert hot["cache"]["local"] > metis["cache"]["local"]
    assert not [line for line in unmet(hot, 1.1001) if "cannot be below" not in line]
    for one, other in zip(content(tmp_path / "m", 6), content(tmp_path / "h", 6), strict=True):
        seeds = [data["nodes/user/row"][data["nodes/user/split"] == 0].tolist() for data in (one, other)]
        assert seeds[0] == seeds[1]


def test_seeds_are_the_ends_of_training_edges_where_edges_are_learnt(tmp_path):
    with (source := open_source(random_links(tmp_path / "g.h5", 4))).file:
        likes = {name: column[:] for name, column in source.file["edges/user.likes.item"].items()}
        part = np.random.default_rng(1).integers(0, 3, source.num_nodes)
        found = seed_probability(source, part, range(3), 8)
        lies = seed_nodes(source)
    train = np.flatnonzero(likes["split"] == 0)
    missed, expected = np.ones_like(found), np.zeros(70, bool)
    for edge in train:
        user, item = likes["src"][edge], 50 + likes["dst"][edge]
        missed[part[item], [user, item]] *= 1 - 8 / len(train)
        expected[item] = True
    np.testing.assert_allclose(found, 1 - missed, atol=1e-12)
    np.testing.assert_array_equal(lies, expected)


def test_edges_that_are_held_out_carry_nothing(tmp_path):
    path = random_links(tmp_path / "g.h5", 4)
    start = np.full((1, 70), 0.3)
    with (source := open_source(path)).file:
        found = access_probability(source, start, (2, -1))
    with h5py.File(path, "r+") as file:
        for group in (file["edges/user.likes.item"], file["edges/item.liked_by.user"]):
            columns = {name: column[:][group["split"][:] == 0] for name, column in group.items()}
            group.clear()
            write_columns(group, columns)
            group.attrs["num_edges"] = len(columns["src"])
    with (source := open_source(path)).file:
        np.testing.assert_array_equal(found, access_probability(source, start, (2, -1)))


def test_hotness_moves_the_other_ends_where_edges_are_learnt(tmp_path):
    graph = random_links(tmp_path / "g.h5", 4)
    with h5py.File(graph) as file:
        edges = file["edges/user.likes.item"]
        seeds = np.unique(edges["dst"][:][edges["split"][:] == 0])
    sets = []
    for method in ("metis", "hotness"):
        partition(graph, tmp_path / method, 3, method, ("nodes",), fanouts=(3, 3), batch_size=16)
        sets.append(content(tmp_path / method, 3))
    rows = [[[data[f"nodes/{name}/row"] for data in parts] for parts in sets] for name in ("user", "item")]
    assert any(one.tolist() != other.tolist() for one, other in zip(*rows[0], strict=True))
    for one, other in zip(*rows[1], strict=True):
        np.testing.assert_array_equal(np.intersect1d(one, seeds), np.intersect1d(other, seeds))


def test_command_line_takes_the_options_of_static_graphs(tmp_path, capsys):
    graph = random_static(tmp_path / "g.h5", seed=7, sizes=(60, 40, 0), num_edges=400)
    flags = ["--parts", "4", "--out-edges", "--cache-ranking", "--fanouts", "4,-1", "--batch-size", "9"]
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
        ({"method": "magic"}, "expected one of metis, random, ldg"),
        ({"balance": ("events",)}, "balance='events': expected one of nodes, edges, degree, train, val, type:a"),
        ({"balance": ("type:z",)}, "balance='type:z'"),
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
    with pytest.raises(ValueError, match=r"g.h5: no node type has a column split.*data_tools.convert"):
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

    monkeypatch.setattr("data_tools.part_csc.permute", fail)
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
