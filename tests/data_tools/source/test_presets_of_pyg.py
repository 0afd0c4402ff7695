"""Presets of files that PyTorch Geometric reads, too, compared with the graph that its data set makes of them."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from convert_sources import assignments

from data_tools.convert import main

pytestmark = pytest.mark.serial


def converted(folder, preset: str, **sources) -> h5py.File:
    output = folder / f"{preset}.h5"
    assert main(["--preset", preset, *assignments(sources), str(output)]) == 0
    return h5py.File(output)


def write_behavior(path) -> None:
    """400 rows in order of users, some equal, with times of the nine days that PyTorch Geometric keeps."""
    rng = np.random.default_rng(0)
    item = rng.integers(0, 30, 400)
    rows = [
        (7 * user, 3 * thing, 100 + thing % 4, ("pv", "cart", "buy", "fav")[rng.integers(0, 4)], 1511539200 + day)
        for user, thing, day in zip(np.sort(rng.integers(0, 20, 400)), item, rng.integers(0, 9, 400), strict=True)
    ]
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{','.join(map(str, row))}\n" for row in [*rows, *rows[:5]]))


def test_taobao(tmp_path):
    datasets = pytest.importorskip("torch_geometric.datasets")
    write_behavior(path := tmp_path / "raw" / "UserBehavior.csv")
    data = datasets.Taobao(str(tmp_path))[0]
    events = data["user", "item"]
    with converted(tmp_path, "taobao-events", behavior=path) as file:
        group = file["edges/user.to.item"]
        order = np.argsort(events.time.numpy(), kind="stable")
        expected = [*events.edge_index.numpy(), events.time.numpy(), events.behavior.numpy()]
        for name, values in zip(("src", "dst", "time", "rel"), expected, strict=True):
            assert np.array_equal(group[name][:], values[order])
    with converted(tmp_path, "taobao", behavior=path) as file:
        for name in ("user", "item", "category"):
            assert file[f"nodes/{name}"].attrs["num_nodes"] == data[name].num_nodes
        group = file["edges/user.to.item"]
        rows = np.stack([group[name][:] for name in ("src", "dst", "timestamp", "behavior")], axis=1)
        expected = np.stack([*events.edge_index, events.time, events.behavior], axis=1)
        assert len(rows) == 405
        assert np.array_equal(np.unique(rows, axis=0), np.unique(expected, axis=0))
        pairs = [(data["item", "category"].edge_index.numpy(), "item.to.category"),
                 (data["item", "category"].edge_index.numpy()[::-1], "category.rev_to.item")]  # fmt: skip
        for ends, name in pairs:
            assert np.array_equal([file[f"edges/{name}/{end}"][:] for end in ("src", "dst")], ends)


def test_reddit(tmp_path):
    datasets, sparse = pytest.importorskip("torch_geometric.datasets"), pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(1)
    dense = np.triu(rng.random((12, 12)) < 0.3, 1)
    (tmp_path / "raw").mkdir()
    sources = {name: tmp_path / "raw" / f"reddit_{name}.npz" for name in ("data", "graph")}
    sparse.save_npz(sources["graph"], sparse.coo_matrix((dense | dense.T).astype(np.float32)))
    kinds = np.array([1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 1])
    np.savez(
        sources["data"],
        feature=rng.random((12, 4)),
        label=rng.integers(0, 3, 12),
        node_types=kinds,
        node_ids=np.arange(12),
    )
    data = datasets.Reddit(str(tmp_path))[0]
    with converted(tmp_path, "reddit", **sources) as file:
        ends = np.stack([file[f"edges/post.to.post/{end}"][:] for end in ("src", "dst")])
        assert np.array_equal(ends[:, np.lexsort(ends[::-1])], data.edge_index)
        nodes = file["nodes/post"]
        assert np.array_equal(nodes["feat"][:], data.x)
        assert np.array_equal(nodes["label"][:], data.y)
        masks = [data.train_mask, data.val_mask, data.test_mask]
        assert nodes["split"][:].tolist() == np.select([mask.numpy() for mask in masks], [0, 1, 2], -1).tolist()
