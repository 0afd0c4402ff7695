"""Rows without an id are refused or left out and counted; weights of duplicate edges are added up."""

import contextlib

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from convert_sources import refused

from data_tools.convert import convert, main
from data_tools.source.spec_file import load_spec

pytestmark = pytest.mark.serial

# 7 rows, 3 of them without an id; zero is an id.
EDGES = "src,dst,weight\n0,2,1.5\n,2,1\n2,0,2\n2,,3\n nan ,1,4\n1,0,0.5\n0,2,0.25\n"
PEOPLE = "id,label\n2,7\n,9\n0,5\n1,6\n,8\n"


def write(folder, ids="int", people=True, **edge):
    (folder / "edges.csv").write_text(EDGES if ids == "int" else EDGES.replace(" nan ", "  "))
    (folder / "people.csv").write_text(PEOPLE)
    node = {"type": "node", "ids": ids}
    if people:
        node |= {"file": "people", "id": "id", "columns": {"label": "label"}, "missing_ids": "drop"}
    edge = {"relation": "node.to.node", "file": "edges", "src": "src", "dst": "dst",
            "columns": {"weight": "weight"}, **edge}  # fmt: skip
    spec = {"files": {"edges": {"path": "edges.csv"}, "people": {"path": "people.csv"}}}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec | {"nodes": [node], "edges": [edge]}))
    return folder / "spec.yaml"


@pytest.mark.parametrize("num_buckets", [0, 3])
@pytest.mark.parametrize("ids", ["int", "string"])
def test_rows_without_an_id_are_left_out_and_counted(tmp_path, ids, num_buckets):
    spec = load_spec(write(tmp_path, ids, missing_ids="drop"), {})
    summary = convert(spec, tmp_path / "g.h5", num_buckets)
    assert summary.notes == ["node: 2 rows without an id dropped", "node.to.node: 3 rows without an id dropped"]
    with h5py.File(tmp_path / "g.h5") as file:
        assert file["nodes/node/id"][:].astype(int).tolist() == [0, 1, 2]
        assert file["nodes/node/label"][:].tolist() == [5, 6, 7]
        edges = file["edges/node.to.node"]
        found = [edges[name][:].tolist() for name in ("src", "dst", "weight")]
        assert found == [[0, 2, 1, 0], [2, 0, 0, 2], [1.5, 2, 0.5, 0.25]]


@pytest.mark.parametrize("num_buckets", [0, 3])
def test_a_second_row_of_a_node_is_still_refused(tmp_path, num_buckets):
    path = write(tmp_path, missing_ids="drop")
    (tmp_path / "people.csv").write_text(PEOPLE + "2,4\n")
    with pytest.raises(ValueError, match=r"people.csv: column 'id', row 6: the id occurs a second time"):
        convert(load_spec(path, {}), tmp_path / "g.h5", num_buckets)


@pytest.mark.parametrize("num_buckets", [0, 3])
def test_an_unknown_id_beside_missing_ids_is_named_by_its_row(tmp_path, num_buckets):
    path = write(tmp_path, missing_ids="drop")
    (tmp_path / "edges.csv").write_text("src,dst,weight\n0,,1\n,1,1\n0,5,1\n")
    with pytest.raises(ValueError, match=r"edges.csv: column 'dst', row 3: no node 5 of type node"):
        convert(load_spec(path, {}), tmp_path / "g.h5", num_buckets)


def test_dangling_edges_and_missing_ids_are_counted_apart(tmp_path):
    path = write(tmp_path, missing_ids="drop", dangling="drop")
    (tmp_path / "edges.csv").write_text("src,dst,weight\n0,,1\n,5,1\n0,5,1\n0,1,1\n")
    summary = convert(load_spec(path, {}), tmp_path / "g.h5")
    told = ["node.to.node: 2 rows without an id dropped", "node.to.node: 1 dangling edge dropped"]
    assert summary.notes[1:] == told
    assert summary.edges == {"node.to.node": 1}


def test_a_batch_without_any_id(tmp_path, capsys):
    table = pd.DataFrame({"src": pd.array([None, None, 4], "Int64"), "dst": [np.nan, 7, 7], "time": [1, 2, 3]})
    table.to_parquet(tmp_path / "e.parquet", row_group_size=1)
    options = ["--preset", "csv-temporal", "--set", f"events={tmp_path / 'e.parquet'}"]
    message = refused(tmp_path, capsys, *options)
    remedy = "missing_ids: drop in a spec, --set missing_ids=drop with csv presets and relbench"
    assert (
        f"e.parquet: column 'src', row 1: the id is missing; mend the row, or leave out rows without an id: {remedy}"
        in message
    )
    assert main([*options, "--set", "missing_ids=drop", str(tmp_path / "g.h5")]) == 0
    assert "2 rows without an id dropped" in capsys.readouterr().out
    with h5py.File(tmp_path / "g.h5") as file:
        assert file["nodes/node/id"][:].tolist() == [4, 7]
        assert file["edges/node.to.node/time"][:].tolist() == [3]
    frame = pd.read_parquet(tmp_path / "e.parquet").astype({"src": "string", "dst": "string"})
    frame.to_feather(tmp_path / "e.feather")
    options = ["--preset", "csv-temporal", "--ids", "string", "--set", f"events={tmp_path / 'e.feather'}"]
    assert "column 'src', row 1: the id is missing" in refused(tmp_path, capsys, *options)


