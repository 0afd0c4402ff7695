"""Splits as words, masks that overlap, zones of times, ids that are missing: right numbers, or one clear error."""

from __future__ import annotations

import datetime
import re
import time
import zoneinfo

import h5py
import networkx
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import yaml
from convert_sources import refused

from data_tools import split as splitter
from data_tools.convert import main
from data_tools.objects import convert_object, from_edges
from data_tools.source.formats.dgl_partitions import masks_to_split
from hpcgnn.graph.files import FileFormatError, refuse_split_words
from hpcgnn.task.labels import node_labels

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


# In Berlin: before and after the clock goes back, and a summer's day.
SECONDS = [1719828000, 1729989000, 1729992600]
LABELS = [1, 7, None, 5]
BERLIN = [datetime.datetime.fromtimestamp(moment, zoneinfo.ZoneInfo("Europe/Berlin")) for moment in SECONDS]
STAMPS = pd.Series(pd.to_datetime(SECONDS, unit="s", utc=True).tz_convert("Europe/Berlin"))
ARROW = pa.array(SECONDS, pa.timestamp("s", "Europe/Berlin"))
PAIRS = {"src": [0, 1, 2], "dst": [1, 2, 0]}
RELATION = "edges/node.to.node"


def dated(moments) -> dict:
    """Columns of edges that have dates as their times and as another column."""
    return PAIRS | {"time": moments, "seen": moments}


@pytest.mark.parametrize(("edges", "zone"), [
    (pd.DataFrame(dated(STAMPS)), "Europe/Berlin"), (pa.table(dated(ARROW)), "Europe/Berlin"),
    (dated(ARROW), "Europe/Berlin"), (dated(BERLIN), "Europe/Berlin"),
    (pd.DataFrame(dated(STAMPS.dt.tz_convert("UTC"))), "UTC"),
    (dated([moment.astimezone(datetime.timezone(datetime.timedelta(hours=-5))) for moment in BERLIN]), "Etc/GMT+5"),
    (dated([moment.astimezone(datetime.timezone(datetime.timedelta(minutes=330))) for moment in BERLIN]), "UTC"),
], ids=["pandas", "arrow", "mapping of arrow", "python", "utc", "offset", "offset without a name"])  # fmt: skip
def test_dates_of_objects_keep_their_zone(tmp_path, edges, zone):
    """As times and as columns of edges and nodes, also in the hour that occurs twice."""
    nodes = pd.DataFrame({"id": [0, 1, 2], "born": STAMPS})
    assert from_edges(edges, tmp_path / "g.h5", nodes).notes == []
    with h5py.File(tmp_path / "g.h5") as file:
        assert file[RELATION].attrs["zone"] == file[f"{RELATION}/seen"].attrs["zone"] == zone
        assert file["nodes/node/born"].attrs["zone"] == "Europe/Berlin"
        for place in (f"{RELATION}/time", f"{RELATION}/seen", "nodes/node/born"):
            assert file[place][:].tolist() == SECONDS


def test_dates_of_networkx_keep_their_zone(tmp_path):
    graph = networkx.DiGraph()
    graph.add_edges_from((row, row + 1, {"time": moment}) for row, moment in enumerate(BERLIN))
    convert_object(graph, tmp_path / "g.h5")
    with h5py.File(tmp_path / "g.h5") as file:
        assert file[RELATION].attrs["zone"] == "Europe/Berlin"
        assert file[f"{RELATION}/time"][:].tolist() == SECONDS


def write_spec(folder, edges: str, **more) -> list[str]:
    """A spec of tables of edges and nodes with dates; its command."""
    seen, born = ({"column": name, "zone": "UTC"} for name in ("seen", "born"))
    relation = {"relation": "node.to.node", "file": "e", "src": "src", "dst": "dst", "time": "time"}
    spec = {
        "files": {"e": {"chunks": [edges]}, "n": {"path": "nodes.feather"}},
        "nodes": [{"type": "node", "file": "n", "id": "id", "columns": {"born": born}}],
        "edges": [relation | {"columns": {"seen": seen}} | more],
    }
    (folder / "s.yaml").write_text(yaml.safe_dump(spec))
    pa.feather.write_feather(pa.table({"id": [0, 1, 2], "born": ARROW}), folder / "nodes.feather")
    return ["--spec", str(folder / "s.yaml")]


