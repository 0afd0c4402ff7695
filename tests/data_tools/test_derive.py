"""Derived relations: the counts are those of the dense product, in slabs of any size; only training edges count."""

import h5py
import numpy as np
import pytest
from random_graphs import write_graph

from data_tools import derive as derive_module
from data_tools.convert import main as convert
from data_tools.derive import DeriveOptions, cut, derive, main
from hpcgnn.graph.files import relations

pytestmark = pytest.mark.serial

USERS, ITEMS = 50, 30


def make_graph(path, seed: int = 0, num_edges: int = 900, split: bool = True):
    rng = np.random.default_rng(seed)
    # Items of low rows are popular; pairs occur more than once.
    columns = {
        "src": rng.integers(0, USERS, num_edges),
        "dst": (ITEMS * rng.random(num_edges) ** 2).astype(np.int64),
    }
    if split:
        columns["split"] = rng.integers(-1, 3, num_edges).astype(np.int8)
    nodes = {"user": {"id": np.arange(USERS)}, "item": {"id": np.arange(ITEMS)}}
    return write_graph(path, nodes, {("user", "likes", "item"): columns}, "static")


def expected(path, threshold: int, all_edges: bool = False, max_degree: int = 10**9, side: str = "dst") -> list:
    """(src, dst, count) of the dense product, in order."""
    with h5py.File(path) as file:
        edges = file["edges/user.likes.item"]
        kept = slice(None) if all_edges else edges["split"][...] == 0
        matrix = np.zeros((USERS, ITEMS), np.int64)
        matrix[edges["src"][...][kept], edges["dst"][...][kept]] = 1
    if side == "src":
        matrix = matrix.T
    matrix = matrix[matrix.sum(axis=1) <= max_degree]
    counts = matrix.T @ matrix
    np.fill_diagonal(counts, 0)
    return [(int(i), int(j), int(counts[i, j])) for i, j in np.argwhere(counts >= threshold)]


def read(path, relation: str = "item.with.item") -> list:
    with h5py.File(path) as file:
        group = file["edges"][relation]
        assert group.attrs["num_edges"] == len(group["src"])
        assert [group[name].dtype for name in ("src", "dst", "weight")] == [np.int64, np.int64, np.int32]
        return list(zip(*(group[name][...].tolist() for name in ("src", "dst", "weight")), strict=True))


@pytest.mark.parametrize("threshold", [1, 3, 40])
@pytest.mark.parametrize("products", [1 << 25, 200, 1])
def test_counts_are_those_of_the_dense_product(tmp_path, monkeypatch, threshold, products):
    monkeypatch.setattr(derive_module, "PRODUCTS", products)
    monkeypatch.setattr(derive_module, "SLAB_ROWS", 100 if products == 200 else 1 << 20)
    graph = make_graph(tmp_path / "g.h5", seed=threshold)
    made = derive(graph, tmp_path / "out.h5", DeriveOptions("user.likes.item", threshold))
    found = read(tmp_path / "out.h5")
    assert found == expected(graph, threshold)
    assert made.num_edges == len(found)
    assert bool(found) == (threshold < 40)


def test_options(tmp_path, capsys):
    graph = make_graph(tmp_path / "g.h5", split=False)
    base = [str(graph), str(tmp_path / "out.h5"), "--relation", "user.likes.item", "--all_edges", "--overwrite"]
    assert main([*base, "--name", "shares", "--threshold", "2"]) == 0
    assert read(tmp_path / "out.h5", "item.shares.item") == expected(graph, 2, all_edges=True)
    assert main([*base, "--side", "src", "--threshold", "5"]) == 0
    assert read(tmp_path / "out.h5", "user.with.user") == expected(graph, 5, all_edges=True, side="src")
    capsys.readouterr()
    assert main([*base, "--max_degree", "13"]) == 0
    assert read(tmp_path / "out.h5") == expected(graph, 3, all_edges=True, max_degree=13)
    with h5py.File(graph) as file:
        pairs = np.unique(np.stack([file["edges/user.likes.item"][name][...] for name in ("src", "dst")]), axis=1)
    degree = np.bincount(pairs[0], minlength=USERS)
    left_out = f"{(degree > 13).sum()} nodes with more than 13 neighbors ({degree[degree > 13].sum()} pairs)"
    assert 0 < (degree > 13).sum() < USERS
    assert f"left out {left_out}" in capsys.readouterr().out


