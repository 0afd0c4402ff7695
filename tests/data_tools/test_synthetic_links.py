"""The built-in graph of links."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from data_tools.synthetic.links import synthesize_links

pytestmark = pytest.mark.serial


def columns(path) -> dict[str, dict[str, np.ndarray]]:
    with h5py.File(path) as file:
        return {name: {key: column[()] for key, column in group.items()} for name, group in file["edges"].items()}


def test_links_differ_are_split_and_lead_back(tmp_path):
    synthesize_links(tmp_path / "graph.h5", 60, 40, 1500, seed=3)
    found = columns(tmp_path / "graph.h5")
    likes, back = found["user.likes.item"], found["item.liked_by.user"]
    assert len(np.unique(likes["src"] * 40 + likes["dst"])) == len(likes["src"]) > 500
    assert np.array_equal(likes["src"], back["dst"])
    assert np.array_equal(likes["dst"], back["src"])
    assert back.keys() == {"src", "dst"}
    assert np.allclose(np.bincount(likes["split"]) / len(likes["split"]), (0.8, 0.1, 0.1), atol=0.05)
    assert set(likes["rel"]) == {0, 1, 2}


def test_same_for_the_same_arguments(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize_links(tmp_path / f"{name}.h5", 30, 20, 200, seed)
    a, b, c = (columns(tmp_path / f"{name}.h5")["user.likes.item"]["src"] for name in "abc")
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_sizes_that_cannot_be(tmp_path):
    with pytest.raises(ValueError, match="users=0"):
        synthesize_links(tmp_path / "graph.h5", 0, 20, 200, 1)
