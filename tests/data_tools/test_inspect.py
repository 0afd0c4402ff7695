"""Inspecting every format of ours, and naming what is not ours."""

import json

import h5py
import numpy as np
import pandas as pd
import pytest

from data_tools import convert
from data_tools.inspect import main
from data_tools.reports import describe_column
from hpcgnn.graph import files

pytestmark = pytest.mark.serial


def write_graph(path, num_nodes=5, num_edges=4):
    """A small temporal graph file; may be empty."""
    with files.writing(path, files.GRAPH, kind="temporal", sources=json.dumps([])) as file:
        nodes = file.create_group("nodes/node")
        nodes.attrs["num_nodes"], nodes.attrs["type_id"] = num_nodes, 0
        files.create_column(nodes, "feat", num_nodes, (3,), np.float32)
        edges = file.create_group("edges/node.to.node")
        edges.attrs["num_edges"], edges.attrs["relation_id"], edges.attrs["time_scale"] = num_edges, 0, 1000
        for name in ("src", "dst", "time"):
            files.create_column(edges, name, num_edges, (), np.int64)[...] = np.arange(num_edges)
    return path


def write_set(folder, sizes=(3, 2), quality=True):
    """A partition set with parts of these numbers of nodes, each with one event."""
    balance = {"cut": 1, "balance": {"events": 1.5}, "replication": 1.25, "runs": [{"ranks": 1, "cut": 0}]}
    attributes = {"kind": "temporal", "num_parts": len(sizes), "set_id": "abc", "seed": 7, "method": "random"}
    stored = {"options": "{}", "quality": json.dumps(balance if quality else {})}
    with files.writing(files.book_path(folder), files.BOOK, **attributes, **stored) as book:
        nodes = book.create_group("nodes/node")
        nodes.attrs["num_nodes"], nodes.attrs["type_id"] = sum(sizes), 0
        edges = book.create_group("edges/node.to.node")
        edges.attrs["num_edges"], edges.attrs["relation_id"] = len(sizes), 0
        edges["columns"] = np.array([b"time"])
    for part, size in enumerate(sizes):
        with files.writing(files.part_path(folder, part), files.PART, part=part, num_parts=2, set_id="abc") as file:
            file["nodes/node/row"] = np.arange(size)
            file["edges/node.to.node/row"] = file["edges/node.to.node/time"] = np.array([part])
            file["history/node.to.node/event"] = np.arange(2)
    return folder


