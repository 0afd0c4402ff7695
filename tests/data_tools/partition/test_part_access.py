"""How often steps need nodes: against counts of sampled steps, and what partitioning makes of it."""

import h5py
import numpy as np
import pytest
from partition_sets import content, places, read_graph
from random_graphs import grouped, random_links, random_static, static_edges, write_columns, write_graph

from data_tools.graph.source import open_source
from data_tools.partition.access import access_probability, seed_nodes, seed_probability
from data_tools.partition.command import partition
from data_tools.partition.quality import unmet

pytestmark = pytest.mark.serial


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


def test_seeds_are_the_ends_of_training_edges_where_edges_are_learned(tmp_path):
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


def test_hotness_moves_the_other_ends_where_edges_are_learned(tmp_path):
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
