"""Snapshot graphs of ordinary tables, as pandas and other programs write them; expected values by hand."""

import json

import h5py
import numpy as np
import pandas as pd
import pytest
from test_snapshot_convert import convert, refused, snapshots_of

from data_tools import convert as conversion

pytestmark = pytest.mark.serial

NAN = np.nan
DAYS = pd.to_datetime(["2024-01-01", "2024-01-08", "2024-01-15"])
ROADS = "src,dst,weight\nb,a,0.5\na,c,2\n"
LONG = (
    "town,week,cases,rain,alarm\n"
    "a,2024-01-08,4,0.5,red\n"
    "a,2024-01-01,2,,green\n"
    "b,2024-01-01,,1.5,red\n"
    "b,2024-01-08,8,2.5,\n"
    "b,2024-01-15,6,3.5,green\n"
    "c,2024-01-15,1,4.5,red\n"
)
NAMES = ("--node", "town", "--time", "week")
TOWNS = "id,height,kind\nc,30,hill\na,10,coast\nb,20,hill\n"


def write(folder, **texts):
    """Write files by name, and give their paths."""
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)
    return [folder / f"{name}.csv" for name in texts]


def columns_of(path):
    """Columns of nodes, and their attributes."""
    with h5py.File(path) as file:
        nodes = file["nodes/node"]
        return {name: nodes[name][:] for name in nodes}, {name: dict(nodes[name].attrs) for name in nodes}


def test_a_long_table(tmp_path, capsys):
    """Numbers, features and classes of every snapshot, rows in any order, some missing; roads in all snapshots."""
    roads, series = write(tmp_path, roads=ROADS, series=LONG)
    said = convert(
        capsys, "tables", roads, tmp_path / "g.h5", "--series", series, *NAMES, "--target", "cases",
        "--feat", "rain,cases", "--label", "alarm", "--fill", "rain=forward,0", "--fill", "-1",
    )  # fmt: skip
    assert snapshots_of(tmp_path / "g.h5", "weight") == sorted(
        (number, *road) for number in range(3) for road in [(b"b", b"a", 0.5), (b"a", b"c", 2.0)]
    )
    columns, attributes = columns_of(tmp_path / "g.h5")
    assert columns["id"].tolist() == [b"a", b"b", b"c"]
    assert np.array_equal(columns["target"] * 8, [[2, 4, NAN], [NAN, 8, 6], [NAN, NAN, 1]], equal_nan=True)
    assert attributes["target"] == {"scale": 8.0, "per_snapshot": True}
    rain = [[0, 0.5, 0.5], [1.5, 2.5, 3.5], [0, 0, 4.5]]
    assert columns["feat"].tolist() == np.stack([rain, [[2, 4, -1], [-1, 8, 6], [-1, -1, 1]]], axis=2).tolist()
    assert columns["label"].tolist() == [[0, 1, -1], [1, -1, 0], [-1, -1, 1]]
    assert json.loads(attributes["label"]["names"]) == ["green", "red"]
    for note in (
        "times 2024-01-01T00:00:00 to 2024-01-15T00:00:00", "4 of 9 targets are missing", "4 of 9 labels are missing",
        "4 of 9 values of rain filled in (forward,0)", "4 of 9 values of cases filled in (-1)",
    ):  # fmt: skip
        assert note in said
    with h5py.File(tmp_path / "g.h5") as file:
        assert [source["name"] for source in json.loads(file.attrs["sources"])] == ["roads.csv", "series.csv"]
        assert json.loads(file.attrs["clock"]) == {"first": 1704067200, "step": 604800, "zone": "UTC"}


def test_another_delimiter_and_encoding(tmp_path, capsys):
    """And days that are not evenly spaced, so that snapshots keep their numbers."""
    edges, series = tmp_path / "edges.csv", tmp_path / "series.csv"
    edges.write_bytes("src|dst\nÖd|Au\n".encode("latin-1"))
    series.write_bytes("node|time|größe\nÖd|2024-01-01|1\nAu|2024-01-02|3\nAu|2024-01-04|2\n".encode("latin-1"))
    options = ("--series", series, "--delimiter", "|", "--encoding", "latin-1", "--raw")
    convert(capsys, "tables", edges, tmp_path / "g.h5", *options)
    columns, _ = columns_of(tmp_path / "g.h5")
    assert [word.decode() for word in columns["id"]] == ["Au", "Öd"]
    assert np.array_equal(columns["target"], [[NAN, 3, 2], [1, NAN, NAN]], equal_nan=True)
    with h5py.File(tmp_path / "g.h5") as file:
        assert "clock" not in file.attrs


