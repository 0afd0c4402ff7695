"""What the parts of a spec refuse: settings that contradict each other, or say too little."""

import math

import pytest

from data_tools.source.file_spec import FileSpec
from data_tools.source.formats.selection import select
from data_tools.source.schema import items
from data_tools.source.spec import ColumnSpec, EdgeSpec, FileColumn, NodeSpec, SourceSpec
from data_tools.source.spec_file import build_spec, load_spec, with_ids
from data_tools.split import SplitOptions
from hpcgnn.graph.files import FileFormatError

pytestmark = pytest.mark.serial
X, SETS = ColumnSpec(column="x"), ColumnSpec(sets={"train": "t"})
EDGE = {"relation": "a.to.b", "file": "e", "src": 0, "dst": 1}
TIMED = EDGE | {"time": 2}
ROWS = {"type": "a", "ids": "row", "count": 2}


def source(nodes=({"type": "a"}, {"type": "b"}), edges=(EDGE,), **keys) -> SourceSpec:
    """A spec of these tables, of one file."""
    return SourceSpec(
        {"e": FileSpec(path="e.csv")},
        [NodeSpec(**node) for node in nodes],
        [EdgeSpec(**edge) for edge in edges],
        **keys,
    )


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        (FileSpec, {"quote": '"', "delimiter": "whitespace"}, "quote: only with a delimiter of one character"),
        (FileSpec, {"columns": ["a"]}, "the header names the columns already; set header: skip"),
        (FileSpec, {"archive": "a.zip"}, "archive and member go together"),
        (FileSpec, {"chunks": ["a"], "path": "b"}, "chunks: takes the place of path and archive"),
        (FileSpec, {"rows": [1, 2]}, "rows: one number, as there are no chunks"),
        (ColumnSpec, {}, "give exactly one of column, sparse and sets, the place of the values"),
        (ColumnSpec, {"column": "x", "classes": True, "values": {"a": 1}}, "classes: numbers the words of one column"),
        (NodeSpec, {"type": "a", "ids": "row", "id": "x"}, "ids: row numbers the rows itself; leave out id and others"),
        (NodeSpec, {"type": "a", "ids": "row"}, "needs columns or a count, which say how many nodes there are"),
        (NodeSpec, {"type": "a", "count": 3}, "count: only with ids: row; otherwise the ids found are counted"),
        (NodeSpec, {"type": "a", "columns": {"feat": X}}, "a node table needs a file and an id column (or ids: row)"),
        (NodeSpec, {"type": "a", "ids": "row", "file": {"train": "t"}, "columns": {"x": X}},
         "with ids: row give each column its file"),
        (NodeSpec, {"type": "a", "ids": "row", "columns": {"x": X}}, "columns.x: no file, neither here nor for"),
        (NodeSpec, {"type": "a", "file": "f", "id": 0, "columns": {"split": SETS}}, "sets hold row numbers, which"),
        (NodeSpec, {"type": "a", "file": {"train": "t"}, "id": 0, "columns": {"x": ColumnSpec(column="x", file="f")}},
         "columns.x: a file of its own does not go with several files of the table"),
        (EdgeSpec, EDGE | {"time_scale": 0}, "time_scale: 0 is not positive"),
        (EdgeSpec, EDGE | {"undirected": True}, "undirected: a and b differ; use `reverse: <relation>`"),
        (EdgeSpec, EDGE | {"relation": "a.to.a", "undirected": True, "reverse": "by"}, "exclude each other"),
        (EdgeSpec, EDGE | {"columns": {"split": SETS}}, "sets: of edges only with masks, {file, column, mask: true}"),
        (source, {"edges": ()}, "edges: at least one is needed"),
        (source, {"edges": (EDGE, TIMED | {"relation": "a.at.b"})}, "either every relation has a time or none has"),
        (source, {"kind": "temporal"}, "kind: temporal, but the relations have no time"),
        (source, {"kind": "static", "edges": (TIMED,)}, "kind: static, but the relations have a time"),
        (source, {"edges": (TIMED | {"relation": "a.to.a", "undirected": True},)}, "history of both ends already"),
        (source, {"nodes": (ROWS, {"type": "b"}), "edges": (EDGE | {"dangling": "keep"},)},
         "nodes: a: dangling: keep (or others: add) cannot be, as its ids are row numbers"),
        (source, {"edges": (EDGE | {"dangling": "keep"}, EDGE | {"relation": "a.at.b", "dangling": "drop"})},
         "cannot be, as others say ['drop']"),
        (SplitOptions, {}, "say what to split: --nodes TYPE or --relation SRC.REL.DST"),
        (SplitOptions, {"nodes": "a", "relation": "a.to.b"}, "say what to split: --nodes TYPE or --relation"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(kind, keys, message):
    with pytest.raises(ValueError) as caught:
        kind(**keys)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": {"a": 1}}, "nodes: expected a list, got dict"),
        ({"nodes": [3]}, r"nodes\[0\]: expected a mapping, got int"),
        (
            {"files": {"e": {"path": "e.csv"}, "f": {"path": "f", "archive": "e", "member": "m"}}},
            "archive takes the place",
        ),
    ],
)
def test_tables_and_files(tmp_path, change, message):
    spec = {"files": {"e": {"path": "e.csv"}}, "nodes": [{"type": "a"}, {"type": "b"}], "edges": [EDGE]}
    assert build_spec(spec, tmp_path, {}).graph_kind == "static"
    with pytest.raises(ValueError, match=message):
        build_spec(spec | change, tmp_path, {})


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("files", {"chunks": [1]}, "files.e: chunks[0]: 1 is int, expected str"),
        ("files", {"path": "e.csv", "rows": ["x"]}, "files.e: rows[0]: 'x' is str, expected int"),
        ("files", {"chunks": ["a", "b"], "rows": [1, [2]]}, "files.e: rows[1]: [2] is list, expected int"),
        ("files", {"path": "e.csv", "header": "none", "columns": [["x"]]}, "columns[0]: ['x'] is list, expected str"),
        ("edges", EDGE | {"file": {"train": ["e"]}}, "edges[0]: file['train']: ['e'] is list, expected str"),
        ("edges", EDGE | {"time_scale": 10**400}, "0 is beyond an int64"),
        (
            "edges",
            EDGE | {"columns": {"weight": {"column": "x", "fill": 2**64}}},
            f"fill: {2**64} is beyond an int64",
        ),
        (
            "edges",
            EDGE | {"columns": {"weight": {"column": "x", "values": {"a": -(2**80)}}}},
            "values['a']: -1208925819614629174706176",
        ),
        (
            "edges",
            EDGE | {"columns": {"weight": {"column": "x", "values": {"a": "b"}}}},
            "values['a']: 'b' is str, expected int",
        ),
    ],
)
def test_what_lists_and_mappings_hold_has_its_type(tmp_path, kind, change, message):
    """Each of these was taken, or ended in a traceback."""
    spec = {"files": {"e": {"path": "e.csv"}}, "nodes": [{"type": "a"}, {"type": "b"}], "edges": [EDGE]}
    with pytest.raises(ValueError) as caught:
        build_spec(spec | {kind: {"e": change} if kind == "files" else [change]}, tmp_path, {})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("label", {"fill": math.nan}, "fill: NaN is no int64; set dtype: float32, or fill: -1 for classes not known"),
        ("label", {"fill": 0.5}, "fill: 0.5 is no integer that fits into int64"),
        ("label", {"fill": -129, "dtype": "int8"}, "fill: -129 is no integer that fits into int8"),
        ("label", {"fill": math.inf}, "fill: inf is no integer that fits into int64"),
        ("label", {"fill": math.inf, "dtype": "float64"}, "fill: inf is no number that float64 holds"),
        ("weight", {"fill": 1e39}, "fill: 1e+39 is no number that float32 holds"),
        ("weight", {"fill": math.nan}, "fill: weight has a number in every row; give one, such as fill: 0"),
        ("feat", {"fill": math.nan}, "fill: feat has a number in every row; give one, such as fill: 0"),
        ("label", {"classes": True, "dtype": "float32"}, "classes are numbered by integers, not float32"),
        ("split", {"fill": -1}, None),
        ("label", {"fill": math.nan, "dtype": "float32"}, None),
    ],
)
def test_fills_that_a_column_holds(tmp_path, name, column, message):
    edge = EDGE | {"columns": {name: {"column": "x", **column}}}
    spec = {"files": {"e": {"path": "e.csv"}}, "nodes": [{"type": "a"}, {"type": "b"}], "edges": [edge]}
    if message is None:
        assert build_spec(spec, tmp_path, {}).graph_kind == "static"
        return
    with pytest.raises(ValueError) as caught:
        build_spec(spec, tmp_path, {})
    assert str(caught.value) == f"edges[0].columns.{name}: {message}" + ("; leave out dtype" * ("classes" in column))


def test_a_spec_that_is_missing_or_has_no_ids(tmp_path):
    with pytest.raises(ValueError, match=r"none\.yaml: no such file"):
        load_spec(tmp_path / "none.yaml", {})
    rows = [{"type": name, "ids": "row", "count": 2} for name in "ab"]
    with pytest.raises(ValueError, match="--ids string: the ids of this source are row numbers; leave it out"):
        with_ids(source(nodes=rows), "string")
    assert {node.ids for node in with_ids(source(), "string").nodes} == {"string"}


def test_keys_are_text():
    with pytest.raises(ValueError, match="files: the key 3 is not text; quote it"):
        items("files", {3: "x"})


def test_a_name_that_occurs_twice_is_no_column():
    with pytest.raises(FileFormatError, match=r"e\.csv: the column name 'x' occurs 2 times; use positions"):
        select("e.csv", "x", ["x", "y", "x"], 3)


def test_masks_of_edges_are_taken():
    mask = ColumnSpec(sets={"train": FileColumn("m", "x", mask=True)})
    assert EdgeSpec(**EDGE | {"columns": {"split": mask}}).columns["split"] is mask