def test_dates_of_files_keep_their_zone(tmp_path, capsys):
    """Of Parquet and Feather, as times and as columns; of several zones answers are in UTC, which a note says."""
    pa.parquet.write_table(pa.table(dated(ARROW)), tmp_path / "a.parquet")
    assert main([*write_spec(tmp_path, "a.parquet"), str(tmp_path / "g.h5")]) == 0
    assert "time zones" not in capsys.readouterr().out
    tokyo = pa.array([moment + 2 * 10**7 for moment in SECONDS], pa.timestamp("s", "Asia/Tokyo"))
    pa.parquet.write_table(pa.table(dated(tokyo)), tmp_path / "b.parquet")
    assert main([*write_spec(tmp_path, "*.parquet"), str(tmp_path / "h.h5")]) == 0
    told = capsys.readouterr().out
    for title in ("node.to.node: time", "seen"):
        assert f"{title}: dates have the time zones Asia/Tokyo, Europe/Berlin; answers have them in UTC" in told
    for name, zone in (("g", "Europe/Berlin"), ("h", "UTC")):
        with h5py.File(tmp_path / f"{name}.h5") as file:
            assert file[RELATION].attrs["zone"] == file[f"{RELATION}/seen"].attrs["zone"] == zone
            assert file["nodes/node/born"].attrs["zone"] == "Europe/Berlin"
            assert file[f"{RELATION}/time"][:3].tolist() == file["nodes/node/born"][:].tolist() == SECONDS


def test_zones_that_disagree(tmp_path, capsys):
    """A zone for dates that have another one is refused; dates: unix chooses the zone of answers."""
    two = "its dates have the time zone Europe/Berlin; leave out zone Asia/Tokyo, which is for dates without one, or"
    with pytest.raises(ValueError, match=rf"edges of node.to.node: column time: {two}"):
        from_edges(dated(BERLIN), tmp_path / "a.h5", zone="Asia/Tokyo")
    with pytest.raises(ValueError, match=r"column time: some dates have a time zone and others have none"):
        from_edges(dated([BERLIN[0].replace(tzinfo=None), *BERLIN[1:]]), tmp_path / "a.h5")
    pa.parquet.write_table(pa.table(dated(ARROW)), tmp_path / "a.parquet")
    command = write_spec(tmp_path, "a.parquet", zone="Asia/Tokyo")
    assert f"a.parquet: column 'time': {two}" in refused(tmp_path, capsys, *command)
    command = write_spec(tmp_path, "a.parquet", zone="Asia/Tokyo", dates="unix")
    assert main([*command, str(tmp_path / "g.h5")]) == 0
    from_edges(pd.DataFrame(dated(STAMPS)), tmp_path / "h.h5", zone="Asia/Tokyo", dates="unix")
    from_edges(PAIRS | {"time": SECONDS}, tmp_path / "i.h5", zone="Asia/Tokyo", dates="unix")
    for name in "ghi":
        with h5py.File(tmp_path / f"{name}.h5") as file:
            assert file[RELATION].attrs["zone"] == "Asia/Tokyo"
            assert file[f"{RELATION}/time"][:].tolist() == SECONDS
    summary = from_edges(dated([*BERLIN[:2], BERLIN[2].astimezone(zoneinfo.ZoneInfo("Asia/Tokyo"))]), tmp_path / "j.h5")
    both = "dates have the time zones Asia/Tokyo, Europe/Berlin; answers have them in UTC"
    assert summary.notes == [f"edges of node.to.node: column {name}: {both}" for name in ("time", "seen")]