def test_the_only_column_is_the_target_and_integers_are_ids(tmp_path, capsys):
    """Raw numbers; ids are in the order of their numbers; times of integers."""
    edges, series = write(tmp_path, edges="from;to\n10;9\n", series="node;time;value\n10;5;-3\n9;6;2\n9;5;1\n")
    said = convert(
        capsys, "tables", edges, tmp_path / "g.h5", "--series", series, "--src", "from", "--dst", "to", "--raw",
        "--undirected",
    )  # fmt: skip
    columns, _ = columns_of(tmp_path / "g.h5")
    assert columns["id"].tolist() == [9, 10]
    assert np.array_equal(columns["target"], [[1, 2], [-3, NAN]], equal_nan=True)
    assert snapshots_of(tmp_path / "g.h5") == [(0, 9, 10), (0, 10, 9), (1, 9, 10), (1, 10, 9)]
    assert "times 5 to 6" in said


def test_a_long_table_with_an_index_of_pandas(tmp_path, capsys):
    """Its column has no name and is no value."""
    (edges,) = write(tmp_path, edges="src,dst\na,b\n")
    frame = pd.DataFrame({"node": ["a", "b"], "time": [3, 3], "value": [5.0, 6.0]})
    frame.to_csv(tmp_path / "series.csv")
    convert(capsys, "tables", edges, tmp_path / "g.h5", "--series", tmp_path / "series.csv", "--raw")
    assert columns_of(tmp_path / "g.h5")[0]["target"].tolist() == [[5], [6]]


@pytest.mark.parametrize("form", ["csv", "csv_of_a_name", "parquet", "feather", "words"])
def test_a_wide_table_with_an_index(tmp_path, capsys, form):
    """What `DataFrame.to_csv` and others write: the index first, or last."""
    frame = pd.DataFrame([[2.0, 7.0, 4.0], [NAN, 8.0, 5.0], [3.0, 9.0, 16.0]], DAYS, ["b", "a", "c"])
    if form == "words":
        frame = frame.set_index(DAYS.strftime("%Y-%m-%d")).astype("string")
    suffix = {"csv_of_a_name": "csv", "words": "parquet"}.get(form, form)
    path, time = tmp_path / f"series.{suffix}", ()
    if form == "csv":  # the index first, without a name
        frame.to_csv(path)
    elif form == "csv_of_a_name":
        frame.rename_axis("week").to_csv(path)
    elif form in ("parquet", "words"):
        frame.rename_axis("week").to_parquet(path)
        time = ("--time", "week")
    else:
        frame.rename_axis("time").reset_index().to_feather(path)
    (roads,) = write(tmp_path, roads=ROADS)
    said = convert(capsys, "tables", roads, tmp_path / "g.h5", "--series", path, *time)
    columns, attributes = columns_of(tmp_path / "g.h5")
    assert columns["id"].tolist() == [b"a", b"b", b"c"]
    expected = [[7, 8, 9], [2, NAN, 3], [4, 5, 16]]
    assert np.array_equal(columns["target"] * attributes["target"]["scale"], expected, equal_nan=True)
    assert "times 2024-01-01T00:00:00 to 2024-01-15T00:00:00; 1 of 9 targets are missing" in said


