"""Synthetic event graphs: reproducible, in order, and with the structure they promise."""

import subprocess
import sys

import h5py
import numpy as np
import pytest

from data_tools import synthesize
from data_tools.partition_source import open_source, validate
from data_tools.synthesize import main, synthesize_events


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
    synthesize_events(tmp_path / "labelled.h5", 5000, 100, 60, seed=3, labels=True)
    plain, labelled = load(tmp_path / "plain.h5")[2], load(tmp_path / "labelled.h5")[2]
    label = labelled.pop("label")
    assert plain.keys() == labelled.keys()
    assert all(np.array_equal(plain[name], labelled[name]) for name in plain)
    assert 0.45 < label.mean() < 0.65
    count = np.bincount(labelled["src"], minlength=100)
    busy = np.unique(labelled["src"][label == 1])
    assert not np.isin(labelled["src"][label == 0], busy).any()
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
    world = synthesize.make_world(num_users, 50, seed, 0)
    found, start = [], 0
    while start < n:
        stop = start + int(rng.integers(1, 120))
        found += synthesize.resolve_repeats(world, users[start:stop], items[start:stop], lag[start:stop]).tolist()
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