def test_the_rest_of_the_graph_is_kept(tmp_path):
    graph = make_graph(tmp_path / "g.h5")
    with h5py.File(graph) as file:
        before = {name: data[...].tolist() for name, data in file["edges/user.likes.item"].items()}
    assert main([str(graph), str(graph), "--relation", "user.likes.item"]) == 0
    with h5py.File(graph) as file:
        assert relations(file) == ["user.likes.item", "item.with.item"]
        assert {name: data[...].tolist() for name, data in file["edges/user.likes.item"].items()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.h5"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--relation", "user.buys.item"], "no relation 'user.buys.item'; it has user.likes.item"),
        (["--relation", "user.likes"], "not of the form <src>.<rel>.<dst>"),
        (
            ["--relation", "user.likes.item"],
            "no column 'split'; make one with hpcgnn split, or pass --all_edges",
        ),
        (["--relation", "user.likes.item", "--threshold", "0"], "--threshold 0"),
        (["--relation", "user.likes.item", "--max_degree", "1"], "--max_degree 1"),
    ],
)
def test_refusals(tmp_path, capsys, arguments, words):
    graph = make_graph(tmp_path / "g.h5", split=False)
    assert main([str(graph), str(tmp_path / "out.h5"), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.h5"]


def test_bad_rows_and_names_that_are_taken(tmp_path, capsys):
    graph = make_graph(tmp_path / "g.h5")
    assert main([str(graph), str(graph), "--relation", "user.likes.item"]) == 0
    assert main([str(graph), str(graph), "--relation", "user.likes.item"]) == 2
    assert "has a relation item.with.item already; choose another --name" in capsys.readouterr().err
    with h5py.File(graph, "r+") as file:
        file["edges/user.likes.item/dst"][4] = ITEMS
    assert main([str(graph), str(graph), "--relation", "user.likes.item", "--name", "x"]) == 2
    assert f"edges/user.likes.item/dst, row 4: {ITEMS} is not one of the {ITEMS} nodes" in capsys.readouterr().err


def test_cut_covers_everything_within_the_limit():
    rng = np.random.default_rng(0)
    for limit in (1, 50, 10**6):
        work = rng.integers(0, 40, 200)
        ranges = list(cut(work, limit))
        assert [row for start, stop in ranges for row in range(start, stop)] == list(range(200))
        assert all(stop - start == 1 or work[start:stop].sum() <= limit for start, stop in ranges)


def test_gowalla(tmp_path, shared_data):
    sources = [f"{name}={shared_data(f'gowalla/{name}.txt.gz')}" for name in ("train", "test")]
    graph = tmp_path / "g.h5"
    assert convert(["--preset", "user-items", "--set", sources[0], "--set", sources[1], str(graph)]) == 0
    made = derive(graph, graph, DeriveOptions("user.likes.item", threshold=5, max_degree=60))
    assert made.pairs + made.pairs_left_out == 810128
    with h5py.File(graph) as file:
        edges = file["edges/user.likes.item"]
        train = edges["split"][...] == 0
        src, dst = edges["src"][...][train], edges["dst"][...][train]
        few = np.bincount(src)[src] <= 60
        assert made.pairs == few.sum()
        src, dst = src[few], dst[few]
        found = file["edges/item.with.item"]
        ends = np.stack([found["src"][...], found["dst"][...]])
        weight = found["weight"][...]
    assert weight.min() == 5
    assert np.array_equal(ends[:, np.lexsort(ends[::-1])], ends)
    assert np.array_equal(np.sort(ends[0] * 10**6 + ends[1]), np.sort(ends[1] * 10**6 + ends[0]))
    for edge in np.linspace(0, len(weight) - 1, 7, dtype=int):
        users = [set(src[dst == item]) for item in ends[:, edge]]
        assert len(users[0] & users[1]) == weight[edge]