def report(capsys, path):
    """What --json prints."""
    assert main([str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def text(capsys, path):
    """What people see."""
    assert main([str(path)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("num_nodes", "num_edges"), [(5, 4), (5, 0), (0, 0)])
def test_graph_also_when_empty(tmp_path, capsys, num_nodes, num_edges):
    path = write_graph(tmp_path / "g.h5", num_nodes, num_edges)
    found = report(capsys, path)
    assert (found["format"], found["kind"], found["bytes"]) == (files.GRAPH, "temporal", path.stat().st_size)
    assert found["nodes"] == [{"name": "node", "count": num_nodes, "columns": {"feat": f"float32 [{num_nodes}, 3]"}}]
    (edges,) = found["edges"]
    assert (edges["count"], edges["time_scale"]) == (num_edges, 1000)
    assert edges["times"] == ([0, num_edges - 1] if num_edges else None)
    assert f"node.to.node: {num_edges}" in text(capsys, path)


def test_graph_without_any_type(tmp_path, capsys):
    with files.writing(tmp_path / "g.h5", files.GRAPH, kind="static"):
        pass
    assert report(capsys, tmp_path / "g.h5")["nodes"] == []
    assert "nodes: none" in text(capsys, tmp_path / "g.h5")


def test_partition_set(tmp_path, capsys):
    folder = write_set(tmp_path / "set")
    found = report(capsys, folder)
    assert [part["nodes"] for part in found["parts"]] == [3, 2]
    assert [part["state"] for part in found["parts"]] == ["ok", "ok"]
    assert found["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    printed = text(capsys, folder)
    for words in ("2 parts", "replication: 1.25", "balance.events: 1.5", "cut: 1", "method random, seed 7"):
        assert words in printed


def test_partition_set_without_quality(tmp_path, capsys):
    assert "quality: not stored" in text(capsys, write_set(tmp_path / "set", quality=False))


def test_missing_and_foreign_parts_are_marked(tmp_path, capsys):
    folder = write_set(tmp_path / "set", sizes=(3, 2, 1, 1))
    files.part_path(folder, 0).unlink()
    files.part_path(folder, 1).write_bytes(b"not HDF5")
    with h5py.File(files.part_path(folder, 2), "r+") as file:
        file.attrs["set_id"] = "another"
    states = [part["state"] for part in report(capsys, folder)["parts"]]
    assert states[0] == "missing"
    assert "not a readable HDF5 file" in states[1]
    assert states[2:] == ["of another set", "ok"]


def test_book_and_part(tmp_path, capsys):
    folder = write_set(tmp_path / "set")
    assert report(capsys, files.book_path(folder))["edges"][0]["columns"] == {"time": ""}
    part = report(capsys, files.part_path(folder, 1))
    assert (part["part"], part["nodes"][0]["count"], part["history"][0]["count"]) == (1, 2, 2)
    assert part["edges"][0]["times"] == [1, 1]
    assert "part 1 of 2, set abc" in text(capsys, files.part_path(folder, 1))


def refused(capsys, path):
    """The message for a path that is not ours."""
    assert main([str(path)]) == 2
    return capsys.readouterr().err


def test_what_is_not_ours_is_named(tmp_path, capsys):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["weights"] = [1]
    assert "weights" in refused(capsys, tmp_path / "other.h5")
    (tmp_path / "text.h5").write_text("hello")
    assert "not an HDF5 file" in refused(capsys, tmp_path / "text.h5")
    assert "no such file" in refused(capsys, tmp_path / "none.h5")
    assert "not a folder of hpcgnn" in refused(capsys, tmp_path)


def test_another_version_is_refused(tmp_path, capsys):
    path = write_graph(tmp_path / "g.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = 99
    assert "version 99" in refused(capsys, path)


# Noon of 2024-01-02 and midnight of 2024-03-01, in seconds since 1970.
NOON, MIDNIGHT = 1_704_196_800, 1_709_251_200
PERIOD = "2024-01-02T12:00:00 to 2024-03-01T00:00:00 UTC"


def convert_times(capsys, path, times, *options):
    """What converting two events prints, and what inspecting them does."""
    pd.DataFrame({"src": [1, 2], "dst": [2, 3], "time": times}).to_csv(path.with_suffix(".csv"), index=False)
    source = f"events={path.with_suffix('.csv')}"
    assert convert.main(["--preset", "csv-temporal", "--set", source, *options, str(path)]) == 0
    return capsys.readouterr().out, text(capsys, path)


@pytest.mark.parametrize("scale", [1, 1000])
def test_times_of_dates_are_dates(tmp_path, capsys, scale):
    dates = ["2024-01-02T12:00:00", "2024-03-01"]
    path, options = tmp_path / "g.h5", ("--set", "dates=iso", "--set", f"time_scale={scale}")
    for printed in convert_times(capsys, path, dates, *options):
        assert f"times {NOON * scale}..{MIDNIGHT * scale}" in printed
        assert f"({PERIOD})" in printed
    assert report(capsys, path)["edges"][0]["dates"] == PERIOD


def test_dates_of_another_zone_are_shown_in_utc_and_answered_there(tmp_path, capsys):
    """Offsets of the text do not matter."""
    dates = ["2024-01-02T14:00:00+02:00", "2024-03-01T00:00:00Z"]
    options = ("--set", "dates=iso", "--set", "zone=Asia/Tokyo")
    _, printed = convert_times(capsys, tmp_path / "g.h5", dates, *options)
    assert f"times {NOON}..{MIDNIGHT} ({PERIOD}; answers in Asia/Tokyo)" in printed
    assert report(capsys, tmp_path / "g.h5")["edges"][0]["zone"] == "Asia/Tokyo"


@pytest.mark.parametrize(("factor", "unit"), [(1, "seconds"), (10**3, "milliseconds"), (10**9, "nanoseconds")])
def test_times_of_numbers_are_dates_on_a_condition(tmp_path, capsys, factor, unit):
    for printed in convert_times(capsys, tmp_path / "g.h5", [NOON * factor, MIDNIGHT * factor]):
        assert f"({PERIOD}, if these are {unit} since 1970)" in printed


def test_a_scale_belongs_to_the_unit(tmp_path, capsys):
    """Stored milliseconds of a source in seconds."""
    for printed in convert_times(capsys, tmp_path / "g.h5", [NOON, MIDNIGHT], "--set", "time_scale=1000"):
        assert f"({PERIOD}, if these are seconds since 1970)" in printed


@pytest.mark.parametrize("times", [[0, 5], [NOON, 10**12], [-5, NOON], [NOON // 1000, MIDNIGHT // 1000]])
def test_other_numbers_are_no_dates(tmp_path, capsys, times):
    for printed in convert_times(capsys, tmp_path / "g.h5", times):
        assert "1970" not in printed
        assert "UTC" not in printed


def test_ids_of_text_have_their_width(tmp_path):
    """In bytes, where NumPy's names of types count bits."""
    with h5py.File(tmp_path / "g.h5", "w") as file:
        assert describe_column(file.create_dataset("id", data=np.array([b"pen", b"cup"]))) == "text of 3 bytes [2]"
        assert describe_column(file.create_dataset("feat", data=np.zeros((2, 5), np.float32))) == "float32 [2, 5]"


def test_long_names_are_shortened(tmp_path, capsys):
    (tmp_path / "e.csv").write_text("src,dst,kind\n1,2,short\n2,3,/people/person/place/of/birth/and/more/or/less\n")
    (tmp_path / "s.yaml").write_text(
        "files: {e: {path: e.csv}}\nnodes: [{type: node}]\nedges:\n"
        "- {relation: node.to.node, file: e, src: src, dst: dst, columns: {rel: {column: kind, classes: true}}}\n"
    )
    assert convert.main(["--spec", str(tmp_path / "s.yaml"), str(tmp_path / "g.h5")]) == 0
    assert "(0 /people/person/pla...h/and/more/or/less, 1 short)" in text(capsys, tmp_path / "g.h5")
