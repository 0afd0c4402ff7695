"""Columns and sets that a conversion cannot store: what the message names; ids that no node has."""

import re

import h5py
import numpy as np
import pytest
import yaml
from convert_sources import SPEC_BY_NAME, refused

from data_tools import inspect
from data_tools.convert import main
from data_tools.partition.command import partition
from data_tools.source import id_spaces
from data_tools.source.file_spec import FileSpec
from data_tools.source.id_spaces import UNKNOWN, IntegerIds
from data_tools.source.reader import read_sets
from data_tools.source.rewrite import rewriting
from data_tools.source.spec import ColumnSpec, EdgeSpec, FileColumn, NodeSpec, SourceSpec
from hpcgnn.graph.files import FileFormatError, class_names

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(
    ("item", "rows", "message"),
    [
        (FileColumn("sets", "x", mask=True), np.array([0, 2, 1]), "'x' is no mask: it holds 2"),
        (FileColumn("sets", "x", mask=True), np.array([0, 1]), r"is neither a list of rows nor a mask of 3 rows"),
        ("x", np.array([0.5]), r"'x' \(float64, shape \(1,\)\) is neither a list of rows nor a mask of 3 rows"),
        ("x", np.array([0, 3]), r"'x' names rows outside of 0 \.\. 2"),
        ("x", np.array([[2, 0]]), None),
        (FileColumn("sets", "x", mask=True), np.array([1, 0, 1]), None),
    ],
)
def test_sets(tmp_path, item, rows, message):
    """Row numbers, also in one line of a matrix, or masks."""
    np.savez(tmp_path / "sets.npz", x=rows)
    column = ColumnSpec(sets={"train": item}, file=None if isinstance(item, FileColumn) else "sets")
    node = NodeSpec("a", ids="row", count=3, file="sets", columns={"split": column})
    edges = [EdgeSpec("a.to.a", "sets", "x", "x")]
    spec = SourceSpec({"sets": FileSpec(path=str(tmp_path / "sets.npz"))}, [node], edges)
    if message is None:
        assert read_sets(spec, node, column, 3, tmp_path).tolist() == [0, -1, 0]
        return
    with pytest.raises(FileFormatError, match=message):
        read_sets(spec, node, column, 3, tmp_path)


def test_a_column_without_a_value_for_every_node(tmp_path, capsys):
    (tmp_path / "users.csv").write_text("id,age\n1,30\n")
    (tmp_path / "events.csv").write_text("u,i,t,y,f0,f1\n1,5,0,0,0,0\n2,5,1,0,0,0\n")
    spec = SPEC_BY_NAME | {
        "files": {"events": {"path": str(tmp_path / "events.csv")}, "users": {"path": str(tmp_path / "users.csv")}},
        "nodes": [
            {"type": "user", "file": "users", "id": "id", "others": "add",
             "columns": {"age": {"column": "age", "dtype": "int64"}}},
            {"type": "item"},
        ],
    }  # fmt: skip
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    assert "column age has no value for node 2, which occurs in edges only; declare a fill" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "jodie", "--set", "events"], "--set events: expected NAME=PATH, such as events=wikipedia.csv.gz"),
        (["--chunks", ".", "--set", "events=x"], "--set: a folder of chunks names its files itself"),
    ],
)
def test_settings_of_the_command(tmp_path, capsys, options, message):
    assert message in refused(tmp_path, capsys, *options)


def test_names_of_many_classes(tmp_path, capsys):
    """More words than HDF5 keeps in an attribute (64 KiB), as the relations of FB15k; also in parts and copies."""
    words = [f"/a/relation/of/a/knowledge/graph/with/a/long/name/number/{number:05}" for number in range(1345)]
    for name in ("train", "valid", "test"):
        lines = [f"{number}\t{word}\t{number + 1}\n" for number, word in enumerate(words)]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    graph, copy, part = tmp_path / "g.h5", tmp_path / "copy.h5", tmp_path / "p" / "part-0.h5"
    assert main(["--preset", "kg-links", "--set", f"facts={tmp_path}", str(graph)]) == 0
    with rewriting(graph, copy):
        pass
    partition(copy, tmp_path / "p", 1, "random")
    for path in (graph, copy, part):
        with h5py.File(path) as file:
            assert class_names(file["edges/entity.fact.entity/rel"]) == words
            assert class_names(file["edges/entity.fact.entity/split"]) == []
        capsys.readouterr()
        assert inspect.main([str(path)]) == 0
        told = re.search(r"rel int\d+ \[\d+\] \(0 (\S+), 1 (\S+), .*, ... 1345 in all\)", capsys.readouterr().out)
        assert told.groups() == ("/a/relation/of/a/k.../name/number/00000", "/a/relation/of/a/k.../name/number/00001")


@pytest.mark.parametrize("names", ["no list", "[1, 2]", ["a", "b"], 3])
def test_names_that_are_no_list_of_words(tmp_path, names):
    with h5py.File(tmp_path / "g.h5", "w") as file:
        file["kind"] = np.arange(3)
        file["kind"].attrs["names"] = names
        with pytest.raises(FileFormatError, match="kind: attribute names is no JSON list of words"):
            class_names(file["kind"])


def test_ids_are_merged_now_and_then(monkeypatch):
    """Where many pieces wait; of a type without nodes no id is known."""
    monkeypatch.setattr(id_spaces, "MERGE_AT", 3)
    space, empty = IntegerIds("user"), IntegerIds("item")
    for piece in ([5, 1], [9, 5], [2]):
        space.encode(np.array(piece))
    space.sealed = empty.sealed = True
    assert space.encode(np.array([2, 3])).tolist() == [2, UNKNOWN]
    assert space.ids.tolist() == [1, 2, 5, 9]
    assert empty.encode(np.array([2])).tolist() == [UNKNOWN]