@pytest.mark.parametrize("source", ["csv", "parquet", "frame", "integers of pandas", "list"])
def test_integer_labels_with_gaps(tmp_path, source):
    """Class numbers that skip some, of which one is missing, need no key: NaN, which tasks on classes leave out."""
    values = {"id": [0, 1, 2, 3], "label": LABELS}
    if source in ("csv", "parquet"):
        frame = pd.DataFrame(values).astype({"label": "Int64"})
        frame.to_csv(tmp_path / "n.csv", index=False)
        frame.to_parquet(tmp_path / "n.parquet")
        files = {"n": {"path": f"n.{source}"}, "e": {"path": "e.csv"}}
        node = {"type": "node", "file": "n", "id": "id", "columns": {"label": "label"}}
        (tmp_path / "e.csv").write_text("src,dst\n0,1\n1,2\n")
        edge = {"relation": "node.to.node", "file": "e", "src": "src", "dst": "dst"}
        (tmp_path / "s.yaml").write_text(yaml.safe_dump({"files": files, "nodes": [node], "edges": [edge]}))
        assert main(["--spec", str(tmp_path / "s.yaml"), str(tmp_path / "g.h5")]) == 0
    else:
        frame = pd.DataFrame(values)
        nodes = {"frame": frame, "integers of pandas": frame.astype({"label": "Int64"}), "list": values}[source]
        notes = from_edges({"src": [0, 1], "dst": [1, 2]}, tmp_path / "g.h5", nodes).notes
        assert notes == ["node: 1 of 4 without a label"]
    np.testing.assert_array_equal(column(tmp_path / "g.h5", "nodes/node/label"), [1, 7, np.nan, 5])
    with h5py.File(tmp_path / "g.h5", "r+") as file:
        columns = {"label": file["nodes/node/label"][()], "split": np.zeros(4, np.int8)}
    assert node_labels(columns, "node", 0)[0].tolist() == [1, 7, -1, 5]
    command = ["--nodes", "node", "--fractions", "1,0,0", "--stratify"]
    assert splitter.main([str(tmp_path / "g.h5"), str(tmp_path / "s.h5"), *command]) == 0
    assert column(tmp_path / "s.h5", "nodes/node/split").tolist() == [0, 0, -1, 0]


def test_integer_labels_without_gaps_stay_integers(tmp_path, capsys):
    """Of nodes that a table has and others; a negative one is counted, as it is missing where labels are classes."""
    (tmp_path / "n.csv").write_text(f"id,label\n0,{2**53 + 1}\n1,-1\n")
    (tmp_path / "e.csv").write_text("src,dst\n0,1\n1,2\n")
    node = {"type": "node", "file": "n", "id": "id", "columns": {"label": "label"}}
    for others, name, labels in (("drop", "a", [2**53 + 1, -1]), ("keep", "b", [1, -1, np.nan])):
        edge = {"relation": "node.to.node", "file": "e", "src": "src", "dst": "dst", "dangling": others}
        files = {name: {"path": f"{name}.csv"} for name in "ne"}
        (tmp_path / "s.yaml").write_text(yaml.safe_dump({"files": files, "nodes": [node], "edges": [edge]}))
        assert main(["--spec", str(tmp_path / "s.yaml"), str(tmp_path / f"{name}.h5")]) == 0
        found = column(tmp_path / f"{name}.h5", "nodes/node/label")
        np.testing.assert_array_equal(found, np.array(labels))
        assert found.dtype == np.array(labels).dtype
        (tmp_path / "n.csv").write_text("id,label\n0,1\n1,-1\n")
    told = capsys.readouterr().out
    assert "node: 1 of 2 with a negative label, which is missing as a class" in told
    (tmp_path / "n.csv").write_text("id,label\n0,\n1,1.5\n2,0\n")
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "s.yaml"))
    assert "n.csv: column 'label', row 2: 1.5 is no class; set dtype: float64 for labels that are numbers" in message
