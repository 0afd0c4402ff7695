"""Splits: sizes, reproducibility, no leak between an edge and its reverse, refusals."""

import json

import h5py
import numpy as np
import pytest
from random_graphs import write_graph
from snapshot_runs import random_graph

from data_tools import split as split_module
from data_tools.partition.command import partition
from data_tools.snapshots.graph import write_snapshots
from data_tools.split import SplitOptions, main, select_keys, split_graph
from hpcgnn.task.labels import MOST_CLASSES

pytestmark = pytest.mark.serial


def make_graph(path, seed: int = 0, num_edges: int = 3000, **columns):
    """Users, items, and pages that link to each other in both directions, one after the other."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 60, num_edges), rng.integers(0, 40, num_edges)
    pages = rng.integers(0, 500, (num_edges, 2))
    both = np.concatenate([pages, pages[::-1, ::-1]])
    nodes = {
        "user": {"id": np.arange(60)},
        "item": {"id": np.arange(40)},
        "page": {"id": np.arange(500), "label": rng.integers(-1, 7, 500), "year": rng.integers(1990, 2020, 500)},
    }
    edges = {
        ("user", "likes", "item"): {"src": user, "dst": item, "time": rng.integers(-(10**9), 10**9, num_edges)},
        ("item", "liked_by", "user"): {"src": item, "dst": user},
        ("page", "to", "page"): {"src": both[:, 0], "dst": both[:, 1]},
    }
    nodes["page"] |= columns
    return write_graph(path, nodes, edges, "static")


def splits(path) -> dict[str, np.ndarray]:
    found = {}
    with h5py.File(path) as file:
        for kind in ("nodes", "edges"):
            found |= {name: group["split"][...] for name, group in file[kind].items() if "split" in group}
    return found


def run(folder, *arguments: str, code: int = 0) -> dict[str, np.ndarray]:
    assert main([str(folder / "g.h5"), str(folder / "out.h5"), "--overwrite", *arguments]) == code
    return splits(folder / "out.h5") if code == 0 else {}


def test_a_snapshot_graph_stays_one(tmp_path):
    """With its number of snapshots and splits of its own, also where it is written over."""
    path, graph = tmp_path / "g.h5", random_graph(0, 24, 9, 20)
    graph.splits = {"train": (0, 5), "val": (6, 7), "test": (8, 8)}
    write_snapshots(path, graph, ["test"], "test")
    with h5py.File(path) as file:
        before = dict(file.attrs)
    split_graph(path, path, SplitOptions(nodes="node", fractions=(0.5, 0.3, 0.2)))
    with h5py.File(path) as file:
        assert dict(file.attrs) == before
        assert "split" in file["nodes/node"]
    partition(path, tmp_path / "parts", 2)


@pytest.mark.parametrize("slab_rows", [1 << 20, 37])
def test_nodes_at_random(tmp_path, monkeypatch, slab_rows):
    monkeypatch.setattr(split_module, "SLAB_ROWS", slab_rows)
    make_graph(tmp_path / "g.h5", label=np.zeros(500, np.int64))
    first = run(tmp_path, "--nodes", "page", "--fractions", "0.5,0.3,0.1", "--seed", "4")
    assert list(first) == ["page"]
    assert np.bincount(first["page"] + 1).tolist() == [50, 250, 150, 50]
    assert np.array_equal(
        run(tmp_path, "--nodes", "page", "--fractions", "0.5,0.3,0.1", "--seed", "4")["page"], first["page"]
    )
    other = run(tmp_path, "--nodes", "page", "--fractions", "0.5,0.3,0.1", "--seed", "5")["page"]
    assert 0.2 < (other == first["page"]).mean() < 0.6


def test_slabs_do_not_matter(tmp_path, monkeypatch):
    make_graph(tmp_path / "g.h5")
    for what in (["--nodes", "page", "--stratify"], ["--relation", "page.to.page"]):
        found = []
        for slab_rows in (1 << 20, 41):
            monkeypatch.setattr(split_module, "SLAB_ROWS", slab_rows)
            found.append(run(tmp_path, *what))
        assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_stratified_fractions_hold_within_every_label(tmp_path):
    make_graph(tmp_path / "g.h5")
    found = run(tmp_path, "--nodes", "page", "--stratify", "--fractions", "0.6,0.2,0.2")["page"]
    with h5py.File(tmp_path / "g.h5") as file:
        label = file["nodes/page/label"][...]
    assert (found[label < 0] == -1).all()
    for value in range(7):
        size = (label == value).sum()
        parts = np.bincount(found[label == value], minlength=3)
        np.testing.assert_allclose(np.cumsum(parts), np.floor(np.cumsum([0.6, 0.2, 0.2]) * size + 0.5))


def test_nodes_without_a_label_are_in_no_set(tmp_path):
    make_graph(tmp_path / "g.h5")
    found = run(tmp_path, "--nodes", "page")["page"]
    with h5py.File(tmp_path / "g.h5") as file:
        assert np.array_equal(found == -1, file["nodes/page/label"][...] < 0)


@pytest.mark.parametrize("slab_rows", [1 << 20, 37])
@pytest.mark.parametrize("of", ["several", "numbers", "some of several"])
def test_nodes_without_any_label_are_in_no_set(tmp_path, monkeypatch, of, slab_rows):
    """Where a node has several labels, and where they are numbers: fractions are those of the nodes with a label."""
    monkeypatch.setattr(split_module, "SLAB_ROWS", slab_rows)
    unknown = np.arange(500) % 2 == 0
    label = np.where(unknown, np.nan, 0.5) if of == "numbers" else np.where(unknown, -1, 1)[:, None].repeat(3, axis=1)
    if of == "some of several":
        label[1, :2] = -1  # the third is known
    make_graph(tmp_path / "g.h5", label=label)
    found = run(tmp_path, "--nodes", "page", "--fractions", "0.6,0.2,0.2")["page"]
    assert np.array_equal(found == -1, unknown)
    assert np.bincount(found[~unknown]).tolist() == [150, 50, 50]


def test_edges_are_split_whatever_their_label(tmp_path):
    """They are links; the number of labels that are known does not matter."""
    make_graph(tmp_path / "g.h5")
    before = run(tmp_path, "--relation", "user.likes.item")["user.likes.item"]
    with h5py.File(tmp_path / "g.h5", "r+") as file:
        file["edges/user.likes.item/label"] = np.full(3000, -1)
    assert np.array_equal(run(tmp_path, "--relation", "user.likes.item")["user.likes.item"], before)


def test_labels_of_any_size_are_stratified(tmp_path, capsys):
    """Memory goes by how many labels differ, not by their size; what training takes is said."""
    assert split_module.MOST_CLASSES == MOST_CLASSES
    label = np.arange(500) % 3 - 1
    make_graph(tmp_path / "g.h5", label=label)
    expected = run(tmp_path, "--nodes", "page", "--stratify")["page"]
    assert "highest label" not in capsys.readouterr().out
    make_graph(tmp_path / "g.h5", label=np.where(label > 0, 2_000_000_000_000, label))
    assert np.array_equal(run(tmp_path, "--nodes", "page", "--stratify")["page"], expected)
    said = capsys.readouterr().out
    assert "nodes" not in said
    assert "page: the highest label is 2000000000000, training takes classes below 65536: number them 0, 1" in said


def test_too_little_memory_is_no_damage(tmp_path, monkeypatch, capsys):
    make_graph(tmp_path / "g.h5")

    def fail(*_):
        raise MemoryError("Unable to allocate 15 GiB")

    monkeypatch.setattr(split_module, "find_bounds", fail)
    run(tmp_path, "--nodes", "page", code=2)
    message = capsys.readouterr().err
    assert "g.h5: out of memory (Unable to allocate 15 GiB): use a larger machine" in message


def test_an_edge_its_repetitions_and_its_reverse_are_together(tmp_path):
    make_graph(tmp_path / "g.h5")
    found = run(tmp_path, "--relation", "user.likes.item", "--fractions", "0.7,0.1,0.2")
    assert sorted(found) == ["item.liked_by.user", "user.likes.item"]
    assert np.array_equal(*found.values())
    with h5py.File(tmp_path / "g.h5", locking=False) as file:
        for relation in ("user.likes.item", "page.to.page"):
            split = run(tmp_path, "--relation", relation, "--fractions", "0.7,0.1,0.2")[relation]
            src, dst = (file[f"edges/{relation}/{end}"][...] for end in ("src", "dst"))
            ends = np.sort(np.stack([src, dst]), 0) if relation == "page.to.page" else np.stack([src, dst])
            _, pair = np.unique(ends, axis=1, return_inverse=True)
            for value in range(3):
                inside = np.zeros(pair.max() + 1, bool)
                inside[pair[split == value]] = True
                assert not inside[pair[split != value]].any()
            # Exact but for the edges of the pairs at the two bounds.
            expected = len(src) * np.array([0.7, 0.1, 0.2])
            np.testing.assert_allclose(np.bincount(split), expected, atol=2 * np.bincount(pair).max())


def test_only_rows_that_match_make_a_reverse(tmp_path):
    make_graph(tmp_path / "g.h5")
    with h5py.File(tmp_path / "g.h5", "r+") as file:
        file["edges/item.liked_by.user/src"][17] = (file["edges/item.liked_by.user/src"][17] + 1) % 40
    assert list(run(tmp_path, "--relation", "user.likes.item")) == ["user.likes.item"]


def test_by_time(tmp_path, monkeypatch):
    monkeypatch.setattr(split_module, "SLAB_ROWS", 97)
    make_graph(tmp_path / "g.h5")
    found = run(tmp_path, "--relation", "user.likes.item", "--by", "time")
    assert np.array_equal(*found.values()), "the reverse edges have no time of their own"
    with h5py.File(tmp_path / "g.h5") as file:
        time, year = file["edges/user.likes.item/time"][...], file["nodes/page/year"][...]
        label = file["nodes/page/label"][...]
    split = found["user.likes.item"]
    assert time[split == 0].max() < time[split == 1].min()
    assert time[split == 1].max() < time[split == 2].min()
    assert np.bincount(split).tolist() == [2400, 300, 300]
    pages = run(tmp_path, "--nodes", "page", "--by", "time", "--column", "year")["page"]
    assert year[pages == 0].max() < year[pages == 1].min() <= year[pages == 1].max() < year[pages == 2].min()
    assert np.array_equal(pages == -1, label < 0)
    assert abs((pages == 0).sum() - 0.8 * (label >= 0).sum()) < np.bincount(year - 1990).max()


def test_the_rest_of_the_graph_is_copied(tmp_path):
    make_graph(tmp_path / "g.h5")
    run(tmp_path, "--nodes", "page", "--seed", "3")
    with h5py.File(tmp_path / "g.h5") as before, h5py.File(tmp_path / "out.h5") as after:
        made_by = json.loads(after["nodes/page/split"].attrs["made_by"])
        assert made_by == {"by": "random", "fractions": [0.8, 0.1, 0.1], "seed": 3, "stratify": False}
        assert after.attrs["kind"] == "static"

        def compare(name, item):
            assert dict(item.attrs) == dict(after[name].attrs)
            if isinstance(item, h5py.Dataset):
                assert np.array_equal(item[...], after[name][...])

        before.visititems(compare)


def test_in_place_and_replace(tmp_path, capsys):
    graph = make_graph(tmp_path / "g.h5")
    assert main([str(graph), str(graph), "--nodes", "page"]) == 0
    first = splits(graph)["page"]
    assert main([str(graph), str(graph), "--nodes", "page", "--seed", "9"]) == 2
    assert "nodes/page has a split already; pass --replace" in capsys.readouterr().err
    assert np.array_equal(splits(graph)["page"], first)
    assert main([str(graph), str(graph), "--nodes", "page", "--seed", "9", "--replace"]) == 0
    assert not np.array_equal(splits(graph)["page"], first)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes", "author"], "g.h5: no node type 'author'; it has user, item, page"),
        (["--relation", "user.buys.item"], "no relation 'user.buys.item'; it has user.likes.item"),
        (["--nodes", "page", "--fractions", "0.8,0.3,0.1"], "add up to at most 1"),
        (["--nodes", "page", "--fractions", "0.8,a"], "expected three numbers"),
        (["--nodes", "page", "--seed", "-1"], "--seed -1"),
        (["--nodes", "user", "--stratify"], "nodes/user has no column 'label'; leave out --stratify"),
        (["--relation", "user.likes.item", "--stratify"], "--stratify: only for nodes"),
        (["--relation", "page.to.page", "--by", "time"], "edges/page.to.page has no column 'time'; name the column"),
        (["--nodes", "item", "--by", "time", "--column", "weight"], "is float64 [40], not one integer a row"),
    ],
)
def test_refusals(tmp_path, capsys, arguments, words):
    graph = make_graph(tmp_path / "g.h5")
    with h5py.File(graph, "r+") as file:
        file["nodes/item/weight"] = np.ones(40)
    run(tmp_path, *arguments, code=2)
    assert words in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.h5"]


def test_empty_tables(tmp_path):
    empty = {"src": np.empty(0, np.int64), "dst": np.empty(0, np.int64)}
    write_graph(tmp_path / "g.h5", {"n": {"id": np.empty(0, np.int64)}}, {("n", "to", "n"): empty}, "static")
    assert split_graph(tmp_path / "g.h5", tmp_path / "out.h5", SplitOptions(nodes="n"))["n"].tolist() == [0] * 4
    assert (
        split_graph(tmp_path / "g.h5", tmp_path / "out.h5", SplitOptions(relation="n.to.n"))["n.to.n"].tolist()
        == [0] * 4
    )


@pytest.mark.parametrize("groups", [1, 5])
def test_order_statistics_are_those_of_sorting(groups):
    rng = np.random.default_rng(groups)
    for spread in (3, 1 << 20, 1 << 63):
        keys = rng.integers(0, spread, 400, np.uint64) * np.uint64(1 + (spread < 9) * (1 << 60))
        group = rng.integers(0, groups, 400)
        pieces = [(keys[start : start + 60], group[start : start + 60]) for start in range(0, 400, 60)]
        for share in (0, 0.3, 0.999):
            ranks = (share * np.bincount(group, minlength=groups)).astype(np.int64)
            found = select_keys(lambda pieces=pieces: iter(pieces), ranks)
            expected = [np.sort(keys[group == g])[rank] for g, rank in enumerate(ranks)]
            assert found.tolist() == expected
