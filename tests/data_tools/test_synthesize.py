"""Synthetic graphs: reproducible, in order, and with the structure they promise."""

import subprocess
import sys

import h5py
import numpy as np
import pytest

from data_tools import synthesize
from data_tools.graph.checks import validate
from data_tools.graph.source import open_source
from data_tools.synthesize import main, synthesize_events
from data_tools.synthetic import static as synthetic_static
from data_tools.synthetic.static import synthesize_static

pytestmark = pytest.mark.serial


def load(path):
    """Node ids and event columns of a file."""
    with h5py.File(path) as file:
        events = {name: dataset[:] for name, dataset in file["edges/user.interacts.item"].items()}
        return file["nodes/user/id"][:], file["nodes/item/id"][:], events


def test_same_arguments_give_the_same_bytes_and_another_seed_does_not(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize_events(tmp_path / name, 3000, 100, 40, seed, feature_dim=3)
    first, second, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == second
    assert first != other


def test_the_file_is_a_valid_temporal_graph(tmp_path):
    synthesize_events(tmp_path / "g.h5", 5000, 200, 60, seed=3, feature_dim=5)
    source = open_source(tmp_path / "g.h5")
    with source.file:
        validate(source)
        assert source.kind == "temporal"
        assert [(t.name, t.num_nodes) for t in source.types] == [("user", 200), ("item", 60)]
    users, items, events = load(tmp_path / "g.h5")
    np.testing.assert_array_equal(users, 1000 + 3 * np.arange(200))
    np.testing.assert_array_equal(items, 1000 + 3 * np.arange(60))
    gaps = np.diff(events["time"])
    assert events["time"][0] == 0
    assert gaps.min() == 0
    assert (gaps > 0).mean() > 0.8
    assert events["feat"].dtype == np.float32
    assert events["feat"].shape == (5000, 5)


def test_labels_mark_the_busiest_users_and_change_nothing_else(tmp_path):
    synthesize_events(tmp_path / "plain.h5", 5000, 100, 60, seed=3)
    synthesize_events(tmp_path / "labeled.h5", 5000, 100, 60, seed=3, labels=True)
    plain, labeled = load(tmp_path / "plain.h5")[2], load(tmp_path / "labeled.h5")[2]
    label = labeled.pop("label")
    assert plain.keys() == labeled.keys()
    assert all(np.array_equal(plain[name], labeled[name]) for name in plain)
    assert 0.45 < label.mean() < 0.65
    count = np.bincount(labeled["src"], minlength=100)
    busy = np.unique(labeled["src"][label == 1])
    assert not np.isin(labeled["src"][label == 0], busy).any()
    assert len(busy) < 40
    assert np.median(count[busy]) > 2 * np.median(np.delete(count, busy))


def test_users_repeat_and_activity_is_skewed(tmp_path):
    synthesize_events(tmp_path / "g.h5", 50_000, 2000, 500, seed=1)
    _, _, events = load(tmp_path / "g.h5")
    recent, repeats, later = {}, 0, 0
    for user, item in zip(events["src"].tolist(), events["dst"].tolist(), strict=True):
        items = recent.setdefault(user, [])
        later += bool(items)
        repeats += item in items[-synthesize.RECENT :]
        items.append(item)
    assert 0.6 < repeats / later < 0.85
    for column in ("src", "dst"):
        counts = np.sort(np.bincount(events[column]))[::-1]
        assert counts[: len(counts) // 10].sum() > 0.25 * counts.sum()


def plain_repeats(recent, users, items, lag):
    """Reference: one event after the other."""
    result = []
    for user, item, back in zip(users.tolist(), items.tolist(), lag.tolist(), strict=True):
        known = recent.setdefault(user, [])
        result.append(known[-back] if 0 < back <= len(known) else item)
        known.append(result[-1])
    return result


@pytest.mark.parametrize("seed", range(20))
def test_repeats_equal_a_plain_loop_in_blocks_of_any_size(seed):
    rng = np.random.default_rng(seed)
    n, num_users = 300, int(rng.integers(1, 30))
    users, items = rng.integers(0, num_users, n), rng.integers(0, 50, n)
    lag = rng.integers(0, synthesize.RECENT + 1, n)
    expected = plain_repeats({}, users, items, lag)
    tables = synthesize.draw_tables(num_users, 50, seed, 0)
    found, start = [], 0
    while start < n:
        stop = start + int(rng.integers(1, 120))
        found += synthesize.resolve_repeats(tables, users[start:stop], items[start:stop], lag[start:stop]).tolist()
        start = stop
    assert found == expected


def test_times_go_on_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(synthesize, "BLOCK", 64)
    synthesize_events(tmp_path / "g.h5", 1000, 20, 5, seed=1)
    _, _, events = load(tmp_path / "g.h5")
    gaps = np.diff(events["time"])
    assert gaps.min() >= 0
    assert gaps.max() < 40 * synthesize.MEAN_GAP
    assert events["time"][-1] > 500 * synthesize.MEAN_GAP


@pytest.mark.parametrize(("num_events", "num_users", "num_items"), [(0, 1, 1), (1, 1, 1), (50, 1, 3), (50, 3, 1)])
def test_tiny_graphs(tmp_path, num_events, num_users, num_items):
    synthesize_events(tmp_path / "g.h5", num_events, num_users, num_items, seed=0)
    source = open_source(tmp_path / "g.h5")
    with source.file:
        validate(source)


def test_impossible_sizes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="users=0"):
        synthesize_events(tmp_path / "g.h5", 10, 0, 5, seed=0)
    assert not (tmp_path / "g.h5").exists()


def test_command_line(tmp_path, capsys):
    assert main(["--events", "400", "--features", "2", str(tmp_path / "g.h5")]) == 0
    assert "400 events, 20 users, 4 items" in capsys.readouterr().out


@pytest.mark.launcher
def test_the_command_tells_bad_input_in_one_line(tmp_path):
    command = [sys.executable, "-m", "data_tools.synthesize", "--events", "-5", str(tmp_path / "g.h5")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: events=-5")


# ---- static graphs ---------------------------------------------------------------------------------------------------


def load_static(path):
    """Node columns, and both ends of the edges."""
    with h5py.File(path) as file:
        assert file.attrs["kind"] == "static"
        nodes = {name: dataset[...] for name, dataset in file["nodes/node"].items()}
        edges = file["edges/node.to.node"]
        assert edges.attrs["num_edges"] == len(edges["src"])
        return nodes, edges["src"][...], edges["dst"][...]


def make_static(path, num_nodes=20_000, num_edges=400_000, seed=1, **options):
    synthesize_static(path, num_nodes, num_edges, seed, **options)
    return load_static(path)


def test_a_static_graph_depends_on_its_arguments_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic_static, "LINK_BLOCK", 512)
    monkeypatch.setattr(synthetic_static, "NODE_BLOCK", 64)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize_static(tmp_path / name, 300, 3000, seed, width=5, num_classes=4)
    first, second, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == second
    assert first != other
    _, src, dst = load_static(tmp_path / "a")
    assert len(np.unique(src[::2] * 300 + dst[::2])) > 900, "every block has links of its own"


def test_static_edges_come_in_pairs_and_degrees_follow_a_power_law(tmp_path):
    nodes, src, dst = make_static(tmp_path / "g.h5")
    np.testing.assert_array_equal(nodes["id"], 1000 + 3 * np.arange(20_000))
    np.testing.assert_array_equal(src[::2], dst[1::2])
    np.testing.assert_array_equal(dst[::2], src[1::2])
    assert (src != dst).all()
    degree = np.sort(np.bincount(dst, minlength=20_000))[::-1]
    assert degree[0] > 50 * np.median(degree)
    # Degrees over ranks are a line of slope -0.7 in logarithms, after the first few.
    ranks = np.array([100, 300, 1000, 3000, 10_000])
    slope = np.polyfit(np.log(ranks), np.log(degree[ranks]), 1)[0]
    assert -0.8 < slope < -0.6
    assert np.allclose(np.bincount(nodes["split"]) / 20_000, [0.1, 0.05, 0.85], atol=0.01)


def test_static_labels_are_learnable_from_features_and_better_with_neighbors(tmp_path):
    nodes, src, dst = make_static(tmp_path / "g.h5", num_classes=10, width=40)
    feat, label = nodes["feat"], nodes["label"]
    assert (feat.dtype, feat.shape, label.max()) == (np.float32, (20_000, 40), 9)
    around = np.zeros_like(feat)
    np.add.at(around, dst, feat[src])
    around /= np.maximum(np.bincount(dst, minlength=20_000), 1)[:, None]

    def accuracy(table):
        train, test = nodes["split"] == 0, nodes["split"] == 2
        centers = np.stack([table[train & (label == c)].mean(axis=0) for c in range(10)])
        distance = (centers**2).sum(axis=1) - 2 * table[test] @ centers.T
        return (distance.argmin(axis=1) == label[test]).mean()

    alone, helped = accuracy(feat), accuracy(np.hstack([feat, 3 * around]))
    assert 0.15 < alone < 0.6
    assert helped > alone + 0.2


def test_both_directions_of_a_link_have_the_same_columns(tmp_path, monkeypatch):
    """Which change nothing else, nor each other."""
    monkeypatch.setattr(synthetic_static, "LINK_BLOCK", 64)
    found = {}
    for name, options in {
        "plain": [],
        "feat": ["--edge_features", "3"],
        "both": ["--edge_features", "3", "--weights"],
    }.items():
        assert main(["--static", "--num_nodes", "50", *options, str(tmp_path / name)]) == 0
        with h5py.File(tmp_path / name) as file:
            found[name] = {column: dataset[...] for column, dataset in file["edges/node.to.node"].items()}
    assert [sorted(columns) for columns in found.values()] == [
        ["dst", "src"],
        ["dst", "feat", "src"],
        ["dst", "feat", "src", "weight"],
    ]
    for columns in found.values():
        for column in columns.keys() & {"feat", "weight"}:
            np.testing.assert_array_equal(columns[column][::2], columns[column][1::2])
            assert len(np.unique(columns[column][::2], axis=0)) == 500
        for column in columns.keys() & found["feat"].keys():
            np.testing.assert_array_equal(columns[column], found["feat"][column])
    assert 0.5 <= found["both"]["weight"].min() < 0.6 < 1.9 < found["both"]["weight"].max() <= 2
    with pytest.raises(SystemExit):
        main(["--rmat", "--weights", str(tmp_path / "r.h5")])


@pytest.mark.parametrize(("num_nodes", "num_edges", "num_classes"), [(2, 0, 1), (2, 10, 5), (3, 4, 3)])
def test_tiny_static_graphs(tmp_path, num_nodes, num_edges, num_classes):
    nodes, src, dst = make_static(tmp_path / "g.h5", num_nodes, num_edges, width=0, num_classes=num_classes)
    assert sorted(nodes) == ["id", "label", "split"]
    assert (src != dst).all()
    assert len(src) == num_edges


def test_static_command_line(tmp_path, capsys):
    assert main(["--static", "--num_nodes", "50", "--seed", "4", str(tmp_path / "g.h5")]) == 0
    assert "50 nodes, 1000 edges, 100 features, 47 classes" in capsys.readouterr().out
    with pytest.raises(ValueError, match="edges must be even"):
        main(["--static", "--num_nodes", "50", "--num_edges", "7", str(tmp_path / "odd.h5")])
    assert not (tmp_path / "odd.h5").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--num_nodes 500", "--num_nodes is for --static, --rmat, --snapshots; this graph is --events"),
        ("--snapshots 9 --num_edges 60", "--num_edges is for --static, --rmat; this graph is --snapshots"),
        ("--snapshots 9 --features 0", "--features is for --events, --static, --rmat, --igbh"),
        ("--static --events 100", "--events is for --events; this graph is --static"),
        ("--static --labels", "--labels is for --events"),
        ("--rmat --edge_features 3", "--edge_features is for --static"),
        ("--classes 4", "--classes is for --static, --rmat, --igbh"),
        ("--igbh 100 --num_nodes 5", "--num_nodes is for --static, --rmat, --snapshots"),
        ("--rmat --igbh 100", "--rmat and --igbh are different graphs: leave one out"),
        ("--snapshots 0 --static", "--static and --snapshots are different graphs"),
    ],
)  # fmt: skip
def test_options_of_another_graph_are_refused(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit):
        main([*options.split(), str(tmp_path / "graph.h5")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "graph.h5").exists()


def test_snapshots_command_line(tmp_path, capsys):
    assert main(["--snapshots", "20", "--num_nodes", "30", str(tmp_path / "g.h5")]) == 0
    assert "30 nodes, 20 snapshots" in capsys.readouterr().out
    with h5py.File(tmp_path / "g.h5") as file:
        assert file["nodes/node/target"].shape == (30, 20)
    with pytest.raises(SystemExit):
        main(["--snapshots", "20", "--static", str(tmp_path / "g.h5")])