def test_words_that_look_missing_are_ids_of_text(tmp_path):
    (tmp_path / "e.csv").write_text("src,dst\nnan,NULL\nNA,nan\n")
    options = ["--preset", "csv-static", "--ids", "string", "--set", f"edges={tmp_path / 'e.csv'}"]
    assert main([*options, "--set", "missing_ids=drop", str(tmp_path / "g.h5")]) == 0
    with h5py.File(tmp_path / "g.h5") as file:
        assert file["nodes/node/id"][:].tolist() == [b"NA", b"NULL", b"nan"]


@pytest.mark.parametrize("num_buckets", [0, 3])
@pytest.mark.parametrize(
    ("undirected", "expected"),
    [
        # rows 0-2 1.5 + 0.25, 2-0 2, 1-0 0.5
        (False, {(0, 2): 1.75, (2, 0): 2.0, (1, 0): 0.5}),
        (True, {(0, 2): 3.75, (2, 0): 3.75, (1, 0): 0.5, (0, 1): 0.5}),
    ],
)
def test_weights_of_duplicates_are_added_up(tmp_path, undirected, expected, num_buckets):
    path = write(tmp_path, people=False, missing_ids="drop", duplicates="sum", undirected=undirected, self_loops="drop")
    summary = convert(load_spec(path, {}), tmp_path / "g.h5", num_buckets)
    several = ("1 duplicate edge", "2 duplicate edges")[undirected]
    assert f"node.to.node: {several} added to the weights of the first ones" in summary.notes
    with h5py.File(tmp_path / "g.h5") as file:
        edges = [file[f"edges/node.to.node/{name}"][:].tolist() for name in ("src", "dst", "weight")]
    assert dict(zip(zip(*edges[:2], strict=True), edges[2], strict=True)) == expected
    assert len(edges[0]) == len(expected)


@pytest.mark.parametrize("num_buckets", [0, 5])
def test_sums_of_many_random_edges(tmp_path, num_buckets):
    """The same as pandas' sums, facts of different kinds apart, events of different times apart."""
    draw = np.random.default_rng(4)
    table = pd.DataFrame(draw.integers(0, 4, (400, 4)), columns=["src", "dst", "kind", "time"])
    table["weight"] = draw.integers(1, 9, 400).astype(float)
    table.sort_values("time", kind="stable").to_csv(tmp_path / "edges.csv", index=False)
    columns = {"rel": {"column": "kind", "classes": True}, "weight": {"column": "weight", "dtype": "float64"}}
    path = write(tmp_path, people=False, duplicates="sum", columns=columns, time="time")
    table.sort_values("time", kind="stable").to_csv(tmp_path / "edges.csv", index=False)
    convert(load_spec(path, {}), tmp_path / "g.h5", num_buckets)
    with h5py.File(tmp_path / "g.h5") as file:
        edges = {name: file[f"edges/node.to.node/{name}"][:] for name in ("src", "dst", "rel", "time", "weight")}
    found = pd.DataFrame(edges).set_index(["src", "dst", "rel", "time"])["weight"].sort_index()
    expected = table.groupby(["src", "dst", "kind", "time"])["weight"].sum()
    assert found.to_dict() == expected.to_dict()


@pytest.mark.parametrize("num_buckets", [0, 3])
@pytest.mark.parametrize(
    ("undirected", "column", "values", "message"),
    [
        (False, "split", [0, 0, 1, 0, 0], "edges.csv: row 3: repeats row 1, but its split is another"),
        (True, "split", [0, 2, 0, 0, 0], "edges.csv: row 2: repeats row 1, but its split is another"),
        (False, "split", [0, 2, 0, 1, 1], ""),
        (False, "label", [4.5, 0, 5, 0, 0], "edges.csv: row 3: repeats row 1, but its label is another"),
        (False, "label", ["nan", 0, "nan", 7, 7], ""),
    ],
)
def test_sums_of_edges_of_two_sets(tmp_path, undirected, column, values, message, num_buckets):
    """A held-out copy would add its weight to an edge of training."""
    numbers = {"split": {"column": "kind"}, "label": {"column": "kind", "dtype": "float32", "fill": float("nan")}}
    columns = {"weight": "weight", column: numbers[column]}
    path = write(tmp_path, people=False, duplicates="sum", columns=columns, undirected=undirected)
    ends = ["0,2", "2,0", "0,2", "1,0", "1,0"]
    rows = [f"{pair},1,{value}" for pair, value in zip(ends, values, strict=True)]
    (tmp_path / "edges.csv").write_text("\n".join(["src,dst,weight,kind", *rows]))
    with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
        convert(load_spec(path, {}), tmp_path / "g.h5", num_buckets)
    if not message:
        with h5py.File(tmp_path / "g.h5") as file:
            assert file["edges/node.to.node/weight"][:].tolist() == [2, 1, 2]


def test_sums_need_a_weight(tmp_path, capsys):
    path = write(tmp_path, duplicates="sum", columns={})
    assert "duplicates: sum: adds up the column weight" in refused(tmp_path, capsys, "--spec", str(path))
