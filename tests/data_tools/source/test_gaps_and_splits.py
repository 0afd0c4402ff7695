"""Splits as words, masks that overlap, zones of times, ids that are missing: right numbers, or one clear error."""

from __future__ import annotations

import datetime
import re
import time

import h5py
import numpy as np
import pytest
import yaml
from convert_sources import refused

from data_tools.convert import main
from data_tools.objects import convert_object, from_edges
from data_tools.source.formats.dgl_partitions import masks_to_split
from hpcgnn.graph.files import FileFormatError, refuse_split_words

pytestmark = pytest.mark.serial
WORDS = ["train", "val", "test", "Valid", "validation", ""]
NUMBERS = [0, 1, 2, 1, 1, -1]
EDGES = {"src": [0, 1, 2, 3, 4, 5], "dst": [1, 2, 3, 4, 5, 0]}


def column(path, name: str) -> np.ndarray:
    with h5py.File(path) as file:
        return file[name][()]


def test_words_of_splits_are_their_numbers(tmp_path):
    """In Python and in specs, of nodes and of edges, as words or as classes; nothing numbers them by the alphabet."""
    from_edges({**EDGES, "split": WORDS}, tmp_path / "a.h5", {"split": [*WORDS[:5], None]})
    rows = [f"{src},{dst},{word}" for src, dst, word in zip(*EDGES.values(), WORDS, strict=True)]
    (tmp_path / "e.csv").write_text("\n".join(["src,dst,split", *rows]))
    (tmp_path / "n.csv").write_text("\n".join(["id,split", *(f"{i},{word}" for i, word in enumerate(WORDS))]))
    files = {name: {"path": f"{name}.csv"} for name in "en"}
    for name, split in (("b", "split"), ("c", {"column": "split", "classes": True})):
        node = {"type": "node", "file": "n", "id": "id", "columns": {"split": split}}
        edge = {"relation": "node.to.node", "file": "e", "src": "src", "dst": "dst", "columns": {"split": split}}
        (tmp_path / "s.yaml").write_text(yaml.safe_dump({"files": files, "nodes": [node], "edges": [edge]}))
        assert main(["--spec", str(tmp_path / "s.yaml"), str(tmp_path / f"{name}.h5")]) == 0
    for name in "abc":
        for place in ("nodes/node", "edges/node.to.node"):
            assert column(tmp_path / f"{name}.h5", f"{place}/split").tolist() == NUMBERS
            with h5py.File(tmp_path / f"{name}.h5") as file:
                assert "names" not in file[place]["split"].attrs
                refuse_split_words(file[place])


def test_other_words_of_splits_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"column split, row 2: split 'dev' is not one of train, val, valid"):
        from_edges({"src": [0, 1], "dst": [1, 0]}, tmp_path / "a.h5", {"split": ["train", "dev"]})
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["split"] = [1, 2, 0]
        file["split"].attrs["names"] = '["test", "train", "val"]'
        with pytest.raises(FileFormatError, match="stand for the words test, train, val in this order"):
            refuse_split_words(file)


def test_masks_that_overlap_are_refused(tmp_path, capsys):
    """Of objects, of arrays of row numbers, and of parts of DGL."""
    data = pytest.importorskip("torch_geometric.data")
    torch = pytest.importorskip("torch")
    train, test = torch.tensor([True, True, False, True]), torch.tensor([False, True, True, True])
    graph = data.Data(edge_index=torch.tensor([[0], [1]]), train_mask=train, test_mask=test, num_nodes=4)
    message = r"2 in test and in another set, the first one in row 2 \(also in train\)"
    with pytest.raises(ValueError, match=message):
        convert_object(graph, tmp_path / "g.h5")
    with pytest.raises(ValueError, match=message):
        masks_to_split({"n/train_mask": train.numpy(), "n/test_mask": test.numpy()})
    np.savez(tmp_path / "a.npz", src=[0], dst=[1], feat=np.ones((4, 1)), first=[0, 1, 3], last=[1, 2, 3])
    spec = {
        "files": {"a": {"path": "a.npz"}},
        "nodes": [
            {"type": "node", "ids": "row", "file": "a",
             "columns": {"feat": "feat", "split": {"file": "a", "sets": {"train": "first", "test": "last"}}}}
        ],
        "edges": [{"relation": "node.to.node", "file": "a", "src": "src", "dst": "dst"}],
    }  # fmt: skip
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(spec))
    message = r"2 in train and in another set, the first one in row 2 \(also in test\)"  # YAML sorts the sets
    assert re.search(message, refused(tmp_path, capsys, "--spec", str(tmp_path / "s.yaml")))


def test_times_keep_their_zone_and_their_parts(tmp_path, monkeypatch):
    """Objects with and without a zone, and datetime64; zones of the computer play no part."""
    pandas = pytest.importorskip("pandas")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    eastern = datetime.timezone(datetime.timedelta(hours=-5))
    day = datetime.datetime(2024, 1, 1)
    columns = {
        "naive": ([day, day], 1704067200), "python": ([day.replace(tzinfo=eastern)] * 2, 1704067200 + 5 * 3600),
        "date": ([day.date()] * 2, 1704067200), "numpy": (np.array(["2024-01-01"] * 2, "M8[h]"), 1704067200),
        "pandas": (pandas.Series(pandas.to_datetime(["2024-01-01"] * 2)).dt.tz_localize("US/Eastern"), 1704085200),
    }  # fmt: skip
    for name, (when, expected) in columns.items():
        from_edges({"src": [0, 1], "dst": [1, 0], "time": when}, tmp_path / f"{name}.h5")
        assert column(tmp_path / f"{name}.h5", "edges/node.to.node/time").tolist() == [expected] * 2
    monkeypatch.undo()
    time.tzset()
    late = pandas.Series(pandas.to_datetime(["2024-01-01 00:00:00.25"] * 2))
    for when in (late, late.dt.tz_localize("UTC"), list(late.dt.to_pydatetime())):
        with pytest.raises(ValueError, match=r"row 1: the date 2024-01-01T00:00:00.25.* falls between two times"):
            from_edges({"src": [0, 1], "dst": [1, 0], "time": when}, tmp_path / "late.h5")
        with pytest.raises(ValueError, match="column born: dates have parts of seconds"):
            from_edges({"src": [0, 1], "dst": [1, 0], "born": when}, tmp_path / "late.h5")