def test_a_table_of_nodes(tmp_path, capsys):
    """It has all nodes, also one without an edge; its features are repeated beside features of every snapshot."""
    roads, towns = write(tmp_path, roads="src,dst,week\na,c,1\nb,a,3\na,c,3\n", towns=TOWNS)
    options = ("--nodes", towns, "--time", "week", "--feat", "height", "--label", "kind")
    convert(capsys, "tables", roads, tmp_path / "g.h5", *options)
    columns, attributes = columns_of(tmp_path / "g.h5")
    assert columns["feat"].tolist() == [[10], [20], [30]]
    assert columns["label"].tolist() == [0, 1, 1]
    assert json.loads(attributes["label"]["names"]) == ["coast", "hill"]
    assert snapshots_of(tmp_path / "g.h5") == [(0, b"a", b"c"), (1, b"a", b"c"), (1, b"b", b"a")]
    said = convert(capsys, "tables", roads, tmp_path / "s.h5", *options, "--step", "1")
    assert "3 snapshots" in said
    assert snapshots_of(tmp_path / "s.h5") == [(0, b"a", b"c"), (2, b"a", b"c"), (2, b"b", b"a")]
    (series,) = write(tmp_path, series="town,week,cases,rain\na,1,4,0.5\na,2,4,1.5\na,3,4,2.5\n")
    said = convert(
        capsys, "tables", roads, tmp_path / "b.h5", "--nodes", towns, "--series", series, *NAMES,
        "--feat", "height,rain", "--fill", "0",
    )  # fmt: skip
    columns, _ = columns_of(tmp_path / "b.h5")
    rain = [[0.5, 1.5, 2.5], [0, 0, 0], [0, 0, 0]]
    assert columns["feat"].tolist() == np.stack([[[10] * 3, [20] * 3, [30] * 3], rain], axis=2).tolist()
    assert "series.csv: columns that are not read: cases" in said
    assert "towns.csv: columns that are not read: kind" in said
    assert "target" not in columns


def test_a_wide_table_beside_a_table_of_nodes(tmp_path, capsys):
    edges, wide, towns = write(tmp_path, edges=ROADS, wide="time,a,b,c\n1,1,2,3\n2,4,5,6\n", towns=TOWNS)
    options = ("--nodes", towns, "--label", "kind", "--feat", "height", "--raw")
    convert(capsys, "tables", edges, tmp_path / "g.h5", "--series", wide, *options)
    columns, _ = columns_of(tmp_path / "g.h5")
    assert columns["target"].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert columns["label"].tolist() == [0, 1, 1]
    assert columns["feat"].tolist() == [[10], [20], [30]]


def test_edges_with_times_and_parallel_edges(tmp_path, capsys):
    text = "src,dst,weight,time\na,b,1,01.02.2024\na,b,2,01.02.2024\nb,a,4,03.02.2024\n"
    edges, series = write(tmp_path, edges=text, series="time,a,b\n01.02.2024,1,2\n02.02.2024,3,4\n03.02.2024,5,6\n")
    options = ("--series", series, "--dates", "%d.%m.%Y", "--merge")
    convert(capsys, "tables", edges, tmp_path / "g.h5", *options)
    assert snapshots_of(tmp_path / "g.h5", "weight") == [(0, b"a", b"b", 3.0), (2, b"b", b"a", 4.0)]
    (series,) = write(tmp_path, series="time,a,b\n02.02.2024,3,4\n03.02.2024,5,6\n")
    message = refused(capsys, "tables", edges, *options, tmp_path / "x.h5")
    assert "edges.csv: column 'time', row 1: no snapshot has the time 2024-02-01T00:00:00" in message


def test_classes_of_numbers_beside_missing_ones(tmp_path, capsys):
    """Parquet of pandas has them as fractions."""
    frame = pd.DataFrame(
        {
            "node": ["a", "b", "c"],
            "time": [1, 1, 1],
            "kind": [7.0, NAN, 10.0],
            "other": [-1, 3, 2],
            "word": ["-1", "low", "high"],
            "grade": [2.5, NAN, 1.5],
        }
    )
    frame.to_parquet(tmp_path / "s.parquet")
    (edges,) = write(tmp_path, edges="src,dst\na,b\n")
    series = ("--series", tmp_path / "s.parquet")
    for label, expected, names, *options in (
        ("kind", [0, -1, 1], ["7", "10"]), ("grade", [1, -1, 0], ["1.5", "2.5"]),
        ("other", [-1, 1, 0], ["2", "3"], "--missing", "-1"), ("word", [-1, 1, 0], ["high", "low"]),
    ):  # fmt: skip
        path = tmp_path / f"{label}.h5"
        said = convert(capsys, "tables", edges, path, *series, "--label", label, *options)
        assert "1 of 3 labels are missing" in said
        columns, attributes = columns_of(path)
        assert columns["label"].ravel().tolist() == expected
        assert json.loads(attributes["label"]["names"]) == names
    message = refused(capsys, "tables", edges, *series, "--label", "other", tmp_path / "x.h5")
    assert "label other: 1 of 3 are -1, beside classes 2, 3: pass --missing -1 if it is a missing class" in message


def test_uneven_times_are_told(tmp_path, capsys):
    edges, series = write(tmp_path, edges="src,dst\na,b\n", series="time,a,b\n0,1,2\n31,1,2\n59,1,2\n")
    said = convert(capsys, "tables", edges, tmp_path / "g.h5", "--series", series)
    assert "3 snapshots" in said
    assert "snapshots are 28 to 31 apart; --step sets an even distance" in said


BAD = {  # texts that take the place of others, options, message
    "unknown feature": ({}, ("--feat", "snow"), "--feat snow: no such column in the series and the table of nodes"),
    "missing feature": (
        {}, ("--feat", "rain"), "feature rain: 4 values are missing, such as of a at 2024-01-01T00:00:00; declare",
    ),
    "nothing before": ({}, ("--feat", "rain", "--fill", "forward"), "feature rain: 3 values are missing, such as of a"),
    "fill of a target": (
        {}, ("--target", "cases", "--fill", "cases=0"), "a missing target is left out of loss and metrics",
    ),
    "unknown fill": ({}, ("--feat", "rain", "--fill", "rain=backward"), "expected forward, a number, or forward,NUM"),
    "no choice": ({}, (), "columns of values are cases, rain, alarm; choose by --target, --feat and --label"),
    "unknown node": ({"roads": ROADS + "z,a,1\n"}, ("--target", "cases"), "row 3: no node 'z' in series.csv"),
    "no weight": ({"roads": ROADS + "a,b,\n"}, ("--target", "cases"), "row 3: the weight is missing"),
    "no number": ({"series": LONG + "c,2024-01-08,x,1,red\n"}, ("--target", "cases"), "row 7: 'x' is not a number"),
    "twice": (
        {"series": LONG + "a,2024-01-08,1,1,red\n"}, ("--target", "cases"),
        "series.csv: row 7: the same node and time as row 1; keep one of them",
    ),
    "no date": ({"series": LONG + "a,last,1,1,red\n"}, ("--target", "cases"), "'last' is no date in ISO 8601"),
    "no id": ({"series": LONG + ",2024-01-08,1,1,red\n"}, ("--target", "cases"), "row 7: the id is empty"),
    "nothing known": (
        {"roads": "src,dst\na,a\n", "series": "town,week,cases\na,1,\n"}, ("--target", "cases"),
        "target cases: no value is known",
    ),
    "no row": ({"series": "town,week,cases\n"}, (), "series.csv: no rows of data"),
    "nothing": ({"series": ""}, (), "series.csv: no line of names of columns"),
    "label and feature": ({}, ("--label", "rain", "--feat", "rain"), "--label rain: the column is a target or feature"),
    "no column of nodes": ({}, ("--node", "city", "--target", "cases"), "without a column 'city' (--node)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_tables_that_are_refused(tmp_path, capsys, case):
    texts, options, message = BAD[case]
    roads, series = write(tmp_path, **({"roads": ROADS, "series": LONG} | texts))
    names = NAMES if "--node" not in options else NAMES[2:]
    assert message in refused(capsys, "tables", roads, "--series", series, *names, *options, tmp_path / "x.h5")


@pytest.mark.parametrize(
    ("column", "options"),
    [("cases", ("--target", "cases")), ("rain", ("--feat", "rain", "--fill", "0")), ("alarm", ("--label", "alarm"))],
)
def test_a_column_of_both_tables(tmp_path, capsys, column, options):
    towns = f"id,{column}\na,1\nb,2\nc,3\n"
    roads, series, towns = write(tmp_path, roads=ROADS, series=LONG, towns=towns)
    message = refused(
        capsys, "tables", roads, "--series", series, "--nodes", towns, *NAMES, *options, tmp_path / "x.h5"
    )
    assert f"series.csv and towns.csv both have the column {column!r}: rename it in one of them" in message


def test_one_snapshot_is_no_series(tmp_path, capsys):
    (roads,) = write(tmp_path, roads=ROADS)
    message = refused(capsys, "tables", roads, tmp_path / "x.h5")
    assert "roads.csv: neither times of edges (time) nor --series: all would be one snapshot" in message


def test_a_second_row_of_a_node(tmp_path, capsys):
    roads, series, towns = write(tmp_path, roads=ROADS, series=LONG, towns=TOWNS + "a,11,hill\n")
    message = refused(
        capsys, "tables", roads, "--series", series, *NAMES, "--nodes", towns, "--feat", "height", "--target", "cases",
        tmp_path / "x.h5",
    )  # fmt: skip
    assert "towns.csv: row 4: the same node as row 2; keep one of them" in message


def test_offsets_of_times_are_noted(tmp_path, capsys):
    """Of edges and of the series, in one note."""
    edges, series = write(
        tmp_path, edges="src,dst,time\na,b,2024-01-01T01:00:00+01:00\n",
        series="node,time,value\na,2024-01-01T00:00:00Z,1\nb,2024-01-02T01:00:00+01:00,2\n",
    )  # fmt: skip
    said = convert(capsys, "tables", edges, tmp_path / "g.h5", "--series", series)
    assert "times: 2 dates have offsets from UTC (+01:00 in 2); times are stored and answered in UTC" in said
    assert "times 2024-01-01T00:00:00 to 2024-01-02T00:00:00" in said


PRESET = ("--preset", "csv-snapshots")


def test_the_preset_writes_what_the_command_writes(tmp_path, capsys):
    """Settings are the options of the command, with repeated ones and ones without a value."""
    roads, series = write(tmp_path, roads=ROADS, series=LONG)
    named = {"node": "town", "time": "week", "target": "cases", "feat": "rain,cases", "label": "alarm"}
    repeated = [("fill", "rain=forward,0"), ("fill", "-1"), ("missing", "-9")]
    options = [f"--{name}={value}" for name, value in [("series", series), *named.items(), *repeated]]
    said = convert(capsys, "tables", roads, tmp_path / "g.h5", *options, "--raw", "--undirected")
    pairs = [("edges", roads), ("series", series), *named.items(), *repeated, ("raw", "true"), ("undirected", "true")]
    settings = [f"--set={name}={value}" for name, value in [*pairs, ("merge", "false")]]
    out = tmp_path / "new" / "p.h5"
    assert conversion.main([*PRESET, *settings, str(out)]) == 0
    assert capsys.readouterr().out == said.replace(str(tmp_path / "g.h5"), str(out))
    with h5py.File(tmp_path / "g.h5") as file, h5py.File(out) as other:
        assert dict(file.attrs) == dict(other.attrs)
    np.testing.assert_equal(columns_of(out), columns_of(tmp_path / "g.h5"))
    assert snapshots_of(tmp_path / "g.h5", "weight") == snapshots_of(out, "weight")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "files.edges has no path; pass --set edges=PATH"),
        (["--set=edges={roads}", "--set=aim=cases"], "--set: 'aim' is not one of edges, series, nodes, time"),
        (["--set=edges={roads}", "--set=raw=yes"], "--set raw: 'yes' is not one of true, false"),
        (["--set=edges={roads}", "--set=step=x"], "argument --step: invalid int value: 'x' (with --preset"),
        (["--set=edges={roads}", "--sort"], "--sort: not with --preset csv-snapshots; leave it out"),
        (["--set=edges={roads}", "--memory=1GiB"], "--memory: not with --preset csv-snapshots; leave it out"),
        (["--set=edges={roads}"], "--series: all would be one snapshot; hpcgnn convert makes a static graph (with "
         "--preset csv-snapshots, --NAME VALUE is --set NAME=VALUE)"),
    ],
)  # fmt: skip
def test_settings_of_the_preset_that_are_refused(tmp_path, capsys, words, what):
    """One line names the setting."""
    (roads,) = write(tmp_path, roads=ROADS)
    out = tmp_path / "p.h5"
    assert conversion.main([*PRESET, *(word.format(roads=roads) for word in words), str(out)]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert error.count("\n") == 1
    assert not out.exists()
